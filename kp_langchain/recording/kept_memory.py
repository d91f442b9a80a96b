"""`KeptMemory`: the kept runs that new ones are compared with, in this process."""

from __future__ import annotations

import time
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Any

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.gate.twins import OFF, KeptTrace, hold_against_twins
from kp_langchain.store.rows import trace_key
from kp_langchain.store.vectors import MOST_COMPARED, follow_kept, kept_trace

if TYPE_CHECKING:
    from collections.abc import Collection

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store.backoff import Backoff
    from kp_langchain.store.database import Database
    from kp_langchain.store.vectors import Page

# Runs name their domains themselves, and 1,000 vectors take 1.7 MB.
_MOST_DOMAINS = 64
# A run that the store has not got by then was lost on its way there.
_LOST_AFTER_S = 600.0


class _Domain:
    """The kept runs of one domain.

    Args:
        database: The store that they are read from; None without one.
        name: The domain's name.
    """

    def __init__(self, database: Database | None, name: str) -> None:
        self._follower = None if database is None else follow_kept(database, name)
        self._stored: dict[str, KeptTrace] = {}  # as the store has them, the oldest first
        # Those of this process that the store does not have yet: since when, by the monotonic
        # clock, and whose place they took, which the store does not know yet either.
        self._unwritten: dict[str, tuple[KeptTrace, float, Collection[str]]] = {}

    def kept(self) -> list[KeptTrace]:
        """Return the kept runs, the oldest first."""
        replaced = {one for _, _, replaces in self._unwritten.values() for one in replaces}
        hidden = replaced | self._unwritten.keys()
        stored = [trace for trace_id, trace in self._stored.items() if trace_id not in hidden]
        unwritten = [trace for trace, *_ in self._unwritten.values()]
        return [
            *stored,
            *(trace for trace in unwritten if trace.entry.trace_id not in replaced),
        ][-MOST_COMPARED:]

    def add(self, trace: KeptTrace, replaces: Collection[str]) -> None:
        trace_id = trace.entry.trace_id
        if self._follower is not None:
            self._unwritten[trace_id] = trace, time.monotonic(), replaces
        else:
            for other in replaces:
                self._stored.pop(other, None)
            self._stored[trace_id] = trace
        _drop_excess(self._stored)
        _drop_excess(self._unwritten)

    def update(self) -> None:
        """Read what the store has, if something has changed there."""
        if self._follower is not None:
            self._follower.read(self._take)

    def _take(self, page: Page[Any]) -> None:
        if page.is_first_of_all:
            self._stored.clear()
        if page.is_after_deletion:
            # Nobody knows which of them were not written yet, and which were deleted.
            self._unwritten.clear()
        for row in page.rows:
            self._stored.pop(row.trace_id, None)
            self._unwritten.pop(row.trace_id, None)
            trace = kept_trace(row) if row.is_kept else None
            if trace is not None:
                self._stored[row.trace_id] = trace
        lost_before = time.monotonic() - _LOST_AFTER_S
        for trace_id, (_, added_at, _) in list(self._unwritten.items()):
            if added_at < lost_before:
                del self._unwritten[trace_id]
        _drop_excess(self._stored)


def _drop_excess(traces: dict[str, Any]) -> None:
    for trace_id in list(islice(traces, max(0, len(traces) - MOST_COMPARED))):
        del traces[trace_id]


class KeptMemory:
    """The kept runs of each domain. Safe to use from several threads, and after a fork.

    They are read from the store when the first run of the domain passes its threshold. Each time
    another one does, what verdicts and other processes have changed since is read as well. After a
    deletion all are read anew, and none of those that this process knew stays.

    Args:
        database: The store that they are read from; None without one.
        backoff: While it is pausing, the store is not asked.
    """

    def __init__(self, database: Database | None, backoff: Backoff) -> None:
        self._database = database
        self._backoff = backoff
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
        with self._lock:
            domain = self._of(run.trace.metadata.task_domain)
            if run.twin_similarity < OFF:
                self._update(domain)
            run = hold_against_twins(run, candidate, domain.kept())
            if run.decision == "kept":
                domain.add(candidate, run.replaces)
        return run

    def _of(self, name: str) -> _Domain:
        domain = self._domains.get(name)
        if domain is None:
            domain = self._domains[name] = _Domain(self._database, name)
        self._domains.move_to_end(name)
        if len(self._domains) > _MOST_DOMAINS:
            self._domains.popitem(last=False)
        return domain

    def _update(self, domain: _Domain) -> None:
        try:
            self._backoff.check()
            domain.update()
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            warn_once(
                f"kept:{type(error).__name__}",
                "the kept runs cannot be read from the store now (%s); new ones are compared with "
                "those of this process",
                describe_error(error),
            )
