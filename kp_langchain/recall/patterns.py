"""Recurring plans: what at least three kept successes of three tasks did alike.

Runs are grouped in two steps. First by plan: the tools of their steps and the words of their inputs
(`run_paths`). What is in no group that is large enough is then grouped by the tools alone. A group
is no pattern, because it is trivial,

- if it has one step, and nothing in its input is the same in all runs;
- if it has one step, or only its tools are alike, and more than half of the domain's runs took it.

Nor is one whose runs succeeded less often than the domain's other runs, with intervals of 90 % that
do not overlap.
Where all work goes through one tool, such as SQL, only words tell plans apart, and what is left is
trivial by these rules.

A run is in one pattern at most. The id of a pattern is a hash of its domain, namespace, tools and
words, so that a new member does not change it, and neither does the order of runs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain.calibration.measures import share
from kp_langchain.recall.near_failures import failures_near
from kp_langchain.recall.run_paths import RunPath, Step, run_path
from kp_langchain.recall.shared_text import FEWEST_TASKS
from kp_langchain.recall.task_kinds import TaskWords
from kp_langchain.recall.templates import Arguments, templates_of
from kp_langchain.schema import PATTERN_ID_PREFIX, Metadata, PrivacyLevel
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.calibration.measures import Estimate
    from kp_langchain.store import TraceStore

FEWEST_MEMBERS = 3
"""A pattern has at least so many members, of at least as many tasks."""
MOST_RUNS = 10_000
"""Patterns are looked for among so many runs of a domain at most, the newest."""

_MOST_SHARE = 0.5  # of a domain's runs: what more of them do says nothing
_ID_CHARS = 16
_NAME_CHARS, _NAME_ID_CHARS, _NAME_WORDS = 64, 6, 3
_LONG = 3  # letters; shorter words say less in a name
_NO_SLUG = re.compile("[^a-z0-9]+")
_LEAST_STRICT: tuple[PrivacyLevel, ...] = ("private", "federated", "aggregated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A plan that several kept successes took.

    Attributes:
        id: `kp:pattern:` and a hash of domain, namespace, tools and words.
        name: Its name as that of a skill: letters, digits and hyphens, 64 at most.
        domain: The domain.
        namespace: Whose runs its members are; None if anybody's.
        tools: The names of the tools of its steps.
        words: The words of the inputs of each step by which runs are told apart; empty if only the
            tools do.
        kinds: What its tasks have in common, in words: texts with `…` for what differs, or words.
        steps: The input of each step.
        repeats: Which steps most members took more than one call for, from 0.
        at_once: Which steps most members took together with the one before, from 0.
        ends_with_output: Whether the answer of most members is the output of the last step.
        members: The ids of the traces of its members: kept successes.
        tasks: Of how many tasks they are.
        runs: How many runs took it, members and others.
        success: The share of these that succeeded, with its interval of 90 %.
        others: The share of the domain's other runs that succeeded, with its interval; None if
            there are none.
        avg_ms: The mean over the runs where it is known of the durations of the calls that decide,
            added up, in milliseconds; None if it is known of none.
        failures: What went wrong in runs near it that failed, in at most three sentences.
        metadata: What its knowledge unit says of its origin: when the first of its members began,
            their mean score, and the least strict of their privacy levels.
    """

    id: str
    name: str
    domain: str
    namespace: str | None
    tools: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    kinds: tuple[str, ...]
    steps: tuple[Arguments, ...]
    repeats: frozenset[int]
    at_once: frozenset[int]
    ends_with_output: bool
    members: tuple[str, ...]
    tasks: int
    runs: int
    success: Estimate
    others: Estimate | None
    avg_ms: float | None
    failures: tuple[str, ...]
    metadata: Metadata


class Mined(NamedTuple):
    """What was found among the runs of a domain.

    Attributes:
        patterns: The patterns, that with most members first.
        left_out: How many groups are no pattern, by the reason: `trivial`, or `worse` than other
            runs.
        runs: How many runs were looked at.
    """

    patterns: list[Pattern]
    left_out: Counter[str]
    runs: int

    def of_trace(self, trace_id: str) -> Pattern | None:
        """Return the pattern that a trace is a member of; None without one."""
        return next((one for one in self.patterns if trace_id in one.members), None)


