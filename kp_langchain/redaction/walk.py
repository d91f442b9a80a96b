"""The structure around the texts: mappings, lists, pairs, and what their names tell."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from kp_langchain.redaction.blobs import BLOB, summary_of_bytes
from kp_langchain.redaction.custom_rules import Rules
from kp_langchain.redaction.keys import Telling
from kp_langchain.redaction.objects import parts_of
from kp_langchain.redaction.spans import PLACEHOLDER, placeholder
from kp_langchain.redaction.text import redact_text, replacement
from kp_langchain.redaction.values import is_sensitive

MAX_DEPTH = 200  # readers of JSON and pydantic give up soon after
_NAME_FIELDS = tuple(
    spelt
    for field in ("name", "key", "header", "field", "param", "parameter", "variable")
    for spelt in (field, field.title())
)
_MIN_CARD = 10**12
_LONG_BYTES = 64
# Kinds of values that hold no text.
_HARMLESS = (complex, Decimal, Fraction, date, time, timedelta, tzinfo, uuid.UUID, range)


class Walker:
    """Rebuilds one value with everything sensitive replaced, counting finds per kind."""

    def __init__(
        self,
        *,
        identifiers: bool,
        rules: Rules,
        redactor: Callable[[str], str] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._identifiers = identifiers
        self._rules = rules
        self._redactor = redactor
        self._open: set[int] = set()
        self._seen: dict[tuple[int, int, Telling | None], tuple[Any, Any]] = {}

    def walk(self, value: Any, depth: int = 0, tells: Telling | None = None, name: str = "") -> Any:
        """Return `value` redacted; whatever fails inside becomes a placeholder itself.

        Args:
            value: Anything.
            depth: How many containers lie around it.
            tells: What a telling name further out says of everything in here.
            name: That name.
        """
        try:
            if isinstance(value, str):
                return self._leaf(value, tells, name)
            if isinstance(value, (dict, list, tuple, set, frozenset)):
                return self._container(value, depth, tells, name)
            parts = parts_of(value)
            if parts is not None:
                return self._container(parts, depth, tells, name)
            return self._leaf(value, tells, name)
        except Exception:  # noqa: BLE001 - a leaf that cannot be judged is not kept
            return self._replace("failed")

    def _replace(self, kind: str, found: str = "") -> str:
        self.counts[kind] += 1
        return replacement(kind, found, self._rules) if found else placeholder(kind)

    def _text(self, text: str) -> str:
        """A text redacted by us, then by whoever the caller named."""
        redacted = redact_text(text, self.counts, identifiers=self._identifiers, rules=self._rules)
        if self._redactor is None or not redacted or PLACEHOLDER.fullmatch(redacted):
            return redacted
        further = self._redactor(redacted)
        if not isinstance(further, str):
            raise TypeError("the redactor returned no text")
        return further

    def _leaf(self, value: Any, tells: Telling | None, name: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            if tells is not None and self._sensitive(text, name, tells):
                return self._replace(tells.kind, text)
            redacted = self._text(text)
            return value if redacted == text else redacted
        if isinstance(value, (bytes, bytearray)):
            return self._bytes(value, tells, name)
        if isinstance(value, (int, float)):
            text = repr(int(value)) if isinstance(value, int) and abs(value) < 10**40 else ""
            if tells is not None and self._sensitive(text or "0000", name, tells):
                return self._replace(tells.kind, text)
            if text and value >= _MIN_CARD and self._identifiers:
                return value if self._text_stays(text) else self._replace("card", text)
            return value
        if tells is not None:
            return self._replace(tells.kind)
        return value if isinstance(value, _HARMLESS) else self._object(value)

    def _object(self, value: Any) -> str:
        """An object that is no data: a path as its text, others as the name of their kind.

        Never by `str` or `repr`, which are a stranger's code.
        """
        if isinstance(value, PurePath):
            return self._text(str(value))
        return f"<{type(value).__name__}>"

    def _sensitive(self, text: str, name: str, tells: Telling) -> bool:
        if PLACEHOLDER.fullmatch(text) is not None or self._rules.allows(text):
            return False
        return is_sensitive(text, name, tells)

    def _text_stays(self, text: str) -> bool:
        return redact_text(text, Counter(), identifiers=True, rules=self._rules) == text

    def _bytes(self, value: bytes | bytearray, tells: Telling | None, name: str) -> Any:
        content = bytes(value)
        text = content.decode("utf-8", "surrogateescape")
        if tells is not None and self._sensitive(text, name, tells):
            redacted = self._replace(tells.kind, text)
        elif b"\0" in content or (len(content) > _LONG_BYTES and not _is_utf8(content)):
            # Not text, or text in two bytes a letter, which nothing here would read.
            redacted = summary_of_bytes(content)
            self.counts[BLOB] += 1
        else:
            redacted = self._text(text)
        encoded = redacted.encode("utf-8", "surrogateescape")
        return bytearray(encoded) if isinstance(value, bytearray) else encoded

    def _container(self, value: Any, depth: int, tells: Telling | None, name: str) -> Any:
        if id(value) in self._open:
            return self._replace("cycle")
        if depth >= MAX_DEPTH:
            return self._replace("depth")
        # What is shared is walked once per depth, so a small web of references stays small work.
        seen = self._seen.get((id(value), depth, tells))
        if seen is not None:
            return seen[1]
        self._open.add(id(value))
        try:
            result = self._rebuilt(value, depth + 1, tells, name)
        finally:
            self._open.discard(id(value))
        self._seen[id(value), depth, tells] = (value, result)
        return result

    def _rebuilt(self, value: Any, depth: int, tells: Telling | None, name: str) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, depth, tells, name)
        if isinstance(value, list):
            return self._sequence(list.__iter__(value), depth, tells, name)
        if isinstance(value, tuple):
            items = self._sequence(tuple.__iter__(value), depth, tells, name, loose=True)
            make = getattr(type(value), "_make", None)
            if make is not None:
                return make(items)
            return tuple(items)
        members = iter(frozenset(value))
        kept: dict[Any, None] = {}
        for item in members:
            kept[self._distinct(self.walk(item, depth, tells, name), kept)] = None
        return frozenset(kept) if isinstance(value, frozenset) else set(kept)

    def _mapping(
        self, value: dict[Any, Any], depth: int, tells: Telling | None, name: str
    ) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, item in list(dict.items(value)):
            said, saying = tells, name
            if isinstance(key, (str, bytes)):
                own = key if isinstance(key, str) else key.decode("utf-8", "replace")
                mine = self._tells(own)
                if mine is None and own.lower() == "value":
                    mine, own = self._named_by_field(value) or (mine, own)
                if mine is not None:
                    # Some hold ordinary things, too, each under its own name: of those, only what
                    # looks drawn at random goes.
                    weak = mine.open and _is(item, dict)
                    said, saying = mine._replace(strong=False) if weak else mine, own
            result[self._distinct(self._key(key), result)] = self.walk(item, depth, said, saying)
        return result

    def _tells(self, name: str) -> Telling | None:
        tells = self._rules.tells(name)
        return None if tells and tells.identifier and not self._identifiers else tells

    def _named_by_field(self, value: dict[Any, Any]) -> tuple[Telling, str] | None:
        """Read `{"name": "X-Api-Key", "value": ...}`, as headers and variables are often kept."""
        for field in _NAME_FIELDS:
            name = dict.get(value, field)
            if isinstance(name, str) and (tells := self._tells(name)) is not None:
                return tells, name
        return None

    def _key(self, key: Any) -> Any:
        if isinstance(key, (str, bytes, int, tuple, frozenset)):
            return self.walk(key, MAX_DEPTH - 8)
        return key

    def _distinct(self, key: Any, taken: dict[Any, Any]) -> Any:
        """Number a placeholder that is already taken, so that no entry is lost."""
        if key not in taken or not isinstance(key, (str, bytes)):
            return key
        text = key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
        number = len(taken) + 1
        while True:
            numbered: Any = f"{text}[REDACTED:same#{number}]"
            if PLACEHOLDER.fullmatch(text) is not None:
                numbered = f"{text[:-1].split('#')[0]}#{number}]"
            if isinstance(key, bytes):
                numbered = numbered.encode("utf-8", "surrogateescape")
            if numbered not in taken:
                return numbered
            number += 1

    def _sequence(
        self,
        items: Iterable[Any],
        depth: int,
        tells: Telling | None,
        name: str,
        *,
        loose: bool = False,
    ) -> list[Any]:
        members = list(items)
        result: list[Any] = []
        pairs = bool(members) and all(_is_pair(member) for member in members)
        said, saying = tells, name
        lone_pair = loose and _is_pair(members)
        for place, item in enumerate(members):
            if pairs and tells is None:
                result.append(self._pair(item, depth))
            else:
                result.append(self.walk(item, depth, said, saying))
            said, saying = tells, name
            if _is(item, str) and (item.startswith("-") or (lone_pair and place == 0)):
                mine = self._tells(item)
                following = members[place + 1] if place + 1 < len(members) else ""
                if mine is not None and not (_is(following, str) and following.startswith("-")):
                    said, saying = mine, item
        return result

    def _pair(self, pair: list[Any] | tuple[Any, ...], depth: int) -> Any:
        """Read one of a list of (name, value) pairs."""
        own = pair[0] if isinstance(pair[0], str) else pair[0].decode("utf-8", "replace")
        mine = self._tells(own)
        if mine is None or _is(pair[1], dict):
            return self.walk(pair, depth)
        first = self.walk(pair[0], depth + 1)
        second = self.walk(pair[1], depth + 1, mine, own)
        return [first, second] if isinstance(pair, list) else self._like(pair, [first, second])

    def _like(self, pair: tuple[Any, ...], items: list[Any]) -> Any:
        make = getattr(type(pair), "_make", None)
        return tuple(items) if make is None else make(items)


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Ask the real type: an object may answer `isinstance` with an exception."""
    return issubclass(type(value), kinds)


def _is_pair(value: Any) -> bool:
    return _is(value, (list, tuple)) and len(value) == 2 and _is(value[0], (str, bytes))
