"""Calibrate one domain: fit its model, put it in force if it is better, propose what follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.hypothetical_score import hypothetical_score
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.calibration.proposals import (
    ThresholdProposal,
    WeightsProposal,
    propose_threshold,
    propose_weights,
)
from kp_langchain.gate import threshold_of
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE
from kp_langchain.weights import ScoringWeights

if TYPE_CHECKING:
    from kp_langchain.config import Settings

ConfidenceSource = Literal["the model's", "the default"]


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

    def entries(
        self, domain: str | None = None, *, only_active: bool = False
    ) -> Sequence[ModelEntry]:
        """Return the models of a domain, oldest first; only the one in force if so asked."""

    def install(self, model: ConfidenceModel) -> int:
        """Put a model in force for its domain and return its version."""


@dataclass(frozen=True, slots=True)
class ThresholdTarget:
    """What a threshold is to achieve: exactly one of the two.

    Attributes:
        pass_rate: The share of runs that is to pass, above 0, at most 1.
        precision: The share of successes among the runs that pass, above 0, below 1.
    """

    pass_rate: float | None = None
    precision: float | None = None


@dataclass(frozen=True, slots=True)
class WeighedThreshold:
    """A threshold proposed for scores with certain weights.

    Attributes:
        weights: The weights.
        are_proposed: Whether the weights are proposed too, rather than in force.
        proposal: The threshold and its curve.
    """

    weights: ScoringWeights
    are_proposed: bool
    proposal: ThresholdProposal


@dataclass(frozen=True, slots=True)
class Calibration:
    """The result of calibrating a domain.

    Attributes:
        fit: The model, and its figures on held-out tasks.
        before: The model that was in force before; None if there was none.
        version: The version of the fitted model in the store, now in force; None if the model was
            refused or was not to be installed.
        thresholds_in_force: The domain's thresholds by purpose; see `thresholds_in_force`.
        confidence: The confidence that the proposals are based on. None if there are no proposals:
            there are too few verdicts, or every confidence at hand was learned from these runs.
        weights: The weights in force and the best others; None if there are no proposals.
        thresholds: The thresholds for the proposed weights, if any are, and for those in force.
    """

    fit: Fit
    before: ModelEntry | None
    version: int | None
    thresholds_in_force: dict[str, float]
    confidence: ConfidenceSource | None
    weights: WeightsProposal | None
    thresholds: tuple[WeighedThreshold, ...]

    @property
    def proposes_weights(self) -> bool:
        """Whether new weights are proposed."""
        return any(one.are_proposed for one in self.thresholds)

    @property
    def to_write(self) -> WeighedThreshold | None:
        """The threshold to put in force, with the weights that it belongs to."""
        return next((one for one in self.thresholds if one.proposal.point is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model itself, ready for JSON."""
        figures = asdict(self.fit)
        del figures["model"], figures["held_out"]
        before = self.before
        return figures | {
            "version": self.version,
            "before": before and {"version": before.version, "auc": before.model.auc},
            "confidence": self.confidence,
            "weights_proposal": self.weights and asdict(self.weights),
            "thresholds_in_force": self.thresholds_in_force,
            "threshold_proposals": [asdict(one) for one in self.thresholds],
        }


def calibrate(
    models: ModelStore, domain: str, *, settings: Settings, target: ThresholdTarget, install: bool
) -> Calibration:
    """Fit a domain's model, install it if it is good enough, and propose weights and thresholds.

    Args:
        models: Where the labelled runs are, and where the model goes.
        domain: The domain.
        settings: Provide the weights and the threshold in force.
        target: What the threshold is to achieve.
        install: Whether to install the model; False leaves the store as it is.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        StoreError: The store cannot be read or written.
        ConfigError: The target is out of range, or the domain's policy cannot be used.
    """
    runs = models.labelled(domain)
    policy = settings.policy_for(domain)
    result = fit(domain, runs, weights=policy.weights)
    before = next(iter(models.entries(domain, only_active=True)), None)
    version = _install(models, result, before) if install and result.refusal is None else None
    proposal: WeightsProposal | None = None
    thresholds: list[WeighedThreshold] = []
    source, confidences = _confidences(result, before, runs)
    if source is not None:
        proposal = propose_weights(runs, confidences, result.weights)
        thresholds = _thresholds(runs, confidences, proposal, target)
    return Calibration(
        fit=result,
        before=before,
        version=version,
        thresholds_in_force=thresholds_in_force(domain, policy.threshold),
        confidence=source,
        weights=proposal,
        thresholds=tuple(thresholds),
    )


def thresholds_in_force(domain: str, policy_threshold: float | None) -> dict[str, float]:
    """Return the thresholds that the gate applies to a domain, by purpose.

    Args:
        domain: The domain.
        policy_threshold: The threshold of its policy, 0 to 1; None if the policy sets none.

    Returns:
        `in_force`, and `in_force_novelty_not_measured` if the built-in thresholds apply.
    """
    threshold = threshold_of(domain, policy_threshold)
    if policy_threshold is not None:
        return {"in_force": threshold.measured}
    return {
        "in_force": threshold.measured,
        "in_force_novelty_not_measured": threshold.unmeasured,
    }


def _install(models: ModelStore, result: Fit, before: ModelEntry | None) -> int:
    model = result.model
    assert model is not None  # noqa: S101 - a fit without refusal has a model
    if before is not None and before.model == replace(model, created_at=before.model.created_at):
        return before.version  # the same verdicts give the same model
    return models.install(model)


def _confidences(
    result: Fit, before: ModelEntry | None, runs: Sequence[LabelledRun]
) -> tuple[ConfidenceSource | None, list[float]]:
    """Return where the confidence of new runs comes from, and what it would be for these runs."""
    if result.model is None:
        return None, []
    if result.refusal is None:
        return "the model's", list(result.held_out)
    if before is not None and before.model.is_current:
        return None, []  # that model was fitted on some of these runs and would look too good
    return "the default", [DEFAULT_CONFIDENCE[run.looked_successful] for run in runs]


def _thresholds(
    runs: Sequence[LabelledRun],
    confidences: Sequence[float],
    proposal: WeightsProposal,
    target: ThresholdTarget,
) -> list[WeighedThreshold]:
    candidates = [(proposal.in_force.weights, False)]
    if proposal.refusal is None and proposal.proposed.weights != proposal.in_force.weights:
        candidates.insert(0, (proposal.proposed.weights, True))
    thresholds = []
    for weights, are_proposed in candidates:
        scores = [
            hypothetical_score(run, weights, one)
            for run, one in zip(runs, confidences, strict=True)
        ]
        threshold = propose_threshold(
            runs, scores, pass_rate=target.pass_rate, precision=target.precision
        )
        thresholds.append(WeighedThreshold(weights, are_proposed, threshold))
    return thresholds
