"""Tracing tools, each driven with its own package and tracer, and a server that answers for them.

Imported by the benchmarks of the receivers, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kp_langchain import KPCallbackHandler, ScoredTrace
from tests.agents import agent, asearch, call, handler, say
from tests.loopback_tools import LoopbackTool, Request, spans_in_memory

# By default its client retries for minutes, also in threads that go on when a test has ended, and
# a later test that waits for what it traced itself would wait for them.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

TOOLS = ("langfuse", "langsmith", "mlflow", "opik", "phoenix", "opentelemetry")
SERVERS = TOOLS[:-1]
SCORES = {
    "kp_quality_score", "kp_complexity", "kp_novelty", "kp_tool_diversity", "kp_outcome_confidence",
}  # fmt: skip


@dataclass(frozen=True)
class Received:
    """A score as a tool received it: its id, or what makes it one with an earlier score."""

    id: str
    trace_id: str
    name: str
    value: float
    comment: str
    span_id: str | None = None


@dataclass
class Tool:
    """One tool: its tracer, and how to read what its server got.

    Attributes:
        handlers: Its handlers, to be attached to a run.
        flush: Has its tracer send all traces.
        traces: Returns its id of each trace by the question that was asked in it.
        scores: Returns the scores that it received, in order.
        span: Opens a span, as a program does that traces more than its agents.
    """

    handlers: list[Any]
    flush: Callable[[], object]
    traces: Callable[[], dict[str, str]]
    scores: Callable[[], list[Received]]
    span: Callable[[], AbstractContextManager[Any]]


class ToolServer:
    """What the servers of all tools answer, as far as their packages look at it.

    That of MLflow keeps feedback under ids of its own.
    """

    def __init__(self) -> None:
        self.assessments: dict[str, dict[str, Any]] = {}

    def __call__(self, request: Request) -> tuple[int, Any]:
        path = request.path
        if "experiments" in path:
            experiment = {"experiment_id": "0", "name": "agents", "lifecycle_stage": "active"}
            return 200, {"experiment": experiment, "experiment_id": "0"}
        if "mlflow" in path:
            return self._mlflow(request)
        if path.endswith("/info"):
            limits = {
                "use_multipart_endpoint": True, "size_limit": 100, "size_limit_bytes": 20_971_520,
                "scale_up_nthreads_limit": 16, "scale_up_qsize_trigger": 1000,
                "scale_down_nempty_trigger": 4,
            }  # fmt: skip
            return 200, {"version": "0.12.0", "batch_ingest_config": limits}
        if path.endswith("/sessions"):
            ids = {"id": str(uuid.UUID(int=1)), "tenant_id": str(uuid.UUID(int=2))}
            times = {"start_time": "2026-01-01T00:00:00Z", "reference_dataset_id": None}
            return 200, [{"name": "p"} | ids | times]
        if path.endswith("/api/public/scores"):
            return 202, {"message": "Accepted"}
        return 200, {}

    def _mlflow(self, request: Request) -> tuple[int, Any]:
        if match := re.search(r"/traces/([^/]+)/assessments(?:/(.+))?$", request.path):
            sent = request.json["assessment"]
            id_ = match[2] or f"a-{len(self.assessments)}"
            known = self.assessments.get(id_, {"trace_id": match[1]})
            self.assessments[id_] = known | sent | {"assessment_id": id_}
            return 200, {"assessment": self.assessments[id_]}
        if request.method == "GET" and (match := re.search(r"/traces/([^/]+)$", request.path)):
            own = [one for one in self.assessments.values() if one["trace_id"] == match[1]]
            return 200, mlflow_trace(match[1], own)
        is_trace = request.method == "POST" and request.path.endswith("/traces")
        return 200, request.json if is_trace else {}


def mlflow_trace(trace_id: str, assessments: list[dict[str, Any]]) -> dict[str, Any]:
    """A trace as MLflow's server has it."""
    location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
    info = {
        "trace_id": trace_id, "trace_location": location, "state": "OK",
        "request_time": "2026-01-01T00:00:00Z", "assessments": assessments,
    }  # fmt: skip
    return {"trace": {"trace_info": info}}


def environment_of(name: str, url: str) -> dict[str, str]:
    """Return what tells the package of a tool where its server is."""
    return {
        "langsmith": {"LANGSMITH_ENDPOINT": url, "LANGSMITH_API_KEY": "key"},
        "langfuse": {
            "LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_BASE_URL": url,
            "LANGFUSE_HOST": url,
        },
        "phoenix": {"PHOENIX_COLLECTOR_ENDPOINT": url},
        "opik": {
            "OPIK_URL_OVERRIDE": f"{url}/api", "OPIK_SENTRY_ENABLE": "false",
            "OPIK_WORKSPACE": "default",
        },
        "mlflow": {"MLFLOW_TRACKING_URI": url},
        "opentelemetry": {},
    }[name]  # fmt: skip


