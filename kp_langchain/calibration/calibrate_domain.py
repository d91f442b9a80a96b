"""Calibrate one domain: fit its model, put it in force if it is better, propose a gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.gate_proposal import (
    GateInForce,
    GateProposal,
    ThresholdTarget,
    gate_without_proposal,
    propose_gate,
)
from kp_langchain.calibration.measures import auc_value, brier, mean_p_value
from kp_langchain.calibration.model import (
    ConfidenceModel,
    LabelledRun,
    estimated_score,
    hypothetical_worth,
)
from kp_langchain.gate.check import WINDOW

if TYPE_CHECKING:
    from kp_langchain.config import Settings


class ModelEntry(Protocol):
    """A confidence model that a store has."""

    @property
    def version(self) -> int:
        """Its version, counted from 1 in each domain."""

    @property
    def model(self) -> ConfidenceModel:
        """The model itself."""


class ModelStore(Protocol):
    """What calibrating needs of a store; `TraceStore.models` has it."""

    def labelled(self, domain: str) -> Sequence[LabelledRun]:
        """Return the runs of a domain that have a verdict on their success, oldest first."""

    def installed(
        self, domain: str | None = None, *, only_active: bool = False
    ) -> Sequence[ModelEntry]:
        """Return the models of a domain, oldest first; only the one in force if so asked."""

    def install(self, model: ConfidenceModel) -> int:
        """Put a model in force for its domain and return its version."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of calibrating a domain.

    Attributes:
        fit: The model, and its figures on held-out tasks.
        before: The model that was in force before; None if there was none.
        version: The version of the fitted model in the store, now in force; None if the model was
            refused or was not to be installed.
        proposal: The gate proposed for the model, and the one in force; None without a model.
        later: What the verdicts given since say of the model in force before, if it stays; None
            if that is not known.
    """

    fit: Fit
    before: ModelEntry | None
    version: int | None
    proposal: GateProposal | None
    later: LaterVerdicts | None = None

    @property
    def to_write(self) -> dict[str, Any]:
        """The fields of the domain's policy to write, None for one to remove; empty for nothing."""
        proposal = self.proposal
        if proposal is None or proposal.refusal is not None or proposal.proposed is None:
            return {}
        gate = proposal.proposed
        if gate.pass_rate is not None:
            return {"gate": gate.gate, "pass_rate": gate.pass_rate}
        # A pass rate would come before the threshold.
        return {"gate": gate.gate, "worth_threshold": gate.thresholds[0], "pass_rate": None}

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model itself, ready for JSON."""
        figures = asdict(replace(self.fit, model=None))
        del figures["model"], figures["held_out"]
        before = self.before
        return figures | {
            "version": self.version,
            "before": before and {"version": before.version, "auc": before.model.auc},
            "gate_proposal": self.proposal and asdict(self.proposal),
            "later_verdicts": self.later and asdict(self.later),
        }


def calibrate(
    models: ModelStore, domain: str, *, settings: Settings, target: ThresholdTarget, install: bool
) -> Calibration:
    """Fit a domain's model, install it if it is good enough, and propose a gate.

    Args:
        models: Where the labelled runs are, and where the model goes.
        domain: The domain.
        settings: Provide the policy in force.
        target: What the gate is to achieve.
        install: Whether to install the model; False leaves the store as it is.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        StoreError: The store cannot be read or written.
        ConfigError: The target is out of range, or the domain's policy cannot be used.
    """
    runs = models.labelled(domain)
    policy = settings.policy_for(domain)
    result = _with_gate_values(fit(domain, runs, weights=policy.weights), runs)
    before = next(iter(models.installed(domain, only_active=True)), None)
    proposal = version = later = None
    if before is not None and result.refusal is not None:
        later = later_verdicts(before.model, runs)
    if result.model is not None:
        in_force = before.model if before is not None and before.model.is_current else None
        gate = GateInForce(domain, policy, result.weights, in_force)
        if result.refusal is not None:
            proposal = gate_without_proposal(runs, gate, "the model is refused")
        else:
            proposal = propose_gate(runs, result.held_out, gate, target)
            version = _install(models, result.model, before) if install else None
    return Calibration(result, before, version, proposal, later)


def _with_gate_values(result: Fit, runs: Sequence[LabelledRun]) -> Fit:
    """Return the fit with the scores and worths that a pass rate begins with in its model."""
    if result.model is None:
        return result
    pairs = list(zip(runs, result.held_out, strict=True))[-WINDOW:]
    model = replace(
        result.model,
        scores=tuple(estimated_score(run, result.weights, one) for run, one in pairs),
        worths=tuple(hypothetical_worth(run, one) for run, one in pairs),
    )
    return replace(result, model=model)


def _install(models: ModelStore, model: ConfidenceModel, before: ModelEntry | None) -> int:
    if before is not None and before.model == replace(model, created_at=before.model.created_at):
        return before.version  # the same verdicts give the same model
    return models.install(model)


# ------------------------------------------------------------------ verdicts given since


MOST_RUNS = 50
"""A model is held against at most so many verdicts, the last ones."""
FEWEST_RUNS = 20
"""It is not held against fewer than this."""

# The limit for each of two ways to break a promise: errors that are larger, confidence that is off.
_MOST_CHANCE = 0.01


@dataclass(frozen=True, slots=True)
class LaterVerdicts:
    """A model's promise, and its figures on the last runs that it was not fitted to.

    Runs of tasks that it was fitted to are predicted without them.

    Attributes:
        runs: How many such runs there are, at most 50. The other figures are None below 20.
        promised_brier: Brier score on held-out tasks when it was fitted.
        promised_auc: Area under the ROC curve on the same.
        brier: Brier score on the later runs.
        base_brier: That of always predicting the share of successes among them.
        auc: Area under the ROC curve on them; None if all succeeded or all failed.
        confidence: The mean confidence that it gives them, 0 to 1.
        success_rate: The share of them that succeeded.
        holds: Whether it does as promised. It does not if its Brier score is no better than that of
            the share of successes, and either that score or the mean confidence is further from
            what was promised than chance explains.
    """

    runs: int
    promised_brier: float
    promised_auc: float
    brier: float | None = None
    base_brier: float | None = None
    auc: float | None = None
    confidence: float | None = None
    success_rate: float | None = None
    holds: bool | None = None

    @property
    def is_broken(self) -> bool:
        """Whether enough verdicts show that the model no longer holds."""
        return self.holds is False

    def __str__(self) -> str:
        if self.holds is None:
            return (
                f"{self.runs} verdicts so far on runs that it was not fitted to; it is held "
                f"against them from {FEWEST_RUNS} on"
            )
        beginning = "it no longer holds" if self.is_broken else "it holds"
        areas = "" if self.auc is None else f", AUC {self.auc:.2f}"
        return (
            f"{beginning}: promised Brier score {self.promised_brier:.3f}, "
            f"AUC {self.promised_auc:.2f}; the last {self.runs} verdicts Brier score "
            f"{self.brier:.3f} (always {self.success_rate:.2f}: {self.base_brier:.3f}){areas}, "
            f"mean confidence {self.confidence:.2f} where {self.success_rate:.2f} succeeded"
        )


def later_verdicts(model: ConfidenceModel, runs: Sequence[LabelledRun]) -> LaterVerdicts | None:
    """Hold a model against the verdicts on runs that it was not fitted to.

    Args:
        model: The model.
        runs: The labelled runs of its domain, the oldest first.

    Returns:
        The figures; None for a model of an earlier version of this package, which does not know
        what it was fitted to, or whose features are no longer computed.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    if not model.is_current or not model.folds:
        return None
    later = [run for run in runs if run.trace_id not in model.held_out][-MOST_RUNS:]
    if len(later) < FEWEST_RUNS:
        return LaterVerdicts(len(later), model.brier, model.auc)
    confidences = [
        one for run in later if (one := model.held_out_confidence(run)) is not None
    ]  # a model with folds has one for each run
    truth, tasks = [run.success for run in later], [run.task for run in later]
    rate = sum(truth) / len(truth)
    error, base_error = brier(truth, confidences), rate * (1 - rate)
    return LaterVerdicts(
        runs=len(later),
        promised_brier=model.brier,
        promised_auc=model.auc,
        brier=error,
        base_brier=base_error,
        auc=auc_value(truth, confidences) if 0 < rate < 1 else None,
        confidence=sum(confidences) / len(confidences),
        success_rate=rate,
        holds=error < base_error or not _is_beyond_chance(model, truth, confidences, tasks),
    )


def _is_beyond_chance(
    model: ConfidenceModel,
    truth: Sequence[bool],
    confidences: Sequence[float],
    tasks: Sequence[str],
) -> bool:
    """Return whether errors are larger, or confidences further off, than chance explains."""
    surprises = [y - p for y, p in zip(truth, confidences, strict=True)]
    excess = [surprise**2 - model.brier for surprise in surprises]
    larger = mean_p_value(excess, tasks)
    off = 2 * min(mean_p_value(surprises, tasks), mean_p_value([-one for one in surprises], tasks))
    return min(larger, off) < _MOST_CHANCE
