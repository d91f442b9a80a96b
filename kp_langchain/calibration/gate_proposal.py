"""The gate that is proposed for a domain, held against the one in force and against no gate.

Every figure is of confidences that are held out: those of a model that never saw the run's task.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress, repeat
from typing import TYPE_CHECKING

from kp_langchain.calibration.measures import Estimate, auc, auc_gain, share, share_of
from kp_langchain.calibration.model import (
    calibrated_confidence,
    estimated_score,
    hypothetical_score,
    hypothetical_worth,
)
from kp_langchain.errors import ConfigError
from kp_langchain.gate import threshold_of
from kp_langchain.gate.check import pass_rate_of
from kp_langchain.scoring.dimensions import NEUTRAL_NOVELTY

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel, LabelledRun
    from kp_langchain.policy import DomainPolicy, Gate, ScoringWeights

# An advantage over no gate counts if the lower end of this interval of the worth's AUC is above
# 0.5. All runs are in it: among the kept tenth of 150 alone, an interval of any use would include
# the base rate even for models that double the share of successes.
_CERTAINTY = 0.8


@dataclass(frozen=True, slots=True)
class ThresholdTarget:
    """What a gate is to achieve: exactly one of the two.

    Attributes:
        pass_rate: The share of runs that is to pass, above 0, at most 1.
        precision: The share of successes among the runs that pass, above 0, below 1.
    """

    pass_rate: float | None = None
    precision: float | None = None


@dataclass(frozen=True, slots=True)
class GateFigures:
    """What a gate keeps of the labelled runs.

    Attributes:
        gate: Whether it holds the score or the worth against its threshold.
        thresholds: The thresholds: one, or two if unmeasured novelty has another.
        pass_rate: The share of runs that it is to let pass, if its threshold follows one.
        runs: How many of the runs it keeps.
        kept: Their share, 0 to 1.
        right: The share of successes among them, with a 90 % interval; None if it keeps none.
        tasks_per_run: Different tasks solved for each run kept, 0 to 1.
        auc: Area under the ROC curve of what it holds against the threshold, with an 80 % interval.
    """

    gate: Gate
    thresholds: tuple[float, ...]
    pass_rate: float | None
    runs: int
    kept: float
    right: Estimate | None
    tasks_per_run: float
    auc: Estimate


@dataclass(frozen=True, slots=True)
class GateProposal:
    """The gate by worth that is proposed for a domain.

    Attributes:
        base_rate: The share of successes among all labelled runs: what no gate would keep.
        in_force: What the gate in force keeps of them; None if the model in force is one of an
            earlier version, which does not know what it was fitted to.
        with_model: What it keeps of them once the fitted model is in force; None if that is
            refused.
        proposed: What the proposed gate keeps; None if the model is refused, or if no threshold
            reaches the target.
        curve: What a gate by worth keeps with each fixed threshold, the lowest first.
        refusal: Why nothing is to be written; None if the proposal may be.
    """

    base_rate: float
    in_force: GateFigures | None
    with_model: GateFigures | None = None
    proposed: GateFigures | None = None
    curve: tuple[ThresholdPoint, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class GateInForce:
    """What gates the runs of a domain now.

    Attributes:
        domain: The domain.
        policy: Its policy.
        weights: The weights of its scores.
        model: The model in force; None if there is none that can be used.
    """

    domain: str
    policy: DomainPolicy
    weights: ScoringWeights
    model: ConfidenceModel | None


def propose_gate(
    runs: Sequence[LabelledRun],
    held_out: Sequence[float],
    in_force: GateInForce,
    target: ThresholdTarget,
) -> GateProposal:
    """Return the gate by worth for a target, with reasons if it is not to be put in force.

    It is refused if it keeps no larger share of successes than no gate would, if the worth's
    advantage over chance may itself be chance, or if the gate in force surely ranks better and what
    it keeps is as often right.

    Args:
        runs: The labelled runs.
        held_out: Their held-out confidences by the model that it would use, 0 to 1.
        in_force: What gates the runs now.
        target: What the gate is to achieve.

    Raises:
        ConfigError: The target is out of range.
    """
    base_rate = _base_rate(runs)
    present, present_figures = _present(runs, in_force)
    worths = _Values.of(runs, held_out, "worth", in_force.weights)
    with_model = _Values.of(runs, held_out, in_force.policy.gate, in_force.weights)
    threshold = propose_threshold(
        runs,
        worths.values,
        pass_rate=target.pass_rate,
        precision=target.precision,
        may_pass=worths.may_pass,
    )
    proposed, refusal = None, threshold.refusal
    if (point := threshold.point) is not None:
        proposed = _figures(runs, worths, (point.threshold,), target.pass_rate)
        refusal = _no_better_than_none(proposed, base_rate)
        if refusal is None and present is not None and present_figures is not None:
            refusal = _worse_than_in_force(proposed, present_figures, _gain(runs, worths, present))
    return GateProposal(
        base_rate=base_rate,
        in_force=present_figures,
        with_model=_by_policy(runs, with_model, in_force),
        proposed=proposed,
        curve=threshold_curve(runs, worths.values),
        refusal=refusal,
    )


def gate_without_proposal(
    runs: Sequence[LabelledRun], in_force: GateInForce, refusal: str
) -> GateProposal:
    """Return what the gate in force keeps, without a proposal.

    Args:
        runs: The labelled runs; some succeeded, and some failed.
        in_force: What gates the runs now.
        refusal: Why none is proposed.
    """
    _, figures = _present(runs, in_force)
    return GateProposal(base_rate=_base_rate(runs), in_force=figures, refusal=refusal)


@dataclass(frozen=True, slots=True)
class _Values:
    """What a gate holds against its threshold.

    Attributes:
        gate: Whether it is the score or the worth.
        values: Of each run, 0 to 1.
        may_pass: Which runs a pass rate lets pass at all: those whose confidence reaches the base
            rate; see `kp_langchain.gate.check`.
        has_model: Whether a model is in force beside the gate.
    """

    gate: Gate
    values: Sequence[float]
    may_pass: Sequence[bool]
    has_model: bool

    @classmethod
    def of(
        cls,
        runs: Sequence[LabelledRun],
        confidences: Sequence[float],
        gate: Gate,
        weights: ScoringWeights,
        base_rate: float | None = None,
    ) -> _Values:
        """Return what a gate would hold against its threshold with the confidences of a model."""
        if base_rate is None:
            base_rate = _base_rate(runs)
        pairs = list(zip(runs, confidences, strict=True))
        values = [
            hypothetical_worth(run, one) if gate == "worth" else estimated_score(run, weights, one)
            for run, one in pairs
        ]
        counts = gate == "worth" or weights.outcome_confidence > 0
        may_pass = [
            not counts or calibrated_confidence(run, one) >= base_rate for run, one in pairs
        ]
        return cls(gate, values, may_pass, has_model=True)


def _values_in_force(runs: Sequence[LabelledRun], in_force: GateInForce) -> _Values | None:
    """Return what the gate in force holds against its threshold; None if that is not known."""
    model, weights = in_force.model, in_force.weights
    if model is None:
        scores = [hypothetical_score(run, weights) for run in runs]
        return _Values("score", scores, [True] * len(runs), has_model=False)
    held_out = [model.held_out_confidence(run) for run in runs]
    confidences = [one for one in held_out if one is not None]
    if len(confidences) < len(runs):
        return None
    return _Values.of(runs, confidences, in_force.policy.gate, weights, model.base_rate)


def _present(
    runs: Sequence[LabelledRun], in_force: GateInForce
) -> tuple[_Values, GateFigures] | tuple[None, None]:
    """Return the values of the gate in force, and what it keeps; None if they are not known."""
    values = _values_in_force(runs, in_force)
    return (None, None) if values is None else (values, _by_policy(runs, values, in_force))


def _base_rate(runs: Sequence[LabelledRun]) -> float:
    return sum(run.success for run in runs) / len(runs)


def _by_policy(runs: Sequence[LabelledRun], values: _Values, in_force: GateInForce) -> GateFigures:
    """Return what a gate keeps with the thresholds or the pass rate of the policy in force."""
    policy = in_force.policy
    thresholds: tuple[float, ...]
    pass_rate = pass_rate_of(policy, values.gate, has_model=values.has_model)
    if pass_rate is not None:
        curve = threshold_curve(runs, values.values, values.may_pass)
        point = point_at(curve, pass_rate) or (curve[-1] if curve else None)
        thresholds = (1.0 if point is None else point.threshold,)
    elif values.gate == "worth" and policy.worth_threshold is not None:
        thresholds = (policy.worth_threshold,)
    else:
        thresholds = tuple(dict.fromkeys(threshold_of(in_force.domain, policy.threshold)))
    return _figures(runs, values, thresholds, pass_rate)


def _figures(
    runs: Sequence[LabelledRun],
    values: _Values,
    thresholds: tuple[float, ...],
    pass_rate: float | None,
) -> GateFigures:
    # The last threshold is for novelty that was not measured, which is then the neutral one.
    passes = [
        value >= thresholds[-1 if run.values.get("novelty") == NEUTRAL_NOVELTY else 0]
        and (pass_rate is None or may_pass)
        for run, value, may_pass in zip(runs, values.values, values.may_pass, strict=True)
    ]
    kept = list(compress(runs, passes))
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    return GateFigures(
        gate=values.gate,
        thresholds=thresholds,
        pass_rate=pass_rate,
        runs=len(kept),
        kept=len(kept) / len(runs),
        right=share([run.success for run in kept], [run.task for run in kept]) if kept else None,
        tasks_per_run=len({run.task for run in kept if run.success}) / max(1, len(kept)),
        auc=auc(truth, values.values, tasks, certainty=_CERTAINTY),
    )


def _no_better_than_none(proposed: GateFigures, base_rate: float) -> str | None:
    """Return a refusal if what a gate keeps may be no more often right than all runs."""
    right = 0.0 if proposed.right is None else proposed.right.value
    if right <= base_rate:
        return (
            f"of the runs that it would keep, {right:.2f} succeeded on held-out tasks, and "
            f"{base_rate:.2f} of all runs did"
        )
    if proposed.auc.low <= 0.5:
        return (
            "its advantage over keeping any runs may be chance: the AUC of the worth is "
            f"{proposed.auc} on held-out tasks; collect more verdicts"
        )
    return None


def _gain(runs: Sequence[LabelledRun], values: _Values, others: _Values) -> Estimate:
    """Return how much higher the AUC of a gate's values is than that of another's."""
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    return auc_gain(truth, values.values, others.values, tasks, certainty=_CERTAINTY)


def _worse_than_in_force(proposed: GateFigures, present: GateFigures, gain: Estimate) -> str | None:
    """Return a refusal if the gate in force surely ranks better, and keeps what is as often right.

    Args:
        proposed: What the gate keeps.
        present: What the gate in force keeps.
        gain: How much higher the AUC of the first is.
    """
    if gain.high >= 0 or proposed.right is None or present.right is None:
        return None
    if proposed.right.value > present.right.value:
        return None
    return (
        f"compared with the gate in force, its AUC would change by {gain} on held-out tasks, "
        f"and of the kept runs {proposed.right.value:.2f} would have succeeded, instead of "
        f"{present.right.value:.2f}"
    )


# ------------------------------------------------------------------ thresholds


@dataclass(frozen=True, slots=True)
class ThresholdPoint:
    """The labelled runs that pass at one threshold.

    Attributes:
        threshold: The score or worth from which a run passes, 0 to 1, in thousandths.
        runs: How many runs pass.
        tasks: How many different tasks they have.
        pass_rate: The share of all runs that passes, 0 to 1.
        precision: The share of successes among those that pass, with a 90 % interval.
    """

    threshold: float
    runs: int
    tasks: int
    pass_rate: float
    precision: Estimate


@dataclass(frozen=True, slots=True)
class ThresholdProposal:
    """A threshold for a target, and the curve it was read from.

    Attributes:
        point: The proposed threshold; None if no threshold reaches the target.
        curve: All thresholds, the lowest first.
        refusal: Why no threshold is proposed; None if one is.
    """

    point: ThresholdPoint | None
    curve: tuple[ThresholdPoint, ...]
    refusal: str | None


def propose_threshold(
    runs: Sequence[LabelledRun],
    scores: Sequence[float],
    *,
    pass_rate: float | None = None,
    precision: float | None = None,
    may_pass: Sequence[bool] | None = None,
) -> ThresholdProposal:
    """Read a threshold from the scores or worths of labelled runs.

    For a pass rate it is the lowest threshold that at most this share of the runs reaches. For a
    precision it is the lowest one whose interval lies above the target; see `_at_precision`.

    Args:
        runs: The labelled runs.
        scores: Their scores or worths, 0 to 1, with held-out confidences: others would look too
            good.
        pass_rate: The share of runs that is to pass, above 0, at most 1.
        precision: The share of successes among the runs that pass, above 0, below 1.
        may_pass: For a pass rate, which runs it lets pass at all; all by default.

    Raises:
        ConfigError: Both targets are given, or neither; it is out of range; or there are no runs.
    """
    if (pass_rate is None) == (precision is None):
        raise ConfigError("give either a pass rate or a precision")
    if not runs:
        raise ConfigError("no labelled runs to read a threshold from; collect verdicts first")
    if pass_rate is not None:
        curve = threshold_curve(runs, scores, may_pass)
        return _at_pass_rate(curve, _check("pass rate", pass_rate, may_be_1=True), len(runs))
    curve = threshold_curve(runs, scores)
    return _at_precision(curve, _check("precision", precision, may_be_1=False), len(runs))


def _at_pass_rate(curve: tuple[ThresholdPoint, ...], target: float, runs: int) -> ThresholdProposal:
    point, refusal = point_at(curve, target), None
    if not curve:
        refusal = "no run has a confidence that reaches the share of successes among all"
    elif point is None:
        refusal = (
            f"no threshold lets as few as {target:g} pass: the highest, "
            f"{curve[-1].threshold:.3f}, is reached by {curve[-1].runs} of {runs} runs"
        )
    return ThresholdProposal(point, curve, refusal)


def _at_precision(curve: tuple[ThresholdPoint, ...], target: float, runs: int) -> ThresholdProposal:
    """Propose the lowest threshold at which the lower end of the precision's interval is enough.

    The share of successes itself would be too optimistic, because the luckiest of many thresholds
    looks best. Simulated with samples of 200 runs and a target of 0.8: if scores separate good runs
    from bad, 7 of 140 proposed thresholds missed the target. If they barely do, few thresholds are
    proposed, and most miss it (17 of 24). If they carry no information, but 0.75 of the runs
    succeed anyway, a threshold is proposed for one sample in nine.
    """
    best = max(curve, key=lambda point: (point.precision.low, -point.threshold))
    refusal = (
        f"no threshold is sure to give precision {target:g}: the surest, "
        f"{best.threshold:.3f}, gives {best.precision} with {best.runs} of {runs} runs; "
        "lower the target, or collect more verdicts"
    )
    point = next((point for point in curve if point.precision.low >= target), None)
    return ThresholdProposal(point, curve, None if point else refusal)


def threshold_curve(
    runs: Sequence[LabelledRun],
    scores: Sequence[float],
    may_pass: Sequence[bool] | None = None,
) -> tuple[ThresholdPoint, ...]:
    """Return which runs pass at every threshold, the lowest first.

    Args:
        runs: The labelled runs.
        scores: Their scores or worths, 0 to 1.
        may_pass: Which runs may pass at all; all by default.
    """
    # Rounded as thresholds are written into a file, so that the figures hold for the written one.
    by_thousandths: defaultdict[int, list[LabelledRun]] = defaultdict(list)
    for run, score, may in zip(runs, scores, may_pass or repeat(True, len(runs)), strict=True):
        if may:
            by_thousandths[_thousandths(score)].append(run)
    points = []
    passing = successes = 0
    tasks: set[str] = set()
    for thousandths in sorted(by_thousandths, reverse=True):
        more = by_thousandths[thousandths]
        passing += len(more)
        successes += sum(run.success for run in more)
        tasks.update(run.task for run in more)
        points.append(
            ThresholdPoint(
                threshold=thousandths / 1000,
                runs=passing,
                tasks=len(tasks),
                pass_rate=passing / len(runs),
                precision=share_of(successes, passing, tasks=len(tasks)),
            )
        )
    return tuple(reversed(points))


def point_at(curve: Sequence[ThresholdPoint], pass_rate: float) -> ThresholdPoint | None:
    """Return the lowest threshold that at most a share of the runs reaches; None if none does.

    Args:
        curve: All thresholds, the lowest first.
        pass_rate: The share, 0 to 1.
    """
    return next((point for point in curve if point.pass_rate <= pass_rate), None)


def _thousandths(score: float) -> int:
    """Return the largest number of thousandths that the score reaches."""
    thousandths = math.floor(score * 1000)
    # The product may have been rounded up beyond the score.
    return thousandths if thousandths / 1000 <= score else thousandths - 1


def _check(name: str, value: float | None, *, may_be_1: bool) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= 1
        or (value == 1 and not may_be_1)
    ):
        limit = "at most 1" if may_be_1 else "below 1"
        raise ConfigError(f"{name} is {value!r}; it must be a number above 0, {limit}")
    return float(value)
