"""Settings: arguments over environment variables (`KP_*`) over `kp.toml` over defaults.

[defaults]                  # for every domain
privacy_level = "private"

[domains.finance]
threshold = 0.7             # or KP_DOMAINS__FINANCE__THRESHOLD=0.7
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from kp_langchain.errors import ConfigError
from kp_langchain.redaction.rules import Rules
from kp_langchain.schema import PrivacyLevel, Visibility
from kp_langchain.scoring.weights import ScoringWeights

_ENVIRONMENT = "environment variable"
_PREFIX = "KP_"
_FILE_VARIABLE = "KP_CONFIG"
_LONGEST_VALUE_SHOWN = 120
_YEAR_S = 365 * 24 * 3600.0
_DAY_MS = 24 * 3600 * 1000.0
_WEIGHTS = [field.name for field in dataclasses.fields(ScoringWeights)]


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
_Days = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, le=36_500, allow_inf_nan=False)]
_Milliseconds = Annotated[
    float, BeforeValidator(_refuse_bool), Field(gt=0, le=_DAY_MS, allow_inf_nan=False)
]

_COUNT = "a whole number above 0"
_SECONDS = f"seconds above 0, at most {_YEAR_S:.0f} (a year)"
_MILLISECONDS = "milliseconds above 0, at most 86400000 (a day)"


class DomainPolicy(BaseModel):
    """What holds for the runs of one domain. Fields not given, or None, come from the layer below.

    Args:
        threshold: Score (0 to 1) a run must reach to be contributed.
        weights: Scoring weights in place of the domain's built-in profile.
        visibility: Who may see a contributed trace: `private`, `org` or `network`. A registry need
            not enforce it: the public one shows `org` to anybody, too.
        privacy_level: What redaction removes: `aggregated` and `federated` remove identifiers too,
            `private` only secrets.
        keep: Whose trace bodies the store keeps: those of runs that `passed`, or of `all`.
        keep_days: Days for which it keeps, with `passed`, the others' bodies, so that a verdict can
            still contribute them; 0 for not at all.

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
    keep_days: _Days = Field(default=7.0, description="days from 0 to 36500")

    def given(self) -> dict[str, Any]:
        """Return the fields that were given a value, by name."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None}

    def merged_over(self, base: DomainPolicy) -> DomainPolicy:
        """Return `base` with every field that this policy gives put over it."""
        return base.model_copy(update=self.given())


class Settings(BaseSettings):
    """Everything that can be set. None counts as not given.

    Constructing it reads all sources: an argument given here comes before the environment
    variable `KP_<FIELD>` (nested: `KP_DOMAINS__FINANCE__THRESHOLD`, `KP_DEFAULTS__KEEP`; an empty
    one counts as not set), that before `kp.toml` in the working directory (or the file that
    `KP_CONFIG` names, which must then exist), and that before the default.

    Args:
        database_url: `postgresql://...`, `sqlite:///path` or a path; None for a SQLite file in the
            user's data folder.
        embedding_model: Folder or name of an embedding model; None for all-MiniLM-L6-v2.
        latency_budget_ms: Milliseconds that scoring one run may take. While the embedding model
            is loading, novelty is 0.5 rather than waited for any longer.
        disabled: Record nothing at all.
        registry_url: Registry that takes contributions; None sends nothing anywhere.
        api_key: Key for the registry; by default the one that `kp-langchain register` stored.
        agent_id: `kp:agent:<id>` written into traces; by default that of the registry's key.
        defaults: Policy for every domain.
        domains: Policies by domain name, over `defaults`.
        redaction: What is redacted besides what is always; see `Rules`.
        max_text_chars: Longest text kept of one step's content, input or output, in characters.
        max_run_chars: Longest text kept of all steps of one run together, in characters.
        max_steps: Most steps kept of one run.
        max_open_runs: Most runs recorded at the same time.
        max_paused_runs: Most runs remembered while they wait for a human.
        max_queue: Most finished runs waiting to be scored.
        run_timeout_s: Seconds without an event after which an open run counts as abandoned.
        exit_timeout_s: Longest wait, in seconds, for unfinished work when the process ends.

    Raises:
        ConfigError: Something cannot be read or used. The message names, for each fault, the file,
            variable or argument, the key, the value, and what would be right.
    """

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    database_url: str | None = Field(
        default=None, repr=False, description="postgresql://..., sqlite:///path, or a file's path"
    )
    embedding_model: str | None = Field(
        default=None, description="folder or name of an embedding model"
    )
    latency_budget_ms: _Milliseconds = Field(default=100.0, description=_MILLISECONDS)
    disabled: bool = Field(default=False, description="true or false")
    registry_url: str | None = Field(default=None, description="text such as https://host")
    api_key: SecretStr | None = Field(default=None, description="text such as kp_...")
    agent_id: str | None = Field(default=None, description="text such as kp:agent:<id>")
    defaults: DomainPolicy = Field(default=DomainPolicy(), description="a table: [defaults]")
    domains: dict[Annotated[str, Field(min_length=1)], DomainPolicy] = Field(
        default_factory=dict, description="a table for each domain: [domains.<name>]"
    )
    redaction: Rules = Field(default=Rules(), description="a table: [redaction]")
    max_text_chars: _Count = Field(default=4000, description=_COUNT)
    max_run_chars: _Count = Field(default=200_000, description=_COUNT)
    max_steps: _Count = Field(default=1000, description=_COUNT)
    max_open_runs: _Count = Field(default=1000, description=_COUNT)
    max_paused_runs: _Count = Field(default=1000, description=_COUNT)
    max_queue: _Count = Field(default=1000, description=_COUNT)
    run_timeout_s: _Seconds = Field(default=3600.0, description=_SECONDS)
    exit_timeout_s: _Seconds = Field(default=10.0, description=_SECONDS)

    def __init__(self, **arguments: Any) -> None:
        arguments = {n: _plain(value) for n, value in arguments.items() if value is not None}
        faults: list[Any] = []
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            faults = error.errors(include_url=False)
        except SettingsError as error:
            raise ConfigError(f"an environment variable cannot be read: {error}") from None
        if not faults:
            return
        # Outside the handler: pydantic's own error would show the values in the traceback.
        origins: list[tuple[str, Mapping[str, Any]]] = [
            *((f"argument {name}", {name: value}) for name, value in arguments.items()),
            (_ENVIRONMENT, EnvSettingsSource(type(self))()),
            (str(config_file()), _read_toml()),
        ]
        told = "".join(f"\n  {_describe(fault, origins)}" for fault in faults)
        raise ConfigError(f"these settings cannot be used:{told}")

    @classmethod
    def current(cls) -> Settings:
        """Return what holds without arguments, read anew only if a source changed since.

        Reading everything takes half a millisecond, which an agent that makes a handler for each
        run would feel.

        Raises:
            ConfigError: As for the constructor.
        """
        global _current
        now, known = _sources(), _current
        if known is None or known[0] != now:
            known = _current = (now, cls())
        return known[1]

    @classmethod
    def supposing(cls, text: str) -> Settings:
        """Return what would hold without arguments if the configuration file held `text`.

        Raises:
            ConfigError: As for the constructor.
        """
        token = _supposed_text.set(text)
        try:
            return cls()
        finally:
            _supposed_text.reset(token)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say where settings come from, first one first."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, _read_toml())

    def policy_for(self, domain: str) -> DomainPolicy:
        """Return the policy of `domain`: `defaults`, with `domains[domain]` (exact name) over it.

        Its threshold is None where none was set: then the measured default of the gate holds.
        """
        if domain not in self.domains:
            return self.defaults
        return self.domains[domain].merged_over(self.defaults)


_current: tuple[object, Settings] | None = None
_supposed_text: ContextVar[str | None] = ContextVar("supposed_text", default=None)


def _sources() -> object:
    """Everything that `Settings()` depends on, to be compared."""
    file = config_file()
    try:
        content = file.expanduser().read_bytes()
    except (OSError, RuntimeError):
        content = None
    variables = [item for item in os.environ.items() if item[0].upper().startswith(_PREFIX)]
    return file, content, variables


def config_file() -> Path:
    """Return the path of the file that settings are read from, which need not exist."""
    return Path(os.environ.get(_FILE_VARIABLE) or "kp.toml")


def _read_toml() -> dict[str, Any]:
    named = bool(os.environ.get(_FILE_VARIABLE))
    path = config_file()
    supposed = _supposed_text.get()
    text = ""
    try:
        # A byte order mark is what some editors put before UTF-8.
        text = path.expanduser().read_bytes().decode("utf-8-sig") if supposed is None else supposed
        return tomllib.loads(text)
    except FileNotFoundError:
        if not named:
            return {}
        reason = f"does not exist; create it or unset {_FILE_VARIABLE}"
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        reason = f"is not UTF-8 text at line {line}; save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        last = text.count("\n") + 1
        told = str(error).replace("at end of document", f"at the end, line {last}")
        reason = f"is not valid TOML: {told}"
    except RecursionError:
        reason = "is not valid TOML: it is nested too deeply"
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        told = getattr(error, "strerror", None) or str(error)
        reason = f"cannot be read: {told}; make it a readable file, or remove it"
    raise ConfigError(f"{path}{f' (named by {_FILE_VARIABLE})' if named else ''} {reason}")


def data_dir() -> Path:
    """Return the folder for this package's data. It is not created here."""
    import platformdirs

    return platformdirs.user_data_path("kp_langchain", appauthor=False)


