"""Messages about settings that cannot be used, or that have no effect because of their names."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kp_langchain._logging import warn_once
from kp_langchain.config_files import FILE_VARIABLE
from kp_langchain.near_names import near_key, near_name
from kp_langchain.printable import printable

Layer = tuple[str, Mapping[str, Any]]
"""A source of settings: its name in messages, and the settings that it gives."""

ENVIRONMENT = "environment variable"
"""The name of the layer that is the environment."""
PREFIX = "KP_"
"""The prefix of environment variables that are settings."""

_LONGEST_VALUE_CHARS = 120
_VARIABLE_SIMILARITY_MIN = 0.75
_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")


def describe_faults(
    faults: Iterable[Any], layers: Sequence[Layer], settings: type[BaseModel]
) -> str:
    """Return the message about the faults that pydantic found, one a line.

    Args:
        faults: The faults, as `ValidationError.errors()` returns them.
        layers: The sources of the settings, by descending precedence.
        settings: The class whose fields were validated.
    """
    lines = "".join(f"\n  {printable(_describe(fault, layers, settings))}" for fault in faults)
    return f"these settings cannot be used:{lines}"


def _describe(fault: Any, layers: Sequence[Layer], settings: type[BaseModel]) -> str:
    location = tuple(fault["loc"])
    origin = max(layers, key=lambda layer: _depth(layer[1], location))[0]
    if origin == ENVIRONMENT:
        origin = f"{origin} {PREFIX}{'__'.join(map(str, location)).upper()}"
    place = f"{origin}: {'.'.join(map(str, location))}"
    if fault["type"] == "missing":
        return f"{place} is missing"
    place += f" = {_show(str(location[-1]), fault['input'])}"
    keys, field, is_table = _field_at(settings, location)
    if fault["type"] in _UNKNOWN_KEY:
        near = near_key(str(location[-1]), keys)
        hint = f"did you mean {near}?" if near else f"known here: {', '.join(keys)}"
        return f"{place}: unknown key; {hint}"
    # A table's own message says what is wrong; a number's description says more than pydantic.
    has_own_message = is_table and fault["type"] == "value_error"
    if field is None or field.description is None or has_own_message:
        return f"{place}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{place}: expected {field.description}"


def _field_at(
    settings: type[BaseModel], location: Sequence[Any]
) -> tuple[list[str], FieldInfo | None, bool]:
    """Return what a location in the settings is.

    Returns:
        The keys of the innermost table; the innermost field, None for an unknown key; and whether
        the location is that of a whole table.
    """
    table: type | None = settings
    keys: list[str] = []
    field: FieldInfo | None = None
    parts = list(location)
    while parts and table is not None:
        name = parts.pop(0)
        keys = _keys(table)
        if name not in keys:
            return keys, None, False
        if not issubclass(table, BaseModel):
            return keys, field, False  # a weight, described by the field that holds the weights
        field = table.model_fields[name]
        table = _table_in(field)
        if parts and _is_by_name(field):
            parts.pop(0)
    return keys, field, table is not None


def _keys(table: type) -> list[str]:
    if issubclass(table, BaseModel):
        return list(table.model_fields)
    return [field.name for field in dataclasses.fields(table)]  # type: ignore[arg-type]


def _table_in(field: FieldInfo) -> type | None:
    """Return the class of the table that a field holds, or of the tables that it holds by name.

    That is a model, or a dataclass for weights.
    """
    annotation = field.annotation
    candidates = (annotation,) if isinstance(annotation, type) else get_args(annotation)
    classes = (one for one in candidates if isinstance(one, type))
    return next(
        (one for one in classes if issubclass(one, BaseModel) or dataclasses.is_dataclass(one)),
        None,
    )


def _is_by_name(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is dict


def _depth(values: object, location: tuple[Any, ...]) -> int:
    """Return how far `location` can be followed into nested `values`."""
    for depth, part in enumerate(location):
        if not isinstance(values, Mapping) or part not in values:
            return depth
        values = values[part]
    return len(location)


def _show(key: str, value: object) -> str:
    """Return a value for a message; `***` for a secret."""
    if re.search(r"password|passwd|secret|token|api_?key|pseudonym", key, re.IGNORECASE):
        return "***"
    try:
        text = mask_password(repr(value))
    except Exception:  # noqa: BLE001 - the repr of a foreign object may raise anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE_CHARS else text[:_LONGEST_VALUE_CHARS] + "..."


def mask_password(text: str) -> str:
    """Return `text` with the passwords of any URLs in it replaced by `***`."""
    text = re.sub(r"(://[^:@/\s]*):.*@", r"\1:***@", text, flags=re.DOTALL)
    return re.sub(r"(?i)([?&\s]\w*password\s*=\s*)[^&\s'\"]+", r"\1***", text)


def policy_origins(layers: Iterable[Layer]) -> dict[tuple[str, str], str]:
    """Return where each field of each policy comes from, for messages.

    Args:
        layers: The sources of the settings, by descending precedence.

    Returns:
        By domain, "" for the defaults, and field.
    """
    origins: dict[tuple[str, str], str] = {}
    for origin, values in layers:
        domains = values.get("domains") or {}
        for domain, policy in (("", values.get("defaults") or {}), *domains.items()):
            for field, value in policy.items():
                if value is not None:
                    key = f"{f'domains.{domain}' if domain else 'defaults'}.{field}"
                    origins.setdefault((domain, field), f"{origin}: {key}")
    return origins


def leak_message(
    domain: str, visibility: str, *, privacy_origin: str, visibility_origin: str
) -> str:
    """Return the message about a policy that sends runs with only their secrets redacted.

    Args:
        domain: The domain; "" for the defaults.
        visibility: The policy's visibility.
        privacy_origin: Where its privacy level comes from.
        visibility_origin: Where its visibility comes from.
    """
    return (
        f"{f'domain {domain!r}' if domain else 'defaults'}: privacy_level = 'private' "
        f"({privacy_origin}) leaves e-mail addresses and the like in a run, so it stays local, "
        f"but visibility = {visibility!r} ({visibility_origin}) sends it to the registry, where "
        "anyone can read it; set visibility to 'private', or privacy_level to 'aggregated'"
    )


CAPTURE_VARIABLES = ("KP_CAPTURE", "KP_DOMAIN")
"""Read by the process-wide capture; no settings."""


def unknown_variables(settings: type[BaseModel], domains: Iterable[str]) -> dict[str, str | None]:
    """Return the environment variables `KP_*` that are not settings.

    Args:
        settings: The class of the settings.
        domains: The built-in domains.

    Returns:
        By name, the variable that was probably meant; None for one that may belong to another
        program.
    """
    tables = [name for name, field in settings.model_fields.items() if _table_in(field)]
    prefixes = tuple(f"{PREFIX}{name.upper()}__" for name in tables)
    variables = {
        FILE_VARIABLE,
        *CAPTURE_VARIABLES,
        *(f"{PREFIX}{name.upper()}" for name in settings.model_fields),
    }
    unknown = [
        name
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX)
        and value  # an empty variable counts as not set
        and name.upper() not in variables
        and not name.upper().startswith(prefixes)
    ]
    if not unknown:
        return {}
    suggestions = {name.removeprefix(PREFIX): name for name in variables}
    suggestions |= _nested_variables(settings, domains)
    return {name: suggestions.get(_near_variable(name, suggestions)) for name in unknown}


def _nested_variables(settings: type[BaseModel], domains: Iterable[str]) -> dict[str, str]:
    """Return the variables of settings in tables, by the names that they may be confused with."""
    variables: dict[str, str] = {}
    for name, field in settings.model_fields.items():
        table = _table_in(field)
        keys = [] if table is None else [key.upper() for key in _keys(table)]
        paths = [f"{name}__{domain}" for domain in domains] if _is_by_name(field) else [name]
        for path in (path.upper() for path in paths):
            variables |= {f"{path}__{key}": f"{PREFIX}{path}__{key}" for key in keys}
        if name == "defaults":  # whose name users tend to omit
            variables |= {key: f"{PREFIX}DEFAULTS__{key}" for key in keys}
    return variables


def _near_variable(variable: str, suggestions: Iterable[str]) -> str:
    # Compared without the prefix, which all have in common.
    name = variable[len(PREFIX) :].upper()
    if name in suggestions:
        return name
    return near_name(name, suggestions, similarity_min=_VARIABLE_SIMILARITY_MIN) or ""


def warn_of_names(variables: Mapping[str, str | None], domains: Mapping[str, str]) -> None:
    """Warn once about each setting that has no effect because of its name.

    Args:
        variables: What `unknown_variables` returned; one that may belong to another program is not
            reported.
        domains: Each configured domain that looks like a misspelt built-in one, with that one.
    """
    for variable, near in variables.items():
        if near is not None:
            warn_once(
                f"variable:{variable}",
                "%s is not a setting and has no effect; did you mean %s?",
                variable,
                near,
            )
    for name, domain in domains.items():
        warn_once(
            f"domain:{name}",
            "domain %s has a policy in the settings (%s), which applies only to runs of exactly "
            "this name; did you mean %s?",
            repr(name),
            f"domains.{name}",
            repr(domain),
        )
