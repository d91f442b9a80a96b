"""Checks the arguments of `KPCallbackHandler`, and builds a recorder and its context from them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import iscoroutinefunction
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.config import DomainPolicy, Settings, warn_of_domain
from kp_langchain.errors import ConfigError
from kp_langchain.policy import PROFILES
from kp_langchain.recording.bounds import Counters
from kp_langchain.recording.context import HandlerContext, Windows
from kp_langchain.recording.engine import Engine
from kp_langchain.recording.pauses import HandlerPauses
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_builder import RunBuilder
from kp_langchain.recording.score_receivers import TraceFinder, receivers_of, score_sender
from kp_langchain.recording.user_calls import JUDGING, UserFunctions, lane_for
from kp_langchain.run_keys import check_agent_id
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore, default_store
from kp_langchain.store.jobs import Backoff
from kp_langchain.values import clean_text

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.outcome import OutcomeFunction, Verifier
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.registry import Registry
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore

AnyRecorder = TypeVar("AnyRecorder", bound=Recorder)
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


def _is_domain(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and clean_text(value) == value


def _is_function(value: Any) -> bool:
    return callable(value) and not iscoroutinefunction(value)


def _are_verifiers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        callable(one) and not isinstance(one, type) for one in value
    )


def _is_scorer(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "evaluate", None))


def _is_policy(value: Any) -> bool:
    values = value.values() if isinstance(value, Mapping) else [value]
    return all(isinstance(one, DomainPolicy) for one in values)


def _is_store(value: Any) -> bool:
    return value is Default.STORE or isinstance(value, (TraceStore, str, Path))


_NEVER_NONE = ("domain", "verifiers")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "domain": (_is_domain, "give a non-empty text such as 'finance'"),
    "policy": (_is_policy, "give a DomainPolicy or a mapping from domain to DomainPolicy"),
    "store": (_is_store, "give a TraceStore, a database URL or file, or None to keep nothing"),
    "registry": (
        lambda value: isinstance(value, str) or hasattr(value, "contribute"),
        "give a Registry, its URL, or leave it out for the one of the settings",
    ),
    "verifiers": (_are_verifiers, "give a list of functions, each of one FinishedRun"),
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


def _known_domains(
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None, scorer: object, settings: Settings
) -> frozenset[str]:
    """Return the names of the domains with weights or a policy of their own."""
    policy_domains = policy if isinstance(policy, Mapping) else ()
    profiles = scorer.profiles if isinstance(scorer, Scorer) else PROFILES
    return frozenset(chain(PROFILES, profiles, settings.domains, policy_domains))


def _policies(
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


def _agent_id_of(option: str | None, settings: Settings, registry: Registry | None) -> str | None:
    """Return the agent id that traces carry: the option, else the settings', else the key's."""
    if registry is None:
        agent_id = option or settings.agent_id
        return None if agent_id is None else check_agent_id(agent_id, settings.redaction)
    from kp_langchain.registry.credentials import agent_of

    return agent_of(option, settings, registry)


def _registry_of(
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


def assemble(
    options: HandlerOptions, settings: Settings, recorder_class: type[AnyRecorder]
) -> tuple[AnyRecorder, HandlerContext]:
    """Make the parts of a handler: what records its runs, and what takes them to the engine.

    Args:
        options: The handler's arguments, checked.
        settings: Defaults for arguments that were left out.
        recorder_class: The kind of recorder.

    Raises:
        ConfigError: An argument or setting cannot be used; the message says which and why.
    """
    domains = _known_domains(options.policy, options.scorer, settings)
    warn_of_domain(options.domain, domains)
    store = _store(options, settings)
    registry = _registry_of(options.registry, store, settings)
    agent_id = _agent_id_of(options.agent_id, settings, registry)
    redactor = options.redactor or settings.redaction.load_redactor()
    sender = _sender(store, registry)
    receivers = _receivers(options, settings, store)
    engine = _engine_of(store, settings.max_queue)
    windows = Windows(None, Backoff()) if store is None else engine.windows
    functions = _user_functions(options, settings, redactor, store)
    counters = functions.counters
    context = HandlerContext(
        engine=engine,
        max_queue=settings.max_queue,
        store=store,
        builder=RunBuilder(
            domain=options.domain,
            domains=domains,
            policy_for=_policies(options.policy, settings),
            agent_id=agent_id,
            registry=sender.registry.url if sender else None,
            outcome=options.outcome,
            redactor=redactor,
            rules=settings.redaction,
            functions=functions,
            paused_runs=HandlerPauses(
                store if settings.paused_days > 0 else None, (options.domain, agent_id), settings
            ),
        ),
        scorer=options.scorer or windows.scorer(),
        windows=windows,
        verifiers=tuple(options.verifiers),
        functions=functions,
        sender=sender,
        score_senders=tuple(
            score_sender(one, store, counters) for one in receivers if store is not None
        ),
        on_scored=options.on_scored,
    )
    recorder = recorder_class(
        settings,
        counters,
        context,
        keeps_output=options.outcome is not None,
        objective_of=options.objective,
        find_traces=TraceFinder(receivers, counters) if receivers else None,
    )
    return recorder, context


def _store(options: HandlerOptions, settings: Settings) -> TraceStore | None:
    """Return the store of the argument, or the one of the settings."""
    option, store = options.store, None
    if isinstance(option, TraceStore):
        store = option
    elif option is not None:
        store = default_store(settings.database_url if isinstance(option, Default) else option)
    return store


def _receivers(
    options: HandlerOptions, settings: Settings, store: TraceStore | None
) -> tuple[ScoreReceiver, ...]:
    """Return the tools of the argument, or those of the settings; none without a store.

    Raises:
        ConfigError: The argument cannot be used, or there is no store.
    """
    if options.send_scores_to and store is None:
        raise ConfigError(
            "send_scores_to needs a store, because a score waits there until it is sent; leave out "
            "store=None"
        )
    tools = options.send_scores_to
    receivers = receivers_of(settings.send_scores_to if tools is None else tools)
    return () if store is None else receivers


def _user_functions(
    options: HandlerOptions,
    settings: Settings,
    redactor: Callable[[str], str] | None,
    store: TraceStore | None,
) -> UserFunctions:
    """Return what calls the functions of a handler: on one lane with those of the same code."""
    user_code = (options.scorer, options.outcome, options.on_scored, redactor, *options.verifiers)
    lane = lane_for((id(store), *map(_identity, user_code)), JUDGING)
    return UserFunctions(lane, settings.function_timeout_s, Counters())


def _identity(function: object) -> Hashable:
    """Return a key that is equal for functions with the same code.

    Handlers made per request often bring a function made per request: its code is the same.
    """
    return getattr(function, "__code__", None) or (None if function is None else id(function))


def _sender(store: TraceStore | None, registry: Registry | None) -> Sender | None:
    if store is None or registry is None:
        return None
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry.sender import sender_for

    return sender_for(store, registry)


def _engine_of(store: TraceStore | None, max_waiting: int) -> Engine:
    """Return the engine of a store, or that of all handlers without one; one for the process."""
    global _storeless_engine
    with _engines_lock:
        if store is None:
            if _storeless_engine is None:
                _storeless_engine = Engine(None, max_waiting)
            return _storeless_engine
        engine = _engines_by_store.get(store)
        if engine is None:
            engine = _engines_by_store[store] = Engine(store, max_waiting)
        return engine


_engines_by_store: weakref.WeakValueDictionary[TraceStore, Engine] = weakref.WeakValueDictionary()
_engines_lock = ForkSafeLock()
_storeless_engine: Engine | None = None
