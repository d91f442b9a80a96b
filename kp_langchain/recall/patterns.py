"""Recurring plans: what at least three kept successes of three tasks did alike.

Runs are grouped in two steps. First by plan: the tools of their steps and the words of their inputs
(`run_paths`). What is in no group that is large enough is then grouped by the tools alone. Where an
argument is a choice (`templates`), such as a negative amount for a refund, a group is split by it:
each part with enough members, whose tasks have a word that those of the others lack, is a pattern
of its own, and so may be what is left. If there is no such part, the group stays. It is left
out as `unexplained` if nothing tells where a value of a placeholder comes from.

Other groups are no pattern, either. They are left out as

- `trivial`: of the input of a call, nothing is the same in all runs or known to be from the task or
  an earlier call; or all calls are of one tool, and nothing is the same, or something is in one's
  own words; or more than half of the domain's runs did so, with one tool or nothing the same;
- `worse`: the runs succeeded less often than the domain's other runs, with intervals of 90 % that
  do not overlap or with one tool; or most of them failed;
- `unclear`: another pattern of the domain shows all the words that two of the tasks have, so nobody
  could tell when to use it.

A run is in one pattern at most. The id of a pattern is a hash of its domain, namespace, tools,
words and choices, so that a new member does not change it, and neither does the order of runs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain.calibration.measures import share
from kp_langchain.pattern_schema import PATTERN_ID_PREFIX
from kp_langchain.recall.near_failures import NearFailures
from kp_langchain.recall.run_paths import RunPath, run_path
from kp_langchain.recall.task_wordings import Wording, wordings_of, words_of
from kp_langchain.recall.templates import PROSE, Arguments, Templates
from kp_langchain.schema import Metadata, PrivacyLevel
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.calibration.measures import Estimate
    from kp_langchain.store import TraceStore

FEWEST_TASKS = 3
"""A pattern has members of at least so many tasks."""
MOST_RUNS = 10_000
"""Patterns are looked for among so many runs of a domain at most, the newest."""

_MOST_SHARE = 0.5  # of a domain's runs: what more of them do says nothing
_ID_CHARS = 16
_NAME_CHARS, _NAME_ID_CHARS, _NAME_WORDS = 64, 6, 4
_MOST_SHOWN = 3  # tasks
_FEWEST_TELLING = 2  # tasks have a word that tells a pattern from others
_ALIKE = 0.5  # the share of words that patterns have both that may be taken for one another
_NO_SLUG = re.compile("[^a-z0-9]+")
_LEAST_STRICT: tuple[PrivacyLevel, ...] = ("private", "federated", "aggregated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A plan that several kept successes took.

    Attributes:
        id: `kp:pattern:` and a hash of domain, namespace, tools, words and choices.
        name: Its name as that of a skill: letters, digits and hyphens, 64 at most.
        domain: The domain.
        namespace: Whose runs its members are; None if anybody's.
        tools: The names of the tools of its steps.
        kinds: Its tasks in up to three wordings, with `…` for what differs.
        not_for: A task of the pattern that it may be taken for; "" without one.
        steps: The input of each step.
        left_out: The tools that members called as well, and whose calls decide nothing.
        members: The ids of the traces of its members: kept successes.
        tasks: Of how many tasks they are.
        runs: How many runs took it, members and others.
        successes: How many of these succeeded, by a verdict or else as they ended.
        stated: Of how many of the successes a verdict says so.
        success: The share of the runs that succeeded, with its interval of 90 %.
        confidence: How sure the success of its members is, 0 to 1: the mean.
        others: The same share of the domain's other runs; None if there are none.
        avg_ms: The mean over the runs of how long the calls that decide take together, in
            milliseconds; None if it is known of none.
        went_wrong: What went wrong in failed runs that are near it, in up to three sentences.
        metadata: When the first of its members began, their mean score, and the least strict of
            their privacy levels.
    """

    id: str
    name: str
    domain: str
    namespace: str | None
    tools: tuple[str, ...]
    kinds: tuple[str, ...]
    not_for: str
    steps: tuple[Arguments, ...]
    left_out: tuple[str, ...]
    members: tuple[str, ...]
    tasks: int
    runs: int
    successes: int
    stated: int
    success: Estimate
    confidence: float
    others: Estimate | None
    avg_ms: float | None
    went_wrong: tuple[str, ...]
    metadata: Metadata


