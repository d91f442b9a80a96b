"""What `review` lists, explains, counts and compares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kp_langchain import DomainPolicy, Scorer, TraceStore
from kp_langchain.printable import short_id
from tests.agents import agent, call, handler, say, searching
from tests.cli.judged import fill
from tests.commands import cli, cli_apart

DATABASE = ("--database", "runs.db")
PASSES = DomainPolicy(threshold=0.0, twin_similarity=1.0)


def printed(*words: str, columns: int = 120, **environment: str) -> str:
    """Run a command on `runs.db`, and return what it prints."""
    done = cli(*words, *DATABASE, columns=columns, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def listed(*words: str) -> list[str]:
    """The objectives of the runs that `review` lists."""
    return [
        json.loads(line)["objective"] for line in printed("review", *words, "--json").splitlines()
    ]


def record(store: TraceStore, subject: Any, objective: str, **options: Any) -> str:
    """Have an agent run with a handler; return the id of its trace."""
    options.setdefault("policy", PASSES)
    watching = handler(options.pop("domain", "finance"), store=store, **options)
    asked = {"messages": [("user", objective)]}
    subject.invoke(
        asked, {"callbacks": [watching], "metadata": {"session_id": "desk 7"}, "tags": ["nightly"]}
    )
    scored = watching.last()
    assert scored is not None
    return scored.trace.id


@pytest.fixture
def ids() -> Iterator[dict[str, str]]:
    """The trace ids of three runs, by a word of their objective."""
    private = "my mail is jane.roe@acme.org and again jane.roe@acme.org"
    wrong = [say("I try.", call("broken", x="a")), say("Again.", call("search", q="a")), say("7")]
    with TraceStore("runs.db") as store:
        yield {
            "hedge": record(store, searching(), "hedge the euro"),
            "mail": record(store, searching(), private, domain="mail"),
            "repair": record(
                store,
                agent(*wrong, middleware=[_surface_errors()]),
                "repair the pump",
                domain="code",
            ),
        }


def _surface_errors() -> Any:
    from langchain.agents.middleware import wrap_tool_call
    from langchain_core.messages import ToolMessage

    @wrap_tool_call
    def surface(request: Any, run_tool: Any) -> Any:
        try:
            return run_tool(request)
        except ValueError as error:
            return ToolMessage(str(error), tool_call_id=request.tool_call["id"], status="error")

    return surface


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--domain", "code"], ["repair"]),
        (["--search", "EURO"], ["hedge"]),
        (["--search", "nothing like it"], []),
        (["--tool", "broken"], ["repair"]),
        (["--tool", "search"], ["hedge", "mail", "repair"]),
        (["--rule", "single_tool"], ["hedge", "mail"]),
        (["--recovered-errors"], ["repair"]),
        (["--near-duplicates"], []),
        (["--decision", "kept"], ["hedge", "mail", "repair"]),
        (["--decision", "below_threshold"], []),
        (["--tag", "nightly"], ["hedge", "mail", "repair"]),
        (["--session", "desk 7"], ["hedge", "mail", "repair"]),
        (["--session", "desk 8"], []),
        (["--where", "session=desk 7", "--domain", "mail"], ["mail"]),
        (["--since", "1h"], ["hedge", "mail", "repair"]),
        (["--until", "1h"], []),
        (["--since", "2020-01-01", "--until", "2020-02-01T12:00"], []),
        (["--min-score", "0.99"], []),
        (["--sort", "score", "--limit", "1"], ["repair"]),
    ],
)  # fmt: skip
def test_options_select_runs(ids: dict[str, str], options: list[str], expected: list[str]) -> None:
    objectives = listed(*options)
    assert {word for word in ids if any(word in one for one in objectives)} == set(expected)
    table = printed("review", *options)
    assert all(short_id(ids[word]) in table for word in expected)
    assert expected or "No run of 3 matches" in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--since", "soon"], "--since soon: not a time; write a date (2026-03-31), "),
        (["--until", "99999999d"], "--until 99999999d: not a time"),
        (["--since", "9999999w"], "--since 9999999w: not a time"),
        (["--rule", "single"], "there is no such rule; the rules are single_thought, "),
        (["--session", "a", "--where", "session=b"], "--session and --where session=... differ"),
        (["--sort", "age"], "'age' is not one of"),
        (["--limit", "0"], "Invalid value for '--limit'"),
    ],
)
def test_options_that_cannot_be_used_say_what_to_write(
    ids: dict[str, str], options: list[str], message: str
) -> None:
    done = cli("review", *options, *DATABASE)
    assert done.returncode in (1, 2)
    assert message in done.stderr


@pytest.mark.parametrize("columns", [60, 80, 120, 160, 250])
def test_every_view_fits_the_terminal(ids: dict[str, str], columns: int) -> None:
    for words in (
        ["review"],
        ["review", "show", ids["repair"]],
        ["review", "show", ids["repair"], "--steps"],
        ["review", "stats"],
        ["review", "stats", "--domain", "code"],
        ["review", "compare", ids["hedge"], ids["repair"]],
    ):
        lines = [
            line
            for line in printed(*words, columns=columns).splitlines()
            if "kp:trace:" not in line and "runs.db" not in line  # ids and paths are not cut
        ]
        assert max(map(len, lines)) <= columns, (words, max(lines, key=len))


def test_show_is_a_waterfall_with_all_that_is_known(ids: dict[str, str]) -> None:
    text = printed("review", "show", ids["mail"], columns=160)
    assert re.search(r"\ncomplexity +0\.\d{3} x 0\.\d\d \+0\.\d{3} █+·+ +3 of 4 step types", text)
    assert re.search(r"\nsingle_tool +rule -0\.100 ·+█+·* +all its tool calls", text)
    assert re.search(r"\nscore +0\.\d{3} ┃█+·+", text)
    for fact in (
        "nearest run  none was compared: no embedder",
        "outcome      success, as the run ended; confidence 0.80, assumed, because no verdict",
        "redacted     email 2",
        "found by     session desk 7",
        'search("a") -> result for a',
        "(4 steps; all of them: --steps)",
        "answer\n42",
    ):
        assert fact in text, fact
    assert "jane" not in text
    steps = printed("review", "show", ids["mail"], "--steps")
    assert "observation" in steps
    assert "observation" not in text


def test_show_names_the_nearest_run_and_who_gave_the_verdict() -> None:
    with TraceStore("runs.db") as store:
        scorer = Scorer(embedder=_Letters())
        first = record(store, searching(), "hedge the euro", scorer=scorer)
        second = record(store, searching(), "hedge the yen", scorer=scorer)
    assert cli("label", second, "--failure", "--note", "too late", *DATABASE).returncode == 0
    text = printed("review", "show", second)
    assert re.search(rf"nearest run +{short_id(first)}, similarity 0\.\d\d: hedge the euro", text)
    assert re.search(r"outcome +failure; confidence 0\.00, from label", text)
    assert re.search(r"\nverdict +failure, \d{4}-.* UTC, label: too late", text)
    shown = json.loads(printed("review", "show", second, "--json"))
    assert shown["nearest_objective"] == "hedge the euro"
    assert shown["verdicts"][0]["note"] == "too late"


class _Letters:
    """An embedder that counts letters: enough to be near, and not the same."""

    def embed(self, texts: Any) -> Any:
        import numpy as np

        rows = [[text.count(chr(97 + at)) + 0.01 for at in range(26)] for text in texts]
        return np.array(rows, dtype=np.float32)


def test_stats_say_what_costs_a_domain_its_runs() -> None:
    with TraceStore("runs.db") as store:
        fill(store, "finance", runs=60)
        fill(store, "code", runs=30, seed=1)
    text = printed("review", "stats")
    assert re.search(r"\nfinance +60 +\d+ +\d+% +0\.\d\d +0\.60 ", text)
    assert re.search(r"\ncode keeps \d+ % of 30 runs: [\w ]+ is 0\.\d\d in the median", text)
    one = printed("review", "stats", "--domain", "finance")
    for part in (
        "What costs score, on the average", "\nRules", "single_tool", "Histogram of score over 60",
        "<- threshold 0.60", "What would pass at other thresholds", "verdicts         60 runs, ",
        "near-duplicates  0 runs", "redacted         nothing", "dropped          nothing",
    ):  # fmt: skip
        assert part in one, part
    rows = [json.loads(line) for line in printed("review", "stats", "--json").splitlines()]
    assert [row["domain"] for row in rows] == ["finance", "code"]
    (finance,) = (row for row in rows if row["domain"] == "finance")
    assert finance["runs"] == finance["labelled"] == sum(finance["histogram"]) == 60
    assert finance["explanation"] in " ".join(text.split())


def test_stats_name_what_waits() -> None:
    with TraceStore("runs.db") as store:
        watching = handler(
            "finance", store=store, policy=DomainPolicy(threshold=0.0, visibility="network")
        )
        searching().invoke({"messages": [("user", "hedge")]}, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        assert "Besides" not in printed("review", "stats")
        store.add(scored, registry="https://registry.example.org")
    assert "Besides: 1 wait to be sent." in printed("review", "stats")


def test_stats_of_a_period_and_of_no_run(ids: dict[str, str]) -> None:
    assert "mail keeps 100 % of 1 run" in printed("review", "stats", "--since", "1d")
    assert printed("review", "stats", "--until", "1d").startswith("No run of 3 matches in ")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    assert "No run of 3 matches" in printed("review", "stats", "--since", tomorrow)


def test_two_runs_side_by_side(ids: dict[str, str]) -> None:
    text = printed("review", "compare", ids["hedge"], ids["repair"])
    assert "hedge the euro" in text
    assert "repair the pump" in text
    assert re.search(r"complexity +0\.\d{3} +0\.\d{3} +\+0\.\d{3}", text)
    assert re.search(r"single_tool +-0\.100 +0\.000 +\+0\.100", text)
    assert re.search(r'\n +> +! broken\("a"\) -> ValueError: bad x=a', text)
    assert re.search(r'\n *search\("a"\) -> result for a +=  ?search\("a"\) -> result for a', text)
    assert re.search(r"\nThe second scores 0\.\d{3} higher, by [a-z ]+ \(\+0\.\d{3}\)", text)
    other_way = printed("review", "compare", ids["repair"], ids["hedge"])
    assert re.search(r"\nThe second scores 0\.\d{3} lower, by [a-z ]+ \(-0\.\d{3}\)", other_way)
    itself = printed("review", "compare", ids["hedge"], ids["hedge"])
    assert "Both have the same score." in itself
    data = json.loads(printed("review", "compare", ids["hedge"], ids["repair"], "--json"))
    assert data["differences"]["score"] == pytest.approx(
        data["right"]["score"] - data["left"]["score"]
    )
    assert [row["same_input"] for row in data["calls"]] == [False, True]
    assert data["calls"][0]["left"] is None


def test_runs_whose_steps_are_gone_are_compared_by_their_scores() -> None:
    with TraceStore("runs.db") as store:
        policy = DomainPolicy(threshold=1.0, keep_days=0)
        ids = [record(store, searching(), text, policy=policy) for text in ("one", "two")]
    text = printed("review", "compare", *ids)
    assert "The steps of at least one of them are not kept" in text
    assert json.loads(printed("review", "compare", *ids, "--json"))["calls"] is None


HOSTILE = "\x1b[2J\x1b]0;mine\x07 [red]bold[/red] \u202egnp.exe \ud800 \x00 <script> done"


def test_hostile_texts_stay_text_in_every_view() -> None:
    with TraceStore("runs.db") as store:
        ids = [
            record(
                store,
                agent(say("I.", call("search", q=HOSTILE)), say(HOSTILE)),
                f"{HOSTILE} {at}",
                domain=f"d{HOSTILE}"[:40],
            )
            for at in range(2)
        ]
    for words in (
        ["review"],
        ["review", "show", ids[0]],
        ["review", "show", ids[0], "--steps"],
        ["review", "stats"],
        ["review", "compare", *ids],
    ):
        text = printed(*words, columns=200)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800]", text), words
        assert "[red]" in text
    for words in (["review"], ["review", "show", ids[0]], ["review", "compare", *ids]):
        assert json.loads(printed(*words, "--json").splitlines()[0])


def test_a_terminal_without_unicode_shows_every_view(ids: dict[str, str]) -> None:
    for words in (
        ["review"],
        ["review", "show", ids["mail"]],
        ["review", "stats", "--domain", "mail"],
    ):
        done = cli_apart(*words, *DATABASE, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
        assert "#" in done.stdout


def test_an_id_that_may_mean_several_or_none_is_an_error(ids: dict[str, str]) -> None:
    for words in (["show", "zzz"], ["compare", ids["mail"], "zzz"]):
        done = cli("review", *words, *DATABASE)
        assert (done.returncode, "no run 'zzz' in" in done.stderr) == (1, True)


def test_the_columns_follow_the_width(ids: dict[str, str]) -> None:
    narrow, wide = printed("review", columns=80), printed("review", columns=160)
    assert narrow.splitlines()[1].split() == [
        "run",
        "time",
        "domain",
        "score",
        "0",
        "to",
        "1",
        "decision",
        "objective",
    ]
    assert "compl." in wide
    assert f"{datetime.now().astimezone():%Y-%m-%d}" in wide
