"""Entries of a mapping, or cells of a row, whose meaning another entry or the header states."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from pydantic import SecretBytes, SecretStr

from kp_langchain.redaction.fields import SensitiveField, looks_like_password
from kp_langchain.redaction.spans import lazy_pattern, load_table, word_set
from kp_langchain.values import fields_of

# ------------------------------------------------------------------ objects that hold data

_PLAIN = (str, bytes, int, float)


def has_type(value: Any, *kinds: type) -> bool:
    """Return whether the type of `value` is one of `kinds`; `isinstance` may run the object's code."""
    return issubclass(type(value), kinds)


def parts_of(value: Any) -> dict[Any, Any] | None:
    """Return the content of an object as a new dict, or None if the object holds no data.

    Args:
        value: Anything but a dict, list, tuple or set.

    Returns:
        The content of a mapping, dataclass, pydantic model or enum member; of an exception, its
        type, arguments and notes.
    """
    if value is None or isinstance(value, (*_PLAIN, type)):
        return None
    if isinstance(value, SecretStr | SecretBytes):
        return {"secret": value.get_secret_value()}
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, BaseException):
        notes = list(getattr(value, "__notes__", ()))
        content = {"type": type(value).__name__, "args": list(value.args)}
        return content | ({"notes": notes} if notes else {})
    if isinstance(value, Enum):
        return {"name": value.name, "value": value.value}
    fields = fields_of(value)
    return None if fields is None else dict(fields)


# ------------------------------------------------------------------ mappings and rows

Classify = Callable[[str], SensitiveField | None]
NamedField = tuple[SensitiveField | None, str]

# Keys by their meaning; see the table.
KEYS = SimpleNamespace(
    **{name: word_set(words) for name, words in load_table("structures").items()}
)
_TYPES_AS_NAMES = frozenset(("password", "phone", "ssn", "iban", "pin", "otp"))
_MODEL_TOKENS = ("token", "tokenstr")
_VALUES = KEYS.value_keys | KEYS.text_keys
_SECRET_VALUES = KEYS.value_keys | {"text", "content", "data"}
_KINDS_WITH_FIELDS = frozenset(("session", "authorization", "token", "card", "pin"))
_MAX_KEYS = 64  # a record has fewer; a larger mapping is a collection

