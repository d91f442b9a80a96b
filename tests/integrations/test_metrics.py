"""Metrics of a handler, collected by OpenTelemetry's own reader."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from kp_langchain import KPCallbackHandler
from kp_langchain.integrations.opentelemetry import observe
from tests.agents import ASK, searching


def values(reader: InMemoryMetricReader) -> dict[tuple[str, str], Any]:
    data = reader.get_metrics_data()
    assert data is not None
    found = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    attributes = dict(point.attributes or {})
                    assert attributes.pop("kp.domain") == "finance"
                    value = getattr(point, "value", None)
                    if value is None:  # a histogram
                        value = (point.count, round(point.sum, 6), point.explicit_bounds)
                    found[metric.name, str(next(iter(attributes.values()), ""))] = value
    return found


def test_a_reader_collects_runs_queue_and_drops() -> None:
    reader = InMemoryMetricReader()
    handler = KPCallbackHandler("finance", store=None)
    provider = MeterProvider([reader])
    observe(handler, provider)
    searching().invoke(ASK, {"callbacks": [handler]})
    handler.flush()
    stats = handler.stats()
    scored = handler.last()
    assert scored is not None
    score, tenths = scored.breakdown.total, tuple(number / 10 for number in range(1, 10))
    assert values(reader) == {
        ("kp.runs", "contributed"): stats["contributed"],
        ("kp.runs", "below_threshold"): stats["below_threshold"],
        ("kp.score", scored.decision): (1, round(score, 6), tenths),
        ("kp.runs.queued", ""): 0,
        ("kp.runs.dropped", "dropped"): 0,
        ("kp.runs.dropped", "not_stored"): 0,
        ("kp.runs.dropped", "scores_dropped"): 0,
    }
    assert stats["scored"] == 1
    provider.shutdown()
