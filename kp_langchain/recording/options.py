"""The arguments of `KPCallbackHandler`: checked, with errors that name them, and resolved."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from inspect import iscoroutinefunction
from itertools import chain
from pathlib import Path
from pickle import PicklingError
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kp_langchain._host_exceptions import came_from_outside
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.agent_id import shown, usable
from kp_langchain.config import DomainPolicy, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore, default_store
from kp_langchain.weights import PROFILES

if TYPE_CHECKING:
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.verifiers import Verifier, Verifiers
    from kp_langchain.registry import Registry


_LONGEST_VERIFIER_S = 3600


class Default(Enum):
    """Stands for "as the settings say" where None means something else."""

    STORE = "the store of the settings"


def check(
    *,
    domain: object,
    scorer: object,
    outcome: object,
    verifiers: object,
    verifier_timeout_s: object,
    agent_id: object,
    on_scored: object,
    objective: object,
    redactor: object,
) -> None:
    """Refuse arguments that cannot be used.

    Raises:
        ConfigError: One cannot; the message names it, its value, and what would be right.
    """
    if not isinstance(domain, str) or not domain.strip():
        raise ConfigError(f"domain is {domain!r}; give a non-empty text such as 'finance'")
    for name, function in (
        ("outcome", outcome), ("on_scored", on_scored), ("objective", objective),
        ("redactor", redactor),
    ):  # fmt: skip
        if function is not None and (not callable(function) or iscoroutinefunction(function)):
            raise ConfigError(
                f"{name} is {function!r}; give a function (not an async one, it is called on a "
                "worker thread) or leave it out"
            )
    if not isinstance(verifiers, (list, tuple)) or not all(
        callable(one) and not isinstance(one, type) for one in verifiers
    ):
        raise ConfigError(
            f"verifiers is {verifiers!r}; give a list of functions, each of one FinishedRun"
        )
    if (
        isinstance(verifier_timeout_s, bool)
        or not isinstance(verifier_timeout_s, (int, float))
        or not 0 < verifier_timeout_s <= _LONGEST_VERIFIER_S
    ):
        raise ConfigError(
            f"verifier_timeout_s is {verifier_timeout_s!r}; give seconds, more than 0 and at most "
            f"{_LONGEST_VERIFIER_S}"
        )
    if scorer is not None and (
        isinstance(scorer, type) or not callable(getattr(scorer, "evaluate", None))
    ):
        raise ConfigError(f"scorer is {scorer!r}; give a Scorer or leave it out")
    if agent_id is not None and not isinstance(agent_id, str):
        raise ConfigError(f"agent_id is {agent_id!r}; give a text such as 'kp:agent:me'")


def to_send(given: Mapping[str, Any], store: TraceStore | None) -> dict[str, Any]:
    """Return the handler's arguments as they go to another process.

    Args:
        given: The arguments as they were given.
        store: What the argument of that name stands for in this process.

    Raises:
        pickle.PicklingError: One is a function that another process cannot find.
    """
    functions = {
        **{name: given[name] for name in ("outcome", "on_scored", "objective", "redactor")},
        **{f"verifiers[{at}]": one for at, one in enumerate(given["verifiers"])},
    }
    for name, function in functions.items():
        # cloudpickle, which joblib, Ray and Dask have each their own copy of, sends these, too.
        if not _can_be_found(function) and not any(
            module.endswith("cloudpickle") for module in sys.modules
        ):
            raise PicklingError(
                f"{name} is {function!r}, which another process cannot find; give a function that "
                "is defined at the top of a module, or send the handler with cloudpickle"
            )
    # A relative path means another file where the working folder is another.
    absolute = {"store": store} if isinstance(given["store"], (str, Path)) else {}
    return {**given, **absolute}


def _can_be_found(function: object) -> bool:
    """Whether another process can import a function by its name; True for what is none."""
    if not isinstance(function, FunctionType):
        return True  # whether it can be sent, its own class knows
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def harmless(objective: Callable[[Any], str | None]) -> Callable[[Any], str]:
    """The caller's `objective`, with "" for whatever it cannot tell."""

    def ask(inputs: Any) -> str:
        try:
            said = objective(inputs)
        except BaseException as error:
            if came_from_outside(error):
                raise
            warn_once(
                f"objective:{type(error).__name__}",
                "the objective function raised %s; the usual places are searched instead",
                describe_error(error),
            )
            return ""
        return str.strip(said) if isinstance(said, str) else ""

    return ask


