"""Scored runs with verdicts, made up but really scored and stored."""

from __future__ import annotations

import random
import uuid

from kp_langchain import ReasoningTrace, Scorer, TraceStore
from kp_langchain.calibration.features import features_of
from kp_langchain.gate import ScoredTrace, decide
from kp_langchain.store import Verdict

_SCORER = Scorer(embedder=None)
_THRESHOLD = 0.6


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
    store.add_many([_run(domain, at, drawn, telling=telling) for at in range(runs)])


def _run(domain: str, at: int, drawn: random.Random, *, telling: bool) -> ScoredTrace:
    in_doubt = drawn.random() < 0.5
    success = drawn.random() < ((0.1 if in_doubt else 0.9) if telling else 0.5)
    tools = drawn.sample(["ledger", "search", "mail", "calendar"], drawn.randint(1, 3))
    steps = [{"type": "thought", "content": f"I look at quarter {at}."}]
    for tool in tools:
        steps += [
            {"type": "tool_call", "tool": {"name": tool}, "input": {"quarter": at // 3}},
            {"type": "observation", "content": f"{drawn.randint(1, 999)} units"},
        ]
    answer = "Perhaps it is not certain; it may have grown." if in_doubt else "Done: it grew by 7."
    trace = ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": domain, "success": True, "visibility": "private"},
            "task": {"objective": f"compare quarter {at // 3} with the one before"},
            "steps": [
                step | {"step_id": number}
                for number, step in enumerate([*steps, {"type": "thought", "content": answer}])
            ],
            "outcome": {"result_summary": answer, "confidence": 0.8},
        }
    )
    breakdown = _SCORER.score(trace)
    trace.metadata.quality_score = breakdown.total
    return ScoredTrace(
        trace=trace,
        breakdown=breakdown,
        decision=decide(breakdown.total, _THRESHOLD),
        threshold=_THRESHOLD,
        run_id=uuid.uuid4(),
        features=features_of(trace, looked_successful=True),
        verdict=Verdict(success=success, source="desk"),
    )
