"""The wire form: what is read, written and refused, and the JSON Schema that says the same.

The protocol's reference implementation checks documents with a schema of its own. `wire_cases.json`
has what that schema takes and refuses of single values, by their path; where reading differs from
it, the reason stands beside the cases. "ABSENT" stands for no value at all.
"""

from __future__ import annotations

import copy
import json
import uuid
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kp_langchain import ReasoningTrace, TraceStep
from kp_langchain.schema import CONTEXT, Metadata, Outcome, Task
from tests.commands import cli

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("wire_cases.json").read_text())
DOCUMENT: dict[str, Any] = CASES["document"]
ABSENT = "ABSENT"
Case = tuple[str, Any]


def by_path(kind: str) -> list[Case]:
    return [(path, value) for path, values in CASES[kind].items() for value in values]


def by_reason(kind: str) -> list[Case]:
    return [(path, value) for cases in CASES[kind].values() for path, value in cases]


TAKEN = [*by_path("taken"), ("id", "kp:trace:" + "x" * 5000)]
NO_NUMBER = [("outcome.confidence", float("nan")), ("outcome.confidence", float("inf"))]
REFUSED = [*by_path("refused"), *by_reason("refused_although_taken")]
READ_ALTHOUGH_REFUSED = by_reason("read_although_refused")


def document(path: str, value: Any) -> dict[str, Any]:
    """Return the whole document with one value changed."""
    changed = copy.deepcopy(DOCUMENT)
    *above, last = path.split(".") if not path.startswith("@") else [path]
    place: Any = changed
    for part in above:
        place = place[int(part) if part.isdigit() else part]
    if value == ABSENT:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return changed


def name(value: object) -> str:
    return ascii(value)[:40]


def written(trace: ReasoningTrace) -> Any:
    return json.loads(trace.model_dump_json())


# What is read, refused and written.


@pytest.mark.parametrize(("path", "value"), TAKEN, ids=name)
def test_what_the_protocol_takes_is_read_and_comes_back(path: str, value: Any) -> None:
    wire = document(path, value)
    read = written(ReasoningTrace.model_validate_json(json.dumps(wire)))
    if path == "metadata.created_at":  # ends in Z, with three digits or six
        wire["metadata"]["created_at"] = read["metadata"]["created_at"]
        assert read["metadata"]["created_at"][:19] == value[:19]
    assert read == wire
    assert written(ReasoningTrace.model_validate(wire)) == wire


@pytest.mark.parametrize(("path", "value"), [*REFUSED, *NO_NUMBER], ids=name)
def test_what_is_refused_is_named(path: str, value: Any) -> None:
    wire = document(path, value)
    for read in (
        lambda: ReasoningTrace.model_validate(wire),
        lambda: ReasoningTrace.model_validate_json(json.dumps(wire)),
    ):
        with pytest.raises(ValidationError) as caught:
            read()
        (error,) = caught.value.errors()
        assert ".".join(map(str, error["loc"])) == path
        assert path in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("id", "trace-1", "'trace-1' is not a trace id; write kp:trace:<uuid>"),
        ("metadata.created_at", "yesterday", "'yesterday' is not an ISO"),
        ("metadata.visibility", "public", "'private', 'org' or 'network'"),
        ("steps.0.type", "guess", "'thought', 'tool_call'"),
        ("outcome.confidence", float("nan"), "finite"),
        ("outcome.confidence", 1.1, "less than or equal to 1"),
    ],
)
def test_a_refusal_says_what_to_write(path: str, value: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ReasoningTrace.model_validate(document(path, value))


@pytest.mark.parametrize(("path", "value"), READ_ALTHOUGH_REFUSED, ids=name)
def test_what_is_read_although_refused_is_written_as_the_protocol_takes_it(
    path: str, value: Any
) -> None:
    read = written(ReasoningTrace.model_validate_json(json.dumps(document(path, value))))
    assert "null" not in json.dumps(read)
    assert {"@context", "@type", "id", "metadata", "task", "steps", "outcome"} <= set(read)
    assert read["@context"] == CONTEXT == "https://openknowledgepulse.org/schema/v1"
    assert read["metadata"]["created_at"].endswith("Z")
    assert {"created_at", "quality_score", "visibility", "privacy_level"} <= set(read["metadata"])


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        ("2026-02-01T12:00:00Z", "2026-02-01T12:00:00.000Z"),
        ("2026-02-01T12:00:00.123456Z", "2026-02-01T12:00:00.123456Z"),
        ("2026-02-01T12:00:00+02:00", "2026-02-01T10:00:00.000Z"),
        ("2026-02-01T12:00:00", "2026-02-01T12:00:00.000Z"),
        (
            datetime(2026, 2, 1, 12, tzinfo=timezone(timedelta(hours=-5))),
            "2026-02-01T17:00:00.000Z",
        ),
        (datetime(2026, 2, 1, 12), "2026-02-01T12:00:00.000Z"),
    ],
)
def test_created_at_is_written_in_utc_ending_in_z(moment: Any, text: str) -> None:
    trace = ReasoningTrace.model_validate(document("metadata.created_at", moment))
    assert written(trace)["metadata"]["created_at"] == text


