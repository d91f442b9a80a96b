"""Calibrate one domain: fit its model, and propose a gate.

Every figure of a gate is of confidences that are held out: those of a model that never saw the
run's task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.agreement import AGREEMENT, agreement_scale
from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.later_verdicts import LaterVerdicts, later_verdicts
from kp_langchain.calibration.measures import Estimate, auc, share
from kp_langchain.calibration.model import (
    ConfidenceModel,
    LabelledRun,
    calibrated_confidence,
    confidence_by_agreement,
    default_score,
    estimated_score,
    estimated_worth,
)
from kp_langchain.errors import ConfigError
from kp_langchain.gate import threshold_of
from kp_langchain.gate.check import DEFAULT_PASS_RATE, pass_rate_of
from kp_langchain.scoring.dimensions import NEUTRAL_NOVELTY

if TYPE_CHECKING:
    from kp_langchain.policy import DomainPolicy, Gate

OTHER_PASS_RATES = (0.5, 0.3, 0.2, 0.1, 0.05)
"""What a gate by worth keeps is shown for these pass rates, too."""


# An advantage over no gate counts if the lower end of this interval of the worth's AUC is above
# 0.5. All runs are in it: among the kept tenth of 150 alone, an interval of any use would include
# the base rate even for models that double the share of successes.
_CERTAINTY = 0.8


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of calibrating a domain.

    Attributes:
        fit: The model, and its figures on held-out tasks.
        proposal: The gate proposed for the model, and the one in force; None without a model.
        later: What the verdicts given since say of the model in force before, if it stays; None
            without one.
    """

    fit: Fit
    proposal: GateProposal | None
    later: LaterVerdicts | None

    @property
    def policy_fields(self) -> dict[str, Any]:
        """The fields of the domain's policy to write; empty if no gate is proposed."""
        proposal = self.proposal
        if proposal is None or proposal.refusal is not None or proposal.proposed is None:
            return {}
        return {"gate": proposal.proposed.gate, "pass_rate": proposal.proposed.pass_rate}

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model's terms, ready for JSON."""
        figures, model = asdict(self.fit), self.fit.model
        del figures["model"], figures["held_out"], figures["held_out_alone"]
        return figures | {
            "auc": self.fit.auc and asdict(self.fit.auc),
            "brier": model and model.brier,
            "default_brier": model and model.default_brier,
            "leans_on": model.leans_on if model is not None else (),
            "gate_proposal": self.proposal and asdict(self.proposal),
            "later_verdicts": self.later and asdict(self.later),
        }


def calibrate(
    domain: str,
    runs: Sequence[LabelledRun],
    policy: DomainPolicy,
    *,
    before: ConfidenceModel | None = None,
    pass_rate: float = DEFAULT_PASS_RATE,
) -> Calibration:
    """Fit a domain's model and propose a gate for it; install and write nothing.

    Args:
        domain: The domain.
        runs: Its labelled runs, the oldest first.
        policy: Its policy in force.
        before: Its model in force, if there is one.
        pass_rate: The share of runs that the gate is to let pass, above 0, at most 1.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        ConfigError: The pass rate is out of range.
    """
    if not 0 < pass_rate <= 1:
        raise ConfigError(f"pass rate is {pass_rate}; it must be a number above 0, at most 1")
    result = fit(domain, runs, weights=policy.weights)
    later = proposal = None
    if before is not None and before.is_current and result.refusal is not None:
        later = later_verdicts(before, runs)
    if result.model is not None:
        has_model = before is not None and before.is_current
        proposal = propose_gate(result, runs, policy, pass_rate=pass_rate, has_model=has_model)
    return Calibration(result, proposal, later)


# ------------------------------------------------------------------ the proposed gate


@dataclass(frozen=True, slots=True)
class GateFigures:
    """What a gate keeps of the labelled runs.

    Attributes:
        gate: Whether it compares the score or the worth with its threshold.
        thresholds: The thresholds: one, or two if unmeasured novelty has another.
        pass_rate: The share of runs that it is to let pass, if its threshold follows one.
        runs: How many of the runs it keeps.
        kept: Their share, 0 to 1.
        right: The share of successes among them, with a 90 % interval; None if it keeps none.
        tasks_per_run: Different tasks solved for each run kept, 0 to 1.
        auc: Area under the ROC curve of what it compares with the threshold, with an 80 % interval.
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
        in_force: What the gate of the policy keeps of them with default confidences; None if a
            model is in force, because its confidences in these runs are not held out.
        with_model: What the same gate keeps with the fitted model.
        proposed: What the proposed gate keeps.
        other_rates: What gates by worth with other pass rates would keep.
        refusal: Why nothing is to be written; None if the proposal may be.
    """

    base_rate: float
    in_force: GateFigures | None
    with_model: GateFigures
    proposed: GateFigures
    other_rates: tuple[GateFigures, ...]
    refusal: str | None


