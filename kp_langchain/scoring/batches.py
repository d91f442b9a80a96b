"""Evaluates many traces: the breakdowns of one-by-one evaluation, computed a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Generic, TypeVar

from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.evaluation import Comparison, Evaluation

_Trace = TypeVar("_Trace")


class BreakdownIterator(Generic[_Trace], Iterator[ScoreBreakdown]):
    """An iterator over breakdowns, one for each trace, in order.

    A trace that cannot be evaluated raises in its place; iteration may continue after it.

    Args:
        traces: The traces. No more than two batches of them are held.
        batch_size: How many traces are embedded and compared together.
        begin: Makes an evaluation of a trace.
        compare: Embeds the traces of evaluations, compares each with the remembered ones and with
            those before it, and remembers them. If it raises, it has remembered none.
        compare_one: Does the same for one trace, and handles a failing embedder.
        finish: Makes the breakdown of an evaluation, its comparison, and the time at which its
            scoring began, in seconds of `time.perf_counter`. The breakdown's elapsed time is the
            trace's share of its batch.
    """

    def __init__(
        self,
        traces: Iterable[_Trace],
        batch_size: int,
        *,
        begin: Callable[[_Trace], Evaluation],
        compare: Callable[[Sequence[Evaluation]], Sequence[Comparison]],
        compare_one: Callable[[Evaluation], Comparison],
        finish: Callable[[Evaluation, Comparison, float], ScoreBreakdown],
    ) -> None:
        self._traces = iter(traces)
        self._batch_size = batch_size
        self._begin = begin
        self._compare = compare
        self._compare_one = compare_one
        self._finish = finish
        self._results = self._evaluate()

    def __next__(self) -> ScoreBreakdown:
        result = next(self._results)
        if isinstance(result, ScoreBreakdown):
            return result
        try:
            raise result
        finally:
            del result  # the error and this frame would hold each other

    def _evaluate(self) -> Iterator[ScoreBreakdown | Exception]:
        while True:
            traces, failure = self._next_batch()
            started = time.perf_counter()
            evaluations = [self._begin_or_error(trace) for trace in traces]
            begin_s = (time.perf_counter() - started) / max(1, len(traces))
            # The traces before one that cannot be evaluated are remembered before it raises, those
            # after it only if iteration continues.
            for is_usable, group in groupby(evaluations, lambda one: isinstance(one, Evaluation)):
                if is_usable:
                    batch = [one for one in group if isinstance(one, Evaluation)]
                    yield from self._evaluate_batch(batch, begin_s)
                else:
                    yield from (one for one in group if isinstance(one, Exception))
            if failure is not None:
                yield failure
            elif len(traces) < self._batch_size:
                return

    def _next_batch(self) -> tuple[list[_Trace], Exception | None]:
        """Return the next traces, and the error that their iterator raised after them."""
        traces: list[_Trace] = []
        try:
            traces.extend(islice(self._traces, self._batch_size))
        except Exception as error:  # noqa: BLE001 - the caller's iterator; raised in its place
            return traces, error
        return traces, None

    def _begin_or_error(self, trace: _Trace) -> Evaluation | Exception:
        try:
            return self._begin(trace)
        except Exception as error:  # noqa: BLE001 - raised in its place
            return error

    def _evaluate_batch(
        self, batch: Sequence[Evaluation], begin_s: float
    ) -> Iterator[ScoreBreakdown | Exception]:
        started = time.perf_counter()
        try:
            comparisons = self._compare(batch)
        except Exception:  # noqa: BLE001 - one by one shows which trace fails, and why
            for evaluation in batch:
                yield self._evaluate_alone(evaluation, begin_s)
            return
        share_s = begin_s + (time.perf_counter() - started) / len(batch)
        for evaluation, comparison in zip(batch, comparisons, strict=True):
            yield self._finish(evaluation, comparison, time.perf_counter() - share_s)

    def _evaluate_alone(self, evaluation: Evaluation, begin_s: float) -> ScoreBreakdown | Exception:
        started = time.perf_counter() - begin_s
        try:
            comparison = self._compare_one(evaluation)
        except Exception as error:  # noqa: BLE001 - raised in its place
            return error
        return self._finish(evaluation, comparison, started)
