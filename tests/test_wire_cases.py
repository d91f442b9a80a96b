"""Field by field: which documents the protocol's own schema takes, and which are read here.

The protocol's reference implementation checks documents with a schema of its own. The tables hold
what that schema says of single values; where reading differs from it, the reason stands beside the
case.
"""

from __future__ import annotations

import copy
import json
import uuid
from typing import Any

import pytest
from pydantic import ValidationError

from kp_langchain import ReasoningTrace
from kp_langchain.schema import CONTEXT

ABSENT = object()
DELTA = {
    "entities": [{"name": "user", "type": "Person"}],
    "relationships": [{"fact": "user owns repo", "valid_from": "2025-01-01"}],
}
DOCUMENT: dict[str, Any] = {
    "@context": CONTEXT,
    "@type": "ReasoningTrace",
    "id": "kp:trace:550e8400-e29b-41d4-a716-446655440000",
    "source_skill": "kp:skill:code-review:1.0",
    "metadata": {
        "created_at": "2025-06-15T10:00:00.000Z",
        "agent_id": "kp:agent:abc123",
        "framework": "langgraph",
        "task_domain": "code-review",
        "success": True,
        "quality_score": 0.92,
        "visibility": "network",
        "privacy_level": "aggregated",
        "validated_by": ["kp:validator:v1"],
    },
    "task": {"objective": "Review the change", "input_schema": {"type": "object"}},
    "steps": [
        {"step_id": 0, "type": "thought", "content": "Look at it"},
        {
            "step_id": 1,
            "type": "tool_call",
            "content": "Search",
            "tool": {"name": "grep", "mcp_server": "filesystem"},
            "input": {"pattern": "eval("},
            "output_summary": "Nothing",
            "latency_ms": 120,
        },
    ],
    "outcome": {"result_summary": "No issues", "confidence": 0.95},
    "knowledge_graph_delta": DELTA,
}

TAKEN: list[tuple[str, Any]] = [
    ("id", "kp:trace:finance-demo-001"),
    ("id", "kp:trace:test-0001"),
    ("id", "kp:trace:001"),
    ("id", "kp:trace:crewai-Research the latest "),
    ("id", "kp:trace:flowise-{{timestamp}}"),
    ("id", "kp:trace:a/b?c#d%20e"),
    ("id", "kp:trace:kp:trace:"),
    ("id", "kp:trace:\n\x00\x1b[2J"),
    ("id", "kp:trace:" + "x" * 5000),
    ("id", "kp:trace:\u4e8b\u4f8b \U0001f600"),
    ("source_skill", ABSENT),
    ("source_skill", ""),
    ("metadata.created_at", "2025-06-15T10:00:00Z"),
    ("metadata.created_at", "2025-06-15T10:00:00.123456789Z"),
    ("metadata.created_at", "2024-02-29T23:59:59Z"),
    ("metadata.created_at", "9999-12-31T23:59:59.999Z"),
    ("metadata.agent_id", ABSENT),
    ("metadata.agent_id", ""),
    ("metadata.framework", ABSENT),
    ("metadata.task_domain", " "),
    ("metadata.success", False),
    ("metadata.quality_score", 0),
    ("metadata.quality_score", 1),
    ("metadata.quality_score", -0.0),
    ("metadata.visibility", "org"),
    ("metadata.privacy_level", "federated"),
    ("metadata.validated_by", ABSENT),
    ("metadata.validated_by", []),
    ("task.input_schema", ABSENT),
    ("task.input_schema", {}),
    ("steps.0.step_id", 0.0),
    ("steps.0.step_id", -0.0),
    ("steps.0.step_id", 7),
    ("steps.0.step_id", 1e3),
    ("steps.0.step_id", 2**60),
    ("steps.0.type", "error_recovery"),
    ("steps.0.type", "observation"),
    ("steps.0.content", ABSENT),
    ("steps.0.content", ""),
    ("steps.1.tool", ABSENT),
    ("steps.1.tool.name", ""),
    ("steps.1.tool.mcp_server", ABSENT),
    ("steps.1.tool.mcp_server", ""),
    ("steps.1.input", ABSENT),
    ("steps.1.input", {}),
    ("steps.1.input", {"nested": {"list": [1, None, "two"]}}),
    ("steps.1.output_summary", ABSENT),
    ("steps.1.latency_ms", ABSENT),
    ("steps.1.latency_ms", 0),
    ("steps.1.latency_ms", 0.001),
    ("steps.1.latency_ms", 1e300),
    ("outcome.result_summary", ""),
    ("outcome.confidence", 0),
    ("outcome.confidence", 1),
    ("knowledge_graph_delta", ABSENT),
    ("knowledge_graph_delta", {"entities": [], "relationships": []}),
    ("knowledge_graph_delta.entities.0.name", ""),
    # What it does not know it lets pass.
    ("steps.0.attempts", "3"),
    ("steps.0.attempts", 0),
    ("steps.0.attempts", -1.5),
    ("steps.0.attempts", {"first": "timeout"}),
    ("steps.0.attempts", [1, 2]),
    ("steps.0.colour", None),
    ("steps.1.tool.version", 3),
    ("metadata.run", {"id": 1}),
    ("task.hint", "none"),
    ("outcome.grade", "A"),
    ("knowledge_graph_delta.entities.0.weight", 2),
    ("knowledge_graph_delta.relationships.0.source", "s"),
    ("type", "a field of this name"),
    ("context", ["of this too"]),
]

