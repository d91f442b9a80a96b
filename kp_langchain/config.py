"""Settings from arguments, environment variables (`KP_*`) and configuration files, in this order.

[defaults]                  # for every domain
privacy_level = "private"

[domains.finance]
threshold = 0.7             # or KP_DOMAINS__FINANCE__THRESHOLD=0.7
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
)
from pydantic_settings import EnvSettingsSource, NoDecode, SettingsError

from kp_langchain._logging import warn_once
from kp_langchain.config_files import (
    FILE_VARIABLE,
    ConfigFile,
    candidate_files,
    config_file,
    read_files,
)
from kp_langchain.errors import ConfigError
from kp_langchain.files import data_dir
from kp_langchain.policy import PROFILES, WEIGHT_NAMES, DomainPolicy, Number, refuse_bool
from kp_langchain.prices import ModelPrice, Prices
from kp_langchain.redaction.custom_rules import Rules
from kp_langchain.text import near_key, near_name, printable

__all__ = ["DomainPolicy", "Settings", "config_file", "data_dir", "mask_password"]

Layer = tuple[str, Mapping[str, Any]]
"""A source of settings: its name in messages, and the settings that it gives."""

_ARGUMENT, _ENVIRONMENT = "argument", "environment variable"
_PREFIX = "KP_"
CAPTURE_VARIABLES = ("KP_CAPTURE", "KP_DOMAIN")
"""Read by the process-wide capture; no settings."""

_YEAR_S = 365 * 24 * 3600.0  # a timeout beyond that may be more than the operating system accepts
_DAY_MS = 24 * 3600 * 1000.0
_MOST_REMEMBERED = 1_000_000  # such vectors take 1.7 GB
_LONGEST_VALUE_CHARS = 120


def _split(value: object) -> object:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(refuse_bool), Field(gt=0)]
Seconds = Annotated[Number, Field(gt=0, le=_YEAR_S)]
# In the environment separated by commas, because a list there would have to be JSON.
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


class Settings(BaseModel):
    """All settings. None counts as not given.

    Constructing it reads all sources. An argument comes first, then the environment variable
    `KP_<FIELD>` (nested: `KP_DOMAINS__FINANCE__THRESHOLD`, `KP_DEFAULTS__KEEP`; an empty one counts
    as not set), then the file that `KP_CONFIG` names, which must exist, or else `kp.toml` in the
    working folder, then `kp.toml` in the user's configuration folder, then the default. A path in a
    file is relative to that file.

    Of a `kp.toml` in the working folder, which may be another person's, only the keys in
    `config_files.HARMLESS_KEYS` count; the others are ignored, with a warning. So are its policies
    for domains whose runs may be sent. Its redaction rules are added to the user's.

    Attributes:
        database_url: `postgresql://...`, `sqlite:///path` or a path; None for a SQLite file in the
            user's data folder.
        embedding_model: Folder or name of an embedding model; None for all-MiniLM-L6-v2.
        embedding_baseline: Cosine similarity of unrelated texts under that model, 0 to below 1;
            novelty is measured from there.
        latency_budget_ms: Milliseconds that scoring one run may take. A handler's runs first
            wait for a model that is loading, up to 30 s from the first run on; if that takes
            longer, novelty is 0.5.
        novelty_memory: How many traces the default scorer remembers to measure novelty.
        step_cap: Complexity counts at most this many steps; None counts all.
        disabled: Record nothing at all.
        registry_url: Registry that receives contributions; None sends nothing anywhere.
        api_key: Key for the registry; by default that which `registry register` has stored.
        agent_id: `kp:agent:<id>` written into traces; by default that of the registry's key.
        defaults: Policy for every domain.
        domains: Policies by domain name; each inherits from `defaults`.
        redaction: What is redacted in addition to the built-in rules; see `Rules`.
        prices: What models cost, by their names; see `ModelPrice`.
        send_scores_to: Names of tools that are sent the score of each run: `langsmith`, `langfuse`,
            `phoenix`, `opik`, `mlflow`, `opentelemetry`. In the environment separated by commas.
        max_text_chars: Longest text kept of one step's content, input or output, in characters.
        max_run_chars: Longest text kept of all steps of one run together, in characters.
        max_steps: Largest number of events kept of one run: the starts, ends and errors of its
            calls. Those in the middle are dropped and counted.
        max_open_runs: Largest number of runs recorded at the same time. A further one makes the run
            that has been silent for longest count as abandoned. An open run takes 8 KB, and 25 KB
            after ten calls that returned 1,000 characters each.
        max_paused_runs: Largest number of runs remembered while they wait for a human.
        paused_days: Days for which the store keeps the redacted recording of a run that waits for a
            human, so that another process can resume it; 0 for not at all. At most
            `max_paused_runs` of them.
        max_queue: Largest number of finished runs waiting to be scored.
        run_timeout_s: Seconds without an event after which an open run counts as abandoned.
        exit_timeout_s: Longest wait, in seconds, for unfinished work when the process ends.
        function_timeout_s: Longest wait, in seconds, for one call of a user's function: `outcome`,
            `on_scored`, a scorer, or all calls of `redactor` for one run.

    Raises:
        ConfigError: Something cannot be read or used. The message names, for each fault, the file,
            variable or argument, the key, the value, and what would be right. Or the runs of a
            domain would be sent with only their secrets redacted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    database_url: str | None = Field(default=None, repr=False)
    embedding_model: str | None = None
    embedding_baseline: Number = Field(default=0.0, ge=0, lt=1)
    latency_budget_ms: Number = Field(default=100.0, gt=0, le=_DAY_MS)
    novelty_memory: Count = Field(default=1000, le=_MOST_REMEMBERED)
    step_cap: Count | None = None
    disabled: bool = False
    registry_url: str | None = None
    api_key: SecretStr | None = None
    agent_id: str | None = None
    defaults: DomainPolicy = DomainPolicy()
    domains: dict[Annotated[str, Field(min_length=1)], DomainPolicy] = Field(default_factory=dict)
    redaction: Rules = Rules()
    prices: dict[Annotated[str, Field(min_length=1)], ModelPrice] = Field(default_factory=dict)
    send_scores_to: Names = ()
    max_text_chars: Count = 4000
    max_run_chars: Count = 200_000
    max_steps: Count = 1000
    max_open_runs: Count = 1000
    max_paused_runs: Count = 1000
    paused_days: Number = Field(default=7.0, ge=0, le=36_500)
    max_queue: Count = 1000
    run_timeout_s: Seconds = 3600.0
    exit_timeout_s: Seconds = 10.0
    function_timeout_s: Seconds = 10.0

    # The settings without the working folder's file; None if no policy is from that file.
    _without_folder: Settings | None = PrivateAttr(default=None)
    _layers: list[Layer] = PrivateAttr(default_factory=list)

    def __init__(self, files: tuple[ConfigFile, ...] | None = None, /, **arguments: Any) -> None:
        arguments = {n: _plain(value) for n, value in arguments.items() if value is not None}
        files = read_files(type(self).model_fields) if files is None else files
        layers: list[Layer] = [
            (_ARGUMENT, arguments),
            (_ENVIRONMENT, _environment(type(self))),
            *((file.name, file.values) for file in files),
        ]
        merged: dict[str, Any] = {}
        for _, values in reversed(layers):
            merged = _merged(values, merged)
        faults: list[Any] = []
        try:
            super().__init__(**merged)
        except ValidationError as error:
            faults = error.errors(include_url=False)
        if faults:
            # Outside the handler: pydantic's own error would show the values in the traceback.
            lines = "".join(f"\n  {printable(_describe(fault, layers))}" for fault in faults)
            raise ConfigError(f"these settings cannot be used:{lines}")
        self._layers = layers
        own_files = tuple(file for file in files if file.origin.counts_whole)
        if any(
            {"defaults", "domains"} & file.values.keys() for file in files if file not in own_files
        ):
            self._without_folder = type(self)(own_files, **arguments)
        self.refuse_leaks(["", *self.domains])
        for variable, near in unknown_variables().items():
            if near is not None:
                warn_once(
                    f"variable:{variable}",
                    "%s is not a setting and has no effect; did you mean %s?",
                    variable,
                    near,
                )

    @classmethod
    def current(cls) -> Settings:
        """Return the settings without arguments, read again only if a source has changed.

        Reading everything takes half a millisecond, too long for a program that makes a handler for
        each run.

        Raises:
            ConfigError: As for the constructor.
        """
        global _current
        variables = [one for one in os.environ.items() if one[0].upper().startswith(_PREFIX)]
        state, current = (candidate_files(), variables), _current
        if current is None or current[0] != state:
            current = _current = (state, cls())
        return current[1]

    @classmethod
    def supposing(cls, text: str, path: Path | None = None) -> Settings:
        """Return the settings without arguments as if a configuration file contained `text`.

        Args:
            text: The content to suppose.
            path: The file, one of those that are read; by default `config_file()`.

        Raises:
            ConfigError: As for the constructor.
        """
        return cls(read_files(cls.model_fields, supposed=(path or config_file(), text)))

    @property
    def api_key_registry(self) -> str | None:
        """The URL of the registry that `api_key` belongs to; its own source may give another."""
        with_key = next((values for _, values in self._layers if values.get("api_key")), {})
        registry = with_key.get("registry_url")
        return registry if isinstance(registry, str) else self.registry_url

    def without_secrets(self) -> Settings:
        """Return a copy without the key and addresses, which may travel to other machines."""
        secrets = {"api_key": None, "registry_url": None, "database_url": None}
        plain = self.model_copy(update=secrets)
        plain._layers = []  # noqa: SLF001 - where each value came from, the key included
        inner = self._without_folder
        plain._without_folder = None if inner is None else inner.without_secrets()  # noqa: SLF001
        return plain

    def policy_for(self, domain: str, over: DomainPolicy | None = None) -> DomainPolicy:
        """Return the policy of `domain` (exact name), with what it inherits from `defaults`.

        Its threshold is None if none was set: the gate then applies its built-in default.

        Args:
            domain: The domain's name.
            over: A policy that takes precedence over both.
        """
        policy = self.defaults
        if domain in self.domains:
            policy = self.domains[domain].merged_over(policy)
        policy = policy if over is None else over.merged_over(policy)
        if self._without_folder is None or policy.visibility == "private":
            return policy
        # A folder's file must not decide which runs of another owner are sent.
        own_policy = self._without_folder.policy_for(domain, over)
        if own_policy != policy:
            warn_once(
                f"policy of {domain}",
                "runs of %s may be sent, so the policy for them in a kp.toml that may be another "
                "person's is ignored; put it into your own file, or name that one in KP_CONFIG",
                f"domain {domain}" if domain else "any domain",
            )
        return own_policy

    def refuse_leaks(
        self,
        domains: Iterable[str],
        over: Callable[[str], DomainPolicy | None] = lambda _: None,
    ) -> None:
        """Refuse policies that send runs with only their secrets redacted.

        Args:
            domains: Names of domains; "" stands for all that the settings do not name.
            over: Returns, for a domain, a policy that takes precedence over that of the settings.

        Raises:
            ConfigError: There is one.
        """
        for domain in domains:
            policy = self.policy_for(domain, over(domain))
            if policy.stays_local and policy.visibility != "private":
                raise ConfigError(
                    f"{f'domain {domain!r}' if domain else 'defaults'}: privacy_level = 'private' "
                    "leaves e-mail addresses and the like in a run, so it stays local, but "
                    f"visibility = {policy.visibility!r} sends it to the registry, where anyone "
                    "can read it; set visibility to 'private', or privacy_level to 'aggregated'"
                )


