"""Settings: arguments over environment variables (`KP_*`) over `kp.toml` over defaults.

    [defaults]                  # for every domain
    privacy_level = "private"

    [domains.finance]
    threshold = 0.7             # or KP_DOMAINS__FINANCE__THRESHOLD=0.7

`load_settings` reads all of it. Every value remembers which file, variable or argument it came
from, so that a fault can be told where it is to be put right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from kp_langchain.errors import ConfigError
from kp_langchain.schema import PrivacyLevel, Visibility
from kp_langchain.scoring.weights import ScoringWeights

DEFAULT_THRESHOLDS: dict[str, float] = {
    "default": 0.6,
    "finance": 0.6,
    "code": 0.6,
    "medical": 0.6,
    "customer_service": 0.6,
}
"""Score (0 to 1) that a run must reach, per domain; a domain not listed uses `default`."""

_CONFIG_FILE = Path("kp.toml")
_WEIGHTS = [field.name for field in dataclasses.fields(ScoringWeights)]
_PREFIX = "KP_"
_FILE_VARIABLE = "KP_CONFIG"
_LONGEST_VALUE_SHOWN = 120
_YEAR_S = 365 * 24 * 3600.0
_POLICY_DEPTH = 4  # domains . finance . weights . novelty


def _refuse_bool(value: object) -> object:
    # Pydantic would read `threshold = true` as 1.0.
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")  # noqa: TRY004  (pydantic wants ValueError)
    return value


_Unit = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, le=1, allow_inf_nan=False)]
_Count = Annotated[int, BeforeValidator(_refuse_bool), Field(gt=0)]
# The ceiling keeps a time-out within what the operating system's timers take.
_Seconds = Annotated[
    float, BeforeValidator(_refuse_bool), Field(gt=0, le=_YEAR_S, allow_inf_nan=False)
]

_COUNT = "a whole number above 0"
_SECONDS = f"seconds above 0, at most {_YEAR_S:.0f} (a year)"


class DomainPolicy(BaseModel):
    """What holds for the runs of one domain. Fields not given, or None, come from the layer below.

    Args:
        threshold: Score (0 to 1) a run must reach to be contributed.
        weights: Scoring weights in place of the domain's built-in profile.
        visibility: Who may see a contributed trace: `private`, `org` or `network`.
        privacy_level: What redaction removes: `aggregated` and `federated` remove identifiers too,
            `private` only secrets.
        keep: Whose trace bodies the store keeps: those of runs that `passed`, or of `all`.

    Raises:
        pydantic.ValidationError: A field is unknown or its value wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: _Unit | None = Field(default=None, description="a number from 0 to 1")
    weights: ScoringWeights | None = Field(
        default=None,
        description="complexity, novelty, tool_diversity and outcome_confidence, "
        "each from 0 to 1, together 1",
    )
    visibility: Visibility = Field(
        default="private", description="one of 'private', 'org', 'network'"
    )
    privacy_level: PrivacyLevel = Field(
        default="aggregated", description="one of 'aggregated', 'federated', 'private'"
    )
    keep: Literal["passed", "all"] = Field(default="passed", description="'passed' or 'all'")

    def given(self) -> dict[str, Any]:
        """Return the fields that were given a value, by name."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None}

    def merged_over(self, base: DomainPolicy) -> DomainPolicy:
        """Return `base` with every field that this policy gives put over it."""
        return base.model_copy(update=self.given())


class Settings(BaseModel):
    """Everything that can be set. `load_settings` builds it from all sources.

    Args:
        database_url: `postgresql://...`, `sqlite:///path` or a path; None for a SQLite file in the
            user's data folder.
        embedding_model: Name or folder of a sentence-transformers model; None for the default one.
        disabled: Record nothing at all.
        agent_id: `kp:agent:<id>` written into traces.
        defaults: Policy for every domain.
        domains: Policies by domain name, over `defaults`.
        max_text_chars: Longest text kept of one step's content, input or output, in characters.
        max_steps: Most steps kept of one run.
        max_open_runs: Most runs recorded at the same time.
        max_paused_runs: Most runs remembered while they wait for a human.
        max_queue: Most finished runs waiting to be scored.
        run_timeout_s: Seconds without an event after which an open run counts as abandoned.
        exit_timeout_s: Longest wait, in seconds, for unfinished work when the process ends.

    Raises:
        pydantic.ValidationError: A field is unknown or its value wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    database_url: str | None = Field(
        default=None, repr=False, description="postgresql://..., sqlite:///path, or a file's path"
    )
    embedding_model: str | None = Field(
        default=None, description="name or folder of a sentence-transformers model"
    )
    disabled: bool = Field(default=False, description="true or false")
    agent_id: str | None = Field(default=None, description="text such as kp:agent:<id>")
    defaults: DomainPolicy = Field(default=DomainPolicy(), description="a table: [defaults]")
    domains: dict[Annotated[str, Field(min_length=1)], DomainPolicy] = Field(
        default_factory=dict, description="a table for each domain: [domains.<name>]"
    )
    max_text_chars: _Count = Field(default=4000, description=_COUNT)
    max_steps: _Count = Field(default=1000, description=_COUNT)
    max_open_runs: _Count = Field(default=1000, description=_COUNT)
    max_paused_runs: _Count = Field(default=1000, description=_COUNT)
    max_queue: _Count = Field(default=1000, description=_COUNT)
    run_timeout_s: _Seconds = Field(default=3600.0, description=_SECONDS)
    exit_timeout_s: _Seconds = Field(default=10.0, description=_SECONDS)

    def policy_for(self, domain: str) -> DomainPolicy:
        """Return the policy of `domain`, resolved: its threshold is always a number.

        Built-in threshold <- `defaults` <- `domains[domain]` (exact name; later ones win).
        """
        built_in = DomainPolicy(
            threshold=DEFAULT_THRESHOLDS.get(domain, DEFAULT_THRESHOLDS["default"])
        )
        policy = self.defaults.merged_over(built_in)
        return self.domains[domain].merged_over(policy) if domain in self.domains else policy


