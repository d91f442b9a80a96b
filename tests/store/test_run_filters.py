"""The conditions by which runs are selected, and the narrow table that answers them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.gate import ScoredTrace
from kp_langchain.review import domain_stats
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import Tool, TraceStep
from kp_langchain.scoring.breakdown import Dimension
from kp_langchain.scoring.rules import RuleFired
from kp_langchain.store import tables
from kp_langchain.store.rows import row_of
from tests.store.conftest import START
from tests.store.test_opening import make_older


@pytest.fixture
def store(url):
    with TraceStore(url) as store:
        yield store


def with_steps(one: ScoredTrace, *steps: TraceStep) -> ScoredTrace:
    return replace(one, trace=one.trace.model_copy(update={"steps": list(steps)}))


def with_objective(one: ScoredTrace, objective: str) -> ScoredTrace:
    task = one.trace.task.model_copy(update={"objective": objective})
    return replace(one, trace=one.trace.model_copy(update={"task": task}))


def found(store: TraceStore, **filters) -> list[str]:
    """The objectives of the runs that match, the oldest first; `count` agrees."""
    runs = store.runs(**filters, newest_first=False)
    assert store.count(**filters) == len(runs)
    assert {one.trace_id for one in store.summaries(**filters)} == {one.trace_id for one in runs}
    return [run.objective for run in runs]


def test_by_the_time_at_which_they_began(store, scored):
    store.add_many([scored(at) for at in range(5)])
    since, until = START + timedelta(minutes=1), START + timedelta(minutes=3)
    assert found(store, since=since) == ["task 1", "task 2", "task 3", "task 4"]
    assert found(store, until=until) == ["task 0", "task 1", "task 2"]
    assert found(store, since=since, until=until) == ["task 1", "task 2"]
    local = since.astimezone().replace(tzinfo=None)
    assert found(store, since=local, until=until) == ["task 1", "task 2"]
    assert found(store, since=datetime.max.replace(year=9000)) == []


@pytest.mark.parametrize(
    ("search", "matches"),
    [
        ("euro", [0, 1]),
        ("EURO hedge", [0]),
        ("hedge  euro", [0]),
        ("straße", [2]),
        ("STRASSE", [2]),
        ("100%", [3]),
        ("100", [3]),
        ("a_b", [3]),
        ("axb", []),
        ("東京", [4]),
        ("%", [3]),
        ("/", []),
        ("", [0, 1, 2, 3, 4]),
        ("  ", [0, 1, 2, 3, 4]),
        ("\x00", []),
        ("\ud800", []),
        ("x" * 5000, []),
    ],
)
def test_by_words_of_the_objective(store, scored, search, matches):
    objectives = [
        "Hedge the Euro", "the euro falls", "Hauptstraße 5", "100% of a_b", "明日の東京の天気",
    ]  # fmt: skip
    store.add_many([with_objective(scored(at), text) for at, text in enumerate(objectives)])
    assert found(store, search=search) == [objectives[at] for at in matches]


def test_only_the_beginning_of_a_long_objective_is_searched(store, scored):
    store.add(with_objective(scored(), f"first {'x ' * 600} last"))
    assert store.count(search="first") == 1
    assert store.count(search="last") == 0


def test_by_rule_tool_and_what_happened(store, scored):
    plain = [scored(at) for at in range(5)]
    fired = (RuleFired("single_tool", 0.7, 0.6), RuleFired("recovered_errors", 0.6, 0.7))
    odd = 'a "tool", \\ with_100%'
    runs = [
        plain[0],
        replace(plain[1], breakdown=replace(plain[1].breakdown, rules=fired)),
        with_steps(
            plain[2],
            TraceStep(step_id=0, type="tool_call", tool=Tool(name=odd)),
            TraceStep(step_id=1, type="error_recovery", tool=Tool(name=odd), content="no"),
            TraceStep(step_id=2, type="thought", content="so"),
        ),
        replace(plain[3], decision="below_threshold", twin_of=plain[0].trace.id),
        replace(plain[4], replaces=(plain[0].trace.id,)),
    ]
    store.add_many(runs)
    assert found(store, rule="single_tool") == ["task 1"]
    assert found(store, rule="single") == []
    assert found(store, tool=odd) == ["task 2"]
    assert found(store, tool=odd.upper()) == []
    assert found(store, tool="ledger") == ["task 0", "task 1", "task 3", "task 4"]
    assert found(store, tool="edge") == []
    assert found(store, recovered_errors=True) == ["task 2"]
    assert found(store, near_duplicates=True) == ["task 0", "task 3"]
    assert found(store, near_duplicates=None, recovered_errors=False) == [
        f"task {at}" for at in range(5)
    ]


def test_conditions_add_up(store, scored):
    store.add_many(
        [
            scored(at, domain=domain, keys=RunKeys(session="s", tags=("t",)) if at else None)
            for at in range(3)
            for domain in ("finance", "code")
        ]
    )
    assert found(store, domain="code", session="s", tag="t", search="task 1") == ["task 1"]
    assert found(store, domain="code", tag="u") == []


def test_sorted_by_score_or_novelty_the_highest_comes_first(store, scored):
    values = [(0.5, 0.9), (0.9, 0.1), (0.7, 0.5)]
    for at, (score, novelty) in enumerate(values):
        one = scored(at, score=score)
        part = Dimension(novelty, 0.25, novelty / 4)
        store.add(replace(one, breakdown=replace(one.breakdown, novelty=part)))

    def order(**options) -> list[str]:
        return [run.objective[-1] for run in store.runs(**options)]

    assert order(sort="score") == ["1", "2", "0"]
    assert order(sort="novelty") == ["0", "2", "1"]
    assert order(sort="time") == order() == ["2", "1", "0"]
    assert order(sort="score", newest_first=False) == ["0", "2", "1"]
    assert order(sort="score", search="task", limit=2) == ["1", "2"]
    assert order(sort="score", limit=1, offset=1) == ["2"]


def test_an_unknown_condition_is_a_type_error(store):
    with pytest.raises(TypeError, match="colour"):
        store.runs(colour="red")


def test_a_verdict_changes_what_a_run_is_found_by(store, scored):
    one = scored(score=0.7, threshold=0.6)
    store.add(one)
    (change,) = store.report_outcome(one.trace.id, success=False)
    assert change.decision == "below_threshold"
    assert store.count(decision="contributed") == 0
    (summary,) = store.summaries()
    assert (summary.score, summary.success, summary.label) == (change.score, False, False)
    assert summary.dimensions["outcome_confidence"][0] == pytest.approx(
        store.get(one.trace.id).breakdown.outcome_confidence.value
    )
    store.report_outcome(one.trace.id, success=True)
    assert [each.label for each in store.summaries()] == [True]


def test_a_run_that_is_added_again_is_found_as_it_is_now(store, scored):
    one = scored(domain="finance", score=0.7)
    store.add(one)
    store.add(with_objective(replace(one, decision="below_threshold"), "another task"))
    assert found(store) == found(store, search="another", decision="below_threshold")
    assert store.count() == 1


def test_what_was_redacted_and_dropped_is_counted_by_kind(store, scored):
    text = "[REDACTED:email#k3f9x2m1qa] and [REDACTED:email] [REDACTED:card] [REDACTED:NO]"
    for keep in (True, False):
        one = scored(content=text, keep=keep, dropped={"steps": 2})
        store.add(one)
        run = store.get(one.trace.id)
        assert run.redactions == {"email": 2, "card": 1}
        assert run.dropped == {"steps": 2}
        assert run.tools == ["ledger"]


def test_an_upgrade_makes_the_same_summaries_as_writing_does(url, scored, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    fired = (RuleFired("single_tool", 0.7, 0.6),)
    plain = scored(3, content="mail [REDACTED:email]", tool_input={"a": "[REDACTED:card]"})
    one = replace(plain, breakdown=replace(plain.breakdown, rules=fired))
    make_older(url, "0006", row_of(one))
    with TraceStore(url) as store:
        (migrated,) = store.summaries()
        assert store.count(search="task 3", tool="ledger", rule="single_tool") == 1
        assert migrated.dropped is None
        store.add(one)
        (written,) = store.summaries()
        assert replace(migrated, dropped={}) == written


@pytest.mark.parametrize("column", ["breakdown", "body"])
def test_an_upgrade_survives_what_another_program_damaged(tmp_path, scored, column):
    path = tmp_path / "old.db"
    make_older(f"sqlite:///{path}", "0006", row_of(scored(3)))
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE runs SET {column} = 'not json'"))  # noqa: S608
    engine.dispose()
    with TraceStore(path) as store:
        assert store.count(search="task 3") == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("rules", "{broken"), ("rules", '["a"]'), ("rules", '{"a": "b"}'), ("score", "high"),
        ("score", float("inf")), ("dimensions", '{"a": [1]}'), ("dimensions", '{"a": 7}'),
        ("domain", b"x"), ("redactions", '{"a": null}'), ("threshold", b"7"),
    ],
)  # fmt: skip
def test_a_damaged_summary_does_not_hide_the_others(tmp_path, scored, column, value):
    path = tmp_path / "x.db"
    with TraceStore(path) as store:
        store.add_many([scored(at) for at in range(3)])
        with closing(sqlite3.connect(path)) as connection, connection:
            update = f"UPDATE run_summaries SET {column} = ? WHERE search_text = 'task 1'"  # noqa: S608
            connection.execute(update, (value,))
        summaries = list(store.summaries())
        assert len(summaries) == (3 if value == "{broken" else 2)
        assert domain_stats(summaries)


DAMAGE = {
    "NaN": ("breakdown", '{"novelty": {"value": NaN, "weight": 1}}'),
    "infinity": ("breakdown", '{"novelty": {"value": 1e999, "weight": 1}}'),
    "a huge number": ("breakdown", f'{{"novelty": {{"value": {"9" * 400}, "weight": 1}}}}'),
    "lists": ("breakdown", '{"novelty": [], "rules": {"name": 1}}'),
    "a blob": ("objective", b"task 3\xff"),
    "bytes that are no text": ("body", b'{"steps": [{"content": "\xff"}]}'),
    "a lone surrogate": ("body", '{"steps": [{"tool": {"name": "\\ud800"}}]}'),
    "deep nesting": ("body", "[" * 100_000),
    "no object": ("body", "7"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_upgrade_survives_any_damage_of_a_row(tmp_path, scored, name):
    path = tmp_path / "old.db"
    make_older(f"sqlite:///{path}", "0006", row_of(scored(3)))
    column, value = DAMAGE[name]
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE runs SET {column} = ?", (value,))  # noqa: S608
    with TraceStore(path) as store:
        assert store.count(search="task 3") == 1
        assert len(list(store.summaries())) == 1
        store.add(scored(4))


def test_a_run_that_an_earlier_version_wrote_meanwhile_is_completed(store, scored):
    # A process of an earlier version may have the database open while a newer one upgrades it.
    runs = [scored(at) for at in range(3)]
    store.add_many(runs)
    expected = list(store.summaries())
    with store.database.writing() as connection:
        connection.execute(sa.delete(tables.run_summaries))
    assert store.count() == 0
    assert store.complete_summaries() == 3
    assert list(store.summaries()) == [replace(one, dropped={}) for one in expected]
    assert store.complete_summaries() == 0


def test_a_deletion_finds_them_too(store, scored):
    store.add(scored(1))
    with store.database.writing() as connection:
        connection.execute(sa.delete(tables.run_summaries))
    assert len(store.delete(domain="finance")) == 1
    assert store.get(scored(1).trace.id) is None


def test_one_that_is_not_completed_is_found_by_its_id(store, scored):
    one = scored(1)
    store.add(one)
    with store.database.writing() as connection:
        connection.execute(sa.delete(tables.run_summaries))
    run = store.get(one.trace.id)
    assert (run.trace, run.tools, run.recovered_errors) == (one.trace, None, None)
    (change,) = store.report_outcome(one.trace.id, success=False)
    assert change.success is False


def test_a_damaged_body_does_not_keep_runs_from_being_completed(tmp_path, scored):
    path = tmp_path / "x.db"
    with TraceStore(path) as store:
        store.add_many([scored(at) for at in range(2)])
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM run_summaries")
            connection.execute(
                """UPDATE runs SET body = '{"steps": 7}' WHERE objective = 'task 1'"""
            )
        assert store.complete_summaries() == 2
        assert store.count() == 2
