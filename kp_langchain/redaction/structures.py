"""Entries of a mapping, or cells of a row, whose meaning another entry or the header states."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from kp_langchain.redaction.field_names import SensitiveField, word_set
from kp_langchain.redaction.tables import load_table
from kp_langchain.redaction.values import looks_like_password

Classify = Callable[[str], SensitiveField | None]
NamedField = tuple[SensitiveField | None, str]

# Keys by their meaning; see the table.
KEYS = SimpleNamespace(
    **{name: word_set(words) for name, words in load_table("structures").items()}
)
_TYPES_AS_NAMES = frozenset(("password", "phone", "ssn", "iban", "pin", "otp"))
_MODEL_TOKENS = frozenset(("token", "tokenstr"))
_CLUES = frozenset(("kind", "secondarykey", "granttype", "kty")).union(
    KEYS.name_keys, KEYS.element_keys, KEYS.schema_keys, KEYS.column_keys, KEYS.secret_marks,
    KEYS.model_token_clues,
)  # fmt: skip
_MAX_KEYS = 64  # a record has fewer; a larger mapping is a collection

# The members of a JSON Web Key (RFC 7518) that are secret.
_JWK_SECRETS = frozenset(("d", "p", "q", "dp", "dq", "qi", "k"))
PRIVATE_KEY = SensitiveField("private_key")
_SECRET = SensitiveField("secret")
_PLAIN: NamedField = (None, "")
_CELL_NAME = re.compile(r"[^\W\d][\w.\-/]{0,39}(?: [\w.\-/()#]{1,24}){0,3}")
_BEGIN_OF_KEY = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY")
_SELECTOR_PARTS = re.compile(r"[A-Za-z][\w\-]*")
_COMBINATORS = re.compile(r"[ >+~]+(?![^\[\]]{0,80}\])")
_SELECTOR_SIGN = re.compile(r"[#.\[/=@(]")


class MappingFields(NamedTuple):
    """What the entries of a mapping say about each other.

    Attributes:
        inherited: The field that contains the mapping, as far as it applies to its entries.
        entries: The field and name of the value of some keys; None says that it is plain text.
        rows_key: The key of a table's rows, if another entry has the names of its columns.
        columns: The field and name of each of these columns.
    """

    inherited: SensitiveField | None
    entries: Mapping[Any, NamedField] = MappingProxyType({})
    rows_key: Any = None
    columns: Sequence[NamedField] = ()


def read_mapping(
    mapping: dict[Any, Any], field: SensitiveField | None, name: str, classify: Classify
) -> MappingFields:
    """Return what the entries of `mapping` say about each other.

    Args:
        mapping: The mapping.
        field: The sensitive field that contains it, if any.
        name: The name of that field.
        classify: Returns what a name says about its value.
    """
    if len(mapping) > _MAX_KEYS:
        return MappingFields(field)
    keys = _telling_keys(tuple(key for key in dict.keys(mapping) if _is(key, str)))
    if not keys:
        return MappingFields(field)
    if _is_schema(mapping, keys):
        weak = field._replace(is_strong=False) if field else None
        return MappingFields(
            weak, {keys[plain]: _PLAIN for plain in KEYS.schema_keys & keys.keys()}
        )
    entries = _secret_entries(mapping, keys)
    beside = _field_beside_value(mapping, keys, classify)
    inherited = field
    if field is not None and _is(mapping.get(keys.get("name")), str):
        # Of a record within a sensitive list, only the value is sensitive, not its other fields.
        inherited = field._replace(is_strong=False)
        entries |= {keys[plain]: (field, name) for plain in KEYS.value_keys & keys.keys()}
    # Within a strong field, every value is sensitive already, also a label that names another one.
    is_strong = field is not None and field.is_strong
    for plain in () if is_strong else (KEYS.value_keys | KEYS.text_keys) & keys.keys():
        if (found := beside(plain, mapping[keys[plain]])) is not None:
            entries[keys[plain]] = found
    if not KEYS.model_token_clues.isdisjoint(keys):
        weak_token = SensitiveField("token", is_strong=False)
        entries |= {keys[plain]: (weak_token, plain) for plain in _MODEL_TOKENS & keys.keys()}
    if "granttype" in keys and "code" in keys:
        entries[keys["code"]] = SensitiveField("token"), "code"
    return MappingFields(inherited, entries, *_columns_beside_rows(mapping, keys, classify))


def header_fields(rows: Sequence[Any], classify: Classify) -> list[NamedField]:
    """Return the fields of the columns if the first of `rows` is a header, or else an empty list."""
    if len(rows) < 2 or not all(_is(row, list, tuple) for row in rows):
        return []
    header = rows[0]
    width = len(header)
    if width < 2 or any(len(row) != width for row in rows):
        return []
    fields = column_fields(header, classify)
    # Of two columns, the first row may also be a name and its value.
    return fields if fields and (width > 2 or fields[0][0] is None) else []


def lines_of_key(members: Sequence[Any]) -> range:
    """Return the places of the strings that are the lines of a private key, if any are."""
    if len(members) < 3 or not all(_is(member, str) for member in members):
        return range(0)
    begins = [place for place, line in enumerate(members) if _BEGIN_OF_KEY.search(line)]
    if not begins or "-----END" in members[begins[0]]:
        return range(0)
    ends = (place for place, line in enumerate(members) if "-----END" in line)
    return range(begins[0] + 1, next(ends, len(members)))


def column_fields(header: Sequence[Any], classify: Classify) -> list[NamedField]:
    """Return the field and name of each column, or an empty list if none is sensitive."""
    if not all((_is(cell, str) and _CELL_NAME.fullmatch(cell)) or cell == "" for cell in header):
        return []
    fields = [(classify(cell), cell) for cell in header]
    return fields if any(field for field, _ in fields) else []


def element_field(element: str, classify: Classify) -> NamedField | None:
    """Return the field that a selector or description of a form's element names, or None.

    Args:
        element: Such as `#password`, `input[name="otp"]`, `Password field`, `id=api_key`.
        classify: Returns what a name says about its value.
    """
    if len(element) > 200 or "[REDACTED:" in element:
        return None
    if _SELECTOR_SIGN.search(element):
        element = _COMBINATORS.split(element.strip())[-1]
    parts = _SELECTOR_PARTS.findall(element)
    words = {word for part in parts for word in re.split(r"[_\-]", part.lower())}
    if words & KEYS.not_inputs:
        return None
    nouns = [part for part in parts if part.lower() not in KEYS.element_nouns]
    for candidate in (" ".join(nouns), *reversed(nouns)):
        field = classify(candidate)
        if field is not None:
            # "pass" may be a verdict, but in a form it is a password.
            return field._replace(is_strong=field.is_strong or field.kind == "password"), candidate
    return None


def _is(value: Any, *kinds: type) -> bool:
    """Return whether the type of `value` is one of `kinds`; `isinstance` may run its code."""
    return issubclass(type(value), kinds)


@lru_cache(maxsize=1024)
def _telling_keys(keys: tuple[str, ...]) -> dict[str, str]:
    """Return the keys by their plain form; empty if none can tell something about the others."""
    plain_keys = {_plain_key(key): key for key in keys}
    return {} if _CLUES.isdisjoint(plain_keys) else plain_keys


def _plain_key(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "") if len(key) < 40 else key


def _is_schema(mapping: dict[Any, Any], keys: dict[str, str]) -> bool:
    """Return whether a mapping describes a value, as JSON Schema and OpenAPI do."""
    kind: Any = mapping.get(keys.get("type"))
    kinds = kind if _is(kind, list) else [kind]
    if all(_is(kind, str) and kind.lower().split("(")[0] in KEYS.data_types for kind in kinds):
        return "value" not in keys
    if not KEYS.references.isdisjoint(keys):
        return True
    return (
        not KEYS.schema_marks.isdisjoint(keys)
        and keys.keys() <= KEYS.schema_keys | KEYS.sample_keys
    )


def _secret_entries(mapping: dict[Any, Any], keys: dict[str, str]) -> dict[Any, NamedField]:
    """Return the entries that are secret whatever their names, as in Kubernetes' Secrets."""
    if mapping.get("kind") == "Secret":
        return {key: (_SECRET, key) for key in ("data", "stringData") if key in mapping}
    if "kty" in keys:
        return {keys[member]: (PRIVATE_KEY, member) for member in _JWK_SECRETS & keys.keys()}
    if "primarykey" in keys and "secondarykey" in keys:
        weak = SensitiveField("api_key", is_strong=False)
        return {keys[key]: (weak, key) for key in ("primarykey", "secondarykey")}
    return {}