# The settings without arguments, with the state of the sources that they were read from.
_current: tuple[object, Settings] | None = None


def current_prices(*, with_package: bool = True) -> Prices:
    """Return the prices of the settings; none if the settings cannot be used.

    Args:
        with_package: Whether genai-prices, if it is installed, is asked about the other models.
    """
    try:
        return Prices(Settings.current().prices, with_package=with_package)
    except ConfigError:  # a command on a named store goes on; it must not show another's prices
        return Prices(with_package=False)


_TABLES: dict[str, type[BaseModel]] = {
    "defaults": DomainPolicy,
    "domains": DomainPolicy,
    "redaction": Rules,
    "prices": ModelPrice,
}


def _environment(settings: type[Settings]) -> dict[str, Any]:
    """Return what the environment sets, its tables put together."""
    # Of the class, which need not be one of pydantic-settings, it reads the fields alone.
    source = EnvSettingsSource(
        settings,  # type: ignore[arg-type]
        case_sensitive=False,
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(f"an environment variable cannot be read: {error}") from None


def _plain(value: Any) -> Any:
    """Return policies within an argument as dicts of their fields, so that they merge as tables."""
    if isinstance(value, DomainPolicy):
        return value.given()
    if isinstance(value, Mapping):
        return {
            key: item.given() if isinstance(item, DomainPolicy) else item
            for key, item in value.items()
        }
    return value


def _merged(over: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over` in place of its own, table by table."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        are_tables = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _merged(value, below) if are_tables else value  # type: ignore[arg-type]
    return merged


# ------------------------------------------------------------------ messages


def _describe(fault: Any, layers: Iterable[Layer]) -> str:
    """Return the message about a fault that pydantic found: where, the value, what is wrong."""
    location = tuple(map(str, fault["loc"]))
    origin = max(layers, key=lambda layer: _depth(layer[1], fault["loc"]))[0]
    if origin == _ARGUMENT:
        origin = f"{origin} {location[0]}"
    elif origin == _ENVIRONMENT:
        origin = f"{origin} {_PREFIX}{'__'.join(location).upper()}"
    place = f"{origin}: {'.'.join(location)} = {_show(location[-1], fault['input'])}"
    if fault["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{place}: {fault['msg'].removeprefix('Value error, ')}"
    models: tuple[type[BaseModel], ...] = (Settings, DomainPolicy, Rules, ModelPrice)
    if location[0] == "prices" and isinstance(fault["input"], Mapping):
        return f'{place}: quote the name of a model that has a dot: [prices."gpt-4.1"]'
    if len(location) == 1 and location[0] in DomainPolicy.model_fields:
        return f"{place}: a key of a domain: write it under [defaults] or [domains.NAME]"
    near = near_key(
        location[-1], [*WEIGHT_NAMES, *(key for one in models for key in one.model_fields)]
    )
    return f"{place}: unknown key" + (f"; did you mean {near}?" if near else "")


def _depth(values: object, location: Iterable[Any]) -> int:
    """Return how far a location can be followed into nested values."""
    depth = 0
    for part in location:
        values = values.get(part) if isinstance(values, Mapping) else None
        if values is None:
            break
        depth += 1
    return depth


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


# ------------------------------------------------------------------ names that have no effect


def unknown_variables() -> dict[str, str | None]:
    """Return the environment variables `KP_*` that are not settings.

    Returns:
        By name, the variable that was probably meant; None for one that may belong to another
        program.
    """
    known = {FILE_VARIABLE, *CAPTURE_VARIABLES}
    known |= {f"{_PREFIX}{name}".upper() for name in Settings.model_fields}
    tables: dict[str, type[BaseModel]] = {
        **_TABLES,
        **{f"domains__{domain}": DomainPolicy for domain in PROFILES},
    }
    keys = {
        f"{_PREFIX}{table}__{key}".upper()
        for table, model in tables.items()
        for key in model.model_fields
    }
    prefixes = tuple(f"{_PREFIX}{table}__".upper() for table in _TABLES)
    return {
        name: near_name(name.upper(), known | keys)
        for name, value in os.environ.items()
        if value  # an empty variable counts as not set
        and name.upper().startswith(_PREFIX)
        and name.upper() not in known
        and not name.upper().startswith(prefixes)
    }


def warn_of_domain(domain: str, choices: Iterable[str]) -> None:
    """Warn once about the unknown domain of a run, if its name is nearly a known one.

    Args:
        domain: The domain's name.
        choices: Names of domains with weights, a threshold or a policy.
    """
    near = near_name(domain, choices)
    if near is not None:
        warn_once(
            f"domain:{domain}",
            "domain %s has no weights, threshold or policy of its own, so the defaults apply; "
            "did you mean %s? Names of domains must match exactly",
            repr(domain),
            repr(near),
        )
