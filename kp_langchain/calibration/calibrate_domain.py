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
from kp_langchain.calibration.hypothetical_score import estimated_score, hypothetical_worth
from kp_langchain.calibration.labelled_run import LabelledRun
from kp_langchain.calibration.later_verdicts import LaterVerdicts, later_verdicts
from kp_langchain.calibration.model import ConfidenceModel
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

    def entries(
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
    before = next(iter(models.entries(domain, only_active=True)), None)
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