def _field_beside_value(
    mapping: dict[Any, Any], keys: dict[str, str], classify: Classify
) -> Callable[[str, Any], NamedField | None]:
    """Return a function of a key and its value: the field that the other entries give it."""
    kind: Any = mapping.get(keys.get("type"))
    is_marked = any(mapping[keys[mark]] is True for mark in KEYS.secret_marks & keys.keys())
    named: NamedField | None = None
    element: NamedField | None = None
    if _is(kind, str):
        if is_marked or _plain_key(kind) in KEYS.secret_types:
            is_marked = True
        elif (field := classify(kind)) is not None and field.kind in _TYPES_AS_NAMES:
            element = field, kind
    for plain, key in keys.items():
        text = mapping[key]
        if not _is(text, str):
            continue
        if plain in KEYS.name_keys and named is None and (field := classify(text)) is not None:
            named = field, text
        elif plain in KEYS.element_keys and element is None:
            element = element_field(text, classify)

    def field_of(plain: str, value: Any) -> NamedField | None:
        if is_marked and plain in KEYS.value_keys | {"text", "content", "data"}:
            return _SECRET, plain
        if plain in KEYS.value_keys and named is not None:
            return named
        if not _is(value, str, int, float) or (_is(value, str) and classify(value)):
            return None  # the label itself
        if element is not None and (plain in KEYS.value_keys or _is_word(value)):
            return element
        if named is not None and _is(value, str) and looks_like_password(value):
            return named
        return None

    return field_of


def _is_word(value: Any) -> bool:
    return not _is(value, str) or len(value.split()) == 1


def _columns_beside_rows(
    mapping: dict[Any, Any], keys: dict[str, str], classify: Classify
) -> tuple[Any, list[NamedField]]:
    """Return the key of a table's rows and the fields of its columns: {"columns": ..., "rows": ...}."""
    for columns_key in KEYS.column_keys & keys.keys():
        header = mapping[keys[columns_key]]
        if not _is(header, list, tuple):
            continue
        names = [
            cell.get("name", cell.get("label", "")) if _is(cell, dict) else cell for cell in header
        ]
        columns = column_fields(names, classify) if names else []
        for rows_key in KEYS.row_keys & keys.keys() - {columns_key}:
            if columns and _is(mapping[keys[rows_key]], list, tuple):
                return keys[rows_key], columns
    return None, []
