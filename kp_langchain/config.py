"""Settings: arguments over environment variables (`KP_*`) over configuration files over defaults.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from kp_langchain._logging import warn_once
from kp_langchain.config_files import (
    FILE_VARIABLE,
    ConfigFile,
    config_file,
    places,
    read_files,
)
from kp_langchain.errors import ConfigError
from kp_langchain.folders import data_dir
from kp_langchain.near_names import near_name
from kp_langchain.printable import printable
from kp_langchain.redaction.custom_rules import Rules
from kp_langchain.run_keys import RunKeySources
from kp_langchain.schema import PrivacyLevel, Visibility
from kp_langchain.scoring.weights import PROFILES, ScoringWeights

__all__ = ["DomainPolicy", "Settings", "config_file", "data_dir", "mask_password"]

_ENVIRONMENT = "environment variable"
_PREFIX = "KP_"
_LONGEST_VALUE_SHOWN = 120
_VARIABLES_ALIKE_MIN = 0.75
_YEAR_S = 365 * 24 * 3600.0
_DAY_MS = 24 * 3600 * 1000.0
_MOST_REMEMBERED = 1_000_000
_WEIGHTS = [field.name for field in dataclasses.fields(ScoringWeights)]


def _refuse_bool(value: object) -> object:
    # Pydantic would read `threshold = true` as 1.0.
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")  # noqa: TRY004  (pydantic wants ValueError)
    return value


_Unit = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, le=1, allow_inf_nan=False)]
_Baseline = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, lt=1, allow_inf_nan=False)]
_Count = Annotated[int, BeforeValidator(_refuse_bool), Field(gt=0)]
# A million vectors take 1.7 GB.
_Remembered = Annotated[int, BeforeValidator(_refuse_bool), Field(gt=0, le=_MOST_REMEMBERED)]
# The ceiling keeps a time-out within what the operating system's timers take.
_Seconds = Annotated[
    float, BeforeValidator(_refuse_bool), Field(gt=0, le=_YEAR_S, allow_inf_nan=False)
]
_Days = Annotated[float, BeforeValidator(_refuse_bool), Field(ge=0, le=36_500, allow_inf_nan=False)]
_Milliseconds = Annotated[
    float, BeforeValidator(_refuse_bool), Field(gt=0, le=_DAY_MS, allow_inf_nan=False)
]

_BASELINE = "a number from 0 to below 1"
_COUNT = "a whole number above 0"
_SECONDS = f"seconds above 0, at most {_YEAR_S:.0f} (a year)"
_MILLISECONDS = "milliseconds above 0, at most 86400000 (a day)"


class DomainPolicy(BaseModel):
    """What holds for the runs of one domain. Fields not given, or None, come from the layer below.

    Attributes:
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

    @property
    def stays_local(self) -> bool:
        """Whether too little is redacted for a run to leave this machine."""
        return self.privacy_level == "private"

    def merged_over(self, base: DomainPolicy) -> DomainPolicy:
        """Return `base` with every field that this policy gives put over it."""
        return base.model_copy(update=self.given())


