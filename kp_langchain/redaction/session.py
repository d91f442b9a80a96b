"""Redaction of nested values, and of the parts of one run."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import date, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from kp_langchain.errors import UnstableTextError
from kp_langchain.redaction.custom_rules import NO_RULES, Rules
from kp_langchain.redaction.documents import Document, Literal, mask_documents, read_documents
from kp_langchain.redaction.fields import SensitiveField, is_sensitive
from kp_langchain.redaction.formats import BLOB, summary_of_bytes
from kp_langchain.redaction.questions import Secret, answers_in, secrets_given
from kp_langchain.redaction.repeated import Secrets, typed_secrets
from kp_langchain.redaction.secret_search import SecretSearch, is_typed
from kp_langchain.redaction.spans import PLACEHOLDER, distinct_key, placeholder
from kp_langchain.redaction.structures import (
    KEYS,
    PRIVATE_KEY,
    MappingFields,
    NamedField,
    build_tuple,
    field_of_content,
    has_type,
    header_fields,
    is_pair,
    lines_of_key,
    parts_of,
    plain_key,
    read_mapping,
)
from kp_langchain.redaction.text import MAX_PASSES, redact_text, replacement
from kp_langchain.values import DEEPEST, MAX_DEPTH

# ------------------------------------------------------------------ one value

_MIN_IDENTIFIER = 10**12  # shorter numbers stay, unless a name says what they are
_LONG_BYTES = 64
_TEXT_TYPES = (str, Literal)
# Types whose values contain no text.
_TEXTLESS_TYPES = (complex, Decimal, Fraction, date, time, timedelta, tzinfo, uuid.UUID, range)

CleanTexts = dict[str, tuple[str, list[str]]]
"""What texts have become, and the kinds of the replacements in them."""


class Walker:
    """Rebuilds one value with everything sensitive replaced.

    Args:
        session: Has the rules, the secrets named so far and the texts known so far; both are added to.
        identifiers: Whether to redact identifiers as well as secrets.
        search: Finds the secrets that other texts have named, if any.
        redactor: The user's function for each remaining text, if any.

    Attributes:
        counts: The number of replacements per kind so far.
        has_match: Whether the search found a secret.
        changes: What to write for each literal of a text that changes, by its start.
    """

    def __init__(
        self,
        session: Session,
        *,
        identifiers: bool,
        search: SecretSearch | None = None,
        redactor: Callable[[str], str] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.has_match = False
        self.changes: dict[int, str] = {}
        self._session = session
        self._identifiers = identifiers
        self._search = search
        self._redactor = redactor
        self._classify_name = session.rules.classifier(identifiers=identifiers)
        self._clean_texts = session.clean_texts[identifiers]
        self._harmless = session.rules.harmless_texts[identifiers]
        # Short texts that are known to stay as they are.
        is_final = search is not None or redactor is not None
        self._unchanged = frozenset[str | bytes]() if is_final else self._harmless.known
        self._open_containers: set[int] = set()
        self._results: dict[tuple[int, int, SensitiveField | None], tuple[Any, Any]] = {}

    def walk(
        self, value: Any, depth: int = 0, field: SensitiveField | None = None, name: str = ""
    ) -> Any:
        """Return `value` redacted; a part that raises becomes a placeholder.

        Args:
            value: Any value.
            depth: The number of containers around it.
            field: The sensitive field that contains the value, at any depth; None if there is none.
            name: The name of that field.
        """
        if field is None and type(value) in _TEXT_TYPES and value in self._unchanged:
            return value
        try:
            if isinstance(value, str):
                return self._replaced(value, self._leaf(value, field, name))
            if isinstance(value, (dict, list, tuple, set, frozenset)):
                return self._container(value, depth, field, name)
            parts = parts_of(value)
            if parts is not None:
                return self._container(parts, depth, field, name)
            return self._leaf(value, field, name)
        except Exception:  # noqa: BLE001 - a value that cannot be examined is not kept
            return self._replace("failed")

    def _replace(self, kind: str, match: str = "") -> str:
        self.counts[kind] += 1
        self._session.secrets.note(kind, match)
        return replacement(kind, match, self._session.rules) if match else placeholder(kind)

    def _replaced(self, value: Any, clean: Any) -> Any:
        """Take note that a literal of a text becomes `clean`, and return `clean`."""
        if type(value) is Literal and clean != value:
            self.changes[value.start] = clean
        return clean

    def _text(self, text: str) -> str:
        """Redact a text, also of secrets that others name, then apply the user's redactor."""
        clean = self._text_with_documents(text)
        if self._search is not None:
            source = clean
            clean = self._search.clean(source, self.counts)
            self.has_match = self.has_match or clean != source
        if self._redactor is None or not clean or PLACEHOLDER.fullmatch(clean):
            return clean
        custom_text = self._redactor(clean)
        if not isinstance(custom_text, str):
            raise TypeError("the redactor returned no text")
        return custom_text

    def _text_with_documents(self, text: str) -> str:
        """Redact a text; each string of its documents is redacted by itself.

        A replacement can change how the text is read. So this is repeated until nothing changes.
        """
        if text in self._harmless:
            return text
        source = text
        earlier_result = self._clean_texts.get(text)
        if earlier_result is not None:
            self.counts.update(earlier_result[1])
            return earlier_result[0]
        kinds: list[str] = []
        for _ in range(MAX_PASSES):
            documents = read_documents(text)
            clean = self._clean(text, documents, kinds)
            is_settled = clean == text or not documents
            text = clean
            if is_settled:
                break
        else:
            raise UnstableTextError
        if kinds:
            # Strings within strings are read several times, and each must cost no more than once.
            self._clean_texts[source] = (text, kinds)
            self.counts.update(kinds)
        else:
            self._harmless.add(text)
        return text

    def _clean(self, text: str, documents: list[Document], kinds: list[str]) -> str:
        """Return a text redacted once, each string of its documents by itself."""
        if not documents:
            return self._plain_text(text, kinds)
        walker = self._walk_documents(documents)
        if walker.counts:
            documents = read_documents(text, with_places=True)
            walker = self._walk_documents(documents)
            kinds.extend(walker.counts.elements())
        template = mask_documents(text, documents, walker.changes)
        return template.restore(self._plain_text(template.text, kinds, template.mask))

    def _walk_documents(self, documents: list[Document]) -> Walker:
        walker = Walker(self._session, identifiers=self._identifiers)
        for document in documents:
            field = self._classify_name(document.name)
            if field is not None:
                field = field_of_content(field, document.value)
            walker.walk(document.value, 0, field, document.name)
        return walker

    def _plain_text(self, text: str, kinds: list[str], mask: str = "") -> str:
        session = self._session
        identifiers = self._identifiers
        return redact_text(
            text, kinds, session.secrets, identifiers=identifiers, rules=session.rules, mask=mask
        )

    def _leaf(self, value: Any, field: SensitiveField | None, name: str) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            text = str.__str__(value)
            if field is not None and self._must_redact(text, name, field):
                return self._replace(field.kind, text)
            clean = self._text(text)
            return value if clean == text else clean
        if isinstance(value, (bytes, bytearray)):
            return self._bytes(value, field, name)
        if isinstance(value, (int, float)):
            is_whole = isinstance(value, int)
            # Python writes out no integer of more than 4,300 digits; 40 are enough to judge it.
            text = repr(int(min(abs(value), 10**40))) if is_whole else repr(float(value))
            if field is not None and self._must_redact(text, name, field):
                return self._replace(field.kind, text)
            if is_whole and value >= _MIN_IDENTIFIER and self._identifiers:
                kinds: list[str] = []
                redact_text(text, kinds, identifiers=True, rules=self._session.rules)
                return self._replace(kinds[0], text) if kinds else value
            return value
        if field is not None:
            return self._replace(field.kind)
        if isinstance(value, PurePath):
            return self._text(str(value))
        # `str` and `repr` are not called: they may run any code.
        return value if isinstance(value, _TEXTLESS_TYPES) else f"<{type(value).__name__}>"

    def _must_redact(self, text: str, name: str, field: SensitiveField) -> bool:
        return (
            is_sensitive(text, name, field)
            and PLACEHOLDER.fullmatch(text) is None
            and not text.startswith("[BLOB:")
            and not self._session.rules.allows(text)
        )

    def _bytes(self, value: bytes | bytearray, field: SensitiveField | None, name: str) -> Any:
        content = bytes(value)
        text = content.decode("utf-8", "surrogateescape")
        if field is not None and self._must_redact(text, name, field):
            clean = self._replace(field.kind, text)
        elif b"\0" in content or (
            len(content) > _LONG_BYTES and text.encode("utf-8", "ignore") != content
        ):
            # Binary data, or UTF-16, which no finder matches.
            clean = summary_of_bytes(content)
            self.counts[BLOB] += 1
        else:
            clean = self._text(text)
        result = clean.encode("utf-8", "surrogateescape")
        return bytearray(result) if isinstance(value, bytearray) else result

    def _container(self, value: Any, depth: int, field: SensitiveField | None, name: str) -> Any:
        if id(value) in self._open_containers:
            return self._replace("cycle")
        if depth >= DEEPEST:
            return self._replace("depth")
        # A shared container is walked once per depth, or else many references to it would make the
        # time exponential.
        cache_entry = self._results.get((id(value), depth, field))
        if cache_entry is not None:
            return cache_entry[1]
        self._open_containers.add(id(value))
        try:
            result = self._rebuild(value, depth + 1, field, name)
        finally:
            self._open_containers.discard(id(value))
        self._results[id(value), depth, field] = (value, result)
        return result

    def _rebuild(self, value: Any, depth: int, field: SensitiveField | None, name: str) -> Any:
        if isinstance(value, dict):
            return self._mapping(value, depth, field, name)
        if isinstance(value, list):
            return self._sequence(list.__iter__(value), depth, field, name)
        if isinstance(value, tuple):
            items = self._sequence(tuple.__iter__(value), depth, field, name, is_tuple=True)
            return build_tuple(value, items)
        members: dict[Any, None] = {}
        for item in frozenset(value):
            members[distinct_key(self.walk(item, depth, field, name), members)] = None
        return frozenset(members) if isinstance(value, frozenset) else set(members)

    def _mapping(
        self, value: dict[Any, Any], depth: int, field: SensitiveField | None, name: str
    ) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        context = read_mapping(value, field, name, self._classify_name)
        for key, item in list(dict.items(value)):
            if has_type(key, str) and key == context.rows_key:
                clean = self._rows(item, context.columns, depth)
            else:
                item_field, item_name = self._entry_field(key, item, context, name)
                clean = self.walk(item, depth, item_field, item_name)
                if self._search is not None:
                    clean = self._typed(key, clean, value)
            if type(key) in _TEXT_TYPES and key in self._unchanged and key not in result:
                result[key] = clean
            else:
                clean_key = distinct_key(self._key(key), result)
                result[self._replaced(key, clean_key)] = clean
        return result

    def _typed(self, key: Any, clean: Any, mapping: dict[Any, Any]) -> Any:
        """Return the value of a key, replaced if it is a typed secret, even an ordinary word."""
        if type(key) is not str or type(clean) not in (str, int) or not is_typed(key):
            return clean
        name = mapping.get("name") if key == "value" else None
        is_other = isinstance(name, str) and self._classify_name(name) is None
        kind = None if is_other or self._search is None else self._search.kind_of_value(clean)
        return clean if kind is None else self._replace(kind)

    def _without_answer(
        self, message: dict[Any, Any], key: str, secrets: list[Secret]
    ) -> dict[Any, Any]:
        """Return a message of a chat whose text lacks the secrets that it gives."""
        text: str = dict.__getitem__(message, key)
        not_allowed = [one for one in secrets if not self._session.rules.allows(one.text)]
        clean = self._session.secrets.take_answer(str.__str__(text), not_allowed, self._replace)
        return dict(dict.items(message)) | {key: self._replaced(text, clean)}

    def _entry_field(self, key: Any, item: Any, context: MappingFields, name: str) -> NamedField:
        """Return the sensitive field of one entry of a mapping, if any, and its name."""
        if not isinstance(key, (str, bytes)):
            return context.inherited, name
        if context.entries and key in context.entries:
            return context.entries[key]
        key_name = key if isinstance(key, str) else key.decode("utf-8", "replace")
        key_field = self._classify_name(key_name)
        if key_field is None:
            is_plain = plain_key(key_name) in KEYS.plain_keys
            return (None if is_plain else context.inherited), name
        return field_of_content(key_field, item), key_name

    def _rows(self, rows: Any, columns: Sequence[NamedField], depth: int) -> Any:
        """Redact the rows of a table, whose columns have names of their own."""
        result = [self._row(row, columns, depth + 1) for row in rows]
        return result if isinstance(rows, list) else build_tuple(rows, result)

    def _row(self, row: Any, columns: Sequence[NamedField], depth: int) -> Any:
        if not has_type(row, list, tuple) or len(row) != len(columns):
            return self.walk(row, depth)
        cells = [
            self.walk(cell, depth + 1, *column) for cell, column in zip(row, columns, strict=True)
        ]
        return cells if isinstance(row, list) else build_tuple(row, cells)

    def _key(self, key: Any) -> Any:
        if isinstance(key, (str, bytes, int, tuple, frozenset)):
            return self.walk(key, DEEPEST - MAX_DEPTH)
        return key

    def _sequence(
        self,
        items: Iterable[Any],
        depth: int,
        field: SensitiveField | None,
        name: str,
        *,
        is_tuple: bool = False,
    ) -> list[Any]:
        members = list(items)
        columns = header_fields(members, self._classify_name) if field is None else []
        if columns:
            return [self.walk(members[0], depth), *self._rows(members[1:], columns, depth - 1)]
        for place, key, secrets in answers_in(members):
            members[place] = self._without_answer(members[place], key, secrets)
        result: list[Any] = []
        has_pairs = bool(members) and all(is_pair(member) for member in members)
        may_be_named = is_tuple and is_pair(members)
        item_field, item_name = field, name
        key_lines = lines_of_key(members)
        for place, item in enumerate(members):
            if place in key_lines:
                item_field, item_name = PRIVATE_KEY, ""
            if has_pairs and field is None:
                result.append(self._pair(item, depth))
            else:
                result.append(self.walk(item, depth, item_field, item_name))
            item_field, item_name = field, name
            # A flag, or the name of a pair, is the field name of the next item.
            if has_type(item, str) and (item.startswith("-") or (may_be_named and place == 0)):
                next_field = self._classify_name(item)
                following = members[place + 1] if place + 1 < len(members) else ""
                is_flag = has_type(following, str) and following.startswith("-")
                if next_field is not None and not is_flag:
                    item_field, item_name = next_field, item
        return result

    def _pair(self, pair: list[Any] | tuple[Any, ...], depth: int) -> Any:
        """Redact one of a list of (name, value) pairs."""
        name = pair[0] if isinstance(pair[0], str) else pair[0].decode("utf-8", "replace")
        field = self._classify_name(name)
        if field is None or has_type(pair[1], dict):
            return self.walk(pair, depth)
        return self._row(pair, [(None, ""), (field, name)], depth)


