"""Runs, units and verdicts for the commands: made up, and what is scored is really scored."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from kp_langchain import (
    DomainPolicy,
    ReasoningTrace,
    ScoreBreakdown,
    ScoredTrace,
    Scorer,
    TraceStore,
    Verdict,
)
from kp_langchain.calibration.features import features_of
from kp_langchain.gate import decide
from kp_langchain.gate.run import Run
from kp_langchain.run_keys import RunKeys
from kp_langchain.scoring.breakdown import Dimension

KEY = "kp_0123456789abcdef0123456789abcdef"
SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
HOSTILE = (
    "a\nERROR forged\x1b]0;title\x07\x1b[2J\u202egnp.exe\u2066\x9b31m[red]x[/] <script>%s\r foe"
)
# An installation without the embedding model: the command starts at once.
WITHOUT_MODEL = (
    "import sys; sys.modules.update(sentence_transformers=None, fastembed=None);"
    "from kp_langchain.cli.app import main; main()"
)
START = datetime(2026, 2, 1, 12, tzinfo=UTC)
_SCORER = Scorer(embedder=None)


def document(
    number: int = 0,
    *,
    trace_id: str | None = None,
    domain: str = "finance",
    objective: str | None = None,
    answer: str = "it grew",
    content: str = "compare the quarters",
    tool_input: dict[str, Any] | None = None,
    steps: list[dict[str, Any]] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """Return a trace in wire form; a higher number began later."""
    steps = steps or [
        {"type": "thought", "content": content},
        {"type": "tool_call", "tool": {"name": "ledger"}, "input": tool_input or {}},
    ]
    return {
        "@context": "https://openknowledgepulse.org/schema/v1",
        "@type": "ReasoningTrace",
        "id": trace_id or f"kp:trace:{number:08}-0000-4000-8000-000000000000",
        "metadata": {
            "created_at": START + timedelta(minutes=number),
            "task_domain": domain,
            "success": True,
            **metadata,
        },
        "task": {"objective": objective or f"task {number}"},
        "steps": [step | {"step_id": at} for at, step in enumerate(steps)],
        "outcome": {"result_summary": answer, "confidence": 0.8},
    }


def made(
    number: int = 0,
    *,
    score: float = 0.7,
    threshold: float = 0.6,
    options: dict[str, Any] | None = None,
    **wire: Any,
) -> ScoredTrace:
    """Return a scored run.

    Args:
        number: A higher one began later.
        score: Its score.
        threshold: What it was held against.
        options: More fields of the scored run.
        wire: As of `document`.
    """
    part = Dimension(score, 0.25, score / 4)
    trace = ReasoningTrace.model_validate(document(number, quality_score=score, **wire))
    fields: dict[str, Any] = {
        "trace": trace,
        "breakdown": ScoreBreakdown(
            total=score, complexity=part, novelty=part, tool_diversity=part,
            outcome_confidence=part, weighted_sum=score, profile="default", rules=(),
            novelty_source="no embedder", confidence_source="default",
        ),
        "decision": decide(score, threshold),
        "threshold": threshold,
        "run_id": uuid.UUID(int=number + 1),
        "features": features_of(trace, looked_successful=True),
    }  # fmt: skip
    return ScoredTrace(**(fields | (options or {})))


def recorded(number: int = 0, *, keys: RunKeys | None = None) -> Run:
    """Return a run that has ended and is not judged yet."""
    one = made(number)
    return Run(one.trace, one.run_id, DomainPolicy(), looked_successful=True, keys=keys)


def fill(
    store: TraceStore, domain: str, *, runs: int = 90, telling: bool = True, seed: int = 0
) -> None:
    """Add runs of a domain with verdicts.

    Args:
        store: Where to.
        domain: Their domain.
        runs: How many; each task has three.
        telling: Whether runs that end in doubt are those that failed, mostly; else verdicts are
            drawn blindly.
        seed: Of what is drawn.
    """
    drawn = random.Random(seed)
    store.add(*[_judged(domain, at, drawn, telling=telling) for at in range(runs)])


def _judged(domain: str, at: int, drawn: random.Random, *, telling: bool) -> ScoredTrace:
    in_doubt = drawn.random() < 0.5
    success = drawn.random() < ((0.1 if in_doubt else 0.9) if telling else 0.5)
    tools = drawn.sample(["ledger", "search", "mail", "calendar"], drawn.randint(1, 3))
    steps: list[dict[str, Any]] = [{"type": "thought", "content": f"I look at quarter {at}."}]
    for tool in tools:
        steps += [
            {"type": "tool_call", "tool": {"name": tool}, "input": {"quarter": at // 3}},
            {"type": "observation", "content": f"{drawn.randint(1, 999)} units"},
        ]
    answer = "Perhaps it is not certain; it may have grown." if in_doubt else "Done: it grew by 7."
    steps.append({"type": "thought", "content": answer})
    wire = document(
        trace_id=f"kp:trace:{uuid.uuid4()}", domain=domain, answer=answer, steps=steps,
        objective=f"compare quarter {at // 3} with the one before", created_at=datetime.now(UTC),
    )  # fmt: skip
    trace = ReasoningTrace.model_validate(wire)
    breakdown = _SCORER.score(trace)
    trace.metadata.quality_score = breakdown.total
    return ScoredTrace(
        trace=trace,
        breakdown=breakdown,
        decision=decide(breakdown.total, 0.6),
        threshold=0.6,
        run_id=uuid.uuid4(),
        features=features_of(trace, looked_successful=True),
        verdict=Verdict(success=success, source="desk"),
    )