@given(st.datetimes(timezones=st.timezones() | st.none()))
def test_any_moment_survives(moment: datetime) -> None:
    try:
        expected = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        with pytest.raises(ValidationError):
            Metadata(task_domain="d", success=True, created_at=moment)
        return
    made = Metadata(task_domain="d", success=True, created_at=moment)
    text = json.loads(made.model_dump_json())["created_at"]
    assert text.endswith("Z")
    assert datetime.fromisoformat(text) == expected


def test_python_names_and_defaults_are_enough_to_make_one() -> None:
    trace = ReasoningTrace(
        metadata=Metadata(task_domain="code", success=False),
        task=Task(objective="fix"),
        steps=[TraceStep(step_id=0, type="thought", content="hm")],
        outcome=Outcome(result_summary="", confidence=0),
    )
    data = written(trace)
    assert uuid.UUID(data["id"].removeprefix("kp:trace:")).version == 4
    assert (data["@context"], data["@type"]) == (CONTEXT, "ReasoningTrace")
    assert (data["metadata"]["quality_score"], data["metadata"]["visibility"]) == (0, "private")
    assert ReasoningTrace.model_validate(data) == trace


def test_assignments_are_checked_too() -> None:
    trace = ReasoningTrace.model_validate(DOCUMENT)
    trace.metadata.quality_score = 0.25
    with pytest.raises(ValidationError, match="quality_score"):
        trace.metadata.quality_score = 2
    with pytest.raises(ValidationError, match="steps"):
        trace.steps = []


@pytest.mark.parametrize(
    ("attempts", "tries"),
    [(ABSENT, 1), (2, 2), (1, 1), (0, 1), (-3, 1), ("3", 1), (2.0, 1), (True, 1), (10**400, 1)],
    ids=name,
)
def test_tries_are_read_where_they_are_a_count(attempts: Any, tries: int) -> None:
    wire = document("steps.0.attempts", attempts) if attempts != ABSENT else DOCUMENT
    assert ReasoningTrace.model_validate(wire).steps[0].tries == tries


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)  # fmt: skip


@given(
    st.dictionaries(st.text(min_size=1, max_size=6).map("x_".__add__), _json, max_size=3),
    st.text(min_size=1).filter(lambda text: text.isprintable()),
)
def test_any_unknown_fields_survive(unknown: dict[str, Any], objective: str) -> None:
    data = document("task.objective", objective)
    for place in (data, data["metadata"], data["task"], data["steps"][0], data["outcome"]):
        place |= unknown | {"nothing": None}
    assert written(ReasoningTrace.model_validate_json(json.dumps(data))) == data


# The JSON Schema that `kp-langchain schema` prints takes and refuses what the reader does.


@pytest.fixture(scope="module")
def schema() -> Any:
    return json.loads(cli("schema").stdout)


@pytest.fixture(scope="module")
def is_valid(schema: Any) -> Any:
    validator = jsonschema.Draft202012Validator(schema)
    return lambda text: bool(validator.is_valid(json.loads(text)))


def is_read(text: str) -> bool:
    try:
        ReasoningTrace.model_validate_json(text)
    except ValidationError:
        return False
    return True


def test_it_is_a_schema_of_the_wire_fields_that_relies_on_no_formats(schema: Any) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["title"] == "ReasoningTrace"
    assert {"@context", "@type", "id", "metadata", "task", "steps", "outcome"} <= set(
        schema["properties"]
    )
    assert set(schema["required"]) == {"metadata", "task", "steps", "outcome"}
    assert '"format"' not in json.dumps(schema)  # some validators check them and some do not


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        *((*case, True) for case in (*TAKEN, *READ_ALTHOUGH_REFUSED)),
        *((*case, False) for case in REFUSED),
    ],
    ids=name,
)
def test_it_takes_what_is_read(path: str, value: Any, expected: bool, is_valid: Any) -> None:
    text = json.dumps(document(path, value))
    assert is_valid(text) is is_read(text) is expected
