"""What `review` lists, explains, counts and compares, as text; golden files hold its JSON."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from kp_langchain import DomainPolicy, ReasoningTrace, Scorer, TraceStore
from kp_langchain.gate.check import NONE_PASSES
from kp_langchain.text import short_id
from tests.agents import ASK, agent, call, handler, say, searching
from tests.cli.made_runs import fill, made
from tests.cli.support_desk import Words
from tests.commands import cli

DATABASE = ("--database", "runs.db")
PASSES = DomainPolicy(threshold=0.0, twin_similarity=1.0)


def printed(*words: str, columns: int = 120, **environment: str) -> str:
    """Run a command on `runs.db`, and return what it prints."""
    done = cli(*words, *DATABASE, columns=columns, **environment)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def parsed(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed(*words, "--json").splitlines()]


def record(store: TraceStore, subject: Any, objective: str, **options: Any) -> str:
    """Have an agent run with a handler; return the id of its trace."""
    options.setdefault("policy", PASSES)
    watching = handler(options.pop("domain", "finance"), store=store, **options)
    metadata = {"session_id": "desk 7", "user_id": f"user of {objective}"}
    config = {"callbacks": [watching], "metadata": metadata, "tags": ["nightly"]}
    subject.invoke({"messages": [("user", objective)]}, config)
    scored = watching.last()
    assert scored is not None
    return scored.trace.id


@pytest.fixture
def ids() -> Iterator[dict[str, str]]:
    """The trace ids of three runs, by a word of their objective; the newest is the last."""
    private = "my mail is jane.roe@acme.org and again jane.roe@acme.org"
    wrong = [say("I try.", call("soft", x="a")), say("Again.", call("search", q="a")), say("7")]
    with TraceStore("runs.db") as store:
        yield {
            "hedge": record(store, searching(), "hedge the euro"),
            "mail": record(store, searching(), private, domain="mail"),
            "repair": record(store, agent(*wrong), "repair the pump", domain="code"),
        }


ALL = "hedge mail repair"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--domain=code", "repair"), ("--search=EURO", "hedge"), ("--search=nothing like it", ""),
        ("--tool=soft", "repair"), ("--tool=search", ALL), ("--rule=single_tool", "hedge mail"),
        ("--recovered-errors", "repair"), ("--decision=kept", ALL),
        ("--decision=twin", ""), ("--decision=below_threshold", ""),
        ("--where=session=desk 8", ""), ("--where=user=user of hedge", ""),
        ("--where=user=user of hedge the euro", "hedge"), ("--where=tag=nightly", ALL),
        ("--where=session=desk 7 --domain=mail", "mail"), ("--since=1h", ALL), ("--until=1h", ""),
        ("--since=yesterday", ALL),
        ("--since=2020-01-01 --until=2020-02-01T12:00", ""), ("--min-score=0.99", ""),
        ("--sort=score --limit=1", "repair"), ("--limit=1", "repair"),
    ],
)  # fmt: skip
def test_options_select_runs(ids: dict[str, str], options: str, expected: str) -> None:
    words = re.split(r" (?=--)", options)
    objectives = [row["objective"] for row in parsed("review", *words)]
    assert {word for word in ids if any(word in one for one in objectives)} == {*expected.split()}
    table = printed("review", *words)
    assert all(short_id(ids[word]) in table for word in expected.split())
    assert expected or "No run of 3 matches" in table


def test_a_domain_without_runs_names_the_nearest(ids: dict[str, str]) -> None:
    assert "Did you mean --domain finance?" in printed("review", "--domain", "Fianance")


def test_the_newest_run_comes_first_and_columns_follow_the_width(ids: dict[str, str]) -> None:
    narrow, wide = (printed("review", columns=columns).splitlines() for columns in (80, 160))
    rows = [line.split()[0] for line in wide if " kept  " in line]
    assert rows == [short_id(trace_id) for trace_id in reversed(ids.values())]
    assert narrow[1].split() == ["run", "time", "domain", "score", *"0 to 1".split(), "decision",
                                 "objective"]  # fmt: skip


def test_the_local_time_of_each_run_is_shown_as_far_as_there_is_room(ids: dict[str, str]) -> None:
    with TraceStore("runs.db") as store:
        run = store.get(ids["hedge"])
    assert run is not None
    there = run.created_at.astimezone(timezone(timedelta(hours=-9)))

    def row(columns: int) -> str:
        text = printed("review", columns=columns, TZ="XXX9")
        return next(line for line in text.splitlines() if "hedge" in line)

    for columns, form in {100: "%Y-%m-%d %H:%M", 80: "%m-%d"}.items():
        assert f" {there:{form}} " in row(columns)


def test_what_passed_is_called_kept_whether_or_not_there_is_a_registry(
    ids: dict[str, str],
) -> None:
    url = {"KP_REGISTRY_URL": "https://registry.example.org"}
    for words in (["review"], ["review", "show", ids["hedge"]]):
        assert "kept" in printed(*words)
        assert printed(*words) == printed(*words, **url)
    assert parsed("review")[0]["decision"] == "kept"


def test_show_is_a_waterfall_with_all_that_is_known(ids: dict[str, str]) -> None:
    text = printed("review", "show", ids["mail"], columns=160)
    assert re.search(r"\ncomplexity +0\.\d{3} x 0\.\d\d \+0\.\d{3} █+·+ +3 of 4 step types", text)
    assert re.search(r"\nsingle_tool +rule -0\.100 ·+█+·* +all its tool calls", text)
    assert re.search(r"\nscore +0\.\d{3} ┃█+·+", text)
    assert re.search(r"\nkeys +session desk 7  user \w+", text)
    for fact in (
        "nearest run  none was compared: no embedder", "tags nightly",
        "outcome      success, as the run ended; confidence 0.80, assumed, because no verdict",
        "redacted     email 2", 'search("a") -> result for a', "(4 steps; all of them: --steps)",
        "answer\n42",
    ):  # fmt: skip
        assert fact in text, fact
    assert "jane" not in text
    assert "observation" in printed("review", "show", ids["mail"], "--steps")
    assert "observation" not in text
    (values,) = parsed("review", "show", ids["mail"])
    assert ReasoningTrace.model_validate(values["trace"]).id == values["trace_id"] == ids["mail"]


def test_show_names_the_nearest_run_and_who_gave_the_verdict() -> None:
    with TraceStore("runs.db") as store:
        scorer = Scorer(embedder=Words())
        first = record(store, searching(), "hedge the euro", scorer=scorer)
        second = record(store, searching(), "hedge the yen", scorer=scorer)
    assert cli("label", second, "--failure", "--note", "too late", *DATABASE).returncode == 0
    text = printed("review", "show", second)
    assert re.search(rf"nearest run +{short_id(first)}, similarity 0\.\d\d: hedge the euro", text)
    assert re.search(r"outcome +failure; confidence 0\.00, from label", text)
    assert re.search(r"\nverdict +failure, \d{4}-.* UTC, label: too late", text)
    (shown,) = parsed("review", "show", second)
    assert (shown["nearest_objective"], shown["verdicts"][0]["note"]) == (
        "hedge the euro", "too late",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("", "The steps are kept until"),
        ("keep_days=0", "see keep and keep_days of the domain's policy"),
        ("has_body = 0, decision = 'below_threshold', withheld = 'redaction failed'",
         "The steps of this run are not kept: redaction failed.\n"),
    ],
)  # fmt: skip
def test_show_says_how_long_steps_are_kept_and_why_they_are_not(change: str, reason: str) -> None:
    policy: dict[str, Any] = {"threshold": 1.0} | ({"keep_days": 0} if "days" in change else {})
    with TraceStore("runs.db") as store:
        trace_id = record(store, searching(), "hedge", policy=DomainPolicy(**policy))
    if "has_body" in change:
        with closing(sqlite3.connect("runs.db")) as connection, connection:
            connection.execute(f"UPDATE runs SET {change}")  # noqa: S608
    shown = printed("review", "show", trace_id)
    assert reason in shown


def test_a_twin_and_what_it_replaced_are_named() -> None:
    with TraceStore("runs.db") as store:
        ids = [
            record(
                store, searching(), "ask", policy=DomainPolicy(threshold=0.0),
                outcome=lambda _, sure=confidence: {"confidence": sure},
            )
            for confidence in (0.5, 0.8, 0.6, 0.6)
        ]  # fmt: skip
    other = short_id(ids[1])
    decisions = re.findall(r" ((?:twin of|replaced by) \w+|kept)  ", printed("review"))
    assert decisions == [*[f"twin of {other}"] * 2, "kept", f"replaced by {other}"]
    assert len(parsed("review", "--decision", "twin")) == 3
    replaced, kept, twin = (printed("review", "show", trace_id) for trace_id in ids[:3])
    assert f"\ntwin: replaced by {ids[1]}, which repeats it and is surer" in replaced
    line = rf"\nreplaced by +{other}, which repeats it and was surer: "
    assert re.search(line, replaced)
    assert "\nkept: score" in kept
    line = rf"\ntwin of +{other}, similarity 1\.00, which was kept; this one is not"
    assert re.search(line, twin)
    (shown,) = parsed("review", "show", ids[2])
    assert (shown["decision"], shown["twin_of"]) == ("twin", ids[1])
    # A verdict makes the twin the surer one, and then that on the first run is no use any more.
    text = printed("label", ids[2], "--success")
    assert "twin -> kept" in text
    assert "Labelled 1, of which now kept 1, no longer kept 1;" in text
    line = rf"\ntwin of +{other}, similarity 1\.00, which {short_id(ids[2])} has replaced since: "
    assert re.search(line, printed("review", "show", ids[3]))
    assert f"because it repeats {short_id(ids[2])}, which is kept" in printed(
        "label", ids[0], "--success"
    )


def test_stats_say_what_costs_a_domain_its_runs() -> None:
    with TraceStore("runs.db") as store:
        fill(store, "finance", runs=60)
        fill(store, "code", runs=30, seed=1)
    text = printed("review", "stats")
    assert re.search(r"\nfinance +60 +\d+ +\d+% +0\.\d\d +0\.60 ", text)
    assert re.search(r"\ncode keeps \d+ % of 30 runs: [\w ]+ is 0\.\d\d in the median", text)
    one = printed("review", "stats", "--domain", "finance")
    for part in (
        "What costs score, on the average", "\nRules", "single_tool",
        "What would pass if each threshold judged all of these runs", "verdicts          60 runs, ",
        "twins             0 runs", "redacted          nothing", "dropped           nothing",
    ):  # fmt: skip
        assert part in one, part
    finance, code = parsed("review", "stats")
    assert (finance["domain"], code["domain"]) == ("finance", "code")
    assert finance["runs"] == finance["labelled"] == sum(finance["histogram"]) == 60
    assert finance["explanation"] in " ".join(text.split())


def test_stats_group_thresholds_as_they_are_shown() -> None:
    thresholds = [0.4401, 0.4402, 0.46, NONE_PASSES, NONE_PASSES, NONE_PASSES]
    with TraceStore("runs.db") as store:
        store.add(*(made(at, threshold=one) for at, one in enumerate(thresholds)))
    text = printed("review", "stats")
    shown = "none passes for 3 runs, 0.44 for 2 runs, 0.46 for 1 run"
    assert re.search(rf"\nthresholds +{shown}\n", text)
    assert re.search(r"\nfinance +6 +3 +50% +0\.70 +none passes ", text)
    assert " in force" not in text


def test_stats_of_a_period_of_no_run_and_of_what_waits(ids: dict[str, str]) -> None:
    assert "mail keeps 100 % of 1 run" in printed("review", "stats", "--since", "1d")
    assert printed("review", "stats", "--until", "1d").startswith("No run of 3 matches in ")
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    assert "No run of 3 matches" in printed("review", "stats", "--since", tomorrow)
    assert "Besides" not in printed("review", "stats")
    with TraceStore("runs.db") as store:
        watching = handler(store=store, policy=DomainPolicy(threshold=0.0, visibility="network"))
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        store.add(scored, registry="https://registry.example.org")
    assert "Besides: 1 wait to be sent." in printed("review", "stats")


def test_two_runs_side_by_side(ids: dict[str, str]) -> None:
    text = printed("review", "compare", ids["hedge"], ids["repair"])
    for part in (
        "hedge the euro", "repair the pump", r"complexity +0\.\d{3} +0\.\d{3} +\+0\.\d{3}",
        r"single_tool +-0\.100 +0\.000 +\+0\.100", r'\n\+ soft\("a"\) -> soft a',
        r'\n  search\("a"\) -> result for a',
        r"\nThe second scores 0\.\d{3} higher, by [a-z ]+ \(\+0\.\d{3}\)",
    ):  # fmt: skip
        assert re.search(part, text), part
    other_way = printed("review", "compare", ids["repair"], ids["hedge"])
    assert re.search(r"\nThe second scores 0\.\d{3} lower, by [a-z ]+ \(-0\.\d{3}\)", other_way)
    assert "the same score." in printed("review", "compare", ids["hedge"], ids["hedge"])
    (data,) = parsed("review", "compare", ids["hedge"], ids["repair"])
    assert data["differences"]["score"] == pytest.approx(
        data["second"]["score"] - data["first"]["score"], abs=1e-5
    )
    assert [call["in"] for call in data["calls"]] == ["second", "both"]


def test_runs_whose_steps_are_gone_are_compared_by_their_scores() -> None:
    with TraceStore("runs.db") as store:
        policy = DomainPolicy(threshold=1.0, keep_days=0)
        ids = [record(store, searching(), text, policy=policy) for text in ("one", "two")]
    assert "steps of at least one of them are not kept" in printed("review", "compare", *ids)
    assert parsed("review", "compare", *ids)[0]["calls"] is None