def kind_of(function: object) -> Hashable:
    """What a function of the caller's has in common with others that behave alike.

    Handlers made per request often bring a function made per request: its code is the same.
    """
    return getattr(function, "__code__", None) or (None if function is None else id(function))


def verifiers_of(
    given: Sequence[Verifier], timeout_s: float, counters: Counters
) -> Verifiers | None:
    """The verifiers that were given, or None."""
    if not given:
        return None
    # Here, because asyncio takes its time to import, and most handlers have no verifiers.
    from kp_langchain.recording.verifiers import Verifiers

    return Verifiers(tuple(given), timeout_s, counters)


def domains(
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None, scorer: object, settings: Settings
) -> frozenset[str]:
    """Return the names of the domains with weights or a policy of their own."""
    given = policy if isinstance(policy, Mapping) else ()
    profiles = scorer.profiles if isinstance(scorer, Scorer) else PROFILES
    return frozenset(chain(PROFILES, profiles, settings.domains, given))


def policies(
    given: DomainPolicy | Mapping[str, DomainPolicy] | None, settings: Settings
) -> Callable[[str], DomainPolicy]:
    """The function that tells a domain's policy: what was given, over what the settings say.

    Raises:
        ConfigError: It is no policy, or under one runs would be sent with too little redacted.
    """
    if given is None:
        return settings.policy_for
    over: Callable[[str], DomainPolicy | None]
    if isinstance(given, DomainPolicy):
        one = given
        settings.refuse_leaks(["", *settings.domains], over := lambda _: one)
        return lambda domain: settings.policy_for(domain, over(domain))
    if isinstance(given, Mapping) and all(isinstance(p, DomainPolicy) for p in given.values()):
        over = dict(given).get
        settings.refuse_leaks(given, over)
        return lambda domain: settings.policy_for(domain, over(domain))
    raise ConfigError(
        f"policy is {given!r}; give a DomainPolicy or a mapping from domain to DomainPolicy"
    )


def store_of(
    given: TraceStore | str | Path | Default | None, settings: Settings
) -> TraceStore | None:
    """The store that was given, or the one of the settings."""
    if given is None or isinstance(given, TraceStore):
        return given
    if given is Default.STORE:
        return default_store(settings.database_url)
    if isinstance(given, (str, Path)):
        return default_store(given)
    raise ConfigError(
        f"store is {given!r}; give a TraceStore, a database URL or file, or None to keep nothing"
    )


def agent_of(given: str | None, settings: Settings, registry: Registry | None) -> str | None:
    """The id of the agent that traces carry, with a warning if it is not that of the key."""
    if registry is None:
        chosen = given or settings.agent_id
        return None if chosen is None else usable(chosen, settings.redaction)
    from kp_langchain.registry.configured import agent_of, key_agent

    agent_id, of_key = agent_of(given, settings, registry), key_agent(registry)
    if agent_id is None or (of_key is not None and agent_id != of_key):
        warn_once(
            f"agent:{registry.url}",
            "traces for the registry at %s carry %s, and its key belongs to %s, so that what is "
            "sent could not be withdrawn; leave out agent_id for the key's, or: kp-langchain "
            "register --agent-id kp:agent:NAME",
            registry.url,
            agent_id or "no agent_id",
            shown(of_key) if of_key else "an agent that is not known here (set agent_id to it)",
        )
    return agent_id


def registry_of(
    given: Registry | str | None, store: TraceStore | None, settings: Settings
) -> Registry | None:
    """The registry that was given, or the one of the settings; None if nothing is to be sent."""
    if given is None and (store is None or settings.registry_url is None):
        return None
    # Here, because it takes 25 ms to import, and most handlers send nothing.
    from kp_langchain.registry import Registry
    from kp_langchain.registry.configured import configured_registry

    if given is not None and not isinstance(given, (Registry, str)):
        raise ConfigError(
            f"registry is {given!r}; give a Registry, its URL, or leave it out for the one of the "
            "settings"
        )
    if store is None:
        raise ConfigError(
            "registry needs a store, because what is to be sent waits there; leave out store=None"
        )
    return given if isinstance(given, Registry) else configured_registry(settings, given)