class Mined(NamedTuple):
    """What was found among the runs of a domain.

    Attributes:
        patterns: The patterns, that with most members first.
        left_out: How many groups are no pattern, by the reason: `trivial`, `unexplained`, `worse`,
            `unclear`.
        runs: How many runs were looked at.
    """

    patterns: list[Pattern]
    left_out: Counter[str]
    runs: int


def patterns_of(store: TraceStore, domain: str) -> Mined:
    """Return the patterns among the kept successes of a domain.

    The newest 10,000 runs count whose traces the store has: those that were kept, and others for
    some days. So the success rate is higher than that of all runs where failures have expired.

    Args:
        store: The store.
        domain: The domain's exact name.

    Raises:
        StoreError: The store cannot be read.
    """
    runs = {one.trace_id: one for one in store.signed_runs(domain=domain)}  # none is withheld
    kept = {one.trace_id for one in store.signed_runs(domain=domain, decision="kept")}
    traces = store.traces_with_usage(with_expiring=True, domain=domain)
    paths = (
        run_path(
            trace, run.task, success=run.success, is_kept=run.trace_id in kept, namespace=namespace
        )
        for trace, namespace, _ in islice(traces, MOST_RUNS)
        if (run := runs.get(trace_key(trace.id))) is not None
    )
    return mine(domain, paths)


def mine(domain: str, runs: Iterable[RunPath]) -> Mined:
    """Return the patterns among runs of a domain; runs of two namespaces are in none together.

    Args:
        domain: The domain.
        runs: Its runs, in any order.
    """
    every = list(runs)
    by_namespace: defaultdict[str | None, list[RunPath]] = defaultdict(list)
    for run in every:
        if run.calls:
            by_namespace[run.namespace].append(run)
    miners = [_Miner(domain, *of_namespace) for of_namespace in by_namespace.items()]
    patterns = [pattern for miner in miners for pattern in miner.patterns]
    patterns.sort(key=lambda one: (-len(one.members), one.id))
    return Mined(patterns, sum((miner.left_out for miner in miners), Counter()), len(every))


# ------------------------------------------------------------------ groups


class _Group(NamedTuple):
    """Runs of one plan.

    Attributes:
        tools: The tools of its steps.
        words: The words of each step; empty if only the tools are alike.
        runs: All runs that took it. Those that are no members count in each part of it.
        choices: What the members chose, where others did otherwise.
    """

    tools: tuple[str, ...]
    words: tuple[frozenset[str], ...]
    runs: list[RunPath]
    choices: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        return self.tools, tuple(tuple(sorted(one)) for one in self.words), *self.choices

    @property
    def members(self) -> list[RunPath]:
        return [run for run in self.runs if run.may_teach]

    @property
    def is_enough(self) -> bool:
        return len({run.task for run in self.members}) >= FEWEST_TASKS

    def parts(self, name: str, of_runs: Mapping[str, str]) -> list[_Group]:
        """Return the parts of it that chose alike, and what is left of it.

        Each has enough members, and but for what is left, tasks with a word that no others have.
        """
        parts = []
        rest = {run.trace_id for run in self.members}
        for chosen in sorted(set(of_runs.values())):
            own = {id_ for id_ in rest if of_runs.get(id_) == chosen}
            part = self._part(own, name, chosen)
            others = [run for run in self.members if run.trace_id not in own]
            theirs = {word for run in others for word in words_of(run.objective)}
            if part.is_enough and _telling_words(wordings_of(part.members)) - theirs:
                parts.append(part)
                rest -= own
        left = self._part(rest, name, "other")
        return [*parts, left] if parts and left.is_enough else parts

    def _part(self, ids: Collection[str], name: str, chosen: str) -> _Group:
        return self._replace(
            runs=[run for run in self.runs if not run.may_teach or run.trace_id in ids],
            choices=(*self.choices, (name, chosen)),
        )


