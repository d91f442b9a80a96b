"""How runs are selected and listed, and the figures of each by which many are counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from kp_langchain.gate.scored_trace import gated_value
from kp_langchain.novelty_sources import is_measured, reason

Sort = Literal["time", "score", "novelty"]
"""What runs are listed by: the newest, the highest score, or the highest novelty first."""


class RunFilters(TypedDict, total=False):
    """Conditions on runs; one that is left out or None matches every run.

    Attributes:
        domain: Only this domain (exact name).
        decision: Only `kept`, only `below_threshold` or only `twin`.
        min_score: Only runs with at least this score, 0 to 1.
        since: Only runs that began at this time or later. A time without a zone is local.
        until: Only runs that began before this time.
        search: Only runs whose objective contains each of these words, in any case. The first 1,000
            characters of an objective are searched.
        rule: Only runs that this rule applied to: `single_thought`, `recovered_errors` or
            `single_tool`.
        tool: Only runs that used this tool (exact name).
        recovered_errors: If True, only runs that recovered from an error.
        near_duplicates: If True, only runs that repeat a kept one, or whose place one took.
        session: Only runs of this session, in plain text or as the store has it.
        thread: Only runs in this LangGraph thread, in either form.
        user: Only runs for this user, in either form.
        namespace: Only runs in this namespace, in either form.
        tag: Only runs with this tag, in either form.
        name: Only runs of this name, in either form.
    """

    domain: str | None
    decision: str | None
    min_score: float | None
    since: datetime | None
    until: datetime | None
    search: str | None
    rule: str | None
    tool: str | None
    recovered_errors: bool | None
    near_duplicates: bool | None
    session: str | None
    thread: str | None
    user: str | None
    namespace: str | None
    tag: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The figures of one run.

    Attributes:
        trace_id: The trace's id, as `StoredRun` has it.
        created_at: When the run began, in UTC.
        domain: The run's domain.
        decision: `kept`, `below_threshold` or `twin`.
        gate: Whether its score or its worth was held against the threshold.
        score: The score, 0 to 1.
        worth: How much it is worth keeping, 0 to 1; None where its domain had no model.
        threshold: What its score or worth was held against, 0 to 1.
        success: Whether it counts as a success.
        label: Whether it succeeded by the newest verdict that states it; None without one.
        recovered_errors: How many errors it recovered from.
        is_near_duplicate: Whether it repeats a kept run, or such a run took its place.
        is_withheld: Whether it must never be contributed.
        dimensions: The value and the weight of each dimension (0 to 1), by its name.
        rules: What each rule that applied added to the score, by its name.
        tools: Names of the tools that it used.
        redactions: How often each kind of sensitive text was replaced, by kind.
        dropped: How many `steps` and `texts` of it the recorder had no room for. This and the two
            before are None for runs of a version that did not count them.
        novelty_source: Where its novelty came from, as `ScoreBreakdown` has it; None if not known.
    """

    trace_id: str
    created_at: datetime
    domain: str
    decision: str
    gate: str
    score: float
    worth: float | None
    threshold: float
    success: bool
    label: bool | None
    recovered_errors: int
    is_near_duplicate: bool
    is_withheld: bool
    dimensions: Mapping[str, Sequence[float]]
    rules: Mapping[str, float]
    tools: Sequence[str] | None
    redactions: Mapping[str, int] | None
    dropped: Mapping[str, int] | None
    novelty_source: str | None = None

    @property
    def is_sound(self) -> bool:
        """Whether its figures can be counted with; not so if another program changed them."""
        figures = [self.score, self.threshold, self.worth or 0.0, self.recovered_errors]
        counts = (self.redactions or {}, self.dropped or {}, self.rules)
        try:
            figures += [figure for pair in self.dimensions.values() for figure in _pair(*pair)]
            figures += [figure for part in counts for figure in part.values()]
            return isinstance(self.domain, str) and all(map(math.isfinite, figures))
        except (TypeError, ValueError, AttributeError, OverflowError):
            return False

    @property
    def gated_value(self) -> float:
        """What was held against the threshold: its score or its worth, 0 to 1."""
        return gated_value(self.gate, self.score, self.worth)

    @property
    def why_unmeasured(self) -> str | None:
        """Why its novelty was not measured; None if it was, or if that is not known."""
        source = self.novelty_source
        return None if source is None or is_measured(source) else reason(source)

    @property
    def is_kept(self) -> bool:
        """Whether it passed and was kept."""
        return self.decision == "kept"


def _pair(value: float, weight: float) -> tuple[float, float]:
    return value, weight
