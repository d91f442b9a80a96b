"""Which runs to ask a person about next, and in what order.

The order avoids waste: a second verdict on a task while other tasks have none, one on a run that
agrees with a judged one of its task, and verdicts on many domains of which none gets enough for a
model. First in a domain comes one run of each group of failures that its verdicts show. Of equally
labelled tasks come first runs with a sign of failure that several runs show and none with a
verdict: one verdict for each kind of failure, before a second one. The others are drawn at random.

The order depends on the runs and verdicts alone. As long as verdicts show the same groups, those
given in this order change the order of the remaining runs no further than by another run of each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256

from kp_langchain.calibration.agreement import AGREES, RunDigest
from kp_langchain.calibration.failure_groups import (
    FEWEST_FAILED_TASKS,
    FEWEST_FAILURES,
    domain_failures,
)
from kp_langchain.calibration.failure_signs import Sign, SignedRun, title_of
from kp_langchain.calibration.fitting import FEWEST_RUNS, FEWEST_TASKS

# A run is compared with so many others of its task, so that a task of 2,000 runs takes no second.
_MOST_DIGESTS = 20
_ANY_TIME = datetime.fromtimestamp(0, UTC)  # groups do not depend on it


@dataclass(frozen=True, slots=True)
class UnlabelledRun:
    """A run whose success no verdict states.

    Attributes:
        trace_id: The id of its trace.
        domain: Its domain.
        task: Its task; runs with an equal task are repeats of it.
        digest: What it is compared with others of its task by; None if that is not known.
        signs: Its signs, each as kind and text.
    """

    trace_id: str
    domain: str
    task: str
    digest: bytes | None = None
    signs: Set[Sign] = frozenset()


@dataclass(frozen=True, slots=True)
class TaskVerdict:
    """The success that a verdict states of one run.

    Attributes:
        domain: The run's domain.
        task: The run's task.
        success: The verdict.
        digest: What the run is compared with others of its task by; None if that is not known.
        signs: The run's signs, each as kind and text.
    """

    domain: str
    task: str
    success: bool
    digest: bytes | None = None
    signs: Set[Sign] = frozenset()


@dataclass(frozen=True, slots=True)
class Offer:
    """A run to ask about, and why it comes where it does.

    Attributes:
        run: The run.
        task_verdicts: How many verdicts its task has when it is its turn, if each run before it got
            one.
        is_repeat: Whether it agrees with one of those.
        new_sign: A sign of failure, as kind and text, that several runs show and none with a
            verdict, nor one before it; None without one.
        group: The sign, as kind and text, of a group of failures that it comes first of; None if it
            does not.
    """

    run: UnlabelledRun
    task_verdicts: int
    is_repeat: bool = False
    new_sign: Sign | None = None
    group: Sign | None = None

    @property
    def reason(self) -> str:
        """The reason in words."""
        sign = "" if self.new_sign is None else f", and the first that {title_of(*self.new_sign)}"
        if self.group is not None:
            sign = f", and like failures: it {title_of(*self.group)}"
        if not self.task_verdicts:
            return f"a new task{sign}"
        # Counted with those before it, which may have been skipped.
        agrees = ", and agrees with an earlier one" if self.is_repeat else ""
        reason = sign if self.group else agrees or sign
        return f"run {self.task_verdicts + 1} of its task{reason}"


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
    have too few runs for a model. Within a domain, one run of each group of failures comes first,
    then tasks with the fewest verdicts, among those one run for each kind of failure that has no
    verdict, and runs that agree with a judged one of their task last.

    Args:
        unlabelled: The runs without a verdict on their success.
        labelled: The verdicts of the same domains.
    """
    runs: defaultdict[str, list[UnlabelledRun]] = defaultdict(list)
    for run in unlabelled:
        runs[run.domain].append(run)
    verdicts: defaultdict[str, list[TaskVerdict]] = defaultdict(list)
    for verdict in labelled:
        verdicts[verdict.domain].append(verdict)
    verdict_counts = {domain: len(verdicts[domain]) for domain in runs}
    # The last of each list is the next one, which is removed at no cost.
    waiting = {domain: _offers(runs[domain], verdicts[domain])[::-1] for domain in runs}

    def urgency(domain: str) -> tuple[int, int, int, str]:
        """Return a key that is lowest for the domain whose turn it is."""
        remaining = len(waiting[domain])
        if verdict_counts[domain] >= FEWEST_RUNS:
            return (1, verdict_counts[domain], -remaining, domain)
        is_hopeless = verdict_counts[domain] + remaining < FEWEST_RUNS
        return (2 if is_hopeless else 0, -verdict_counts[domain], -remaining, domain)

    while waiting:
        domain = min(waiting, key=urgency)
        yield waiting[domain].pop()
        verdict_counts[domain] += 1
        if not waiting[domain]:
            del waiting[domain]


