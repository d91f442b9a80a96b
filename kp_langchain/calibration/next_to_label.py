"""Which runs to ask a person about next, and in what order.

The order gains little over a random one. It mainly avoids waste: a second verdict on a task while
other tasks have none, and verdicts on runs of which the model is sure. Every fourth run is drawn at
random instead, so that a model does not learn from doubtful runs alone.

The order is a function of the runs and verdicts alone. After the first verdicts of it were given,
what is left of it is the order for the rest.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import heappop, heappush
from typing import Literal

from kp_langchain.calibration.fitting import FEWEST_RUNS, FEWEST_TASKS

Choice = Literal["unsure", "drawn"]
"""How a run was chosen among those of tasks with equally few verdicts."""

DRAWN_EVERY = 4
"""In each domain, one of this many runs is drawn at random."""


@dataclass(frozen=True, slots=True)
class UnlabelledRun:
    """A run whose success no verdict states.

    Attributes:
        trace_id: The id of its trace.
        domain: Its domain.
        task: Its task; runs with an equal task are repeats of it.
        confidence: The probability of success by the domain's model, 0 to 1; None without a model.
            A run without one counts as the least sure.
    """

    trace_id: str
    domain: str
    task: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class TaskVerdict:
    """The success that a verdict states of one run.

    Attributes:
        domain: The run's domain.
        task: The run's task.
        success: The verdict.
    """

    domain: str
    task: str
    success: bool


@dataclass(frozen=True, slots=True)
class Offer:
    """A run to ask about, and why it comes where it does.

    Attributes:
        run: The run.
        choice: `unsure` for the run that the model is least sure of; `drawn` for one drawn at
            random, as all are without a model.
        task_verdicts: How many verdicts its task has when it is its turn, if each run before it got
            one.
    """

    run: UnlabelledRun
    choice: Choice
    task_verdicts: int

    @property
    def reason(self) -> str:
        """The reason in words."""
        # Counted with those before it, which may have been skipped.
        task = f"run {self.task_verdicts + 1} of its task" if self.task_verdicts else "a new task"
        if self.choice == "unsure":
            return f"{task}; of such runs the model is least sure of it ({self.run.confidence:.2f})"
        return f"{task}; drawn at random"


@dataclass(frozen=True, slots=True)
class Shortfall:
    """What a domain's verdicts lack for a confidence model; all 0 if they suffice.

    Attributes:
        runs: Verdicts.
        successful_tasks: Tasks with a success that have none yet.
        failed_tasks: Tasks with a failure that have none yet.
    """

    runs: int
    successful_tasks: int
    failed_tasks: int


def shortfall(verdicts: Sequence[TaskVerdict]) -> Shortfall:
    """Return what the verdicts of one domain lack for a confidence model."""
    tasks = {
        success: len({verdict.task for verdict in verdicts if verdict.success is success})
        for success in (True, False)
    }
    return Shortfall(
        runs=max(0, FEWEST_RUNS - len(verdicts)),
        successful_tasks=max(0, FEWEST_TASKS - tasks[True]),
        failed_tasks=max(0, FEWEST_TASKS - tasks[False]),
    )


def next_to_label(
    unlabelled: Iterable[UnlabelledRun], labelled: Iterable[TaskVerdict] = ()
) -> Iterator[Offer]:
    """Yield the runs to ask about, those whose verdict helps most first.

    One domain comes after the other until it has the verdicts that a model needs at least, the one
    that lacks fewest first. Then come the domains with the fewest verdicts, and last those that
    have too few runs for a model. Within a domain, tasks with the fewest verdicts come first;
    among their runs those that the model is least sure of, and every fourth time one at random.

    Args:
        unlabelled: The runs without a verdict on their success.
        labelled: The verdicts of the same domains.
    """
    runs: defaultdict[str, dict[str, UnlabelledRun]] = defaultdict(dict)
    for run in unlabelled:
        runs[run.domain][run.trace_id] = run
    verdicts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for verdict in labelled:
        verdicts[verdict.domain][verdict.task] += 1
    queues = [_Queue(domain, runs[domain].values(), verdicts[domain]) for domain in runs]
    while queues:
        queue = min(queues, key=_Queue.urgency)
        yield queue.pop()
        if not queue.remaining:
            queues.remove(queue)


class _Queue:
    """The runs of one domain in their order.

    Args:
        domain: The domain.
        runs: Its runs without a verdict, at least one.
        verdicts: The number of verdicts on each task.
    """

    def __init__(self, domain: str, runs: Iterable[UnlabelledRun], verdicts: Counter[str]) -> None:
        by_task: defaultdict[str, list[UnlabelledRun]] = defaultdict(list)
        for run in runs:
            by_task[run.task].append(run)
        self.domain = domain
        self.verdicts = verdicts.total()
        self.remaining = sum(map(len, by_task.values()))
        tasks = [_Task(of_task, verdicts[task]) for task, of_task in by_task.items()]
        self._heaps: dict[Choice, list[_Entry]] = {"unsure": [], "drawn": []}
        for task in tasks:
            self._push(task)

    def urgency(self) -> tuple[int, int, int, str]:
        """Return a key that is lowest for the domain whose turn it is."""
        if self.verdicts >= FEWEST_RUNS:
            return (1, self.verdicts, -self.remaining, self.domain)
        is_hopeless = self.verdicts + self.remaining < FEWEST_RUNS
        return (2 if is_hopeless else 0, -self.verdicts, -self.remaining, self.domain)

    def pop(self) -> Offer:
        """Remove the next run and return it; there must be one."""
        choice: Choice = "unsure" if (self.verdicts + 1) % DRAWN_EVERY else "drawn"
        heap = self._heaps[choice]
        while heap[0].is_outdated:
            heappop(heap)
        task, run = heap[0].task, heap[0].run
        offer = Offer(run, "drawn" if run.confidence is None else choice, task.verdicts)
        task.take(run)
        self.verdicts += 1
        self.remaining -= 1
        self._push(task)
        return offer

    def _push(self, task: _Task) -> None:
        for choice, heap in self._heaps.items():
            if (run := task.first(choice)) is not None:
                heappush(heap, _Entry((task.verdicts, *_KEYS[choice](run)), task, run))


class _Task:
    """The runs of one task that are left.

    Args:
        runs: Its runs without a verdict.
        verdicts: The number of verdicts on it.
    """

    def __init__(self, runs: Sequence[UnlabelledRun], verdicts: int) -> None:
        self.verdicts = verdicts
        self._taken: set[str] = set()
        # The first stands at the end, where it can be removed at once.
        self._runs = {choice: sorted(runs, key=key, reverse=True) for choice, key in _KEYS.items()}

    def first(self, choice: Choice) -> UnlabelledRun | None:
        runs = self._runs[choice]
        while runs and runs[-1].trace_id in self._taken:
            runs.pop()
        return runs[-1] if runs else None

    def take(self, run: UnlabelledRun) -> None:
        self._taken.add(run.trace_id)
        self.verdicts += 1


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    """A task in a heap, with the run that is its first.

    Attributes:
        key: What the heap sorts by: the verdicts on the task, then the key of the run.
        task: The task.
        run: The run.
    """

    key: tuple[int, float, str]
    task: _Task = field(compare=False)
    run: UnlabelledRun = field(compare=False)

    @property
    def is_outdated(self) -> bool:
        """Whether a run of the task was taken since, so that the heap has another entry for it."""
        return self.key[0] != self.task.verdicts


def _by_draw(run: UnlabelledRun) -> tuple[float, str]:
    return (0.0, _drawn("draw", run))


def _by_doubt(run: UnlabelledRun) -> tuple[float, str]:
    confidence = 0.5 if run.confidence is None else run.confidence
    distance = abs(confidence - 0.5)
    # Of equally doubtful runs, others than those that would be drawn next: what is left to draw
    # from would else be mostly sure runs.
    return (distance if math.isfinite(distance) else 0.0, _drawn("doubt", run))


def _drawn(purpose: str, run: UnlabelledRun) -> str:
    """Return a text that is as good as random, but the same each time."""
    return sha256(f"{purpose} {run.trace_id}".encode(errors="surrogatepass")).hexdigest()


_KEYS: dict[Choice, Callable[[UnlabelledRun], tuple[float, str]]] = {
    "unsure": _by_doubt,
    "drawn": _by_draw,
}
