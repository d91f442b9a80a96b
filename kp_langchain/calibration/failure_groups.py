"""Groups of failures that are alike: runs of a domain that share a sign, and fail more often.

A candidate is any sign that at least `FEWEST_FAILURES` runs of `FEWEST_FAILED_TASKS` tasks show.
Fisher's exact test (1935) says how likely chance alone gives its runs so many of the domain's
failures; its counts allow for runs of one task that end alike (see `task_clusters`). Groups are the
candidates that the procedure of Benjamini and Hochberg (1995, JRSS B 57:289) lets pass at 5 %: a
domain whose failures have nothing to do with any sign has a group in one case of twenty at most.

Signs overlap. The candidate that chance explains least comes first, and takes its runs. Then all
others are tested again on the runs that are left, against the critical value of the first test.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kp_langchain.calibration.failure_signs import SignedRun, title_of, tools_in
from kp_langchain.calibration.fitting import FEWEST_RUNS as FEWEST_VERDICTS
from kp_langchain.calibration.task_clusters import (
    CountedRun,
    Sample,
    correlation_of,
    excess_of,
    p_value_of,
)
from kp_langchain.text import count_text, one_line

if TYPE_CHECKING:
    from kp_langchain.calibration.measures import Estimate

FEWEST_FAILURES = 5
"""A group has at least so many failures."""
FEWEST_FAILED_TASKS = 3
"""The failures of a group are of at least so many tasks."""
_CHANCE = 0.05  # of any group in a domain without one
_DOMAIN_CHARS = 60
_MOST_GROUPS = 20
_TELLING = 0.5  # how far the shares of runs that call a tool differ where that is named
_TELLING_TOOLS = 2  # how far the median numbers of tools differ where they are named
_FEWEST_OTHERS = 3  # fewer successes say nothing of what successes do


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Runs that share a sign, and of which more failed than of the domain's other runs.

    Attributes:
        kind: The kind of the sign; see `failure_signs.Kind`.
        sign: The sign.
        runs: How many runs count, because it is known whether they failed.
        failures: How many of those failed.
        tasks: Of how many tasks they are.
        share: The share that failed, with its interval of 95 %.
        others: The share that failed of the domain's other runs, without those that stronger groups
            took before it.
        stronger: How many groups took their runs before it, because chance explains them less.
        p_value: How likely chance alone gives the sign so many failures, 0 to 1.
        example: The id of a failure: the newest of those that took the most common path.
        failed: The ids of its failures, the newest first.
        unjudged: The ids of its runs without a verdict whose trace can be looked at, the newest
            first.
        otherwise: What the successes of the same tasks did otherwise, in words; None if too few
            succeeded, or nothing tells them apart.
    """

    kind: str
    sign: str
    runs: int
    failures: int
    tasks: int
    share: Estimate
    others: float
    stronger: int
    p_value: float
    example: str
    failed: tuple[str, ...]
    unjudged: tuple[str, ...]
    otherwise: str | None

    @property
    def title(self) -> str:
        """The sign in words, as what a run does."""
        return title_of(self.kind, self.sign)

    @property
    def rate_text(self) -> str:
        """How many of its runs failed, and of the others, in words."""
        low, high = (f"{100 * one:.0f}" for one in (self.share.low, self.share.high))
        outside = " outside stronger groups" if self.stronger else ""
        return (
            f"{self.failures:,} of {self.runs:,} failed ({low} to {high} %), "
            f"of the domain's other runs{outside} {100 * self.others:.0f} %"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        return asdict(self) | {"title": self.title}


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainFailures:
    """The failures of a domain, and which of them are alike.

    Attributes:
        domain: The domain.
        runs: How many of its runs count: those with a verdict, or all.
        failures: How many of those failed.
        share: The share that failed, with its interval of 95 %; None if no run counts.
        by_verdict: Whether verdicts say which runs failed; else how each run ended.
        verdicts: How many runs have a verdict.
        groups: The groups, that with most failures first. No run is in two.
        nearest: If there is no group, the candidate that chance explains least; None without one.
    """

    domain: str
    runs: int
    failures: int
    share: Estimate | None
    by_verdict: bool
    verdicts: int
    groups: tuple[FailureGroup, ...] = ()
    nearest: FailureGroup | None = None

    @property
    def grouped(self) -> int:
        """How many failures the groups hold."""
        return sum(group.failures for group in self.groups)

    @property
    def basis(self) -> str:
        """What says which runs failed, in words."""
        if self.by_verdict:
            return "with a verdict"
        if not self.verdicts:
            return "as the runs ended; no verdicts yet"
        number = count_text(self.verdicts, "verdict")
        return f"as the runs ended; {number} {'is' if self.verdicts == 1 else 'are'} too few"

    @property
    def text(self) -> str:
        """It in one sentence."""
        name = one_line(self.domain, _DOMAIN_CHARS)
        of = count_text(self.runs, "run")
        of += f" {self.basis}" if self.by_verdict else f", {self.basis}"
        if self.share is None or not self.failures:
            return f"{name}: no failures in {of}."
        failures = count_text(self.failures, "failure")
        if self.failures < FEWEST_FAILURES:
            verb = "is" if self.failures == 1 else "are"
            return f"{name}: {failures} {verb} too few for a group ({FEWEST_FAILURES}), in {of}."
        if not self.groups:
            return f"No failures of {name} are alike beyond chance: {failures} in {of}."
        low, high = (f"{100 * one:.0f}" for one in (self.share.low, self.share.high))
        number = len(self.groups)
        groups = f"{count_text(number, 'group')} {'holds' if number == 1 else 'hold'}"
        return (
            f"{name}: {groups} {self.grouped:,} of {failures} in {of}; "
            f"{100 * self.share.value:.0f} % failed ({low} to {high} %)."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for JSON."""
        return asdict(self) | {
            "text": self.text,
            "groups": [group.to_dict() for group in self.groups],
            "nearest": self.nearest and self.nearest.to_dict(),
        }


def failures_by_domain(runs: Iterable[SignedRun]) -> list[DomainFailures]:
    """Return the failures of each domain, that with most of them first."""
    by_domain: defaultdict[str, list[SignedRun]] = defaultdict(list)
    for run in runs:
        by_domain[run.domain].append(run)
    every = [domain_failures(name, of_domain) for name, of_domain in by_domain.items()]
    return sorted(every, key=lambda one: (-one.failures, one.domain))


def domain_failures(domain: str, runs: Iterable[SignedRun]) -> DomainFailures:
    """Return the failures of one domain, and which of them are alike.

    Verdicts say which runs failed if there are as many as a confidence model needs. Otherwise all
    runs count, by how they ended.

    Args:
        domain: The domain.
        runs: Its runs, in any order.
    """
    newest = sorted(runs, key=lambda run: (run.at, run.trace_id), reverse=True)
    verdicts = sum(run.success is not None for run in newest)
    by_verdict = verdicts >= FEWEST_VERDICTS
    known = Sample(
        CountedRun(run, not (run.success if by_verdict else run.ended_well))
        for run in newest
        if run.success is not None or not by_verdict
    )
    correlation = correlation_of(known)
    candidates = _candidates(known, correlation)
    groups = sorted(
        _groups(known, candidates, newest, correlation),
        key=lambda group: (-group.failures, group.kind, group.sign),
    )
    nearest = None
    if not groups:
        nearest = next((one for one in candidates if _has_more(one.sample, known)), None)
    return DomainFailures(
        domain=domain,
        runs=known.number,
        failures=known.failures,
        share=known.share(correlation) if known.number else None,
        by_verdict=by_verdict,
        verdicts=verdicts,
        groups=tuple(groups),
        nearest=nearest and _group(nearest, known, known, newest, correlation),
    )


# ------------------------------------------------------------------ candidates and groups


class _Sign(NamedTuple):
    kind: str
    text: str


class _Candidate(NamedTuple):
    """A sign, the runs that show it, and how likely chance alone gives them their failures."""

    p_value: float
    sign: _Sign
    sample: Sample


def _candidates(known: Sample, correlation: float) -> list[_Candidate]:
    """Return the signs that enough runs show, those that chance explains least first.

    Whether runs failed does not decide what is a candidate: what is tested must not depend on it.
    """
    by_sign: defaultdict[_Sign, list[CountedRun]] = defaultdict(list)
    tools: set[str] = set()
    for one in known.runs:
        tools.update(one.run.tools)
        for kind, text in one.run.signs.items():
            by_sign[_Sign(kind, text)].append(one)
    if len(tools) == 1:  # that a run uses it says nothing
        by_sign.pop(_Sign("path", *tools), None)
    candidates = []
    for sign, runs in by_sign.items():
        if FEWEST_FAILURES <= len(runs) < known.number:
            sample = Sample(runs)
            if len(sample.tasks) >= FEWEST_FAILED_TASKS:
                candidates.append(_Candidate(p_value_of(sample, known, correlation), sign, sample))
    return sorted(candidates, key=lambda one: one[:2])


def _critical_value(candidates: Sequence[_Candidate]) -> float:
    """Return up to which p-value a candidate passes, by Benjamini and Hochberg; 0 if none does.

    Args:
        candidates: The candidates by rising p-value.
    """
    values = (_CHANCE * at / len(candidates) for at in range(1, len(candidates) + 1))
    pairs = zip(candidates, values, strict=True)
    return max((value for one, value in pairs if one.p_value <= value), default=0.0)


def _groups(
    known: Sample,
    candidates: Sequence[_Candidate],
    newest: Sequence[SignedRun],
    correlation: float,
) -> Iterator[FailureGroup]:
    """Yield the groups, that first which chance explains least.

    Args:
        known: The runs of which it is known whether they failed.
        candidates: The candidates by rising p-value.
        newest: All runs of the domain, the newest first.
        correlation: How far the failures of a task are correlated.
    """
    critical, rest = _critical_value(candidates), known
    remaining = {one.sign: one for one in candidates}
    for number in range(_MOST_GROUPS):
        passing = [
            one
            for one in remaining.values()
            if one.p_value <= critical and _has_more(one.sample, rest)
        ]
        if not passing:
            return
        best = min(passing, key=lambda one: (one.p_value, -excess_of(one.sample, rest), one.sign))
        yield _group(best, known, rest, newest, correlation, number)
        newest = [run for run in newest if not _shows(run, best.sign)]
        rest = rest.without(best.sample)
        changed = {_Sign(*sign) for one in best.sample.runs for sign in one.run.signs.items()}
        for sign, one in remaining.items():
            sample = one.sample.without(best.sample) if sign in changed else one.sample
            remaining[sign] = _Candidate(p_value_of(sample, rest, correlation), sign, sample)


def _shows(run: SignedRun, sign: _Sign) -> bool:
    return run.signs.get(sign.kind) == sign.text


def _has_more(sample: Sample, whole: Sample) -> bool:
    """Return whether runs are enough for a group, and failed more often than the others."""
    return (
        sample.failures >= FEWEST_FAILURES
        and sample.failed_tasks >= FEWEST_FAILED_TASKS
        and excess_of(sample, whole) > 0
    )


# ------------------------------------------------------------------ what is said of a group


def _group(
    candidate: _Candidate,
    known: Sample,
    rest: Sample,
    newest: Sequence[SignedRun],
    correlation: float,
    stronger: int = 0,
) -> FailureGroup:
    """Return a group.

    Args:
        candidate: Its sign and runs.
        known: The runs of which it is known whether they failed.
        rest: Those of them that are in no stronger group.
        newest: The runs of the domain that are in no stronger group, the newest first.
        correlation: How far the failures of a task are correlated.
        stronger: How many groups are stronger.
    """
    sign, sample = candidate.sign, candidate.sample
    others = rest.number - sample.number
    failed = [one.run for one in sample.runs if one.failed]
    paths = Counter(run.signs.get("path") for run in failed)
    typical = max(paths, key=lambda path: (paths[path], path or ""))
    return FailureGroup(
        kind=sign.kind,
        sign=sign.text,
        runs=sample.number,
        failures=sample.failures,
        tasks=len(sample.tasks),
        share=sample.share(correlation),
        others=(rest.failures - sample.failures) / others,
        stronger=stronger,
        p_value=candidate.p_value,
        example=next(run.trace_id for run in failed if run.signs.get("path") == typical),
        failed=tuple(run.trace_id for run in failed),
        unjudged=tuple(
            run.trace_id
            for run in newest
            if run.success is None and run.can_be_judged and _shows(run, sign)
        ),
        otherwise=_otherwise(sign, failed, sample, known),
    )


def _otherwise(
    sign: _Sign, failed: Sequence[SignedRun], sample: Sample, known: Sample
) -> str | None:
    """Return what the successes of the same tasks did otherwise, in words, if that is known.

    What the sign itself says is left out.
    """
    tasks, ids = {run.task for run in failed}, {one.run.trace_id for one in sample.runs}
    right = [
        one.run
        for one in known.runs
        if one.run.success and one.run.task in tasks and one.run.trace_id not in ids
    ]
    if len(right) < _FEWEST_OTHERS:
        return None
    start = f"{count_text(len(right), 'other run')} of these tasks succeeded"
    sides = right, failed
    calls, calls_of_failed = (Counter(tool for run in side for tool in run.tools) for side in sides)
    rises = {
        tool: calls[tool] / len(right) - calls_of_failed[tool] / len(failed)
        for tool in sorted(calls | calls_of_failed)
    }
    named = tools_in(*sign)
    telling = [tool for tool in rises if abs(rises[tool]) >= _TELLING and tool not in named]
    if telling:
        most, least = (choose(telling, key=rises.__getitem__) for choose in (max, min))
        return "; ".join(
            [start]
            + [
                f"{calls[tool]:,} of them call {tool}, of the {len(failed):,} failures "
                f"{calls_of_failed[tool]:,}"
                for tool in dict.fromkeys((most, least))
            ]
        )
    number, failed_number = (
        sorted(len(run.tools) for run in side)[len(side) // 2] for side in sides
    )
    if abs(number - failed_number) >= _TELLING_TOOLS and sign.kind != "path":
        tools = count_text(number, "tool")
        return f"{start}; they call {tools} in the median, the failures {failed_number}"
    path, failed_path = (
        Counter(run.signs.get("path", "") for run in side).most_common(1)[0] for side in sides
    )
    if path[0] == failed_path[0] or path[1] < _FEWEST_OTHERS:
        return None
    return f"{start}; most often, {path[1]:,} times, one {title_of('path', path[0])}"