class _Miner:
    """Groups the runs of one domain and namespace."""

    def __init__(self, domain: str, namespace: str | None, runs: Sequence[RunPath]) -> None:
        self._domain, self._namespace = domain, namespace
        self._runs = sorted(runs, key=lambda run: (run.objective, run.trace_id))
        self._paths = Counter(run.path for run in self._runs)
        self._failures = NearFailures(self._runs)
        self.left_out: Counter[str] = Counter()
        found = [pattern for group in _groups(self._runs) for pattern in self._patterns(group)]
        self.patterns = list(self._told_apart(found))

    def _patterns(self, group: _Group) -> Iterator[_Candidate]:
        """Yield the patterns of a group: one, or one for each choice."""
        members = group.members
        wordings = wordings_of(members)
        templates = Templates(members, wordings)
        steps = templates.steps
        is_bare = not any(one.constants for one in steps)
        is_one_tool = len(set(group.tools)) == 1
        sources = {blank.source for one in steps for blank in one.blanks}
        if not all(map(_says_something, steps)) or (is_one_tool and (is_bare or PROSE in sources)):
            self.left_out["trivial"] += 1
            return
        choices = templates.choices.items()
        for name, of_runs in sorted(choices, key=lambda one: len(set(one[1].values()))):
            if parts := group.parts(name, of_runs):
                for part in parts:
                    yield from self._patterns(part)
                return
        pattern = self._pattern(group, wordings, steps)
        alike = len(group.runs) if group.words else self._paths[group.tools]
        if (is_bare or is_one_tool) and alike > _MOST_SHARE * len(self._runs):
            self.left_out["trivial"] += 1
        elif "" in sources:
            self.left_out["unexplained"] += 1
        elif _is_worse(pattern):
            self.left_out["worse"] += 1
        else:
            shown = frozenset(word for text in pattern.kinds for word in words_of(text))
            yield _Candidate(pattern, group, shown, _telling_words(wordings) & shown)

    def _pattern(
        self, group: _Group, wordings: Sequence[Wording], steps: Sequence[Arguments]
    ) -> Pattern:
        members = group.members
        durations = [run.duration_ms for run in group.runs if run.duration_ms is not None]
        text = "\0".join((self._domain, self._namespace or "", repr(group.key)))
        id_ = sha256(text.encode(errors="replace")).hexdigest()[:_ID_CHARS]
        own = {run.trace_id for run in group.runs}
        others = [run for run in self._runs if run.trace_id not in own]
        called = Counter(tool for run in members for tool in run.tools)
        kinds = tuple(one.text for one in wordings if words_of(one.text))[:_MOST_SHOWN]
        return Pattern(
            id=f"{PATTERN_ID_PREFIX}{id_}",
            name="",
            domain=self._domain,
            namespace=self._namespace,
            tools=group.tools,
            kinds=kinds,
            not_for="",
            steps=tuple(steps),
            left_out=tuple(tool for tool, _ in called.most_common() if tool not in group.tools),
            members=tuple(run.trace_id for run in members),
            tasks=len({run.task for run in members}),
            runs=len(group.runs),
            successes=sum(run.success for run in group.runs),
            stated=sum(run.success and run.is_stated for run in group.runs),
            success=_success(group.runs),
            confidence=sum(run.confidence for run in members) / len(members),
            others=_success(others) if others else None,
            avg_ms=sum(durations) / len(durations) if durations else None,
            went_wrong=self._failures.told(kinds, group.tools, steps),
            metadata=_metadata(self._domain, members),
        )

    def _told_apart(self, found: Sequence[_Candidate]) -> Iterator[Pattern]:
        """Yield the patterns whose tasks can be told from those of others, with their names."""
        clear = [one for one in found if one.is_clear(found)]
        self.left_out["unclear"] += len(found) - len(clear)
        shown = Counter(word for one in found for word in one.shown)
        for one in clear:
            nearest = max(clear, key=lambda other: (one.likeness(other), other.pattern.id))
            is_near = one.likeness(nearest) >= _ALIKE
            yield replace(
                one.pattern,
                name=one.name(shown),
                not_for=nearest.pattern.kinds[0] if is_near else "",
            )


