"""Redact one text: run all finders, merge their spans, replace them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from kp_langchain.errors import UnstableTextError
from kp_langchain.redaction import contexts, formats, named_values, questions
from kp_langchain.redaction.custom_rules import NO_RULES, Rules, pseudonym
from kp_langchain.redaction.finders import Finders, words_in
from kp_langchain.redaction.formats import BLOB, summary
from kp_langchain.redaction.identifiers import FINDERS as IDENTIFIERS
from kp_langchain.redaction.identifiers import KINDS, narrow
from kp_langchain.redaction.repeated import Secrets
from kp_langchain.redaction.spans import PLACEHOLDER, Span, placeholder

PERSONAL = KINDS
"""Kinds that identify a person; all others are secrets."""

FINDERS = {
    identifiers: Finders(
        *formats.FINDERS,
        *contexts.finders(identifiers=identifiers),
        *questions.FINDERS,
        *named_values.finders(identifiers=identifiers),
        *(IDENTIFIERS if identifiers else ()),
    )
    for identifiers in (False, True)
}
"""All finders, by whether identifiers are redacted as well as secrets."""

CERTAIN = Finders(*formats.CERTAIN, *contexts.CERTAIN)
"""Finders of the secrets that no `allow` rule can keep."""

_NO_SECRETS = PERSONAL | {BLOB}
MAX_PASSES = 8
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def redact_text(
    text: str,
    kinds: list[str],
    secrets: Secrets | None = None,
    *,
    identifiers: bool,
    rules: Rules | None = None,
    mask: str = "",
) -> str:
    """Return `text` with everything sensitive replaced, and add the kinds of the matches to `kinds`.

    A replacement can bring two parts of a secret together. So passes are repeated until the text no
    longer changes; almost always the second pass matches nothing.

    Args:
        text: Any text, also one with lone surrogates.
        kinds: The kind of each match; added to.
        secrets: The secrets that may occur elsewhere; added to.
        identifiers: Whether to redact identifiers as well as secrets.
        rules: The user's rules: additional patterns and names, exceptions, pseudonyms.
        mask: A character that stands for a part of the text which is not to be replaced.

    Raises:
        UnstableTextError: The text still changes after eight passes.
        SlowPatternError: A pattern of `rules` takes too long on the text.
    """
    rules = rules or NO_RULES
    for _ in range(MAX_PASSES):
        try:
            matches = _find(text, identifiers=identifiers, rules=rules)
        finally:
            words_in.cache_clear()  # no text stays in memory
        if mask and matches:
            matches = [part for span in matches for part in _outside(text, span, mask)]
        spans = _merge_overlaps(text, matches)
        if not spans:
            return text
        pieces = []
        position = 0
        for start, end, kind in spans:
            new_text = replacement(kind, text[start:end], rules)
            pieces += [text[position:start], new_text]
            position = end
            kinds.append(kind)
            if secrets is not None:
                secrets.note(kind, text[start:end])
        text = "".join([*pieces, text[position:]])
    raise UnstableTextError


def _outside(text: str, span: Span, mask: str) -> Iterator[Span]:
    """Yield the parts of a span between masks."""
    start = span.start
    for part in text[start : span.end].split(mask):
        if any(map(str.isalnum, part)):
            yield Span(start, start + len(part), span.kind)
        start += len(part) + 1


def replacement(kind: str, match: str, rules: Rules) -> str:
    """Return what replaces a match of `kind`: a placeholder, a pseudonym, or a summary."""
    if kind == BLOB:
        return summary(match)
    key = rules.pseudonym_key
    # A match around an earlier placeholder is not the whole identifier.
    if key is not None and kind in PERSONAL and "[REDACTED:" not in match:
        return placeholder(f"{kind}#{pseudonym(kind, match, key.get_secret_value())}")
    return placeholder(kind)


def _find(text: str, *, identifiers: bool, rules: Rules) -> list[Span]:
    spans = _find_with(FINDERS[identifiers], text)
    if rules.patterns or rules.names:
        spans.sort(key=lambda span: span.kind in PERSONAL)
        place = sum(span.kind not in PERSONAL for span in spans)
        spans[place:place] = rules.find(text)
    if rules.allow and spans:
        exceptions = {span for span in spans if rules.allows(text[span.start : span.end])}
        if exceptions:
            exceptions.difference_update(_find_with(CERTAIN, text))
            spans = [span for span in spans if span not in exceptions]
    return spans


def _lower_same_length(text: str) -> str:
    """Return the text in lower case, of the same length, so that positions stay the same."""
    low = text.lower()
    return low if len(low) == len(text) else text.translate(_ASCII_LOWER)


def _find_with(finders: Finders, text: str) -> list[Span]:
    """Return the matches of the finders in a text."""
    text = narrow(text)
    return finders.find(text, _lower_same_length(text))


def _merge_overlaps(text: str, spans: list[Span]) -> list[Span]:
    """Merge overlapping spans; leave out those within earlier placeholders."""
    if not spans:
        return []
    placeholders = (
        [match.span() for match in PLACEHOLDER.finditer(text)] if "[REDACTED:" in text else []
    )
    merged_spans: list[Span] = []
    # A stable sort: of several matches at the same place, the first finder decides the kind.
    for span in sorted(spans, key=lambda span: span[:2]):
        wide_span = _widen_over_placeholders(span, placeholders, text) if placeholders else span
        if wide_span is None or wide_span.start >= wide_span.end:
            continue
        if merged_spans and wide_span.start < merged_spans[-1].end:
            last = merged_spans[-1]
            if wide_span.kind == "email" and text.find("@", wide_span.start) <= last.end:
                continue  # in scheme://user:password@host the "@" does not make an e-mail; keep the host
            longer = last if last.end - last.start >= wide_span.end - wide_span.start else wide_span
            secret = [
                span.kind for span in (longer, last, wide_span) if span.kind not in _NO_SECRETS
            ]
            kind = secret[0] if secret else longer.kind
            merged_spans[-1] = Span(last.start, max(last.end, wide_span.end), kind)
        else:
            merged_spans.append(wide_span)
    return merged_spans


def _widen_over_placeholders(
    span: Span, placeholders: list[tuple[int, int]], text: str
) -> Span | None:
    """Widen a span over the placeholders that it cuts; None if it contains nothing else."""
    start, end = span.start, span.end
    outside = []
    at = start
    place = max(0, bisect_right(placeholders, (start, len(text))) - 1)
    while place < len(placeholders) and placeholders[place][0] < span.end:
        first, last = placeholders[place]
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