def data_dir() -> Path:
    """Return the folder for this package's data. It is not created here."""
    import platformdirs

    return platformdirs.user_data_path("kp_langchain", appauthor=False)


def mask_password(text: str) -> str:
    """Return `text` with the passwords of any URLs in it replaced by `***`."""
    text = re.sub(r"(://[^:@/\s]*):.*@", r"\1:***@", text, flags=re.DOTALL)
    return re.sub(r"(?i)([?&\s]\w*password\s*=\s*)[^&\s'\"]+", r"\1***", text)


def load_settings(**overrides: Any) -> Settings:
    """Read settings from arguments, environment and file, in this order of precedence.

    The file is `kp.toml` in the working directory if there is one, or the file that `KP_CONFIG`
    names, which must then exist. A variable's name is the key path in capitals, joined by two
    underscores: `KP_MAX_STEPS`, `KP_DEFAULTS__KEEP`, `KP_DOMAINS__CUSTOMER_SERVICE__THRESHOLD`.
    An empty variable counts as not set.

    Args:
        overrides: Fields of `Settings` by name; None counts as not given.

    Returns:
        The settings, checked.

    Raises:
        ConfigError: Something cannot be read or used. The message names, for each fault, the file,
            variable or argument, the key, the value, and what would be right.
    """
    arguments = {name: _plain(value) for name, value in overrides.items() if value is not None}
    path, from_file = _read_file()
    domains = set(DEFAULT_THRESHOLDS)
    for data in (from_file, arguments):
        if isinstance(named := data.get("domains"), dict):
            domains.update(map(str, named))
    layers = [(path, from_file)]
    layers += _read_environment(domains)
    layers += [(f"argument {name}", {name: value}) for name, value in arguments.items()]

    merged: dict[str, Any] = {}
    origins: dict[tuple[Any, ...], str] = {}
    for origin, data in layers:
        merged = _merge(merged, data)
        origins.update(dict.fromkeys(_nodes(data), origin))
    try:
        return Settings.model_validate(merged)
    except ValidationError as error:
        faults = [_describe(fault, origins) for fault in error.errors(include_url=False)]
    # Outside the handler: pydantic's own error would show the values in the traceback.
    raise ConfigError("these settings cannot be used:" + "".join(f"\n  {line}" for line in faults))


