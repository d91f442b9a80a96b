"""What a confidence model makes of the score, held out, by the number of verdicts it had."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.hypothetical_score import estimated_score, hypothetical_worth
from tests.benchmarks.quality.ranking import Ranking
from tests.benchmarks.quality.scores import Scored, Source

FEATURES_TOLD = 8
_MORE = 1.25  # times as many verdicts are worth another look


def by_verdicts(
    source: Source, verdicts: Sequence[int], draws: int, tell: Callable[[str], object]
) -> dict[str, Any]:
    """What is learned from so many verdicts of a source, by their number.

    Args:
        source: The source.
        verdicts: How many are drawn, in turn. Where the source has fewer, all are taken, unless
            the number before was nearly as many.
        draws: How often they are drawn, each time by another seed.
        tell: Called with a line for whoever waits.
    """
    found: dict[str, Any] = {}
    before, available = 0, len(source.runs)
    for wanted in sorted(verdicts):
        number = min(wanted, available)
        if number < wanted and number < _MORE * before:
            break
        tell(f"{source.name}: {number} verdicts")
        seeds = range(1 if number == available else draws)
        samples = [learned(source.name, _drawn(source.runs, number, seed)) for seed in seeds]
        found[str(wanted)] = {"verdicts": number, **_summary(samples)}
        before = number
    return found


def _drawn(runs: Sequence[Scored], number: int, seed: int) -> list[Scored]:
    return random.Random(seed).sample(list(runs), number)


def learned(name: str, runs: Sequence[Scored]) -> dict[str, Any]:
    """Fit a model to runs, and hold their scores and worths against the truth, held out.

    What is refused is not used: score and worth are then the score as it is.

    Args:
        name: What stands for the domain.
        runs: The runs.

    Returns:
        The figures; only the refusal if there was too little to learn from.
    """
    labelled = [one.labelled for one in runs]
    in_force = Counter(one.weights for one in runs).most_common(1)[0][0]
    fitted = fit(name, labelled, weights=in_force)
    if fitted.model is None or fitted.auc is None:
        return {"refusal": fitted.refusal}
    ranking = Ranking([one.success for one in labelled], [one.task for one in labelled])
    before = [one.breakdown.total for one in runs]
    with_model = [
        model_score(one, chance) for one, chance in zip(runs, fitted.held_out, strict=True)
    ]
    worths = [
        hypothetical_worth(one, chance)
        for one, chance in zip(labelled, fitted.held_out, strict=True)
    ]
    in_use = {"before": before, "model": with_model, "worth": worths}
    if fitted.refusal is not None:
        in_use = dict.fromkeys(in_use, before)
    strongest = sorted(fitted.model.terms, key=lambda term: -abs(term.weight))[:FEATURES_TOLD]
    return {
        "refusal": fitted.refusal,
        "provisional": fitted.provisional,
        "base_rate": ranking.base_rate,
        "model_auc": asdict(fitted.auc),
        "brier": fitted.brier,
        "base_brier": fitted.base_brier,
        "default_brier": fitted.default_brier,
        "score": {
            stage: {**_stage(ranking, values), "gain": ranking.gain(before, values)}
            for stage, values in in_use.items()
        },
        "worth_of_refused_too": _stage(ranking, worths),
        "features": {term.feature: term.weight for term in strongest},
    }


def model_score(one: Scored, confidence: float) -> float:
    """The score of a run with a model's confidence, as the pipeline takes it."""
    return estimated_score(one.labelled, one.weights, confidence)


def _stage(ranking: Ranking, scores: Sequence[float]) -> dict[str, Any]:
    return {
        "auc": ranking.auc(scores),
        "top_lift": ranking.top_lift(scores),
        "tasks_in_top": ranking.tasks_in_top(scores),
        "solved_per_run": ranking.solved_per_run(scores),
    }


def _summary(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over samples that could be fitted, and how many were refused and why."""
    fitted = [one for one in samples if "model_auc" in one]
    refusals = Counter(one["refusal"] for one in samples if one["refusal"] is not None)
    figures: dict[str, Any] = {
        "samples": len(samples),
        "fitted": len(fitted),
        "refused": refusals.total(),
        "refusals": dict(refusals),
        "provisional": sum(one["provisional"] for one in fitted),
    }
    if not fitted:
        return figures
    aucs = [one["model_auc"]["value"] for one in fitted]
    return {
        **mean_of([{**one, "features": None} for one in fitted]),
        **figures,
        "features": fitted[0]["features"],
        "model_auc_of_samples": {"lowest": min(aucs), "highest": max(aucs)},
    }


def mean_of(figures: Sequence[Any]) -> Any:
    """The mean of figures of the same shape, number by number; what is no number is left out."""
    first = figures[0]
    if isinstance(first, dict):
        means = {key: mean_of([one[key] for one in figures]) for key in first}
        return {key: mean for key, mean in means.items() if mean is not None}
    if isinstance(first, int | float):
        return statistics.fmean(figures)
    return None
