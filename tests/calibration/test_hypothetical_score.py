"""A labelled run's score under other weights, confidence or success is the scorer's own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, ScoreBreakdown, Scorer
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.hypothetical_score import hypothetical_score
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.scoring import PROFILES

STEPS = st.tuples(
    st.sampled_from(["thought", "tool_call", "observation", "error_recovery"]),
    st.sampled_from([None, "search", "write"]),
)


def trace_of(steps: Any, *, success: bool, confidence: float) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "finance", "success": success},
            "task": {"objective": "an objective"},
            "steps": [
                {"step_id": at, "type": kind, "tool": tool and {"name": tool}}
                for at, (kind, tool) in enumerate(steps)
            ],
            "outcome": {"result_summary": "done", "confidence": confidence},
        }
    )


def labelled_run(trace: ReasoningTrace, breakdown: ScoreBreakdown, looked: bool) -> LabelledRun:
    return LabelledRun(
        task="a",
        success=True,
        features=features_of(trace),
        looked_successful=looked,
        values={name: one.value for name, one in breakdown.dimensions.items()},
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


@given(
    st.lists(STEPS, min_size=1, max_size=12),
    st.booleans(),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(sorted(PROFILES)),
)
def test_it_is_what_the_scorer_says_of_such_a_trace(
    steps: Any, looked: bool, confidence: float, success: bool, profile: str
) -> None:
    scorer = Scorer(embedder=None)
    before = trace_of(steps, success=looked, confidence=0.8 if looked else 0.2)
    breakdown = scorer.score(before)
    run = labelled_run(before, breakdown, looked)
    weights = PROFILES[profile]
    assert hypothetical_score(run, weights) == pytest.approx(
        scorer.score(before, weights=weights).total, abs=1e-12
    )
    after = trace_of(steps, success=success, confidence=confidence)
    assert hypothetical_score(run, weights, confidence, success) == pytest.approx(
        scorer.score(after, weights=weights).total, abs=1e-12
    )


def test_a_confidence_out_of_range_is_refused(labelled: Any) -> None:
    (run,) = labelled(1)
    with pytest.raises(ValueError, match=r"outcome\.confidence is 1\.5"):
        hypothetical_score(run, PROFILES["default"], 1.5)
