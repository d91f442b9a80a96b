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
from kp_langchain.agent_id import check_agent_id
from kp_langchain.config import DomainPolicy, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore, default_store
from kp_langchain.values import clean_text
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
        for name, (is_usable, advice) in _CHECKS.items():
            value = getattr(self, name)
            is_left_out = value is None and name not in _NEVER_NONE
            if not is_left_out and not is_usable(value):
                raise ConfigError(f"{name} is {value!r}; {advice}")

    def for_other_process(self, store: TraceStore | None) -> dict[str, Any]:
        """Return the arguments as they go to another process, by name.

        Args:
            store: What the argument of that name stands for in this process.
        """
        arguments = {name: getattr(self, name) for name in self.__slots__}
        # A relative path means another file in another working folder.
        is_path = isinstance(self.store, (str, Path))
        return arguments | ({"store": store} if is_path else {})


def _is_domain(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and clean_text(value) == value


def _is_function(value: Any) -> bool:
    return callable(value) and not iscoroutinefunction(value)


def _are_verifiers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        callable(one) and not isinstance(one, type) for one in value
    )


def _is_time_limit(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= _MAX_VERIFIER_S


def _is_scorer(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "evaluate", None))


def _is_policy(value: Any) -> bool:
    values = value.values() if isinstance(value, Mapping) else [value]
    return all(isinstance(one, DomainPolicy) for one in values)


def _is_store(value: Any) -> bool:
    return value is Default.STORE or isinstance(value, (TraceStore, str, Path))


_NEVER_NONE = ("domain", "verifiers", "verifier_timeout_s")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "domain": (_is_domain, "give a non-empty text such as 'finance'"),
    "policy": (_is_policy, "give a DomainPolicy or a mapping from domain to DomainPolicy"),
    "store": (_is_store, "give a TraceStore, a database URL or file, or None to keep nothing"),
    "registry": (
        lambda value: isinstance(value, str) or hasattr(value, "contribute"),
        "give a Registry, its URL, or leave it out for the one of the settings",
    ),
    "verifiers": (_are_verifiers, "give a list of functions, each of one FinishedRun"),
    "verifier_timeout_s": (
        _is_time_limit,
        f"give seconds, more than 0 and at most {_MAX_VERIFIER_S}",
    ),
    "scorer": (_is_scorer, "give a Scorer or leave it out"),
    "agent_id": (lambda value: isinstance(value, str), "give a text such as 'kp:agent:me'"),
    "send_scores_to": (
        lambda value: isinstance(value, (list, tuple)),
        "give a list such as ['langsmith'], or leave it out",
    ),
    **dict.fromkeys(
        _FUNCTIONS,
        (
            _is_function,
            "give a function (not an async one, it is called on a worker thread) or leave it out",
        ),
    ),
}


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
    by_domain = dict(policy) if isinstance(policy, Mapping) else None
    one = policy if isinstance(policy, DomainPolicy) else None

    def override(domain: str) -> DomainPolicy | None:
        return one if by_domain is None else by_domain.get(domain)

    settings.refuse_leaks(["", *settings.domains] if by_domain is None else by_domain, override)
    return lambda domain: settings.policy_for(domain, override(domain))


def store_of(
    store: TraceStore | str | Path | Default | None, settings: Settings
) -> TraceStore | None:
    """Return the store of the argument, or the one of the settings."""
    if store is None or isinstance(store, TraceStore):
        return store
    return default_store(settings.database_url if isinstance(store, Default) else store)


def agent_id_of(option: str | None, settings: Settings, registry: Registry | None) -> str | None:
    """Return the agent id that traces carry: the option, else the settings', else the key's."""
    if registry is None:
        agent_id = option or settings.agent_id
        return None if agent_id is None else check_agent_id(agent_id, settings.redaction)
    from kp_langchain.registry.credentials import agent_of

    return agent_of(option, settings, registry)


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

    if store is None:
        raise ConfigError(
            "registry needs a store, because what is to be sent waits there; leave out store=None"
        )
    return registry if isinstance(registry, Registry) else configured_registry(settings, registry)
