"""What runs were shown, how they ended, and whether recall may show a trace, on both engines."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kp_langchain import ScoredTrace, TraceStore
from kp_langchain.embedding.identity import EmbedderIdentity
from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.run_keys import RunKeys
from kp_langchain.store.pulled_units import ExaminedUnit
from kp_langchain.store.recall_entries import TaskEntry
from kp_langchain.store.shown_queries import OutcomeCount

Scored = Callable[..., ScoredTrace]


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


def test_what_many_runs_were_shown(store: TraceStore, scored: Scored) -> None:
    shown = (ShownTrace("kp:trace:b", 2, 0.5), ShownTrace("kp:trace:a", 1, 0.9, True))
    runs = [scored(number, shown=shown if number % 2 else ()) for number in range(1203)]
    store.add_many(runs)
    by_run = store.shown.of_runs([run.trace.id for run in runs])
    assert by_run.keys() == {run.trace.id for run in runs[1::2]}
    assert set(map(tuple, by_run.values())) == {shown[::-1]}
    assert store.shown.of_run(runs[1].trace.id) == [*shown[::-1]]
    assert store.shown.of_run(runs[0].trace.id) == []
    assert store.shown.of_runs([]) == {}


def test_how_they_ended_in_each_domain(store: TraceStore, scored: Scored) -> None:
    shown = (ShownTrace("kp:trace:a", 1, 0.9),)
    for number, domain in enumerate(("finance", "finance", "code", "mail")):
        store.add(scored(number, domain=domain, shown=() if domain == "mail" else shown))
    assert store.shown.outcome_counts_by_domain() == {
        "finance": [OutcomeCount("kp:trace:a", False, True, False, 2)],
        "code": [OutcomeCount("kp:trace:a", False, True, False, 1)],
    }


def test_whose_runs_they_were(store: TraceStore, scored: Scored) -> None:
    shared, own = scored(1), scored(2, keys=RunKeys(namespace="tenant-a"))
    store.add_many([shared, own])
    shown = tuple(ShownTrace(one, 1, 0.9) for one in (shared.trace.id, own.trace.id, "kp:trace:x"))
    store.add(scored(3, shown=shown, keys=RunKeys(namespace="tenant-a")))
    store.add_many(scored(number, shown=shown) for number in (4, 5))
    counted = {
        (one.shown_id, one.namespace): one.runs for one in store.shown.outcome_counts("finance")
    }
    assert counted == {
        (shared.trace.id, "tenant-a"): 1,
        (shared.trace.id, None): 2,
        (own.trace.id, None): 3,
        ("kp:trace:x", "tenant-a"): 1,
        ("kp:trace:x", None): 2,
    }


def test_whether_recall_may_show_a_trace(store: TraceStore, scored: Scored) -> None:
    kept, below, failed, withheld = (
        scored(1),
        scored(2, score=0.1),
        scored(3),
        scored(4, withheld="the redactor failed"),
    )
    store.add_many([kept, below, failed, withheld])
    store.report_outcome(failed.trace.id, success=False)
    unit, waiting = scored(5).trace, scored(6).trace
    store.pulled.write(
        [ExaminedUnit(unit, "one"), ExaminedUnit(waiting, "other")],
        registry="https://registry.example.org",
        domain="finance",
    )
    store.pulled.admit(unit.id, by="a test")
    ids = [one.trace.id for one in (kept, below, failed, withheld)]
    eligibility = store.recall_entries.eligibility([*ids, unit.id, waiting.id, "kp:trace:gone"])
    assert eligibility.keys() == {*ids, unit.id, waiting.id}
    assert {id_ for id_, one in eligibility.items() if one.is_open} == {kept.trace.id, unit.id}
    assert eligibility[unit.id][:2] == ("finance", "task 5")
    store.delete(kept.trace.id)
    assert store.recall_entries.eligibility([kept.trace.id]) == {}


def test_what_the_newest_rules_found_counts(store: TraceStore, scored: Scored) -> None:
    first, second = (scored(number) for number in (1, 2))
    store.add_many([first, second])
    for model, version, planted in (("b", 1, ("override", None)), ("a", 2, (None, "hidden"))):
        entries = {
            run.trace.id: TaskEntry(None, found)
            for run, found in zip((first, second), planted, strict=True)
        }
        store.recall_entries.write(entries, EmbedderIdentity(model, "1"), version)
    ids = [first.trace.id, second.trace.id, "kp:trace:unknown"]
    assert store.recall_entries.planted(ids) == {second.trace.id: "hidden"}
    assert store.recall_entries.eligibility(ids)[second.trace.id].planted == "hidden"


def test_damaged_rows_are_read_as_far_as_they_go(tmp_path: Path, scored: Scored) -> None:
    file = tmp_path / "kp.db"
    with TraceStore(file) as store:
        run = scored(1, shown=(ShownTrace("kp:trace:a", 1, 0.9),))
        store.add(run)
        for column in ("rank", "similarity"):
            for value in ("much", b"\xff", 9e999, -3):
                with closing(sqlite3.connect(file)) as connection, connection:
                    connection.execute(f"UPDATE shown_traces SET {column} = ?", (value,))  # noqa: S608
                (one,) = store.shown.of_run(run.trace.id)
                assert 0 <= one.similarity <= 1
                assert isinstance(one.rank, int)
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute("UPDATE runs SET objective = ?, success = 'much'", (b"\xff",))
        (standing,) = store.recall_entries.eligibility([run.trace.id]).values()
        assert isinstance(standing.objective, str)
