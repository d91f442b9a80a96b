"""What runs took, as the commands and the page show it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import DomainPolicy, TraceStore
from kp_langchain.report.collect import collect
from kp_langchain.text import short_id
from tests.agents import agent, call, handler, say, search
from tests.commands import cli
from tests.recording.test_usage import LARGE, SMALL, counted

DATABASE = ("--database", "runs.db")
PRICES = """
[prices."small-1"]
input = 1000
cached = 500
output = 5000
"""


def printed(*words: str, columns: int = 120) -> str:
    done = cli(*words, *DATABASE, columns=columns)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.fixture
def ids() -> dict[str, str]:
    """The trace ids of a cheap run, a dear one, and one of which nothing is reported."""
    read = counted(say("I read.", call("search", q="a")), 1000, 100, cached=400)
    scripts = {
        "cheap": [counted(say("blue"), 100, 10)],
        "dear": [read, counted(say("red"), 2000, 50, thought=20)],
        "silent": [say("green")],
        "unpriced": [counted(say("grey"), 7, 3, model=LARGE)],
    }
    found = {}
    with TraceStore("runs.db") as store:
        policy = DomainPolicy(threshold=0.0, twin_similarity=1.0)
        watching = handler("finance", store=store, policy=policy)
        for name, answers in scripts.items():
            runnable = agent(*answers, tools=(search,))
            inputs = {"messages": [("user", f"the {name} task")]}
            runnable.invoke(inputs, {"callbacks": [watching]})
            scored = watching.last()
            assert scored is not None
            found[name] = scored.trace.id
    Path("kp.toml").write_text(PRICES)
    return found


def lines_with(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


def test_a_wide_list_has_tokens_time_and_cost(ids: dict[str, str]) -> None:
    wide = printed("review", columns=160)
    (dear,) = lines_with(wide, short_id(ids["dear"]))
    assert "3,150" in dear
    assert "$3.55" in dear  # (2,600 x 1,000 + 400 x 500 + 150 x 5,000) millionths
    (unpriced,) = lines_with(wide, short_id(ids["unpriced"]))
    assert "$" not in unpriced
    assert "$" not in printed("review", columns=120)


def test_a_run_says_what_it_took_and_why_its_cost_is_not_known(ids: dict[str, str]) -> None:
    text = printed("review", ids["dear"])
    assert f"3,000 in (400 cached), 150 out (20 reasoning) by {SMALL}" in text
    assert "2 model calls, 1 tool call" in text
    assert lines_with(text, "cost  ")[0].split() == ["cost", "$3.55"]
    silent = printed("review", ids["silent"])
    assert "not known: no call of a model reported them" in silent
    assert not lines_with(silent, "cost  ")
    assert f"no price of {LARGE}; see [prices]" in printed("review", ids["unpriced"])
    as_json = json.loads(printed("review", ids["dear"], "--json"))
    assert as_json["cost"] == pytest.approx(3.55)
    assert as_json["usage"]["total_tokens"] == 3150


def test_statistics_say_what_a_success_costs(ids: dict[str, str]) -> None:
    Path("kp.toml").write_text(PRICES + '[prices."large-1"]\ninput = 0\noutput = 0\n')
    cli("label", ids["dear"], "--success", *DATABASE)
    for name in ("cheap", "silent", "unpriced"):
        cli("label", ids[name], "--failure", *DATABASE)
    text = printed("review", "stats")
    every, *_, successful = (
        line.split() for line in text.splitlines() if line.split()[:1] in (["all"], ["successful"])
    )
    assert every[1:3] == ["4", "1,090"]  # of the three that report tokens
    assert successful[1:3] == ["1", "3,150"]
    assert successful[-5:-3] == ["3,270", "tokens,"]  # all four, for the one success
    assert successful[-1] == "$3.70"


def test_a_comparison_says_how_much_more_the_second_took(ids: dict[str, str]) -> None:
    text = printed("review", "compare", ids["cheap"], ids["dear"])
    (tokens,) = lines_with(text, "tokens  ")
    assert tokens.split() == ["tokens", "110", "3,150", "+2764%"]
    assert lines_with(text, "cost  ")[0].split() == ["cost", "$0.15", "$3.55", "+2267%"]
    assert "tokens" not in printed("review", "compare", ids["silent"], ids["silent"])


def test_the_page_has_it_too(ids: dict[str, str]) -> None:
    with TraceStore("runs.db") as store:
        data = collect(store, {}, limit=10)
    record: dict[str, Any] = next(one for one in data.runs if one["id"] == ids["dear"])
    assert ["cost", "$3.55"] in record["usage"]
    assert ["tokens", 3150, "3,150"] in record["took"]
    (domain,) = data.domains
    assert domain["usage"][0][:2] == ["all (4)", "1,090"]


DAMAGE = {
    "usage": [
        "json_set(usage, '$.duration_ms', 'long')", "json_set(usage, '$.models[0].model', 7)",
        "json_set(usage, '$.models[0].input_tokens', 'x')",
        "json_set(usage, '$.retries', json('[]'))",
        "json_set(usage, '$.total_tokens', null)", "'[1]'", "'{}'", "'null'",
    ],
    "signs": ["'[1]'", "json_object('error', json('[3]'))"],
}  # fmt: skip
COMMANDS = ("review", "review --json", "review {id}", "review compare {id} {id}", "review stats",
            "report --html page.html", "export --format atif --all -o runs.jsonl",
            "label next --json", "review failures")  # fmt: skip


@pytest.mark.parametrize(("column", "value"), [(c, one) for c in DAMAGE for one in DAMAGE[c]])
def test_a_row_that_another_program_damaged_costs_what_it_said_alone(
    ids: dict[str, str], column: str, value: str
) -> None:
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        where = f"WHERE trace_id = '{ids['dear']}'"
        connection.execute(f"UPDATE runs SET {column} = {value} {where}")  # noqa: S608
        connection.execute(f"UPDATE bodies SET model_calls = '[3]' {where}")  # noqa: S608
        connection.execute("UPDATE tool_sets SET definitions = '[{}, 3]'")
    for command in COMMANDS:
        done = cli(*command.format(id=ids["dear"]).split(), *DATABASE, columns=160)
        assert done.returncode == 0, (command, done.stderr)
        assert "Traceback" not in done.stderr
