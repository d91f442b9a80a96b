"""The gate that is proposed for a domain, held against the one in force and against no gate.

Every figure is of confidences that are held out: those of a model that never saw the run's task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

from kp_langchain.calibration.hypothetical_score import hypothetical_score, hypothetical_worth
from kp_langchain.calibration.measures import Estimate, auc, auc_gain, share
from kp_langchain.calibration.threshold_curve import (
    ThresholdPoint,
    propose_threshold,
    threshold_curve,
)
from kp_langchain.gate import threshold_of
from kp_langchain.gate.check import pass_rate_of
from kp_langchain.scoring.dimensions import NEUTRAL_NOVELTY

if TYPE_CHECKING:
    from kp_langchain.calibration.labelled_run import LabelledRun
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.domain_policy import DomainPolicy, Gate
    from kp_langchain.weights import ScoringWeights

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
        proposed: What the proposed gate keeps; None if no threshold reaches the target.
        target: The target, in words.
        curve: What the gate by worth keeps at every threshold, the lowest first.
        refusal: Why it is not to be written; None if it may be.
    """

    base_rate: float
    in_force: GateFigures | None
    proposed: GateFigures | None
    target: str
    curve: tuple[ThresholdPoint, ...]
    refusal: str | None


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

    It is refused if it keeps no larger share of successes than no gate would, or if the gate in
    force surely ranks better and what it keeps is as often right. It is also refused if the worth's
    advantage over chance may itself be chance, unless the gate in force keeps a smaller share of
    successes than no gate would, and surely ranks worse.

    Args:
        runs: The labelled runs.
        held_out: Their held-out confidences by the model that it would use, 0 to 1.
        in_force: What gates the runs now.
        target: What the gate is to achieve.

    Raises:
        ConfigError: The target is out of range.
    """
    worths = [hypothetical_worth(run, one) for run, one in zip(runs, held_out, strict=True)]
    threshold = propose_threshold(
        runs, worths, pass_rate=target.pass_rate, precision=target.precision
    )
    base_rate = sum(run.success for run in runs) / len(runs)
    present, gain = None, None
    if (known := _values_in_force(runs, in_force)) is not None:
        kind, values = known
        present = _in_force(runs, kind, values, in_force)
        truth, tasks = [run.success for run in runs], [run.task for run in runs]
        gain = auc_gain(truth, worths, values, tasks, certainty=_CERTAINTY)
    proposed, refusal = None, threshold.refusal
    if threshold.point is not None:
        proposed = _figures(runs, "worth", worths, (threshold.point.threshold,))
        proposed = replace(proposed, pass_rate=target.pass_rate)
        refusal = _refusal(proposed, present, gain, base_rate)
    return GateProposal(
        base_rate=base_rate,
        in_force=present,
        proposed=proposed,
        target=threshold.target,
        curve=threshold.curve,
        refusal=refusal,
    )


def _values_in_force(
    runs: Sequence[LabelledRun], gate: GateInForce
) -> tuple[Gate, list[float]] | None:
    """Return what the gate in force holds against its threshold; None if that is not known."""
    model = gate.model
    if model is None:
        return "score", [hypothetical_score(run, gate.weights) for run in runs]
    held_out = [model.held_out_confidence(run) for run in runs]
    confidences = [one for one in held_out if one is not None]
    if len(confidences) < len(runs):
        return None
    pairs = list(zip(runs, confidences, strict=True))
    if gate.policy.gate == "worth":
        return "worth", [hypothetical_worth(run, one) for run, one in pairs]
    return "score", [
        hypothetical_score(run, gate.weights, one, success=not run.proves_failure)
        for run, one in pairs
    ]


def _in_force(
    runs: Sequence[LabelledRun], kind: Gate, values: Sequence[float], gate: GateInForce
) -> GateFigures:
    thresholds: tuple[float, ...]
    pass_rate = pass_rate_of(gate.policy, kind, has_model=gate.model is not None)
    if pass_rate is not None:
        curve = threshold_curve(runs, values)
        thresholds = (
            next((one for one in curve if one.pass_rate <= pass_rate), curve[-1]).threshold,
        )
    elif kind == "worth" and gate.policy.worth_threshold is not None:
        thresholds = (gate.policy.worth_threshold,)
    else:
        thresholds = tuple(dict.fromkeys(threshold_of(gate.domain, gate.policy.threshold)))
    return replace(_figures(runs, kind, values, thresholds), pass_rate=pass_rate)


def _figures(
    runs: Sequence[LabelledRun],
    gate: Gate,
    values: Sequence[float],
    thresholds: tuple[float, ...],
) -> GateFigures:
    # The last threshold is for novelty that was not measured, which is then the neutral one.
    passes = [
        value >= thresholds[-1 if run.values.get("novelty") == NEUTRAL_NOVELTY else 0]
        for run, value in zip(runs, values, strict=True)
    ]
    kept = list(compress(runs, passes))
    truth, tasks = [run.success for run in runs], [run.task for run in runs]
    return GateFigures(
        gate=gate,
        thresholds=thresholds,
        pass_rate=None,
        runs=len(kept),
        kept=len(kept) / len(runs),
        right=share([run.success for run in kept], [run.task for run in kept]) if kept else None,
        tasks_per_run=len({run.task for run in kept if run.success}) / max(1, len(kept)),
        auc=auc(truth, values, tasks, certainty=_CERTAINTY),
    )


def _refusal(
    proposed: GateFigures, present: GateFigures | None, gain: Estimate | None, base_rate: float
) -> str | None:
    """Return why a gate is not to be put in force.

    Args:
        proposed: The gate.
        present: The gate in force, if what it keeps is known.
        gain: How much higher its AUC is than that of the gate in force, if that is known.
        base_rate: The share of successes among all runs.
    """
    right = 0.0 if proposed.right is None else proposed.right.value
    if right <= base_rate:
        return (
            f"of the runs that it would keep, {right:.2f} succeeded on held-out tasks, and "
            f"{base_rate:.2f} of all runs did"
        )
    if proposed.auc.low <= 0.5 and not _is_better_than_a_bad_gate(present, gain, base_rate):
        return (
            "its advantage over keeping any runs may be chance: the AUC of the worth is "
            f"{proposed.auc} on held-out tasks; collect more verdicts"
        )
    if present is None or present.right is None or gain is None:
        return None
    if gain.high < 0 and right <= present.right.value:
        return (
            f"compared with the gate in force, its AUC would change by {gain} on held-out tasks, "
            f"and of the kept runs {right:.2f} would have succeeded, instead of "
            f"{present.right.value:.2f}"
        )
    return None


def _is_better_than_a_bad_gate(
    present: GateFigures | None, gain: Estimate | None, base_rate: float
) -> bool:
    """Return whether the gate in force is worse than none, and its AUC surely lower."""
    if present is None or present.right is None or gain is None:
        return False
    return present.right.value < base_rate and gain.low > 0
