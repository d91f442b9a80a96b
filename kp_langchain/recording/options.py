"""The arguments of `KPCallbackHandler`: checked, with errors that name them, and resolved."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import iscoroutinefunction
from itertools import chain
from pathlib import Path
from pickle import PicklingError
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.agent_id import check_agent_id, redact_agent_id
from kp_langchain.config import DomainPolicy, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.recording import score_receivers
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore, default_store
from kp_langchain.weights import PROFILES

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.outcome import OutcomeFunction
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.recording.verifiers import Verifier, Verifiers
    from kp_langchain.registry import Registry


_MAX_VERIFIER_S = 3600
_FUNCTIONS = ("outcome", "on_scored", "objective", "redactor")


class Default(Enum):
    """Stands for "as the settings say" in arguments for which None has a meaning."""

    STORE = "the store of the settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The arguments of `KPCallbackHandler`, unresolved; its docstring explains them."""

    domain: str
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None
    scorer: Scorer | None
    store: TraceStore | str | Path | Default | None
    registry: Registry | str | None
    outcome: OutcomeFunction | None
    verifiers: Sequence[Verifier]
    verifier_timeout_s: float
    agent_id: str | None
    on_scored: Callable[[ScoredTrace], object] | None
    objective: Callable[[Any], str | None] | None
    redactor: Callable[[str], str] | None
    send_scores_to: Sequence[str | ScoreReceiver] | None

    def check(self) -> None:
        """Refuse arguments that cannot be used.

        Raises:
            ConfigError: One cannot be used; the message names it, its value, and what would be
                right.
        """
        _check_text("domain", self.domain)
        for name in _FUNCTIONS:
            _check_function(name, getattr(self, name))
        _check_verifiers(self.verifiers, self.verifier_timeout_s)
        _check_receivers(self.send_scores_to)
        scorer: object = self.scorer
        if scorer is not None and (
            isinstance(scorer, type) or not callable(getattr(scorer, "evaluate", None))
        ):
            raise ConfigError(f"scorer is {scorer!r}; give a Scorer or leave it out")
        agent_id: object = self.agent_id
        if agent_id is not None and not isinstance(agent_id, str):
            raise ConfigError(f"agent_id is {agent_id!r}; give a text such as 'kp:agent:me'")

    def to_send(self, store: TraceStore | None) -> dict[str, Any]:
        """Return the arguments as they go to another process, by name.

        Args:
            store: What the argument of that name stands for in this process.

        Raises:
            pickle.PicklingError: One is a function that another process cannot find.
        """
        functions = {
            **{name: getattr(self, name) for name in _FUNCTIONS},
            **{f"verifiers[{at}]": one for at, one in enumerate(self.verifiers)},
        }
        for name, function in functions.items():
            # cloudpickle, of which joblib, Ray and Dask each bundle a copy, sends these as well.
            if not _can_be_found(function) and not any(
                module.endswith("cloudpickle") for module in sys.modules
            ):
                raise PicklingError(
                    f"{name} is {function!r}, which another process cannot find; give a function "
                    "that is defined at the top of a module, or send the handler with cloudpickle"
                )
        arguments = {name: getattr(self, name) for name in self.__slots__}
        # A relative path means another file in another working folder.
        is_path = isinstance(self.store, (str, Path))
        return arguments | ({"store": store} if is_path else {})


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is {value!r}; give a non-empty text such as 'finance'")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{name} is {value!r}; it has a lone surrogate, which is no text"
        ) from None


def _check_function(name: str, function: object) -> None:
    if function is not None and (not callable(function) or iscoroutinefunction(function)):
        raise ConfigError(
            f"{name} is {function!r}; give a function (not an async one, it is called on a "
            "worker thread) or leave it out"
        )


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


def _check_receivers(receivers: object) -> None:
    if receivers is not None and not isinstance(receivers, (list, tuple)):
        raise ConfigError(
            f"send_scores_to is {receivers!r}; give a list such as ['langsmith'], or leave it out"
        )


def _can_be_found(function: object) -> bool:
    """Return whether a function can be imported by name; True for other callables."""
    if not isinstance(function, FunctionType):
        return True  # other callables decide for themselves how they are pickled
    target: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        target = getattr(target, name, None)
    return target is function


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


def identity_of_function(function: object) -> Hashable:
    """Return a key that is equal for functions with the same code.

    Handlers made per request often bring a function made per request: its code is the same.
    """
    return getattr(function, "__code__", None) or (None if function is None else id(function))


def is_foreign(scorer: object) -> bool:
    """Return whether a scorer, its embedder or its memory is the user's own code."""
    if scorer is None:
        return False
    return type(scorer) is not Scorer or scorer.calls_user_code


def verifiers_of(
    functions: Sequence[Verifier], timeout_s: float, counters: Counters
) -> Verifiers | None:
    """Return the verifiers; None if there are none."""
    if not functions:
        return None
    # Imported here because asyncio is slow to import, and most handlers have no verifiers.
    from kp_langchain.recording.verifiers import Verifiers

    return Verifiers(tuple(functions), timeout_s, counters)


def receivers_of(
    receivers: Sequence[str | ScoreReceiver] | None, settings: Settings
) -> tuple[ScoreReceiver, ...]:
    """Return the score receivers of the argument, or those of the settings.

    Raises:
        ConfigError: One cannot be used.
    """
    chosen = settings.send_scores_to if receivers is None else receivers
    return score_receivers.receivers_of(chosen)


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
