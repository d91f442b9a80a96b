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

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from kp_langchain._forksafe import leave_in_child
from kp_langchain._logging import warn_once
from kp_langchain.recording.calls import Call
from kp_langchain.recording.langchain_context import Start, ambient_run_id
from kp_langchain.recording.run_record import RunRecord

if TYPE_CHECKING:
    from kp_langchain.recording.bounds import RecordOwner
    from kp_langchain.recording.score_receivers import TraceFinder

_MAX_RECENTLY_OVER = 1024
# Reached only by runs that never end, such as streams that are never closed; then about 20 MB.
_MAX_LATE = 100_000
_ABSENT = object()
# Chains between a tool and what it calls, such as those of `chain.as_tool()`.
_MAX_CHAINS = 8


@dataclass(slots=True, eq=False)
class OpenRun:
    """A run that has not ended.

    Attributes:
        run_id: LangChain's id of it.
        root: The record of the root run that it belongs to.
        parent: The run that it is part of; None for a root run.
        metadata: Its metadata.
        errors_before: Exceptions that were recorded when it began.
        call: The call that it is, of a model, tool or retriever; None for a chain.
        name: The name of a chain.
        inner: Up to two of the calls that a tool or retriever makes itself, not through a graph.
        inputs: What a chain was given, in the form of `last_items`.
        has_calls: Whether a call inside it is recorded, so that its outputs show nothing new.
        task: LangGraph's name for one execution of a node, the same for all its attempts.
        is_interrupted: Whether it has paused, or something directly below it.
    """

    run_id: UUID
    root: RunRecord
    parent: OpenRun | None
    metadata: Mapping[str, Any]
    errors_before: int
    call: Call | None = None
    name: str = ""
    inner: tuple[Call, ...] = ()
    inputs: object = None
    has_calls: bool = False
    task: str = ""
    is_interrupted: bool = False

    @property
    def place(self) -> object:
        """What all attempts at one call have in common: what they are part of."""
        return None if self.parent is None else self.parent.run_id

    def outer_call(self) -> OpenRun | None:
        """Return the tool or retriever that makes a call; None if a graph inside it does."""
        outer = self.parent
        for _ in range(_MAX_CHAINS):
            if outer is None or outer.task != self.task:
                return None
            if outer.call is not None:
                return outer if outer.call.kind != "model" else None
            outer = outer.parent
        return None

    def note_call_inside(self) -> None:
        """Note in the runs around it that a call inside them is recorded."""
        outer = self.parent
        while outer is not None and not outer.has_calls:
            outer.has_calls = True
            outer = outer.parent


class RunReceiver(Protocol):
    """Takes the runs of a recorder, on the agent's thread: it must not wait."""

    def prepare(self) -> None:
        """Get ready for a run that begins."""

    def add(self, record: RunRecord) -> None:
        """Take a run that ended."""

    def add_paused(self, record: RunRecord) -> None:
        """Take a run that paused, which is also kept in memory."""

    def forget_paused(self, thread_id: str, until: datetime) -> None:
        """Forget what had paused in a thread by a time, in UTC."""


