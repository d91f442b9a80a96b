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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Literal, TypeAlias

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


_Place: TypeAlias = tuple[int, float, str, UnlabelledRun]
"""A run in a heap, after what the heap sorts by: the verdicts on its task, and its key."""


_Key: TypeAlias = Callable[[UnlabelledRun], tuple[float, str]]


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

    def __init__(
        self, domain: str, runs: Collection[UnlabelledRun], verdicts: Counter[str]
    ) -> None:
        self.domain = domain
        self.verdicts = verdicts.total()
        self.remaining = len(runs)
        self._task_verdicts = verdicts
        self._offered: set[str] = set()
        self._heaps = {choice: self._heap(runs, key) for choice, key in _KEYS.items()}

    def urgency(self) -> tuple[int, int, int, str]:
        """Return a key that is lowest for the domain whose turn it is."""
        if self.verdicts >= FEWEST_RUNS:
            return (1, self.verdicts, -self.remaining, self.domain)
        is_hopeless = self.verdicts + self.remaining < FEWEST_RUNS
        return (2 if is_hopeless else 0, -self.verdicts, -self.remaining, self.domain)

    def pop(self) -> Offer:
        """Remove the next run and return it; there must be one."""
        choice: Choice = "unsure" if (self.verdicts + 1) % DRAWN_EVERY else "drawn"
        run = self._first(self._heaps[choice])
        offer = Offer(
            run, "drawn" if run.confidence is None else choice, self._task_verdicts[run.task]
        )
        self._offered.add(run.trace_id)
        self._task_verdicts[run.task] += 1
        self.verdicts += 1
        self.remaining -= 1
        return offer

    def _heap(self, runs: Iterable[UnlabelledRun], key: _Key) -> list[_Place]:
        """Return the runs with the fewest verdicts that their task has when it is their turn."""
        verdicts = self._task_verdicts.copy()
        heap: list[_Place] = []
        for place, run in sorted(((key(run), run) for run in runs), key=itemgetter(0)):
            heap.append((verdicts[run.task], *place, run))
            verdicts[run.task] += 1
        heapify(heap)
        return heap

    def _first(self, heap: list[_Place]) -> UnlabelledRun:
        """Remove the first run that was not offered yet and return it."""
        while True:
            verdicts, doubt, draw, run = heappop(heap)
            if run.trace_id in self._offered:
                continue
            verdicts_now = self._task_verdicts[run.task]
            if verdicts == verdicts_now:
                return run
            heappush(heap, (verdicts_now, doubt, draw, run))


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


_KEYS: dict[Choice, _Key] = {
    "unsure": _by_doubt,
    "drawn": _by_draw,
}