REFUSED: list[tuple[str, Any]] = [
    ("@context", "https://wrong.url/v1"),
    ("@context", 1),
    ("@type", "ToolCallPattern"),
    ("@type", "reasoningtrace"),
    ("id", "invalid-id"),
    ("id", "kp:pattern:abc"),
    ("id", "KP:TRACE:abc"),
    ("id", " kp:trace:abc"),
    ("id", ""),
    ("id", 7),
    ("id", None),
    ("source_skill", 1),
    ("metadata", ABSENT),
    ("metadata", []),
    ("metadata.created_at", "not-a-date"),
    ("metadata.created_at", "2025-02-29T10:00:00Z"),
    ("metadata.created_at", "2025-06-31T10:00:00Z"),
    ("metadata.created_at", "2025-06-15T24:00:00Z"),
    ("metadata.created_at", "2025-06-15T10:00:00Z\n"),
    ("metadata.created_at", "20250615T100000Z"),
    ("metadata.created_at", ""),
    ("metadata.created_at", 1750000000000),
    ("metadata.created_at", None),
    ("metadata.agent_id", 5),
    ("metadata.framework", ["langgraph"]),
    ("metadata.task_domain", ABSENT),
    ("metadata.task_domain", ""),
    ("metadata.task_domain", None),
    ("metadata.success", ABSENT),
    ("metadata.success", "true"),
    ("metadata.success", 1),
    ("metadata.success", None),
    ("metadata.quality_score", 1.5),
    ("metadata.quality_score", -0.1),
    ("metadata.quality_score", "0.5"),
    ("metadata.quality_score", True),
    ("metadata.quality_score", None),
    ("metadata.visibility", "public"),
    ("metadata.visibility", "global"),
    ("metadata.visibility", None),
    ("metadata.privacy_level", "public"),
    ("metadata.validated_by", "kp:validator:v1"),
    ("metadata.validated_by.0", 1),
    ("task", ABSENT),
    ("task.objective", ABSENT),
    ("task.objective", ""),
    ("task.objective", 1),
    ("task.input_schema", []),
    ("task.input_schema", "object"),
    ("steps", ABSENT),
    ("steps", []),
    ("steps", {}),
    ("steps.0", "thought"),
    ("steps.0.step_id", ABSENT),
    ("steps.0.step_id", -1),
    ("steps.0.step_id", 1.5),
    ("steps.0.step_id", "0"),
    ("steps.0.step_id", True),
    ("steps.0.type", ABSENT),
    ("steps.0.type", "unknown"),
    ("steps.0.type", "Thought"),
    ("steps.0.content", 3),
    ("steps.1.tool", "grep"),
    ("steps.1.tool.name", ABSENT),
    ("steps.1.tool.name", None),
    ("steps.1.tool.name", 1),
    ("steps.1.tool.mcp_server", 1),
    ("steps.1.input", [1]),
    ("steps.1.input", "text"),
    ("steps.1.output_summary", {}),
    ("steps.1.latency_ms", -10),
    ("steps.1.latency_ms", "120"),
    ("steps.1.latency_ms", False),
    ("outcome", ABSENT),
    ("outcome.result_summary", ABSENT),
    ("outcome.result_summary", None),
    ("outcome.confidence", ABSENT),
    ("outcome.confidence", 1.1),
    ("outcome.confidence", -0.1),
    ("outcome.confidence", "0.9"),
    ("outcome.confidence", True),
    ("knowledge_graph_delta", []),
    ("knowledge_graph_delta.entities", ABSENT),
    ("knowledge_graph_delta.entities.0.type", ABSENT),
    ("knowledge_graph_delta.entities.0.name", 1),
    ("knowledge_graph_delta.relationships", ABSENT),
    ("knowledge_graph_delta.relationships.0.fact", ABSENT),
    ("knowledge_graph_delta.relationships.0.valid_from", 2025),
]