def _read_file() -> tuple[str, dict[str, Any]]:
    named = os.environ.get(_FILE_VARIABLE)
    path = Path(named) if named else _CONFIG_FILE
    hint = f" (named by {_FILE_VARIABLE})" if named else ""
    try:
        path = path.expanduser()
        text = path.read_bytes().decode()
    except FileNotFoundError:
        if not named:
            return str(path), {}
        raise ConfigError(
            f"{path}{hint} does not exist; create it or unset {_FILE_VARIABLE}"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}{hint} is not UTF-8 text at line {line}; save it as UTF-8"
        ) from None
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{path}{hint} cannot be read: {reason}; make it a readable file, or remove it"
        ) from None
    return str(path), _parse_toml(text, f"{path}{hint}")


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        last = text.count("\n") + 1
        reason = str(error).replace("at end of document", f"at the end, line {last}")
    except RecursionError:
        reason = "it is nested too deeply"
    raise ConfigError(f"{name} is not valid TOML: {reason}")


def _read_environment(domains: set[str]) -> list[tuple[str, dict[str, Any]]]:
    """One layer per `KP_*` variable that names a setting; `domains` are the names in use."""
    layers: list[tuple[str, dict[str, Any]]] = []
    for variable in sorted(os.environ):
        text = os.environ[variable]
        if not variable.startswith(_PREFIX) or variable == _FILE_VARIABLE or not text:
            continue
        keys = variable.removeprefix(_PREFIX).lower().split("__")
        # Other programs may have KP_ variables of their own; only a near miss is taken as meant.
        if not difflib.get_close_matches(keys[0], Settings.model_fields, cutoff=0.85):
            continue
        for path in _key_paths(keys, domains):
            layer = _read_value(text)
            for key in reversed(path):
                layer = {key: layer}
            layers.append((f"environment variable {variable}", layer))
    return layers


def _read_value(text: str) -> Any:
    """A JSON object stands for a table; anything else is text, which the fields know to read."""
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _key_paths(keys: list[str], domains: set[str]) -> list[list[str]]:
    """Key paths a variable sets: variables have no case and no hyphens, names of domains may."""
    if keys[0] != "domains" or len(keys) < 2:
        return [keys]
    same = sorted(name for name in domains if _variable_form(name) == keys[1])
    return [["domains", name, *keys[2:]] for name in same or [keys[1]]]


def _variable_form(domain: str) -> str:
    return re.sub(r"\W", "_", domain.lower())


def _plain(value: Any) -> Any:
    """Policies within an argument as the fields they give, so that they merge like tables."""
    if isinstance(value, DomainPolicy):
        return value.given()
    if isinstance(value, Mapping):
        return {
            key: item.given() if isinstance(item, DomainPolicy) else item
            for key, item in value.items()
        }
    return value


def _merge(base: Any, over: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(over, dict)):
        return over
    return base | {key: _merge(base.get(key), value) for key, value in over.items()}


def _nodes(data: dict[Any, Any], above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in data.items():
        yield (*above, key)
        if isinstance(value, dict) and len(above) + 1 < _POLICY_DEPTH:
            yield from _nodes(value, (*above, key))


def _describe(fault: Any, origins: dict[tuple[Any, ...], str]) -> str:
    """One fault in one line: where it stands, key and value, what would be right."""
    location = tuple(fault["loc"])
    parts = (location[:n] for n in range(len(location), 0, -1))
    origin = next(origins[part] for part in parts if part in origins)
    key = ".".join(str(part) for part in location)
    place = f"{origin}: {key}"
    if fault["type"] == "missing":
        return f"{place} is missing"
    place += f" = {_show(key, fault['input'])}"

    depth = {"defaults": 1, "domains": 2}.get(str(location[0]), 0)
    within = location[depth:] if depth and len(location) > depth else location
    fields = Settings.model_fields if within is location else DomainPolicy.model_fields
    field = str(within[0])
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = list(fields) if len(within) == 1 else _WEIGHTS
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        right = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"{place}: unknown key; {right}"
    if field not in fields or (field == "weights" and fault["type"] == "value_error"):
        return f"{place}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{place}: expected {fields[field].description}"


def _show(key: str, value: object) -> str:
    if re.search(r"password|passwd|secret|token|api_?key", key, re.IGNORECASE):
        return "***"
    try:
        text = mask_password(repr(value))
    except Exception:  # noqa: BLE001  (the repr of a stranger's object may raise anything)
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE_SHOWN else text[:_LONGEST_VALUE_SHOWN] + "..."