def propose_gate(
    result: Fit,
    runs: Sequence[LabelledRun],
    policy: DomainPolicy,
    *,
    pass_rate: float,
    has_model: bool,
) -> GateProposal:
    """Return the gate by worth for a pass rate, with the reason if it is not to be put in force.

    It is refused if its model is, if it keeps no larger share of successes than no gate would, if
    the worth's advantage over chance may itself be chance, or if the gate in force surely ranks
    better and keeps runs that are as often right.

    Args:
        result: The fit of a model.
        runs: The labelled runs that it was fitted to.
        policy: The policy of the domain.
        pass_rate: The share of runs that the gate is to let pass, above 0, at most 1.
        has_model: Whether another model is in force.
    """
    base_rate = result.successes / result.runs
    worths = _Values.with_model(result, runs, "worth")
    proposed = _at_pass_rate(runs, worths, pass_rate)
    with_model = _by_policy(runs, _Values.with_model(result, runs, policy.gate), result, policy)
    in_force = None
    if not has_model:
        in_force = _by_policy(
            runs, _Values.without_model(result, runs, policy.gate), result, policy
        )
    if result.refusal is not None:
        refusal: str | None = "the model is refused"
    else:
        refusal = _no_better_than_none(proposed, base_rate)
        refusal = refusal or _worse_than_in_force(proposed, in_force or with_model)
    return GateProposal(
        base_rate=base_rate,
        in_force=in_force,
        with_model=with_model,
        proposed=proposed,
        other_rates=tuple(_at_pass_rate(runs, worths, rate) for rate in OTHER_PASS_RATES),
        refusal=refusal,
    )


@dataclass(frozen=True, slots=True)
class _Values:
    """What a gate compares with its threshold.

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
    def without_model(cls, result: Fit, runs: Sequence[LabelledRun], gate: Gate) -> _Values:
        """Return the values without a model: of the gate `worth` by agreement, if there is any."""
        agreements = [run.features.get(AGREEMENT) for run in runs]
        scale = agreement_scale(one for one in agreements if one is not None)
        if gate == "worth" and any(one is not None for one in agreements):
            confidences = [confidence_by_agreement(one, scale) for one in agreements]
            worths = [estimated_worth(*pair) for pair in zip(runs, confidences, strict=True)]
            return cls(gate, worths, [one > 0.5 for one in confidences], has_model=False)
        scores = [default_score(run, result.weights) for run in runs]
        return cls("score", scores, [True] * len(runs), has_model=False)

    @classmethod
    def with_model(cls, result: Fit, runs: Sequence[LabelledRun], gate: Gate) -> _Values:
        """Return the values with the held-out confidences of a fitted model."""
        base_rate, weights = result.successes / result.runs, result.weights
        is_worth = gate == "worth"
        counts = is_worth or weights.outcome_confidence > 0
        values, may_pass = [], []
        held_out = result.held_out if is_worth else result.held_out_alone
        for run, one in zip(runs, held_out, strict=True):
            values.append(
                estimated_worth(run, one) if is_worth else estimated_score(run, weights, one)
            )
            may_pass.append(not counts or calibrated_confidence(run, one) >= base_rate)
        return cls(gate, values, may_pass, has_model=True)


def _at_pass_rate(runs: Sequence[LabelledRun], values: _Values, pass_rate: float) -> GateFigures:
    """Return what a gate keeps whose threshold follows a pass rate."""
    candidates = [not run.is_vetoed for run in runs]
    ranked = sorted(compress(values.values, candidates), reverse=True)
    threshold = ranked[max(1, round(pass_rate * len(ranked))) - 1] if ranked else 1.0
    passes = [
        value >= threshold and may_pass and is_candidate
        for value, may_pass, is_candidate in zip(
            values.values, values.may_pass, candidates, strict=True
        )
    ]
    return _figures(runs, values, passes, (threshold,), pass_rate)


def _by_policy(
    runs: Sequence[LabelledRun], values: _Values, result: Fit, policy: DomainPolicy
) -> GateFigures:
    """Return what a gate keeps with the thresholds or the pass rate of a policy."""
    pass_rate = pass_rate_of(policy, values.gate, has_model=values.has_model)
    if pass_rate is not None:
        return _at_pass_rate(runs, values, pass_rate)
    measured, unmeasured = threshold_of(result.domain, policy.threshold)
    if values.gate == "worth" and policy.worth_threshold is not None:
        measured = unmeasured = policy.worth_threshold
    passes = [
        value >= (unmeasured if run.values.get("novelty") == NEUTRAL_NOVELTY else measured)
        and not (values.gate == "worth" and run.is_vetoed)
        for run, value in zip(runs, values.values, strict=True)
    ]
    thresholds = tuple(dict.fromkeys((measured, unmeasured)))
    return _figures(runs, values, passes, thresholds, None)


def _figures(
    runs: Sequence[LabelledRun],
    values: _Values,
    passes: Sequence[bool],
    thresholds: tuple[float, ...],
    pass_rate: float | None,
) -> GateFigures:
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


def _worse_than_in_force(proposed: GateFigures, present: GateFigures) -> str | None:
    """Return a refusal if the gate in force surely ranks better, and keeps runs as often right."""
    if proposed.right is None or present.right is None:
        return None
    if proposed.auc.high >= present.auc.value or proposed.right.value > present.right.value:
        return None
    return (
        f"on held-out tasks its AUC is {proposed.auc}, that of the gate in force "
        f"{present.auc.value:.2f}, and of the kept runs {proposed.right.value:.2f} would have "
        f"succeeded, instead of {present.right.value:.2f}"
    )
