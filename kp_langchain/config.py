"""Settings from arguments, environment variables (`KP_*`) and configuration files, in this order.

[defaults]                  # for every domain
privacy_level = "private"

[domains.finance]
threshold = 0.7             # or KP_DOMAINS__FINANCE__THRESHOLD=0.7
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from kp_langchain import config_faults
from kp_langchain._logging import warn_once
from kp_langchain.config_faults import ENVIRONMENT, PREFIX, Layer, mask_password
from kp_langchain.config_files import ConfigFile, config_file, places, read_files
from kp_langchain.config_types import (
    COUNT,
    SECONDS,
    Baseline,
    Count,
    Days,
    Milliseconds,
    Names,
    Remembered,
    Seconds,
)
from kp_langchain.domain_policy import DomainPolicy
from kp_langchain.errors import ConfigError
from kp_langchain.folders import data_dir
from kp_langchain.near_names import near_name
from kp_langchain.redaction.custom_rules import Rules
from kp_langchain.run_keys import RunKeySources
from kp_langchain.weights import PROFILES

__all__ = ["DomainPolicy", "Settings", "config_file", "data_dir", "mask_password"]


class Settings(BaseSettings):
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
        novelty_ttl_s: Seconds after which it forgets a trace; None for when newer ones need room.
        novelty_scope: What a trace is compared with: those of `all` domains, or of its `domain`.
        step_cap: Complexity counts at most this many steps; None counts all.
        disabled: Record nothing at all.
        registry_url: Registry that receives contributions; None sends nothing anywhere.
        api_key: Key for the registry; by default that which `registry register` has stored.
        agent_id: `kp:agent:<id>` written into traces; by default that of the registry's key.
        defaults: Policy for every domain.
        domains: Policies by domain name; each inherits from `defaults`.
        redaction: What is redacted in addition to the built-in rules; see `Rules`.
        run_keys: Which keys of a run's config are kept to find it by; see `RunKeySources`.
        send_scores_to: Names of tools that are sent the score of each run: `langsmith`, `langfuse`,
            `phoenix`, `opik`, `mlflow`, `opentelemetry`. In the environment separated by commas.
        max_text_chars: Longest text kept of one step's content, input or output, in characters.
        max_run_chars: Longest text kept of all steps of one run together, in characters.
        max_steps: Largest number of events kept of one run: the starts, ends and errors of its
            calls. Those in the middle are dropped and counted.
        max_open_runs: Largest number of runs recorded at the same time. A further one makes the run
            that has been silent for longest count as abandoned. An open run takes 5 KB, and 20 KB
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

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
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
    embedding_baseline: Baseline = 0.0
    latency_budget_ms: Milliseconds = 100.0
    novelty_memory: Remembered = 1000
    novelty_ttl_s: Seconds | None = Field(default=None, description=SECONDS)
    novelty_scope: Literal["all", "domain"] = Field(default="all", description="'all' or 'domain'")
    step_cap: Count | None = Field(default=None, description=COUNT)
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
    send_scores_to: Names = Field(default=(), description='a list of tools such as ["langsmith"]')
    max_text_chars: Count = 4000
    max_run_chars: Count = 200_000
    max_steps: Count = 1000
    max_open_runs: Count = 1000
    max_paused_runs: Count = 1000
    paused_days: Days = 7.0
    max_queue: Count = 1000
    run_timeout_s: Seconds = 3600.0
    exit_timeout_s: Seconds = 10.0
    function_timeout_s: Seconds = 10.0

    # The settings without the working folder's file, or why those cannot be used; None if no policy
    # is from that file.
    _without_folder: Settings | str | None = PrivateAttr(default=None)
    _origins: dict[tuple[str, str], str] = PrivateAttr(default_factory=dict)
    _key_registry: str | None = PrivateAttr(default=None)

    def __init__(self, **arguments: Any) -> None:
        arguments = {n: _plain(value) for n, value in arguments.items() if value is not None}
        files = _files.get()
        if files is None:
            files = read_files(type(self).model_fields)
        sources: list[Layer] = [
            (ENVIRONMENT, _environment(type(self))),
            *((file.name, file.values) for file in files),
        ]
        faults: list[Any] = []
        token = _sources.set(sources)
        try:
            super().__init__(**arguments)
        except ValidationError as error:
            faults = error.errors(include_url=False)
        finally:
            _sources.reset(token)
        layers = [*((f"argument {name}", {name: arguments[name]}) for name in arguments), *sources]
        if faults:
            # Outside the handler: pydantic's own error would show the values in the traceback.
            raise ConfigError(config_faults.describe_faults(faults, layers, type(self)))
        self._origins = config_faults.policy_origins(layers)
        self._key_registry = _registry_beside_key(arguments, layers)
        if any(not file.origin.counts_whole and _has_policies(file) for file in files):
            self._without_folder = self._read_without_folder(files, arguments)
        self.refuse_leaks(["", *self.domains])
        config_faults.warn_of_names(unknown_variables(), self.misspelt_domains)

    @classmethod
    def current(cls) -> Settings:
        """Return the settings without arguments, read again only if a source has changed.

        Reading everything takes half a millisecond, too long for a program that makes a handler for
        each run.

        Raises:
            ConfigError: As for the constructor.
        """
        global _current
        state, current = _source_state(), _current
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
        files = read_files(cls.model_fields, supposed=(path or config_file(), text))
        return cls._of(files, {})

    @classmethod
    def _of(cls, files: tuple[ConfigFile, ...], arguments: Mapping[str, Any]) -> Settings:
        token = _files.set(files)
        try:
            return cls(**arguments)
        finally:
            _files.reset(token)

    @classmethod
    def _read_without_folder(
        cls, files: tuple[ConfigFile, ...], arguments: Mapping[str, Any]
    ) -> Settings | str:
        """Return the settings of the files that count as a whole, or why they are invalid."""
        try:
            return cls._of(tuple(file for file in files if file.origin.counts_whole), arguments)
        except ConfigError as error:
            return str(error)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - already read
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings, the one with precedence first."""
        return init_settings, *(_ExactKeys(settings_cls, values) for _, values in _sources.get())

    @property
    def misspelt_domains(self) -> dict[str, str]:
        """The domains here that look like misspelt built-in ones, each with the built-in one."""
        near = {name: near_name(name, PROFILES) for name in self.domains}
        return {name: domain for name, domain in near.items() if domain is not None}

    @property
    def api_key_registry(self) -> str | None:
        """The URL of the registry that `api_key` belongs to; its own source may give another."""
        return self._key_registry or self.registry_url

    def policy_for(self, domain: str, over: DomainPolicy | None = None) -> DomainPolicy:
        """Return the policy of `domain` (exact name), with what it inherits from `defaults`.

        Its threshold is None if none was set: the gate then applies its built-in default.

        Args:
            domain: The domain's name.
            over: A policy that takes precedence over both.

        Raises:
            ConfigError: The runs may be sent, and the settings are invalid without the working
                folder's file. Constructing settings or a handler raises this first.
        """
        policy = self._merge(domain, over)
        if self._without_folder is None or policy.visibility == "private":
            return policy
        if isinstance(self._without_folder, str):
            raise ConfigError(
                f"without a kp.toml that may be another person's, {self._without_folder}"
            )
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

    def _merge(self, domain: str, over: DomainPolicy | None) -> DomainPolicy:
        policy = self.defaults
        if domain in self.domains:
            policy = self.domains[domain].merged_over(policy)
        return policy if over is None else over.merged_over(policy)

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
            ConfigError: There is one; the message says where its two parts come from.
        """
        for domain in domains:
            above = over(domain)
            policy = self.policy_for(domain, above)
            if policy.stays_local and policy.visibility != "private":
                fields = above.given() if above else {}
                privacy_origin, visibility_origin = (
                    "argument policy" if field in fields else self._origin(domain, field)
                    for field in ("privacy_level", "visibility")
                )
                raise ConfigError(
                    config_faults.leak_message(
                        domain,
                        policy.visibility,
                        privacy_origin=privacy_origin,
                        visibility_origin=visibility_origin,
                    )
                )

    def _origin(self, domain: str, field: str) -> str:
        own = self._without_folder
        origins = (own if isinstance(own, Settings) else self)._origins  # noqa: SLF001
        default = origins.get(("", field), "the default")
        return origins.get((domain, field), default) if domain else default


class _ExactKeys(PydanticBaseSettingsSource):
    """A source whose keys are case-sensitive.

    Pydantic's own source reads `REGISTRY_URL` as `registry_url`. The keys that do not count in a
    working folder's file are looked up by name, so another spelling has to be an unknown key.
    """

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return a field's value, its key, and whether the value is still to be parsed: never."""
        del field
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return all values of the source."""
        return dict(self._values)


# The settings without arguments, with the state of the sources that they were read from.
_current: tuple[object, Settings] | None = None
# Arguments of `Settings.__init__` that pydantic gives no way to pass.
_files: ContextVar[tuple[ConfigFile, ...] | None] = ContextVar("files", default=None)
_sources: ContextVar[Sequence[Layer]] = ContextVar("sources", default=())


def _source_state() -> object:
    """Return everything that `Settings()` depends on, for comparison."""
    variables = [item for item in os.environ.items() if item[0].upper().startswith(PREFIX)]
    return places(), variables


def unknown_variables() -> dict[str, str | None]:
    """Return the environment variables `KP_*` that are not settings.

    Returns:
        By name, the variable that was probably meant; None for one that may belong to another
        program.
    """
    return config_faults.unknown_variables(Settings, PROFILES)


def _environment(settings: type[BaseSettings]) -> dict[str, Any]:
    try:
        return EnvSettingsSource(settings)()
    except SettingsError as error:
        raise ConfigError(f"an environment variable cannot be read: {error}") from None


def _has_policies(file: ConfigFile) -> bool:
    return "defaults" in file.values or "domains" in file.values


def _registry_beside_key(arguments: Mapping[str, Any], layers: Iterable[Layer]) -> str | None:
    """Return the registry that the first source with a key gives as well."""
    for values in (arguments, *(values for _, values in layers)):
        if values.get("api_key"):
            registry = values.get("registry_url")
            return registry if isinstance(registry, str) else None
    return None


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
