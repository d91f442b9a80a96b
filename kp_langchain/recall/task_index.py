"""`TaskIndex`: the tasks of one domain's kept traces in memory, to find similar ones."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock, fork_gate
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.calibration.planted_instructions import SCAN_VERSION, find_planted
from kp_langchain.calibration.tool_calls import made_calls
from kp_langchain.embedding.embedder import embed_texts
from kp_langchain.errors import StoreError
from kp_langchain.pattern_schema import read_unit
from kp_langchain.recall.credit import NO_CREDIT, Credit, credits_of
from kp_langchain.recall.effect import stop_reason
from kp_langchain.recall.ranking import (
    DEFAULT_FLOOR,
    KINDS,
    Candidate,
    Kind,
    Trust,
    calibrate_floor,
)
from kp_langchain.recall.task_shape import as_task, masked
from kp_langchain.scoring.dimensions import novelty
from kp_langchain.store.recall_tasks import UNREADABLE, StoredTask, TaskVector

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedder import Embedder, EmbedderIdentity
    from kp_langchain.pattern_schema import KnowledgeUnit
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore
    from kp_langchain.store.vectors import Page

# Embedded together, and written in one transaction.
_BATCH_SIZE = 64
# Counting the outcomes of all runs that were shown something takes longer than a search: 0.5 s of
# 50,000 runs. The more it takes, the less often it is done.
_OUTCOMES_EVERY_S, _LONGEST_PAUSE_S = 10.0, 50.0
_TIMES_LONGER = 50
# How many runs, and how many units, are ranked by more than similarity.
_MOST_RANKED = 100
_MOST_TOOLS = 100  # of a run
_MASKED_WEIGHT = 0.3  # of the similarity of masked tasks, in that of tasks
_SMALLEST_CHANGE = 0.1  # of the number of tasks; a larger one calibrates the floor anew


class TaskIndex:
    """The tasks of one domain's kept traces. Safe to use from several threads, and after a fork.

    Args:
        store: The store of the traces.
        domain: The domain's exact name.
        embedder: Embeds tasks.
        identity: The identity of the embedder.
        dimensions: The length of its vectors.

    Attributes:
        stop_reason: Why runs of the domain are shown nothing, in words; "" if they are.
    """

    def __init__(
        self,
        store: TraceStore,
        domain: str,
        embedder: Embedder,
        identity: EmbedderIdentity,
        dimensions: int,
    ) -> None:
        import numpy as np

        self._store = store
        self._domain = domain
        self._follower = store.recall_tasks.follow(domain, identity, SCAN_VERSION)
        self._embedder = embedder
        self._identity = identity
        self._lock, self._counting = ForkSafeLock(), ForkSafeLock()
        self._tasks: dict[str, StoredTask] = {}  # by trace id
        self._failed: set[str] = set()  # the ids of those that could not be embedded
        self._has_changed = False
        self._credits: Mapping[str, Credit] = {}
        self._outcomes_due_s = float("-inf")  # by the monotonic clock
        self.stop_reason = ""
        # The tasks that are searched, with their vectors, normalised, shape (n, 2 * dimensions).
        self._eligible: list[StoredTask] = []
        self._matrix = np.empty((0, 2 * dimensions), np.float32)
        self._is_own = np.empty(0, bool)  # whether each is of this store
        self._floor = DEFAULT_FLOOR
        self._calibrated_at = -1  # for how many tasks the floor was calibrated

    def update(self) -> None:
        """Bring the index up to date with the store.

        What was kept since is embedded, scanned and written, a batch at a time, the newest first.
        What cannot be embedded is not found, and tried again at the next update, after the others.

        Raises:
            StoreError: The store cannot be read.
            EmbedderError, MissingExtraError: The embedder fails, and nothing is in the index.
        """
        with self._lock:
            self._follower.read(self._apply_page)
            self._embed_missing()
            if self._has_changed:
                self._rebuild()

    @property
    def is_counted(self) -> bool:
        """Whether the outcomes of runs with examples were counted at all."""
        return self._outcomes_due_s > float("-inf")

    def count_outcomes(self) -> None:
        """Count how runs with examples ended, if that is due: searches go on meanwhile.

        Raises:
            StoreError: The store cannot be read.
        """
        with self._counting:  # a first search waits for another's: the domain may be stopped
            begin_s = time.monotonic()
            if begin_s < self._outcomes_due_s:
                return
            credits_ = credits_of(self._store.shown.outcome_counts(self._domain))
            reason = stop_reason(self._store, self._domain)
            end_s = time.monotonic()
            with self._lock:
                pause_s = min(_TIMES_LONGER * (end_s - begin_s), _LONGEST_PAUSE_S)
                self._outcomes_due_s = end_s + max(_OUTCOMES_EVERY_S, pause_s)
                self._has_changed = self._has_changed or credits_ != self._credits
                self._credits, self.stop_reason = credits_, reason

    def nearest(
        self,
        vector: NDArray[np.float32],
        namespaces: Collection[str],
        tools: Collection[str] = (),
        kinds: Collection[Kind] = KINDS,
    ) -> tuple[list[Candidate], float]:
        """Return the traces and patterns whose tasks are most similar to one, as last updated.

        Of this store's and of registries' there are as many each, so that a flood of units cannot
        push out this store's runs.

        Args:
            vector: The embeddings of the task, as it reads and masked, one after the other, shape
                (2 * dimensions,).
            namespaces: The forms of the run's namespace; traces of others are left out.
            tools: The names of the tools that the agent has; empty if unknown.
            kinds: Whether traces, patterns or both are returned.

        Returns:
            The traces, and the domain's floor, 0 to 1.
        """
        import numpy as np

        candidates: list[Candidate] = []
        with self._lock:
            with fork_gate:
                cosines = self._matrix @ _normalised(vector)
                order = np.argsort(-cosines, kind="stable")
                is_own = self._is_own[order]
            for of_side in (order[is_own], order[~is_own]):
                allowed = (
                    at
                    for at in map(int, of_side)
                    if _may_be_shown(self._eligible[at], namespaces, kinds)
                )
                candidates += [
                    self._candidate(self._eligible[at], float(cosines[at]), self._matrix[at], tools)
                    for at in islice(allowed, _MOST_RANKED)
                ]
            return candidates, self._floor

    def _candidate(
        self, task: StoredTask, cosine: float, vector: NDArray[np.float32], tools: Collection[str]
    ) -> Candidate:
        baseline = self._identity.baseline
        trust: Trust = "verdict" if task.is_stated else "own" if task.is_own else "registry"
        plan = {} if task.task_vector is None else task.task_vector.plan
        return Candidate(
            trace_id=task.trace_id,
            similarity=1.0 - novelty(cosine, baseline) if cosine > baseline else 0.0,
            trust=trust,
            confidence=task.confidence,
            worth=task.worth,
            credit=self._credits.get(task.trace_id, NO_CREDIT).value,
            plan=plan,
            tools=tools,
            vector=vector,
        )

    # ---------------------------------------------------------------- what the store has

    def _apply_page(self, page: Page[StoredTask]) -> None:
        """Bring the tasks up to date with what the store has."""
        self._has_changed = True
        if page.is_anew:
            self._tasks = {}
        for task in page.rows:
            self._tasks.pop(task.trace_id, None)
            if task.is_open:
                vector = None if task.task_vector is None else task.task_vector.vector
                if vector is not None and len(vector) != self._matrix.shape[1]:
                    task = replace(task, task_vector=None)  # the embedder has changed
                self._tasks[task.trace_id] = task

    def _embed_missing(self) -> None:
        """Embed, scan and write the tasks that have no vector in the store."""
        if not (self._has_changed or self._failed):
            return
        missing = [task for task in self._tasks.values() if task.task_vector is None]
        new = [task for task in missing if task.trace_id not in self._failed]
        # What failed before comes last, in batches of its own.
        for tasks in (new, [task for task in missing if task.trace_id in self._failed]):
            for start in range(0, len(tasks), _BATCH_SIZE):
                if not self._embed_batch(tasks[start : start + _BATCH_SIZE]):
                    return

    def _embed_batch(self, tasks: Sequence[StoredTask]) -> bool:
        """Embed, scan and write some tasks; return False if they cannot be embedded.

        Raises:
            EmbedderError, MissingExtraError: The embedder fails, and nothing is in the index.
        """
        bodies = self._store.recall_tasks.bodies([task.trace_id for task in tasks])
        units = [read_body(bodies.get(task.trace_id)) for task in tasks]
        traces = [None if one is None else one.as_trace() for one in units]
        plain = [
            (as_task(task.objective) if task.is_pattern else task.objective) or " "
            for task in tasks
        ]
        texts = [(text, masked(text)) for text in plain]
        to_embed = list(dict.fromkeys(text for pair in texts for text in pair))
        try:
            embeddings = embed_texts(self._embedder, to_embed)
        except Exception as error:
            self._failed.update(task.trace_id for task in tasks)
            if all(task.task_vector is None for task in self._tasks.values()):
                raise
            warn_once(
                f"recall embedder:{type(error).__name__}",
                "some kept traces cannot be embedded (%s), so no run is shown them until the "
                "embedder takes them",
                describe_error(error),
            )
            return False
        vectors = {text: one.vector for text, one in zip(to_embed, embeddings, strict=True)}
        task_vectors: dict[str, TaskVector] = {}
        for task, trace, pair in zip(tasks, traces, texts, strict=True):
            plain_vector, masked_vector = (vectors[text] for text in pair)
            vector = None if plain_vector is None else both_vectors(plain_vector, masked_vector)
            planted = _planted_in(trace, is_own=task.is_own)
            task_vectors[task.trace_id] = TaskVector(vector, planted, _plan_of(trace))
        self._add(task_vectors)
        return True

    def _add(self, task_vectors: Mapping[str, TaskVector]) -> None:
        for trace_id, task_vector in task_vectors.items():
            self._tasks[trace_id] = replace(self._tasks[trace_id], task_vector=task_vector)
        self._failed -= task_vectors.keys()
        self._has_changed = True
        try:
            self._store.recall_tasks.write(task_vectors, self._identity, SCAN_VERSION)
        except StoreError as error:  # read-only, or full
            warn_once(
                f"recall vectors:{type(error).__name__}",
                "what recall compares of kept traces cannot be written (%s); it is made anew in "
                "each process",
                describe_error(error),
            )

    def _rebuild(self) -> None:
        """Rebuild what is searched: successes without findings that do not hurt."""
        import numpy as np

        self._has_changed = False
        self._eligible, vectors = [], []
        for task in self._tasks.values():
            task_vector = task.task_vector
            if task_vector is None or task_vector.vector is None or task_vector.planted is not None:
                continue
            if task.success and not self._credits.get(task.trace_id, NO_CREDIT).hurts:
                self._eligible.append(task)
                vectors.append(task_vector.vector)
        with fork_gate:
            matrix = np.array(vectors, np.float32).reshape(len(vectors), self._matrix.shape[1])
            self._matrix = _normalised(matrix)
            self._is_own = np.array([task.is_own for task in self._eligible], bool)
            self._place_patterns()
        change = abs(len(vectors) - self._calibrated_at)
        if change > _SMALLEST_CHANGE * self._calibrated_at:
            self._calibrated_at = len(vectors)
            self._floor = self._calibrated_floor()

    def _place_patterns(self) -> None:
        """Give each pattern the mean of the vectors of its members that are here.

        The words that their tasks share, which are compared otherwise, say less: often two or three
        (`python -m tests.benchmarks.live --minutes 0`).
        """
        patterns = [at for at, task in enumerate(self._eligible) if task.members]
        places = {task.trace_id: at for at, task in enumerate(self._eligible)} if patterns else {}
        for at in patterns:
            members = [places[id_] for id_ in self._eligible[at].members if id_ in places]
            if members:
                self._matrix[at] = _normalised(self._matrix[members].mean(axis=0))

    def _calibrated_floor(self) -> float:
        """Return the floor that the runs of this store prove.

        Only those count that were shown nothing, such as those held out: a run that was shown an
        example does as that did, whether or not it fits. Units of a registry say nothing of this
        domain's tasks; whoever sends them chose them.
        """
        shown = self._store.shown.runs_with_examples(self._domain)
        own = [
            at
            for at, task in enumerate(self._eligible)
            if task.is_own_run and task.trace_id not in shown
        ]
        task_vectors = [self._eligible[at].task_vector for at in own]
        plans = [{} if one is None else one.plan for one in task_vectors]
        with fork_gate:
            return calibrate_floor(self._matrix[own], plans, self._identity.baseline)


def _may_be_shown(task: StoredTask, namespaces: Collection[str], kinds: Collection[Kind]) -> bool:
    is_open = task.namespace is None and not task.stays_local
    kind: Kind = "pattern" if task.is_pattern else "trace"
    return kind in kinds and (is_open or task.namespace in namespaces)


def both_vectors(
    plain: NDArray[np.float32], masked: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Return the vectors of a task as it reads and masked, one after the other.

    Args:
        plain: The embedding of the task as it reads.
        masked: That of the masked task; None if it cannot be embedded: the other stands for it.
    """
    import numpy as np

    return np.concatenate([plain, plain if masked is None else masked])


