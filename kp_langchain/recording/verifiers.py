"""Asks the caller's verifiers about a finished run, on redacted text and with a time limit.

A verifier may be a language model. It may be slow, fail, or send what it reads to a third party. So
it sees redacted text only. Its answer is parsed on its own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from itertools import islice
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.errors import BusyError
from kp_langchain.recording.outcome import FinishedRun
from kp_langchain.recording.user_calls import name_of
from kp_langchain.recording.verdict_reader import read_verdict

if TYPE_CHECKING:
    from kp_langchain.gate.run import Run
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.user_calls import Lane
    from kp_langchain.verdict import Verdict

Verifier = Callable[[FinishedRun], bool | float | Mapping[str, Any] | Awaitable[Any] | None]
"""Judges a finished run as an `outcome` function does; its mapping may also hold a `note`."""


@dataclass(frozen=True, slots=True)
class Verifiers:
    """The verifiers of one handler.

    Attributes:
        functions: The verifiers, in the order in which they are asked.
        timeout_s: Longest wait for each, in seconds.
        counters: Counts `verifier_errors`, `verifier_timeouts` and `verifiers_skipped`.
    """

    functions: tuple[Verifier, ...]
    timeout_s: float
    counters: Counters

    @property
    def asking(self) -> bool:
        """Whether this code runs inside a verifier."""
        return _inside.get()

    def ask(self, judged: Run, lane: Lane) -> list[Verdict]:
        """Ask one after the other, until one says whether the run succeeded.

        Args:
            judged: The redacted run; verifiers receive its `looked_successful` as `success`.
            lane: The lane on which this is called.

        Returns:
            The verdicts of those that were asked, in order; their notes are not redacted.
        """
        verdicts: list[Verdict] = []
        for function in self.functions:
            verdict = self._verdict(function, _finished_run(judged), lane)
            if verdict is None:
                continue
            verdicts.append(verdict)
            if verdict.success is not None:
                break
        return verdicts

    def _verdict(self, function: Verifier, run: FinishedRun, lane: Lane) -> Verdict | None:
        source = f"verifier {name_of(function)}"
        ask = partial(_ask, function, run, source, self.timeout_s)
        try:
            return lane.call(ask, self.timeout_s)
        except BusyError as error:
            self._warn("verifiers_skipped", source, str(error))
        except TimeoutError:
            late = f"took longer than {self.timeout_s:g} s and is abandoned"
            self._warn("verifier_timeouts", source, late)
        except BaseException as error:  # noqa: BLE001 - the caller's function
            name = type(error).__name__
            with suppress(BaseException):  # its exception may raise when it is described
                name = describe_error(error)
            self._warn("verifier_errors", source, f"cannot be used ({name})")
        return None

    def _warn(self, count: str, source: str, problem: str) -> None:
        self.counters.add(count)
        warn_once(
            f"{count}:{source}:{problem}", "%s %s; counted under '%s'", source, problem, count
        )


def _ask(function: Verifier, run: FinishedRun, source: str, limit_s: float) -> Verdict | None:
    """Call a verifier and read its verdict.

    Raises:
        VerdictError: Its answer cannot be used.
        BaseException: What it raises.
    """
    _inside.set(True)
    answer: object = function(run)
    if isawaitable(answer):
        answer = asyncio.run(_within(answer, limit_s))
    if isinstance(answer, Mapping):
        answer = dict(islice(answer.items(), 4))  # a mapping of a foreign class may be endless
    return read_verdict(answer, source)


async def _within(answer: Awaitable[object], limit_s: float) -> object:
    return await asyncio.wait_for(answer, limit_s)


def _finished_run(run: Run) -> FinishedRun:
    trace = run.trace
    result = trace.outcome.result_summary
    return FinishedRun(
        run_id=run.run_id,
        domain=trace.metadata.task_domain,
        objective=trace.task.objective,
        # Copies, because a late verifier still has its steps when the trace is stored.
        steps=tuple(step.model_copy(deep=True) for step in trace.steps),
        answer="" if run.failed else result,
        output=None,
        error=result if run.failed else "",
        success=run.looked_successful,
        metadata={},
    )


_inside: ContextVar[bool] = ContextVar("kp_langchain_inside_verifier", default=False)
