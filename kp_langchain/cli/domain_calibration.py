"""What a domain's verdicts come to: a model put in force or not, and what they speak for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.proposals import (
    ThresholdPoint,
    ThresholdProposal,
    WeightsProposal,
    propose_threshold,
    propose_weights,
)
from kp_langchain.calibration.rescoring import total
from kp_langchain.gate import DEFAULT_THRESHOLDS
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE
from kp_langchain.weights import PROFILES, ScoringWeights

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore
    from kp_langchain.store.confidence_models import InstalledModel


@dataclass(frozen=True, slots=True)
class Wish:
    """What a threshold is to achieve: exactly one of the two.

    Args:
        pass_rate: The share of runs that is to pass, above 0, at most 1.
        precision: The share of successes wished among those that pass, above 0, below 1.
    """

    pass_rate: float | None = None
    precision: float | None = None


@dataclass(frozen=True, slots=True)
class WeighedThreshold:
    """A threshold proposed for scores by certain weights.

    Args:
        weights: The weights.
        are_proposed: Whether they are proposed, too, and not in force.
        proposal: The threshold and its curve.
    """

    weights: ScoringWeights
    are_proposed: bool
    proposal: ThresholdProposal


@dataclass(frozen=True, slots=True)
class Calibration:
    """What came of calibrating a domain.

    Args:
        fit: The model and how good it is on tasks that it never saw.
        before: The model that was in force, if there was one.
        version: The version of the model that is in force now and equals the fitted one; None
            if that was refused or not to be installed.
        thresholds_in_force: By what they are for, one or two: the domain's policy, or else the
            built-in ones.
        confidence: Whose confidence the proposals count with; None if there are none, for want of
            verdicts, or of a confidence for these runs that is not learned from them.
        weights: The weights in force and others, if anything is proposed.
        thresholds: For the proposed weights, if any are, and then for those in force.
    """

    fit: Fit
    before: InstalledModel | None
    version: int | None
    thresholds_in_force: dict[str, float]
    confidence: Literal["the model's", "the default"] | None
    weights: WeightsProposal | None
    thresholds: tuple[WeighedThreshold, ...]

    @property
    def proposes_weights(self) -> bool:
        """Whether weights other than those in force are proposed."""
        return any(one.are_proposed for one in self.thresholds)

    @property
    def to_write(self) -> WeighedThreshold | None:
        """The threshold to put in force, with the weights that it belongs to."""
        return next((one for one in self.thresholds if one.proposal.point is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the model itself, ready for JSON."""
        judged = asdict(self.fit)
        del judged["model"], judged["held_out"]
        before = self.before
        return judged | {
            "version": self.version,
            "before": before and {"version": before.version, "auc": before.model.auc},
            "confidence": self.confidence,
            "weights_proposal": self.weights and asdict(self.weights),
            "thresholds_in_force": self.thresholds_in_force,
            "threshold_proposals": [asdict(one) for one in self.thresholds],
        }


def calibrate(
    store: TraceStore, domain: str, *, settings: Settings, wish: Wish, install: bool
) -> Calibration:
    """Fit a domain's model, install it if that is wished and it is good enough, and propose.

    Args:
        store: Where the verdicts are, and the model goes.
        domain: The domain.
        settings: Say what is in force.
        wish: What the threshold is to achieve.
        install: Whether to install the model.

    Raises:
        MissingExtraError: scikit-learn is not installed.
        StoreError: The store cannot be read or written.
    """
    runs = store.models.labelled(domain)
    policy = settings.policy_for(domain)
    weights = policy.weights or PROFILES.get(domain, PROFILES["default"])
    fitted = fit(domain, runs, weights=weights)
    before = next(iter(store.models.entries(domain, only_active=True)), None)
    version = _installed(store, fitted, before) if install and fitted.refusal is None else None
    proposal: WeightsProposal | None = None
    thresholds = []
    confidence, confidences = _confidences(fitted, before, runs)
    if confidence is not None:
        proposal = propose_weights(runs, confidences, weights)
        for these, are_proposed in (*_chosen(proposal), (weights, False)):
            scores = [total(run, these, one) for run, one in zip(runs, confidences, strict=True)]
            threshold = propose_threshold(
                runs, scores, pass_rate=wish.pass_rate, precision=wish.precision
            )
            thresholds.append(WeighedThreshold(these, are_proposed, threshold))
    return Calibration(
        fit=fitted,
        before=before,
        version=version,
        thresholds_in_force=_thresholds_in_force(domain, policy.threshold),
        confidence=confidence,
        weights=proposal,
        thresholds=tuple(thresholds),
    )


def at_threshold(curve: Sequence[ThresholdPoint], threshold: float) -> ThresholdPoint | None:
    """Return what passes at any threshold; None if nothing does."""
    return next((point for point in curve if point.threshold >= threshold), None)


def _installed(store: TraceStore, fitted: Fit, before: InstalledModel | None) -> int:
    model = fitted.model
    assert model is not None  # noqa: S101 - what was not refused was fitted
    if before is not None and before.model == replace(model, created_at=before.model.created_at):
        return before.version  # the same verdicts give the same model
    return store.models.install(model)


def _confidences(
    fitted: Fit, before: InstalledModel | None, runs: Sequence[LabelledRun]
) -> tuple[Literal["the model's", "the default"] | None, list[float]]:
    """The confidences that runs like these get from now on, and whose they are."""
    if fitted.model is None:
        return None, []
    if fitted.refusal is None:
        return "the model's", list(fitted.held_out)
    if before is not None and before.model.is_current:
        return None, []  # it has seen some of these runs, and would look too good on them
    return "the default", [DEFAULT_CONFIDENCE[run.looked_successful] for run in runs]


def _chosen(proposal: WeightsProposal) -> list[tuple[ScoringWeights, bool]]:
    """The proposed weights, if they are to replace those in force."""
    weights = proposal.proposed.weights
    stay = proposal.refusal is not None or weights == proposal.in_force.weights
    return [] if stay else [(weights, True)]


def _thresholds_in_force(domain: str, threshold: float | None) -> dict[str, float]:
    if threshold is not None:
        return {"in_force": threshold}
    built_in = DEFAULT_THRESHOLDS.get(domain, DEFAULT_THRESHOLDS["default"])
    return {
        "in_force": built_in.measured,
        "in_force_novelty_not_measured": built_in.unmeasured,
    }
