"""Puts the parts of a handler together: recorder, intake, and what its engine needs of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.near_names import warn_of_domain
from kp_langchain.recording import options as resolve
from kp_langchain.recording.bounds import Bounds, Counters, RecordOwner
from kp_langchain.recording.engine import Engine, engine_of
from kp_langchain.recording.handler_context import HandlerContext
from kp_langchain.recording.outcome import Verifiers
from kp_langchain.recording.pauses import HandlerPauses
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_builder import RunBuilder
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.score_receivers import TraceFinder, receivers_of, score_queue
from kp_langchain.recording.store_writer import PauseWrite, VerdictWrite, Work
from kp_langchain.recording.user_calls import JUDGING, UserFunctions, lane_for
from kp_langchain.scoring.scorer import Scorer

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
        max_queue: Most finished runs that wait, in this process.
    """

    engine: Engine
    context: HandlerContext
    max_queue: int

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
        self._start_threads()
        self.engine.submit(VerdictWrite(self.context, run, verdict))

    def add(self, record: RunRecord) -> None:
        """Take a run that ended or paused; drop it (counted) if too many wait."""
        counters, verifiers = self.context.counters, self.context.verifiers
        if verifiers is not None and verifiers.asking:
            # a run started by a verifier; verifying it would recurse
            counters.add("by_verifiers")
        elif self.engine.waiting(self.context) >= self.max_queue:
            counters.add("dropped")
            warn_once(
                "queue full",
                "%d finished runs wait to be scored, so new ones are dropped and counted under "
                "'dropped'; raise max_queue or score less",
                self.max_queue,
            )
        else:
            is_paused = record.ending == "paused"
            counters.add("paused" if is_paused else "queued")
            self._start_threads()
            self.engine.submit(
                PauseWrite(self.context, record) if is_paused else Work(self.context, record)
            )

    def _start_threads(self) -> None:
        # When a run ends, because an interpreter that is ending starts no threads.
        if self.context.has_user_code:
            self.context.functions.lane.prepare()


def assemble(
    options: HandlerOptions, settings: Settings, recorder_class: type[Recorder] = Recorder
) -> tuple[Recorder, RunIntake]:
    """Make the parts of a handler: what records its runs, and what takes them to the engine.

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
    tools = options.send_scores_to
    receivers = receivers_of(settings.send_scores_to if tools is None else tools)
    engine = engine_of(store, settings.max_queue)
    windows = engine.windows_of_handler()
    functions = _user_functions(options, settings, redactor, store)
    counters = functions.counters
    verifiers = Verifiers(
        tuple(options.verifiers), replace(functions, time_limit_s=options.verifier_timeout_s)
    )
    context = HandlerContext(
        store=store,
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
            paused_runs=HandlerPauses.of(store, (options.domain, agent_id), settings),
        ),
        scorer=options.scorer or windows.scorer(),
        is_foreign_scorer=_is_foreign(options.scorer),
        windows=windows,
        verifiers=verifiers if options.verifiers else None,
        functions=functions,
        sender=sender,
        score_queues=tuple(
            score_queue(one, store, counters, settings.max_queue) for one in receivers
        ),
        on_scored=options.on_scored,
    )
    intake = RunIntake(engine, context, settings.max_queue)
    find_traces = TraceFinder(receivers, counters) if receivers else None
    return recorder_class(_owner(options, settings, context), intake, find_traces), intake


def _store(options: HandlerOptions, settings: Settings) -> TraceStore | None:
    store = resolve.store_of(options.store, settings)
    if store is not None and not settings.disabled:
        # Runs that end while a thread imports the drivers would be lost if the process is killed.
        store.load_drivers()
    return store


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


def _owner(options: HandlerOptions, settings: Settings, context: HandlerContext) -> RecordOwner:
    objective = options.objective
    return RecordOwner(
        Bounds.of(settings),
        context.counters,
        namespace_keys=settings.run_keys.namespace,
        is_live=True,
        keeps_output=options.outcome is not None,
        objective_of=None if objective is None else resolve.never_raising(objective),
    )


def _identity(function: object) -> Hashable:
    """Return a key that is equal for functions with the same code.

    Handlers made per request often bring a function made per request: its code is the same.
    """
    return getattr(function, "__code__", None) or (None if function is None else id(function))


def _is_foreign(scorer: object) -> bool:
    """Return whether a scorer, its embedder or its memory is the user's own code."""
    if scorer is None:
        return False
    return type(scorer) is not Scorer or scorer.calls_user_code


def _sender(store: TraceStore | None, registry: Registry | None) -> Sender | None:
    if store is None or registry is None:
        return None
    # Imported here because it takes 25 ms, and most handlers send nothing.
    from kp_langchain.registry.sender import sender_for

    return sender_for(store, registry)
