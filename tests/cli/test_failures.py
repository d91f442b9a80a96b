"""`review failures` and `label failures`: groups in the terminal, and one verdict for a group."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from kp_langchain import ScoredTrace, TraceStore, Verdict
from tests.cli.made_runs import HOSTILE, made
from tests.cli.terminal import Terminal
from tests.commands import Done, cli

UNJUDGED = ("40", "41", "42")
QUESTION = "?  y "  # of the groups, and whether that is meant


def run(
    number: int, tool: str, *, success: bool | None, task: str = "compare quarter", **wire: Any
) -> ScoredTrace:
    """A run of a task of its own that calls a tool, perhaps with a verdict."""
    steps = [
        {"type": "tool_call", "tool": {"name": tool}, "input": {"page": number}},
        {"type": "observation", "tool": {"name": tool}, "content": f"page {number}"},
    ]
    verdict = None if success is None else Verdict(success=success, source="desk")
    options = {"verdict": verdict} | wire.pop("options", {})
    return made(number, steps=steps, objective=f"{task} {number}", options=options, **wire)


def fill(tool: str = "mail", unjudged: int = 3, **wire: Any) -> None:
    """Add 40 runs, of which 10 call one tool and fail, and some of those without a verdict."""
    runs = [run(at, "search", success=at % 5 > 0, **wire) for at in range(30)]
    runs += [run(at, tool, success=False, **wire) for at in range(30, 40)]
    runs += [run(at, tool, success=None, **wire) for at in range(40, 40 + unjudged)]
    with TraceStore("runs.db") as store:
        store.add(*runs)


def failures(*words: str, columns: int = 80) -> str:
    done = cli("review", "failures", *words, "--database", "runs.db", columns=columns)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def answer(answers: str, *words: str) -> Done:
    return cli("label", "failures", *words, "--database", "runs.db", stdin=answers)


def given() -> dict[str, list[bool | None]]:
    """What verdicts of this command say, by the number of the run."""
    with TraceStore("runs.db") as store:
        return {
            one.objective.split()[-1]: [v.success for v in found]
            for one in store.runs(limit=None)
            if (found := [v for v in store.verdicts(one.trace_id) if v.source == "label"])
        }


def test_groups_are_shown_with_their_share_an_example_and_what_successes_did() -> None:
    fill()
    printed = failures()
    assert max(map(len, printed.splitlines())) <= 80
    text = " ".join(printed.split())
    assert text.startswith(
        "finance: 1 group holds 10 of 16 failures in 40 runs with a verdict; "
        "40 % failed (26 to 55 %)."
    )
    assert "1. calls mail and nothing else 10 of 10 failed (72 to 100 %), of the domain's" in text
    assert "domain's other runs 20 %" in text
    assert "example 00000039 compare quarter 39" in text
    assert "why (example) " in text
    assert "otherwise" not in text  # no other run of these tasks succeeded
    assert "no verdict 3 runs have none" in text
    assert text.endswith("One verdict for all runs of a group: kp-langchain label failures")
    (line,) = failures("--json").splitlines()
    (group,) = json.loads(line)["groups"]
    assert (group["title"], group["failures"], len(group["unjudged"])) == (
        "calls mail and nothing else",
        10,
        3,
    )
    assert group["otherwise"] is None


def test_a_run_whose_trace_is_gone_has_its_signs_and_is_not_asked_about() -> None:
    gone = {"keep_body": False}
    fill(unjudged=1)
    with TraceStore("runs.db") as store:
        store.add(run(50, "mail", success=False, options=gone))
        store.add(run(51, "mail", success=None, options=gone))
    (group,) = json.loads(failures("--json"))["groups"]
    assert group["failures"] == 11
    assert [id_[9:17] for id_ in group["unjudged"]] == ["00000040"]


def test_what_successes_did_otherwise_goes_by_all_tools_of_a_long_run() -> None:
    def long(number: int, *, success: bool) -> ScoredTrace:
        tools = [f"tool {at}" for at in range(20 if success else 8)]
        if not success:
            tools.append("mail > all")
        steps = [{"type": "tool_call", "tool": {"name": tool}, "input": {}} for tool in tools]
        steps += [{"type": "observation", "tool": {"name": tool}, "content": "x"} for tool in tools]
        options = {"verdict": Verdict(success=success, source="desk")}
        return made(number, steps=steps, objective=f"task {number % 10}", options=options)

    with TraceStore("runs.db") as store:
        store.add(*[long(at, success=at < 30) for at in range(50)])
    (group,) = json.loads(failures("--json"))["groups"]
    assert group["otherwise"] == (
        "30 other runs of these tasks succeeded; 30 of them call tool 10, of the 20 failures 0; "
        "0 of them call mail > all, of the 20 failures 20"
    )


@pytest.mark.parametrize(
    "signs", ["[1]", "not JSON", "7", "null", '{"path": 7, "error": [], "what": "a"}', "[" * 9999]
)
def test_damaged_signs_are_none(signs: str) -> None:
    def damage(statement: str) -> None:
        with closing(sqlite3.connect("runs.db")) as database, database:
            database.execute(statement, [signs])

    fill()
    damage("UPDATE runs SET signs = ?")
    for words in ("label next --json", "label failures", "report --html page.html"):
        done = cli(*words.split(), "--database", "runs.db", stdin="")
        assert done.returncode == 0, done.stderr
    damage("UPDATE runs SET tools = ?")
    assert "No failures of finance are alike beyond chance" in " ".join(failures().split())


def test_it_says_where_there_is_no_group_or_no_run() -> None:
    with TraceStore("runs.db") as store:
        store.add(
            *[run(at, "mail" if at % 3 else "search", success=at % 2 > 0) for at in range(30)]
        )
    text = " ".join(failures().split())
    assert "No failures of finance are alike beyond chance: 15 failures in 30 runs" in text
    assert "No run of 30 matches" in failures("--domain", "code")
    assert failures("--domain", "code", "--json") == ""


def test_without_verdicts_it_goes_by_how_runs_ended() -> None:
    with TraceStore("runs.db") as store:
        store.add(*[run(at, "search", success=None) for at in range(30)])
    text = " ".join(failures().split())
    assert text == "finance: no failures in 30 runs, as the runs ended; no verdicts yet."
    with TraceStore("runs.db") as store:
        store.add(*[run(at, "mail", success=False) for at in range(30, 39)])
        for one in store.runs(limit=9):
            store.report_outcome(one.trace_id, success=False)
    text = " ".join(failures().split())
    assert "9 of 9 failures in 39 runs, as the runs ended; 9 verdicts are too few; 23 %" in text


def test_one_answer_and_its_confirmation_judge_all_runs_of_a_group() -> None:
    fill()
    done = answer("n\nn\nm\nn\ny\n")
    assert done.returncode == 0, done.stderr
    assert given() == {key: [False] for key in UNJUDGED}
    assert "Give 3 runs the verdict failure?" in done.stdout
    assert "Labelled 3" in done.stdout
    with TraceStore("runs.db") as store:
        (verdict,) = store.verdicts("kp:trace:00000040-0000-4000-8000-000000000000")
    assert verdict.note == "given to a group: calls mail and nothing else"
    assert "No group of failures has a run to judge." in answer("").stdout


def test_the_runs_of_a_group_show_what_tells_and_no_option_that_is_not_there() -> None:
    fill(unjudged=0)
    steps = [
        {"type": "tool_call", "tool": {"name": "mail"}, "input": {}},
        {"type": "error_recovery", "tool": {"name": "mail"}, "content": "Error: box 7 is full"},
        {"type": "tool_call", "tool": {"name": "mail"}, "input": {}},
        {"type": "observation", "tool": {"name": "mail"}, "content": "sent"},
    ]
    hint = Verdict(confidence=0.3, note="look at this one", source="desk")
    with TraceStore("runs.db") as store:
        store.add(made(40, steps=steps, objective="task 40", options={"verdict": hint}))
    text = " ".join(answer("m\ns\n").stdout.split())
    assert "--steps" not in text
    assert "last error mail() -> Error: box 7 is full" in text
    assert "success not stated" in text
    assert "look at this one" in text


@pytest.mark.parametrize("answers", ["", "q\n", "s\n", "n\n", "n\nn\nq\n", "y\nq\nq\n", "x\ns\n"])
def test_nothing_is_stored_without_a_confirmation(answers: str) -> None:
    fill()
    done = answer(answers)
    assert done.returncode == 0, done.stderr
    assert given() == {}
    assert "Labelled 0" in done.stdout
    assert ("x leads nowhere" in done.stderr) == answers.startswith("x")


def test_single_keys_answer_in_a_terminal() -> None:
    fill()
    words = ("label", "failures", "--database", "runs.db")
    with Terminal(*words, prompt=QUESTION) as opened:
        opened.press("y")
        opened.press("y")
        assert opened.end() == 0
    assert given() == {key: [True] for key in UNJUDGED}


def test_texts_of_runs_control_nothing() -> None:
    fill(HOSTILE, task=HOSTILE, domain=HOSTILE)
    for printed in (failures(), failures("--json"), answer("m\ns\n").stdout):
        assert not set(printed) & set("\x07\x1b\x9b\r\u202e\u2066")
        assert "ERROR forged" not in [line.strip() for line in printed.splitlines()]
    assert "1 group holds 10 of 16 failures" in " ".join(failures().split())