class Settings(BaseSettings):
    """Everything that can be set. None counts as not given.

    Constructing it reads all sources. First comes an argument given here, then the environment
    variable `KP_<FIELD>` (nested: `KP_DOMAINS__FINANCE__THRESHOLD`, `KP_DEFAULTS__KEEP`; an empty
    one counts as not set), then the file that `KP_CONFIG` names, which must then exist, or else
    `kp.toml` in the working folder, then `kp.toml` in the user's configuration folder, and then the
    default. A path in a file is relative to that file.

    Of a `kp.toml` in the working folder that the user has not trusted (`kp-langchain trust`), what
    can send, redirect, un-redact or load code does not count, and a warning says so. Nor do its
    policies for domains whose runs may be sent. What it has redacted is added to what the user has.

    Attributes:
        database_url: `postgresql://...`, `sqlite:///path` or a path; None for a SQLite file in the
            user's data folder.
        embedding_model: Folder or name of an embedding model; None for all-MiniLM-L6-v2.
        embedding_baseline: Cosine similarity of unrelated texts to that model, 0 to below 1;
            novelty is counted from there.
        latency_budget_ms: Milliseconds that scoring one run may take. A handler's worker first
            waits for a model that is loading, up to 30 s from its first run on; where that takes
            longer, novelty is 0.5.
        novelty_memory: How many traces the default scorer remembers to tell what is new.
        novelty_ttl_s: Seconds after which it has forgotten a trace; None for when newer ones need
            the room.
        step_cap: Complexity counts at most this many steps; None counts all.
        disabled: Record nothing at all.
        registry_url: Registry that takes contributions; None sends nothing anywhere.
        api_key: Key for the registry; by default the one that `kp-langchain register` stored.
        agent_id: `kp:agent:<id>` written into traces; by default that of the registry's key.
        defaults: Policy for every domain.
        domains: Policies by domain name, over `defaults`.
        redaction: What is redacted besides what is always; see `Rules`.
        run_keys: What of a run's config is kept to find it by; see `RunKeySources`.
        max_text_chars: Longest text kept of one step's content, input or output, in characters.
        max_run_chars: Longest text kept of all steps of one run together, in characters.
        max_steps: Most steps kept of one run.
        max_open_runs: Most runs recorded at the same time.
        max_paused_runs: Most runs remembered while they wait for a human.
        paused_days: Days for which the store keeps what a run that waits for a human has recorded,
            redacted, so that another process can go on with it; 0 for not at all. At most
            `max_paused_runs` of them.
        max_queue: Most finished runs waiting to be scored.
        run_timeout_s: Seconds without an event after which an open run counts as abandoned.
        exit_timeout_s: Longest wait, in seconds, for unfinished work when the process ends.
        function_timeout_s: Longest wait, in seconds, for one call of a function of yours:
            `outcome`, `on_scored`, a scorer, and all that `redactor` does for one run.

    Raises:
        ConfigError: Something cannot be read or used. The message names, for each fault, the file,
            variable or argument, the key, the value, and what would be right. Or a domain's runs
            would be sent, and only their secrets redacted.
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
    embedding_baseline: _Baseline = Field(default=0.0, description=_BASELINE)
    latency_budget_ms: _Milliseconds = Field(default=100.0, description=_MILLISECONDS)
    novelty_memory: _Remembered = Field(
        default=1000, description=f"{_COUNT}, at most {_MOST_REMEMBERED}"
    )
    novelty_ttl_s: _Seconds | None = Field(default=None, description=_SECONDS)
    step_cap: _Count | None = Field(default=None, description=_COUNT)
    disabled: bool = Field(default=False, description="true or false")
    registry_url: str | None = Field(default=None, description="text such as https://host")
    api_key: SecretStr | None = Field(default=None, description="text such as kp_...")
    agent_id: str | None = Field(default=None, description="text such as kp:agent:<id>")
    defaults: DomainPolicy = Field(default=DomainPolicy(), description="a table: [defaults]")
    domains: dict[Annotated[str, Field(min_length=1)], DomainPolicy] = Field(
        default_factory=dict, description="a table for each domain: [domains.<name>]"
    )
    redaction: Rules = Field(default=Rules(), description="a table: [redaction]")
    run_keys: RunKeySources = Field(default=RunKeySources(), description="a table: [run_keys]")
    max_text_chars: _Count = Field(default=4000, description=_COUNT)
    max_run_chars: _Count = Field(default=200_000, description=_COUNT)
    max_steps: _Count = Field(default=1000, description=_COUNT)
    max_open_runs: _Count = Field(default=1000, description=_COUNT)
    max_paused_runs: _Count = Field(default=1000, description=_COUNT)
    paused_days: _Days = Field(default=7.0, description="days from 0 to 36500")
    max_queue: _Count = Field(default=1000, description=_COUNT)
    run_timeout_s: _Seconds = Field(default=3600.0, description=_SECONDS)
    exit_timeout_s: _Seconds = Field(default=10.0, description=_SECONDS)
    function_timeout_s: _Seconds = Field(default=10.0, description=_SECONDS)

    # What holds without the files that are not trusted, or why that cannot be used.
    _trusting: Settings | str | None = PrivateAttr(default=None)
    _origins: dict[tuple[str, str], str] = PrivateAttr(default_factory=dict)
    _key_registry: str | None = PrivateAttr(default=None)

    def __init__(self, **arguments: Any) -> None:
        arguments = {n: _plain(value) for n, value in arguments.items() if value is not None}
        files = _files.get()
        if files is None:
            files = read_files()
        faults: list[Any] = []
        try:
            environment = EnvSettingsSource(type(self))()
        except SettingsError as error:
            raise ConfigError(f"an environment variable cannot be read: {error}") from None
        below: list[_Layer] = [
            (_ENVIRONMENT, environment),
            *((file.name, file.values) for file in files),
        ]
        token = _below.set(below)
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            faults = error.errors(include_url=False)
        finally:
            _below.reset(token)
        given = [(f"argument {name}", {name: value}) for name, value in arguments.items()]
        layers = [*given, *below]
        if faults:
            # Outside the handler: pydantic's own error would show the values in the traceback.
            told = "".join(f"\n  {printable(_describe(fault, layers))}" for fault in faults)
            raise ConfigError(f"these settings cannot be used:{told}")
        self._origins = _policy_origins(layers)
        self._key_registry = _registry_beside_key(arguments, layers)
        if any(not file.standing.counts_whole and _has_policies(file) for file in files):
            whole = tuple(file for file in files if file.standing.counts_whole)
            try:
                self._trusting = self._of(whole, arguments)
            except ConfigError as error:
                self._trusting = str(error)
        self.refuse_leaks(["", *self.domains])
        self._warn_of_misspelt_names()

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
        return cls._of(read_files(text), {})

    @classmethod
    def _of(cls, files: tuple[ConfigFile, ...], arguments: Mapping[str, Any]) -> Settings:
        token = _files.set(files)
        try:
            return cls(**arguments)
        finally:
            _files.reset(token)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - read already
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say where settings come from, first one first."""
        return init_settings, *(_AsSpelt(settings_cls, values) for _, values in _below.get())

    @property
    def misspelt_domains(self) -> dict[str, str]:
        """The domains that have a policy here and are nearly built-in ones, with what they are."""
        near = {name: near_name(name, PROFILES) for name in self.domains}
        return {name: meant for name, meant in near.items() if meant is not None}

    def _warn_of_misspelt_names(self) -> None:
        """Say once what has no effect because of its name; a variable may be somebody else's."""
        for variable, meant in unknown_variables().items():
            if meant is not None:
                warn_once(
                    f"variable:{variable}",
                    "%s is no setting and has no effect; did you mean %s?",
                    variable,
                    meant,
                )
        for name, meant in self.misspelt_domains.items():
            warn_once(
                f"domain:{name}",
                "domain %s has a policy in the settings (%s), but only runs of exactly this name "
                "go by it; did you mean %s?",
                repr(name),
                f"domains.{name}",
                repr(meant),
            )

    @property
    def api_key_registry(self) -> str | None:
        """The URL of the registry that `api_key` belongs to: the one that came with it."""
        return self._key_registry or self.registry_url

    def policy_for(self, domain: str, over: DomainPolicy | None = None) -> DomainPolicy:
        """Return the policy of `domain`: `defaults`, with `domains[domain]` (exact name) over it.

        Its threshold is None where none was set: then the measured default of the gate holds.

        Args:
            domain: The domain's name.
            over: A policy to be put over that.

        Raises:
            ConfigError: The runs may be sent, and without a file that is not trusted the settings
                cannot be used. Settings and handlers find that out when they are made.
        """
        policy = self._merged(domain, over)
        if self._trusting is None or policy.visibility == "private":
            return policy
        if isinstance(self._trusting, str):
            raise ConfigError(f"without what a file says that is not trusted, {self._trusting}")
        # What a folder says must not decide what of another's runs is sent.
        trusting = self._trusting.policy_for(domain, over)
        if trusting != policy:
            warn_once(
                f"policy of {domain}",
                "runs of %s may be sent, so what a file that is not trusted says of their policy "
                "does not count; see kp-langchain doctor",
                f"domain {domain}" if domain else "any domain",
            )
        return trusting

    def _merged(self, domain: str, over: DomainPolicy | None) -> DomainPolicy:
        policy = self.defaults
        if domain in self.domains:
            policy = self.domains[domain].merged_over(policy)
        return policy if over is None else over.merged_over(policy)

    def refuse_leaks(
        self,
        domains: Iterable[str],
        over: Callable[[str], DomainPolicy | None] = lambda _: None,
    ) -> None:
        """Refuse policies under which runs would be sent of which only secrets are redacted.

        Args:
            domains: Names of domains; "" stands for all that are not named in the settings.
            over: Gives the policy that the argument `policy` puts over a domain's.

        Raises:
            ConfigError: There is one; the message says where both parts of it come from.
        """
        for domain in domains:
            above = over(domain)
            policy = self.policy_for(domain, above)
            if policy.stays_local and policy.visibility != "private":
                given = above.given() if above else {}
                level, visibility = (
                    "argument policy" if field in given else self._origin(domain, field)
                    for field in ("privacy_level", "visibility")
                )
                raise ConfigError(
                    f"{f'domain {domain!r}' if domain else 'defaults'}: privacy_level = 'private' "
                    f"({level}) leaves e-mail addresses and the like in a run, so it stays local, "
                    f"but visibility = {policy.visibility!r} ({visibility}) sends it to the "
                    "registry, where anybody can read it; set visibility to 'private', or "
                    "privacy_level to 'aggregated'"
                )

    def _origin(self, domain: str, field: str) -> str:
        trusting = self._trusting if isinstance(self._trusting, Settings) else self
        origins = trusting._origins  # noqa: SLF001 - of this class
        default = origins.get(("", field), "the default")
        return origins.get((domain, field), default) if domain else default


