"""The arguments of `KPCallbackHandler`: checked, with errors that name them, and resolved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import iscoroutinefunction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.agent_id import check_agent_id, redact_agent_id
from kp_langchain.config import DomainPolicy, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.recording.safe_reads import clean
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore, default_store
from kp_langchain.weights import PROFILES

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.outcome import OutcomeFunction, Verifier
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.registry import Registry

_MAX_VERIFIER_S = 3600
_FUNCTIONS = ("outcome", "on_scored", "objective", "redactor")


class Default(Enum):
    """Stands for "as the settings say" in arguments for which None has a meaning."""

    STORE = "the store of the settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The arguments of `KPCallbackHandler`, unresolved; its docstring explains them."""

    domain: str = "default"
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None = None
    scorer: Scorer | None = None
    store: TraceStore | str | Path | Default | None = Default.STORE
    registry: Registry | str | None = None
    outcome: OutcomeFunction | None = None
    verifiers: Sequence[Verifier] = ()
    verifier_timeout_s: float = 10.0
    agent_id: str | None = None
    on_scored: Callable[[ScoredTrace], object] | None = None
    objective: Callable[[Any], str | None] | None = None
    redactor: Callable[[str], str] | None = None
    send_scores_to: Sequence[str | ScoreReceiver] | None = None

    def check(self) -> None:
        """Refuse arguments that cannot be used.

        Raises:
            ConfigError: One cannot be used; the message names it, its value, and what would be
                right.
        """
        _check_domain(self.domain)
        for name in _FUNCTIONS:
            function = getattr(self, name)
            if function is not None and (not callable(function) or iscoroutinefunction(function)):
                raise ConfigError(
                    f"{name} is {function!r}; give a function (not an async one, it is called on "
                    "a worker thread) or leave it out"
                )
        _check_verifiers(self.verifiers, self.verifier_timeout_s)
        scorer: object = self.scorer
        if scorer is not None and (
            isinstance(scorer, type) or not callable(getattr(scorer, "evaluate", None))
        ):
            raise ConfigError(f"scorer is {scorer!r}; give a Scorer or leave it out")
        agent_id: object = self.agent_id
        if agent_id is not None and not isinstance(agent_id, str):
            raise ConfigError(f"agent_id is {agent_id!r}; give a text such as 'kp:agent:me'")
        receivers: object = self.send_scores_to
        if receivers is not None and not isinstance(receivers, (list, tuple)):
            raise ConfigError(
                f"send_scores_to is {receivers!r}; give a list such as ['langsmith'], or leave it "
                "out"
            )

    def for_other_process(self, store: TraceStore | None) -> dict[str, Any]:
        """Return the arguments as they go to another process, by name.

        Args:
            store: What the argument of that name stands for in this process.
        """
        arguments = {name: getattr(self, name) for name in self.__slots__}
        # A relative path means another file in another working folder.
        is_path = isinstance(self.store, (str, Path))
        return arguments | ({"store": store} if is_path else {})


def _check_domain(domain: object) -> None:
    if not isinstance(domain, str) or not domain.strip() or clean(domain) != domain:
        raise ConfigError(f"domain is {domain!r}; give a non-empty text such as 'finance'")


def _check_verifiers(verifiers: object, timeout_s: object) -> None:
    if not isinstance(verifiers, (list, tuple)) or not all(
        callable(one) and not isinstance(one, type) for one in verifiers
    ):
        raise ConfigError(
            f"verifiers is {verifiers!r}; give a list of functions, each of one FinishedRun"
        )
    if (
        isinstance(timeout_s, bool)
        or not isinstance(timeout_s, (int, float))
        or not 0 < timeout_s <= _MAX_VERIFIER_S
    ):
        raise ConfigError(
            f"verifier_timeout_s is {timeout_s!r}; give seconds, more than 0 and at most "
            f"{_MAX_VERIFIER_S}"
        )


