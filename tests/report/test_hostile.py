"""What runs contain stays text, whatever it is, and damage costs no more than its own run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kp_langchain.report.data import collect
from kp_langchain.report.page import render
from kp_langchain.report.text import Excerpt, show_invisible
from kp_langchain.store import Verdict
from tests.report.pages import Store, Watched, searches, step

HOSTILE = (
    "<script>alert(1)</script></script><!--<script>--><img src=x onerror=alert(1)>"
    "<style>*{display:none}</style>javascript:alert(1) data:text/html,<b>"
    "{{ 7 * 7 }}{% raw %}${7*7}`\\u003cscript\\u003e&lt;b&gt;\"'"
    "\x1b[2J\x1b]8;;http://example.com\x07 \x00 \u202egnp.exe\u202c \u2066x\u2069 \U000e0041"
    " \ufffe \u2028"
)


@pytest.fixture
def hostile(store: Store) -> Store:
    steps = [
        step("thought", HOSTILE),
        step("tool_call", HOSTILE, HOSTILE, input={HOSTILE: [HOSTILE, "\ud800"]}),
        step("observation", HOSTILE * 200, HOSTILE),
    ]
    verdict = Verdict(success=True, note=HOSTILE, source=HOSTILE[:90])
    first = store.add(
        HOSTILE, steps, domain=HOSTILE, result=HOSTILE, withheld=HOSTILE, verdict=verdict
    )
    store.add(HOSTILE, steps, domain=HOSTILE, result=HOSTILE, twin_of=first)
    return store


def test_a_trace_full_of_markup_runs_nothing(
    hostile: Store, open_in_browser: Callable[..., Watched]
) -> None:
    text = hostile.page()
    watched = open_in_browser(text)
    page = watched.page
    page.evaluate(
        "window.violations = [];"
        "document.addEventListener('securitypolicyviolation',"
        " event => window.violations.push(event.violatedDirective))"
    )
    assert page.evaluate("document.querySelectorAll('script').length") == 3
    for _ in range(2):
        page.locator("[data-id]").last.click()
        page.locator(".step").first.wait_for()
        page.get_by_role("button", name="Open or close all").click()
        page.keyboard.press("c")
        page.keyboard.press("k")
        page.keyboard.press("c")
        page.get_by_text("Two runs side by side").wait_for()
        page.keyboard.press("Escape")
    assert page.evaluate("document.querySelectorAll('img, script, body style').length") == 3
    page.locator("[data-id]").first.click()
    title = page.text_content("#drawer-title")
    assert "<script>alert(1)</script></script><!--<script>-->" in title
    assert "\N{SYMBOL FOR ESCAPE}[2J" in title
    assert "[U+202E]gnp.exe[U+202C]" in title
    assert not set(title) & set("\x00\x1b\u202e\u2066\U000e0041")
    page.fill("#note", HOSTILE.replace("\x00", ""))
    page.locator("#drawer-title").focus()
    page.keyboard.press("y")
    page.keyboard.press("Escape")
    page.fill("#search", "<script>")
    assert page.evaluate("window.violations") == []
    assert len(watched.requests) == 1, watched.requests


def test_the_policy_forbids_all_but_the_own_script_and_style(store: Store) -> None:
    page = store.page()
    head = page.split("<style>")[0]
    assert "default-src &#39;none&#39;; script-src &#39;sha256-" in head
    assert "base-uri &#39;none&#39;; form-action &#39;none&#39;" in head
    assert "unsafe" not in head
    assert "connect-src" not in head
    for part in ("http://", "https://", "eval("):
        assert part not in page


def test_a_script_that_is_not_the_own_one_does_not_run(
    store: Store, open_in_browser: Callable[..., Watched]
) -> None:
    page = store.page().replace("</main>", "<script>window.ran = true</script></main>")
    watched = open_in_browser(page)
    assert watched.page.evaluate("window.ran") is None
    assert "Content Security Policy" in watched.complaints.pop()


def test_megabytes_of_text_are_cut_with_a_mark(
    store: Store, open_in_browser: Callable[..., Watched]
) -> None:
    steps = [step("thought", "word " * 400_000 + "end"), *searches("it") * 200]
    store.add("x" * 50_000, steps, result="y" * 3_000_000)
    text = store.page()
    assert len(text) < 200_000
    page = open_in_browser(text).page
    page.locator("[data-id]").click()
    page.locator(".step summary").first.click()
    shown = page.locator(".step[open]").text_content()
    assert "1,998,003 characters left out" in shown
    assert shown.rstrip().endswith("end")
    assert "more steps left out" in page.text_content("#inside")
    assert "49,400 characters left out" in page.text_content("#drawer-title")


def test_excerpts_are_counted_right_however_often_they_are_cut() -> None:
    text = "abcdefgh" * 1000
    once = Excerpt.of(text, 2000)
    for limit_chars in (2000, 1000, 60, 10, 1):
        cut = once.shortened(limit_chars)
        assert len(cut.head) + len(cut.tail) == limit_chars
        assert cut.left_out == len(text) - limit_chars
        assert text.startswith(cut.head)
        assert text.endswith(cut.tail)
    assert Excerpt.of("short", 10).to_json() == "short"
    assert Excerpt.of("short", 10).shortened(4).to_json() == ["sho", 1, "t"]


def test_what_is_invisible_is_shown_and_words_stay_whole() -> None:
    assert show_invisible("a\x00b\x1bc\x7f") == (
        "a\N{SYMBOL FOR NULL}b\N{SYMBOL FOR ESCAPE}c\N{SYMBOL FOR DELETE}"
    )
    assert show_invisible("\u202ea\ud800\u200b\ufeff") == "[U+202E]a[U+D800][U+200B][U+FEFF]"
    assert show_invisible("one\r\ntwo\rthree\u2028four\tfive") == "one\ntwo\nthree\nfour\tfive"
    for text in ("\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u3000", "e\u0301"):
        assert show_invisible(text) == text


def test_damaged_rows_and_bodies_cost_their_own_run_alone(
    store: Store, open_in_browser: Callable[..., Watched]
) -> None:
    ids = [store.add(f"task {number}", verdict=Verdict(success=True)) for number in range(9)]
    store.traces.close()
    changes = [
        ("runs", "body", "{not json"),
        ("runs", "body", json.dumps({"steps": 7})),
        ("runs", "body", json.dumps({"steps": ["x"]})),
        ("runs", "breakdown", "{not json"),
        ("runs", "breakdown", json.dumps({"total": "much"})),
        ("runs", "breakdown", "null"),
        ("runs", "created_at", "no time"),
        ("verdicts", "at", "no time"),
    ]
    with closing(sqlite3.connect("runs.db")) as connection:
        for trace_id, (table, column, value) in zip(ids, changes, strict=False):
            connection.execute(
                f"UPDATE {table} SET {column} = ? WHERE trace_id = ?",  # noqa: S608
                (value, trace_id),
            )
        connection.execute("UPDATE runs SET score = 9e999 WHERE trace_id = ?", (ids[8],))
        connection.commit()
    data = collect(store.traces, {}, limit=100, has_registry=False)
    whole = [f"task {number}" for number in (0, 1, 2, 7, 8)]
    assert sorted(run["objective"] for run in data.runs) == whole
    assert (data.damaged_runs, data.damaged_traces) == (4, 3)
    page = open_in_browser(render(data)).page
    assert page.locator(".top .notice").all_text_contents()[:2] == [
        "4 of the store's rows cannot be read, and are left out.",
        "3 of the stored traces cannot be read. Their runs have no steps here.",
    ]
    assert page.locator("[data-id]").count() == 5


def test_the_script_is_small_and_makes_no_markup_of_data() -> None:
    folder = Path(__file__).parents[2] / "kp_langchain" / "report" / "templates"
    script = (folder / "page.js").read_text(encoding="utf-8")
    assert len(script.encode()) <= 30_000
    assert "</script" not in script.lower()
    assert "</style" not in (folder / "page.css").read_text(encoding="utf-8").lower()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "import"):
        assert word not in script
