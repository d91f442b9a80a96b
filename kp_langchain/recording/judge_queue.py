"""`JudgeQueue`: the runs that an engine is to judge, in their order."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from kp_langchain.recording.judging import judge_run

if TYPE_CHECKING:
    from kp_langchain.recording.handler_context import HandlerContext
    from kp_langchain.recording.work import Work
    from kp_langchain.recording.worker import Message

_SLICE_S = 0.01  # what comes meanwhile is to be on disk soon
_SIBLINGS_KEPT = 256
_LONGEST_WAIT_FOR_MODEL_S = 30.0

Send = Callable[["Message"], None]


class JudgeQueue:
    """Judges runs: on the engine's thread, or in a lane if functions of the user are called."""

    def __init__(self) -> None:
        self._to_judge: deque[Work] = deque()
        self._judged: list[Work] = []
        self._siblings: OrderedDict[UUID, frozenset[str]] = OrderedDict()
        self._model_awaited_until: float | None = None

    @property
    def has_work(self) -> bool:
        """Whether something can be done at once."""
        return bool(self._to_judge or self._judged)

    def add(self, works: Iterable[Work]) -> None:
        """Take runs that are to be judged."""
        self._to_judge.extend(works)

    def take_judged(self) -> list[Work]:
        """Return the runs that were judged since the last call; `scored` is None if that failed."""
        judged, self._judged = self._judged, []
        return judged

    def add_sibling(self, work: Work) -> None:
        """Take note of the trace of a run before the first trace of that run is judged.

        Traces of one run, as several handlers recorded it, are one experience, so none of them is a
        precedent for the others.
        """
        if work.run is not None:
            run_id, known = work.run.run_id, self._siblings
            known[run_id] = known.get(run_id, frozenset()) | {work.run.trace.id}
            while len(known) > _SIBLINGS_KEPT:
                known.popitem(last=False)

    def judge_some(self, send: Send, is_interrupted: Callable[[], bool]) -> None:
        """Judge runs for a moment.

        Args:
            send: Has something done on the engine's thread, on which all else here is called.
            is_interrupted: Whether others came that are to be written first.
        """
        until = time.monotonic() + _SLICE_S
        while self._to_judge:
            work = self._to_judge.popleft()
            if _judges_in_lane(work.context):
                work.context.functions.lane.submit(partial(self._judge_in_lane, work, send))
            else:
                self._judge(work)
                self._add_judged(work)
            if time.monotonic() >= until or is_interrupted():
                return

    def _judge_in_lane(self, work: Work, send: Send) -> None:
        context = work.context
        if not context.is_scorer_ready:
            # The 30 s begin with the first run, and once only: a download may hang.
            now = time.monotonic()
            until = self._model_awaited_until or now + _LONGEST_WAIT_FOR_MODEL_S
            self._model_awaited_until = until
            context.wait_for_scorer(max(0.0, until - now))
        self._judge(work)
        send(partial(self._add_judged, work))

    def _judge(self, work: Work) -> None:
        context, run = work.context, work.run
        if run is None:
            return
        siblings = self._siblings.get(run.run_id, frozenset())
        try:
            work.scored = judge_run(context, run, work.ask_outcome, siblings)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            context.functions.report_failure("failed", "a finished run cannot be scored", error)

    def _add_judged(self, work: Work) -> None:
        if not (work.run is not None and work.run.is_taken_over):
            work.context.counters.add("queued", -1)
        if work.scored is not None:
            work.context.count(work.scored)
        self._judged.append(work)


def _judges_in_lane(context: HandlerContext) -> bool:
    return (
        context.judges_with_user_code
        or context.functions.lane.waiting > 0  # else this one would overtake those
        or not context.is_scorer_ready
    )
