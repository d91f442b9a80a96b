"""Signs of a run: what they say, what they keep of an error, and their words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace
from kp_langchain.calibration.failure_signs import parse_signs, signs_of, title_of
from kp_langchain.calibration.flags import flags_of
from tests.cli.made_runs import document


def call(tool: str, output: str | None = "found", kind: str = "observation", **of: Any) -> Any:
    """The steps of a call and its output."""
    steps = [{"type": "tool_call", "tool": {"name": tool}, "input": of}]
    if output is not None:
        steps.append({"type": kind, "tool": {"name": tool}, "content": output})
    return steps


def signs(*calls: Any, answer: str = "It is 7.") -> dict[str, str]:
    steps = [step for one in calls for step in one] or [{"type": "thought", "content": "7"}]
    return signs_of(ReasoningTrace.model_validate(document(steps=steps, answer=answer)))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], {"path": ""}),
        ([call("a", x=1), call("a", x=2), call("b"), call("a", x=3)], {"path": "a > b > a"}),
        ([call("a", None)], {"path": "a", "unanswered": "a"}),
        ([call("a", None), call("b")], {"path": "a > b", "no_output": "a"}),
        ([call("a > b"), call("c")], {"path": "a/b > c"}),
        ([call("a", x=1), call("a", x=1)], {"path": "a", "repeated": "a"}),
        (
            [call("a", "ValueError: no user '17' at 10:45", "error_recovery"), call("b")],
            {"path": "a > b", "recovered": "a: ValueError: no user * at *"},
        ),
        (
            [call("a"), call("b", "Error: busy", "error_recovery")],
            {"path": "a > b", "error": "b: Error: busy"},
        ),
        (
            [call("web", "Error: HTTPError 404 for http://a.org/x?y=1, request 8f2a-11", x=1)],
            {"path": "web", "error": "web: Error: HTTPError 404 for * request *"},
        ),
        (
            [call("a", f"Error: [REDACTED:email] and {'-' * 30} more", "error_recovery")],
            {"path": "a", "error": "a: Error: * and more"},
        ),
        (
            [call("sql", "Error: table 'pets' doesn't exist, it isn't there", "error_recovery")],
            {"path": "sql", "error": "sql: Error: table * doesn't exist, it isn't there"},
        ),
        # To make a call again that failed is a retry.
        (
            [call("a", "Error: busy", "error_recovery", x=1), call("a", x=1)],
            {"path": "a", "recovered": "a: Error: busy"},
        ),
        (
            [call("a", "Error: no I/O. " + "It goes on. " * 5 + "word " * 30)],
            {"path": "a", "error": "a: Error: no I/O" + ". It goes on" * 5},
        ),
        ([call("", "Error: \x1b[2J" + "e" * 900)], None),
        ([call(f"tool{at}") for at in range(40)], None),
    ],
)
def test_the_signs_of_a_run(calls: Any, expected: dict[str, str] | None) -> None:
    shown = signs(*calls)
    if expected is not None:
        assert shown == expected
    assert all(len(text) < 900 and text.isprintable() for text in shown.values())


def test_an_answer_that_says_so_is_a_sign() -> None:
    assert signs(answer="I was unable to find it.") == {"path": "", "unable": ""}
    output = "Sorry, there is no such page."
    assert "unable" in signs(call("a"), answer=output)
    assert "unable" not in signs(call("a", output), answer=output)  # no answer of its own


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("Error: failed for bob@example.com in secret-project-x", "Error: failed for * in *"),
        ("Error: cannot read /home/alice/x.py", "Error: cannot read *"),
        (
            r"Error: cannot read C:\\Users\\alice\\x.py, nor src/alice.py",
            "Error: cannot read *, nor *",
        ),
        ("Error: denied (user=alice, reason = 'not hers', name = bob) & token=abcdef", None),
        ("Error: not found: my_case for Employee Number ZZ", "Error: not found: * for *"),
        ("Error: " + "x" * 388 + " bob@example.com", None),
        ("Error: " + "/" * 390 + " bob@example.com", None),
    ],
)
@pytest.mark.parametrize("level", ["private", "aggregated"])
def test_an_error_is_kept_without_what_identifies_whatever_the_policy(
    error: str, expected: str | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = {"case": "my_case", "employee": "Employee Number [A-Z]+"}
    monkeypatch.setenv("KP_REDACTION", json.dumps({"patterns": patterns}))
    trace = document(steps=call("a", error, "error_recovery"))
    trace["metadata"]["privacy_level"] = level
    shown = signs_of(ReasoningTrace.model_validate(trace))["error"].removeprefix("a: ")
    if expected is not None and (level == "private" or "my_case" not in error):
        assert shown == expected
    assert not any(word in shown for word in ("bob", "alice", "abcdef", "hers"))


def test_only_texts_of_known_kinds_are_signs() -> None:
    damaged = {"path": "a", "error": 7, "unable": None, "else": "x", "repeated": ["a"]}
    assert parse_signs(damaged) == {"path": "a"}
    for value in (None, [], ["path"], "path", 7):
        assert parse_signs(value) == {}


_outputs = st.sampled_from(["out", "Error: busy", None])


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0, 1]), _outputs)))
def test_signs_agree_with_the_flags_of_a_run(calls: Sequence[tuple[str, int, str | None]]) -> None:
    steps = [step for tool, x, output in calls for step in call(tool, output, x=x)]
    trace = ReasoningTrace.model_validate(
        document(steps=steps or [{"type": "thought", "content": "7"}])
    )
    shown, flags = signs_of(trace), flags_of(trace)
    assert bool({"unanswered", "no_output"} & set(shown)) == ("unanswered_call" in flags)
    assert ("error" in shown) == ("last_call_failed" in flags)
    assert ("repeated" in shown) == bool({"same_call_twice", "repeated_calls"} & set(flags))


@pytest.mark.parametrize(
    ("kind", "text", "title"),
    [
        ("path", "", "calls no tool"),
        ("path", "a", "calls a and nothing else"),
        ("path", "a > b", "calls a, then b, and nothing else"),
        ("path", "a > b > c > d > e", "calls a, then b, then 2 more, then e, and nothing else"),
        (
            "path",
            "a > b > c > ... > e",
            "calls a, then b, then many more, then e, and nothing else",
        ),
        ("error", "web: HTTPError 404", "ends on an error of web: HTTPError 404"),
        ("recovered", "web: HTTPError 404", "goes on after an error of web: HTTPError 404"),
        ("unanswered", "web", "ends on a call of web, without an answer"),
        ("no_output", "web", "gets no answer from web"),
        ("repeated", "mail", "repeats mail with the same arguments"),
        ("unable", "", "apologises, or says that it was unable"),
    ],
)
def test_a_sign_in_words(kind: str, text: str, title: str) -> None:
    assert title_of(kind, text) == title