def _offers(runs: Iterable[UnlabelledRun], verdicts: Sequence[TaskVerdict]) -> list[Offer]:
    """Return the runs of a domain in their order."""
    runs_of: defaultdict[str, list[UnlabelledRun]] = defaultdict(list)
    for run in sorted(runs, key=_draw):
        runs_of[run.task].append(run)
    verdicts_on: defaultdict[str, list[TaskVerdict]] = defaultdict(list)
    for verdict in verdicts:
        verdicts_on[verdict.task].append(verdict)
    groups = _one_of_each_group(runs_of, verdicts_on, verdicts)
    offers = []
    for task, of_task in runs_of.items():
        judged = verdicts_on[task]
        of_task.sort(key=lambda run: run.trace_id not in groups)
        repeats = _repeats(of_task, judged) if len(of_task) + len(judged) > 1 else set()
        in_order = sorted(
            of_task, key=lambda run: (run.trace_id not in groups, run.trace_id in repeats)
        )
        offers += [
            Offer(run, number, run.trace_id in repeats, group=groups.get(run.trace_id))
            for number, run in enumerate(in_order, start=len(judged))
        ]
    offers.sort(key=lambda one: (not one.group, one.is_repeat, one.task_verdicts, _draw(one.run)))
    offers = list(_with_new_signs(offers, verdicts))
    # Those that are equal stay in their order.
    return sorted(
        offers,
        key=lambda one: (not one.group, one.is_repeat, one.task_verdicts, not one.new_sign),
    )


def _one_of_each_group(
    runs_of: Mapping[str, Sequence[UnlabelledRun]],
    verdicts_on: Mapping[str, Sequence[TaskVerdict]],
    verdicts: Sequence[TaskVerdict],
) -> dict[str, Sign]:
    """Return a run of each group of failures that the verdicts of a domain show, by trace id.

    Args:
        runs_of: Its runs, by task.
        verdicts_on: Its verdicts, by task.
        verdicts: The same.
    """
    if len(verdicts) < FEWEST_RUNS:
        return {}
    failures = domain_failures(
        "",
        (
            SignedRun(
                trace_id=str(number),
                domain="",
                task=one.task,
                at=_ANY_TIME,
                signs=dict(one.signs),
                ended_well=one.success,
                success=one.success,
            )
            for number, one in enumerate(verdicts)
        ),
    )
    fewest_first = sorted(runs_of, key=lambda task: len(verdicts_on.get(task, ())))
    runs = [run for task in fewest_first for run in runs_of[task]]
    one_of: dict[str, Sign] = {}
    for group in failures.groups:
        sign = (group.kind, group.sign)
        shown = (run.trace_id for run in runs if sign in run.signs and run.trace_id not in one_of)
        if (trace_id := next(shown, None)) is not None:
            one_of[trace_id] = sign
    return one_of


def _with_new_signs(offers: Sequence[Offer], verdicts: Sequence[TaskVerdict]) -> Iterator[Offer]:
    """Yield the offers of a domain, in their order, those with a new sign with that."""
    runs: list[UnlabelledRun | TaskVerdict] = [*(offer.run for offer in offers), *verdicts]
    counts = Counter(sign for run in runs for sign in _of_failure(run))
    tasks: defaultdict[Sign, set[str]] = defaultdict(set)
    for run in runs:
        for sign in _of_failure(run):
            tasks[sign].add(run.task)
    unseen = {
        sign
        for sign, number in counts.items()
        if number >= FEWEST_FAILURES and len(tasks[sign]) >= FEWEST_FAILED_TASKS
    }
    for verdict in verdicts:
        unseen -= verdict.signs
    for offer in offers:
        new = unseen & offer.run.signs
        unseen -= new
        yield replace(offer, new_sign=min(new)) if new else offer


def _of_failure(run: UnlabelledRun | TaskVerdict) -> Iterator[Sign]:
    """Yield the signs that speak of a failure by themselves."""
    return (sign for sign in run.signs if sign[0] != "path")


def _repeats(runs: Iterable[UnlabelledRun], judged: Iterable[TaskVerdict]) -> set[str]:
    """Return which runs of a task agree with a judged one, or with one that comes before them."""
    digests = (RunDigest.from_bytes(verdict.digest) for verdict in judged)
    known = [digest for digest in digests if digest is not None][:_MOST_DIGESTS]
    repeats = set()
    for run in runs:
        digest = RunDigest.from_bytes(run.digest)
        if digest is None:
            continue
        if any((digest.similarity(one) or 0.0) >= AGREES for one in known):
            repeats.add(run.trace_id)
        elif len(known) < _MOST_DIGESTS:
            known.append(digest)
    return repeats


def _draw(run: UnlabelledRun) -> str:
    """Return a text that is as good as random, but the same each time."""
    return sha256(run.trace_id.encode(errors="surrogatepass")).hexdigest()
