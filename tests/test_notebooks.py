"""What notebooks show of scores and traces, and flat rows for data frames."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from kp_langchain import DomainPolicy, ReasoningTrace, ScoreBreakdown, ScoredTrace, TraceStore
from kp_langchain.scoring.breakdown import Nearest
from tests.agents import agent, call, handler, say

HOSTILE = "<script>alert(1)</script> </details> & \x1b[2J \u202egnp '\" \ud800 \x00"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> _Tags:
    """Parse HTML whose tags must be balanced."""
    tags = _Tags()
    tags.feed(html)
    assert tags.open == []
    return tags


def scored(text: str = "hedge the euro") -> ScoredTrace:
    watching = handler("finance", policy=DomainPolicy(threshold=0.0))
    acting = agent(say("I search.", call("search", q=text)), say(text))
    acting.invoke({"messages": [("user", text)]}, {"callbacks": [watching]})
    one = watching.last()
    assert one is not None
    return one


def test_a_score_is_shown_as_a_waterfall() -> None:
    breakdown = scored().breakdown.with_worth(0.5)
    shown = read(breakdown._repr_html_())
    for part in ("complexity", "novelty", "single_tool", "-0.100", "worth", "confidence from"):
        assert part in shown.text
    assert shown.tags.count("svg") == 7
    assert f"score {breakdown.total:.3f}" in shown.text


def test_a_trace_is_shown_with_its_steps_folded() -> None:
    one = scored()
    for shown in (read(one.trace._repr_html_()), read(one._repr_html_())):
        assert "hedge the euro" in shown.text
        assert "4 steps" in shown.text
        assert "details" in shown.tags
    assert "kept" in read(one._repr_html_()).text


def test_hostile_texts_stay_text() -> None:
    one = scored(HOSTILE)
    for value in (one, one.trace, one.breakdown):
        shown = read(value._repr_html_())
        assert not {"script", "iframe", "img", "a", "style", "link"} & set(shown.tags)
        assert not {"\x1b", "\u202e", "\x00", "\ud800"} & set(shown.text)
        value._repr_html_().encode()


def test_a_long_text_is_cut_with_a_mark() -> None:
    step = {"step_id": 0, "type": "thought", "content": "x" * 1_000_000}
    trace = ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "other", "success": True},
            "task": {"objective": "y"},
            "steps": [step],
            "outcome": {"result_summary": "z", "confidence": 1},
        }
    )
    assert "[998,000 more characters]" in trace._repr_html_()
    assert len(trace._repr_html_()) < 10_000


def test_rows_are_flat_and_have_the_same_columns() -> None:
    one = scored()
    near = ScoreBreakdown.from_dict(
        one.breakdown.to_dict() | {"nearest": {"trace_id": "kp:trace:1", "similarity": 0.5}}
    )
    assert near.nearest == Nearest("kp:trace:1", 0.5)
    assert near.to_row().keys() == one.breakdown.to_row().keys()
    assert near.to_row()["nearest_id"] == "kp:trace:1"
    row = one.to_row()
    assert all(not isinstance(value, dict | list | tuple) for value in row.values())
    assert row["score"] == one.breakdown.total
    assert row["rules"] == "single_tool"
    assert row["tools"] == "search"
    assert row["steps"] == 4
    assert (row["decision"], row["gate"], row["twin_of"]) == ("kept", "score", None)
    parts = ("complexity", "novelty", "tool_diversity", "outcome_confidence")
    total = sum(row[f"{name}_contribution"] for name in parts)
    assert total == pytest.approx(row["weighted_sum"])


def test_a_stored_run_is_a_row_as_well() -> None:
    with TraceStore("runs.db") as store:
        watching = handler("mail", store=store, policy=DomainPolicy(threshold=0.0))
        asked = {"messages": [("user", "write to jane.roe@acme.org")]}
        agent(say("ok")).invoke(asked, {"callbacks": [watching], "tags": ["a", "b"]})
        assert watching.flush(60)
        (run,) = store.runs()
    row = run.to_row()
    assert (row["tags"], row["tools"]) == ("a,b", "")
    assert all(not isinstance(value, dict | list | tuple) for value in row.values())
    assert row["redacted_email"] == row["redactions"] == 1
    assert row["score"] == run.score
    assert type(run.breakdown) is ScoreBreakdown
