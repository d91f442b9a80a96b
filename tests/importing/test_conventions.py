"""Spans, runs and messages as they are documented, written by hand; the keys of runs; any content.

What is in the golden file of imports (`python -m tests.golden --only imports`) is not repeated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import DomainPolicy, ScoredTrace, Scorer, Settings, TraceStore
from kp_langchain.archive.sources import read_values
from kp_langchain.gate.run import Run
from kp_langchain.importing.importer import FileReader, Imported, Importer
from kp_langchain.importing.recorded_run import RecordedRun, Unusable
from kp_langchain.run_keys import RunKeys
from tests.agents import ASK, handler, searching, shape
from tests.importing.spans import TRACE, genai_spans, lines, span
from tests.importing.ways import import_values, traced

SEARCHED = ["thought", "call search", "saw search", "thought"]


def import_one(values: list[Any], folder: Path) -> ScoredTrace:
    (imported,) = import_values(values, folder)
    assert imported.scored is not None, imported.fate
    return imported.scored


def test_what_the_golden_file_of_imports_does_not_hold_of_spans(tmp_path: Path) -> None:
    scored = import_one(lines(*genai_spans()), tmp_path)
    assert scored.trace.steps[2].latency_ms == pytest.approx(10)
    assert scored.trace.metadata.created_at.timestamp() == pytest.approx(1_700_000_000)
    assert scored.external_traces["opentelemetry"].trace_id == TRACE
    failed = genai_spans(
        having={"error.type": "builtins.TimeoutError"},
        status={"code": 2, "message": "too slow"},
    )
    (tmp_path / "failed").mkdir()
    trace = import_one(lines(*failed), tmp_path / "failed").trace
    assert shape(trace) == ["thought", "call search", "recovered search", "thought"]
    assert trace.steps[2].content == "TimeoutError: too slow"


def test_spans_of_any_convention_say_what_a_model_took(tmp_path: Path) -> None:
    spans = genai_spans()
    counts = {
        "gen_ai.usage.input_tokens": 90, "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 40, "gen_ai.usage.reasoning.output_tokens": 5,
    }  # fmt: skip
    for at, model in ((1, "gpt-asked"), (3, "")):
        answered = {"gen_ai.request.model": "gpt-asked", "gen_ai.response.model": model}
        spans[at]["attributes"] += [
            *({"key": name, "value": {"intValue": str(number)}} for name, number in counts.items()),
            *({"key": name, "value": {"stringValue": text}} for name, text in answered.items()),
        ]
    usage = import_one(lines(*spans), tmp_path).usage
    assert usage is not None
    (model,) = usage.models
    assert (model.model, model.calls, model.input_tokens, model.output_tokens) == (
        "gpt-asked", 2, 180, 24,
    )  # fmt: skip
    assert (model.cached_tokens, model.reasoning_tokens) == (80, 10)
    assert (usage.duration_ms, usage.model_ms, usage.tool_ms) == pytest.approx((100, 20, 10))


def below_others(agent: Any, first: Any, tool: Any, last: Any) -> list[dict[str, Any]]:
    """Spans above and between that are no part of an agent."""
    http = span(9, 0, 0, 200, having={"http.method": "POST"})
    between = span(8, 1, 25, 45, having={"db.system": "sqlite"})
    return [http, between, agent, first, tool | {"parentSpanId": between["spanId"]}, last]


@pytest.mark.parametrize("name", ["langsmith", "openinference"])
def test_tools_that_a_model_could_ask_for_are_those_of_the_live_run(
    name: str, tmp_path: Path
) -> None:
    with TraceStore(tmp_path / "live.db") as store, traced() as files:
        watching = handler("default", store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(60)
        (run,) = store.runs()
        live = store.tool_definitions([run.trace_id])[run.trace_id]
    scored = import_one(getattr(files, name), tmp_path)
    with TraceStore(tmp_path / "imported.db") as store:
        (tools,) = store.tool_definitions([scored.trace.id]).values()
    assert tools == live
    assert len(tools) > 1


def test_neither_order_nor_what_stands_between_spans_matters(
    tmp_path: Path,
) -> None:
    agent, first, call, last = genai_spans()
    found = []
    for number, spans in enumerate(
        (
            [agent, first, call, last], [last, call, first, agent], [first, agent, last, call],
            [call, call, agent, first, last], below_others(agent, first, call, last),
        )
    ):  # fmt: skip
        folder = tmp_path / str(number)
        folder.mkdir()
        found.append(import_one(lines(*spans), folder))
        assert shape(found[-1].trace) == SEARCHED
    assert len({one.run_id for one in found[:4]}) == 1


@pytest.mark.parametrize("nested", [False, True])
def test_a_bulk_export_of_langsmith(tmp_path: Path, nested: bool) -> None:
    def run(number: int, kind: str, inputs: Any, outputs: Any, **more: Any) -> dict[str, Any]:
        return {
            "id": f"00000000-0000-4000-8000-{number:012d}",
            "run_type": kind,
            "name": f"run {number}",
            "start_time": f"2026-01-01T00:00:{number:02d}",
            "end_time": f"2026-01-01T00:00:{number:02d}.500",
            "inputs": json.dumps(inputs),
            "outputs": json.dumps(outputs),
            **more,
        }

    root = run(1, "chain", {"question": "why?"}, {"output": "42"}, end_time="2026-01-01T00:01:00")
    parent = {} if nested else {"parent_run_id": root["id"]}
    choice = {"message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}
    asked = {"messages": [{"role": "user", "content": "why?"}]}
    children = [
        run(2, "tool", {"input": "{'q': 'a'}"}, {"output": "b"}, **parent),
        run(3, "llm", asked, {"choices": [choice]}, **parent),
    ]
    values = [{**root, "child_runs": children}] if nested else [{"runs": [*children, root]}]
    scored = import_one(values, tmp_path)
    assert shape(scored.trace) == ["call run 2", "saw run 2", "thought"]
    assert scored.trace.steps[0].input == {"q": "a"}
    assert scored.trace.task.objective == "why?"
    assert str(scored.run_id) == root["id"]


def test_times_of_langsmith_as_numbers(tmp_path: Path) -> None:
    def model(number: int, start: Any, end: Any) -> dict[str, Any]:
        return {
            "id": f"00000000-0000-4000-8000-{number:012d}",
            "run_type": "llm",
            "start_time": start,
            "end_time": end,
            "inputs": {"messages": [{"role": "user", "content": "why?"}]},
            "outputs": {"choices": [{"message": {"role": "assistant", "content": "42"}}]},
        }

    trace = import_one([model(1, 1_767_225_600_000, 1_767_225_600_500)], tmp_path).trace
    assert trace.metadata.created_at.isoformat() == "2026-01-01T00:00:00+00:00"
    (unusable,) = FileReader().add(model(9, "soon", "later"), "runs")
    assert isinstance(unusable, Unusable)
    assert unusable.why.endswith("has the start_time 'soon'; give a time")


MESSAGES = [
    {"role": "user", "content": "why?"},
    {
        "role": "assistant",
        "content": "I search.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "search", "arguments": '{"q": "a"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "b"},
    {"role": "assistant", "content": "42"},
]


def test_messages_in_every_form(tmp_path: Path) -> None:
    from langchain_core.load import dumpd
    from langchain_core.messages import convert_to_messages, message_to_dict

    messages = convert_to_messages(MESSAGES)
    forms: list[Any] = [
        MESSAGES,
        [message_to_dict(one) for one in messages],
        [one.model_dump(mode="json") for one in messages],
        [dumpd(one) for one in messages],
    ]
    for number, form in enumerate(forms):
        folder = tmp_path / str(number)
        folder.mkdir()
        scored = import_one([{"messages": form, "domain": "code", "id": "run 1"}], folder)
        assert shape(scored.trace) == SEARCHED
        assert scored.trace.task.objective == "why?"
        assert scored.trace.steps[1].input == {"q": "a"}
        assert scored.trace.metadata.task_domain == "code"
        assert [step.latency_ms for step in scored.trace.steps] == [None] * 4


# ------------------------------------------------------------------ the keys of runs

KEYS = {"kp_namespace": "acme", "session_id": "s-1", "thread_id": "t-1", "user_id": "ann"}
TAGS = ["beta", "both"]


def keys_recorded(**config: Any) -> RunKeys:
    """The keys that the handler stores of a run with this config."""
    watching = handler()
    searching().invoke(ASK, {"callbacks": [watching], **config})
    scored = watching.last(600)
    assert scored is not None
    assert scored.keys is not None
    return scored.keys


def keys_imported(values: list[Any], folder: Path) -> RunKeys:
    keys = import_one(values, folder).keys
    assert keys is not None
    return keys


@pytest.mark.parametrize("name", ["langsmith", "openinference", "genai"])
def test_keys_are_those_that_the_handler_stores(name: str, tmp_path: Path) -> None:
    with traced() as files:
        expected = keys_recorded(metadata=KEYS, tags=TAGS, run_name="desk")
    keys = keys_imported(getattr(files, name), tmp_path)
    assert (keys.namespace, keys.session, keys.thread) == ("acme", "s-1", "t-1")
    assert (keys.user, keys.name) == (expected.user, "desk")
    if name != "openinference":  # its tracer does not write them
        assert sorted(keys.tags) == TAGS


@pytest.mark.parametrize("name", ["langsmith", "openinference", "genai"])
def test_a_thread_is_no_session(name: str, tmp_path: Path) -> None:
    with traced() as files:
        keys_recorded(metadata={"thread_id": "t-1"})
    keys = keys_imported(getattr(files, name), tmp_path)
    assert (keys.session, keys.thread) == (None, "t-1")


@pytest.mark.parametrize("where", ["", "metadata", "metadata as text"])
def test_keys_of_a_line_of_messages(where: str, tmp_path: Path) -> None:
    named = {**KEYS, "tags": TAGS, "name": "desk", "kp_domain": "finance"}
    inner: dict[str, Any] = {"metadata": json.dumps(named) if "text" in where else named}
    scored = import_one([{"messages": MESSAGES, **(inner if where else named)}], tmp_path)
    expected = keys_recorded(metadata=KEYS, tags=TAGS, run_name="desk")
    assert scored.keys == expected
    assert scored.trace.metadata.task_domain == "finance"


@pytest.mark.parametrize("value", ["", True, ["a"], {"a": 1}])
def test_an_unusable_namespace_is_shared_with_nobody(value: Any, tmp_path: Path) -> None:
    keys = keys_imported([{"messages": MESSAGES, "kp_namespace": value}], tmp_path)
    assert str(keys.namespace).startswith("unknown:")


def test_one_id_in_two_namespaces_is_that_of_two_runs(tmp_path: Path) -> None:
    line = {"id": 1, "messages": MESSAGES}
    values = [line | {"kp_namespace": one} for one in ("a", "b", "a")]
    fates = [one.fate for one in import_values([*values, line], tmp_path)]
    assert fates == ["imported", "imported", "known", "imported"]


def test_a_run_whose_import_was_killed_before_it_was_judged_is_known(tmp_path: Path) -> None:
    line = {"id": 1, "messages": MESSAGES}
    (imported,) = import_values([line], tmp_path)
    with TraceStore(tmp_path / "imported.db") as store:
        stored = store.get(str(imported.run.run_id))
        assert stored is not None
        trace = stored.trace
        assert trace is not None
        store.delete(stored.trace_id)
        waiting = Run(trace, imported.run.run_id, DomainPolicy(), looked_successful=True)
        store.journal.record([waiting])
    assert [one.fate for one in import_values([line], tmp_path)] == ["known"]


@pytest.mark.parametrize(
    "attributes",
    [
        {"kp_namespace": "acme", "session_id": "s-1", "user_id": "ann"},
        {
            "traceloop.association.properties.kp_namespace": "acme",
            "traceloop.association.properties.session_id": "s-1",
            "traceloop.association.properties.user_id": "ann",
        },
        {"kp_namespace": "acme", "gen_ai.conversation.id": "s-1", "enduser.id": "ann"},
        {"kp_namespace": "acme", "session.id": "s-1", "user.id": "ann"},
    ],
)
def test_keys_of_spans_by_attributes_of_their_own(
    attributes: dict[str, str], tmp_path: Path
) -> None:
    root, *others = genai_spans()
    more = span(1, 9, 0, 100, having=attributes)["attributes"]
    root["attributes"] = [*root["attributes"], *more]
    keys = keys_imported(lines(root, *others), tmp_path)
    assert (keys.namespace, keys.session) == ("acme", "s-1")
    assert keys.user == keys_recorded(metadata={"user_id": "ann"}).user


# ------------------------------------------------------------------ any content

ANY_KEYS = st.sampled_from(
    [
        "messages", "role", "type", "content", "data", "lc", "id", "kwargs", "tool_calls", "runs",
        "run_type", "start_time", "end_time", "inputs", "outputs", "parent_run_id", "child_runs",
        "error", "extra", "metadata", "events", "resourceSpans", "scopeSpans", "spans", "traceId",
        "spanId", "parentSpanId", "attributes", "key", "value", "stringValue", "kvlistValue",
        "values", "success", "confidence", "domain", "generations", "message", "kp_domain", "name",
        "startTimeUnixNano", "endTimeUnixNano", "status", "code",
    ]
)  # fmt: skip
ANY_WORDS = st.sampled_from(
    [
        "ai", "human", "tool", "user", "assistant", "constructor", "AIMessage", "a" * 32,
        "b" * 16, "00000000-0000-4000-8000-000000000001", "2026-01-01T00:00:00Z", "1700000000",
        "llm", "chain", "openinference.span.kind", "LLM", "TOOL", "gen_ai.operation.name", "chat",
        "gen_ai.output.messages", '[{"role": 1, "parts": [{"type": "tool_call"}]}]', "ValueError(",
        "\ud800", "\0", "NaN",
    ]
)  # fmt: skip
ANY_LEAVES = (
    ANY_WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
)
ANY_VALUES = st.recursive(
    ANY_LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_KEYS, inner, max_size=6),
    max_leaves=30,
)


def mutated(value: Any, draw: Any) -> Any:
    """A value of a real file with some of its parts replaced."""
    if draw(st.integers(0, 25)) == 0:
        return draw(ANY_VALUES)
    if isinstance(value, dict):
        return {key: mutated(one, draw) for key, one in value.items()}
    return [mutated(one, draw) for one in value] if isinstance(value, list) else value


LANGSMITH_RUN = {
    "id": "00000000-0000-4000-8000-000000000001",
    "run_type": "llm",
    "name": "model",
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
    "inputs": {"messages": [[{"lc": 1, "id": ["HumanMessage"], "kwargs": {"content": "why?"}}]]},
    "outputs": {"generations": [[{"text": "42", "message": {"type": "ai", "data": {}}}]]},
    "extra": {"metadata": {"kp_domain": "code"}},
    "error": None,
}
REAL = [{"messages": MESSAGES, "id": "x"}, LANGSMITH_RUN, *lines(*genai_spans())]


@st.composite
def files(draw: Any) -> str:
    values = [mutated(draw(st.sampled_from(REAL)), draw) for _ in range(draw(st.integers(1, 4)))]
    values.append(draw(ANY_VALUES))
    content = "\n".join(json.dumps(value) for value in values)
    return content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content


def import_file(file: str, store: TraceStore) -> list[Imported]:
    reader = FileReader()
    parts: list[Any] = []
    for place, value, why in read_values(file):
        if not why:
            parts += reader.add(value, place)
    parts += reader.conclude()
    importer = Importer(store, Settings(), scorer=Scorer(embedder=None))
    result = list(importer.run(part for part in parts if isinstance(part, RecordedRun)))
    importer.close()
    return result


@pytest.mark.filterwarnings("ignore")
def test_any_content_has_an_answer_and_twice_is_once(tmp_path: Path) -> None:
    @settings(suppress_health_check=list(HealthCheck))
    @given(content=files())
    def check(content: str) -> None:
        file = tmp_path / "any.jsonl"
        file.write_text(content)
        first = import_file(str(file), store)
        assert "failed" not in [one.fate for one in first]
        stored = store.count()
        again = import_file(str(file), store)
        assert "imported" not in [one.fate for one in again]
        assert store.count() == stored

    with TraceStore(tmp_path / "runs.db") as store:
        check()
