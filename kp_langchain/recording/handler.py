"""`KPCallbackHandler`; its callbacks are in `callbacks`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from kp_langchain._logging import warn_once
from kp_langchain.config import DomainPolicy, Settings
from kp_langchain.errors import ConfigError
from kp_langchain.gate import ScoredTrace
from kp_langchain.recording import exit_hooks
from kp_langchain.recording.assembly import assemble
from kp_langchain.recording.bounds import COUNTERS
from kp_langchain.recording.callbacks import LangChainCallbacks
from kp_langchain.recording.options import Default, HandlerOptions
from kp_langchain.recording.outcome import OutcomeFunction, Verifier, plain_number
from kp_langchain.recording.recorder import Recorder
from kp_langchain.recording.user_calls import is_own_thread
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore
from kp_langchain.store.jobs import drain
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.gate.run import ShownTrace
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.registry import Registry

_REST_BETWEEN_SENDS_S = 1.0


class KPCallbackHandler(LangChainCallbacks):
    """Records agent runs, scores each when it ends, and keeps those that pass their threshold.

    Give it to any runnable: `agent.invoke(inputs, {"callbacks": [handler]})`. One handler may
    serve any number of runs at once, from any thread or event loop. It never raises into the
    agent and never makes it wait: scoring happens on another thread.

    Args:
        domain: The runs' domain, which chooses weights and threshold; a run's own
            `metadata={"kp_domain": ...}` takes precedence. `{"kp_task": ...}` there identifies
            repeats of one task, for calibration; by default they have the same objective.
        policy: The policy for every run of this handler, which takes precedence over environment
            and `kp.toml`; or a mapping from domain to such a policy.
        scorer: The scorer; by default one for all handlers of a store, whose novelty memory is in
            the store.
        store: A `TraceStore`, a database URL or file, or None to keep nothing. By default the
            database of the settings (`KP_DATABASE_URL`, else a SQLite file in the user's data
            folder).
        registry: Receives the traces that passed and whose visibility is `org` or `network`: a
            `Registry` or its URL. By default the registry of the settings (`KP_REGISTRY_URL`);
            without one, nothing goes to the network.
        outcome: Judges finished runs: it receives a `FinishedRun` and returns a success (bool), a
            confidence (0 to 1), a mapping with `success` and `confidence`, or None for no opinion.
        verifiers: Judge finished runs that neither `outcome` nor a `kp.outcome` event called a
            success or a failure, one after the other until one does. Each is a function like
            `outcome`, may be async, and may add a `note`. It may send what it receives to a third
            party, such as a language model: every text of the `FinishedRun` is redacted, and it has
            neither `output` nor `metadata`.
        agent_id: The agent that ran; written as `kp:agent:<id>`. By default the agent of the
            settings, else the one that the registry's key belongs to, because a key can delete
            only traces of its own agent.
        on_scored: Called on another thread with each `ScoredTrace`, after it was written to the
            store, and again when a verdict changes it; its `previous` is then the run before the
            change.
        objective: Extracts the task from the root run's inputs; it returns None or "" if it finds
            none.
        redactor: A further redaction step. Called on another thread with each text after the
            built-in redaction; its result replaces the text. If it fails, the run is not kept.
            Notes given to `TraceStore.report_outcome` go through it on the caller's thread.
        send_scores_to: Tools that are sent the score of each run, beside the trace that their own
            tracer has of it: `langsmith`, `langfuse`, `phoenix`, `opik`, `mlflow`,
            `opentelemetry`, or objects with `name`, `find_trace` and `send`. They are sent numbers
            and names of rules, no text of the run. They need a store. By default those of the
            settings (`KP_SEND_SCORES_TO`), which name none.

    Raises:
        ConfigError: An argument or setting cannot be used; the message says which and why.
    """

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
        agent_id: str | None = None,
        on_scored: Callable[[ScoredTrace], object] | None = None,
        objective: Callable[[Any], str | None] | None = None,
        redactor: Callable[[str], str] | None = None,
        send_scores_to: Sequence[str | ScoreReceiver] | None = None,
    ) -> None:
        arguments = locals()
        super().__init__()
        options = HandlerOptions(**{name: arguments[name] for name in HandlerOptions.__slots__})
        settings = Settings.current()
        # Only settings change what holds for the whole process.
        exit_hooks.exit_timeout_s = settings.exit_timeout_s
        self._recorder, self._engine, self._context = assemble(options, settings, Recorder)
        self.domain = domain
        self._disabled = self._is_off = settings.disabled
        self._hears_graphs = False

    # ---------------------------------------------------------------- copies

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a KPCallbackHandler cannot be pickled; make one in each process")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> Self:
        # Frameworks copy lists of callbacks; the runs must reach the handler that the user has.
        return self

    # ---------------------------------------------------------------- for its owner

    @property
    def store(self) -> TraceStore | None:
        """Where its runs are kept; None if they are not."""
        return self._context.store

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until every run that ended so far is scored and stored.

        Traces that passed may then still wait in the store's outbox to be sent to a registry.

        Args:
            timeout: Seconds to wait at most; None waits as long as it takes.

        Returns:
            Whether that was done in time. Also False if the store could not take something yet, or
            something was dropped; False at once if called from `on_scored`.
        """
        self._recorder.sweep()
        if is_own_thread():
            return False
        self._engine.prepare(self._context)
        return self._engine.wait(timeout, self._context)

    def report_outcome(
        self,
        run: UUID | str,
        *,
        success: bool | None = None,
        confidence: float | None = None,
        note: str | None = None,
    ) -> None:
        """Report how a run really ended: while it runs, right after it, or days later.

        The run is then scored again, and kept or not as the new score requires; see
        `TraceStore.report_outcome`. That happens on another thread; this returns at once. A run
        that the store does not know is counted as `verdict_errors` in `stats`, with one warning.
        Report hundreds at once with `TraceStore.report_outcome`: here they would delay finished
        runs.

        Args:
            run: LangChain's id of the root run, the trace's id, or the first 4 characters or more.
            success: Whether it reached its goal.
            confidence: How sure one can be of its result, 0 to 1; by default 1.0 for a success
                and 0.0 for a failure.
            note: Why, in words; redacted before it is written.

        Raises:
            ConfigError: Nothing is reported, a value cannot be used, or this handler has no store.
        """
        verdict = Verdict(plain_number(success), plain_number(confidence), note)  # type: ignore[arg-type]
        if self.store is None:
            raise ConfigError(
                "this handler keeps no runs (store=None), so none can be judged later"
            )
        if not self._disabled and not self._recorder.report_outcome(_as_uuid(run), verdict):
            self._engine.add_verdict(self._context, str(_as_uuid(run) or run), verdict)

    def note_shown(self, run: UUID, shown: Iterable[ShownTrace], examples: str = "") -> bool:
        """Note which kept traces a run is shown as examples; for retrieval of your own.

        `KPMiddleware`, `KPRetriever` and `KPExampleSelector` do this themselves. The run is then
        not less novel for repeating these traces, what it quotes of them is no thought of its own,
        and its outcome counts for their credit.

        Args:
            run: LangChain's id of the run that is under way, or of one inside it.
            shown: The traces.
            examples: The text that the run is shown.

        Returns:
            False if this handler does not see such a run now.
        """
        return not self._disabled and self._recorder.note_shown(run, shown, examples)

    def runs_around(self, run: UUID) -> tuple[UUID, ...]:
        """Return the ids of a run under way and of those that it is part of, the root last.

        Args:
            run: LangChain's id of the run. Of one that this handler does not see, nothing is
                returned.
        """
        return self._recorder.runs_around(run)

    def send(self, timeout: float) -> bool:
        """Flush, then send to the registry what this process's store has pending for it.

        Scores that wait for other tools (`send_scores_to`) are sent, too.

        For programs that are frozen or ended without notice. Others need not wait, because the
        next process continues where this one stopped.

        Calling this in a loop is cheap. If the registry accepts nothing for longer than `timeout`,
        this sleeps for one second, or for `timeout` if that is shorter, and returns False.

        Args:
            timeout: Seconds to take at most.

        Returns:
            Whether nothing is left to be stored, sent or withdrawn.
        """
        until = time.monotonic() + timeout

        def left_s() -> float:
            return max(0.0, until - time.monotonic())

        is_stored, context = self.flush(timeout), self._context
        loops = [sender.loop for sender in context.score_senders]
        if context.sender is not None:
            loops.append(context.sender.loop)
        is_done = drain(loops, left_s()) and is_stored
        if not is_done and context.sender is not None:
            time.sleep(min(_REST_BETWEEN_SENDS_S, left_s()))
        return is_done

    def last(self, timeout: float | None = None) -> ScoredTrace | None:
        """Wait like `flush`, then return this handler's newest scored run.

        Args:
            timeout: Seconds to wait at most; None waits as long as it takes.

        Returns:
            The run; None if no run was scored in time. Also None while recording is switched off,
            which is logged once as a warning.
        """
        if self._disabled:
            warn_once(
                "disabled",
                "recording is switched off (KP_DISABLED, or `disabled` in kp.toml), so there is no "
                "scored run and last() returns None",
            )
        self.flush(timeout)
        return self._context.last

    def stats(self) -> dict[str, int]:
        """Count the runs this handler saw, by fate.

        - `runs`: seen.
        - `open`, `queued`: of these, now.
        - `paused`: ended at a pause. The run that resumes it counts in `runs` once more.
        - `scored`: the sum of `kept`, `below_threshold` and `twin`.
        - `kept`, `below_threshold`, `twin`: scored runs, by decision as it was when they ended.
        - `cancelled`: also streams that were left in the middle.
        - `abandoned`: never ended, silent for longest when more than `max_open_runs` were open, or
          paused where nothing can resume them.
        - `handed_over`: kept by the parent process after a fork.
        - `empty`: had nothing to record.
        - `dropped`: found the queue full.
        - `failed`: could not be recorded or scored.

        Further counters:

        - `waiting_to_store`: scored runs and verdicts not written yet.
        - `not_stored`: scored runs and verdicts that were dropped unwritten.
        - `rescored`: runs scored again after a verdict.
        - `raised`: earlier runs, counted as `below_threshold`, that pass since a later run of their
          task: they are `kept`, or a `twin`.
        - `verdict_errors`: verdicts that could not be applied.
        - `adopted`: runs of a process that has ended, scored here and counted nowhere else.
        - `continued`: runs that were joined to what they had recorded before a pause.
        - `paused_expired`: paused runs of any process that this one removed from the store, because
          they were older than `paused_days` or more than `max_paused_runs`.
        - `over_budget`: runs whose scoring took longer than `latency_budget_ms`.
        - `dropped_steps`: starts, ends and errors of calls that were left out beyond `max_steps`.
        - `dropped_texts`: texts of steps that were left out because their run had reached
          `max_run_chars`.
        - `by_verifiers`: runs that a verifier started under this handler; not scored.
        - `verifier_errors`, `verifier_timeouts`: calls of verifiers that failed or took too long.
        - `verifiers_skipped`: verifiers not asked, because too many abandoned calls still run.
        - `callback_errors`, `scorer_errors`, `outcome_errors`, `redaction_errors`,
          `on_scored_errors`: failures, by what failed; the last also when a run cannot be logged.
        - `scores_sent`, `scores_failed`, `scores_without_trace`: scores for the tools of
          `send_scores_to`, one count for each run and tool. The first two are counted by that
          handler of the store which wrote a run last. The third: the tool's trace of the run is not
          known.

        Returns:
            The counters, by name.
        """
        self._recorder.sweep()
        counts = self._recorder.counters.counts()
        return {
            **{name: counts.get(name, 0) for name in COUNTERS},
            "open": self._recorder.open_count,
            "paused_expired": counts.get("paused_expired", 0),
        }

    def add_observer(self, observer: Callable[[ScoredTrace], object]) -> None:
        """Call a function with each run that is scored from now on, or scored again.

        It is called wherever that happens, so it must not wait; `on_scored` is the place for
        functions that do. If it raises, that is counted under `on_scored_errors`.

        Args:
            observer: The function.
        """
        self._context.observers.append(observer)

    def close(self, timeout: float | None = None) -> None:
        """Score and store what ended, abandon what is still under way, and record nothing more.

        `with handler:` and `async with handler:` do so at the end of the block, where they wait at
        most `exit_timeout_s`; the latter waits in a thread, so the event loop continues.

        Args:
            timeout: Seconds to wait at most; None waits as long as it takes.
        """
        self._is_off = True
        until = None if timeout is None else time.monotonic() + timeout
        self._recorder.close()
        self.flush(None if until is None else max(0.0, until - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(exit_hooks.exit_timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close, exit_hooks.exit_timeout_s)

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Store and send all recorded runs when a web service shuts down.

        A server such as uvicorn may end its process without Python's exit hooks. It waits for
        this one: `FastAPI(lifespan=handler.lifespan)`, the same for Starlette; in a lifespan of
        your own, `async with handler.lifespan(): yield`. It waits at most `exit_timeout_s`, and
        the event loop continues meanwhile. The handler remains usable, since an application may be
        started again, as tests do.
        """
        try:
            yield
        finally:
            await asyncio.to_thread(self.send, exit_hooks.exit_timeout_s)


def _as_uuid(run: UUID | str) -> UUID | None:
    with suppress(ValueError):
        return run if isinstance(run, UUID) else UUID(run)
    return None
