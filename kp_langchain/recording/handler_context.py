"""`HandlerContext`: what one handler adds to the engine that its runs go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from kp_langchain.gate import Rescored
from kp_langchain.recording.user_calls import name_of
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store.run_columns import log_rescored, log_scored

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.outcome import Verifiers
    from kp_langchain.recording.run_builder import RunBuilder
    from kp_langchain.recording.score_receivers import ScoreQueue
    from kp_langchain.recording.user_calls import UserFunctions
    from kp_langchain.recording.windows import Windows
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore


@dataclass(slots=True, eq=False)
class HandlerContext:
    """What is needed to judge and announce the runs of one handler.

    Attributes:
        store: Where runs are kept; None to keep nothing.
        builder: Makes the redacted runs, and redacts the notes of verdicts.
        scorer: The scorer.
        is_foreign_scorer: Whether the scorer, or its embedder, is the user's own.
        windows: What its runs are judged beside.
        verifiers: Judge runs that nobody else called a success or a failure, if any.
        functions: Calls the user's functions; has the counters of run outcomes.
        sender: Sends to the registry; None without one.
        score_queues: Send the scores of runs to other tools.
        on_scored: The user's function that is called with each judged run, if any.
        observers: Functions that are called with each judged run and must not wait.
        last: The newest judged run.
    """

    store: TraceStore | None
    builder: RunBuilder
    scorer: Scorer
    is_foreign_scorer: bool
    windows: Windows
    verifiers: Verifiers | None
    functions: UserFunctions
    sender: Sender | None
    score_queues: tuple[ScoreQueue, ...]
    on_scored: Callable[[ScoredTrace], object] | None
    observers: list[Callable[[ScoredTrace], object]] = field(default_factory=list)
    last: ScoredTrace | None = None

    @property
    def counters(self) -> Counters:
        """The counters of run outcomes."""
        return self.functions.counters

    @property
    def judges_with_user_code(self) -> bool:
        """Whether functions of the user are called to judge a run."""
        return (
            self.is_foreign_scorer or self.verifiers is not None or self.builder.outcome is not None
        )

    @property
    def has_user_code(self) -> bool:
        """Whether any function of the user is called for a run."""
        return (
            self.judges_with_user_code
            or self.on_scored is not None
            or self.builder.redactor is not None
        )

    @property
    def is_scorer_ready(self) -> bool:
        """Whether no run has to wait for an embedding model that is loading."""
        return self.wait_for_scorer(0.0)

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that are sent the scores of runs."""
        return tuple(queue.tool for queue in self.score_queues)

    def wait_for_scorer(self, timeout_s: float) -> bool:
        """Wait for a model that is loading: the run is on disk, and the agent does not wait.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether nothing is loading any more. The caller's own scorer takes what time it needs.
        """
        scorer: object = self.scorer
        return not isinstance(scorer, Scorer) or Scorer.wait_until_ready(scorer, timeout_s)

    def for_taken_over(self) -> HandlerContext:
        """Return it as it judges runs of processes that have ended: without the user's code."""
        return replace(
            self,
            builder=replace(self.builder, outcome=None),
            scorer=self.windows.scorer(),
            is_foreign_scorer=False,
            verifiers=None,
            on_scored=None,
        )

    def count(self, scored: ScoredTrace) -> None:
        """Count a judged run by its fate; one of another process was counted there."""
        if not scored.is_taken_over:
            self.counters.add("scored")
            self.counters.add(scored.decision)
        if scored.breakdown.over_budget:
            self.counters.add("over_budget")

    def announce(self, scored: ScoredTrace) -> None:
        """Log a judged run, and give it to observers and other tools, each of which may fail."""
        self._try("the log", partial(log_scored, scored))
        self._announce_to_observers(scored)

    def announce_rescored(self, scored: ScoredTrace) -> bool:
        """Announce a run that was judged again; return whether the verdict changed it."""
        change = Rescored.of(scored)
        if not change.changed or scored.verdict is None:
            return False
        self._try("the log", partial(log_rescored, change, scored.verdict.source))
        self._announce_to_observers(scored)
        return True

    def _announce_to_observers(self, scored: ScoredTrace) -> None:
        for observer in self.observers:
            self._try("an observer of scored runs", partial(observer, scored))
        self.send_score(scored)

    def send_score(self, scored: ScoredTrace) -> None:
        """Have the score of a run sent to other tools."""
        for queue in self.score_queues:
            receive = partial(queue.receive, scored, self.counters)
            self._try(f"sending scores to {queue.tool}", receive, counter="scores_failed")

    def _try(
        self, name: str, receive: Callable[[], object], counter: str = "on_scored_errors"
    ) -> None:
        try:
            receive()
        except BaseException as error:  # noqa: BLE001 - the next one must get it all the same
            self.functions.report_failure(counter, f"{name} failed", error)

    def call_on_scored(self, scored: ScoredTrace) -> None:
        """Call the user's function with a judged run; from a job of the lane."""
        on_scored = self.on_scored
        if on_scored is not None:
            call = partial(self.functions.call, partial(on_scored, scored))
            self._try(f"on_scored ({name_of(on_scored)})", call)

    def wake_sender(self) -> None:
        """Have what was written sent to the registry, if there is one."""
        if self.sender is not None:
            self.sender.loop.wake()
