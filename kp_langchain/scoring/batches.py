"""Many traces at once: the answers of one-by-one evaluation, worked out a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Generic, TypeVar

from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.evaluation import Comparison, Reading

_Given = TypeVar("_Given")


class Evaluations(Generic[_Given], Iterator[ScoreBreakdown]):
    """An iterator over breakdowns, one for each trace, in order.

    A trace that cannot be evaluated raises where its breakdown would come; iteration may go on
    after it.

    Args:
        traces: The traces. No more than two batches of them are held.
        batch_size: How many are embedded and compared together.
        read: Makes a reading of what `traces` gives.
        compare: Embeds the traces of readings, compares each with what is remembered and with
            those before it, and remembers them. If it raises, it has remembered none.
        compare_one: Does the same for one, and knows what to answer when that fails.
        explain: Makes the breakdown of a reading, what came of comparing it, and when its scoring
            began, in seconds of `time.perf_counter`; the breakdown's time is the trace's share of
            its batch.
    """

    def __init__(
        self,
        traces: Iterable[_Given],
        batch_size: int,
        *,
        read: Callable[[_Given], Reading],
        compare: Callable[[Sequence[Reading]], Sequence[Comparison]],
        compare_one: Callable[[Reading], Comparison],
        explain: Callable[[Reading, Comparison, float], ScoreBreakdown],
    ) -> None:
        self._traces = iter(traces)
        self._batch_size = batch_size
        self._read = read
        self._compare = compare
        self._compare_one = compare_one
        self._explain = explain
        self._results = self._evaluate()

    def __next__(self) -> ScoreBreakdown:
        result = next(self._results)
        if isinstance(result, ScoreBreakdown):
            return result
        try:
            raise result
        finally:
            del result  # or it and this frame would hold each other

    def _evaluate(self) -> Iterator[ScoreBreakdown | Exception]:
        while True:
            given, failure = self._next_batch()
            started = time.perf_counter()
            readings = [self._reading(one) for one in given]
            reading_s = (time.perf_counter() - started) / max(1, len(given))
            # What comes before a trace that cannot be read is remembered before that one raises,
            # and what comes after it is not, unless iteration goes on.
            for readable, group in groupby(readings, lambda one: isinstance(one, Reading)):
                if readable:
                    batch = [one for one in group if isinstance(one, Reading)]
                    yield from self._evaluated(batch, reading_s)
                else:
                    yield from (one for one in group if isinstance(one, Exception))
            if failure is not None:
                yield failure
            elif len(given) < self._batch_size:
                return

    def _next_batch(self) -> tuple[list[_Given], Exception | None]:
        """Return the next traces, and what the iterator of traces raised after them."""
        given: list[_Given] = []
        try:
            given.extend(islice(self._traces, self._batch_size))
        except Exception as error:  # noqa: BLE001 - the caller's iterator; raised again in its place
            return given, error
        return given, None

    def _reading(self, given: _Given) -> Reading | Exception:
        try:
            return self._read(given)
        except Exception as error:  # noqa: BLE001 - raised again in its place
            return error

    def _evaluated(
        self, batch: Sequence[Reading], reading_s: float
    ) -> Iterator[ScoreBreakdown | Exception]:
        started = time.perf_counter()
        try:
            found = self._compare(batch)
        except Exception:  # noqa: BLE001 - one by one shows whose it is, and what is to be said
            for reading in batch:
                yield self._evaluated_alone(reading, reading_s)
            return
        share_s = reading_s + (time.perf_counter() - started) / len(batch)
        for reading, comparison in zip(batch, found, strict=True):
            yield self._explain(reading, comparison, time.perf_counter() - share_s)

    def _evaluated_alone(self, reading: Reading, reading_s: float) -> ScoreBreakdown | Exception:
        started = time.perf_counter() - reading_s
        try:
            comparison = self._compare_one(reading)
        except Exception as error:  # noqa: BLE001 - raised again in its place
            return error
        return self._explain(reading, comparison, started)
