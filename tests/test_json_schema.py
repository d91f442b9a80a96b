"""The JSON Schema that `kp-langchain schema` prints takes and refuses what the reader does."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

from kp_langchain import ReasoningTrace
from kp_langchain.cli.app import app
from tests.test_wire_cases import (
    DOCUMENT,
    READ_ALTHOUGH_REFUSED,
    REFUSED,
    REFUSED_ALTHOUGH_TAKEN,
    TAKEN,
    document,
    name,
)

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
PRINTED = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
VALIDATOR = jsonschema.Draft202012Validator(PRINTED)


def is_read(text: str) -> bool:
    try:
        ReasoningTrace.model_validate_json(text)
    except ValidationError:
        return False
    return True


def is_valid(text: str) -> bool:
    return bool(VALIDATOR.is_valid(json.loads(text)))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(PRINTED)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        *((*case[:2], True) for case in (*TAKEN, *READ_ALTHOUGH_REFUSED)),
        *((*case[:2], False) for case in (*REFUSED, *REFUSED_ALTHOUGH_TAKEN)),
    ],
    ids=name,
)
def test_it_takes_what_is_read(path: str, value: Any, expected: bool) -> None:
    text = json.dumps(document(path, value))
    assert is_valid(text) is is_read(text) is expected


times = st.one_of(
    st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
    st.datetimes(timezones=st.timezones()).map(lambda moment: moment.isoformat()),
    st.dates().map(str),
    st.from_regex(
        r"[0-9]{4}-[0-1][0-9]-[0-3][0-9][Tt ]?([0-2][0-9](:?[0-6][0-9]){0,2}([.,][0-9]*)?)?"
        r"([Zz]|[+-][0-2][0-9](:?[0-6][0-9])?)?\s?"
    ),
    st.sampled_from(
        ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+00:01", "2025-W05-7", "1900-02-29",
         "2000-02-29", "2025-06-15T10:00:60Z", "2025-06-15T10:00:00,5Z", "0001-01-01T00:00-05:00"]
    ),
)  # fmt: skip
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | times
    | st.sampled_from([0.0, -0.0, 1.0, 1, 10**310, 1.5, "", "0", "kp:trace:", "kp:trace:\n"])
    | st.sampled_from(["thought", "org", "private", "network", "ReasoningTrace"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "step_id", "fact", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document but the whole."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in inner:
        found.append((*above, key))
        if isinstance(part, (dict, list)):
            found += paths(part, (*above, key))
    return found


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """The whole document with up to three places changed, emptied or added to."""
    changed = copy.deepcopy(DOCUMENT)
    for _ in range(draw(st.integers(0, 3))):
        at = paths(changed)
        if not at:
            break
        *above, last = draw(st.sampled_from(at))
        place: Any = changed
        for key in above:
            place = place[key]
        action = draw(st.sampled_from(["set", "set", "set", "delete", "add"]))
        if action == "delete":
            del place[last]
        elif action == "set":
            place[last] = draw(times if last == "created_at" else values)
        elif isinstance(place, list):
            place.append(draw(values))
        else:
            place[draw(st.text(max_size=5) | st.sampled_from(["type", "context"]))] = draw(values)
    return changed


@given(documents() | values)
def test_it_takes_and_refuses_what_the_reader_does(changed: Any) -> None:
    text = json.dumps(changed)
    assert is_valid(text) is is_read(text)


@given(times)
def test_it_reads_times_as_the_reader_does(time: str) -> None:
    text = json.dumps(document("metadata.created_at", time))
    assert is_valid(text) is is_read(text)


def test_it_does_not_rely_on_formats() -> None:
    # Some validators check them and some do not.
    assert '"format"' not in json.dumps(PRINTED)
