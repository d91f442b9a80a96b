"""`TaskIndex`: the tasks of one domain's kept traces in memory, to find similar ones."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from kp_langchain._forksafe import ForkSafeLock, NoForkSection, allow_forks
from kp_langchain._host_exceptions import raised_by_host
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.embedding.embedding_result import embed_texts
from kp_langchain.errors import StoreError
from kp_langchain.recall.credit import NO_CREDIT, Credit, credits_of
from kp_langchain.recall.floor import DEFAULT_FLOOR, calibrate_floor
from kp_langchain.recall.planted_instructions import SCAN_VERSION, find_planted
from kp_langchain.recall.ranking import Candidate, Trust
from kp_langchain.recall.same_task import task_numbers
from kp_langchain.recall.usable_calls import usable_share
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.dimensions import novelty
from kp_langchain.store.recall_entries import UNREADABLE, StoredTask, TaskEntry, plan_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedder_protocol import Embedder
    from kp_langchain.embedding.embedding_result import Embedding
    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.store import TraceStore
    from kp_langchain.store.recall_entries import RecallPage, RecallState

# Embedded together, and written in one transaction.
_BATCH_SIZE = 64
# Ranked by more than similarity are only the most similar ones, of runs and of units.
_MOST_RANKED = 50
# Agents of one domain with other tools; for each, an array of as many numbers as there are traces.
_MOST_TOOLSETS = 16
# Counting the outcomes of all runs that were shown something takes longer than a search.
_CREDITS_EVERY_S = 10.0
_section = NoForkSection()  # a child forked in the middle of a matrix product may hang in its own


class Found(NamedTuple):
    """What a search in the index returns.

    Attributes:
        candidates: The most similar traces that the run may be shown.
        floor: The domain's floor, 0 to 1.
    """

    candidates: list[Candidate]
    floor: float


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The traces that may be shown, in the form in which they are searched.

    Attributes:
        candidates: The traces, their similarity still 0.
        matrix: Their normalised vectors, float32, shape (n, dimensions).
        namespaces: A number for the namespace of each, 0 for none, shape (n,).
        are_open: Whether each may be shown in every namespace, shape (n,).
        are_own: Whether each is a run of this store, and not of a registry, shape (n,).
        numbers: The numbers of the namespaces.
        floor: The similarity that an example must have, 0 to 1.
        plans: The different plans.
        plan_places: The place of the plan of each among them, shape (n,).
        usable: By the names of an agent's tools, the share of usable calls of each, shape (n,).
    """

    candidates: list[Candidate]
    matrix: NDArray[np.float32]
    namespaces: NDArray[np.int32]
    are_open: NDArray[np.bool_]
    are_own: NDArray[np.bool_]
    numbers: Mapping[str, int]
    floor: float
    plans: list[Mapping[str, int]]
    plan_places: NDArray[np.intp]
    usable: dict[frozenset[str], NDArray[np.float64]] = field(default_factory=dict)

    def usable_shares(self, tools: frozenset[str]) -> NDArray[np.float64]:
        """Return the share of usable calls of each trace, shape (n,)."""
        import numpy as np

        shares = self.usable.get(tools)
        if shares is None:
            of_plans = np.array([usable_share(plan, tools) for plan in self.plans])
            shares = of_plans[self.plan_places] if len(of_plans) else of_plans
            if len(self.usable) >= _MOST_TOOLSETS:
                self.usable.clear()
            self.usable[tools] = shares
        return shares