# ------------------------------------------------------------------ the parts of one run


class Session:
    """Redacts parts that belong together: a secret named in one is removed from all.

    So every part is first given to `learn`, and then to `redact`, which costs little more, because
    what became of a text is remembered.

    Args:
        rules: The user's rules.
        redactor: The user's function for each text that is left, if any.

    Attributes:
        rules: The user's rules.
        secrets: What the parts have named so far.
        clean_texts: What texts have become so far, by whether identifiers are redacted.
    """

    def __init__(
        self, *, rules: Rules | None = None, redactor: Callable[[str], str] | None = None
    ) -> None:
        self.rules = rules or NO_RULES
        self.secrets = Secrets()
        self.clean_texts: dict[bool, CleanTexts] = defaultdict(dict)
        self._redactor = redactor

    def learn(self, parts: Sequence[Any], level: str) -> bool:
        """Take note of the secrets that the parts name.

        Args:
            parts: All parts: texts, and mappings such as the inputs of tools.
            level: The privacy level at which they will be redacted.

        Returns:
            Whether nothing in them is sensitive by itself.
        """
        walker = Walker(self, identifiers=level != "private")
        for part in parts:
            walker.walk(part)
        for kind, word in typed_secrets(parts):
            if not self.rules.allows(word):
                self.secrets.note(kind, word, is_answer=True)
        return not walker.counts

    def learn_answer(self, question: str, answer: str, *, is_step: bool) -> None:
        """Take note of the secrets that an answer gives, if the question asks for one.

        Args:
            question: What somebody was asked.
            answer: What they answered.
            is_step: Whether the answer is a step of the run, and not its task.
        """
        in_answer = secrets_given(question, answer)
        secrets = [one for one in in_answer if not self.rules.allows(one.text)]
        if secrets:
            self.secrets.note_answer(answer, secrets, is_step=is_step)

    def redact(self, value: Any, level: str, *, is_name: bool = False) -> tuple[Any, Counter[str]]:
        """Return a value redacted, and the number of replacements per kind.

        Args:
            value: Any value.
            level: The privacy level.
            is_name: Whether it is the name of a tool or the like, which may be any word.
        """
        while True:
            search = self.secrets.search
            walker = Walker(self, identifiers=level != "private", search=search)
            clean = walker.walk(value)
            if self.secrets.search is search:
                break
        if (
            search is not None
            and isinstance(clean, str)
            and not (is_name or any(map(str.isdigit, clean)))
        ):
            kind = search.kind_of_value(clean)
            if kind is not None:
                walker.counts[kind] += 1
                clean = placeholder(kind)
        # A replaced number may expose a match beside it.
        is_over = not (walker.has_match and self.secrets.has_numbers)
        if self._redactor is None and is_over:
            return clean, walker.counts
        last = Walker(self, identifiers=level != "private", redactor=self._redactor)
        return last.walk(clean), walker.counts + last.counts
