"""Spans: OpenTelemetry's own parser reads them, and `import` makes the same run of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from kp_langchain import ReasoningTrace, TraceStore
from kp_langchain.exporting.conversations import openai_example
from kp_langchain.exporting.spans import spans_document
from kp_langchain.usage import ModelCall, ModelUsage, Usage
from tests.agents import ASK, QUESTION, agent, call, handler, say, shape
from tests.cli.made_runs import document
from tests.commands import cli_apart
from tests.exporting.conftest import (
    CASES,
    exported,
    exported_run,
    in_namespace,
    runs_in,
    scored,
)
from tests.exporting.test_conversations import FUNCTIONS, SUB_AGENT, any_trace
from tests.importing.ways import import_values

SAME = [name for name in CASES if name not in (
    # An import sees one call of a tool where there were several attempts, takes nothing for "", and
    # has no observation without a call.
    "a retry", "a call without an answer", "an answer without a call", "hostile names and texts",
)]  # fmt: skip


def parsed(value: Any) -> TracesData:
    """Return a document as OpenTelemetry reads it; its ids are hexadecimal there."""
    return json_format.Parse(json.dumps(value), TracesData())


def attributes_of(span: Any) -> dict[str, Any]:
    kinds = {one.key: one.value.WhichOneof("value") for one in span.attributes}
    return {one.key: getattr(one.value, kinds[one.key]) for one in span.attributes}


def test_every_case_is_read_by_opentelemetry(every_case: TraceStore) -> None:
    lines = exported("otlp")
    assert len(lines) == len(CASES)
    for line in lines:
        (resource,) = parsed(line).resource_spans
        root, *others = resource.scope_spans[0].spans
        own = attributes_of(root)
        assert own["gen_ai.operation.name"] == "invoke_agent"
        assert own["kp.trace_id"].startswith("kp:trace:")
        assert own["kp.score"] == pytest.approx(0.7)
        for span in others:
            assert span.parent_span_id == root.span_id
            assert root.start_time_unix_nano <= span.start_time_unix_nano
            assert span.start_time_unix_nano < span.end_time_unix_nano <= root.end_time_unix_nano


@pytest.mark.parametrize("name", SAME)
def test_imported_spans_are_the_same_run(name: str, tmp_path: Path) -> None:
    trace = ReasoningTrace.model_validate(document(1, domain="code", **CASES[name]))
    (imported,) = import_values([spans_document(exported_run(trace))], tmp_path)
    assert imported.scored is not None
    back = imported.scored.trace
    assert back.task.objective == trace.task.objective
    assert back.outcome.result_summary == trace.outcome.result_summary
    assert shape(back) == shape(trace)
    for before, after in zip(trace.steps, back.steps, strict=True):
        assert (after.content, after.input) == (before.content, before.input)
        if before.latency_ms is not None and before.tool is not None:
            assert after.latency_ms == pytest.approx(before.latency_ms, abs=0.01)


def test_runs_of_real_agents_come_back_by_the_command_with_domain_and_namespace() -> None:
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store)
        both = say("Both.", call("search", q="a"), call("add", a=1, b=2))
        for name in ("acme", None):
            play = agent(both, say("Again.", call("soft", x="1")), say("3 and a result"))
            metadata = {"kp_namespace": name} if name else {}
            play.invoke(ASK, {"callbacks": [watching], "metadata": metadata})
            assert watching.flush(60)
        before = {run.namespace: shape(run.trace) for run in store.runs() if run.trace}
    words = ("--all", "--per-task", "9", "--all-namespaces", "-o", "spans.jsonl")
    exported("otlp", *words)
    words = ("import", "spans.jsonl", "--database", "new.db")
    done = cli_apart(*words, KP_EMBEDDING_MODEL="/no/such/model")
    assert done.returncode == 0, done.stderr
    with TraceStore("new.db") as store:
        runs = store.runs()
        assert {run.namespace: shape(run.trace) for run in runs if run.trace} == before
        assert {run.domain for run in runs} == {"finance"}
        assert {run.objective for run in runs} == {QUESTION}


def test_what_stands_beside_is_in_the_attributes() -> None:
    answers = (ModelCall(step=0, model="gpt-x", input_tokens=5, output_tokens=2, is_reported=True),)
    model = ModelUsage(model="gpt-x", calls=1, reported_calls=1, input_tokens=5, output_tokens=2)
    trace = ReasoningTrace.model_validate(document(1, **CASES["an answer alone"]))
    run = exported_run(trace, model_calls=answers, usage=Usage(models=(model,)))
    spans = parsed(spans_document(run)).resource_spans[0].scope_spans[0].spans
    root, chat = map(attributes_of, spans)
    assert root["gen_ai.usage.input_tokens"] == chat["gen_ai.usage.input_tokens"] == 5
    assert chat["gen_ai.request.model"] == root["gen_ai.request.model"] == "gpt-x"
    assert json.loads(root["kp.usage"])["models"][0]["output_tokens"] == 2


TAKEN: dict[str, int] = {
    "input_tokens": 50, "output_tokens": 9, "cached_tokens": 20, "cache_write_tokens": 10,
    "reasoning_tokens": 4,
}  # fmt: skip


def test_an_import_of_spans_has_what_models_took_and_their_tools(tmp_path: Path) -> None:
    answers = (ModelCall(step=0, model="gpt-x", is_reported=True, **TAKEN),)
    trace = ReasoningTrace.model_validate(document(1, **CASES["a call"]))
    spans = spans_document(exported_run(trace, model_calls=answers, functions=FUNCTIONS))
    (imported,) = import_values([spans], tmp_path)
    assert imported.scored is not None
    assert imported.scored.usage is not None
    (model,) = (one for one in imported.scored.usage.models if one.reported_calls)
    assert {name: getattr(model, name) for name in TAKEN} == TAKEN
    with TraceStore(tmp_path / "imported.db") as store:
        (run,) = runs_in(store, is_everything=True)
    assert [one["function"]["name"] for one in openai_example(run)["tools"]] == ["find", "a_b"]


def test_the_provider_of_a_model_is_named_where_it_is_known() -> None:
    trace = ReasoningTrace.model_validate(document(1, **CASES["an answer alone"]))
    for provider in ("openai", ""):
        answer: Any = SimpleNamespace(**{**asdict(ModelCall(step=0)), "provider": provider})
        spans = spans_document(exported_run(trace, model_calls=(answer,)))
        for span in parsed(spans).resource_spans[0].scope_spans[0].spans:
            assert attributes_of(span).get("gen_ai.provider.name", "") == provider


def test_spans_of_a_sub_agent_are_inside_the_span_of_the_tool(tmp_path: Path) -> None:
    trace = ReasoningTrace.model_validate(document(1, steps=SUB_AGENT, answer="Two at 1.09."))
    value = spans_document(exported_run(trace))
    spans = parsed(value).resource_spans[0].scope_spans[0].spans
    names = {span.span_id: span.name for span in spans}
    inside = [(names.get(span.parent_span_id), span.name) for span in spans]
    assert inside == [
        (None, "invoke_agent agent"),
        ("invoke_agent agent", "chat"), ("invoke_agent agent", "execute_tool ask"),
        ("invoke_agent agent", "execute_tool rate"), ("execute_tool ask", "chat"),
        ("execute_tool ask", "execute_tool find"), ("execute_tool ask", "execute_tool find"),
        ("execute_tool ask", "chat"), ("invoke_agent agent", "chat"),
    ]  # fmt: skip
    ask = spans[2]
    for span in spans[4:8]:
        assert ask.start_time_unix_nano < span.start_time_unix_nano
        assert span.end_time_unix_nano < ask.end_time_unix_nano
    (imported,) = import_values([value], tmp_path)
    assert imported.scored is not None
    assert shape(imported.scored.trace) == shape(trace)


def test_a_namespace_is_an_attribute_that_an_import_reads(fill: Any, tmp_path: Path) -> None:
    fill(scored(1, CASES["a call"], **in_namespace("acme")))
    (line,) = exported("otlp")
    (imported,) = import_values([line], tmp_path)
    assert imported.scored is not None
    assert imported.scored.keys is not None
    assert imported.scored.keys.namespace == "acme"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_trace)
def test_any_trace_gives_valid_spans(trace: ReasoningTrace) -> None:
    text = json.dumps(spans_document(exported_run(trace)), ensure_ascii=False, allow_nan=False)
    value = json.loads(text.encode(errors="replace"))
    assert parsed(value).resource_spans
