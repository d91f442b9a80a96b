"""`KeptMemory`: the kept runs that new ones are compared with, in this process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kp_langchain._forksafe import ForkSafeLock, allow_forks
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.twins import OFF, KeptTrace, hold_against_twins
from kp_langchain.store.kept_traces import MOST_COMPARED
from kp_langchain.store.rows import trace_key

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store.kept_traces import KeptPage
    from kp_langchain.store.watermark import Watermark

# Runs name their domains themselves, and 1,000 vectors take 1.7 MB.
_MOST_DOMAINS = 64
# Changes are noticed at once. All are read again for what is not counted as one: a database that
# was restored, a replacement that never reached the store, a kept run that was added once more.
_READ_AGAIN_S = 60.0
# A run that the store has not got by then was lost on its way there.
_LOST_AFTER_S = 600.0


class Read(Protocol):
    """Reads the kept runs of a domain as `KeptTraces.read` does."""

    def __call__(
        self, domain: str, *, since: Watermark | None, awaited: Collection[str]
    ) -> KeptPage | None:
        """Return the kept runs; or what changed after a change, None if nothing did."""
        ...


@dataclass(slots=True)
class _Domain:
    """The kept runs of one domain.

    Attributes:
        traces: By the trace's id, the oldest first.
        unwritten: When those were added, by the monotonic clock, that the store did not have yet.
        replaced: The id of the trace that took the place of each, which the store may not know yet.
        state: The state of the store that they are based on.
        read_at: When all of them were last read, by the monotonic clock.
        reads: The number of reads that were begun.
        newest_read: The number of the one that they were last brought up to date with.
    """

    traces: dict[str, KeptTrace] = field(default_factory=dict)
    unwritten: dict[str, float] = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)
    state: Watermark | None = None
    read_at: float = float("-inf")
    reads: int = 0
    newest_read: int = 0

    def add(self, trace: KeptTrace, replaces: Collection[str]) -> None:
        trace_id = trace.entry.trace_id
        for other in replaces:
            self.traces.pop(other, None)
            self.unwritten.pop(other, None)
            self.replaced[other] = trace_id
        self.replaced.pop(trace_id, None)
        self.traces[trace_id] = trace
        self.unwritten[trace_id] = time.monotonic()
        self._drop_excess()

    def update(self, page: KeptPage, read: int) -> None:
        """Bring the traces up to date with what the store has, unless a later read already has."""
        if read < self.newest_read:
            return
        self.newest_read = read
        if self.state is not None and page.state.deletions != self.state.deletions:
            # Nobody knows which of them were not written yet, and which were deleted.
            self.unwritten, self.replaced = {}, {}
        kept = {trace.entry.trace_id: trace for trace in page.traces}
        known = page.written | kept.keys() | page.left
        now = time.monotonic()
        self.unwritten = {
            trace_id: added_at
            for trace_id, added_at in self.unwritten.items()
            if trace_id not in known and now < added_at + _LOST_AFTER_S
        }
        self.replaced = {
            trace_id: by for trace_id, by in self.replaced.items() if by in self.unwritten
        }
        stored = {key: trace for key, trace in kept.items() if key not in self.replaced}
        if page.is_whole:
            unwritten = {key: trace for key, trace in self.traces.items() if key in self.unwritten}
            self.traces, self.read_at = stored | unwritten, now
        else:
            for key in (*page.left, *kept):
                self.traces.pop(key, None)
            self.traces |= stored
        self._drop_excess()
        self.state = page.state

    def _drop_excess(self) -> None:
        for ids in (self.traces, self.unwritten, self.replaced):
            while len(ids) > MOST_COMPARED:
                del ids[next(iter(ids))]


class KeptMemory:
    """The kept runs of each domain. Safe to use from several threads, and after a fork.

    They are read from the store when the first run of the domain passes its threshold. Each time
    another one does, what verdicts and other processes have changed since is read as well. After a
    deletion all are read anew, and none of those that this process knew stays.

    Args:
        read: Reads them from the store; None without a store.
    """

    def __init__(self, read: Read | None) -> None:
        self._read = read
        self._lock = ForkSafeLock()
        self._domains: OrderedDict[str, _Domain] = OrderedDict()

    def admit(self, run: ScoredTrace) -> ScoredTrace:
        """Return a run as it is decided on beside the kept ones, and add it to them if it is kept.

        That is one atomic act: of two runs that repeat each other and come at the same time, one is
        compared with the other.

        Args:
            run: The run. Without an `entry` it is returned as it is.
        """
        if run.decision != "kept" or run.entry is None:
            return run
        entry = run.entry._replace(trace_id=trace_key(run.entry.trace_id))
        candidate = KeptTrace.of(run, entry)
        domain = run.trace.metadata.task_domain
        if run.twin_similarity < OFF:
            self._refresh(domain)
        with self._lock:
            kept = self._of(domain)
            run = hold_against_twins(run, candidate, kept.traces.values())
            if run.decision == "kept":
                kept.add(candidate, run.replaces)
        return run

    def _of(self, domain: str) -> _Domain:
        kept = self._domains.setdefault(domain, _Domain())
        self._domains.move_to_end(domain)
        if len(self._domains) > _MOST_DOMAINS:
            self._domains.popitem(last=False)
        return kept

    def _refresh(self, domain: str) -> None:
        """Read what the store has, if it may have changed."""
        if self._read is None:
            return
        with self._lock:
            kept = self._of(domain)
            is_recent = time.monotonic() < kept.read_at + _READ_AGAIN_S
            since = kept.state if is_recent else None
            unwritten = list(kept.unwritten)
            kept.reads += 1
            read = kept.reads
        try:
            # Outside the lock, because it waits for the store's thread.
            with allow_forks():
                page = self._read(domain, since=since, awaited=unwritten)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"kept:{type(error).__name__}",
                "the kept runs cannot be read from the store now (%s); new ones are compared with "
                "those of this process",
                describe_error(error),
            )
            return
        if page is not None:
            with self._lock:
                kept.update(page, read)