# The members of a JSON Web Key (RFC 7518) that are secret.
_JWK_SECRETS = frozenset(("d", "p", "q", "dp", "dq", "qi", "k"))
PRIVATE_KEY = SensitiveField("private_key")
_SECRET = SensitiveField("secret")
_MODEL_TOKEN = SensitiveField("token", is_strong=False)
_NO_FIELD: NamedField = (None, "")
_CELL_NAME = lazy_pattern(r"[^\W\d][\w.\-/]{0,39}(?: [\w.\-/()#]{1,24}){0,3}")
_BEGIN_OF_KEY = lazy_pattern(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY")
_SELECTOR_PARTS = lazy_pattern(r"[A-Za-z][\w\-]*")
_COMBINATORS = lazy_pattern(r"[ >+~]+(?![^\[\]]{0,80}\])")
_SELECTOR_SIGN = lazy_pattern(r"[#.\[/=@(]")


# Keys that may say something about the values of the others.
_TELLING = frozenset(
    ("type", "kind", "kty", "secondarykey", "granttype", *KEYS.name_keys, *KEYS.element_keys)
).union(
    KEYS.secret_marks, KEYS.references, KEYS.schema_marks, KEYS.column_keys, KEYS.model_token_clues
)


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
    # The keys of this mapping, and not equal ones: those of a text know their places.
    texts = (key for key in mapping if has_type(key, str))
    by_plain: dict[str, Any] = dict(zip(_plain_keys(tuple(mapping)), texts, strict=True))
    if by_plain.keys().isdisjoint(_TELLING):
        return MappingFields(field)
    if _is_schema(mapping, by_plain):
        weak = field._replace(is_strong=False) if field else None
        return MappingFields(
            weak, {by_plain[key]: _NO_FIELD for key in KEYS.schema_keys & by_plain.keys()}
        )
    entries = _secret_entries(mapping, by_plain)
    inherited = field
    values = KEYS.value_keys & by_plain.keys()
    if (
        field is not None
        and not KEYS.name_keys.isdisjoint(by_plain)
        and ("name" in by_plain or values)
    ):
        # Of a record within a sensitive list, only the value is sensitive, not its other fields.
        inherited = field._replace(is_strong=False)
        entries |= {by_plain[key]: (field, name) for key in values}
    # Within a strong field, every value is sensitive already, also a label that names another one.
    if field is None or not field.is_strong:
        entries |= _entries_beside(mapping, by_plain, classify)
    if not KEYS.model_token_clues.isdisjoint(by_plain):
        entries |= {by_plain[key]: (_MODEL_TOKEN, key) for key in _MODEL_TOKENS if key in by_plain}
    return MappingFields(inherited, entries, *_columns_beside_rows(mapping, by_plain, classify))


@lru_cache(maxsize=1024)
def _plain_keys(keys: tuple[Any, ...]) -> list[str]:
    """Return the keys that are texts in their plain form; those of one stem as "key" and "value"."""
    plain = [plain_key(key) for key in keys if has_type(key, str)]
    for stem in [key[:-5] for key in plain if key.endswith("value") and len(key) > 5]:
        # {"ParameterKey": ..., "ParameterValue": ...}
        noun = next((noun for noun in ("key", "name") if stem + noun in plain), None)
        if noun and noun not in plain and "value" not in plain:
            plain[plain.index(stem + noun)] = noun
            plain[plain.index(stem + "value")] = "value"
    return plain


def header_fields(rows: Sequence[Any], classify: Classify) -> list[NamedField]:
    """Return the fields of the columns if the first of `rows` is a header, or else an empty list."""
    if len(rows) < 2 or not all(has_type(row, list, tuple) for row in rows):
        return []
    header = rows[0]
    width = len(header)
    if width < 2 or any(len(row) != width for row in rows):
        return []
    fields = column_fields(header, classify)
    # Of two columns, the first row may also be a name and its value.
    return fields if fields and (width > 2 or fields[0][0] is None) else []


def build_tuple(value: tuple[Any, ...], items: list[Any]) -> Any:
    """Return items as a tuple of the type of `value`."""
    make = getattr(type(value), "_make", None)
    return tuple(items) if make is None else make(items)


def field_of_content(field: SensitiveField, content: Any) -> SensitiveField:
    """Return what a name says about its content; a mapping may also hold ordinary fields."""
    may_hold_fields = not field.is_strong or field.kind in _KINDS_WITH_FIELDS
    is_weak = may_hold_fields and has_type(content, dict)
    return field._replace(is_strong=False) if is_weak else field


def is_pair(value: Any) -> bool:
    """Return whether a value is a list or tuple of two, and the first may be a name."""
    return has_type(value, list, tuple) and len(value) == 2 and has_type(value[0], str, bytes)


def lines_of_key(members: Sequence[Any]) -> range:
    """Return the places of the strings that are the lines of a private key, if any are."""
    if len(members) < 3 or not all(has_type(member, str) for member in members):
        return range(0)
    begins = [place for place, line in enumerate(members) if _BEGIN_OF_KEY.search(line)]
    if not begins or "-----END" in members[begins[0]]:
        return range(0)
    ends = (place for place, line in enumerate(members) if "-----END" in line)
    return range(begins[0] + 1, next(ends, len(members)))


def column_fields(header: Sequence[Any], classify: Classify) -> list[NamedField]:
    """Return the field and name of each column, or an empty list if none is sensitive."""
    if not all(
        (has_type(cell, str) and _CELL_NAME.fullmatch(cell)) or cell == "" for cell in header
    ):
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


def plain_key(key: str) -> str:
    """Return a key as the tables write it: in lower case and without separators."""
    return key.lower().replace("_", "").replace("-", "") if len(key) < 40 else key


def _is_schema(mapping: dict[Any, Any], by_plain: dict[str, Any]) -> bool:
    """Return whether a mapping describes a value, as JSON Schema and OpenAPI do."""
    if "type" in by_plain:
        kind: Any = mapping[by_plain["type"]]
        kinds = kind if has_type(kind, list) else [kind]
        if all(
            has_type(kind, str) and kind.lower().split("(")[0] in KEYS.data_types for kind in kinds
        ):
            return "value" not in by_plain
    return not KEYS.references.isdisjoint(by_plain) or (
        not KEYS.schema_marks.isdisjoint(by_plain)
        and by_plain.keys() <= KEYS.schema_keys | KEYS.sample_keys
    )


def _secret_entries(mapping: dict[Any, Any], keys: dict[str, Any]) -> dict[Any, NamedField]:
    """Return the entries that are secret whatever their names, as in Kubernetes' Secrets."""
    if mapping.get("kind") == "Secret":
        return {key: (_SECRET, key) for key in ("data", "stringData") if key in mapping}
    if "kty" in keys:
        return {keys[member]: (PRIVATE_KEY, member) for member in _JWK_SECRETS & keys.keys()}
    if "primarykey" in keys and "secondarykey" in keys:
        weak = SensitiveField("api_key", is_strong=False)
        return {keys[key]: (weak, key) for key in ("primarykey", "secondarykey")}
    if "granttype" in keys and "code" in keys:
        return {keys["code"]: (SensitiveField("token"), "code")}
    return {}


def _entries_beside(
    mapping: dict[Any, Any], by_plain: dict[str, Any], classify: Classify
) -> dict[Any, NamedField]:
    """Return the fields that a type, a mark, a name or a form's element gives the values beside it."""
    values = [plain for plain in by_plain if plain in _VALUES]
    if not values:
        return {}
    kind: Any = mapping.get(by_plain.get("type"))
    is_marked = any(mapping[by_plain[mark]] is True for mark in KEYS.secret_marks & by_plain.keys())
    field_by_name: NamedField | None = None
    element: NamedField | None = None
    if has_type(kind, str):
        is_marked = is_marked or plain_key(kind) in KEYS.secret_types
        field = None if is_marked else classify(kind)
        if field is not None and field.kind in _TYPES_AS_NAMES:
            element = field, kind
    for text in _texts(mapping, by_plain, KEYS.name_keys):
        field = classify(text) if field_by_name is None else None
        field_by_name = (field, text) if field is not None else field_by_name
    for text in _texts(mapping, by_plain, KEYS.element_keys):
        element = element or element_field(text, classify)

    def field_of(plain: str, value: Any) -> NamedField | None:
        if is_marked and plain in _SECRET_VALUES:
            return _SECRET, plain
        if plain in KEYS.value_keys and field_by_name is not None:
            return field_by_name
        if not has_type(value, str, int, float) or (has_type(value, str) and classify(value)):
            return None  # the label itself
        if element is not None and (plain in KEYS.value_keys or len(str(value).split()) == 1):
            return element
        if field_by_name is not None and has_type(value, str) and looks_like_password(value):
            return field_by_name
        return None

    fields = {by_plain[plain]: field_of(plain, mapping[by_plain[plain]]) for plain in values}
    return {key: field for key, field in fields.items() if field is not None}


def _texts(
    mapping: dict[Any, Any], by_plain: dict[str, Any], group: frozenset[str]
) -> Iterator[str]:
    for plain, key in by_plain.items():
        value: Any = mapping[key] if plain in group else None
        if has_type(value, dict):  # {"target": {"label": "Password"}, "value": ...}
            value = next((value[one] for one in ("label", "selector", "name") if one in value), "")
        if has_type(value, str):
            yield value


def _columns_beside_rows(
    mapping: dict[Any, Any], by_plain: dict[str, Any], classify: Classify
) -> tuple[Any, list[NamedField]]:
    """Return the key of a table's rows and the fields of its columns: {"columns": ..., "rows": ...}."""
    for columns_key in [key for plain, key in by_plain.items() if plain in KEYS.column_keys]:
        header = mapping[columns_key]
        if not has_type(header, list, tuple) or not header:
            continue
        columns = column_fields(
            [
                cell.get("name", cell.get("label", "")) if has_type(cell, dict) else cell
                for cell in header
            ],
            classify,
        )
        for rows_key in [key for plain, key in by_plain.items() if plain in KEYS.row_keys]:
            rows = mapping[rows_key]
            if columns and rows is not header and has_type(rows, list, tuple):
                return rows_key, columns
    return None, []