class RunTree:
    """The runs that one handler sees, as long as they are open.

    Args:
        owner: What the records of its root runs share.
        receiver: Takes each root run that ends or pauses, in the thread of its last event.
        find_traces: Looks up where other tracers record a root run, whenever something begins or
            ends inside it; None if nobody wants to know.
    """

    def __init__(
        self, owner: RecordOwner, receiver: RunReceiver, find_traces: TraceFinder | None = None
    ) -> None:
        self.owner = owner
        self.bounds = owner.bounds
        self._raw_text_chars = owner.bounds.raw_text_chars
        self.counters = owner.counters
        self._receiver = receiver
        self._find_traces = find_traces
        self._open: dict[UUID, OpenRun] = {}
        self._roots: dict[RunRecord, None] = {}  # in the order in which they began
        self._over: dict[UUID, None] = {}  # the roots that ended last, and late runs that have
        self._late: dict[UUID, None] = {}  # runs that go on although their root is over
        self._next_sweep_s = 0.0
        leave_in_child(self)

    def _begin(self, start: Start) -> OpenRun | None:
        """Claim a run; return None if it is open already or belongs to a root that is over.

        A run whose parent is unknown is a root: the handler is attached to that run only. So a late
        run is remembered until it ends, because what begins inside it is none.
        """
        run_id, parent_id, _, metadata, _ = start
        parent = self._open.get(parent_id)  # type: ignore[arg-type]
        if parent is None:
            # LangChain drops the parent when it tries a fallback, but its context still names it.
            outer_id = ambient_run_id() if self.owner.is_live else None
            if parent_id in self._late or parent_id in self._over or outer_id in self._late:
                _remember(self._late, run_id, _MAX_LATE)
                return None
            if outer_id != run_id:
                parent = self._open.get(outer_id)  # type: ignore[arg-type]
        root = RunRecord(self.owner, start) if parent is None else parent.root
        run = OpenRun(run_id, root, parent, metadata, len(root.state.error_ids))
        if self._open.setdefault(run_id, run) is not run:
            return None
        root.state.open_runs.add(run)
        if parent is None:
            self._roots[root] = None
            self.counters.add("runs")
            self._receiver.prepare()
            self._make_room()
        else:
            root.state.last_seen_s = time.monotonic()
            if self._find_traces is not None and not self._find_traces.is_done(root):
                self._find_traces(root, parent.run_id)
        if root.state.is_over:  # it ended in another thread just now
            self._open.pop(run_id, None)
            _remember(self._late, run_id, _MAX_LATE)
            return None
        if not root.is_langgraph and "langgraph_step" in metadata:
            root.is_langgraph = True
        return run

    def _finish(self, run_id: UUID) -> OpenRun | None:
        """Claim the end of a run; return None if it is not open."""
        run = self._open.pop(run_id, None)
        if run is not None:
            root = run.root
            root.state.open_runs.discard(run)
            root.state.last_seen_s = time.monotonic()
            if self._find_traces is not None and not self._find_traces.is_done(root):
                self._find_traces(root, run_id)  # inside a model, nothing begins
        elif self._late.pop(run_id, _ABSENT) is not _ABSENT:
            _remember(self._over, run_id, _MAX_RECENTLY_OVER)
        return run

    def _take(self, root: RunRecord) -> bool:
        """Claim the end of a root; return False if somebody else has."""
        return self._roots.pop(root, _ABSENT) is not _ABSENT

    def _forget(self, root: RunRecord) -> None:
        root.state.is_over = True
        _remember(self._over, root.run_id, _MAX_RECENTLY_OVER)
        for run in list(root.state.open_runs):
            self._open.pop(run.run_id, None)
            _remember(self._late, run.run_id, _MAX_LATE)
        root.state.open_runs.clear()

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
            if root.state.last_seen_s < now - self.bounds.run_timeout_s:
                self._abandon(root)

    def _most_silent(self) -> RunRecord | None:
        return min(list(self._roots), key=lambda root: root.state.last_seen_s, default=None)

    def _abandon(self, root: RunRecord | None) -> bool:
        if root is None or not self._take(root):
            return False
        self._forget(root)
        self.counters.add("abandoned")
        return True

    def close(self) -> None:
        """Abandon all roots that are open."""
        while self._abandon(self._most_silent()):
            pass

    @property
    def open_count(self) -> int:
        """The number of open root runs."""
        return len(self._roots)

    def leave_to_parent(self) -> None:
        """Forget, in a forked child, the runs that are open or wait to be scored.

        Runs that the child starts inside the innermost open run are its own. Runs that it starts
        directly below another open run belong to the parent's run, which both processes continue.
        """
        runs, self._open = self._open, {}
        roots, self._roots = self._roots, {}
        for run in runs.values():
            run.root.state.is_over = True
            if run.parent is not None:
                _remember(self._late, run.parent.run_id, _MAX_LATE)
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
