"""`HandlerContext`: what one handler adds to the engine that its runs go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kp_langchain._logging import warn_once
from kp_langchain.calibration.agreement import AGREEMENT
from kp_langchain.config import Settings
from kp_langchain.gate import Rescored
from kp_langchain.recording.user_calls import name_of
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store.run_log import log_rescored, log_scored

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.policy import DomainPolicy
    from kp_langchain.recording.bounds import Counters
    from kp_langchain.recording.options import HandlerOptions
    from kp_langchain.recording.pauses import HandlerPauses
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.score_receivers import ScoreSender
    from kp_langchain.recording.user_calls import Lane
    from kp_langchain.recording.windows import Windows
    from kp_langchain.registry.sender import Sender
    from kp_langchain.store import TraceStore

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class HandlerContext:
    """What is needed to build, judge and announce the runs of one handler.

    Attributes:
        options: The arguments of the handler.
        settings: The settings.
        store: Where runs are kept; None to keep nothing.
        domains: Names of the domains with weights or a policy of their own.
        policy_for: Returns the policy of a domain.
        agent_id: `kp:agent:<id>` that traces carry, if any.
        redactor: The user's function that redacts further, if any.
        paused_runs: Where what paused runs recorded waits.
        scorer: The scorer.
        windows: What its runs are judged beside.
        lane: Where the user's functions are called.
        counters: Counts what becomes of runs.
        sender: Sends to the registry; None without one.
        score_senders: Send the scores of runs to other tools.
        observers: Functions that are called with each judged run and must not wait.
        last: The newest judged run.
        n_live: The number of its items that the engine is not done with; the engine counts them.
    """

    options: HandlerOptions
    settings: Settings
    store: TraceStore | None
    domains: frozenset[str]
    policy_for: Callable[[str], DomainPolicy]
    agent_id: str | None
    redactor: Callable[[str], str] | None
    paused_runs: HandlerPauses
    scorer: Scorer
    windows: Windows
    lane: Lane
    counters: Counters
    sender: Sender | None
    score_senders: tuple[ScoreSender, ...]
    observers: list[Callable[[ScoredTrace], object]] = field(default_factory=list)
    last: ScoredTrace | None = None
    n_live: int = field(default=0, init=False)

    @property
    def is_foreign_scorer(self) -> bool:
        """Whether the scorer, its embedder or its memory is the user's own code."""
        return type(self.scorer) is not Scorer or self.scorer.calls_user_code

    @property
    def judges_with_user_code(self) -> bool:
        """Whether functions of the user are called to judge a run."""
        has_judge = self.options.outcome is not None or bool(self.options.verifiers)
        return has_judge or self.is_foreign_scorer

    @property
    def has_user_code(self) -> bool:
        """Whether any function of the user is called for a run."""
        return (
            self.judges_with_user_code
            or self.options.on_scored is not None
            or self.redactor is not None
        )

    @property
    def registry_url(self) -> str | None:
        """URL of the registry that traces are sent to; None without one."""
        return None if self.sender is None else self.sender.registry.url

    @property
    def tools(self) -> tuple[str, ...]:
        """The names of the tools that are sent the scores of runs."""
        return tuple(sender.tool for sender in self.score_senders)

    def may_wait(self, record: RunRecord) -> bool:
        """Return whether making a run calls the user's function, or asks the store."""
        asks_store = record.ending == "paused" or bool(record.resumed_thread)
        return asks_store or self.redactor is not None

    def wait_for_scorer(self, timeout_s: float = 0.0) -> bool:
        """Wait for a model that is loading, some seconds at most; return False if it still is."""
        scorer: object = self.scorer  # the caller's own takes what time it needs
        return not isinstance(scorer, Scorer) or Scorer.wait_until_ready(scorer, timeout_s)

    def call(self, function: Callable[[], T]) -> T:
        """Call a user's function from a job of the lane.

        Raises:
            LateError: It takes longer than the limit, and is abandoned.
            BaseException: Whatever it raises.
        """
        return self.lane.call(function, self.settings.function_timeout_s)

    def for_taken_over(self) -> HandlerContext:
        """Return it as it judges runs of processes that have ended: without the user's code."""
        return replace(
            self,
            scorer=self.windows.scorer(),
            options=replace(self.options, outcome=None, verifiers=(), on_scored=None),
        )

    def count(self, scored: ScoredTrace) -> None:
        """Count a judged run by its fate; one of another process was counted there."""
        if not scored.is_taken_over:
            self.counters.add("scored")
            self.counters.add(scored.decision)
        if scored.breakdown.over_budget:
            self.counters.add("over_budget")

    def announce(self, scored: ScoredTrace) -> None:
        """Log a judged run, and give it to observers, each of which may fail."""
        self._try("the log", partial(log_scored, scored))
        self._announce_to_observers(scored)
        for tool in self.tools:
            if tool not in scored.external_traces:
                self.counters.add("scores_without_trace")
                warn_once(
                    f"no trace:{tool}",
                    "%s has no trace of a run, or its id of the run cannot be known, so the score "
                    "is not sent there; counted under 'scores_without_trace'. Its tracer must be "
                    "attached to the run's root",
                    tool,
                )

    def announce_rescored(self, scored: ScoredTrace) -> bool:
        """Announce a run that was judged again; return whether that changed it."""
        change = Rescored.of(scored)
        if not change.changed:
            return False
        source = AGREEMENT if scored.verdict is None else scored.verdict.source
        if scored.verdict is None:
            self.counters.add("raised")
        self._try("the log", partial(log_rescored, change, source))
        self._announce_to_observers(scored)
        return True

    def _announce_to_observers(self, scored: ScoredTrace) -> None:
        for observer in self.observers:
            self._try("an observer of scored runs", partial(observer, scored))

    def _try(self, name: str, receive: Callable[[], object]) -> None:
        try:
            receive()
        except BaseException as error:  # noqa: BLE001 - the next one must get it all the same
            self.counters.report_failure("on_scored_errors", f"{name} failed", error)

    def call_on_scored(self, scored: ScoredTrace) -> None:
        """Call the user's function with a judged run; from a job of the lane."""
        on_scored = self.options.on_scored
        if on_scored is not None:
            call = partial(self.call, partial(on_scored, scored))
            self._try(f"on_scored ({name_of(on_scored)})", call)

    def wake_senders(self) -> None:
        """Have what was written sent to the registry and to other tools."""
        if self.sender is not None:
            self.sender.loop.wake()
        for sender in self.score_senders:
            sender.wake(self.counters)
