from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from kp_langchain.gate import ScoredTrace
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task, Tool, TraceStep
from kp_langchain.scoring.breakdown import Dimension, ScoreBreakdown

START = datetime(2026, 2, 1, 12, tzinfo=UTC)


def _scored(
    number: int = 0,
    *,
    trace_id: str | None = None,
    run_id: uuid.UUID | str | None = None,
    domain: str = "finance",
    score: float = 0.7,
    threshold: float = 0.6,
    keep: bool = True,
    created_at: datetime | None = None,
    content: str | None = "compare the quarters",
    tool_input: dict[str, Any] | None = None,
    visibility: Literal["private", "org", "network"] = "private",
    **more: Any,
) -> ScoredTrace:
    part = Dimension(score, 0.25, score / 4)
    trace = ReasoningTrace(
        **({"id": trace_id} if trace_id else {}),
        metadata=Metadata(
            created_at=created_at or START + timedelta(minutes=number),
            task_domain=domain,
            success=True,
            quality_score=score,
            agent_id="kp:agent:desk",
            framework="langgraph",
            visibility=visibility,
        ),
        task=Task(objective=f"task {number}"),
        steps=[
            TraceStep(step_id=0, type="thought", content=content),
            TraceStep(step_id=1, type="tool_call", tool=Tool(name="ledger"), input=tool_input),
        ],
        outcome=Outcome(result_summary="it grew", confidence=0.8),
    )
    return ScoredTrace(
        trace=trace,
        breakdown=ScoreBreakdown(
            total=score,
            complexity=part,
            novelty=part,
            tool_diversity=part,
            outcome_confidence=part,
            weighted_sum=score,
            profile=domain,
            rules=(),
            novelty_source="no embedder",
            confidence_source="reported",
        ),
        decision="contributed" if score >= threshold else "below_threshold",
        threshold=threshold,
        run_id=run_id or uuid.uuid4(),  # type: ignore[arg-type]
        keep_body=keep,
        **more,
    )


@pytest.fixture(scope="session")
def scored() -> Callable[..., ScoredTrace]:
    """Builds one scored run; a higher number began later."""
    return _scored
