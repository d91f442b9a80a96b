"""Puts the parts of a handler together: recorder, engine, and what the handler adds to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.near_names import warn_of_domain
from kp_langchain.recording import exit_hooks
from kp_langchain.recording import options as resolve
from kp_langchain.recording.bounds import Bounds, RecordOwner
from kp_langchain.recording.counters import Counters
from kp_langchain.recording.engine import Engine, Work, engine_of
from kp_langchain.recording.handler_context import HandlerContext
from kp_langchain.recording.paused_in_store import PausedRunStore
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_builder import RunBuilder
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.score_receivers import ReceiverSink, TraceFinder
from kp_langchain.recording.store_writes import PauseDeletion, PauseWrite, VerdictWrite
from kp_langchain.recording.user_calls import JUDGING, UserFunctions, lane_for
from kp_langchain.recording.windows import Windows
from kp_langchain.store.backoff import Backoff

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.recording.options import HandlerOptions
    from kp_langchain.registry import Registry
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class RunIntake:
    """Takes the finished and the paused runs of one handler to the engine.

    Attributes:
        engine: The engine of the handler's store.
        context: What the handler adds to it.
        paused_runs: The paused runs of the handler, in its store; None where they are not kept.
        max_queue: Most finished runs that wait, in this process.
    """

    engine: Engine
    context: HandlerContext
    paused_runs: PausedRunStore | None
    max_queue: int

    @property
    def keeps_paused(self) -> bool:
        """Whether what paused runs recorded is kept in the store."""
        return self.paused_runs is not None

    @property
    def redactor(self) -> Callable[[str], str] | None:
        """The user's function that redacts further, if there is one."""
        return self.context.builder.redactor

    def prepare(self) -> None:
        """Start the threads when the first run begins, so that it does not wait when it ends."""
        self.engine.prepare(self.context)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all runs that ended so far are judged, stored and announced.

        Args:
            timeout_s: Seconds to wait at most; None for no limit.

        Returns:
            Whether that was done in time.
        """
        self.prepare()
        return self.engine.wait(timeout_s, self.context)

    def add_verdict(self, run: str, verdict: Verdict) -> None:
        """Take a verdict on a run that ended; it is written behind the run itself.

        Args:
            run: A trace id, a run id, or the beginning of either.
            verdict: The verdict; its note is not redacted yet.
        """
        self.context.counters.add("queued_verdicts")
        self._start_lane()
        number = self.context.announced_number
        self.engine.submit(VerdictWrite(self.engine, self.context, run, verdict, number))

    def add(self, record: RunRecord) -> None:
        """Take a finished run; drop it (counted) if too many wait."""
        counters = self.context.counters
        if self._is_of_verifier():
            # a run started by a verifier; verifying it would recurse
            counters.add("by_verifiers")
            return
        if self._is_full():
            counters.add("dropped")
            warn_once(
                "queue full",
                "%d finished runs wait to be scored, so new ones are dropped and counted under "
                "'dropped'; raise max_queue or score less",
                self.max_queue,
            )
            return
        counters.add("queued")
        self._start_lane()
        self.engine.submit(Work(self.context, record))

    def add_paused(self, record: RunRecord) -> None:
        """Have what a paused run recorded kept in the store, too."""
        if self.paused_runs is None or self._is_of_verifier() or self._is_full():
            return
        self._start_lane()
        self.engine.submit(PauseWrite(self.engine, self.context, self.paused_runs, record))

    def forget_paused(self, thread_id: str, until: datetime) -> None:
        """Have the run paused in a thread by a time, in UTC, deleted from the store."""
        if self.paused_runs is not None:
            self.engine.submit(PauseDeletion(self.context, self.paused_runs, thread_id, until))

    def _is_full(self) -> bool:
        return self.engine.waiting(self.context) >= self.max_queue

    def _is_of_verifier(self) -> bool:
        verifiers = self.context.verifiers
        return verifiers is not None and verifiers.asking

    def _start_lane(self) -> None:
        # When a run ends, because an interpreter that is ending starts no threads.
        if self.context.has_user_code:
            self.context.functions.lane.prepare()


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of one handler.

    Attributes:
        store: Where runs are kept; None to keep nothing.
        sender: Sends to the registry; None without one.
        recorder: Turns events into records.
        intake: Takes the records to the engine.
    """

    store: TraceStore | None
    sender: Sender | None
    recorder: Recorder
    intake: RunIntake


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
    sender = _sender(store, registry)
    paused_runs = _paused_runs(options, settings, store, agent_id)
    receivers = resolve.receivers_of(options.send_scores_to, settings)
    owner = _owner(options, settings, agent_id)
    engine = engine_of(store, settings.max_queue)
    windows = Windows(None, Backoff()) if store is None else engine.windows
    user_code = (options.scorer, options.outcome, options.on_scored, redactor, *options.verifiers)
    key = (id(store), *map(resolve.identity_of_function, user_code))
    lane = lane_for(key, "kp_langchain", JUDGING)
    functions = UserFunctions(lane, settings.function_timeout_s, owner.counters)
    context = HandlerContext(
        builder=RunBuilder(
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
        scorer=options.scorer or windows.scorer(),
        is_foreign_scorer=resolve.is_foreign(options.scorer),
        windows=windows,
        verifiers=resolve.verifiers_of(
            options.verifiers, options.verifier_timeout_s, owner.counters
        ),
        functions=functions,
        sender=sender,
        receivers=tuple(ReceiverSink(one, owner.counters, settings.max_queue) for one in receivers),
        on_scored=options.on_scored,
    )
    intake = RunIntake(engine, context, paused_runs, settings.max_queue)
    objective = options.objective
    recorder = recorder_class(
        owner,
        intake,
        is_live=True,
        keep_output=options.outcome is not None,
        objective_of=None if objective is None else resolve.never_raising(objective),
        find_traces=TraceFinder(receivers, owner.counters) if receivers else None,
    )
    return Assembly(store, sender, recorder, intake)


def _store(options: HandlerOptions, settings: Settings) -> TraceStore | None:
    store = resolve.store_of(options.store, settings)
    if store is not None and not settings.disabled:
        # Runs that end while a thread imports the drivers would be lost if the process is killed.
        store.load_drivers()
    return store


def _sender(store: TraceStore | None, registry: Registry | None) -> Sender | None:
    if store is None or registry is None:
        return None
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry.sender import drain_all, sender_for

    exit_hooks.at_finish["sending"] = drain_all
    return sender_for(store, registry)


def _paused_runs(
    options: HandlerOptions,
    settings: Settings,
    store: TraceStore | None,
    agent_id: str | None,
) -> PausedRunStore | None:
    if store is None or settings.paused_days <= 0:
        return None
    return PausedRunStore(
        store,
        domain=options.domain,
        agent_id=agent_id,
        rules=settings.redaction,
        days=settings.paused_days,
        max_paused=settings.max_paused_runs,
    )


def _owner(options: HandlerOptions, settings: Settings, agent_id: str | None) -> RecordOwner:
    bounds = Bounds(
        text_chars=settings.max_text_chars,
        run_chars=settings.max_run_chars,
        steps=settings.max_steps,
        open_runs=settings.max_open_runs,
        run_timeout_s=settings.run_timeout_s,
    )
    return RecordOwner(
        bounds,
        Counters(),
        scope=(options.domain, agent_id),
        namespace_keys=settings.run_keys.namespace,
    )
