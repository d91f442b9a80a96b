"""Runs of a source as a user meets them: some get verdicts, and runs of other tasks come after."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kp_langchain.calibration.fitting import Fit, fit
from kp_langchain.calibration.gate_proposal import GateInForce, ThresholdTarget, propose_gate
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.domain_policy import DomainPolicy
from kp_langchain.gate.check import DEFAULT_PASS_RATE
from tests.benchmarks.quality.scores import Scored, Source

LABELLED = 150
"""So many runs get a verdict, or half of a source that has fewer than twice as many."""

_Run = TypeVar("_Run")


def split_by_task(
    runs: Sequence[_Run], task_of: Callable[[_Run], str], seed: int
) -> tuple[list[_Run], list[_Run]]:
    """Return the runs that get a verdict, and those that come after; they share no task.

    Args:
        runs: The runs of a source.
        task_of: Returns the task of one.
        seed: Decides which tasks are labelled, and the order of runs within both parts.
    """
    by_task: defaultdict[str, list[_Run]] = defaultdict(list)
    for run in runs:
        by_task[task_of(run)].append(run)
    drawn = random.Random(seed)
    tasks = sorted(by_task)
    drawn.shuffle(tasks)
    labelled: list[_Run] = []
    while tasks and len(labelled) < min(LABELLED, len(runs) // 2):
        labelled += by_task[tasks.pop()]
    further = [run for task in tasks for run in by_task[task]]
    drawn.shuffle(labelled)
    drawn.shuffle(further)
    return labelled, further


@dataclass(frozen=True)
class Draw:
    """A model fitted to the verdicts on some runs of a source, and runs that come after.

    Args:
        labelled: The runs with verdicts, in the order in which they were scored.
        further: Later runs, of other tasks.
        fitted: What was learned from the verdicts.
        model: The model, refused or not.
        has_gate: Whether `calibrate --write` would write a gate by worth.
    """

    labelled: list[Scored]
    further: list[Scored]
    fitted: Fit
    model: ConfidenceModel
    has_gate: bool

    @property
    def state(self) -> str:
        """What becomes of the model: `refused`, `provisional` or `accepted`."""
        if self.fitted.refusal is not None:
            return "refused"
        return "provisional" if self.fitted.provisional else "accepted"

    @property
    def confidences(self) -> list[float]:
        """What the model says of the later runs."""
        return [self.model.confidence(one.labelled.features) for one in self.further]


def drawn(source: Source, draws: int, tell: Callable[[str], object]) -> list[Draw]:
    """Draw runs of a source and fit a model to them, again and again.

    Args:
        source: The source.
        draws: How often, each time by another seed.
        tell: Called with a line for whoever waits.

    Returns:
        The draws to which a model could be fitted, and of whose later runs not all are equal.
    """
    found = []
    for seed in range(draws):
        tell(f"{source.name}: draw {seed + 1} of {draws}")
        labelled, further = split_by_task(source.runs, lambda one: one.run.task, seed)
        order = source.in_order([*labelled, *further])
        labelled, further = order[: len(labelled)], order[len(labelled) :]
        in_force = Counter(one.weights for one in order).most_common(1)[0][0]
        fitted = fit(source.name, [one.labelled for one in labelled], weights=in_force)
        if fitted.model is not None and len({one.run.success for one in further}) > 1:
            has_gate = _has_gate(labelled, fitted)
            found.append(Draw(labelled, further, fitted, fitted.model, has_gate))
    return found


def _has_gate(labelled: Sequence[Scored], fitted: Fit) -> bool:
    if fitted.refusal is not None:
        return False
    in_force = GateInForce(fitted.domain, DomainPolicy(), fitted.weights, model=None)
    runs, target = [one.labelled for one in labelled], ThresholdTarget(pass_rate=DEFAULT_PASS_RATE)
    proposal = propose_gate(runs, fitted.held_out, in_force, target)
    return proposal.proposed is not None and proposal.refusal is None
