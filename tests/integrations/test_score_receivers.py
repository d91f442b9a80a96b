"""Scores sent to tracing tools with the tools' own packages, to a server on loopback."""

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
from datetime import datetime
from importlib.metadata import version
from typing import Any

import httpx
import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel

from kp_langchain import (
    ConfigError,
    DomainPolicy,
    KPCallbackHandler,
    ScoredTrace,
    Settings,
    TraceStore,
)
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.integrations.langsmith import LangSmithScores
from kp_langchain.integrations.opentelemetry import OpenTelemetryScores
from kp_langchain.integrations.run_scores import run_scores, send_each
from kp_langchain.recording.score_receivers import new_receiver
from tests.agents import ScriptedChatModel, agent, asearch, call, say
from tests.commands import cli_apart
from tests.loopback_tools import LoopbackTool, Request

# The tools' packages use what is deprecated, and close their connections when they are collected.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.xdist_group("tools"),
]
RUNS = 16
TOOLS = ("langfuse", "langsmith", "mlflow", "opik", "phoenix", "opentelemetry")
SERVERS = TOOLS[:-1]
of_langfuse_5 = pytest.mark.skipif(
    int(version("langfuse").partition(".")[0]) < 5,
    reason="before version 5, scores are sent one by one and without a time",
)
DIMENSIONS = {"kp_complexity", "kp_novelty", "kp_tool_diversity", "kp_outcome_confidence"}


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


def question_in(text: str) -> str:
    match = re.search(r"question \d+", text)
    assert match, text[:300]
    return match[0]


def answer(request: Request) -> tuple[int, Any]:
    """What the servers of all tools answer, as far as their packages look at it."""
    path = request.path
    if path.endswith("/info"):
        limits = {
            "use_multipart_endpoint": True,
            "size_limit": 100,
            "size_limit_bytes": 20_971_520,
            "scale_up_nthreads_limit": 16,
            "scale_up_qsize_trigger": 1000,
            "scale_down_nempty_trigger": 4,
        }
        return 200, {"version": "0.12.0", "batch_ingest_config": limits}
    if path.endswith("/sessions"):
        project = {"name": "p", "start_time": "2026-01-01T00:00:00Z", "reference_dataset_id": None}
        return 200, [project | {"id": str(uuid.UUID(int=1)), "tenant_id": str(uuid.UUID(int=2))}]
    if path.endswith("/api/public/scores"):  # a list from version 5 of langfuse, one from 4
        return (202, {"message": "Accepted"}) if request.body[:1] == b"[" else (200, {"id": "s"})
    return 200, {}


class MLflowServer:
    """Keeps feedback under ids of its own, as MLflow's server does."""

    def __init__(self) -> None:
        self.assessments: dict[str, dict[str, Any]] = {}

    def __call__(self, request: Request) -> tuple[int, Any]:
        if match := re.search(r"/traces/([^/]+)/assessments(?:/(.+))?$", request.path):
            sent = request.json["assessment"]
            id_ = match[2] or f"a-{len(self.assessments)}"
            known = self.assessments.get(id_, {"trace_id": match[1]})
            self.assessments[id_] = known | sent | {"assessment_id": id_}
            return 200, {"assessment": self.assessments[id_]}
        if request.method == "GET" and (match := re.search(r"/traces/([^/]+)$", request.path)):
            own = [one for one in self.assessments.values() if one["trace_id"] == match[1]]
            location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": "0"}}
            info = {
                "trace_id": match[1],
                "trace_location": location,
                "request_time": "2026-01-01T00:00:00Z",
                "state": "OK",
                "assessments": own,
            }
            return 200, {"trace": {"trace_info": info}}
        if request.method == "POST" and request.path.endswith("/traces"):
            return 200, request.json
        return answer(request)


