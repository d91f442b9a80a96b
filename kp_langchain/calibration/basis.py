"""What the decisions on a domain's runs rest on, in words, and what would give them a better basis.

That is a confidence model, agreement between runs of one task, or nothing but the documents'
formula.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kp_langchain.calibration.fitting import FEWEST_RUNS
from kp_langchain.gate.check import FEWEST_VALUES, tasks_repeat, waits
from kp_langchain.text import count_text

if TYPE_CHECKING:
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.scoring.breakdown import ScoreBreakdown

DOCUMENTS_FORMULA = "the documents' formula, which does not tell right from wrong"
_BY_FORMULA = f"kept by {DOCUMENTS_FORMULA}"
_LABEL_NEXT = f"{FEWEST_RUNS} verdicts change that: kp-langchain label next"
NO_BASIS = f"{_BY_FORMULA}; {_LABEL_NEXT}"
_BY_AGREEMENT = "by agreement with other runs of each task"
_WAITS = "nothing is kept before 30 runs have shown whether tasks repeat"
NOTHING_YET = f"{_WAITS}; {_LABEL_NEXT}"


def basis_of_run(breakdown: ScoreBreakdown, gate: str, threshold: float) -> str:
    """Return what the decision on a run rests on, in words.

    Args:
        breakdown: Its score; without a worth, nothing is known of the run but that.
        gate: What it was gated by, `score` or `worth`.
        threshold: What it was held against.
    """
    if breakdown.worth is not None:
        return breakdown.worth.basis
    return _WAITS if waits(gate, threshold) else DOCUMENTS_FORMULA


class Basis(NamedTuple):
    """What the decisions on a domain's runs rest on.

    Attributes:
        text: It in words, with the command that would improve it.
        is_missing: Whether they rest on the documents' formula alone.
    """

    text: str
    is_missing: bool = False


def basis_of(
    gate: str | None,
    model: ConfidenceModel | None,
    *,
    labelled: int,
    compared: int,
    last: int = 0,
    highest: float = 0.0,
) -> Basis:
    """Return what the decisions on a domain's runs rest on.

    Args:
        gate: What its newest run was gated by, `score` or `worth`.
        model: Its confidence model; None without one.
        labelled: How many of its runs have a verdict that states their success.
        compared: How many of its last 300 runs without a veto were compared with other runs of
            their task.
        last: How many of those there are.
        highest: The highest threshold that one of those was held against.
    """
    if model is not None and model.is_current:
        return Basis(model.source)
    is_enough = labelled >= FEWEST_RUNS
    is_compared = compared >= FEWEST_VALUES["worth"]
    if gate == "worth" and is_compared:
        verdicts = f"{count_text(labelled, 'verdict')} so far" if labelled else "no verdict yet"
        model_text = "the verdicts given may make a model: kp-langchain calibrate"
        return Basis(f"{_BY_AGREEMENT}; {model_text if is_enough else verdicts}")
    is_new = last < FEWEST_VALUES["score"] and waits(gate or "", highest)
    beginning = _WAITS if is_new else _BY_FORMULA
    if is_enough:
        remedy = "the verdicts given may change that: kp-langchain calibrate"
    elif is_compared and tasks_repeat(compared, last):
        remedy = (
            'gate = "worth" changes that, because tasks repeat; so do '
            f"{FEWEST_RUNS} verdicts: kp-langchain label next"
        )
    else:
        remedy = _LABEL_NEXT
    return Basis(f"{beginning}; {remedy}", is_missing=True)
