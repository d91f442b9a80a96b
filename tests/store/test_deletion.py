"""The store's contract, on SQLite and on PostgreSQL: what is deleted is gone from everywhere.

From every table, from the files, from the memory of other processes.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import uuid
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import (
    ConfigError,
    DomainPolicy,
    Scorer,
    StoreError,
    TraceStore,
    UnknownRunError,
    Verdict,
)
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.gate import ShownTrace
from kp_langchain.gate.run import Run
from kp_langchain.run_keys import RunKeys
from kp_langchain.store import novelty
from kp_langchain.store.recall_tasks import TaskVector
from tests.agents import ASK, handler, searching
from tests.store.conftest import (
    LONG_S,
    REGISTRY,
    START,
    _scored,
    complete,
    execute,
    files_below,
    rows_by_table,
    scorer_on,
    trace_of,
)

MODEL = EmbedderIdentity("a model", "1")


def remember(store, *trace_ids):
    scorer = scorer_on(store)
    for trace_id in trace_ids:
        scorer.remember(trace_of("xy").model_copy(update={"id": trace_id}))


def ids_by_table(store):
    """The trace ids in each table that has any."""
    return {
        name: {row["trace_id"] for row in rows}
        for name, rows in rows_by_table(store).items()
        if rows and "trace_id" in rows[0]
    }


def orphans(store):
    """Tables with rows of runs that are not there; in the outbox, what is to be withdrawn stays."""
    tables = rows_by_table(store)
    runs = {row["trace_id"] for row in tables.pop("runs")}
    for row in tables.pop("outbox"):
        if row["trace_id"] not in runs:
            assert (row["body"], row["reason"]) == (None, None)
            assert (row["state"], row["withdraw_asked"]) == ("sent", True)
    return {
        name
        for name, rows in tables.items()
        if any("trace_id" in row and row["trace_id"] not in runs for row in rows)
    }


# ------------------------------------------------------------------ from every table


def test_a_run_is_deleted_from_every_table_with_its_place_among_what_others_were_shown(store):
    gone = complete(1)
    stays = complete(2, shown=(ShownTrace("kp:trace:x", 1, 0.8), ShownTrace(gone.trace.id, 2, 0.8)))
    store.add(*[gone, stays], registry=REGISTRY)
    remember(store, gone.trace.id, stays.trace.id)
    tasks = {one.trace.id: TaskVector(None) for one in (gone, stays)}
    store.recall_tasks.write(tasks, MODEL, 1)
    both = {gone.trace.id, stays.trace.id}
    assert {name for name, ids in ids_by_table(store).items() if ids >= both} >= {
        "runs", "bodies", "scores", "verdicts", "outbox", "vectors", "shown_traces",
        "external_traces",
    }  # fmt: skip
    kinds = {(row["kind"], row["trace_id"]) for row in rows_by_table(store)["vectors"]}
    assert kinds == {(kind, id_) for kind in ("run", "memory", "task") for id_ in both}
    deleted = store.delete(gone.trace.id)
    assert (deleted.by_domain, deleted.at_registry, len(deleted)) == ({"finance": 1}, 0, 1)
    assert gone.trace.id not in str(rows_by_table(store))
    assert (store.get(gone.trace.id), len(store.verdicts(stays.trace.id))) == (None, 1)
    assert [one.trace_id for one in store.shown.of_run(stays.trace.id)] == ["kp:trace:x"]
    store.add(gone, registry=REGISTRY)  # and can be added again
    assert (store.count(), store.outbox.counts()["pending"]) == (2, 2)
    assert [verdict.note for verdict in store.verdicts(gone.trace.id)] == ["note 1"]


def test_runs_are_deleted_by_the_filters_of_a_listing(store):
    runs = [complete(n, score=n / 20, domain="code" if n % 2 else "finance") for n in range(20)]
    store.add(*runs)
    middle = runs[10].trace.metadata.created_at
    for filters, number in (
        ({"until": middle, "min_score": 0.3}, 4), ({"session": "s-19"}, 1), ({"domain": "no"}, 0),
        ({"tag": "no such tag"}, 0), ({"domain": "code"}, 7),
    ):  # fmt: skip
        deleted = store.delete(**filters)
        assert len(deleted) == number, filters
        assert set(deleted.by_domain) <= {"code", "finance"}
    assert store.count() == store.count(domain="finance") == 8
    plan = store.deletions.plan(keep=2)  # the newest may stay
    assert (len(plan), store.count()) == (6, 8)
    store.deletions.carry_out(plan)
    assert [run.trace_id for run in store.runs()] == [runs[18].trace.id, runs[16].trace.id]
    assert len(store.deletions.plan(keep=2)) == 0
    # A time without a zone is local, as in a listing.
    store.add(complete(created_at=datetime.now(UTC) - timedelta(hours=3)))
    assert len(store.deletions.plan(until=datetime.now() - timedelta(hours=2))) == 3
    assert len(store.deletions.plan(since=datetime.now() - timedelta(hours=2))) == 0
    assert len(store.delete(tag="beta")) == 3


def test_an_id_is_whatever_a_listing_shows(store):
    run_id = uuid.uuid4()
    ids = [f"kp:trace:aaaaaaaa-0000-4000-8000-{number:012}" for number in range(3)]
    runs = [complete(n, trace_id=one, run_id=run_id if n else None) for n, one in enumerate(ids)]
    store.add(*[*runs, complete(3, trace_id="kp:trace:5f0c1a2b-0000-4000-8000-000000000001")])
    with pytest.raises(UnknownRunError, match="no run 'nothing'"):
        store.delete(ids[0], "nothing")
    with pytest.raises(UnknownRunError, match="may mean several runs"):
        store.delete(ids[0], "aaaaaaaa")
    assert store.count() == 4
    assert len(store.delete("5F0C1A2B")) == 1
    assert len(store.delete(str(run_id))) == 2
    assert [run.trace_id for run in store.runs()] == ids[:1]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_without_a_condition_or_with_both_kinds_it_is_refused(store):
    one = complete()
    store.add(one)
    for filters in ({}, {"domain": None}, {"search": "  "}, {"recovered_errors": False}):
        with pytest.raises(ConfigError, match="needs either ids or conditions"):
            store.delete(**filters)
    for options in ({"domain": "finance"}, {"keep": 3}):
        with pytest.raises(ConfigError, match="either ids or conditions"):
            store.deletions.plan(one.trace.id, **options)
    with pytest.raises(ConfigError, match="keep=-1 must not be negative"):
        store.deletions.plan(keep=-1)
    assert store.count() == 1


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # a server refuses such a value
def test_a_damaged_run_can_be_deleted(store):
    one = complete()
    store.add(one)
    for table, column in (
        ("bodies", "trace"), ("scores", "breakdown"), ("scores", "features"), ("runs", "tags"),
        ("runs", "rules"),
    ):  # fmt: skip
        execute(store, f"UPDATE {table} SET {column} = 'not JSON'")  # noqa: S608
    with pytest.raises(StoreError, match="cannot read the trace store"):
        store.get(one.trace.id)
    assert len(store.delete(one.trace.id)) == 1
    assert one.trace.id not in str(rows_by_table(store))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "verdict", "sent", "delete", "delete domain", "remember"]),
        st.integers(0, 5),
    ),
    max_size=30,
)


def act(store, action, number):
    one = complete(number, trace_id=f"kp:trace:no. {number}", domain=f"domain {number % 2}")
    exists = store.get(one.trace.id) is not None
    if action == "add":
        store.add(one, registry=REGISTRY)
    elif action == "remember" and exists:
        remember(store, one.trace.id)
    elif action == "verdict" and exists:
        store.report_outcome(one.trace.id, success=bool(number % 3), registry=REGISTRY)
    elif action == "sent" and (unit := store.outbox.get(one.trace.id)) is not None:
        sent = replace(unit, state="sent", registry_id=unit.unit_id, body=None)
        store.outbox.record_answer(sent, read=unit)
    elif action == "delete" and exists:
        store.delete(one.trace.id)
    elif action == "delete domain":
        store.delete(domain=f"domain {number % 2}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_every_table_has_rows_of_existing_runs_alone(tmp_path, actions):
    with TraceStore(tmp_path / f"{uuid.uuid4()}.db") as store:
        for action, number in actions:
            act(store, action, number)
        assert store.count() <= 6
        assert orphans(store) == set()


def test_many_threads_add_judge_replace_and_delete_the_same_runs(url):
    """None waits for another for ever, and no table has more than the others in the end."""
    errors = []

    def play(seed):
        drawn = random.Random(seed)
        try:
            with TraceStore(url) as store:
                for _ in range(12):
                    number, other = drawn.sample(range(8), 2)
                    one = complete(number, trace_id=f"kp:trace:no. {number}")
                    match drawn.randrange(4):
                        case 0:
                            replaces = (f"kp:trace:no. {other}",)
                            store.add(replace(one, replaces=replaces), registry=REGISTRY)
                        case 1:
                            store.delete(domain="finance", session=f"s-{number}")
                        case 2:
                            store.delete(tag="beta")
                        case _:
                            with suppress(UnknownRunError):
                                success = drawn.random() < 0.5
                                store.report_outcome(one.trace.id, success=success)
        except BaseException as error:
            errors.append(error)

    with TraceStore(url) as store:
        store.add(complete())
        threads = [threading.Thread(target=play, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        assert errors == []
        assert orphans(store) == set()


# ------------------------------------------------------------------ from the files

TEXT = "the merger of ACME"


def fill(store):
    runs = [
        complete(
            n, content=f"{TEXT} {n} " * 300, objective=f"{TEXT} {n}",
            verdict=Verdict(success=True, note=f"{TEXT} {n}"),
        )
        for n in range(12)
    ]  # fmt: skip
    store.add(*runs, registry=REGISTRY)


def test_no_byte_of_a_text_is_left(tmp_path):
    folder = tmp_path / "store"
    with TraceStore(folder / "x.db") as store:
        fill(store)
        store.add(complete(99, content="what stays"))
        assert TEXT.encode() in files_below(folder)
        store.delete(search="merger")
        assert store.compact()
        left = files_below(folder).lower()
        assert b"what stays" in left
        assert b"merger" not in left
        fill(store)
    with TraceStore(folder / "x.db") as store:
        store.delete(search="merger")
    with closing(sqlite3.connect(folder / "x.db")) as connection:  # its end copies the log
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 0
    assert TEXT.encode() not in (folder / "x.db").read_bytes()  # not even in free pages


# ------------------------------------------------------------------ from other processes' memory


def test_what_novelty_remembers_of_it_is_forgotten(url, monkeypatch):
    monkeypatch.setattr(novelty, "_READ_AGAIN_S", 0.0)
    with TraceStore(url) as one, TraceStore(url) as other:
        here, there = scorer_on(one), scorer_on(other)
        gone, stays = trace_of("xx"), trace_of("yy")
        for trace in (gone, stays):
            here.remember(trace)
        assert there.score(trace_of("xx")).nearest.trace_id == gone.id
        one.add(complete(trace_id=gone.id))
        one.delete(gone.id)
        for scorer in (here, there):
            assert scorer.score(trace_of("xx")).nearest.trace_id == stays.id
            assert scorer.score(trace_of("yy")).nearest.trace_id == stays.id


def test_a_deleted_run_has_no_twins_any_more(url):
    with TraceStore(url) as store, TraceStore(url) as elsewhere:
        watching = handler(
            store=store, policy=DomainPolicy(threshold=0.0), scorer=Scorer(embedder=None)
        )

        def play():
            searching().invoke(ASK, {"callbacks": [watching]})
            scored = watching.last()
            assert watching.flush(LONG_S)
            return scored.trace.id, scored.decision, scored.twin_of

        first, *_ = play()
        assert play()[1:] == ("twin", first)
        elsewhere.delete(first)
        assert play()[1:] == ("kept", None)
        watching.close()


# ------------------------------------------------------------------ what is no judged run yet


def recorded(run_id: str, **keys: Any) -> Run:
    """A run that ended and is not judged yet."""
    one = _scored(run_id=run_id, keys=RunKeys(**keys))
    return Run(one.trace, run_id, DomainPolicy(), looked_successful=True, keys=one.keys)


def pause(store: TraceStore, place: str, run_id: str, **keys: Any) -> None:
    body = {"run_id": run_id, "started_at": START.isoformat(), "domain": "finance"}
    body["keys"] = RunKeys(**keys).to_dict()
    store.paused.put(place, body, paused_at=datetime.now(UTC), days=1, most=10)


def test_what_is_no_judged_run_yet_is_deleted_by_its_keys_time_and_domain(store):
    one = _scored()
    store.add(one)
    waiting = [recorded("run 1", session="s", tags=("a", "b")), recorded(str(one.run_id))]
    store.journal.record(waiting)
    pause(store, "place 4", "run 4", session="s")
    pause(store, "place 5", "run 5", session="t")
    for conditions, number in (
        ({"session": "s"}, 2), ({"session": "s", "tag": "b"}, 1), ({"domain": "code"}, 0),
        ({"session": "s", "min_score": 0.5}, 0), ({"domain": "finance"}, 5), ({"until": START}, 0),
        ({"until": START + timedelta(minutes=1)}, 5), ({"since": START + timedelta(minutes=1)}, 0),
    ):  # fmt: skip
        assert len(store.deletions.plan(**conditions)) == number, conditions
    deleted = store.delete(session="s")
    assert (list(deleted.unscored), list(deleted.paused)) == ([waiting[0].trace.id], ["place 4"])
    assert len(store.delete("run 5")) == 1
    with pytest.raises(UnknownRunError):
        store.delete("run 5")
    # A run id means what each handler recorded, judged or not.
    assert len(store.deletions.plan(one.trace.id)) == 1
    assert len(store.delete(str(one.run_id))) == 2
    assert (store.journal.waiting(), store.paused.count(), store.count()) == (0, 0, 0)


def test_a_run_that_is_deleted_before_it_is_judged_is_not_written(url):
    begun, go_on = threading.Event(), threading.Event()

    def outcome(run):
        begun.set()
        assert go_on.wait(LONG_S)
        return True

    with TraceStore(url) as store, TraceStore(url) as elsewhere:
        told = []
        watching = handler("finance", store=store, outcome=outcome, on_scored=told.append)
        searching().invoke(ASK, {"callbacks": [watching], "metadata": {"session_id": "s-1"}})
        assert begun.wait(LONG_S)
        assert len(elsewhere.delete(session="s-1")) == 1
        go_on.set()
        assert watching.flush(LONG_S)
        assert (store.count(), store.journal.waiting(), told) == (0, 0, [])
        watching.close()
