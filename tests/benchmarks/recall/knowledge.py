"""What a store knows of runs: some have a verdict; the others are judged by a model or by looks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kp_langchain.calibration.fitting import FEWEST_RUNS, fit
from kp_langchain.calibration.hypothetical_score import calibrated_confidence, hypothetical_worth
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.recall.ranking import Candidate
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE, estimated_success
from kp_langchain.scoring.worth import Worth
from tests.benchmarks.recall.recorded_runs import RecallSource


@dataclass(frozen=True)
class Knowledge:
    """What is known of each run of a source.

    Args:
        candidates: As recall ranks them, their similarity still 0.
        has_model: Whether a confidence model was installed.
    """

    candidates: Sequence[Candidate]
    has_model: bool

    @property
    def successes(self) -> np.ndarray[Any, Any]:
        """Whether each run counts as a success."""
        return np.array([one.success for one in self.candidates])


def with_verdicts(source: RecallSource, share: float, seed: int) -> Knowledge:
    """Return what is known if a share of the runs has a verdict.

    If they suffice for a confidence model, and it is not refused, it judges the others; else they
    count as what they look like.

    Args:
        source: The runs.
        share: Of the runs that have a verdict, 0 to 1.
        seed: Decides which.
    """
    runs = source.scored.runs
    have_verdict = np.random.default_rng(seed).random(len(runs)) < share
    labelled = [one.labelled for one, has in zip(runs, have_verdict, strict=True) if has]
    fitted = fit(source.name, labelled) if len(labelled) >= FEWEST_RUNS else None
    model = None if fitted is None or fitted.refusal is not None else fitted.model
    candidates = [
        _judged(source, at, model) if has else estimated(source, at, model)
        for at, has in enumerate(have_verdict)
    ]
    return Knowledge(candidates, model is not None)


def estimated(source: RecallSource, at: int, model: ConfidenceModel | None) -> Candidate:
    """Return what is known of a run that nobody judged.

    Args:
        source: The runs.
        at: The place of the run in it.
        model: The domain's confidence model, if it has one.
    """
    one = source.scored.runs[at]
    looked = one.labelled.looked_successful
    if model is None:
        confidence = DEFAULT_CONFIDENCE[looked]
        return _candidate(source, at, looked, confidence, one.breakdown.total)
    chance = model.confidence(one.labelled.features)
    success = estimated_success(
        chance, looked_successful=looked, proves_failure=one.labelled.proves_failure
    )
    confidence = calibrated_confidence(one.labelled, chance)
    return _candidate(source, at, success, confidence, hypothetical_worth(one.labelled, chance))


def _judged(source: RecallSource, at: int, model: ConfidenceModel | None) -> Candidate:
    one = source.scored.runs[at]
    good = one.run.success
    worth = one.breakdown.total
    if model is not None:
        worth = Worth.of(float(good), one.breakdown.novelty.value).value
    return replace(_candidate(source, at, good, float(good), worth), trust="verdict")


def _candidate(
    source: RecallSource,
    at: int,
    success: bool,
    confidence: float,
    worth: float,
) -> Candidate:
    return Candidate(
        f"{at:06d}",
        similarity=0.0,
        trust="own",
        success=success,
        confidence=confidence,
        worth=worth,
        credit=0.0,
        hurts=False,
        plan=source.plans[at],
    )
