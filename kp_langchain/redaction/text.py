"""One text, redacted: all finders over it, their spans joined and replaced."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from kp_langchain.redaction import (
    blobs,
    carriers,
    commands,
    fields,
    foreign,
    formats,
    key_blocks,
    prose,
)
from kp_langchain.redaction.blobs import BLOB, summary
from kp_langchain.redaction.custom_rules import Rules
from kp_langchain.redaction.finders import Finders, signs_of
from kp_langchain.redaction.identifiers import KINDS, find_identifiers
from kp_langchain.redaction.pseudonyms import pseudonym
from kp_langchain.redaction.spans import PLACEHOLDER, Span, placeholder

PERSONAL = KINDS | {"account", "passport"}
"""Kinds that identify somebody; the others are secrets."""

SECRETS = {
    identifiers: Finders(
        *formats.FINDERS,
        *key_blocks.FINDERS,
        *carriers.FINDERS,
        *commands.FINDERS,
        *foreign.FINDERS,
        *prose.FINDERS,
        *carriers.LATE_FINDERS,
        *fields.finders(identifiers=identifiers),
        *blobs.FINDERS,
    )
    for identifiers in (False, True)
}
"""What finds secrets; the values under names that tell of identifiers count if those do."""

CERTAIN = Finders(*formats.CERTAIN, *key_blocks.FINDERS, *carriers.FINDERS)
"""What finds secrets that no rule of the user's can allow."""

_NO_SECRETS = PERSONAL | {BLOB}
_NO_RULES = Rules()
_MAX_PASSES = 8
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}

# Short texts in which nothing was found: names of fields and tools come again and again.
_SHORT_CHARS = 40
_HARMLESS_KEPT = 2000
_harmless: dict[bool, set[str]] = {False: set(), True: set()}


class _UnsettledError(Exception):
    """A text still changes after every allowed pass."""


def redact_text(
    text: str, counts: Counter[str], *, identifiers: bool, rules: Rules | None = None
) -> str:
    """Return `text` with everything sensitive replaced, and add what was found to `counts`.

    A replacement can bring together what stood apart, so the text is gone over until it no
    longer changes; almost always the second pass finds nothing.

    Args:
        text: Any text, lone surrogates included.
        counts: Receives the number of finds per kind.
        identifiers: Whether identifiers go too, or secrets alone.
        rules: What else goes, what stays, and whether identifiers get pseudonyms.
    """
    rules = rules or _NO_RULES
    found: list[str] = []
    for _ in range(_MAX_PASSES):
        spans = _joined(text, _find(text, identifiers=identifiers, rules=rules))
        if not spans:
            if found:
                counts.update(found)
            return text
        pieces = []
        done = 0
        for start, end, kind in spans:
            pieces += [text[done:start], replacement(kind, text[start:end], rules)]
            done = end
            found.append(kind)
        text = "".join([*pieces, text[done:]])
    raise _UnsettledError


def replacement(kind: str, found: str, rules: Rules) -> str:
    """Return what stands for something of `kind`: a placeholder, a pseudonym, or a summary."""
    if kind == BLOB:
        return summary(found)
    key = rules.pseudonym_key
    # What holds an earlier placeholder is no longer the identifier that it was.
    if key is not None and kind in PERSONAL and "[REDACTED:" not in found:
        return placeholder(f"{kind}#{pseudonym(kind, found, key.get_secret_value())}")
    return placeholder(kind)


def _find(text: str, *, identifiers: bool, rules: Rules) -> list[Span]:
    secrets, personal = _find_known(text, identifiers)
    if rules.patterns or rules.names:
        secrets += rules.find(text)
    spans = secrets + personal
    if rules.allow and spans:
        stays = {span for span in spans if rules.allows(text[span.start : span.end])}
        if stays:
            stays.difference_update(_certain(text))
            spans = [span for span in spans if span not in stays]
    return spans


def _certain(text: str) -> list[Span]:
    """Return the secrets that are known by their own form, or by what carries them."""
    low = _lowered(text)
    return CERTAIN.find(text, low, signs_of(text))


def _lowered(text: str) -> str:
    """Return the text in lower case, of the same length: positions must not move."""
    low = text.lower()
    return low if len(low) == len(text) else text.translate(_ASCII_LOWER)


def _find_known(text: str, identifiers: bool) -> tuple[list[Span], list[Span]]:
    """Return the secrets in `text`, and the identifiers if they are wanted."""
    harmless = _harmless[identifiers]
    if text in harmless:
        return [], []
    low = _lowered(text)  # some letters grow when lowered
    signs = signs_of(text)
    secrets = SECRETS[identifiers].find(text, low, signs)
    personal = find_identifiers(text, low, signs) if identifiers else []
    if len(text) <= _SHORT_CHARS and not secrets and not personal:
        if len(harmless) >= _HARMLESS_KEPT:
            harmless.clear()
        harmless.add(text)
    return secrets, personal


def _joined(text: str, spans: list[Span]) -> list[Span]:
    """Join overlapping spans, and leave alone what earlier placeholders already cover."""
    if not spans:
        return []
    standing = (
        [match.span() for match in PLACEHOLDER.finditer(text)] if "[REDACTED:" in text else []
    )
    kept: list[Span] = []
    # A stable order: what several find in the same place is called as the first of them does.
    for span in sorted(spans, key=lambda span: span[:2]):
        fresh = _around(span, standing, text) if standing else span
        if fresh is None or fresh.start >= fresh.end:
            continue
        if kept and fresh.start < kept[-1].end:
            last = kept[-1]
            if fresh.kind == "email" and text.find("@", fresh.start) <= last.end:
                continue  # scheme://user:password@host is no address; the host may stay
            longer = last if last.end - last.start >= fresh.end - fresh.start else fresh
            secret = [span.kind for span in (longer, last, fresh) if span.kind not in _NO_SECRETS]
            kind = secret[0] if secret else longer.kind
            kept[-1] = Span(last.start, max(last.end, fresh.end), kind)
        else:
            kept.append(fresh)
    return kept


def _around(span: Span, standing: list[tuple[int, int]], text: str) -> Span | None:
    """Widen a span over the placeholders it cuts; None when it holds nothing else."""
    start, end = span.start, span.end
    outside = []
    at = start
    place = max(0, bisect_right(standing, (start, len(text))) - 1)
    while place < len(standing) and standing[place][0] < span.end:
        first, last = standing[place]
        place += 1
        if last <= span.start:
            continue
        start, end = min(start, first), max(end, last)
        outside.append(text[at:first])
        at = last
    outside.append(text[at : span.end])
    if not any(map(str.isalnum, "".join(outside))):
        return None
    return Span(start, end, span.kind)
