"""Metrics of handlers' runs, through the OpenTelemetry API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kp_langchain import __version__
from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.integrations.packages import import_package

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.handler import KPCallbackHandler

_SCORE_BOUNDARIES = [tenths / 10 for tenths in range(1, 10)]
_DROPS = ("dropped", "not_stored", "scores_dropped", "scores_failed", "scores_without_trace")


def observe(handler: KPCallbackHandler, meter_provider: MeterProvider | None = None) -> None:
    """Report a handler's runs as metrics, together with those of other handlers.

    `kp.runs` counts scored runs, with the attribute `kp.decision`: `kept`, `below_threshold` or
    `twin`. `kp.score` is the histogram of their scores. `kp.runs.queued` is how many wait to be
    scored; `kp.runs.dropped` counts runs and scores that were lost, with the attribute `kp.reason`,
    which is a counter of `KPCallbackHandler.stats`. Each has the attribute `kp.domain`.

    Args:
        handler: The handler. It is observed once, and kept as long as the provider.
        meter_provider: Makes the meter; by default OpenTelemetry's global one.

    Raises:
        MissingExtraError: The package opentelemetry-api is not installed.
    """
    metrics = import_package("opentelemetry.metrics", extra="opentelemetry")
    provider = meter_provider or metrics.get_meter_provider()
    with _lock:
        instruments = _instruments.get(provider)
        if instruments is None:
            instruments = _instruments[provider] = _Instruments(metrics, provider)
        instruments.add(handler)


class _Instruments:
    """The instruments of one meter provider; two of one name would conflict."""

    def __init__(self, metrics: Any, provider: MeterProvider) -> None:
        self._observation = metrics.Observation
        self._handlers: list[KPCallbackHandler] = []
        meter = provider.get_meter("kp_langchain", __version__)
        self._runs = meter.create_counter(
            "kp.runs",
            unit="{run}",
            description="Runs that were scored, by decision as it was when the run ended.",
        )
        self._scores = meter.create_histogram(
            "kp.score",
            unit="1",
            description="Scores of runs, 0 to 1, as they were when the run ended.",
            explicit_bucket_boundaries_advisory=_SCORE_BOUNDARIES,
        )
        meter.create_observable_up_down_counter(
            "kp.runs.queued",
            [self._queued],
            unit="{run}",
            description="Runs that wait to be scored.",
        )
        meter.create_observable_counter(
            "kp.runs.dropped",
            [self._dropped],
            unit="{run}",
            description="Runs and scores that were dropped.",
        )

    def add(self, handler: KPCallbackHandler) -> None:
        if any(handler is one for one in self._handlers):
            return
        self._handlers.append(handler)
        domain = handler.domain

        def record(scored: ScoredTrace) -> None:
            if scored.previous is None:
                attributes = {"kp.domain": domain, "kp.decision": scored.decision}
                self._runs.add(1, attributes)
                self._scores.record(scored.breakdown.total, attributes)

        handler.add_observer(record)

    def _queued(self, _: Any) -> Iterable[Any]:
        for (domain, _name), number in self._sums(("queued",)).items():
            yield self._observation(number, {"kp.domain": domain})

    def _dropped(self, _: Any) -> Iterable[Any]:
        for (domain, name), number in self._sums(_DROPS).items():
            yield self._observation(number, {"kp.domain": domain, "kp.reason": name})

    def _sums(self, names: Iterable[str]) -> Counter[tuple[str, str]]:
        """Return the counts of all handlers, by domain and name."""
        sums: Counter[tuple[str, str]] = Counter()
        for handler in list(self._handlers):
            stats = handler.stats()
            for name in names:
                sums[handler.domain, name] += stats[name]
        return sums


_instruments: WeakKeyDictionary[MeterProvider, _Instruments] = WeakKeyDictionary()
_lock = ForkSafeLock()
