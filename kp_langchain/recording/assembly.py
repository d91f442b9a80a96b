"""Builds the parts of a handler from its arguments: a recorder, its engine, and what that needs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.config import DomainPolicy, Settings, warn_of_domain
from kp_langchain.errors import ConfigError
from kp_langchain.policy import PROFILES
from kp_langchain.recording.bounds import Counters
from kp_langchain.recording.context import HandlerContext
from kp_langchain.recording.engine import Engine
from kp_langchain.recording.options import Default, HandlerOptions
from kp_langchain.recording.pauses import HandlerPauses
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.score_receivers import receivers_of, score_sender
from kp_langchain.recording.user_calls import JUDGING, lane_for
from kp_langchain.recording.windows import Windows
from kp_langchain.run_keys import check_agent_id
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore, default_store
from kp_langchain.store.jobs import Backoff

if TYPE_CHECKING:
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.registry import Registry
    from kp_langchain.registry.sender import Sender

AnyRecorder = TypeVar("AnyRecorder", bound=Recorder)


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


def _sender_of(
    registry: Registry | str | None, store: TraceStore | None, settings: Settings
) -> tuple[Registry, Sender] | tuple[None, None]:
    """Return the registry of the argument, or of the settings, and what sends to it, if any.

    Handlers share a sender, but each has a registry of its own, which names the key's agent.

    Raises:
        ConfigError: The argument is not a registry or its URL, or there is no store.
    """
    if registry is None and (store is None or settings.registry_url is None):
        return None, None
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
    return (None, None) if registry is None else (registry, sender_for(store, registry))


def assemble(
    options: HandlerOptions, settings: Settings, recorder_class: type[AnyRecorder]
) -> tuple[AnyRecorder, Engine, HandlerContext]:
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
    registry, sender = _sender_of(options.registry, store, settings)
    agent_id = _agent_id_of(options.agent_id, settings, registry)
    redactor = options.redactor or settings.redaction.load_redactor()
    receivers = _receivers(options, settings, store)
    engine = _engine_of(store, settings.max_queue)
    windows = Windows(None, Backoff()) if store is None else engine.windows
    counters = Counters()
    # One lane for all handlers with functions of the same code.
    functions = (options.scorer, options.outcome, options.on_scored, redactor, *options.verifiers)
    lane = lane_for((id(store), *map(_identity, functions)), JUDGING)
    context = HandlerContext(
        # The policies are in `domains`; the caller's mapping may change later.
        options=replace(options, policy=None, verifiers=tuple(options.verifiers)),
        settings=settings,
        store=store,
        domains=domains,
        policy_for=_policies(policy, settings),
        agent_id=agent_id,
        redactor=redactor,
        paused_runs=HandlerPauses(
            store if settings.paused_days > 0 else None, (options.domain, agent_id), settings
        ),
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
        partial(engine.add, context),
        prepare=partial(engine.prepare, context),
        keeps_output=options.outcome is not None,
        objective_of=options.objective,
        receivers=receivers,
    )
    return recorder, engine, context


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