def patterns_of(store: TraceStore, domain: str) -> Mined:
    """Return the patterns among the kept successes of a domain.

    The newest 10,000 runs count whose traces the store has: those that were kept, and others for
    some days. So the success rate is of these, and is higher than that of all runs where failures
    have expired.

    Args:
        store: The store.
        domain: The domain's exact name.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = {one.trace_id: one for one in store.signed_runs(domain=domain)}  # none is withheld
    kept = {one.trace_id for one in store.signed_runs(domain=domain, decision="kept")}
    traces = store.traces_with_usage(with_expiring=True, domain=domain)
    return mine(
        domain,
        (
            run_path(
                trace,
                run.task,
                success=run.success,
                is_kept=run.trace_id in kept,
                namespace=namespace,
            )
            for trace, namespace, _ in islice(traces, MOST_RUNS)
            if (run := runs.get(trace_key(trace.id))) is not None
        ),
    )


def mine(domain: str, runs: Iterable[RunPath]) -> Mined:
    """Return the patterns among runs of a domain; runs of two namespaces are in none together.

    Args:
        domain: The domain.
        runs: Its runs, in any order.
    """
    by_namespace: defaultdict[str | None, list[RunPath]] = defaultdict(list)
    number = 0
    for run in runs:
        number += 1
        if run.calls:
            by_namespace[run.namespace].append(run)
    patterns: list[Pattern] = []
    left_out: Counter[str] = Counter()
    for namespace, of_namespace in by_namespace.items():
        miner = _Miner(domain, namespace, of_namespace)
        patterns += miner.patterns
        left_out += miner.left_out
    patterns.sort(key=lambda one: (-len(one.members), one.id))
    return Mined(patterns, left_out, number)


# ------------------------------------------------------------------ groups

_Key = tuple[tuple[str, frozenset[str]], ...]


class _Group(NamedTuple):
    """Runs of one plan.

    Attributes:
        tools: The tools of its steps.
        words: The words of each step; empty if only the tools are alike.
        runs: All runs that took it.
    """

    tools: tuple[str, ...]
    words: tuple[frozenset[str], ...]
    runs: list[RunPath]

    @property
    def key(self) -> tuple[object, ...]:
        return self.tools, tuple(tuple(sorted(one)) for one in self.words)

    def steps_of(self, run: RunPath) -> Sequence[Step]:
        return run.steps if self.words else run.steps_by_tool


class _Miner:
    """Groups the runs of one domain and namespace."""

    def __init__(self, domain: str, namespace: str | None, runs: Sequence[RunPath]) -> None:
        self._domain, self._namespace = domain, namespace
        self._runs = sorted(runs, key=lambda run: run.trace_id)
        self._task_words = TaskWords(self._runs)
        self._paths = Counter(run.path for run in self._runs)
        self._words = Counter(
            word for run in self._runs for word in {word for _, one in run.plan for word in one}
        )
        self.patterns: list[Pattern] = []
        self.left_out: Counter[str] = Counter()
        for group in _groups(self._runs):
            members = _members(group)
            if not members:
                continue
            steps = templates_of(members, [group.steps_of(run) for run in members])
            pattern = self._pattern(group, members, steps)
            if self._is_trivial(group, steps):
                self.left_out["trivial"] += 1
            elif _is_worse(pattern):
                self.left_out["worse"] += 1
            else:
                self.patterns.append(pattern)

    def _is_trivial(self, group: _Group, steps: Sequence[Arguments]) -> bool:
        if len(steps) == 1 and not steps[0].constants:
            return True
        if group.words and len(steps) > 1:
            return False
        alike = len(group.runs) if group.words else self._paths[group.tools]
        return alike > _MOST_SHARE * len(self._runs)

    def _pattern(
        self, group: _Group, members: Sequence[RunPath], steps: Sequence[Arguments]
    ) -> Pattern:
        durations = [run.duration_ms for run in group.runs if run.duration_ms is not None]
        text = "\0".join((self._domain, self._namespace or "", repr(group.key)))
        id_ = sha256(text.encode(errors="replace")).hexdigest()[:_ID_CHARS]
        own = {run.trace_id for run in group.runs}
        others = [run for run in self._runs if run.trace_id not in own]
        of_members = [group.steps_of(run) for run in members]
        return Pattern(
            id=f"{PATTERN_ID_PREFIX}{id_}",
            name=self._name(group, id_),
            domain=self._domain,
            namespace=self._namespace,
            tools=group.tools,
            words=tuple(tuple(sorted(one)) for one in group.words),
            kinds=self._task_words.kinds(members),
            steps=tuple(steps),
            repeats=_most(of_members, lambda step: len(step) > 1),
            at_once=_most(of_members, lambda step: step[0].is_at_once),
            ends_with_output=2 * sum(run.ends_with_output for run in members) > len(members),
            members=tuple(run.trace_id for run in members),
            tasks=len({run.task for run in members}),
            runs=len(group.runs),
            success=_success(group.runs),
            others=_success(others) if others else None,
            avg_ms=sum(durations) / len(durations) if durations else None,
            failures=failures_near(members, group.steps_of, steps, self._runs, bool(group.words)),
            metadata=_metadata(self._domain, members),
        )

    def _name(self, group: _Group, id_: str) -> str:
        """Return the rarest words of the inputs and the tools, and what tells it from others."""
        words = {word for one in group.words for word in one if len(word) >= _LONG}
        rarest = sorted(words, key=lambda word: (self._words[word], word))
        text = "-".join([*rarest[:_NAME_WORDS], *dict.fromkeys(group.tools)])
        slug = _NO_SLUG.sub("-", text.lower()).strip("-")[: _NAME_CHARS - _NAME_ID_CHARS - 1]
        return f"{slug}-{id_[-_NAME_ID_CHARS:]}".lstrip("-").replace("--", "-")


def _is_worse(pattern: Pattern) -> bool:
    return pattern.others is not None and pattern.success.high < pattern.others.low


def _success(runs: Sequence[RunPath]) -> Estimate:
    return share([run.success for run in runs], [run.task for run in runs])


def _metadata(domain: str, members: Sequence[RunPath]) -> Metadata:
    of_members = [run.metadata for run in members]
    frameworks = {one.framework for one in of_members}
    levels = {one.privacy_level for one in of_members}
    return Metadata(
        created_at=min(one.created_at for one in of_members),
        framework=frameworks.pop() if len(frameworks) == 1 else None,
        task_domain=domain,
        success=True,
        quality_score=sum(one.quality_score for one in of_members) / len(of_members),
        privacy_level=next(one for one in _LEAST_STRICT if one in levels),
    )


def _most(steps: Sequence[Sequence[Step]], holds: Callable[[Step], bool]) -> frozenset[int]:
    """Return the positions of the steps of which something holds in most runs."""
    counts = Counter(at for of_run in steps for at, step in enumerate(of_run) if holds(step))
    return frozenset(at for at, count in counts.items() if 2 * count > len(steps))


def _members(group: _Group) -> list[RunPath]:
    """Return the members of a group; none if they are too few, or of too few tasks."""
    members = [run for run in group.runs if run.may_teach]
    enough = len(members) >= FEWEST_MEMBERS and len({run.task for run in members}) >= FEWEST_TASKS
    return members if enough else []


def _groups(runs: Sequence[RunPath]) -> list[_Group]:
    """Return the runs by plan, and those of no plan that others share by their tools."""
    by_plan: defaultdict[_Key, list[RunPath]] = defaultdict(list)
    for run in runs:
        by_plan[run.plan].append(run)
    groups: list[_Group] = []
    rest: defaultdict[tuple[str, ...], list[RunPath]] = defaultdict(list)
    for key, of_plan in by_plan.items():
        group = _Group(tuple(tool for tool, _ in key), tuple(one for _, one in key), of_plan)
        if any(group.words) and _members(group):
            groups.append(group)
        else:
            for run in of_plan:
                rest[run.path].append(run)
    return groups + [_Group(path, (), of_path) for path, of_path in rest.items()]