@dataclass(slots=True)
class _Content:
    """What an index has read.

    Attributes:
        tasks: Those that have an entry, by trace id.
        missing: Those that have none yet, by trace id, the newest first.
        state: The state of the store that they are based on; None before the first read.
        credits: The credit of each trace that was shown.
        credits_due_s: When to count them again, by the monotonic clock.
        floor: The calibrated floor.
        calibrated_at: For how many tasks it was calibrated.
    """

    tasks: dict[str, StoredTask] = field(default_factory=dict)
    missing: dict[str, StoredTask] = field(default_factory=dict)
    state: RecallState | None = None
    credits: Mapping[str, Credit] = field(default_factory=dict)
    credits_due_s: float = float("-inf")
    floor: float = DEFAULT_FLOOR
    calibrated_at: int = -1

    def take(self, page: RecallPage) -> None:
        """Bring the tasks up to date with what the store has."""
        if page.is_whole:
            self.tasks, self.missing = {}, {}
        for trace_id in (*page.left, *(task.trace_id for task in page.tasks)):
            self.tasks.pop(trace_id, None)
            self.missing.pop(trace_id, None)
        for task in page.tasks:
            if task.entry is None:
                self.missing[task.trace_id] = task
            else:  # the objective is only needed to make the entry
                self.tasks[task.trace_id] = replace(task, objective="")
        self.state = page.state


