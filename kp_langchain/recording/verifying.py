"""Asks the caller's verifiers about a finished run, on redacted text and with a time limit.

A verifier may be a language model: slow, sending what it reads elsewhere, and not always well. So
it is given nothing that redaction removed, and it is called on a thread of its own, which is left
behind when it is late: nothing else can be. What it answers is read on that thread, too.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from inspect import isawaitable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from kp_langchain._notices import told, warn_once
from kp_langchain.recording.messages import clean
from kp_langchain.recording.outcome import FinishedRun, Report, read_report
from kp_langchain.recording.worker import worker

if TYPE_CHECKING:
    from kp_langchain.recording.tally import Tally
    from kp_langchain.schema import ReasoningTrace

Verifier = Callable[[FinishedRun], bool | float | Mapping[str, Any] | Awaitable[Any] | None]
"""Judges a finished run as an `outcome` function does; its mapping may hold a `note`, too."""

MOST_HANGING: Final = 4
"""So many late calls may be under way in a process; until one ends, no verifier is asked."""

_NAME_CHARS = 100


class Opinion(NamedTuple):
    """What a verifier says of a run.

    Args:
        source: `verifier NAME`.
        report: Success, confidence and note, where it says them; not redacted.
    """

    source: str
    report: Report


@dataclass(frozen=True, slots=True)
class Verifiers:
    """The verifiers of one handler.

    Args:
        functions: The verifiers, in the order in which they are asked.
        timeout_s: Longest wait for each, in seconds.
        tally: Counts `verifier_errors`, `verifier_timeouts` and `verifiers_skipped`.
    """

    functions: tuple[Verifier, ...]
    timeout_s: float
    tally: Tally

    @property
    def asking(self) -> bool:
        """Whether this code runs inside a verifier."""
        return _inside.get()

    def ask(self, trace: ReasoningTrace, *, run_id: UUID, failed: bool) -> list[Opinion]:
        """Ask one after the other, until one says whether the run succeeded.

        Args:
            trace: The redacted run; its `success` is what the run looks like by itself.
            run_id: LangChain's id of the root run.
            failed: Whether the trace's result is the error that ended the run.

        Returns:
            What those that were asked said, in order.
        """
        opinions: list[Opinion] = []
        for function in self.functions:
            opinion = self._opinion(function, _finished(trace, run_id, failed=failed))
            if opinion is None:
                continue
            opinions.append(opinion)
            if opinion.report.success is not None:
                break
        return opinions

    def _opinion(self, function: Verifier, run: FinishedRun) -> Opinion | None:
        source = f"verifier {name_of(function)}"
        _hanging[:] = [thread for thread in _hanging if thread.is_alive()]
        if len(_hanging) >= MOST_HANGING:
            self._trouble(
                "verifiers_skipped", source, f"is not asked while {MOST_HANGING} late ones hang"
            )
            return None
        call = _Call(function, run, self.timeout_s)
        thread = threading.Thread(
            # In a context of its own: `capture` is to record the agent's runs, not its judge's.
            target=Context().run,
            args=(call.make,),
            name="kp_langchain verifier",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:  # no memory for one, or the interpreter is shutting down
            self._trouble("verifiers_skipped", source, "is not asked: no thread can be started")
            return None
        with worker.only_waiting():
            in_time = call.over.wait(self.timeout_s)
        if not in_time:
            _hanging.append(thread)
            self._trouble(
                "verifier_timeouts", source, f"took longer than {self.timeout_s:g} s and was left"
            )
            return None
        if call.trouble is not None:
            self._trouble(call.count, source, f"cannot be used ({call.trouble})")
            return None
        return Opinion(source, call.said)

    def _trouble(self, count: str, source: str, what: str) -> None:
        self.tally.add(count)
        warn_once(f"{count}:{source}:{what}", "%s %s; counted under '%s'", source, what, count)


class _Call:
    """One call of a verifier, made on its own thread; nobody looks at it any more when late."""

    __slots__ = ("_function", "_limit_s", "_run", "count", "over", "said", "trouble")

    def __init__(self, function: Verifier, run: FinishedRun, limit_s: float) -> None:
        self._function, self._run, self._limit_s = function, run, limit_s
        self.over = threading.Event()
        self.said = Report()
        self.count = "verifier_errors"
        self.trouble: str | None = None

    def make(self) -> None:
        _inside.set(True)
        try:
            answer: object = self._function(self._run)
            if isawaitable(answer):
                answer = asyncio.run(_within(answer, self._limit_s))
            self.said = _read(answer)
        except BaseException as error:  # noqa: BLE001 - the caller's function
            self.trouble = type(error).__name__
            if isinstance(error, TimeoutError):
                self.count = "verifier_timeouts"
            with suppress(BaseException):  # what an exception of theirs says of itself
                self.trouble = told(error)
        finally:
            self.over.set()


async def _within(answer: Awaitable[object], limit_s: float) -> object:
    return await asyncio.wait_for(answer, limit_s)


def _read(answer: object) -> Report:
    """Read the report that a verifier answered.

    Raises:
        ReportError: It cannot be used.
    """
    # A mapping of a stranger's class may have no end.
    given = isinstance(answer, Mapping)
    return read_report(dict(islice(answer.items(), 4)) if given else answer)  # type: ignore[attr-defined]


def _finished(trace: ReasoningTrace, run_id: UUID, *, failed: bool) -> FinishedRun:
    result = trace.outcome.result_summary
    return FinishedRun(
        run_id=run_id,
        domain=trace.metadata.task_domain,
        objective=trace.task.objective,
        # Copies, because one that is late still has its own when the trace is stored.
        steps=tuple(step.model_copy(deep=True) for step in trace.steps),
        answer="" if failed else result,
        output=None,
        error=result if failed else "",
        success=trace.metadata.success,
        metadata={},
    )


def name_of(function: object) -> str:
    """Return what a verifier is called: its `__name__`, or else that of its type."""
    name = None
    with suppress(BaseException):  # it may be anything's
        name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.strip():
        name = type(function).__name__
    return clean(name)[:_NAME_CHARS]


_inside: ContextVar[bool] = ContextVar("kp_langchain_inside_verifier", default=False)
_hanging: list[threading.Thread] = []  # only the worker, of which there is one, touches it

if hasattr(os, "register_at_fork"):  # a forked child has none of the parent's threads
    os.register_at_fork(after_in_child=_hanging.clear)
