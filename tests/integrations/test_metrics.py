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
        ("kp.runs", scored.decision): 1,
        ("kp.score", scored.decision): (1, round(score, 6), tenths),
        ("kp.runs.queued", ""): 0,
        ("kp.runs.dropped", "dropped"): 0,
        ("kp.runs.dropped", "not_stored"): 0,
        ("kp.runs.dropped", "scores_dropped"): 0,
        ("kp.runs.dropped", "scores_failed"): 0,
        ("kp.runs.dropped", "scores_without_trace"): 0,
    }
    assert stats["scored"] == 1
    provider.shutdown()


def test_handlers_of_one_domain_are_added_up_and_each_is_observed_once() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    handlers = [KPCallbackHandler("finance", store=None, send_scores_to=["opik"]) for _ in "ab"]
    for handler in [*handlers, handlers[0]]:
        observe(handler, provider)
    for handler in [*handlers, handlers[0]]:
        searching().invoke(ASK, {"callbacks": [handler]})
    assert all(handler.flush() for handler in handlers)
    found = values(reader)
    assert sum(number for (name, _), number in found.items() if name == "kp.runs") == 3
    assert sum(each[0] for (name, _), each in found.items() if name == "kp.score") == 3
    assert found["kp.runs.dropped", "scores_without_trace"] == 3
    provider.shutdown()