class _AsSpelt(PydanticBaseSettingsSource):
    """A layer whose keys count in their own spelling alone.

    Pydantic's source for this takes `REGISTRY_URL` for `registry_url`. What a file may not say is
    looked for by name, so a key of another spelling has to be an unknown one.
    """

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return a field's value and the key it is under; never one that is still to be parsed."""
        del field
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return all that the layer says."""
        return dict(self._values)


_Layer = tuple[str, Mapping[str, Any]]
_current: tuple[object, Settings] | None = None
_files: ContextVar[tuple[ConfigFile, ...] | None] = ContextVar("files", default=None)
_below: ContextVar[Sequence[_Layer]] = ContextVar("below", default=())


def _sources() -> object:
    """Everything that `Settings()` depends on, to be compared."""
    variables = [item for item in os.environ.items() if item[0].upper().startswith(_PREFIX)]
    return places(), variables


def unknown_variables() -> dict[str, str | None]:
    """Return the environment variables `KP_*` that are no settings.

    Returns:
        By name, the variable that was probably meant; None for one that is somebody else's.
    """
    nested = [name for name, field in Settings.model_fields.items() if _is_table(field)]
    prefixes = tuple(f"{_PREFIX}{name.upper()}__" for name in nested)
    known = {FILE_VARIABLE, *(f"{_PREFIX}{name.upper()}" for name in Settings.model_fields)}
    unknown = [
        name
        for name, value in os.environ.items()
        if name.upper().startswith(_PREFIX)
        and value  # an empty one counts as not set
        and name.upper() not in known
        and not name.upper().startswith(prefixes)
    ]
    if not unknown:
        return {}
    # Without the prefix, which all have in common; some leave out what a name is nested in.
    meant = {name.removeprefix(_PREFIX): name for name in known}
    for field in DomainPolicy.model_fields:
        meant[field.upper()] = f"{_PREFIX}DEFAULTS__{field.upper()}"
        for table in ("DEFAULTS", *(f"DOMAINS__{name.upper()}" for name in PROFILES)):
            meant[f"{table}__{field.upper()}"] = f"{_PREFIX}{table}__{field.upper()}"
    for field in Rules.model_fields:
        meant[f"REDACTION__{field.upper()}"] = f"{_PREFIX}REDACTION__{field.upper()}"
    for field in RunKeySources.model_fields:
        meant[f"RUN_KEYS__{field.upper()}"] = f"{_PREFIX}RUN_KEYS__{field.upper()}"
    return {name: meant.get(_meant_by(name, meant)) for name in unknown}


def _meant_by(variable: str, known: Iterable[str]) -> str:
    name = variable[len(_PREFIX) :].upper()
    return name if name in known else near_name(name, known, alike_min=_VARIABLES_ALIKE_MIN) or ""


def _is_table(field: FieldInfo) -> bool:
    return isinstance(field.get_default(call_default_factory=True), BaseModel | dict)


def _has_policies(file: ConfigFile) -> bool:
    return "defaults" in file.values or "domains" in file.values


def _registry_beside_key(arguments: Mapping[str, Any], layers: Iterable[_Layer]) -> str | None:
    """The registry that the first layer with a key says, too."""
    for values in (arguments, *(values for _, values in layers)):
        if values.get("api_key"):
            registry = values.get("registry_url")
            return registry if isinstance(registry, str) else None
    return None


def _policy_origins(layers: Iterable[_Layer]) -> dict[tuple[str, str], str]:
    """Where the fields of each domain's policy, and of "" for the defaults, come from."""
    origins: dict[tuple[str, str], str] = {}
    for origin, values in layers:
        domains = values.get("domains") or {}
        for domain, policy in (("", values.get("defaults") or {}), *domains.items()):
            for field, value in policy.items():
                if value is not None:
                    key = f"{f'domains.{domain}' if domain else 'defaults'}.{field}"
                    origins.setdefault((domain, field), f"{origin}: {key}")
    return origins


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
    if location[0] == "run_keys" and len(location) > 1:
        within, fields = location[1:], RunKeySources.model_fields
    field = str(within[0])
    if location[0] == "redaction" and fault["type"] in ("value_error", "extra_forbidden"):
        said = fault["msg"].removeprefix("Value error, ")
        others = f"; known here: {', '.join(Rules.model_fields)}"
        return f"{place}: {said}{others if fault['type'] == 'extra_forbidden' else ''}"
    if fault["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = list(fields) if len(within) == 1 else _WEIGHTS
        near = difflib.get_close_matches(str(location[-1]).lower(), known, n=1)
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
