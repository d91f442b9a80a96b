"""Whatever a file holds: an answer, never an exception, and twice is once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import Scorer, Settings, TraceStore
from kp_langchain.cli.import_files import read_values
from kp_langchain.importing.formats import FileReader
from kp_langchain.importing.importer import Imported, Importer
from kp_langchain.importing.recorded_run import RecordedRun
from tests.importing.test_conventions import MESSAGES, genai_spans, lines

KEYS = st.sampled_from(
    [
        "messages", "role", "type", "content", "data", "lc", "id", "kwargs", "tool_calls", "runs",
        "run_type", "start_time", "end_time", "inputs", "outputs", "parent_run_id", "child_runs",
        "error", "extra", "metadata", "events", "resourceSpans", "scopeSpans", "spans", "traceId",
        "spanId", "parentSpanId", "attributes", "key", "value", "stringValue", "kvlistValue",
        "values", "success", "confidence", "domain", "generations", "message", "kp_domain", "name",
        "startTimeUnixNano", "endTimeUnixNano", "status", "code",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "ai", "human", "tool", "user", "assistant", "constructor", "AIMessage", "a" * 32,
        "b" * 16, "00000000-0000-4000-8000-000000000001", "2026-01-01T00:00:00Z", "1700000000",
        "llm", "chain", "openinference.span.kind", "LLM", "TOOL", "gen_ai.operation.name", "chat",
        "gen_ai.output.messages", '[{"role": 1, "parts": [{"type": "tool_call"}]}]', "ValueError(",
        "\ud800", "\0", "NaN",
    ]
)  # fmt: skip
LEAVES = WORDS | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=30,
)


def mutated(value: Any, draw: Any) -> Any:
    """A value of a real file with some of its parts replaced."""
    if draw(st.integers(0, 25)) == 0:
        return draw(VALUES)
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
    values.append(draw(VALUES))
    content = "\n".join(json.dumps(value) for value in values)
    return content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content


def import_file(file: str, store: TraceStore) -> list[Imported]:
    reader = FileReader()
    parts: list[Any] = []
    for one in read_values(file):
        if not one.why:
            parts += reader.add(one.value, one.place)
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
