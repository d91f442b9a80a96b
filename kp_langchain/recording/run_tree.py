"""The tree of runs: which run belongs to which root, and which roots are under way.

It lives inside the user's agent, in whatever thread an event comes from, so it takes no lock: its
state is a few dicts and sets that are only ever changed by single operations which CPython makes
atomic (`setdefault`, `pop`, `add`). That also keeps it safe when the garbage collector closes a
stream, and so sends an event, in the middle of another event, and when the process forks. A run is
claimed by `setdefault` at its start and by `pop` at its end; whoever loses the claim, such as a
handler that was given twice, has nothing left to do.

A run that is under way when the process forks is the parent's: in the child it is no longer open.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from uuid import UUID

from kp_langchain.recording.counters import Counters
from kp_langchain.recording.run_record import Bounds, Call, RunRecord, Start, thread_id_in

_RECENTLY_OVER = 1024
_GONE = object()


class OpenRun:
    """A run under way and the root it belongs to."""

    __slots__ = (
        "call", "checkpoint_id", "failures_before", "interrupted", "limit_node",
        "name", "parent_id", "root", "task", "thread_id",
    )  # fmt: skip

    def __init__(self, root: RunRecord, parent_id: UUID | None, thread_id: str | None) -> None:
        self.root = root
        self.parent_id = parent_id
        self.thread_id = thread_id
        self.call: Call | None = None
        self.name = ""
        self.task = ""  # LangGraph's name for the execution of a node, the same for its attempts
        self.limit_node = False
        self.failures_before = len(root.raised)
        self.interrupted = False  # something directly below it paused
        self.checkpoint_id: str | None = None  # where it can be resumed from


class RunTree:
    """The runs that one handler sees, as far as they are under way.

    Args:
        bounds: What is kept at most.
        new_record: Makes the record of a new root.
        ambient: Returns the id of the run that LangChain's context says we are in, if any.
    """

    def __init__(
        self,
        bounds: Bounds,
        new_record: Callable[[Start], RunRecord],
        ambient: Callable[[], UUID | None],
    ) -> None:
        self.bounds = bounds
        self._new_record = new_record
        self.counters = Counters()
        self._ambient = ambient
        self._open: dict[UUID, OpenRun] = {}
        self._roots: dict[RunRecord, None] = {}  # in the order in which they began
        self._over: dict[UUID, None] = {}
        self._next_sweep_s = 0.0
        _TREES.add(self)

    def _begin(self, start: Start) -> OpenRun | None:
        """Claim a run; None when it is known already or belongs to one that is over."""
        run_id, parent_id, _, metadata, _ = start
        parent = self._open.get(parent_id) if parent_id is not None else None
        if parent is None:
            if parent_id is not None and parent_id in self._over:
                self._remember_over(run_id)
                return None
            # LangChain forgets the parent where a fallback is tried, but its context knows it.
            outer = self._ambient()
            if outer is not None and outer != run_id:
                parent = self._open.get(outer)
                parent_id = outer if parent is not None else parent_id
        root = self._new_record(start) if parent is None else parent.root
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
        if root.over:  # it ended in another thread just now
            self._open.pop(run_id, None)
            return None
        if not root.langgraph and "langgraph_step" in metadata:
            root.langgraph = True
        return entry

    def _finish(self, run_id: UUID) -> OpenRun | None:
        entry = self._open.pop(run_id, None)
        if entry is not None:
            entry.root.open_runs.discard(run_id)
        return entry

    def _remember_over(self, run_id: UUID) -> None:
        self._over[run_id] = None
        if len(self._over) > _RECENTLY_OVER:
            for oldest in list(self._over)[: _RECENTLY_OVER // 2]:
                self._over.pop(oldest, None)

    def _take(self, root: RunRecord) -> bool:
        """Claim the end of a root; False for whoever comes second."""
        return self._roots.pop(root, _GONE) is not _GONE

    def _forget(self, root: RunRecord) -> None:
        root.over = True
        self._remember_over(root.run_id)
        for run_id in list(root.open_runs):
            self._open.pop(run_id, None)
            self._remember_over(run_id)
        root.open_runs.clear()

    def _make_room(self) -> None:
        """Abandon the most silent runs while there are too many; now and then, all silent ones."""
        while len(self._roots) > self.bounds.open_runs and self._abandon(self._most_silent()):
            pass
        if time.monotonic() >= self._next_sweep_s:
            self.sweep()

    def sweep(self) -> None:
        """Abandon the runs that have not been heard of for `run_timeout_s` seconds."""
        now = time.monotonic()
        self._next_sweep_s = now + self.bounds.run_timeout_s / 10
        for root in list(self._roots):
            if root.last_seen_s < now - self.bounds.run_timeout_s:
                self._abandon(root)
        for run_id, entry in list(self._open.items()):
            if entry.root.over:  # a signal handler's exception came between its end and this
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
        """Abandon whatever is still under way."""
        while self._abandon(self._most_silent()):
            pass
        self.sweep()

    @property
    def open_count(self) -> int:
        """Root runs under way."""
        return len(self._roots)

    def leave_to_parent(self) -> None:
        """In a forked child: let go of the runs that are under way, or wait to be scored.

        What the child starts inside the innermost of them, where the user's code stands, are runs
        of its own. What starts directly below another is the rest of the parent's run, which both
        processes go on with.
        """
        entries, self._open = self._open, {}
        roots, self._roots = self._roots, {}
        for entry in entries.values():
            entry.root.over = True
            if entry.parent_id in entries:
                self._remember_over(entry.parent_id)
        counts = self.counters.counts()
        for name in ("queued", "queued_verdicts"):
            self.counters.add(name, -counts.get(name, 0))
        self.counters.add("handed_over", len(roots) + counts.get("queued", 0))


_TREES: weakref.WeakSet[RunTree] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for tree in list(_TREES):
        tree.leave_to_parent()


if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