class TaskIndex:
    """The tasks of one domain's kept traces. Safe to use from several threads, and after a fork.

    Args:
        store: The store of the traces.
        domain: The domain's exact name.
        embedder: Embeds tasks.
        identity: The identity of the embedder.
    """

    def __init__(
        self, store: TraceStore, domain: str, embedder: Embedder, identity: EmbedderIdentity
    ) -> None:
        self._store = store
        self._domain = domain
        self._embedder = embedder
        self._identity = identity
        self._lock = ForkSafeLock()
        self._content = _Content()
        self._snapshot: _Snapshot | None = None

    def __len__(self) -> int:
        """Return how many tasks it holds in memory."""
        return len(self._content.tasks) + len(self._content.missing)

    @property
    def is_loaded(self) -> bool:
        """Whether it has been read at least once."""
        return self._snapshot is not None

    def update(self, *, most_new: int | None = None) -> bool:
        """Bring the index up to date with the store.

        What was kept since is embedded, scanned and written, a batch at a time, the newest first.
        A task that the embedder refuses, while it embeds others, has no vector in this process, and
        is not found. When the embedder fails altogether, what is new has to wait.

        Args:
            most_new: Embed at most so many traces now; None for all.

        Returns:
            Whether nothing is left that can be embedded now.

        Raises:
            StoreError: The store cannot be read.
            EmbedderError, MissingExtraError: The embedder fails, and nothing is in the index.
        """
        with self._lock:
            content = self._content
            page = self._store.recall_entries.read(
                self._domain, self._identity, SCAN_VERSION, since=content.state
            )
            has_changed = page is not None
            if page is not None:
                content.take(page)
            if time.monotonic() >= content.credits_due_s:
                content.credits_due_s = time.monotonic() + _CREDITS_EVERY_S
                counted = credits_of(self._store.shown.outcome_counts(self._domain))
                has_changed = has_changed or counted != content.credits
                content.credits = counted
            now = list(content.missing.values())[:most_new]
            is_down = False
            for start in range(0, len(now), _BATCH_SIZE):
                try:
                    self._make_entries(now[start : start + _BATCH_SIZE])
                except StoreError:
                    raise
                except BaseException as error:  # a library's panic is no Exception
                    if raised_by_host(error) or not content.tasks:
                        raise
                    warn_once(
                        f"recall embedder:{type(error).__name__}",
                        "what was kept since cannot be embedded (%s); only earlier traces are "
                        "searched until the embedder works",
                        describe_error(error),
                    )
                    is_down = True
                    break
                has_changed = True
                if len(content.tasks) >= 2 * self._published:  # searches in between find these
                    self._publish()
                    has_changed = False
            if has_changed:
                self._publish()
            return is_down or not content.missing  # asking again at once would not help

    @property
    def _published(self) -> int:
        return 0 if self._snapshot is None else len(self._snapshot.candidates)

    def _make_entries(self, tasks: Sequence[StoredTask]) -> None:
        """Embed, scan and write tasks of which the store has no entry."""
        bodies = self._store.recall_entries.bodies([task.trace_id for task in tasks])
        embeddings = self._embed([task.objective or " " for task in tasks])
        entries: dict[str, TaskEntry] = {}
        for task, embedding in zip(tasks, embeddings, strict=True):
            id_ = task.trace_id
            vector = None if embedding is None else embedding.vector
            entry = _entry_of(bodies.get(id_), vector, is_own=task.is_own)
            self._content.tasks[id_] = replace(task, entry=entry, objective="")
            del self._content.missing[id_]
            if embedding is not None:  # what was refused may be tried again by another process
                entries[id_] = entry
        try:
            self._store.recall_entries.write(entries, self._identity, SCAN_VERSION)
        except StoreError as error:  # read-only, or full
            warn_once(
                f"recall entries:{type(error).__name__}",
                "what recall compares of kept traces cannot be written (%s); it is made anew in "
                "each process",
                describe_error(error),
            )

    def _embed(self, texts: list[str]) -> list[Embedding | None]:
        """Return the embeddings of tasks; None for one that the embedder refuses.

        Raises:
            BaseException: The embedder fails for every text.
        """
        try:
            with allow_forks():  # a foreign embedder may take its time
                return list(embed_texts(self._embedder, texts))
        except BaseException as error:
            if raised_by_host(error):
                raise
        embed_texts(self._embedder, ["ready?"])  # raises if the texts are not to blame
        return [self._embed_alone(text) for text in texts]

    def _embed_alone(self, text: str) -> Embedding | None:
        try:
            with allow_forks():
                return embed_texts(self._embedder, [text])[0]
        except BaseException as error:
            if raised_by_host(error):
                raise
            warn_once(
                f"recall refused:{type(error).__name__}",
                "the embedder refuses the task of a kept trace (%s), so no run is shown that trace",
                describe_error(error),
            )
            return None

    def _publish(self) -> None:
        """Make what has been read the state that is searched."""
        import numpy as np

        content = self._content
        eligible = [
            (task, task.entry.vector, task.entry.plan)
            for task in content.tasks.values()
            if task.success and task.entry and task.entry.vector is not None
            if task.entry.planted is None
            if not content.credits.get(task.trace_id, NO_CREDIT).hurts
        ]
        sizes = Counter(len(vector) for _, vector, _ in eligible)
        size = sizes.most_common(1)[0][0] if sizes else 0
        eligible = [one for one in eligible if len(one[1]) == size]  # others are damaged
        tasks = [task for task, _, _ in eligible]
        numbers: dict[str, int] = {}
        for task in tasks:
            if task.namespace is not None:
                numbers.setdefault(task.namespace, len(numbers) + 1)
        with _section:
            rows = [vector for _, vector, _ in eligible]
            matrix = np.array(rows, dtype=np.float32).reshape(len(tasks), size)
            lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
            np.divide(matrix, lengths, out=matrix, where=lengths > 0)
        if len(tasks) > 1.1 * content.calibrated_at or len(tasks) < 0.9 * content.calibrated_at:
            # Units of a registry say nothing of this domain's tasks; whoever sends them chose them.
            own_plans = [plan for task, _, plan in eligible if task.is_own]
            with _section:
                own = matrix[[task.is_own for task in tasks]]
                content.floor = calibrate_floor(own, own_plans, self._identity.baseline)
            content.calibrated_at = len(tasks)
        plans: dict[tuple[tuple[str, int], ...], int] = {}
        plan_places = [
            plans.setdefault(tuple(sorted(plan.items())), len(plans)) for _, _, plan in eligible
        ]
        self._snapshot = _Snapshot(
            [_candidate(task, content.credits.get(task.trace_id, NO_CREDIT)) for task in tasks],
            matrix,
            np.array([numbers.get(task.namespace or "", 0) for task in tasks], dtype=np.int32),
            np.array([task.namespace is None and not task.stays_local for task in tasks], bool),
            np.array([task.is_own for task in tasks], bool),
            numbers,
            content.floor,
            [dict(plan) for plan in plans],
            np.array(plan_places, dtype=np.intp),
        )

    def nearest(
        self,
        vector: NDArray[np.float32],
        namespaces: Sequence[str],
        *,
        tools: frozenset[str] = frozenset(),
        tasks: int = 1,
    ) -> Found:
        """Return the traces whose tasks are most similar to one, the nearest first.

        Args:
            vector: The embedding of the task, shape (dimensions,).
            namespaces: The forms of the run's namespace; traces of others are left out.
            tools: The names of the tools that the agent has; empty if unknown.
            tasks: Return traces of so many different tasks, if there are.
        """
        import numpy as np

        snapshot = self._snapshot
        if snapshot is None or snapshot.matrix.shape[1] != len(vector):
            return Found([], DEFAULT_FLOOR)
        own = [snapshot.numbers[name] for name in namespaces if name in snapshot.numbers]
        usable = snapshot.usable_shares(tools)
        with _section:
            length = float(np.linalg.norm(vector))
            cosines = snapshot.matrix @ (vector / length if length else vector)
            counted = np.maximum(cosines - self._identity.baseline, 0.0) * (0.5 + usable / 2)
            may_be_shown = snapshot.are_open
            if own:
                may_be_shown = may_be_shown | np.isin(snapshot.namespaces, own)
            # Of each kind by itself, so that a flood of units cannot push out this store's runs.
            nearest = [
                at
                for are_of_kind in (snapshot.are_own, ~snapshot.are_own)
                for at in self._first(snapshot, may_be_shown & are_of_kind, counted, tasks)
            ]
            numbers = task_numbers(snapshot.matrix[nearest], self._identity.baseline)
        candidates = [
            replace(
                snapshot.candidates[at],
                similarity=self._similarity(float(cosines[at])),
                usable=float(usable[at]),
                task=int(number),
            )
            for at, number in zip(nearest, numbers, strict=True)
        ]
        return Found(candidates, snapshot.floor)

    def _first(
        self,
        snapshot: _Snapshot,
        are_meant: NDArray[np.bool_],
        similarities: NDArray[np.floating],
        tasks: int,
    ) -> list[int]:
        """Return the places of the most similar traces, and of more if these have too few tasks."""
        import numpy as np

        places = np.flatnonzero(are_meant)
        number = _MOST_RANKED
        while True:
            first = places
            if len(places) > number:
                first = places[np.argpartition(similarities[places], -number)[-number:]]
            ids = snapshot.candidates
            nearest = sorted(first.tolist(), key=lambda at: (-similarities[at], ids[at].trace_id))
            different = np.unique(
                task_numbers(snapshot.matrix[nearest], self._identity.baseline)
            ).tolist()
            if len(different) >= tasks or number >= len(places):
                further = [nearest[at] for at in different if at >= _MOST_RANKED]
                return nearest[:_MOST_RANKED] + further
            number *= 4

    def _similarity(self, cosine: float) -> float:
        baseline = self._identity.baseline
        return 1.0 - novelty(cosine, baseline) if cosine > baseline else 0.0


def _candidate(task: StoredTask, credit: Credit) -> Candidate:
    trust: Trust = "verdict" if task.is_stated else "own" if task.is_own else "registry"
    return Candidate(
        trace_id=task.trace_id,
        similarity=0.0,
        trust=trust,
        success=task.success,
        confidence=task.confidence,
        worth=task.worth,
        credit=credit.value,
        hurts=credit.hurts,
        plan={} if task.entry is None else task.entry.plan,
    )


def _entry_of(body: str | None, vector: NDArray[np.float32] | None, *, is_own: bool) -> TaskEntry:
    """Return what is compared of a trace; one that cannot be read is never shown."""
    try:
        trace = ReasoningTrace.model_validate(json.loads(body or ""))
        findings = find_planted(trace, is_foreign=not is_own)
    except (ValidationError, ValueError, RecursionError):
        return TaskEntry(vector, UNREADABLE)
    kinds = sorted({finding.kind for finding in findings})
    calls = [step.tool.name for step in trace.steps if step.type == "tool_call" and step.tool]
    return TaskEntry(vector, ", ".join(kinds) or None, plan_of(calls))
