"""Which numbers of a trace say that it will help: their rank correlation with what it gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from kp_langchain.calibration.fitting import fit
from kp_langchain.calibration.hypothetical_score import calibrated_confidence, hypothetical_worth
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from tests.benchmarks.quality.resampling import Array
from tests.benchmarks.recall.knowledge import with_verdicts
from tests.benchmarks.recall.measure import USUAL_SHARE
from tests.benchmarks.recall.recorded_runs import RecallSource

NEAREST, NEAREST_IN_BITS = 10, 6
"""The traces that compete for a task, the most similar ones of other tasks; fewer with the model,
which takes seconds for each."""


def properties(source: RecallSource, draws: int) -> dict[str, Array]:
    """Return the numbers of each run of a source, by name.

    The calibrated confidence is that of a model that knows the truth about all runs of other tasks.
    That which recall goes by is 1 or 0 for the runs that have a verdict, one in five, and else that
    of a model fitted to them, if it is not refused; it has one row for each draw.

    Args:
        source: The source.
        draws: How often verdicts are drawn.
    """
    runs = source.scored.runs
    labelled = [one.labelled for one in runs]
    held_out = fit(source.name, labelled).held_out or [float("nan")] * len(runs)
    pairs = list(zip(labelled, held_out, strict=True))
    return {
        **{
            name.replace("_", " "): np.array([getattr(one.breakdown, name).value for one in runs])
            for name in DIMENSION_NAMES
        },
        "score": np.array([one.breakdown.total for one in runs]),
        "calibrated confidence": np.array([calibrated_confidence(*pair) for pair in pairs]),
        "worth": np.array([hypothetical_worth(*pair) for pair in pairs]),
        "confidence that recall goes by": np.array(
            [
                [one.confidence for one in with_verdicts(source, USUAL_SHARE, at).candidates]
                for at in range(draws)
            ]
        ),
        "success (the truth)": source.successes.astype(float),
        "steps": np.array([float(len(trace.steps)) for trace in source.traces]),
        "calls": np.array([float(sum(plan.values())) for plan in source.plans]),
        "distinct tools": np.array([float(len(plan)) for plan in source.plans]),
    }


def competitors(source: RecallSource, query: int, number: int | None = NEAREST) -> Array:
    """Return the runs that compete to be shown for a query; all of other tasks with `number` None.

    Those that somebody attacked are left out.
    """
    at = np.flatnonzero(source.others(query) & ~source.are_attacks)
    nearest = np.argsort(-source.similarities[query][at], kind="stable")
    return np.asarray(at[nearest if number is None else nearest[:number]])


def correlations(
    source: RecallSource,
    queries: Array,
    gains: Callable[[int, Array], Array],
    numbers: Mapping[str, Array],
    competing: int | None = NEAREST,
) -> dict[str, Array]:
    """Return Spearman's rank correlation of each property with what was gained, for each query.

    It is NaN for a query to which all competitors are alike, and for all where such are the most.

    Args:
        source: The source.
        queries: Runs of it.
        gains: Returns what each of some runs gained for a query.
        numbers: The properties of all runs, or of each draw and run; `similarity` is added, and
            `agreement` with the plans of the others that compete.
        competing: How many runs compete; None for all.
    """
    found: dict[str, list[float]] = {name: [] for name in (*numbers, "similarity", "agreement")}
    for query in queries.tolist():
        at = competitors(source, query, competing)
        gained = gains(query, at)
        of_these = {name: np.atleast_2d(of_all)[:, at] for name, of_all in numbers.items()}
        of_these["similarity"] = source.similarities[query][None, at]
        of_these["agreement"] = source.plan_f1s[np.ix_(at, at)].mean(axis=0)[None]
        for name, of_draws in of_these.items():
            each = np.array([spearman(of_draw, gained) for of_draw in of_draws])
            known = each[np.isfinite(each)]
            found[name].append(float(known.mean()) if len(known) else float("nan"))
    return {name: _unless_few(np.array(values)) for name, values in found.items()}


def _unless_few(values: Array) -> Array:
    """Return correlations; NaN if fewer than half of the queries have one."""
    return values if np.isfinite(values).mean() >= 0.5 else np.full(len(values), np.nan)


def spearman(one: Array, other: Array) -> float:
    """Return Spearman's rank correlation; NaN if the values of either are all equal."""
    if not np.isfinite([*one, *other]).all():
        return float("nan")
    ranks = [_ranks(values) for values in (one, other)]
    lengths = [float(np.sqrt(np.sum(rank**2))) for rank in ranks]
    return float(ranks[0] @ ranks[1]) / (lengths[0] * lengths[1]) if all(lengths) else float("nan")


def _ranks(values: Array) -> Array:
    """Return ranks around 0; equal values share the mean of theirs."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray(middles[place] - (len(values) - 1) / 2)