def langfuse(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    from langfuse import Langfuse
    from langfuse.langchain import CallbackHandler
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    key = f"pk-{uuid.uuid4().hex}"  # clients are kept by key, in the process
    client = Langfuse(public_key=key, secret_key="sk", base_url=server.url)  # noqa: S106

    def traces() -> dict[str, str]:
        found = {}
        for request in server.sent_to("/otel/v1/traces"):
            export = ExportTraceServiceRequest.FromString(request.body)
            for resource in export.resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        if not span.parent_span_id:
                            found[question_in(str(span.attributes))] = span.trace_id.hex()
        return found

    def scores() -> list[Received]:
        return [
            Received(
                one["id"],
                one["traceId"],
                one["name"],
                one["value"],
                one["comment"],
                one.get("observationId"),
            )
            for request in server.sent_to("/api/public/scores")
            for one in (request.json if isinstance(request.json, list) else [request.json])
        ]

    def span() -> AbstractContextManager[Any]:
        return client.start_as_current_observation(name="a request")

    return Tool([CallbackHandler(public_key=key)], client.flush, traces, scores, span)


def langsmith(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    from langchain_core.tracers import LangChainTracer
    from langsmith import Client, trace
    from langsmith.run_helpers import tracing_context

    monkeypatch.setenv("LANGSMITH_ENDPOINT", server.url)
    monkeypatch.setenv("LANGSMITH_API_KEY", "key")
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
            Received(
                one["id"],
                one["trace_id"],
                one["key"],
                one["score"],
                one["comment"],
                one["run_id"],
            )
            for one in sent
        ]

    @contextmanager
    def span() -> Iterator[None]:
        with tracing_context(enabled=True, client=client), trace("a request", client=client):
            yield

    tracer = LangChainTracer(project_name="p", client=client)
    return Tool([tracer], client.flush, traces, scores, span)


def mlflow(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    # By default its client retries for minutes.
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    import mlflow
    from mlflow.entities.trace_location import MlflowExperimentLocation
    from mlflow.langchain.langchain_tracer import MlflowLangchainTracer

    mlflow.set_tracking_uri(server.url)
    mlflow.tracing.set_destination(MlflowExperimentLocation(experiment_id="0"))
    backend = MLflowServer()
    server.answer = backend

    def traces() -> dict[str, str]:
        return {
            question_in(json.dumps(info["trace_metadata"])): info["trace_id"]
            for request in server.sent_to("/mlflow/traces")
            for info in [request.json["trace"]["trace_info"]]
        }

    def scores() -> list[Received]:
        return [
            Received(
                id_,
                one["trace_id"],
                one["assessment_name"],
                one["feedback"]["value"],
                one["rationale"],
                one.get("span_id"),
            )
            for id_, one in backend.assessments.items()
        ]

    def flush() -> None:
        mlflow.flush_trace_async_logging()

    def span() -> AbstractContextManager[Any]:
        return mlflow.start_span("a request")

    return Tool([MlflowLangchainTracer()], flush, traces, scores, span)


def opik(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setenv("OPIK_URL_OVERRIDE", f"{server.url}/api")
    monkeypatch.setenv("OPIK_SENTRY_ENABLE", "false")
    monkeypatch.setenv("OPIK_WORKSPACE", "default")
    from opik import Opik, set_global_client, start_as_current_span
    from opik.integrations.langchain import OpikTracer

    client = Opik(host=f"{server.url}/api", workspace="default", project_name="p")
    set_global_client(client)
    tracer = OpikTracer(project_name="p")
    # Its threads go on when the test has ended, and warn that there is no server any more.
    logging.getLogger("opik").propagate = False

    def traces() -> dict[str, str]:
        return {
            question_in(json.dumps(one["input"])): one["id"]
            for request in server.sent_to("/traces/batch")
            for one in request.json["traces"]
        }

    def scores() -> list[Received]:
        return [
            Received(
                f"{one['id']} {one['name']}",
                one["id"],
                one["name"],
                one["value"],
                one["reason"],
                one["id"] if "/spans/" in request.path else None,
            )
            for request in server.sent_to("/feedback-scores", "PUT")
            for one in request.json["scores"]
        ]

    def span() -> AbstractContextManager[Any]:
        return start_as_current_span("a request")

    return Tool([tracer], client.flush, traces, scores, span)


def spans_by_question(exporter: Any) -> dict[str, Any]:
    return {
        question_in(str(span.attributes["input.value"])): span
        for span in exporter.get_finished_spans()
        if span.parent is None
    }


def instrument() -> tuple[Any, Callable[[], AbstractContextManager[Any]]]:
    """Return what has the spans of OpenInference, and what opens a span of the program."""
    from openinference.instrumentation.langchain import LangChainInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    LangChainInstrumentor().instrument(tracer_provider=provider)
    return exporter, lambda: provider.get_tracer("a program").start_as_current_span("a request")


def phoenix(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    monkeypatch.setenv("PHOENIX_COLLECTOR_ENDPOINT", server.url)
    exporter, span = instrument()

    def traces() -> dict[str, str]:
        spans = spans_by_question(exporter)
        return {question: f"{span.context.span_id:016x}" for question, span in spans.items()}

    def scores() -> list[Received]:
        return [
            Received(
                f"{one['span_id']} {one['name']} {one['identifier']}",
                one["span_id"],
                one["name"],
                one["result"]["score"],
                one["result"]["explanation"],
                one["span_id"],
            )
            for request in server.sent_to("/span_annotations")
            for one in request.json["data"]
        ]

    return Tool([], lambda: None, traces, scores, span)


def opentelemetry(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

    exporter, span = instrument()
    records = InMemoryLogRecordExporter()
    logs = LoggerProvider()
    logs.add_log_record_processor(SimpleLogRecordProcessor(records))
    monkeypatch.setattr("opentelemetry._logs.get_logger_provider", lambda: logs)

    def traces() -> dict[str, str]:
        spans = spans_by_question(exporter)
        return {question: f"{span.context.trace_id:032x}" for question, span in spans.items()}

    def scores() -> list[Received]:
        emitted = [one.log_record for one in records.get_finished_logs()]
        assert {record.event_name for record in emitted} <= {"gen_ai.evaluation.result"}
        spans = {span.context.span_id for span in exporter.get_finished_spans()}
        assert {record.span_id for record in emitted} <= spans
        return [
            Received(
                str(record.attributes["kp.score.id"]),
                f"{record.trace_id:032x}",
                str(record.attributes["gen_ai.evaluation.name"]),
                record.attributes["gen_ai.evaluation.score.value"],
                str(record.attributes["gen_ai.evaluation.explanation"]),
                f"{record.span_id:016x}",
            )
            for record in emitted
        ]

    return Tool([], lambda: None, traces, scores, span)


@pytest.fixture
def server() -> Iterator[LoopbackTool]:
    with LoopbackTool(answer) as loopback:
        yield loopback


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from kp_langchain.recording.score_receivers import _named

    _named.cache_clear()  # a receiver holds on to its client
    yield
    _named.cache_clear()
    from openinference.instrumentation.langchain import LangChainInstrumentor

    if LangChainInstrumentor().is_instrumented_by_opentelemetry:
        LangChainInstrumentor().uninstrument()


def attach(name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Tool:
    tool: Tool = globals()[name](server, monkeypatch)
    return tool


async def ask(handlers: list[Any], number: int) -> None:
    answers = [
        say("I search.", *[call("asearch", q=f"q{number}")] * (number % 3 + 1)),
        *[say(f"Still thinking about {number}.", call("asearch", q="b"))] * (number % 2),
        say("done"),
    ]
    runnable = agent(*answers, tools=(asearch,))
    await runnable.ainvoke({"messages": [("user", f"question {number}")]}, {"callbacks": handlers})


def ask_at_once(handlers: list[Any], runs: int = RUNS) -> None:
    async def main() -> None:
        await asyncio.gather(*(ask(handlers, number) for number in range(runs)))

    asyncio.run(main())


def recorder(tool: str, scored: list[ScoredTrace], **options: Any) -> KPCallbackHandler:
    return KPCallbackHandler(
        on_scored=scored.append, send_scores_to=[tool], **{"store": "runs.db"} | options
    )


@pytest.mark.parametrize("name", TOOLS)
def test_concurrent_runs_get_their_own_scores(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = attach(name, server, monkeypatch)
    scored: list[ScoredTrace] = []
    handler = recorder(name, scored)
    ask_at_once([handler, *tool.handlers])
    assert handler.send(60)
    tool.flush()

    traces = tool.traces()
    assert len(set(traces.values())) == RUNS
    received = tool.scores()
    totals = {(one.trace_id, one.name): one for one in received}
    assert len(received) == len(totals) == RUNS * len(DIMENSIONS | {"kp_quality_score"})
    for run in scored:
        question = question_in(run.trace.task.objective)
        total = totals[traces[question], "kp_quality_score"]
        assert total.value == pytest.approx(run.breakdown.total, abs=1e-4), question
        assert run.breakdown.line() in total.comment
        for dimension, part in run.breakdown.dimensions.items():
            one = totals[traces[question], f"kp_{dimension}"]
            assert one.value == pytest.approx(part.value, abs=1e-4)
    stats = handler.stats()
    assert stats["scores_sent"] == stats["scored"] == RUNS
    assert stats["scores_failed"] == stats["scores_without_trace"] == stats["scores_dropped"] == 0


@pytest.mark.parametrize("name", TOOLS)
def test_a_late_verdict_replaces_what_was_sent(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = attach(name, server, monkeypatch)
    scored: list[ScoredTrace] = []
    handler = recorder(name, scored)
    ask_at_once([handler, *tool.handlers], runs=2)
    assert handler.send(60)
    tool.flush()
    before = {one.id: one for one in tool.scores()}
    first = scored[0]
    handler.report_outcome(first.run_id, success=False)
    assert handler.send(60)
    after = {one.id: one for one in tool.scores()}

    assert handler.stats()["scores_sent"] == 3
    assert after.keys() == before.keys()  # nothing stands twice
    rescored = next(run for run in scored if run.previous is not None)
    assert rescored.breakdown.total < first.breakdown.total
    traces = tool.traces()
    trace_id = traces[question_in(first.trace.task.objective)]
    changed = {one.name: one.value for one in after.values() if one.trace_id == trace_id}
    assert changed["kp_quality_score"] == pytest.approx(rescored.breakdown.total, abs=1e-4)
    assert changed["kp_outcome_confidence"] == 0.0
    others = [id_ for id_, one in after.items() if one.trace_id != trace_id]
    assert all(after[id_] == before[id_] for id_ in others)


@pytest.mark.parametrize("name", TOOLS)
def test_runs_in_one_trace_of_the_program_have_scores_of_their_own(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = attach(name, server, monkeypatch)
    scored: list[ScoredTrace] = []
    handler = recorder(name, scored)

    async def serve_a_request() -> None:
        with tool.span():
            await asyncio.gather(*(ask([handler, *tool.handlers], number) for number in range(3)))

    asyncio.run(serve_a_request())
    assert handler.send(60)
    handler.report_outcome(scored[0].run_id, success=False)
    assert handler.send(60)
    tool.flush()

    assert len({run.external_traces[name].trace_id for run in scored}) == 1
    received = tool.scores()
    by_span: dict[str | None, dict[str, Received]] = {}
    for one in received:
        by_span.setdefault(one.span_id, {})[one.name] = one
    assert len({one.id for one in received}) == 3 * len(DIMENSIONS | {"kp_quality_score"})
    for run in [*scored[1:3], scored[3]]:
        own = by_span[run.external_traces[name].span_id]
        assert run.breakdown.line() in own["kp_quality_score"].comment


@pytest.mark.parametrize("name", SERVERS)
def test_a_tool_that_refuses_costs_only_its_scores(
    name: str,
    server: LoopbackTool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tool = attach(name, server, monkeypatch)
    server.answer = lambda _: (503, {"detail": "a secret of the server"})
    scored: list[ScoredTrace] = []
    handler = recorder(name, scored)
    ask_at_once([handler, *tool.handlers], runs=2)
    handler.flush()
    assert len(scored) == 2
    assert handler.send(120)
    stats = handler.stats()
    assert (stats["scores_failed"], stats["scores_sent"], stats["scored"]) == (2, 0, 2)
    own = [record.getMessage() for record in caplog.records if record.name == "kp_langchain"]
    assert any(f"a score cannot be sent to {name}" in message for message in own)
    assert "secret" not in str(own)
    with TraceStore("runs.db") as store:
        assert store.count() == 2


@of_langfuse_5
def test_scores_that_langfuse_takes_in_part_have_failed(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tool = attach("langfuse", server, monkeypatch)
    results = {"accepted": 4, "rejected": 1, "errors": [{"message": "a secret of the server"}]}
    server.answer = lambda request: (207, results) if "scores" in request.path else (200, {})
    handler = recorder("langfuse", [])
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    stats = handler.stats()
    assert (stats["scores_failed"], stats["scores_sent"]) == (1, 0)
    assert len(server.sent_to("/api/public/scores")) == 1  # its API asks not to repeat these
    assert "KPError: Langfuse rejected 1 of 5 scores" in caplog.text
    assert "secret" not in caplog.text


@of_langfuse_5
def test_langfuse_gets_the_same_time_and_the_environment_with_each_score(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGFUSE_TRACING_ENVIRONMENT", "staging")
    tool = attach("langfuse", server, monkeypatch)
    scored: list[ScoredTrace] = []
    handler = recorder("langfuse", scored)
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    handler.report_outcome(scored[0].run_id, success=False)
    assert handler.send(60)
    first, second = (request.json for request in server.sent_to("/api/public/scores"))
    # Langfuse replaces a score only if its time is the same as well.
    times = {one["timestamp"] for one in (*first, *second)}
    assert [datetime.fromisoformat(one) for one in times] == [scored[0].trace.metadata.created_at]
    assert {one["environment"] for one in (*first, *second)} == {"staging"}


def test_each_project_of_langfuse_gets_the_scores_of_its_own_runs(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackTool(answer) as other_server:
        tools = [langfuse(server, monkeypatch), langfuse(other_server, monkeypatch)]
        scored: list[ScoredTrace] = []
        handler = recorder("langfuse", scored)
        for number, tool in enumerate(tools):
            asyncio.run(ask([handler, *tool.handlers], number))
        assert handler.send(60)
        for run in scored[:2]:
            handler.report_outcome(run.run_id, success=False)
        assert handler.send(60)
        for number, tool in enumerate(tools):
            tool.flush()
            [trace_id] = tool.traces().values()
            assert question_in(scored[number].trace.task.objective) == f"question {number}"
            assert [one.trace_id for one in tool.scores()] == [trace_id] * 2 * 5
        for run, tool in zip(scored[:2], tools, strict=True):  # a receiver that saw neither run
            new_receiver("langfuse").send(run, run.external_traces["langfuse"])
            assert len(tool.scores()) == 3 * 5
    assert handler.stats()["scores_failed"] == 0


def test_a_langfuse_trace_of_a_chosen_id_gets_the_scores_of_its_run(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langfuse.langchain import CallbackHandler

    tool = attach("langfuse", server, monkeypatch)
    key = tool.handlers[0]._langfuse_client._resources.public_key
    trace_id = uuid.uuid4().hex
    tracer = CallbackHandler(public_key=key, trace_context={"trace_id": trace_id})
    handler = recorder("langfuse", [])
    ask_at_once([handler, tracer], runs=1)
    assert handler.send(60)
    assert {(one.trace_id, one.span_id) for one in tool.scores()} == {(trace_id, None)}


def test_log_records_carry_the_spans_of_langfuse(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor

    tool = attach("langfuse", server, monkeypatch)
    records = InMemoryLogRecordExporter()
    logs = LoggerProvider()
    logs.add_log_record_processor(SimpleLogRecordProcessor(records))
    scored: list[ScoredTrace] = []
    handler = KPCallbackHandler(
        store=None, on_scored=scored.append, send_scores_to=[OpenTelemetryScores(logs)]
    )
    ask_at_once([handler, *tool.handlers], runs=3)
    assert handler.send(60)
    tool.flush()
    traces = tool.traces()
    explanations = {
        str((one.log_record.attributes or {})["gen_ai.evaluation.explanation"]): (
            f"{one.log_record.trace_id:032x}"
        )
        for one in records.get_finished_logs()
    }
    assert len(scored) == 3
    for run in scored:
        (trace_id,) = {id_ for text, id_ in explanations.items() if run.breakdown.line() in text}
        assert trace_id == traces[question_in(run.trace.task.objective)]


def test_langfuse_without_tracing_has_no_trace(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGFUSE_TRACING_ENABLED", "false")
    tool = attach("langfuse", server, monkeypatch)
    handler = recorder("langfuse", [])
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    assert handler.stats()["scores_without_trace"] == 1
    assert not server.sent_to("/api/public/scores")


@pytest.mark.parametrize("name", ["langfuse", "opik", "phoenix"])
def test_each_attempt_is_one_request(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a tool's package tries again itself, a dead server would hold up the process."""
    tool = attach(name, server, monkeypatch)
    server.answer = lambda request: (
        (503, {}) if re.search("scores|annotations", request.path) else answer(request)
    )
    handler = recorder(name, [])
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    assert handler.stats()["scores_failed"] == 1
    sent = [one for one in server.requests if re.search("scores|annotations", one.path)]
    assert len(sent) == 4


@pytest.mark.parametrize("name", TOOLS)
def test_a_run_that_the_tool_does_not_record_is_counted(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(name, server, monkeypatch)
    from openinference.instrumentation.langchain import LangChainInstrumentor

    if LangChainInstrumentor().is_instrumented_by_opentelemetry:
        LangChainInstrumentor().uninstrument()
    scored: list[ScoredTrace] = []
    handler = recorder(name, scored)
    ask_at_once([handler], runs=1)
    assert handler.send(60)
    assert handler.stats()["scores_without_trace"] == 1
    assert scored[0].external_traces == {}
    assert not server.sent_to("scores")
    assert not server.sent_to("/feedback")


def test_where_a_run_is_recorded_is_stored_and_deleted_with_it() -> None:
    class OddIds:
        name = "elsewhere"

        def find_trace(self, root_id: uuid.UUID, parent_id: uuid.UUID) -> ExternalTrace:
            return ExternalTrace(f"t-{root_id}", "s\x00", None, is_part=True)

        def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
            sent.append((scored, external))

    sent: list[tuple[ScoredTrace, ExternalTrace]] = []
    handler = KPCallbackHandler(store="runs.db", send_scores_to=[OddIds()])
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    ((scored, external),) = sent
    assert external == ExternalTrace(f"t-{scored.run_id}", "s\x00", None, is_part=True)
    with TraceStore("runs.db") as store:
        (change,) = store.report_outcome(scored.trace.id, success=False)
        assert change.changed
    handler.report_outcome(scored.trace.id, success=True)
    assert handler.send(300)
    assert sent[-1][1] == ExternalTrace(f"t-{scored.run_id}", "s\ufffd", None, is_part=True)
    assert sent[-1][0].stored_id == scored.trace.id


def test_a_receiver_that_raises_while_the_run_is_under_way_harms_nobody() -> None:
    class Broken:
        name = "broken"

        def find_trace(self, root_id: uuid.UUID, parent_id: uuid.UUID) -> ExternalTrace | None:
            raise SystemExit

        def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
            raise AssertionError

    handler = KPCallbackHandler(store=None, send_scores_to=[Broken()])
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    stats = handler.stats()
    assert stats["scored"] == stats["scores_without_trace"] == 1
    assert stats["callback_errors"] > 0


def not_found() -> httpx.HTTPStatusError:
    request = httpx.Request("PUT", "http://127.0.0.1/scores")
    return httpx.HTTPStatusError("absent", request=request, response=httpx.Response(404))


class Elsewhere:
    """Has a trace of each run, and fails to take in the first scores."""

    name = "elsewhere"

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.sent: list[ScoredTrace] = []

    def find_trace(self, root_id: uuid.UUID, parent_id: uuid.UUID) -> ExternalTrace:
        return ExternalTrace(str(root_id))

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        if self.errors:
            raise self.errors.pop(0)
        assert external.trace_id == str(scored.run_id)
        self.sent.append(scored)


def test_a_chain_without_model_or_tool_is_found_by_what_begins_inside_it() -> None:
    inner = RunnableLambda(lambda text: text, name="inner")
    elsewhere = Elsewhere()
    handler = KPCallbackHandler(store=None, send_scores_to=[elsewhere])
    (inner | inner | ScriptedChatModel([say("a")])).invoke("a", {"callbacks": [handler]})
    assert handler.send(300)
    assert len(elsewhere.sent) == handler.stats()["scores_sent"] == 1


@pytest.mark.parametrize("name", ["phoenix", "opentelemetry"])
def test_a_model_or_function_with_nothing_inside_is_found_as_it_ends(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = attach(name, server, monkeypatch)
    scored: list[ScoredTrace] = []
    handler = recorder(name, scored)
    model = ScriptedChatModel([say("a"), say("b")])
    model.invoke("question 1", {"callbacks": [handler]})
    asyncio.run(model.ainvoke("question 2", {"callbacks": [handler]}))
    assert handler.send(300)
    assert handler.stats()["scores_sent"] == 2
    traces = tool.traces()
    for run in scored:
        trace = traces[question_in(run.trace.task.objective)]
        own = [one for one in tool.scores() if run.breakdown.line() in one.comment]
        assert [one.trace_id for one in own] == [trace]


@pytest.mark.parametrize("name", TOOLS)
def test_the_trace_of_a_chain_of_few_steps_is_found(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = attach(name, server, monkeypatch)
    model = ScriptedChatModel([say("a")] * 6)
    chains: list[Any] = [
        ChatPromptTemplate.from_template("{text}") | model,
        RunnableLambda(lambda _: model.invoke("b")),
        RunnableParallel(a=model, b=model),
    ]
    handler = recorder(name, [])
    for number, chain in enumerate(chains):
        text: Any = {"text": f"question {number}"} if number == 0 else f"question {number}"
        chain.invoke(text, {"callbacks": [handler, *tool.handlers]})
    assert handler.send(60)
    tool.flush()
    assert handler.stats()["scores_sent"] == 3
    places = {(one.trace_id, one.span_id) for one in tool.scores()}
    assert len(places) == 3
    if name != "phoenix":  # there, the spans stand in the place of traces
        assert {trace_id for trace_id, _ in places} == set(tool.traces().values())


def test_scores_go_where_the_tracer_of_langsmith_sends_traces(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackTool(answer) as elsewhere:
        tool = attach("langsmith", elsewhere, monkeypatch)
        monkeypatch.setenv("LANGSMITH_ENDPOINT", server.url)
        handler = recorder("langsmith", [])
        ask_at_once([handler, *tool.handlers], runs=1)
        assert handler.send(60)
        assert len(tool.scores()) == 5
    assert not server.sent_to("/feedback")


def test_what_langsmith_refuses_has_failed_also_with_a_client_that_sends_later(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from langsmith import Client

    tool = attach("langsmith", server, monkeypatch)
    server.answer = lambda request: (
        (422, {"detail": "a secret"}) if "feedback" in request.path else answer(request)
    )
    receiver = LangSmithScores(Client(api_url=server.url, api_key="key"))
    policy = DomainPolicy(threshold=0.0)
    handler = KPCallbackHandler(store=None, policy=policy, send_scores_to=[receiver])
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    assert handler.stats()["contributed"] == handler.stats()["scores_failed"] == 1
    assert "secret" not in caplog.text


@pytest.mark.parametrize("name", ["langsmith", "phoenix", "opentelemetry"])
def test_a_trace_that_is_not_in_the_sample_gets_no_scores(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tool = attach(name, server, monkeypatch)
    for tracer in tool.handlers:  # LangSmith's; its package reads the environment once
        tracer.client.tracing_sample_rate = 0.0
    handler = recorder(name, [])
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    assert handler.stats()["scores_without_trace"] == 1
    assert not tool.scores()


def test_scores_of_one_langfuse_project_are_not_sent_to_another(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = attach("langfuse", server, monkeypatch)
    scored: list[ScoredTrace] = []
    handler = recorder("langfuse", scored)
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    sent = len(server.sent_to("/scores"))
    with LoopbackTool(answer) as elsewhere:
        later = cli_apart(
            *("label", scored[0].trace.id, "--failure", "--database", "runs.db"),
            KP_SEND_SCORES_TO="langfuse",
            LANGFUSE_PUBLIC_KEY="pk-another",
            LANGFUSE_SECRET_KEY="sk",  # noqa: S106
            LANGFUSE_BASE_URL=elsewhere.url,
        )
        assert later.returncode == 0, later.stderr
        words = " ".join((later.stdout + later.stderr).split())
        assert (
            "Scores sent to langfuse: 0 of 1 (KPError: the run is in the Langfuse project" in words
        )
        assert not elsewhere.sent_to("/scores")
    assert len(server.sent_to("/scores")) == sent


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("name", ["langsmith", "phoenix"])
def test_a_forked_child_has_a_client_of_its_own(
    name: str, server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach(name, server, monkeypatch)
    receiver: Any = new_receiver(name)
    connect = receiver._connected if name == "phoenix" else lambda: receiver._sending_client(None)
    client = connect()
    assert connect() is client
    child = os.fork()
    if child == 0:
        os._exit(connect() is client)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_tool_that_answers_again_is_tried_as_often_as_before() -> None:
    absent = not_found()
    elsewhere = Elsewhere(*[OSError("no answer")] * 4, absent, absent)
    handler = KPCallbackHandler(store=None, send_scores_to=[elsewhere])
    for _ in range(3):  # no answer; an answer, if not the right one; taken in the second time
        ask_at_once([handler], runs=1)
        assert handler.send(300)
    stats = handler.stats()
    assert (stats["scores_failed"], stats["scores_sent"]) == (2, 1)


def test_an_mlflow_trace_that_is_not_there_yet_is_tried_again(
    server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = attach("mlflow", server, monkeypatch)
    backend, absences = server.answer, iter(range(5))

    def without_trace(request: Request) -> tuple[int, Any]:
        is_read = request.method == "GET" and "/traces/" in request.path
        if is_read and next(absences, None) is not None:
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no trace"}
        return backend(request)

    server.answer = without_trace
    handler = recorder("mlflow", [])
    ask_at_once([handler, *tool.handlers], runs=2)
    assert handler.send(60)
    tool.flush()
    stats = handler.stats()
    assert (stats["scores_failed"], stats["scores_sent"]) == (1, 1)


def test_where_a_verdict_came_from_is_redacted() -> None:
    elsewhere = Elsewhere()
    handler = KPCallbackHandler(store="runs.db", send_scores_to=[elsewhere])
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    with TraceStore("runs.db") as store:
        id_ = elsewhere.sent[0].trace.id
        store.report_outcome(id_, success=True, confidence=0.7, source="ann@example.com")
        scored = store.scored(id_)
    assert scored is not None
    comments = {one.name: one.comment for one in run_scores(scored)}
    assert "ann@" not in str(comments)
    assert comments["kp_outcome_confidence"].startswith("confidence 0.70 (")
    first = {one.name: one.comment for one in run_scores(elsewhere.sent[0])}
    assert first["kp_outcome_confidence"] == "confidence 0.80 (default), succeeded; weight 0.25"


def test_a_tool_that_does_not_answer_is_tried_less_by_all_handlers() -> None:
    elsewhere = Elsewhere(*[OSError("no answer")] * 99)
    handlers = [KPCallbackHandler(store=None, send_scores_to=[elsewhere]) for _ in range(4)]
    for handler in handlers:
        ask_at_once([handler], runs=1)
        assert handler.send(300)
    assert sum(handler.stats()["scores_failed"] for handler in handlers) == 4
    assert 99 - len(elsewhere.errors) == 4 + 3


def test_a_receiver_that_exits_or_returns_what_is_no_trace_is_counted() -> None:
    class NoTrace(Elsewhere):
        name = "no_trace"

        def find_trace(self, root_id: uuid.UUID, parent_id: uuid.UUID) -> Any:
            return str(root_id)

    exits: list[Any] = [SystemExit()] * 4
    handler = KPCallbackHandler(store="runs.db", send_scores_to=[Elsewhere(*exits), NoTrace()])
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    stats = handler.stats()
    assert stats["scores_failed"] == stats["scores_without_trace"] == stats["scored"] == 1
    assert stats["scores_queued"] == 0
    assert stats["callback_errors"] > 0
    with TraceStore("runs.db") as store:
        assert store.count() == 1


def test_a_score_that_fails_keeps_no_other_from_being_sent() -> None:
    scores: Any = list(range(5))
    sent: list[int] = []

    def send(score: Any) -> None:
        if score == 2:
            raise ValueError("two")
        sent.append(score)

    with pytest.raises(ValueError, match="two"):
        send_each(send, scores)
    assert sorted(sent) == [0, 1, 3, 4]


def test_a_trace_that_the_tool_does_not_have_yet_costs_no_other_run_its_attempts() -> None:
    elsewhere = Elsewhere(*[not_found()] * 5)
    handler = KPCallbackHandler(store=None, send_scores_to=[elsewhere])
    ask_at_once([handler], runs=2)
    assert handler.send(300)
    stats = handler.stats()
    assert (stats["scores_failed"], stats["scores_sent"]) == (1, 1)


def test_the_settings_name_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_SEND_SCORES_TO", "langsmith")
    assert Settings().send_scores_to == ("langsmith",)
    handler = KPCallbackHandler(store=None)
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    assert handler.stats()["scores_without_trace"] == 1
    quiet = KPCallbackHandler(store=None, send_scores_to=[])
    ask_at_once([quiet], runs=1)
    assert quiet.send(300)
    assert quiet.stats()["scores_without_trace"] == 0


@pytest.mark.parametrize(
    ("receivers", "message"),
    [
        (["langsmit"], "did you mean 'langsmith'"),
        (["elsewhere"], "choose from langsmith, langfuse"),
        ("langsmith", "give a list such as"),
        ([3], "give one of langsmith"),
        ([OpenTelemetryScores(), "opentelemetry"], "names a tool twice"),
    ],
)
def test_what_cannot_be_a_receiver_is_refused(receivers: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KPCallbackHandler(store=None, send_scores_to=receivers)
