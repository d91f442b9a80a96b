"""`TaskIndex`: the tasks of one domain's kept traces in memory, to find similar ones."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.embedding.embedding_result import embed_texts
from kp_langchain.errors import StoreError
from kp_langchain.recall.credit import NO_CREDIT, Credit, credits_of
from kp_langchain.recall.planted_instructions import SCAN_VERSION, find_planted
from kp_langchain.recall.task_snapshot import TaskSnapshot
from kp_langchain.schema import ReasoningTrace
from kp_langchain.store.recall_entries import UNREADABLE, StoredTask, TaskEntry

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedder_protocol import Embedder
    from kp_langchain.embedding.embedding_result import Embedding
    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.store import TraceStore
    from kp_langchain.store.vectors import Page

# Embedded together, and written in one transaction.
_BATCH_SIZE = 64
_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit)
# Counting the outcomes of all runs that were shown something takes longer than a search.
_CREDITS_EVERY_S = 10.0


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
        self._follower = store.recall_entries.follow(domain, identity, SCAN_VERSION)
        self._embedder = embedder
        self._identity = identity
        self._lock = ForkSafeLock()
        self._tasks: dict[str, StoredTask] = {}  # that have an entry, by trace id
        self._missing: dict[str, StoredTask] = {}  # that have none yet, the newest first
        self._credits: Mapping[str, Credit] = {}
        self._credits_due_s = float("-inf")  # by the monotonic clock
        self._calibrated_at = -1  # for how many tasks the floor was calibrated
        self._has_changed = False
        self._snapshot = TaskSnapshot.of([], {}, identity.baseline)

    def __len__(self) -> int:
        """Return how many tasks it holds in memory."""
        return len(self._tasks) + len(self._missing)

    @property
    def snapshot(self) -> TaskSnapshot:
        """The traces that may be shown, as of the last update."""
        return self._snapshot

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
            self._follower.read(self._take)
            self._count_credits()
            now = list(self._missing.values())[:most_new]
            is_down = False
            for start in range(0, len(now), _BATCH_SIZE):
                try:
                    self._make_entries(now[start : start + _BATCH_SIZE])
                except (StoreError, *_EXITS):
                    raise
                except BaseException as error:  # a library's panic is no Exception
                    if not self._tasks:
                        raise
                    warn_once(
                        f"recall embedder:{type(error).__name__}",
                        "what was kept since cannot be embedded (%s); only earlier traces are "
                        "searched until the embedder works",
                        describe_error(error),
                    )
                    is_down = True
                    break
                if len(self._tasks) >= 2 * len(self._snapshot):  # searches in between find these
                    self._publish()
            if self._has_changed:
                self._publish()
            return is_down or not self._missing  # asking again at once would not help

    def _take(self, page: Page[StoredTask]) -> None:
        """Bring the tasks up to date with what the store has."""
        self._has_changed = True
        if page.is_anew:
            self._tasks, self._missing = {}, {}
        for task in page.rows:
            self._tasks.pop(task.trace_id, None)
            self._missing.pop(task.trace_id, None)
            if task.is_open:
                known = self._missing if task.entry is None else self._tasks
                known[task.trace_id] = task

    def _count_credits(self) -> None:
        if time.monotonic() >= self._credits_due_s:
            self._credits_due_s = time.monotonic() + _CREDITS_EVERY_S
            counted = credits_of(self._store.shown.outcome_counts(self._domain))
            self._has_changed |= counted != self._credits
            self._credits = counted

    def _make_entries(self, tasks: Sequence[StoredTask]) -> None:
        """Embed, scan and write tasks of which the store has no entry."""
        bodies = self._store.recall_entries.bodies([task.trace_id for task in tasks])
        embeddings = self._embed([task.objective or " " for task in tasks])
        entries: dict[str, TaskEntry] = {}
        for task, embedding in zip(tasks, embeddings, strict=True):
            id_ = task.trace_id
            vector = None if embedding is None else embedding.vector
            entry = _entry_of(bodies.get(id_), vector, is_own=task.is_own)
            self._tasks[id_] = replace(task, entry=entry)
            del self._missing[id_]
            if embedding is not None:  # what was refused may be tried again by another process
                entries[id_] = entry
        self._has_changed = True
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
            return list(embed_texts(self._embedder, texts))
        except _EXITS:
            raise
        except BaseException:  # noqa: BLE001, S110 - a library's panic is no Exception
            pass
        embed_texts(self._embedder, ["ready?"])  # raises if the texts are not to blame
        return [self._embed_alone(text) for text in texts]

    def _embed_alone(self, text: str) -> Embedding | None:
        try:
            return embed_texts(self._embedder, [text])[0]
        except _EXITS:
            raise
        except BaseException as error:  # noqa: BLE001 - a library's panic is no Exception
            warn_once(
                f"recall refused:{type(error).__name__}",
                "the embedder refuses the task of a kept trace (%s), so no run is shown that trace",
                describe_error(error),
            )
            return None

    def _publish(self) -> None:
        """Make what has been read the state that is searched."""
        self._has_changed = False
        eligible = [
            task
            for task in self._tasks.values()
            if task.success and task.entry and task.entry.vector is not None
            if task.entry.planted is None
            if not self._credits.get(task.trace_id, NO_CREDIT).hurts
        ]
        snapshot = TaskSnapshot.of(eligible, self._credits, self._identity.baseline)
        number, floor = len(snapshot), self._snapshot.floor
        if number > 1.1 * self._calibrated_at or number < 0.9 * self._calibrated_at:
            floor = snapshot.calibrated_floor()
            self._calibrated_at = number
        self._snapshot = replace(snapshot, floor=floor)


def _entry_of(body: str | None, vector: NDArray[np.float32] | None, *, is_own: bool) -> TaskEntry:
    """Return what is compared of a trace; one that cannot be read is never shown."""
    try:
        trace = ReasoningTrace.model_validate(json.loads(body or ""))
        findings = find_planted(trace, is_foreign=not is_own)
    except (ValidationError, ValueError, RecursionError):
        return TaskEntry(vector, UNREADABLE)
    kinds = sorted({finding.kind for finding in findings})
    calls = [step.tool.name for step in trace.steps if step.type == "tool_call" and step.tool]
    return TaskEntry(vector, ", ".join(kinds) or None, _plan_of(calls))


def _plan_of(tools: Sequence[str]) -> dict[str, int]:
    """Return how often each tool was called, for at most 100 tools."""
    plan: dict[str, int] = {}
    for name in tools:
        if name in plan or len(plan) < 100:
            plan[name] = plan.get(name, 0) + 1
    return plan
