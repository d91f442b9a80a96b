"""On the page: what a run was shown, what its trace did for others, why no run is shown it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import sqlalchemy as sa

from kp_langchain.embedding.identity import EmbedderIdentity
from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.report.data import collect, read_record
from kp_langchain.report.page import render
from kp_langchain.store import Verdict
from kp_langchain.store.recall_entries import TaskEntry
from tests.report.pages import Store, Watched

HOSTILE = "<img src=x onerror=alert(1)></script> \x1b[2J \u202egpj {{ 7 * 7 }}"


def records(store: Store) -> dict[str, dict[str, Any]]:
    """What the page has of each run, by the id of its trace."""
    return {
        run["id"]: run for run in collect(store.traces, {}, limit=5000, has_registry=False).runs
    }


def note_planted(store: Store, trace_id: str, kinds: str) -> None:
    entry = TaskEntry(None, kinds)
    store.traces.recall_entries.write({trace_id: entry}, EmbedderIdentity("words", "1"), 1)


def judged(store: Store, shown: str, *, success: bool, held_out: bool = False, **more: Any) -> str:
    """Add a run that was shown a trace; return its id."""
    trace_id = store.add(
        "a later run",
        shown=(ShownTrace(shown, 1, 0.834, held_out),),
        threshold=0.9,
        **more,
    )
    store.traces.report_outcome(trace_id, success=success)
    return trace_id


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """The statements of the store meanwhile."""
    made: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        made.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_a_run_has_what_it_was_shown_and_its_credit(store: Store) -> None:
    first = store.add("buy bread", threshold=0.1)
    good = judged(store, first, success=True)
    held_out = judged(store, first, success=False, held_out=True)
    elsewhere = judged(store, first, success=False, domain="code")
    note_planted(store, good, "override, for later runs")
    runs = records(store)
    assert runs[first]["shown"] is None
    assert runs[first]["credit"].endswith(": shown to 1 run, held out from 1")
    assert runs[first]["planted"] is None
    assert runs[good]["shown"] == [[first, "similarity 0.83"]]
    assert runs[good]["credit"] is None
    assert runs[good]["planted"] == (
        "no run is shown it, because it has what looks like planted instructions: "
        "override, for later runs"
    )
    assert runs[held_out]["shown"] == [[first, "held out, similarity 0.83"]]
    assert runs[elsewhere]["shown"] == [[first, "similarity 0.83"]]


def test_of_many_the_first_are_named(store: Store) -> None:
    shown = tuple(ShownTrace(f"kp:trace:{number}", number, 0.5) for number in range(1, 31))
    one = store.add(shown=shown)
    rows = records(store)[one]["shown"]
    assert [row[0] for row in rows[:20]] == [f"kp:trace:{number}" for number in range(1, 21)]
    assert rows[20:] == [[None, "and 10 more"]]


def test_after_a_verdict_a_run_keeps_its_credit_on_the_page(store: Store) -> None:
    first = store.add("buy bread", threshold=0.1)
    later = judged(store, first, success=True)
    record = read_record(store.traces, first, has_registry=False)
    assert record is not None
    assert "credit" not in record  # so that the page keeps what it has
    record = read_record(store.traces, later, has_registry=False)
    assert record is not None
    assert record["shown"] == [[first, "similarity 0.83"]]


def test_no_run_costs_a_query_of_its_own(store: Store) -> None:
    first = store.add("buy bread", threshold=0.1)
    for _ in range(3):
        judged(store, first, success=True)
    with statements(store) as few:
        records(store)
    for number in range(180):
        store.add(f"task {number}", shown=(ShownTrace(first, 1, 0.5),))
    with statements(store) as many:
        assert len(records(store)) == 184
    assert len(few) == len(many)
    assert sum("shown_traces" in one for one in many) == 2


def test_damaged_rows_cost_only_these_facts(store: Store) -> None:
    first = store.add("buy bread", threshold=0.1, verdict=Verdict(success=True))
    later = judged(store, first, success=True)
    note_planted(store, first, "override")
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("UPDATE shown_traces SET similarity = 'much', rank = X'FF'")
        connection.execute("UPDATE recall_entries SET planted = X'FF'")
    runs = records(store)
    assert runs[later]["shown"] == [[first, "similarity 0.00"]]
    assert runs[first]["planted"].startswith("no run is shown it")
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("UPDATE shown_traces SET shown_id = X'FF'")
    assert runs.keys() >= records(store).keys() >= {first}
    render(collect(store.traces, {}, limit=100, has_registry=False))


def test_the_drawer_shows_them_and_leads_to_the_run_that_was_shown(
    store: Store, open_in_browser: Callable[..., Watched]
) -> None:
    first = store.add("buy bread", threshold=0.1)
    judged(store, first, success=True)
    judged(store, first, success=True, held_out=True)
    store.add("shown what is gone", shown=(ShownTrace("kp:trace:gone", 1, 0.4),))
    note_planted(store, first, "override")
    page = open_in_browser(store.page()).page

    def facts() -> dict[str, str]:
        names = page.locator("dialog dt").all_text_contents()
        return dict(zip(names, page.locator("dialog dd").all_text_contents(), strict=True))

    page.locator("[data-id]").first.click()
    assert facts()["Shown to it"] == "similarity 0.40: kp:trace:gone (not on this page)"
    page.keyboard.press("j")
    assert facts()["Shown to it"] == "held out, similarity 0.83: buy bread"
    assert not {"Credit", "Planted"} & facts().keys()
    page.get_by_role("dialog").get_by_role("button", name="buy bread").first.click()
    assert page.text_content("#drawer-title") == "buy bread"
    assert facts()["Credit"].endswith("shown to 1 run, held out from 1")
    assert facts()["Planted"].endswith("planted instructions: override")
    assert "Shown to it" not in facts()


def test_markup_in_any_of_it_stays_text(
    store: Store, open_in_browser: Callable[..., Watched]
) -> None:
    first = store.add(HOSTILE, threshold=0.1, domain=HOSTILE)
    later = store.add("later", shown=(ShownTrace(first, 1, 0.5), ShownTrace(HOSTILE, 2, 0.4)))
    note_planted(store, first, HOSTILE)
    note_planted(store, later, HOSTILE)
    watched = open_in_browser(store.page())
    page = watched.page
    page.locator("[data-id]").first.click()
    drawer = page.get_by_role("dialog")
    text = drawer.text_content()
    assert "<img src=x onerror=alert(1)></script>" in text
    assert not set(text) & set("\x1b\u202e")
    drawer.get_by_role("button", name="<img").first.click()
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert len(watched.requests) == 1