def _normalised(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return pairs of vectors whose products are weighted means of the cosines of both.

    Args:
        rows: Two vectors, one after the other, in each row; shape (n, 2 * dimensions) or less.
    """
    import numpy as np

    pairs = rows.reshape(*rows.shape[:-1], 2, rows.shape[-1] // 2)
    weights = np.array([1.0 - _MASKED_WEIGHT, _MASKED_WEIGHT], np.float32)[:, None] ** 0.5
    lengths = np.linalg.norm(pairs, axis=-1, keepdims=True)
    unit_pairs = np.divide(pairs * weights, lengths, out=pairs.copy(), where=lengths > 0)
    unit_rows: NDArray[np.float32] = unit_pairs.reshape(rows.shape)
    return unit_rows


def read_body(body: str | None) -> KnowledgeUnit | None:
    """Return the unit that the text of a stored body holds; None if it is gone or damaged."""
    try:
        return None if body is None else read_unit(json.loads(body))
    except (ValueError, RecursionError):  # pydantic's ValidationError is a ValueError
        return None


def _plan_of(trace: ReasoningTrace | None) -> Mapping[str, int]:
    """Return how often a run called each tool, of up to 100."""
    calls = [] if trace is None else made_calls(trace.steps)
    return dict(
        islice(Counter(one.tool_name for one in calls if one.tool_name).items(), _MOST_TOOLS)
    )


def _planted_in(trace: ReasoningTrace | None, *, is_own: bool) -> str | None:
    """Return what looks like planted instructions; a trace that is unreadable is never shown."""
    if trace is None:
        return UNREADABLE
    kinds = sorted({finding.kind for finding in find_planted(trace, is_foreign=not is_own)})
    return ", ".join(kinds) or None