class _Candidate(NamedTuple):
    """A pattern with its group, the words it shows of tasks, and those that two tasks have."""

    pattern: Pattern
    group: _Group
    shown: frozenset[str]
    telling: frozenset[str]

    def likeness(self, other: _Candidate) -> float:
        """Return the share of words that both show; 0 with other tools, 2 as parts of one."""
        if self.group.tools != other.group.tools or self is other:
            return 0.0
        if self.group.words == other.group.words:
            return 2.0
        return len(self.shown & other.shown) / min(len(self.shown), len(other.shown))

    def is_clear(self, others: Sequence[_Candidate]) -> bool:
        """Return whether words of two of its tasks tell it from each of other patterns."""
        return bool(self.telling) and all(
            self.telling - other.shown for other in others if other is not self
        )

    def name(self, shown: Counter[str]) -> str:
        """Return words of one of its tasks that few patterns show, and a part of its id."""
        words = list(dict.fromkeys(words_of(self.pattern.kinds[0])))
        rarest = sorted(words, key=lambda word: (shown[word], -len(word)))[:_NAME_WORDS]
        text = "-".join(word for word in words if word in rarest)
        slug = _NO_SLUG.sub("-", text).strip("-") or "pattern"
        slug = slug[: _NAME_CHARS - _NAME_ID_CHARS - 1].rstrip("-")
        return f"{slug}-{self.pattern.id[-_NAME_ID_CHARS:]}"


def _telling_words(wordings: Iterable[Wording]) -> frozenset[str]:
    """Return the words that two tasks have in which others agree with them."""
    tasks = Counter[str]()
    for one in wordings:
        tasks.update(dict.fromkeys(words_of(one.text), len(one.tasks)))
    return frozenset(word for word, count in tasks.items() if count >= _FEWEST_TELLING)


def _says_something(step: Arguments) -> bool:
    """Return whether a call has no input, or not only what is in one's own words or unknown."""
    known = step.constants or any(blank.source not in ("", PROSE) for blank in step.blanks)
    return bool(known or not step.template)


def _is_worse(pattern: Pattern) -> bool:
    success, others = pattern.success, pattern.others
    if others is None:
        return success.value < _MOST_SHARE
    is_one_tool = len(set(pattern.tools)) == 1
    least = max(_MOST_SHARE, others.value) if is_one_tool else _MOST_SHARE
    return success.value < least or success.high < others.low


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


def _groups(runs: Sequence[RunPath]) -> list[_Group]:
    """Return the runs by plan, and those of no plan that others share by their tools."""
    by_plan: defaultdict[tuple[tuple[str, ...], tuple[frozenset[str], ...]], list[RunPath]]
    by_plan, by_path = defaultdict(list), defaultdict(list)
    for run in runs:
        by_plan[run.plan].append(run)
    groups = [_Group(*plan, of_plan) for plan, of_plan in by_plan.items()]
    groups = [group for group in groups if any(group.words) and group.is_enough]
    grouped = {run.trace_id for group in groups for run in group.runs}
    for run in runs:
        if run.trace_id not in grouped:
            by_path[run.path].append(run)
    by_tools = [_Group(path, (), of_path) for path, of_path in by_path.items()]
    return groups + [group for group in by_tools if group.is_enough]
