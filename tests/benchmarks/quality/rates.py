"""Whether a gate by worth lets as many runs pass as it promises."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from kp_langchain.calibration.hypothetical_score import hypothetical_worth
from kp_langchain.calibration.threshold_curve import propose_threshold
from kp_langchain.domain_policy import DomainPolicy
from kp_langchain.gate import decide
from kp_langchain.gate.check import check
from kp_langchain.gate.recent_values import JudgedRun, RecentValues
from tests.benchmarks.quality.draws import Draw
from tests.benchmarks.quality.scores import Scored, Source

PROMISED = 0.1
NEXT_RUNS = 300

FIXED, FOLLOWING = "fixed threshold", "pass rate"
WAYS = tuple(
    f"{gate}, {life}"
    for gate in (FIXED, FOLLOWING)
    for life in ("one process", "restart that forgets what is novel")
)


def rates(source: Source, draws: Sequence[Draw]) -> dict[str, Any]:
    """The share of the next runs that passes, by draw and kind of gate.

    The process starts again after half of the runs. Where the novelty memory lives in the store,
    that changes nothing; otherwise all is novel again.

    Args:
        source: The source.
        draws: At least one. Models are used whether refused or not.
    """
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for draw in draws:
        runs = draw.further[:NEXT_RUNS]
        half = len(runs) // 2
        restarted = [*runs[:half], *source.in_order(runs[half:])]
        for way, later in zip(WAYS, (runs, restarted) * 2, strict=True):
            passes = _with_fixed(draw, later) if way.startswith(FIXED) else _following(draw, later)
            found[way].append(statistics.fmean(passes))
    return {
        "promised": PROMISED,
        "next_runs": statistics.fmean(min(NEXT_RUNS, len(draw.further)) for draw in draws),
        "draws": len(draws),
        "kept": found,
    }


def _reference(draw: Draw) -> list[float]:
    """The held-out worths of the labelled runs, which the gate begins with."""
    return [
        hypothetical_worth(one.labelled, confidence)
        for one, confidence in zip(draw.labelled, draw.fitted.held_out, strict=True)
    ]


def _with_fixed(draw: Draw, runs: Sequence[Scored]) -> list[bool]:
    labelled = [one.labelled for one in draw.labelled]
    point = propose_threshold(labelled, _reference(draw), pass_rate=PROMISED).point
    if point is None:
        return [False] * len(runs)
    policy = DomainPolicy(gate="worth", worth_threshold=point.threshold)
    return _judged(draw, runs, policy, RecentValues())


def _following(draw: Draw, runs: Sequence[Scored]) -> list[bool]:
    policy = DomainPolicy(gate="worth", pass_rate=PROMISED)
    return _judged(draw, runs, policy, RecentValues(_reference(draw)))


def _judged(
    draw: Draw, runs: Sequence[Scored], policy: DomainPolicy, recent: RecentValues
) -> list[bool]:
    """Which runs pass the gate, one after the other."""
    passed = []
    for one in runs:
        breakdown = one.breakdown.with_worth(draw.model.confidence(one.labelled.features))
        gate_check = check(
            breakdown,
            one.run.trace.metadata.task_domain,
            policy,
            recent=lambda _: recent,
            base_rate=draw.model.base_rate,
        )
        passes = decide(gate_check.value, gate_check.threshold) == "contributed"
        recent.add(JudgedRun(gate_check.value, passes, gate_check.pass_rate))
        passed.append(passes)
    return passed
