"""`KPCallbackHandler`: LangChain's callbacks in, plain events for the recorder out.

Nothing else in the package knows LangChain's callbacks. The handler is a plain
`BaseCallbackHandler` that runs inline, because a tracer costs the agent about 110 us an event and
a handler that is not inline 40 % CPU in async agents.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from kp_langchain._host_exceptions import came_from_outside
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.config import DomainPolicy, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.gate import ScoredTrace
from kp_langchain.near_names import warn_of_domain
from kp_langchain.recording import options, paused_in_memory, worker
from kp_langchain.recording.bounds import Bounds
from kp_langchain.recording.drafter import Drafter, Judge
from kp_langchain.recording.graph_events import hear_graph_events, without_graph_events
from kp_langchain.recording.options import Default
from kp_langchain.recording.outcome import OutcomeFunction
from kp_langchain.recording.paused_in_store import PausedRunStore
from kp_langchain.recording.pipeline import Pipeline
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.run_start import Start
from kp_langchain.recording.sinks import FunctionSink, LogSink, Sink, StoreSink
from kp_langchain.recording.store_writer import writer_of
from kp_langchain.recording.time_limit import is_own_thread
from kp_langchain.recording.user_functions import UserFunctions
from kp_langchain.recording.verdict_reader import plain_number
from kp_langchain.scoring.scorer import Scorer, default_scorer
from kp_langchain.store import TraceStore
from kp_langchain.store.notes import use_redactor
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.recording.draft import Draft
    from kp_langchain.recording.verifiers import Verifier
    from kp_langchain.registry import Registry
    from kp_langchain.registry.sender import Sender

Event = TypeVar("Event", bound=Callable[..., None])
_STORE_AGAIN_S = 0.1
_REST_BETWEEN_SENDS_S = 1.0
_NOTHING: Final[Mapping[str, Any]] = {}


def _guarded(event: Event) -> Event:
    """Keep whatever goes wrong in a callback away from the agent; count it.

    What a signal handler raises meanwhile is the host's, and passes.
    """

    @wraps(event)
    def call(self: KPCallbackHandler, *args: Any, **kwargs: Any) -> None:
        try:
            event(self, *args, **kwargs)
        except BaseException as error:  # not even a SystemExit of our making
            if came_from_outside(error):
                raise
            self._callback_failed(event.__name__, error)

    return cast("Event", call)


class _OnlyFromOutside:
    """LangChain asks a handler, in its `except` block, whether to raise what it caught again."""

    def __get__(self, handler: object, kind: type | None = None) -> bool:
        error = sys.exc_info()[1]
        return error is not None and came_from_outside(error)


class KPCallbackHandler(BaseCallbackHandler):
    """Records agent runs, scores each when it ends, and keeps those that pass their threshold.

    Give it to any runnable: `agent.invoke(inputs, {"callbacks": [handler]})`. One handler may
    serve any number of runs at once, from any thread or event loop. It never raises into the
    agent and never makes it wait: scoring happens on a worker thread.

    Args:
        domain: The runs' domain, which chooses weights and threshold; a run's own
            `metadata={"kp_domain": ...}` comes before it. `{"kp_task": ...}` there tells repeats
            of one task, for calibration; by default they are those with the same objective.
        policy: What holds for every run of this handler, before environment and `kp.toml`; or a
            mapping from domain to such a policy.
        scorer: The scorer; by default one for the whole process.
        store: A `TraceStore`, a database URL or file, or None to keep nothing. By default the
            database of the settings (`KP_DATABASE_URL`, else a SQLite file in the user's data
            folder).
        registry: Where traces go that passed and whose visibility is `org` or `network`: a
            `Registry` or its URL. By default the registry of the settings (`KP_REGISTRY_URL`);
            without one, nothing goes to the network.
        outcome: Judges finished runs: given a `FinishedRun` it returns a success (bool), a
            confidence (0 to 1), a mapping with `success` and `confidence`, or None for no opinion.
        verifiers: Judge finished runs that neither `outcome` nor a `kp.outcome` event called a
            success or a failure, one after the other until one does. Each is a function like
            `outcome`, may be async, and may add a `note`. It runs on the worker and may send what
            it is given elsewhere, such as to a language model: every text of the `FinishedRun` is
            redacted, and it has neither `output` nor `metadata`.
        verifier_timeout_s: Longest wait for one verifier, in seconds.
        agent_id: Who ran; written as `kp:agent:<id>`. By default the agent of the settings, else
            the one that the registry's key belongs to: a registry deletes only its own agent's.
        on_scored: Called on the worker with each `ScoredTrace`, after the store was given it.
        objective: Tells the task from the root run's inputs; None or "" means that it cannot.
        redactor: Redacts further: given each text that is left after our own redaction, on the
            worker, it returns what is to be kept of it. A run for which it fails is not
            contributed.

    Raises:
        ConfigError: An argument or setting cannot be used; the message says which and why.
    """

    run_inline = True
    raise_error = cast("bool", _OnlyFromOutside())

    def __init__(
        self,
        domain: str = "default",
        *,
        policy: DomainPolicy | Mapping[str, DomainPolicy] | None = None,
        scorer: Scorer | None = None,
        store: TraceStore | str | Path | Default | None = Default.STORE,
        registry: Registry | str | None = None,
        outcome: OutcomeFunction | None = None,
        verifiers: Sequence[Verifier] = (),
        verifier_timeout_s: float = 10.0,
        agent_id: str | None = None,
        on_scored: Callable[[ScoredTrace], object] | None = None,
        objective: Callable[[Any], str | None] | None = None,
        redactor: Callable[[str], str] | None = None,
    ) -> None:
        super().__init__()
        others = set(vars(self))  # what a subclass has set before; `__getstate__` sends it
        options.check(
            domain=domain,
            scorer=scorer,
            outcome=outcome,
            verifiers=verifiers,
            verifier_timeout_s=verifier_timeout_s,
            agent_id=agent_id,
            on_scored=on_scored,
            objective=objective,
            redactor=redactor,
        )
        given = {
            "domain": domain, "policy": policy, "scorer": scorer, "store": store,
            "registry": registry, "outcome": outcome, "verifiers": verifiers,
            "verifier_timeout_s": verifier_timeout_s, "agent_id": agent_id,
            "on_scored": on_scored, "objective": objective, "redactor": redactor,
        }  # fmt: skip
        settings = Settings.current()
        self.domain = domain
        self._disabled = settings.disabled
        self._closed = False
        self._last: ScoredTrace | None = None
        self._has_looked = False
        self._hears_graphs = False
        self._prepared_in = 0  # the process in which all was made ready for the first run
        self._max_queue = settings.max_queue
        domains = options.domains(policy, scorer, settings)
        warn_of_domain(domain, domains)
        kept_in = options.store_of(store, settings)
        goes_to = options.registry_of(registry, kept_in, settings)
        agent_id = options.agent_of(agent_id, settings, goes_to)
        worker.exit_timeout_s = settings.exit_timeout_s
        paused_in_memory.set_limit(settings.max_paused_runs)
        self._writer = None if kept_in is None else writer_of(kept_in, settings.max_queue)
        paused_runs = None
        if self._writer is not None and settings.paused_days > 0:
            paused_runs = PausedRunStore(
                self._writer,
                domain=domain,
                agent_id=agent_id,
                rules=settings.redaction,
                days=settings.paused_days,
                most=settings.max_paused_runs,
            )
        self._recorder = Recorder(
            Bounds(
                text_chars=settings.max_text_chars,
                run_chars=settings.max_run_chars,
                steps=settings.max_steps,
                open_runs=settings.max_open_runs,
                run_timeout_s=settings.run_timeout_s,
            ),
            self._deliver,
            ambient=_ambient_run_id,
            scope=(domain, agent_id),
            keep_output=outcome is not None,
            objective_of=None if objective is None else options.harmless(objective),
            shelve=None if paused_runs is None else self._shelve,
            forget=None if paused_runs is None else paused_runs.forget,
        )
        self._counters = self._recorder.counters
        if kept_in is not None and not self._disabled:
            # Runs that finish while a thread imports it would be lost if the process is killed.
            kept_in.load_drivers()
        self._to_send = partial(options.to_send, given, kept_in)
        self._sender: Sender | None = None
        if kept_in is not None and goes_to is not None:
            from kp_langchain.registry.sender import drain_all, sender_for

            self._sender = sender_for(kept_in, goes_to)
            worker.at_finish["sending"] = drain_all
        if redactor is None:
            redactor = settings.redaction.load_redactor()
        foreign = (scorer, outcome, on_scored, redactor, *verifiers)
        self._has_foreign_functions = any(one is not None for one in foreign)
        functions = UserFunctions(
            lane=worker.lane_for((id(kept_in), *map(options.kind_of, foreign))),
            time_limit_s=settings.function_timeout_s,
            counters=self._counters,
        )
        self._functions = functions
        sinks: list[Sink] = [LogSink(has_registry=self._sender is not None)]
        if self._writer is not None:
            sinks.insert(0, StoreSink(self._writer, self._sender, self._counters))
        if on_scored is not None:
            sinks.append(FunctionSink(on_scored, functions, self._writer))
        self._pipeline = Pipeline(
            drafter=Drafter(
                domain=domain,
                policy_for=options.policies(policy, settings),
                domains=domains,
                agent_id=agent_id,
                outcome=outcome,
                registry=self._sender.registry.url if self._sender else None,
                rules=settings.redaction,
                run_keys=settings.run_keys,
                redactor=redactor,
                functions=functions,
                counters=self._counters,
                paused_runs=paused_runs,
            ),
            scorer=scorer or default_scorer(),
            foreign_scorer=scorer is not None,
            verifiers=options.verifiers_of(verifiers, verifier_timeout_s, self._counters),
            functions=functions,
            counters=self._counters,
            writer=self._writer,
            sinks=tuple(sinks),
        )
        if kept_in is not None and redactor is not None:
            use_redactor(kept_in.location, redactor, owner=self)
        self._own = frozenset({*vars(self), "_own"} - others)

    # ---------------------------------------------------------------- copies

    def __reduce__(self) -> tuple[Any, ...]:
        # By default pickle asks for the handler's present class, which may be made for LangGraph.
        return _new, (without_graph_events(type(self)),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        # To another process (spawn, joblib, Ray) it travels as its arguments, passwords and keys in
        # them included; what was left to the settings is up to the settings there. What a subclass
        # has besides goes with it.
        others = {name: value for name, value in vars(self).items() if name not in self._own}
        return {"arguments": self._to_send(), "others": others}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state["others"])
        KPCallbackHandler.__init__(self, **state["arguments"])

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        # Frameworks copy lists of callbacks; whoever made the handler asks it for the runs.
        return self

    # ---------------------------------------------------------------- for its owner

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every run that ended so far is scored and stored.

        What passed may still be on its way to a registry then; it waits in the store's outbox.

        Args:
            timeout: Seconds to wait at most; None waits as long as it takes.

        Returns:
            Whether that was done in time. False, too, when the store could not take a run yet, and
            at once when called from `on_scored`.
        """
        self._recorder.sweep()
        if is_own_thread():
            return False
        until = None if timeout is None else time.monotonic() + timeout

        def left_s() -> float | None:
            return None if until is None else max(0.0, until - time.monotonic())

        if self._writer is not None:
            self._writer.start(self._adopt)
            self._writer.answers(left_s())  # what an earlier process left is in the lane then
        lane = self._functions.lane
        return (
            worker.intake.wait(left_s())
            and lane.wait(left_s())
            and (self._writer is None or (self._writer.wait(left_s()) and lane.wait(left_s())))
        )

    def report_outcome(
        self,
        run: UUID | str,
        *,
        success: bool | None = None,
        confidence: float | None = None,
        note: str | None = None,
    ) -> None:
        """Say how a run really ended: while it runs, right after it, or days later.

        The run is then scored again, and contributed or withdrawn as the new score asks; see
        `TraceStore.report_outcome`. That happens on the worker; this returns at once. A run that
        the store does not know is counted as `verdict_errors` in `stats`, with one warning. Give
        hundreds at once to `TraceStore.report_outcome`: here they keep finished runs waiting.

        Args:
            run: LangChain's id of the root run, the trace's id, or the beginning of either.
            success: Whether it reached its goal.
            confidence: How sure one can be of its result, 0 to 1; by default 1.0 for a success
                and 0.0 for a failure.
            note: Why, in words; redacted before it is written.

        Raises:
            ConfigError: Nothing is said, a value cannot be used, or this handler has no store.
        """
        verdict = Verdict(plain_number(success), plain_number(confidence), note)  # type: ignore[arg-type]
        writer, pipeline = self._writer, self._pipeline
        if writer is None:
            raise ConfigError(
                "this handler keeps no runs (store=None), so none can be judged later"
            )
        if self._disabled or self._recorder.report_outcome(_as_uuid(run), verdict):
            return

        def judge() -> None:
            try:
                redacted = pipeline.drafter.redact_note(verdict)
                writer.write_verdict(
                    str(run), redacted, self._sender, self._counters, self._deliver_again
                )
            finally:
                self._counters.add("queued_verdicts", -1)

        self._counters.add("queued_verdicts")
        # Behind the run itself, whether that still waits for intake or for its score.
        worker.intake.submit(lambda: self._functions.lane.submit(judge))

    def send(self, timeout: float) -> bool:
        """Flush, then send to the registry what this process's store has pending for it.

        For programs that are frozen or ended without notice: others need not wait, because the
        next process goes on where this one ended.

        Calls in a loop cost next to nothing: where the registry is to be left alone for longer than
        `timeout`, or takes nothing at all, this rests for a second, or `timeout` if that is less,
        and returns.

        Args:
            timeout: Seconds to take at most.

        Returns:
            Whether nothing is left to be stored, sent or withdrawn. True without a registry.
        """
        until = time.monotonic() + timeout
        flushed = self.flush(timeout)
        if self._sender is None or self._writer is None:
            return flushed
        # A store that another process holds for a moment would leave these runs behind.
        while (
            not flushed
            and self._writer.has_failed_writes
            and (left_s := until - time.monotonic()) > 0.0
        ):
            time.sleep(min(_STORE_AGAIN_S, left_s))
            flushed = self.flush(max(0.0, until - time.monotonic()))
        sent = self._sender.drain(max(0.0, until - time.monotonic()))
        # While it was sent, the store may have taken what it could not take before.
        done = sent and (flushed or self.flush(max(0.0, until - time.monotonic())))
        if not done:
            time.sleep(max(0.0, min(_REST_BETWEEN_SENDS_S, until - time.monotonic())))
        return done

    def last(self, timeout: float | None = None) -> ScoredTrace | None:
        """Wait like `flush`, then return this handler's newest scored run.

        Args:
            timeout: Seconds to wait at most; None waits as long as it takes.

        Returns:
            None if no run was scored (in time). So it is where recording is switched off, which one
            warning says.
        """
        if self._disabled:
            warn_once(
                "disabled",
                "recording is switched off (KP_DISABLED, or `disabled` in kp.toml), so there is no "
                "scored run and last() returns None",
            )
        self.flush(timeout)
        return self._last

    def stats(self) -> dict[str, int]:
        """Count the runs this handler saw, by fate.

        Returns:
            `runs` seen; of these `open`, `paused`, `queued` now; `scored`, made up of
            `contributed` and `below_threshold`; `cancelled` (also half-read streams), `abandoned`
            (never ended, or paused and then asked something new), `handed_over` (resumed with
            another handler, left to the process that this one was forked from, or paused, in the
            store, and given up here by `close` or `max_paused_runs`), `empty` (nothing to record),
            `dropped` (queue full), `failed`. A run that paused here and is resumed in another
            process stays `paused` here; there it is one of the `runs`, and `continued`.
            Besides: of the scored ones those that are `waiting_to_store` now (with verdicts on
            runs), and `not_stored`, given up; `rescored` after a verdict, `verdict_errors`;
            `adopted`: runs of a process that is gone, scored here and counted nowhere else;
            `callback_errors`, `scorer_errors`, `outcome_errors`, `redaction_errors`,
            `on_scored_errors`, `dropped_steps`, and `dropped_texts`: texts of steps that were left
            out because their run had reached `max_run_chars`; `by_verifiers`, runs of verifiers
            that have this handler, too, which are not scored; `verifier_errors`,
            `verifier_timeouts`, and `verifiers_skipped`, not asked because too many late ones hang;
            `over_budget`: runs whose scoring took longer than `latency_budget_ms`; `continued`:
            runs that another process had begun; and `paused_expired`: paused runs of any process
            that this one removed from the store, because they were older than `paused_days` or more
            than `max_paused_runs`.
        """
        names = (
            "runs", "scored", "contributed", "below_threshold", "cancelled", "abandoned",
            "handed_over", "empty", "dropped", "failed", "not_stored", "callback_errors",
            "outcome_errors", "redaction_errors", "on_scored_errors", "dropped_steps",
            "dropped_texts", "queued", "waiting_to_store", "over_budget", "verifier_errors",
            "verifier_timeouts", "verifiers_skipped", "by_verifiers", "rescored", "verdict_errors",
            "scorer_errors", "adopted", "continued",
        )  # fmt: skip
        self._recorder.sweep()
        counts = self._counters.counts()
        return {
            **{name: counts.get(name, 0) for name in names},
            "open": self._recorder.open_count,
            "paused": paused_in_memory.count(self._recorder.owner),
            "paused_expired": 0 if self._writer is None else self._writer.expired_halves,
        }

    def close(self, timeout: float | None = None) -> None:
        """Score and store what ended, abandon what is still under way, and record nothing more.

        `with handler:` and `async with handler:` do so at the end of the block, where they wait at
        most `exit_timeout_s`; the latter waits in a thread, so that the event loop goes on.

        Args:
            timeout: Seconds to wait at most; None waits as long as it takes.
        """
        self._closed = True
        until = None if timeout is None else time.monotonic() + timeout
        if paused_in_memory.count(self._recorder.owner):
            self.flush(timeout)  # what waits for a human is in the store then
        self._recorder.close()
        self.flush(None if until is None else max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(worker.exit_timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_a_thread(lambda: self.close(worker.exit_timeout_s))

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Store, and send, what is recorded, when a web service ends.

        A server such as uvicorn may end its process without Python's exit hooks. It waits for
        this one: `FastAPI(lifespan=handler.lifespan)`, the same for Starlette; in a lifespan of
        your own, `async with handler.lifespan(): yield`. It waits at most `exit_timeout_s`, and
        the event loop goes on meanwhile. The handler remains usable, since an application may be
        started again, as tests do.
        """
        try:
            yield
        finally:
            await _in_a_thread(lambda: self.send(worker.exit_timeout_s))

    # ---------------------------------------------------------------- inside

    def _deliver(self, record: RunRecord) -> None:
        if self._pipeline.verifiers is not None and self._pipeline.verifiers.asking:
            self._counters.add("by_verifiers")  # a judge's own run: judging it would have no end
            return
        lane = self._functions.lane
        if worker.intake.waiting + lane.waiting >= self._max_queue:
            self._counters.add("dropped")
            warn_once(
                "queue full",
                "%d finished runs wait to be scored, so new ones are dropped and counted under "
                "'dropped'; raise max_queue or score less",
                self._max_queue,
            )
            return
        # Now, because an interpreter that is ending starts no threads.
        lane.start(calls=self._has_foreign_functions)
        if self._writer is not None:
            self._writer.start(self._adopt)
        self._counters.add("queued")
        record.is_settled = True
        worker.intake.submit(lambda: self._take_in(record))

    def _take_in(self, record: RunRecord) -> None:
        if self._sender is not None and not self._has_looked:
            self._has_looked = True
            self._sender.wake()  # an earlier process may have left something to send
        lane = self._functions.lane
        if self._pipeline.drafter.redactor is None and record.resumption is None:
            made = self._pipeline.draft(record)
            lane.submit(lambda: self._score(made))
        else:  # the caller's function, or the store, may take its time, or all of it
            lane.submit(lambda: self._score(self._pipeline.draft(record)))

    def _shelve(self, record: RunRecord) -> None:
        """Keep what a paused run recorded in the store, too."""
        pipeline, lane = self._pipeline, self._functions.lane
        if pipeline.verifiers is not None and pipeline.verifiers.asking:
            return
        drafter = pipeline.drafter
        if self._writer is None or worker.intake.waiting + lane.waiting >= self._max_queue:
            return
        lane.start(calls=self._has_foreign_functions)
        self._writer.start(self._adopt)
        if drafter.redactor is None and record.resumption is None:
            worker.intake.submit(lambda: drafter.shelve(record))
        else:  # as in `_take_in`
            worker.intake.submit(lambda: lane.submit(lambda: drafter.shelve(record)))

    def _score(self, made: tuple[Draft, Judge | None] | None) -> None:
        try:
            scored = None if made is None else self._pipeline.score(*made)
            if scored is not None:
                self._pipeline.deliver(scored, to_user_code=False)
        finally:
            self._counters.add("queued", -1)
        if scored is not None:
            self._last = scored
            self._pipeline.deliver(scored, to_user_code=True)

    def _deliver_again(self, scored: ScoredTrace) -> None:
        """Deliver a run that was scored again after a verdict; called on the store's thread."""
        self._pipeline.deliver(scored, to_user_code=False)
        self._functions.lane.submit(lambda: self._pipeline.deliver(scored, to_user_code=True))

    def _adopt(self, draft: Draft) -> None:
        """Have a run scored that a process which is gone has left."""

        def score() -> None:
            scored = self._pipeline.score(draft, is_adopted=True)
            if scored is not None:
                self._pipeline.deliver(scored, to_user_code=False)
                self._pipeline.deliver(scored, to_user_code=True)

        self._counters.add("adopted")
        self._functions.lane.submit(score)

    def _callback_failed(self, event: str, error: BaseException) -> None:
        self._counters.add("callback_errors")
        warn_once(
            f"{event}:{type(error).__name__}",
            "%s failed with %s inside kp_langchain; the agent is not affected, the run may be "
            "recorded incompletely",
            event,
            describe_error(error),
        )

    @property
    def _off(self) -> bool:
        return self._disabled or self._closed

    # LangChain asks these before it calls: switched off, the handler costs nothing.
    ignore_llm = ignore_chat_model = ignore_chain = ignore_agent = _off
    ignore_retriever = ignore_retry = ignore_custom_event = _off

    # ---------------------------------------------------------------- LangChain's callbacks

    @_guarded
    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        if not self._hears_graphs:
            self._hears_graphs = hear_graph_events(self)
        if self._prepared_in != os.getpid():
            self._prepared_in = os.getpid()
            # By the time this run ends all is there, and it need not wait for that in memory.
            worker.intake.start()
            if self._writer is not None:
                self._writer.start(self._adopt)
        self._recorder.chain_started(
            Start(run_id, parent_run_id, name or _name(serialized), metadata or _NOTHING, tags),
            inputs,
        )

    @_guarded
    def on_chain_end(self, outputs: Any, *, run_id: UUID, inputs: Any = None, **_: Any) -> None:
        self._recorder.chain_ended(run_id, outputs, inputs)

    @_guarded
    def on_chain_error(
        self, error: BaseException, *, run_id: UUID, inputs: Any = None, **_: Any
    ) -> None:
        self._recorder.chain_failed(run_id, error, inputs)

    @_guarded
    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[Any]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self._recorder.model_started(
            Start(run_id, parent_run_id, name or _name(serialized), metadata or _NOTHING, tags),
            messages[0] if messages else (),
        )

    @_guarded
    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self._recorder.model_started(
            Start(run_id, parent_run_id, name or _name(serialized), metadata or _NOTHING, tags),
            prompts,
        )

    @_guarded
    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        generation = _first_of(response.generations)
        message = getattr(generation, "message", None)
        metadata = getattr(message, "response_metadata", None) or _NOTHING
        info = getattr(generation, "generation_info", None) or _NOTHING
        logprobs = (metadata if "logprobs" in metadata else info).get("logprobs")
        text = getattr(generation, "text", "") or ""
        self._recorder.model_answered(run_id, message, text, logprobs, info)

    @_guarded
    def on_llm_error(
        self, error: BaseException, *, run_id: UUID, response: Any = None, **_: Any
    ) -> None:
        generation = _first_of(getattr(response, "generations", None) or ())
        self._recorder.call_failed(run_id, error, getattr(generation, "message", None))

    @_guarded
    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self._recorder.tool_started(
            Start(
                run_id,
                parent_run_id,
                _name(serialized) or name or "tool",
                metadata or _NOTHING,
                tags,
            ),
            input_str if inputs is None else inputs,
            tool_call_id,
        )

    @_guarded
    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        self._recorder.tool_answered(run_id, output)

    @_guarded
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._recorder.call_failed(run_id, error)

    @_guarded
    def on_retriever_start(
        self,
        serialized: dict[str, Any] | None,
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        name = name or _name(serialized) or "retriever"
        self._recorder.retriever_started(
            Start(run_id, parent_run_id, name, metadata or _NOTHING, tags), query
        )

    @_guarded
    def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **_: Any) -> None:
        self._recorder.tool_answered(run_id, documents)

    @_guarded
    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._recorder.call_failed(run_id, error)

    @_guarded
    def on_retry(self, retry_state: Any, *, run_id: UUID, **_: Any) -> None:
        tried = getattr(retry_state, "outcome", None)
        error = tried.exception() if tried is not None and tried.failed else None
        self._recorder.call_retried(run_id, retry_state.attempt_number, error)

    @_guarded
    def on_agent_action(self, action: Any, *, run_id: UUID, **_: Any) -> None:
        self._recorder.agent_acted(run_id, action.tool, action.tool_input)

    @_guarded
    def on_agent_finish(self, finish: Any, *, run_id: UUID, **_: Any) -> None:
        self._recorder.agent_finished(run_id, finish.return_values)

    @_guarded
    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **_: Any) -> None:
        if name == "kp.outcome":
            self._recorder.report_outcome(run_id, data)

    # LangGraph's own events, which only its kind of handler gets; see hear_graph_events.

    @_guarded
    def on_interrupt(self, event: Any) -> None:
        self._recorder.graph_paused(event.run_id, getattr(event, "checkpoint_id", None))

    @_guarded
    def on_resume(self, event: Any) -> None:
        self._recorder.graph_resumed(event.run_id, getattr(event, "checkpoint_id", None))


async def _in_a_thread(function: Callable[[], object]) -> None:
    """Call a function in a thread of its own and wait for it without blocking the event loop."""
    # Here, because it takes its time to import, and whoever awaits has imported it.
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    # Not the loop's own pool: agents may occupy all of it.
    pool = ThreadPoolExecutor(1, "kp_closing")
    try:
        await asyncio.get_running_loop().run_in_executor(pool, function)
    finally:
        pool.shutdown(wait=False)


def _new(kind: type[KPCallbackHandler]) -> KPCallbackHandler:
    return kind.__new__(kind)


def _as_uuid(run: UUID | str) -> UUID | None:
    with suppress(ValueError):
        return run if isinstance(run, UUID) else UUID(run)
    return None


def _first_of(generations: Any) -> Any:
    """The first generation of an answer; None if it has none.

    No generator: what a signal raises while one is closed reaches nobody.
    """
    firsts = [group[0] for group in generations if group]
    return firsts[0] if firsts else None


def _name(serialized: Mapping[str, Any] | None) -> str:
    if not serialized:
        return ""
    name = serialized.get("name")
    if name is None and isinstance(path := serialized.get("id"), (list, tuple)) and path:
        name = path[-1]
    return name if isinstance(name, str) else ""


def _ambient_run_id() -> UUID | None:
    """The run that LangChain's context variable says this code runs in."""
    # Here, because it costs 0.3 s to import, and is imported anyway once something runs.
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get()
    found = getattr(config.get("callbacks"), "parent_run_id", None) if config else None
    return found if isinstance(found, UUID) else None


_captured: ContextVar[KPCallbackHandler | None] = ContextVar("kp_langchain_handler", default=None)


@cache
def _let_langchain_look() -> None:
    """Have LangChain ask `_captured` for a handler whenever something runs; once a process."""
    from langchain_core.tracers.context import register_configure_hook

    register_configure_hook(_captured, inheritable=True)


@contextmanager
def capture(domain: str = "default", **options: Any) -> Iterator[KPCallbackHandler]:
    """Record every run inside the block, without touching its code.

        with capture(domain="finance") as handler:
            agent.invoke(...)
        print(handler.last().breakdown)

    Args:
        domain: As for `KPCallbackHandler`.
        **options: Any other argument of `KPCallbackHandler`.

    Yields:
        The handler. It lives on after the block, which does not wait for the scoring.
    """
    handler = KPCallbackHandler(domain, **options)
    _let_langchain_look()
    token = _captured.set(handler)
    try:
        yield handler
    finally:
        _captured.reset(token)
