"""Puts the parts of a handler together: recorder, pipeline with its sinks, queue, store, sender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.near_names import warn_of_domain
from kp_langchain.recording import options as resolve
from kp_langchain.recording import worker
from kp_langchain.recording.bounds import Bounds
from kp_langchain.recording.callbacks import ambient_run_id
from kp_langchain.recording.drafter import Drafter
from kp_langchain.recording.kept_memory import KeptMemory
from kp_langchain.recording.paused_in_store import PausedRunStore
from kp_langchain.recording.pipeline import Pipeline
from kp_langchain.recording.recent_runs import RecentRuns
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_queue import RunQueue
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.score_receivers import ReceiverSink
from kp_langchain.recording.sinks import FunctionSink, LogSink, ObserverSink, Sink, StoreSink
from kp_langchain.recording.store_scorer import scorer_of
from kp_langchain.recording.store_writer import StoreWriter, writer_of
from kp_langchain.recording.user_functions import UserFunctions
from kp_langchain.scoring.process_scorer import default_scorer

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.recording.options import HandlerOptions
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.recording.verifiers import Verifiers
    from kp_langchain.registry import Registry
    from kp_langchain.registry.sender import Sender
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of one handler.

    Attributes:
        store: Where runs are kept; None to keep nothing.
        writer: Writes into it.
        sender: Sends to the registry; None without one.
        recorder: Turns events into records.
        queue: Takes the records, and scores them.
        sinks: What receives each scored run.
    """

    store: TraceStore | None
    writer: StoreWriter | None
    sender: Sender | None
    recorder: Recorder
    queue: RunQueue
    sinks: tuple[Sink, ...]


def assemble(
    options: HandlerOptions, settings: Settings, recorder_class: type[Recorder] = Recorder
) -> Assembly:
    """Make the parts of a handler.

    Args:
        options: The handler's arguments, checked.
        settings: Defaults for arguments that were left out.
        recorder_class: The kind of recorder.

    Raises:
        ConfigError: An argument or setting cannot be used; the message says which and why.
    """
    domains = resolve.domains(options.policy, options.scorer, settings)
    warn_of_domain(options.domain, domains)
    store = _store(options, settings)
    registry = resolve.registry_of(options.registry, store, settings)
    agent_id = resolve.agent_id_of(options.agent_id, settings, registry)
    redactor = options.redactor or settings.redaction.load_redactor()
    writer = None if store is None else writer_of(store, settings.max_queue)
    sender = _sender(store, registry)
    paused_runs = _paused_runs(options, settings, writer, agent_id)
    receivers = resolve.receivers_of(options.send_scores_to, settings)
    recorder = _recorder(
        recorder_class, options, settings, agent_id, paused_runs, receivers,
        add=lambda record: queue.add(record), add_paused=lambda record: queue.add_paused(record),
    )  # fmt: skip
    user_code = (options.scorer, options.outcome, options.on_scored, redactor, *options.verifiers)
    lane = worker.lane_for((id(store), *map(resolve.identity_of_function, user_code)))
    functions = UserFunctions(lane, settings.function_timeout_s, recorder.counters)
    sinks = _sinks(options, writer, sender, functions, receivers, settings.max_queue)
    pipeline = Pipeline(
        drafter=Drafter(
            domain=options.domain,
            domains=domains,
            policy_for=resolve.policies(options.policy, settings),
            agent_id=agent_id,
            registry=sender.registry.url if sender else None,
            outcome=options.outcome,
            redactor=redactor,
            rules=settings.redaction,
            run_keys=settings.run_keys,
            functions=functions,
            paused_runs=paused_runs,
        ),
        scorer=options.scorer or _scorer(store, settings),
        foreign_scorer=options.scorer is not None,
        verifiers=_verifiers(options, functions),
        functions=functions,
        writer=writer,
        sinks=sinks,
        recent_runs=RecentRuns(None) if writer is None else writer.recent_runs,
        kept=KeptMemory(None) if writer is None else writer.kept,
    )
    has_user_code = any(function is not None for function in user_code)
    queue = RunQueue(pipeline, writer, sender, settings.max_queue, calls_user_code=has_user_code)
    return Assembly(store, writer, sender, recorder, queue, sinks)


def _scorer(store: TraceStore | None, settings: Settings) -> Scorer:
    return default_scorer() if store is None else scorer_of(store, settings.max_queue)


def _verifiers(options: HandlerOptions, functions: UserFunctions) -> Verifiers | None:
    return resolve.verifiers_of(options.verifiers, options.verifier_timeout_s, functions.counters)


def _store(options: HandlerOptions, settings: Settings) -> TraceStore | None:
    store = resolve.store_of(options.store, settings)
    if store is not None and not settings.disabled:
        # Runs that end while a thread imports the drivers would be lost if the process is killed.
        store.load_drivers()
    return store


def _sinks(
    options: HandlerOptions,
    writer: StoreWriter | None,
    sender: Sender | None,
    functions: UserFunctions,
    receivers: Sequence[ScoreReceiver],
    max_queue: int,
) -> tuple[Sink, ...]:
    """Return what receives each scored run, in this order."""
    sinks: list[Sink] = []
    if writer is not None:
        sinks.append(StoreSink(writer, sender, functions.counters))
    sinks += [LogSink(has_registry=sender is not None), ObserverSink()]
    sinks += [ReceiverSink(receiver, functions.counters, max_queue) for receiver in receivers]
    if options.on_scored is not None:
        sinks.append(FunctionSink(options.on_scored, functions, writer))
    return tuple(sinks)


def _sender(store: TraceStore | None, registry: Registry | None) -> Sender | None:
    if store is None or registry is None:
        return None
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry.sender import drain_all, sender_for

    worker.at_finish["sending"] = drain_all
    return sender_for(store, registry)


def _paused_runs(
    options: HandlerOptions,
    settings: Settings,
    writer: StoreWriter | None,
    agent_id: str | None,
) -> PausedRunStore | None:
    if writer is None or settings.paused_days <= 0:
        return None
    return PausedRunStore(
        writer,
        domain=options.domain,
        agent_id=agent_id,
        rules=settings.redaction,
        days=settings.paused_days,
        max_paused=settings.max_paused_runs,
    )


def _recorder(
    recorder_class: type[Recorder],
    options: HandlerOptions,
    settings: Settings,
    agent_id: str | None,
    paused_runs: PausedRunStore | None,
    receivers: Sequence[ScoreReceiver],
    *,
    add: Callable[[RunRecord], None],
    add_paused: Callable[[RunRecord], None],
) -> Recorder:
    bounds = Bounds(
        text_chars=settings.max_text_chars,
        run_chars=settings.max_run_chars,
        steps=settings.max_steps,
        open_runs=settings.max_open_runs,
        run_timeout_s=settings.run_timeout_s,
    )
    return recorder_class(
        bounds,
        add,
        ambient=ambient_run_id,
        scope=(options.domain, agent_id),
        keep_output=options.outcome is not None,
        objective_of=(
            None if options.objective is None else resolve.never_raising(options.objective)
        ),
        store_paused=None if paused_runs is None else add_paused,
        forget=None if paused_runs is None else paused_runs.forget,
        receivers=receivers,
        namespace_keys=settings.run_keys.namespace,
    )