def question_in(text: str) -> str:
    match = re.search(r"question \d+", text)
    assert match, text[:300]
    return match[0]


# ------------------------------------------------------------------ the tracer of each tool


def attach(name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Return a tool whose tracer and scores reach a server."""
    for variable, value in environment_of(name, server.url).items():
        if not (name == "langfuse" and variable.startswith("LANGFUSE")):
            monkeypatch.setenv(variable, value)
    tool: Tool = globals()[f"_{name}"](server, monkeypatch)
    return tool


def new_langfuse(url: str, **options: Any) -> tuple[str, Any]:
    """Return a client and its key; clients are kept by key, in the process."""
    from langfuse import Langfuse

    key = f"pk-{uuid.uuid4().hex}"
    return key, Langfuse(public_key=key, secret_key="sk", base_url=url, **options)  # noqa: S106


def _langfuse(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    from langfuse.langchain import CallbackHandler

    key, client = new_langfuse(server.url)

    def traces() -> dict[str, str]:
        roots = [span for span in langfuse_spans(server) if not span.parent_span_id]
        return {question_in(str(span.attributes)): span.trace_id.hex() for span in roots}

    def scores() -> list[Received]:
        sent = [one for r in server.sent_to("/api/public/scores") for one in r.json]
        return [
            Received(one["id"], one["traceId"], one["name"], one["value"], one["comment"],
                     one.get("observationId"))
            for one in sent
        ]  # fmt: skip

    def span() -> AbstractContextManager[Any]:
        manager: AbstractContextManager[Any] = client.start_as_current_observation(name="a request")
        return manager

    return Tool([CallbackHandler(public_key=key)], client.flush, traces, scores, span)


def langfuse_spans(server: LoopbackTool) -> list[Any]:
    """Return the spans that Langfuse's tracer sent."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return [
        span
        for request in server.sent_to("/otel/v1/traces")
        for resource in ExportTraceServiceRequest.FromString(request.body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _langsmith(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    from langchain_core.tracers import LangChainTracer
    from langsmith import Client, trace
    from langsmith.run_helpers import tracing_context

    client = Client(api_url=server.url, api_key="key")

    def traces() -> dict[str, str]:
        sent = b"".join(request.body for request in server.sent_to("/runs/multipart"))
        roots = re.compile(rb'\{"id":"([-0-9a-f]{36})"[^\r]*"trace_id":"\1"')
        found = {}
        for match in roots.finditer(sent):
            inputs = sent.partition(b'name="post.' + match[1] + b'.inputs"')[2]
            found[question_in(inputs.decode(errors="replace"))] = match[1].decode()
        return found

    def scores() -> list[Received]:
        sent = [request.json for request in server.sent_to("/feedback")]
        assert all(one["session_id"] == str(uuid.UUID(int=1)) for one in sent)
        return [
            Received(one["id"], one["trace_id"], one["key"], one["score"], one["comment"],
                     one["run_id"])
            for one in sent
        ]  # fmt: skip

    @contextmanager
    def span() -> Iterator[None]:
        with tracing_context(enabled=True, client=client), trace("a request", client=client):
            yield

    tracer = LangChainTracer(project_name="p", client=client)
    return Tool([tracer], client.flush, traces, scores, span)


def _mlflow(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    import mlflow
    from mlflow.entities.trace_location import MlflowExperimentLocation
    from mlflow.langchain.langchain_tracer import MlflowLangchainTracer

    mlflow.set_tracking_uri(server.url)
    mlflow.tracing.set_destination(MlflowExperimentLocation(experiment_id="0"))
    backend = server.answer = ToolServer()

    def traces() -> dict[str, str]:
        sent = [one.json["trace"]["trace_info"] for one in server.sent_to("/mlflow/traces")]
        return {question_in(json.dumps(one["trace_metadata"])): one["trace_id"] for one in sent}

    def scores() -> list[Received]:
        return [
            Received(id_, one["trace_id"], one["assessment_name"], one["feedback"]["value"],
                     one["rationale"], one.get("span_id"))
            for id_, one in backend.assessments.items()
        ]  # fmt: skip

    def span() -> AbstractContextManager[Any]:
        return mlflow.start_span("a request")

    flush = mlflow.flush_trace_async_logging
    return Tool([MlflowLangchainTracer()], lambda: flush(), traces, scores, span)


def _opik(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    from opik import Opik, set_global_client, start_as_current_span
    from opik.integrations.langchain import OpikTracer

    client = Opik(host=f"{server.url}/api", workspace="default", project_name="p")
    set_global_client(client)
    tracer = OpikTracer(project_name="p")
    # Its threads go on when the test has ended, and warn that there is no server any more.
    logging.getLogger("opik").propagate = False

    def traces() -> dict[str, str]:
        sent = [one for r in server.sent_to("/traces/batch") for one in r.json["traces"]]
        return {question_in(json.dumps(one["input"])): one["id"] for one in sent}

    def scores() -> list[Received]:
        return [
            Received(f"{one['id']} {one['name']}", one["id"], one["name"], one["value"],
                     one["reason"], one["id"] if "/spans/" in request.path else None)
            for request in server.sent_to("/feedback-scores", "PUT")
            for one in request.json["scores"]
        ]  # fmt: skip

    def span() -> AbstractContextManager[Any]:
        return start_as_current_span("a request")

    return Tool([tracer], client.flush, traces, scores, span)


def instrument() -> tuple[Any, Callable[[], AbstractContextManager[Any]]]:
    """Return what has the spans of OpenInference, and what opens a span of the program."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    exporter, provider = spans_in_memory()
    LangChainInstrumentor().instrument(tracer_provider=provider)
    return exporter, lambda: provider.get_tracer("a program").start_as_current_span("a request")


def uninstrument() -> None:
    """Take OpenInference's tracer away, if it is there."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    if LangChainInstrumentor().is_instrumented_by_opentelemetry:
        LangChainInstrumentor().uninstrument()


def _roots(exporter: Any) -> dict[str, Any]:
    spans = [span for span in exporter.get_finished_spans() if span.parent is None]
    return {question_in(str(span.attributes["input.value"])): span for span in spans}


def _phoenix(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    exporter, span = instrument()

    def traces() -> dict[str, str]:
        roots = _roots(exporter).items()
        return {question: f"{span.context.span_id:016x}" for question, span in roots}

    def scores() -> list[Received]:
        sent = [one for r in server.sent_to("/span_annotations") for one in r.json["data"]]
        return [
            Received(f"{one['span_id']} {one['name']} {one['identifier']}", one["span_id"],
                     one["name"], one["result"]["score"], one["result"]["explanation"],
                     one["span_id"])
            for one in sent
        ]  # fmt: skip

    return Tool([], lambda: None, traces, scores, span)


def log_records() -> tuple[Any, Any]:
    """Return OpenTelemetry's provider of loggers, and what has their records."""
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

    records, provider = InMemoryLogRecordExporter(), LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(records))
    return provider, records


def _opentelemetry(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    exporter, span = instrument()
    logs, records = log_records()
    monkeypatch.setattr("opentelemetry._logs.get_logger_provider", lambda: logs)

    def traces() -> dict[str, str]:
        roots = _roots(exporter).items()
        return {question: f"{span.context.trace_id:032x}" for question, span in roots}

    def scores() -> list[Received]:
        emitted = [one.log_record for one in records.get_finished_logs()]
        assert {record.event_name for record in emitted} <= {"gen_ai.evaluation.result"}
        spans = {span.context.span_id for span in exporter.get_finished_spans()}
        assert {record.span_id for record in emitted} <= spans
        return [received_record(record) for record in emitted]

    return Tool([], lambda: None, traces, scores, span)


def received_record(record: Any) -> Received:
    """Return the score that a log record states."""
    stated = {name.rpartition("evaluation.")[2]: one for name, one in record.attributes.items()}
    trace_id, span_id = f"{record.trace_id:032x}", f"{record.span_id:016x}"
    return Received(
        str(stated["kp.score.id"]), trace_id, str(stated["name"]), stated["score.value"],
        str(stated["explanation"]), span_id,
    )  # fmt: skip


# ------------------------------------------------------------------ runs


async def ask(handlers: list[Any], number: int) -> None:
    answers = [
        say("I search.", *[call("asearch", q=f"q{number}")] * (number % 3 + 1)),
        *[say(f"Still thinking about {number}.", call("asearch", q="b"))] * (number % 2),
        say("done"),
    ]
    runnable = agent(*answers, tools=(asearch,))
    await runnable.ainvoke({"messages": [("user", f"question {number}")]}, {"callbacks": handlers})


def ask_at_once(handlers: list[Any], runs: int) -> None:
    async def main() -> None:
        await asyncio.gather(*(ask(handlers, number) for number in range(runs)))

    asyncio.run(main())


def recorder(tool: object, scored: list[ScoredTrace], **options: Any) -> KPCallbackHandler:
    options = {"store": "runs.db", "send_scores_to": [tool], **options}
    return handler(on_scored=scored.append, **options)