_NULL = "many writers put null for what is absent; it is left out when written"
_DEFAULT = "a trace is built in Python without it; it gets a default, and is written with it"
_OFFSET = "ISO 8601 of another writer; it becomes UTC, which is what is written"
READ_ALTHOUGH_REFUSED: list[tuple[str, Any, str]] = [
    ("@context", "https://knowledgepulse.dev/schema/v1", "older documents have it"),
    ("@context", ABSENT, _DEFAULT),
    ("@type", ABSENT, _DEFAULT),
    ("id", ABSENT, _DEFAULT),
    ("metadata.created_at", ABSENT, _DEFAULT),
    ("metadata.quality_score", ABSENT, _DEFAULT),
    ("metadata.visibility", ABSENT, _DEFAULT),
    ("metadata.privacy_level", ABSENT, _DEFAULT),
    ("metadata.created_at", "2025-06-15T10:00:00+02:00", _OFFSET),
    ("metadata.created_at", "2025-06-15T10:00:00", _OFFSET),
    ("metadata.created_at", "2025-06-15 10:00", _OFFSET),
    ("metadata.created_at", "2025-06-15", _OFFSET),
    ("source_skill", None, _NULL),
    ("metadata.agent_id", None, _NULL),
    ("metadata.framework", None, _NULL),
    ("metadata.validated_by", None, _NULL),
    ("task.input_schema", None, _NULL),
    ("steps.0.content", None, _NULL),
    ("steps.1.tool", None, _NULL),
    ("steps.1.tool.mcp_server", None, _NULL),
    ("steps.1.input", None, _NULL),
    ("steps.1.output_summary", None, _NULL),
    ("steps.1.latency_ms", None, _NULL),
    ("knowledge_graph_delta", None, _NULL),
]

REFUSED_ALTHOUGH_TAKEN: list[tuple[str, Any, str]] = [
    ("id", "kp:trace:", "it names no trace; all of that id would be one"),
    ("metadata.created_at", "0000-01-01T00:00:00Z", "Python's calendar begins with the year 1"),
    ("steps.1.latency_ms", float("inf"), "JSON has no such number to write it with"),
    ("steps.1.latency_ms", 10**400, "JavaScript reads it as infinity"),
]


def document(path: str, value: Any) -> dict[str, Any]:
    """The whole document with one value changed."""
    changed = copy.deepcopy(DOCUMENT)
    *above, last = path.split(".") if not path.startswith("@") else [path]
    place: Any = changed
    for part in above:
        place = place[int(part) if part.isdigit() else part]
    if value is ABSENT:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return changed


def name(value: object) -> str:
    return "absent" if value is ABSENT else ascii(value)[:40]


def written(trace: ReasoningTrace) -> Any:
    return json.loads(trace.model_dump_json())


@pytest.mark.parametrize(("path", "value"), TAKEN, ids=name)
def test_what_the_protocol_takes_is_read_and_comes_back(path: str, value: Any) -> None:
    given = document(path, value)
    read = written(ReasoningTrace.model_validate_json(json.dumps(given)))
    if path == "metadata.created_at":  # ends in Z, with three digits or six
        given["metadata"]["created_at"] = read["metadata"]["created_at"]
        assert read["metadata"]["created_at"][:19] == value[:19]
    assert read == given
    assert written(ReasoningTrace.model_validate(given)) == given


@pytest.mark.parametrize(
    ("path", "value"), [*REFUSED, *(case[:2] for case in REFUSED_ALTHOUGH_TAKEN)], ids=name
)
def test_what_is_refused_is_named(path: str, value: Any) -> None:
    for read in (
        lambda given: ReasoningTrace.model_validate(given),
        lambda given: ReasoningTrace.model_validate_json(json.dumps(given)),
    ):
        with pytest.raises(ValidationError) as caught:
            read(document(path, value))
        (error,) = caught.value.errors()
        assert ".".join(map(str, error["loc"])) == path
        assert path in str(caught.value)


@pytest.mark.parametrize(("path", "value", "why"), READ_ALTHOUGH_REFUSED, ids=name)
def test_what_is_read_although_refused_is_written_as_the_protocol_takes_it(
    path: str, value: Any, why: str
) -> None:
    read = written(ReasoningTrace.model_validate_json(json.dumps(document(path, value))))
    assert "null" not in json.dumps(read)
    assert {"@context", "@type", "id", "metadata", "task", "steps", "outcome"} <= set(read)
    assert read["@context"] == CONTEXT
    assert read["metadata"]["created_at"].endswith("Z")
    assert {"created_at", "quality_score", "visibility", "privacy_level"} <= set(read["metadata"])


def test_new_ids_are_uuids() -> None:
    trace = ReasoningTrace.model_validate(document("id", ABSENT))
    assert uuid.UUID(trace.id.removeprefix("kp:trace:")).version == 4


def test_steps_cannot_be_taken_away() -> None:
    trace = ReasoningTrace.model_validate(DOCUMENT)
    with pytest.raises(ValidationError, match="steps"):
        trace.steps = []


@pytest.mark.parametrize(
    ("attempts", "tries"),
    [(ABSENT, 1), (2, 2), (1, 1), (0, 1), (-3, 1), ("3", 1), (2.0, 1), (True, 1), (10**400, 1)],
    ids=name,
)
def test_tries_are_read_where_they_are_a_count(attempts: Any, tries: int) -> None:
    given = document("steps.0.attempts", attempts) if attempts is not ABSENT else DOCUMENT
    assert ReasoningTrace.model_validate(given).steps[0].tries == tries
