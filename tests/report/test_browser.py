"""The page as a reader uses it, in a real browser; all but the first test run with `-m slow`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import Verdict
from kp_langchain.calibration.basis import NO_BASIS
from kp_langchain.gate.run import ShownTrace
from kp_langchain.scoring import Agreement
from tests.commands import cli
from tests.report.pages import (
    HOSTILE,
    Served,
    Store,
    Watched,
    json_lines,
    searches,
    shown,
    step,
)

Open = Callable[..., Watched]
RECOVERY = [
    step("thought", "I try."),
    step("tool_call", "", "ledger", input={"page": 1}),
    step("error_recovery", "timeout", "ledger"),
    step("tool_call", "", "ledger", input={"page": 2}),
    step("observation", "7 units", "ledger"),
]


@pytest.fixture
def some(store: Store) -> Store:
    """Five runs; listed, the last comes first."""
    store.add("buy bread", searches("bread", "search", "mail"), verdict=Verdict(success=True))
    store.add("sell apples", searches("apples"), verdict=Verdict(success=False, note="none left"))
    store.add("count pears", RECOVERY, domain="code", threshold=0.9)
    store.add("hide plums", searches("plums"), withheld="the redactor failed")
    store.add("say hello", [step("thought", "Hello.")])
    return store


def texts(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_text_contents()]


def test_a_run_full_of_markup_stays_text_and_gets_a_verdict_that_label_takes(
    store: Store, open_in_browser: Open
) -> None:
    steps = [
        step("thought", HOSTILE),
        step("tool_call", HOSTILE, HOSTILE, input={HOSTILE: [HOSTILE, "\ud800"]}),
        step("observation", HOSTILE * 200, HOSTILE),
    ]
    fields: dict[str, Any] = {"domain": HOSTILE, "result": HOSTILE, "withheld": HOSTILE}
    run = store.add(HOSTILE, steps, shown=(ShownTrace(HOSTILE, 2, 0.4),), **fields)
    store.add(HOSTILE, steps, twin_of=run, **fields)
    store.note_planted(run, HOSTILE)
    watched = open_in_browser(store.page())
    page = watched.page
    page.evaluate(
        "window.violations = [];"
        "document.addEventListener('securitypolicyviolation',"
        " event => window.violations.push(event.violatedDirective))"
    )
    page.fill("#search", "<script>")
    page.locator("[data-id]").last.click()
    page.locator(".step").first.wait_for()
    page.get_by_role("button", name="Open or close all").click()
    title = page.text_content("#drawer-title")
    assert "<script>alert(1)</script></script><!--<script>-->" in title
    assert "\ufffdgnp.exe\ufffd" in title
    text = page.get_by_role("dialog").text_content()
    assert {"Shown to it", "Planted"} <= set(texts(page, "dialog dt"))
    assert not set(text) & set("\x00\x1b\u202e\u2066\U000e0041")
    for key in ("c", "k", "c"):
        page.keyboard.press(key)
    page.get_by_text("Two runs side by side").wait_for()
    page.keyboard.press("Escape")
    page.locator("[data-id]").last.click()
    page.fill("#note", HOSTILE.replace("\x00", ""))
    page.locator("#drawer-title").focus()
    page.keyboard.press("n")
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download verdicts").click()
    download.value.save_as("verdicts.jsonl")
    assert "Labelled 1" in cli("label", "import", "verdicts.jsonl", "--database", "runs.db").stdout
    assert [verdict.success for verdict in store.traces.verdicts(run)] == [False]
    assert page.evaluate("document.querySelectorAll('img, script, body style').length") == 3
    assert page.evaluate("window.violations") == []
    assert len(watched.requests) == 1, watched.requests


@pytest.mark.slow
def test_the_newest_run_comes_first_and_sorting_changes_that(
    some: Store, open_in_browser: Open
) -> None:
    page = open_in_browser(some.page()).page
    names = ["say hello", "hide plums", "count pears", "sell apples", "buy bread"]
    assert shown(page) == names
    page.select_option("#sort", "oldest")
    assert shown(page) == names[::-1]
    page.get_by_role("button", name="Score").click()
    assert shown(page)[-1] == "say hello"
    assert page.locator(".runs th[aria-sort=descending]").text_content() == "Score ↓"
    page.get_by_role("button", name="Score").press("Enter")
    assert shown(page)[0] == "say hello"


@pytest.mark.slow
def test_search_and_filters_narrow_the_table(some: Store, open_in_browser: Open) -> None:
    page = open_in_browser(some.page()).page
    page.fill("#search", "BREAD mail")
    assert shown(page) == ["buy bread"]
    assert page.text_content("#count") == "1 of 5 runs"
    page.fill("#search", "nothing at all")
    assert page.get_by_text("No run matches").is_visible()
    page.fill("#search", "")
    for choice, value, expected in (
        ("#domain", "code", ["count pears"]),
        ("#rule", "single_thought", ["say hello"]),
        ("#tool", "ledger", ["count pears"]),
        ("#verdict", "some", ["sell apples", "buy bread"]),
        ("#verdict", "false", ["sell apples"]),
        ("#decision", "kept", ["buy bread"]),
    ):
        page.select_option(choice, value)
        assert shown(page) == expected, choice
        page.select_option(choice, "")
    for tick, expected in (("#recovered", ["count pears"]), ("#withheld", ["hide plums"])):
        page.check(tick)
        assert shown(page) == expected
        page.uncheck(tick)
    assert len(shown(page)) == 5


@pytest.mark.slow
def test_twins_are_found_and_lead_to_the_run_they_repeat(
    store: Store, open_in_browser: Open
) -> None:
    first = store.add("buy bread", threshold=0.1)
    store.add("buy bread again", threshold=0.1, twin_of=first, similarity_to_twin=0.97)
    page = open_in_browser(store.page()).page
    page.select_option("#decision", "twin")
    assert shown(page) == ["buy bread again"]
    page.locator("[data-id]").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_role("button", name="buy bread", exact=True).click()
    assert page.text_content("#drawer-title") == "buy bread"
    assert page.text_content("#position") == "A run outside the list"


@pytest.mark.slow
def test_agreement_flags_and_what_decisions_rest_on_are_shown(
    store: Store, open_in_browser: Open
) -> None:
    for number in range(10):
        store.add(f"buy bread {number}", threshold=0.1, agreement=Agreement(0.62, 4, 3))
    wrong = Agreement(0.2, 4, 0)
    store.add("buy milk", threshold=0.1, agreement=wrong, veto="answer_unable")
    store.add("hedge", domain="code")
    page = open_in_browser(store.page()).page
    assert page.text_content("#notices") == f"code: {NO_BASIS}."
    page.get_by_role("button", name="finance", exact=True).click()
    card = page.locator(".card").first
    assert (
        "Basis: by agreement with other runs of each task; no verdict yet." in card.text_content()
    )
    assert "10 of 11 runs would pass at 0.10" in card.text_content()
    assert "1 run vetoed: answer_unable 1." in card.text_content()
    row = page.locator("tr", has_text="buy milk")
    assert "veto: answer_unable" in row.text_content()
    row.locator("[data-id]").click()
    drawer = page.locator("#inside").text_content()
    for part in (
        "Agreementagrees with 0 of 4 runs of this task, 0.20",
        "Flagsanswer_unable: its answer says that it was unable; vetoes the run",
        "Basisagreement with other runs of its task, without verdicts",
        " (0.75 + novelty / 4); reaches the threshold",
    ):
        assert part in drawer, part
    page.keyboard.press("c")
    page.keyboard.press("j")
    page.keyboard.press("c")
    sides = page.locator("#inside").text_content()
    assert "answer_unable: its answer says that it was unable" in sides
    assert "agrees with 3 of 4 runs of this task, 0.62" in sides


@pytest.fixture
def three_domains(store: Store) -> Store:
    """Thirty runs of `code`, of which the last ten are kept, two of `finance`, one of `travel`."""
    for number in range(30):
        store.add(f"fix {number}", domain="code", threshold=0.1 if number >= 20 else 0.9)
    store.add("buy", threshold=0.1, verdict=Verdict(success=True))
    store.add("sell", threshold=0.1, verdict=Verdict(success=False))
    store.add("fly", domain="travel", threshold=0.9)
    return store


@pytest.mark.slow
def test_the_table_of_domains_compares_them_and_sorts(
    three_domains: Store, open_in_browser: Open
) -> None:
    page = open_in_browser(three_domains.page()).page
    columns = {kind: f".domain .{kind}" for kind in ("name", "total", "kept", "right", "trend")}
    assert texts(page, columns["name"]) == ["code", "finance", "travel"]
    assert texts(page, columns["total"]) == ["30 runs", "2 runs", "1 run"]
    assert texts(page, columns["kept"]) == ["33 % kept", "100 % kept", "0 % kept"]
    assert texts(page, columns["right"]) == ["no verdict", "1 of 2 right", "no verdict"]
    assert texts(page, columns["trend"]) == ["from 0 % to 100 %", "", ""]
    for name, order in (
        ("Kept", ["finance", "code", "travel"]),
        ("Median", ["finance", "code", "travel"]),
        ("Domain", ["code", "finance", "travel"]),
    ):
        heading = page.locator(f'.domains [data-sort="{name}"]')
        heading.press("Enter")
        assert texts(page, columns["name"]) == order
        heading.press("Enter")  # the focus stays
        assert texts(page, columns["name"]) == order[::-1]
        assert page.locator(".domains th[aria-sort]").count() == 1


@pytest.mark.slow
def test_a_domain_unfolds_its_card_and_leads_to_its_runs(
    three_domains: Store, open_in_browser: Open
) -> None:
    three_domains.traces.effects.decide("finance", shows=False)
    page = open_in_browser(three_domains.page()).page
    name = page.get_by_role("button", name="finance", exact=True)
    assert name.get_attribute("aria-expanded") == "false"
    assert page.locator(".card").count() == 0
    name.press("Enter")
    assert name.get_attribute("aria-expanded") == "true"
    assert page.locator(".card").is_visible()
    assert texts(page, ".card .warn")[-1].startswith("Examples, in all runs of the domain: ")
    assert "Nothing is shown: a person stopped examples" in page.text_content(".card")
    assert page.get_by_role("slider", name="Threshold of finance").is_visible()
    page.get_by_role("button", name="Show its 2 runs").press("Enter")
    assert shown(page) == ["sell", "buy"]
    assert page.evaluate("document.activeElement.dataset.id") is not None
    assert page.evaluate("location.hash") == "#domain=finance"
    page.get_by_role("button", name="Clear search and filters").click()
    assert page.text_content("#count") == "33 runs"
    page.locator(".domain", has_text="finance").click(position={"x": 300, "y": 10})
    assert not page.locator(".card").is_visible()


@pytest.mark.slow
def test_a_link_leads_back_to_filters_order_and_an_open_run(
    some: Store, open_in_browser: Open
) -> None:
    watched = open_in_browser(some.page())
    page = watched.page
    page.fill("#search", "e")
    page.select_option("#domain", "finance")
    page.select_option("#verdict", "some")
    page.select_option("#sort", "oldest")
    assert shown(page) == ["buy bread", "sell apples"]
    page.locator("[data-id]").last.click()
    address, run = page.url, page.text_content("dialog code")
    assert run is not None
    assert address.endswith(
        f"#search=e&domain=finance&verdict=some&sort=oldest&run={run.removeprefix('kp:trace:')}"
    )
    page.goto("about:blank")
    watched.go(address)
    assert page.text_content("#drawer-title") == "sell apples"
    assert page.text_content("#position") == "Run 2 of 2"
    page.keyboard.press("Escape")
    page.wait_for_url(lambda address: "run=" not in address)
    assert shown(page) == ["buy bread", "sell apples"]
    page.evaluate("location.hash = 'recovered=yes'")
    page.locator(".runs").get_by_text("count pears").wait_for()
    assert shown(page) == ["count pears"]
    assert page.input_value("#search") == ""
    page.evaluate("location.hash = 'run=nobody&tool=<b>'")
    page.get_by_text("what this page does not have: tool <b>, run nobody.").wait_for()
    assert len(shown(page)) == 5


@pytest.mark.slow
def test_the_texts_of_steps_are_searched_on_request(some: Store, open_in_browser: Open) -> None:
    page = open_in_browser(some.page()).page
    page.fill("#search", "mail KNOWS")
    assert shown(page) == []
    page.check("#in_steps")
    page.locator("[data-id]").first.wait_for()
    assert shown(page) == ["buy bread"]
    page.fill("#search", "timeout ledger")
    assert shown(page) == ["count pears"]
    page.uncheck("#in_steps")
    assert shown(page) == []


@pytest.mark.slow
def test_on_a_narrow_screen_the_filters_are_folded(some: Store, open_in_browser: Open) -> None:
    page = open_in_browser(some.page(), viewport={"width": 390, "height": 844}).page
    assert page.is_visible("#search")
    assert not page.is_visible("#rule")
    page.get_by_role("button", name="Filters").press("Enter")
    page.select_option("#rule", "single_thought")
    assert shown(page) == ["say hello"]
    assert page.text_content("#fold") == "Filters (1)"
    page.locator("#fold").press("Enter")
    assert not page.is_visible("#rule")
    page.set_viewport_size({"width": 1200, "height": 844})
    assert page.is_visible("#rule")


def readout(page: Any) -> str:
    return str(page.text_content(".readout"))


@pytest.mark.slow
def test_the_threshold_follows_mouse_finger_and_keys(store: Store, open_in_browser: Open) -> None:
    store.add("a", searches("a", "search", "mail"), verdict=Verdict(success=True))
    store.add("b", [step("thought", "Hello.")], verdict=Verdict(success=False))
    page = open_in_browser(store.page()).page
    slider = page.get_by_role("slider", name="Threshold of finance")
    assert readout(page).startswith("1 of 2 runs would pass at 0.55 (50 %). 1 of the 1 with")
    box = page.locator(".chart").bounding_box()
    at = lambda share: (box["x"] + box["width"] * share, box["y"] + box["height"] / 2)  # noqa: E731
    page.mouse.move(*at(0.55))
    page.mouse.down()
    page.mouse.move(*at(0.3))
    page.mouse.move(*at(0.05))
    assert readout(page).startswith("2 of 2 runs would pass at 0.05 (100 %). 1 of the 2 with")
    page.mouse.up()
    page.mouse.move(*at(0.9))
    assert slider.get_attribute("aria-valuenow") == "0.05"
    assert page.text_content(".proposal code") == "threshold = 0.05"

    for key, value in (("ArrowRight", "0.06"), ("ArrowDown", "0.05"), ("PageUp", "0.15"),
                       ("Home", "0.00"), ("ArrowLeft", "0.00"), ("End", "1.00")):  # fmt: skip
        slider.press(key)
        assert slider.get_attribute("aria-valuenow") == value
    assert slider.get_attribute("aria-valuetext") == readout(page)
    assert readout(page).startswith("0 of 2 runs would pass at 1.00 (0 %)")
    page.get_by_role("button", name="Back to the threshold in force").click()
    assert slider.get_attribute("aria-valuenow") == "0.55"
    assert not page.is_visible(".proposal")

    narrow = open_in_browser(store.page(), viewport={"width": 360, "height": 740}, has_touch=True)
    narrow.page.locator(".chart").scroll_into_view_if_needed()
    box = narrow.page.locator(".chart").bounding_box()
    narrow.page.touchscreen.tap(*at(0.02))
    assert narrow.page.locator(".handle").get_attribute("aria-valuenow") == "0.02"


@pytest.mark.slow
def test_the_drawer_explains_a_run_and_is_used_by_keys_alone(
    some: Store, open_in_browser: Open
) -> None:
    page = open_in_browser(some.page()).page
    page.locator("[data-id]").nth(2).focus()
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    assert drawer.get_attribute("aria-labelledby") == "drawer-title"
    assert page.text_content("#drawer-title") == "count pears"
    rows = texts(page, ".waterfall td:first-child")
    assert (rows[0], *rows[-2:]) == ("complexity", "rule single_tool", "score")
    figures = [
        float(text.replace("\N{MINUS SIGN}", "-")) for text in texts(page, ".waterfall .number")
    ]
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.03)
    assert "below the threshold of 0.90" in texts(page, ".waterfall .why")[-1]
    outcome = "success, as the run ended; confidence 0.80, assumed, because no verdict states it"
    assert outcome in texts(page, "dialog dd")
    page.locator(".step").first.wait_for()
    assert page.locator(".step[open]").count() == 0
    page.locator(".step summary").nth(2).press("Enter")
    assert page.get_by_text("timeout").last.is_visible()
    is_inside = (
        "document.activeElement === document.body || !!document.activeElement.closest('dialog')"
    )
    for _ in range(40):  # the focus stays inside, or on the browser itself
        page.keyboard.press("Tab")
        assert page.evaluate(is_inside)
    page.locator("#drawer-title").focus()
    page.keyboard.press("j")
    assert page.text_content("#drawer-title") == "sell apples"
    assert texts(page, "dialog li")[0].endswith("reported: failure: none left")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("k")
    assert page.text_content("#drawer-title") == "hide plums"
    assert "Withheld: the redactor failed." in texts(page, "dialog .notice")
    page.keyboard.press("k")
    page.keyboard.press("k")
    assert page.text_content("#said") == "This is the first run of the list."
    page.keyboard.press("Escape")
    assert not drawer.is_visible()
    page.locator("[data-id]:focus", has_text="say hello").wait_for()


@pytest.mark.slow
def test_verdict_keys_make_a_file_that_label_takes(some: Store, open_in_browser: Open) -> None:
    page = open_in_browser(some.page()).page
    page.locator("[data-id]").first.click()
    page.keyboard.press("o")
    page.keyboard.type('no y nor n here: "quoted" <b>')
    page.keyboard.press("Enter")
    page.keyboard.press("n")  # say hello
    assert page.text_content("#drawer-title") == "hide plums"
    page.keyboard.press("y")
    page.keyboard.press("y")  # count pears
    page.keyboard.press("y")  # sell apples
    page.keyboard.press("u")
    assert page.text_content("#drawer-title") == "sell apples"
    assert page.text_content("#said").endswith("is taken back.")
    page.keyboard.press("k")
    page.keyboard.press("n")  # count pears, another answer
    page.keyboard.press("Escape")
    assert page.text_content("#answered") == "3 verdicts given on this page"
    page.select_option("#verdict", "true")
    assert shown(page) == ["hide plums", "buy bread"]

    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.text_content("#answered") == "3 verdicts given on this page"
    with page.expect_download() as download:
        page.get_by_role("button", name="Download verdicts").click()
    assert download.value.suggested_filename == "verdicts.jsonl"
    download.value.save_as("verdicts.jsonl")
    lines = json_lines(Path("verdicts.jsonl"))
    assert [line["success"] for line in lines] == [False, True, False]
    assert lines[0]["note"] == 'no y nor n here: "quoted" <b>'
    done = cli("label", "import", "verdicts.jsonl", "--database", "runs.db")
    assert done.returncode == 0, done.stderr
    assert "Labelled 3" in done.stdout
    (verdict,) = some.traces.verdicts(lines[0]["trace_id"])
    assert (verdict.success, verdict.source) == (False, "label")


def add_alike(store: Store, *, unjudged: int = 3) -> list[str]:
    """Add 40 runs, of which 10 call one tool and fail; return the ids of some without a verdict."""
    for at in range(40):
        failed = at >= 30 or at % 5 == 0
        tool, verdict = "mail" if at >= 30 else "search", Verdict(success=not failed)
        store.add(f"task {at}", searches(str(at), tool), verdict=verdict)
    return [store.add(f"later {at}", searches(str(at), "mail")) for at in range(unjudged)]


@pytest.mark.slow
def test_one_key_judges_a_group_of_failures_that_are_alike(
    store: Store, open_in_browser: Open
) -> None:
    ids = add_alike(store)
    page = open_in_browser(store.page()).page
    group = page.locator(".groups li")
    assert texts(group, "strong") == ["calls mail and nothing else"]
    assert "10 of 10 failed (72 to 100 %), of the domain's other runs 20 %." in group.text_content()
    assert "No verdict: 3 runs." in group.text_content()
    assert "Otherwise" not in group.text_content()
    ask = page.get_by_role("button", name="One verdict for 3 runs without")
    ask.press("Enter")
    assert ask.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == ask.text_content()
    ask.press("Enter")
    page.keyboard.press("y")
    page.get_by_role("button", name="Take back").press("Enter")
    assert not page.is_visible("#answers")
    ask.press("Enter")
    page.keyboard.press("n")
    assert group.locator("[role=status]").text_content().startswith("Failure noted for 3 runs.")
    assert page.text_content("#answered") == "3 verdicts given on this page"
    assert ask.count() == 0
    with page.expect_download() as download:
        page.get_by_role("button", name="Download verdicts").click()
    download.value.save_as("verdicts.jsonl")
    lines = json_lines(Path("verdicts.jsonl"))
    assert sorted(line["trace_id"] for line in lines) == sorted(ids)
    assert {(line["success"], line["note"]) for line in lines} == {
        (False, "given to a group: calls mail and nothing else")
    }
    page.get_by_role("button", name="Go through its 13 runs").press("Enter")
    assert page.text_content("#position") == "Run 1 of 13"


@pytest.mark.slow
def test_two_runs_are_compared_step_by_step(store: Store, open_in_browser: Open) -> None:
    store.add("left", [*searches("bread"), *searches("milk", "mail")])
    store.add("right", [step("thought", "First."), *searches("milk", "mail", "ledger")])
    page = open_in_browser(store.page()).page
    page.locator("[data-id]").last.click()
    page.keyboard.press("c")
    assert page.text_content("#said").startswith("Marked.")
    page.keyboard.press("k")
    page.keyboard.press("c")
    page.get_by_text("Two runs side by side").wait_for()
    assert texts(page, ".sentence") == ["The second scores 0.01 higher, by tool diversity (+0.01)."]
    same = page.locator(".sides tr.same")
    assert same.count() == 1
    left, right = same.locator("summary").all_text_contents()
    assert left.startswith("5 call mail")
    assert right.startswith("2 call mail")
    page.keyboard.press("y")  # no verdict is given here
    assert not page.is_visible("#answers")
    page.get_by_role("button", name="Back to the run").press("Enter")
    assert page.text_content("#drawer-title") == "right"


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_nothing_keeps_a_screen_reader_or_a_keyboard_out(
    some: Store, open_in_browser: Open, scheme: str, width: int
) -> None:
    add_alike(some)
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    viewport = {"width": width, "height": 900}
    page = open_in_browser(some.page(), color_scheme=scheme, viewport=viewport).page

    def findings() -> list[str]:
        return [
            f"{one['id']}: {node['html']}"
            for one in axe.run(page).response["violations"]
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    assert findings() == []
    page.locator("td.name button").first.click()
    page.get_by_role("button", name="One verdict for 3 runs").click()
    assert findings() == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("[data-id]").first.click()
    page.locator(".step").first.wait_for()
    assert findings() == []
    page.keyboard.press("c")
    page.keyboard.press("j")
    page.keyboard.press("c")
    page.get_by_text("Two runs side by side").wait_for()
    assert findings() == []
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= width


@pytest.mark.slow
def test_what_the_answer_claims_is_told_beside_it_and_marked_in_it(
    store: Store, open_in_browser: Open
) -> None:
    steps = [*searches("bread"), step("observation", "It costs 42 dollars.", "search")]
    store.add("price of bread", steps, result="Done: it costs 42 dollars, not 977 or 9770.")
    page = open_in_browser(store.page()).page
    page.locator("[data-id]").click()
    page.locator("dialog mark").first.wait_for()
    assert texts(page, "dialog mark") == ["977", "9770"]
    assert texts(page, "dialog .warn") == ["No tool returned 977, 9770."]
    assert page.get_by_text("Tools returned 42.").is_visible()
    assert page.get_by_text("It sounds done.").is_visible()


@pytest.mark.slow
def test_leaving_with_verdicts_that_were_not_downloaded_asks_first(
    some: Store, open_in_browser: Open
) -> None:
    watched = open_in_browser(some.page())
    page, asked = watched.page, []
    page.on("dialog", lambda dialog: asked.append(dialog.type))
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert asked == []
    page.locator("[data-id]").first.click()
    page.keyboard.press("y")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert asked == ["beforeunload"]
    page.keyboard.press("Escape")
    with page.expect_download():
        page.get_by_role("button", name="Download verdicts").click()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert asked == ["beforeunload"]


@pytest.mark.slow
def test_a_script_that_is_not_the_own_one_does_not_run(store: Store, open_in_browser: Open) -> None:
    store.add()
    page = store.page().replace("</main>", "<script>window.ran = true</script></main>")
    watched = open_in_browser(page)
    assert watched.page.evaluate("window.ran") is None
    assert "Content Security Policy" in watched.complaints.pop()


@pytest.mark.slow
def test_a_verdict_is_stored_and_the_row_follows(
    store: Store, serve: Callable[[], Served], open_in_browser: Open
) -> None:
    run = store.add("buy bread", searches("bread", "search", "mail"), threshold=0.5)
    store.add("sell apples", threshold=0.1)
    page = open_in_browser(serve().address).page
    row = page.locator("tbody tr", has_text="buy bread")
    assert row.locator(".result").text_content() == "kept"
    page.locator("[data-id]").last.click()
    page.fill("#note", "it was stale")
    page.locator("#drawer-title").focus()
    page.keyboard.press("n")
    page.get_by_text("Failure stored for run").wait_for()
    stored = store.traces.get(run)
    assert stored is not None
    assert (stored.success, stored.decision) == (False, "below_threshold")
    (verdict,) = store.traces.verdicts(run)
    assert (verdict.success, verdict.note, verdict.source) == (False, "it was stale", "label")
    assert "it was stale" in page.text_content("#inside")
    page.keyboard.press("Escape")
    assert row.locator(".result").text_content().startswith("outcome confidence \N{MINUS SIGN}")
    assert f"{stored.score:.2f}" in row.text_content()
    assert page.text_content("#answered") == "1 verdict stored"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.select_option("#verdict", "false")
    assert page.locator("[data-id]").all_text_contents() == ["buy bread"]


@pytest.mark.slow
def test_a_verdict_on_a_group_is_stored_for_each_run(
    store: Store, serve: Callable[[], Served], open_in_browser: Open
) -> None:
    ids = add_alike(store)
    page = open_in_browser(serve().address).page
    page.get_by_role("button", name="One verdict for 3 runs without").press("Enter")
    page.keyboard.press("n")
    page.get_by_text("Failure stored for 3 runs.").wait_for()
    for trace_id in ids:
        (verdict,) = store.traces.verdicts(trace_id)
        assert (verdict.success, verdict.source) == (False, "label")
    assert page.text_content("#answered") == "3 verdicts stored"