def never_raising(objective: Callable[[Any], str | None]) -> Callable[[Any], str]:
    """Wrap the user's `objective`: never raise, and return "" unless it returns a text."""

    def ask(inputs: Any) -> str:
        try:
            text = objective(inputs)
        except Exception as error:  # noqa: BLE001 - the user's function
            warn_once(
                f"objective:{type(error).__name__}",
                "the objective function raised %s; the usual places are searched instead",
                describe_error(error),
            )
            return ""
        return str.strip(text) if isinstance(text, str) else ""

    return ask


def domains(
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None, scorer: object, settings: Settings
) -> frozenset[str]:
    """Return the names of the domains with weights or a policy of their own."""
    policy_domains = policy if isinstance(policy, Mapping) else ()
    profiles = scorer.profiles if isinstance(scorer, Scorer) else PROFILES
    return frozenset(chain(PROFILES, profiles, settings.domains, policy_domains))


def policies(
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None, settings: Settings
) -> Callable[[str], DomainPolicy]:
    """Return the function that gives a domain's policy: the argument's over the settings'.

    Raises:
        ConfigError: The argument is not a policy, or a policy would send runs that are redacted
            too little.
    """
    if policy is None:
        return settings.policy_for
    override: Callable[[str], DomainPolicy | None]
    if isinstance(policy, DomainPolicy):
        one = policy
        settings.refuse_leaks(["", *settings.domains], override := lambda _: one)
        return lambda domain: settings.policy_for(domain, override(domain))
    if isinstance(policy, Mapping) and all(isinstance(p, DomainPolicy) for p in policy.values()):
        override = dict(policy).get
        settings.refuse_leaks(policy, override)
        return lambda domain: settings.policy_for(domain, override(domain))
    raise ConfigError(
        f"policy is {policy!r}; give a DomainPolicy or a mapping from domain to DomainPolicy"
    )


def store_of(
    store: TraceStore | str | Path | Default | None, settings: Settings
) -> TraceStore | None:
    """Return the store of the argument, or the one of the settings.

    Raises:
        ConfigError: The argument is not a store or its address.
    """
    if store is None or isinstance(store, TraceStore):
        return store
    if store is Default.STORE:
        return default_store(settings.database_url)
    if isinstance(store, (str, Path)):
        return default_store(store)
    raise ConfigError(
        f"store is {store!r}; give a TraceStore, a database URL or file, or None to keep nothing"
    )


def agent_id_of(option: str | None, settings: Settings, registry: Registry | None) -> str | None:
    """Return the agent id that traces carry; warn if the registry's key has another one."""
    if registry is None:
        agent_id = option or settings.agent_id
        return None if agent_id is None else check_agent_id(agent_id, settings.redaction)
    from kp_langchain.registry.credentials import agent_of, key_agent

    agent_id, of_key = agent_of(option, settings, registry), key_agent(registry)
    if agent_id is None or (of_key is not None and agent_id != of_key):
        warn_once(
            f"agent:{registry.url}",
            "traces for the registry at %s carry %s, and its key belongs to %s, so that what is "
            "sent could not be withdrawn; leave out agent_id for the key's, or: kp-langchain "
            "register --agent-id kp:agent:NAME",
            registry.url,
            agent_id or "no agent_id",
            redact_agent_id(of_key)
            if of_key
            else "an agent that is not known here (set agent_id to it)",
        )
    return agent_id


def registry_of(
    registry: Registry | str | None, store: TraceStore | None, settings: Settings
) -> Registry | None:
    """Return the registry of the argument, or the one of the settings; None if nothing is sent.

    Raises:
        ConfigError: The argument is not a registry or its URL, or there is no store.
    """
    if registry is None and (store is None or settings.registry_url is None):
        return None
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry import Registry
    from kp_langchain.registry.credentials import configured_registry

    if registry is not None and not isinstance(registry, (Registry, str)):
        raise ConfigError(
            f"registry is {registry!r}; give a Registry, its URL, or leave it out for the one of "
            "the settings"
        )
    if store is None:
        raise ConfigError(
            "registry needs a store, because what is to be sent waits there; leave out store=None"
        )
    return registry if isinstance(registry, Registry) else configured_registry(settings, registry)
