"""A program that plays cheap runs, notes what finished and what was acknowledged, until the end.

    python -m tests.faults.writer STORE NAME WAY PAUSE_S KILL_AFTER

In the current folder, the file `finished.NAME` has the id of each run whose `invoke` returned, and
when; `acknowledged.NAME` has the ids of those that are promised to be on disk. It ends when there
is a file `stop`, is killed, or kills itself after so many acknowledgements, if that is not 0.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from uuid import UUID, uuid4

from langchain_core.runnables import RunnableLambda

from kp_langchain import ScoredTrace
from tests.agents import handler, search
from tests.faults.processes import append, shortened_clock

FLUSH, ON_SCORED, NEITHER = "flush", "on_scored", "neither"
STOP = Path("stop")
_MOST_AT_ONCE = 8
_MOST_WAITING = 500  # of more than `max_queue` runs, a handler drops the oldest, and counts them
_RUN = RunnableLambda(lambda q: search.invoke({"q": q}))


class Writer:
    """Plays runs in batches.

    Args:
        url: The store.
        name: What its files end in.
        way: How runs are acknowledged: `flush()` returned True, `on_scored` was called, or neither.
        pause_s: Mean pause after a run.
        kill_after: It kills itself right after so many acknowledgements; 0 for never.
    """

    def __init__(self, url: str, name: str, way: str, pause_s: float, kill_after: int) -> None:
        self._finished, self._acknowledged = Path(f"finished.{name}"), Path(f"acknowledged.{name}")
        self._way, self._pause_s, self._left = way, pause_s, kill_after
        self._waiting: list[UUID] = []  # for the next flush
        scored = self._note_scored if way == ON_SCORED else None
        self._handler = handler("finance", store=url, on_scored=scored)

    def write(self) -> None:
        """Play until there is a file `stop`; then have everything acknowledged."""
        if self._way == NEITHER:  # what is measured is a process that has its store open
            _RUN.invoke("a", {"callbacks": [self._handler]})
            self._handler.flush()
        while not STOP.exists():
            if len(self._waiting) < _MOST_WAITING:
                for _ in range(random.randint(1, _MOST_AT_ONCE)):
                    self._play()
            if self._way != NEITHER:  # else nothing but the handler itself has them written
                self._flush()
        while not self._flush():
            time.sleep(0.01)

    def _play(self) -> None:
        run_id = uuid4()
        answer = _RUN.invoke("a", {"callbacks": [self._handler], "run_id": run_id})
        assert answer == "result for a"
        append(self._finished, run_id, time.monotonic_ns())
        if self._way != NEITHER:
            self._waiting.append(run_id)
        if self._pause_s:
            time.sleep(random.uniform(0.0, 2 * self._pause_s))

    def _note_scored(self, scored: ScoredTrace) -> None:
        if scored.stored:  # not so if others kept the store busy for too long
            self._acknowledge(scored.run_id)

    def _flush(self) -> bool:
        is_flushed = self._handler.flush()
        if is_flushed:
            if self._way == FLUSH and self._waiting:
                self._acknowledge(*self._waiting)
            self._waiting.clear()
        return is_flushed

    def _acknowledge(self, *run_ids: UUID) -> None:
        append(self._acknowledged, *run_ids)
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    store, its_name, its_way, its_pause, its_kill = sys.argv[1:]
    with shortened_clock():
        Writer(store, its_name, its_way, float(its_pause), int(its_kill)).write()
