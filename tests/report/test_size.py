"""A page of many runs stays small enough to open at once."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from kp_langchain.report.data import ReportData, collect
from kp_langchain.report.page import render
from kp_langchain.report.run_records import body_of
from tests.report.pages import Store, Watched, searches


def test_five_thousand_long_runs_are_below_six_megabytes(
    store: Store, open_in_browser: Callable[..., Watched]
) -> None:
    draw = random.Random(1)
    for number in range(40):
        store.add(f"task {number}", searches(f"{number}", "search", "mail"))
    few = collect(store.traces, {}, limit=100, has_registry=False)
    many = ReportData("runs.db", total=5000)
    for number in range(5000):
        record = few.runs[number % 40]
        # What is drawn keeps one run from being packed as a copy of another.
        objective = draw.randbytes(60).hex()
        many.runs.append(record | {"id": f"kp:trace:{number}", "objective": objective})
        steps = [{"type": "thought", "content": draw.randbytes(1000).hex()}]
        many.bodies.append(body_of(json.dumps({"steps": steps})))
    page = render(many)
    assert 3_000_000 < len(page.encode()) < 6_000_000
    opened = open_in_browser(page).page
    assert opened.text_content("#count") == "5,000 runs"
    opened.locator("[data-id]").first.click()
    opened.locator(".step summary").first.click()
    assert "characters left out" in opened.text_content(".step")
