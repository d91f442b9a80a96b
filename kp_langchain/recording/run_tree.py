"""The tree of runs: which run belongs to which root, and which roots have not ended.

The tree lives inside the user's agent, in whatever thread an event comes from, so it takes no lock.
Its state is a few dicts and sets that are only ever changed by single operations which CPython
makes atomic (`setdefault`, `pop`, `add`). So it is also safe when the garbage collector closes a
stream, and thereby sends an event, in the middle of another event, and when the process forks.

A run is claimed by `setdefault` at its start and by `pop` at its end. Whoever loses the claim, such
as a handler that was passed twice, has nothing left to do.

A run that is open when the process forks belongs to the parent: in the child it is no longer open.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from kp_langchain._logging import warn_once
from kp_langchain.recording.calls import Call
from kp_langchain.recording.record_owner import RecordOwner
from kp_langchain.recording.run_record import RunRecord
from kp_langchain.recording.run_start import Start, thread_id_in

if TYPE_CHECKING:
    from kp_langchain.recording.score_receivers import TraceFinder

_MAX_RECENTLY_OVER = 1024
# Reached only by runs that never end, such as streams that are never closed; then about 20 MB.
_MAX_LATE = 100_000
_ABSENT = object()
# Chains between a tool and what it calls, such as those of `chain.as_tool()`.
_MAX_CHAINS = 8


class OpenRun:
    """A run that has not ended.

    Attributes:
        root: The record of the root run that it belongs to.
        parent_id: The id of the run that it is part of; None for a root run.
        thread_id: The LangGraph thread that its metadata name.
        call: The call that it is, of a model, tool or retriever; None for a chain.
        name: The name of a chain.
        inner: Up to two of the calls that a tool or retriever makes itself, not through a graph.
        inputs: What a chain was given, in the form of `last_items`.
        has_calls: Whether a call inside it is recorded, so that its outputs show nothing new.
        task: LangGraph's name for one execution of a node, the same for all its attempts.
        is_limit_node: Whether it is middleware that ends an agent at a limit.
        errors_before: Exceptions that were recorded when it began.
        is_interrupted: Whether it has paused, or something directly below it.
        checkpoint_id: LangGraph's id of the checkpoint at which it paused.
    """

    __slots__ = (
        "call", "checkpoint_id", "errors_before", "has_calls", "inner", "inputs",
        "is_interrupted", "is_limit_node", "name", "parent_id", "root", "task", "thread_id",
    )  # fmt: skip

    def __init__(self, root: RunRecord, parent_id: UUID | None, thread_id: str | None) -> None:
        self.root = root
        self.parent_id = parent_id
        self.thread_id = thread_id
        self.call: Call | None = None
        self.inner: tuple[Call, ...] = ()
        self.name = ""
        self.inputs: object = None
        self.has_calls = False
        self.task = ""
        self.is_limit_node = False
        self.errors_before = len(root.error_ids)
        self.is_interrupted = False
        self.checkpoint_id: str | None = None


class RunTree:
    """The runs that one handler sees, as long as they are open.

    Args:
        owner: What the records of its root runs share.
        ambient: Returns the id of the run that LangChain's context names as the current one.
        find_traces: Looks up where other tracers record a root run, whenever something begins or
            ends inside it; None if nobody wants to know.
    """

    def __init__(
        self,
        owner: RecordOwner,
        ambient: Callable[[], UUID | None],
        find_traces: TraceFinder | None = None,
    ) -> None:
        self.owner = owner
        self.bounds = owner.bounds
        self.counters = owner.counters
        self._ambient = ambient
        self._find_traces = find_traces
        self._open: dict[UUID, OpenRun] = {}
        self._roots: dict[RunRecord, None] = {}  # in the order in which they began
        self._over: dict[UUID, None] = {}  # the roots that ended last, and late runs that have
        self._late: dict[UUID, None] = {}  # runs that go on although their root is over
        self._next_sweep_s = 0.0
        _trees.add(self)

    def _begin(self, start: Start) -> OpenRun | None:
        """Claim a run; return None if it is open already or belongs to a root that is over.

        A run whose parent is unknown is a root: the handler is attached to that run only. So a late
        run is remembered until it ends, because what begins inside it is none.
        """
        run_id, parent_id, _, metadata, _ = start
        parent = self._open.get(parent_id) if parent_id is not None else None
        if parent is None:
            # LangChain drops the parent when it tries a fallback, but its context still names it.
            outer = self._ambient()
            if parent_id in self._late or parent_id in self._over or outer in self._late:
                _remember(self._late, run_id, _MAX_LATE)
                return None
            if outer is not None and outer != run_id:
                parent = self._open.get(outer)
                parent_id = outer if parent is not None else parent_id
        root = RunRecord(self.owner, start) if parent is None else parent.root
        entry = OpenRun(root, parent_id, thread_id_in(metadata))
        root.open_runs.add(run_id)  # first, so that whoever ends the root finds all of its runs
        if parent is None:
            self._roots[root] = None
        if self._open.setdefault(run_id, entry) is not entry:
            if parent is None:
                self._roots.pop(root, None)
            return None
        if parent is None:
            self.counters.add("runs")
            self._make_room()
        else:
            root.last_seen_s = time.monotonic()
            find_traces = self._find_traces
            if find_traces is not None and parent_id is not None and not find_traces.is_done(root):
                find_traces(root, parent_id)
        if root.is_over:  # it ended in another thread just now
            self._open.pop(run_id, None)
            _remember(self._late, run_id, _MAX_LATE)
            return None
        if not root.is_langgraph and "langgraph_step" in metadata:
            root.is_langgraph = True
        return entry

    def _outer_call(self, entry: OpenRun) -> OpenRun | None:
        """Return the tool or retriever that makes a call; None if a graph inside it does."""
        outer: OpenRun | None = entry
        for _ in range(_MAX_CHAINS):
            if outer is None or outer.parent_id is None:
                return None
            outer = self._open.get(outer.parent_id)
            if outer is None or outer.task != entry.task:
                return None
            if outer.call is not None:
                return outer if outer.call.kind != "model" else None
        return None

    def _finish(self, run_id: UUID) -> OpenRun | None:
        """Claim the end of a run; return None if it is not open."""
        entry = self._open.pop(run_id, None)
        if entry is not None:
            root = entry.root
            root.open_runs.discard(run_id)
            find_traces = self._find_traces
            if find_traces is not None and not find_traces.is_done(root):
                find_traces(root, run_id)  # inside a model, nothing begins
        elif self._late.pop(run_id, _ABSENT) is not _ABSENT:
            _remember(self._over, run_id, _MAX_RECENTLY_OVER)
        return entry

    def _take(self, root: RunRecord) -> bool:
        """Claim the end of a root; return False if somebody else has."""
        return self._roots.pop(root, _ABSENT) is not _ABSENT

    def _forget(self, root: RunRecord) -> None:
        root.is_over = True
        _remember(self._over, root.run_id, _MAX_RECENTLY_OVER)
        for run_id in list(root.open_runs):
            self._open.pop(run_id, None)
            _remember(self._late, run_id, _MAX_LATE)
        root.open_runs.clear()

    def _make_room(self) -> None:
        """Abandon the roots silent for longest if there are too many, and sweep now and then."""
        while len(self._roots) > self.bounds.open_runs and self._abandon(self._most_silent()):
            warn_once(
                "max_open_runs",
                "more than max_open_runs (%d) runs are under way; those that have been silent for "
                "longest are abandoned and not scored. If they are alive, raise max_open_runs: an "
                "open run takes about 20 KB. If not, close the streams that are not read to their "
                "end",
                self.bounds.open_runs,
            )
        if time.monotonic() >= self._next_sweep_s:
            self.sweep()

    def sweep(self) -> None:
        """Abandon the roots that have had no event for `run_timeout_s` seconds."""
        now = time.monotonic()
        self._next_sweep_s = now + self.bounds.run_timeout_s / 10
        for root in list(self._roots):
            if root.last_seen_s < now - self.bounds.run_timeout_s:
                self._abandon(root)
        for run_id, entry in list(self._open.items()):
            if entry.root.is_over:  # a signal handler raised after its root ended
                self._open.pop(run_id, None)

    def _most_silent(self) -> RunRecord | None:
        return min(list(self._roots), key=lambda root: root.last_seen_s, default=None)

    def _abandon(self, root: RunRecord | None) -> bool:
        if root is None or not self._take(root):
            return False
        try:
            self._forget(root)
        finally:
            self.counters.add("abandoned")
        return True

    def close(self) -> None:
        """Abandon all roots that are open."""
        while self._abandon(self._most_silent()):
            pass
        self.sweep()

    @property
    def open_count(self) -> int:
        """The number of open root runs."""
        return len(self._roots)

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, the runs that are open or wait to be scored.

        Runs that the child starts inside the innermost open run are its own. Runs that it starts
        directly below another open run belong to the parent's run, which both processes continue.
        """
        entries, self._open = self._open, {}
        roots, self._roots = self._roots, {}
        for entry in entries.values():
            entry.root.is_over = True
            if entry.parent_id in entries:
                _remember(self._late, entry.parent_id, _MAX_LATE)
        counts = self.counters.counts()
        for name in ("queued", "queued_verdicts", "scores_queued"):
            self.counters.add(name, -counts.get(name, 0))
        self.counters.add("handed_over", len(roots) + counts.get("queued", 0))


def _remember(run_ids: dict[UUID, None], run_id: UUID, most: int) -> None:
    """Add an id to ordered ids; forget the older half of them if there are more than `most`."""
    run_ids[run_id] = None
    if len(run_ids) > most:
        for oldest in list(run_ids)[: most // 2]:
            run_ids.pop(oldest, None)


_trees: weakref.WeakSet[RunTree] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for tree in list(_trees):
        tree.leave_to_parent()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
