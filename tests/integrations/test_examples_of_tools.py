"""The examples for other tools, run as programs against servers on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.test_score_receivers import MLflowServer, answer
from tests.loopback_tools import LoopbackTool, Request

ROOT = Path(__file__).parents[2]
SERVERS = ("langsmith", "langfuse", "phoenix", "opik", "mlflow")
SCORES = {
    "kp_quality_score", "kp_complexity", "kp_novelty", "kp_tool_diversity", "kp_outcome_confidence",
}  # fmt: skip


class Backend(MLflowServer):
    """MLflow's server that has an experiment, and what the others answer."""

    def __call__(self, request: Request) -> tuple[int, Any]:
        if "experiments" in request.path:
            experiment = {"experiment_id": "0", "name": "agents", "lifecycle_stage": "active"}
            return 200, {"experiment": experiment, "experiment_id": "0"}
        if "mlflow" in request.path:
            return super().__call__(request)
        return answer(request)


@pytest.fixture
def server() -> Iterator[LoopbackTool]:
    with LoopbackTool(Backend()) as loopback:
        yield loopback


def run(name: str, url: str = "") -> str:
    """Run an example against a server, and return what it printed."""
    settings = {
        "KP_EMBEDDING_MODEL": "/no/such/model",  # loading one takes seconds
        "LANGSMITH_ENDPOINT": url,
        "LANGSMITH_API_KEY": "key",
        "LANGFUSE_PUBLIC_KEY": "pk",
        "LANGFUSE_SECRET_KEY": "sk",
        "LANGFUSE_BASE_URL": url,
        "PHOENIX_COLLECTOR_ENDPOINT": url,
        "OPIK_URL_OVERRIDE": f"{url}/api",
        "OPIK_WORKSPACE": "default",
        "OPIK_SENTRY_ENABLE": "false",
        "MLFLOW_TRACKING_URI": url,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **settings},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def received(tool: str, server: LoopbackTool) -> dict[str, str]:
    """Return the names of the scores that a server received, with the tool's id of the trace."""
    if tool == "langsmith":
        bodies = [request.json for request in server.sent_to("/feedback")]
        return {one["key"]: one["run_id"] for one in bodies}
    if tool == "langfuse":
        sent = [one for request in server.sent_to("/scores") for one in request.json]
        return {one["name"]: one["traceId"] for one in sent}
    if tool == "phoenix":
        sent = [one for r in server.sent_to("/span_annotations") for one in r.json["data"]]
        return {one["name"]: one["span_id"] for one in sent}
    if tool == "opik":
        requests = server.sent_to("/feedback-scores", "PUT")
        return {one["name"]: one["id"] for r in requests for one in r.json["scores"]}
    matches = (
        (request, re.search(r"/traces/([^/]+)/assessments", request.path))
        for request in server.sent_to("/assessments")
    )
    return {r.json["assessment"]["assessment_name"]: match[1] for r, match in matches if match}


def traced(tool: str, server: LoopbackTool) -> bytes:
    """Return all that the tool's own tracer sent, as bytes."""
    is_score = ("/feedback", "/scores", "/span_annotations", "/feedback-scores", "/assessments")
    return b"".join(r.body for r in server.requests if not r.path.endswith(is_score))


@pytest.mark.parametrize("tool", SERVERS)
def test_the_scores_are_on_the_trace_of_the_run(tool: str, server: LoopbackTool) -> None:
    printed = run(f"scores_to_{tool}", server.url)
    assert "{'scores_sent': 1, 'scores_failed': 0}" in printed
    scores = received(tool, server)
    assert set(scores) == SCORES
    (trace_id,) = set(scores.values())
    in_bytes = bytes.fromhex(trace_id) if tool in ("langfuse", "phoenix") else trace_id.encode()
    assert in_bytes in traced(tool, server)


def test_langfuse_stores_what_is_worth_it(server: LoopbackTool) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    printed = run("keep_worthy_in_langfuse", server.url)
    assert "'held': 0" in printed
    spans = [
        span
        for request in server.sent_to("/otel/v1/traces")
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert "1,200 EUR" in str(spans)
    assert "I do not know" not in str(spans)
    assert len({span.trace_id for span in spans}) == 1
    assert f"'kept': {len(spans)}," in printed


def test_log_records_of_opentelemetry() -> None:
    printed = run("scores_to_opentelemetry")
    assert "{'scores_sent': 1, 'scores_failed': 0}" in printed
    decoder, records, at = json.JSONDecoder(), [], printed.find("{\n")
    while at >= 0:
        record, end = decoder.raw_decode(printed, at)
        records.append(record)
        at = printed.find("{\n", end)
    assert {one["attributes"]["gen_ai.evaluation.name"] for one in records} == SCORES
    (trace_id,) = {one["trace_id"] for one in records}
    assert int(trace_id, 16)


def test_only_what_is_worth_it_is_exported() -> None:
    printed = run("keep_worthy_traces")
    assert "2 runs, 1 exported" in printed
    assert "'held': 0" in printed
