"""Metrics of a handler's runs, through the OpenTelemetry API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kp_langchain import __version__
from kp_langchain.integrations.packages import import_package

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.handler import KPCallbackHandler

_SCORE_BOUNDARIES = [tenths / 10 for tenths in range(1, 10)]
_DROPS = ("dropped", "not_stored", "scores_dropped")


def observe(handler: KPCallbackHandler, meter_provider: MeterProvider | None = None) -> None:
    """Report a handler's counts as metrics whenever a reader collects them.

    `kp.runs` counts scored runs, with the attribute `kp.decision`: `contributed` are those that
    were kept. `kp.score` is the histogram of their scores. `kp.runs.queued` is how many wait to be
    scored; `kp.runs.dropped` counts what was dropped, with the attribute `kp.reason`.

    Args:
        handler: The handler.
        meter_provider: Makes the meter; by default OpenTelemetry's global one.

    Raises:
        MissingExtraError: The package opentelemetry-api is not installed.
    """
    metrics = import_package("opentelemetry.metrics", extra="opentelemetry")
    provider = meter_provider or metrics.get_meter_provider()
    meter = provider.get_meter("kp_langchain", __version__)
    domain = {"kp.domain": handler.domain}

    def decisions(_: Any) -> Iterable[Any]:
        stats = handler.stats()
        for name in ("contributed", "below_threshold"):
            yield metrics.Observation(stats[name], domain | {"kp.decision": name})

    def queued(_: Any) -> Iterable[Any]:
        yield metrics.Observation(handler.stats()["queued"], domain)

    def dropped(_: Any) -> Iterable[Any]:
        stats = handler.stats()
        for name in _DROPS:
            yield metrics.Observation(stats[name], domain | {"kp.reason": name})

    scores = meter.create_histogram(
        "kp.score",
        unit="1",
        description="Scores of runs, 0 to 1, as they were when the run ended.",
        explicit_bucket_boundaries_advisory=_SCORE_BOUNDARIES,
    )

    def record(scored: ScoredTrace) -> None:
        if scored.previous is None:
            scores.record(scored.breakdown.total, domain | {"kp.decision": scored.decision})

    handler.add_observer(record)
    meter.create_observable_counter(
        "kp.runs", [decisions], unit="{run}", description="Runs that were scored, by decision."
    )
    meter.create_observable_up_down_counter(
        "kp.runs.queued", [queued], unit="{run}", description="Runs that wait to be scored."
    )
    meter.create_observable_counter(
        "kp.runs.dropped", [dropped], unit="{run}", description="Runs and scores that were dropped."
    )
