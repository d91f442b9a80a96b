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
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.score_receivers import receivers_of, score_sender
from kp_langchain.recording.user_calls import JUDGING, lane_for
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
    """The arguments of `KPCallbackHandler`, unresolved; its docstring explains them.

    Raises:
        ConfigError: One cannot be used; the message names it, its value, and what would be right.
    """

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

    def __post_init__(self) -> None:
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


def _agent_id_of(option: str | None, settings: Settings, sender: Sender | None) -> str | None:
    """Return the agent id that traces carry: the option, else the settings', else the key's."""
    if sender is None:
        agent_id = option or settings.agent_id
        return None if agent_id is None else check_agent_id(agent_id, settings.redaction)
    from kp_langchain.registry.credentials import agent_of

    return agent_of(option, settings, sender.registry)


def _sender_of(
    registry: Registry | str | None, store: TraceStore | None, settings: Settings
) -> Sender | None:
    """Return what sends to the registry of the argument, or of the settings; None without one.

    Raises:
        ConfigError: The argument is not a registry or its URL, or there is no store.
    """
    if registry is None and (store is None or settings.registry_url is None):
        return None
    if store is None:
        raise ConfigError(
            "registry needs a store, because what is to be sent waits there; leave out store=None"
        )
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry import Registry
    from kp_langchain.registry.credentials import configured_registry
    from kp_langchain.registry.sender import sender_for

    if not isinstance(registry, Registry):
        registry = configured_registry(settings, registry)
    return None if registry is None else sender_for(store, registry)


def assemble(
    options: HandlerOptions, settings: Settings, recorder_class: type[AnyRecorder]
) -> tuple[AnyRecorder, HandlerContext]:
    """Make the parts of a handler: what records its runs, and what takes them to the engine.

    Args:
        options: The handler's arguments.
        settings: Defaults for arguments that were left out.
        recorder_class: The kind of recorder.

    Raises:
        ConfigError: An argument or setting cannot be used; the message says which and why.
    """
    policy, store = options.policy, options.store
    profiles = options.scorer.profiles if isinstance(options.scorer, Scorer) else ()
    own_policies = policy if isinstance(policy, Mapping) else ()
    domains = frozenset(chain(PROFILES, profiles, settings.domains, own_policies))
    warn_of_domain(options.domain, domains)
    if store is not None and not isinstance(store, TraceStore):
        store = default_store(settings.database_url if isinstance(store, Default) else store)
    sender = _sender_of(options.registry, store, settings)
    agent_id = _agent_id_of(options.agent_id, settings, sender)
    redactor = options.redactor or settings.redaction.load_redactor()
    receivers = _receivers(options, settings, store)
    engine = _engine_of(store, settings.max_queue)
    windows = Windows(None, Backoff()) if store is None else engine.windows
    counters = Counters()
    # One lane for all handlers with functions of the same code.
    functions = (options.scorer, options.outcome, options.on_scored, redactor, *options.verifiers)
    lane = lane_for((id(store), *map(_identity, functions)), JUDGING)
    context = HandlerContext(
        engine=engine,
        options=options,
        settings=settings,
        store=store,
        domains=domains,
        policy_for=_policies(policy, settings),
        agent_id=agent_id,
        redactor=redactor,
        scorer=options.scorer or windows.scorer(),
        windows=windows,
        lane=lane,
        counters=counters,
        sender=sender,
        score_senders=tuple(
            score_sender(one, store, counters) for one in receivers if store is not None
        ),
    )
    recorder = recorder_class(
        settings,
        counters,
        context.add,
        prepare=context.prepare,
        keeps_output=options.outcome is not None,
        objective_of=options.objective,
        receivers=receivers,
    )
    return recorder, context


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


def _identity(function: object) -> Hashable:
    """Return a key that is equal for functions with the same code.

    Handlers made per request often bring a function made per request: its code is the same.
    """
    return getattr(function, "__code__", None) or (None if function is None else id(function))


def _engine_of(store: TraceStore | None, max_waiting: int) -> Engine:
    """Return the engine of a store, or that of all handlers without one; one for the process."""
    with _engines_lock:
        engine = _engines_by_store.get(store)
        if engine is None:
            engine = _engines_by_store[store] = Engine(store, max_waiting)
        return engine


_engines_by_store: weakref.WeakValueDictionary[TraceStore | None, Engine] = (
    weakref.WeakValueDictionary()
)
_engines_lock = ForkSafeLock()