def mask_password(text: str) -> str:
    """Return `text` with the passwords of any URLs in it replaced by `***`."""
    text = re.sub(r"(://[^:@/\s]*):.*@", r"\1:***@", text, flags=re.DOTALL)
    return re.sub(r"(?i)([?&\s]\w*password\s*=\s*)[^&\s'\"]+", r"\1***", text)


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


def _describe(fault: Any, origins: list[tuple[str, Mapping[str, Any]]]) -> str:
    """One fault in one line: where it stands, key and value, what would be right."""
    location = tuple(fault["loc"])
    origin = max(origins, key=lambda one: _depth(one[1], location))[0]
    if origin == _ENVIRONMENT:
        origin = f"{origin} {_PREFIX}{'__'.join(map(str, location)).upper()}"
    place = f"{origin}: {'.'.join(map(str, location))}"
    if fault["type"] == "missing":
        return f"{place} is missing"
    place += f" = {_show(str(location[-1]), fault['input'])}"

    depth = {"defaults": 1, "domains": 2}.get(str(location[0]), 0)
    within = location[depth:] if depth and len(location) > depth else location
    fields = Settings.model_fields if within is location else DomainPolicy.model_fields
    field = str(within[0])
    if location[0] == "redaction" and fault["type"] in ("value_error", "extra_forbidden"):
        said = fault["msg"].removeprefix("Value error, ")
        others = f"; known here: {', '.join(Rules.model_fields)}"
        return f"{place}: {said}{others if fault['type'] == 'extra_forbidden' else ''}"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = list(fields) if len(within) == 1 else _WEIGHTS
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        right = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"{place}: unknown key; {right}"
    if field not in fields or (field == "weights" and fault["type"] == "value_error"):
        return f"{place}: {fault['msg'].removeprefix('Value error, ')}"
    return f"{place}: expected {fields[field].description}"


def _depth(data: object, location: tuple[Any, ...]) -> int:
    """How far `location` can be followed into nested `data`."""
    for depth, part in enumerate(location):
        if not isinstance(data, Mapping) or part not in data:
            return depth
        data = data[part]
    return len(location)


def _show(key: str, value: object) -> str:
    if re.search(r"password|passwd|secret|token|api_?key|pseudonym", key, re.IGNORECASE):
        return "***"
    try:
        text = mask_password(repr(value))
    except Exception:  # noqa: BLE001  (the repr of a stranger's object may raise anything)
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST_VALUE_SHOWN else text[:_LONGEST_VALUE_SHOWN] + "..."
