"""What a store has of its kept runs, to compare others with; on SQLite and on PostgreSQL."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from kp_langchain import ScoredTrace, TraceStore, Verdict
from kp_langchain.embedding.identity import EmbedderIdentity
from kp_langchain.gate import Rescored
from kp_langchain.scoring import MemoryEntry
from kp_langchain.store import kept_traces, sql, tables
from kp_langchain.store.kept_traces import KeptPage, KeptState
from kp_langchain.store.verdicts import write_verdict

REGISTRY = "https://registry.example.org"
MODEL = EmbedderIdentity("a model", "1", 0.25)


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


@pytest.fixture
def passed(scored: Callable[..., ScoredTrace]) -> Callable[..., ScoredTrace]:
    """Builds a run that passed, with what others are compared with; a higher number is newer."""

    def build(
        number: int = 0,
        vector: tuple[float, ...] | None = (1.0, 0.5),
        identity: EmbedderIdentity = MODEL,
        text: bytes = b"hash",
        **more: Any,
    ) -> ScoredTrace:
        one = scored(number, **{"keep_days": 7.0, **more})
        array = None if vector is None else np.array(vector, np.float32)
        entry = MemoryEntry(one.trace.id, text, array, identity)
        return replace(one, entry=entry, twin_similarity=0.9)

    return build


def traces(store: TraceStore, domain: str = "finance", **options: Any) -> list[Any]:
    page = store.kept.read(domain, **options)
    assert page is not None
    return page.traces


def entries(store: TraceStore) -> set[str]:
    with store.database.reading() as connection:
        return set(connection.scalars(sa.select(tables.run_entries.c.trace_id)))


def test_kept_runs_come_back_as_they_were_the_oldest_first(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    new, old = passed(2), passed(1, visibility="network")
    below, elsewhere = passed(3, score=0.1), passed(4, domain="code")
    store.add_many([new, old, below, elsewhere])
    first, second = traces(store)
    assert [one.entry.trace_id for one in (first, second)] == [old.trace.id, new.trace.id]
    assert (first.may_leave, second.may_leave) == (True, False)
    assert first.run_id == str(old.run_id)
    assert (first.confidence, first.is_stated) == (0.7, False)
    assert first.entry.fingerprint == b"hash"
    assert first.entry.identity == MODEL
    np.testing.assert_array_equal(first.entry.vector, np.array([1.0, 0.5], np.float32))
    assert first.entry.vector.dtype == np.float32


def test_a_run_without_its_trace_is_not_compared(
    store: TraceStore, passed: Callable[..., ScoredTrace], scored: Callable[..., ScoredTrace]
) -> None:
    store.add_many([passed(1, keep=False), scored(2)])
    assert traces(store) == []
    assert entries(store) == set()


def test_a_run_that_is_added_again_has_the_new_entry_alone(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one = passed(1)
    store.add(one)
    store.add(replace(one, entry=MemoryEntry(one.trace.id, b"other")))
    (kept,) = traces(store)
    assert (kept.entry.fingerprint, kept.entry.vector) == (b"other", None)
    store.add(replace(one, entry=None))
    assert traces(store) == []


def test_what_has_expired_is_compared_no_longer(
    url: str, store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one, other = passed(1, score=0.1), passed(2, score=0.1)
    store.add_many([one, other])
    with store.database.writing() as connection:
        past = datetime.now(UTC) - timedelta(days=1)
        update = sa.update(tables.runs).where(tables.runs.c.trace_id == one.trace.id)
        connection.execute(update.values(body_expires_at=past))
    with TraceStore(url) as again:
        again.add(passed(3, score=0.1))  # every process deletes them with its first write
    assert one.trace.id not in entries(store)
    assert other.trace.id in entries(store)


def test_what_has_expired_is_deleted_without_waiting_for_others_that_hold_it(
    new_postgres_url: Callable[[], str], passed: Callable[..., ScoredTrace]
) -> None:
    url = new_postgres_url()
    with TraceStore(url) as store, TraceStore(url) as again, ThreadPoolExecutor() as threads:
        one = passed(1, score=0.1)
        store.add(one)
        row = tables.runs.c.trace_id == one.trace.id
        with store.database.writing() as connection:
            past = datetime.now(UTC) - timedelta(days=1)
            connection.execute(sa.update(tables.runs).where(row).values(body_expires_at=past))
        with store.database.writing() as connection:
            connection.execute(sa.select(tables.runs.c.trace_id).where(row).with_for_update())
            threads.submit(again.add, passed(2, score=0.1)).result(timeout=60)
            assert one.trace.id in entries(again)


def test_a_trace_that_a_verdict_has_deleted_is_compared_no_longer(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one = passed(1, keep_days=0)
    store.add(one)
    assert entries(store) == {one.trace.id}
    store.report_outcome(one.trace.id, success=False)
    assert entries(store) == set()


def test_one_that_is_replaced_is_deleted_at_once_if_it_is_to_be_kept_for_no_days(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one, other = passed(1, keep_days=0), passed(2)
    store.add_many([one, replace(other, replaces=(one.trace.id,))])
    assert entries(store) == {other.trace.id}
    with store.database.reading() as connection:
        select = sa.select(tables.runs.c.trace_id).where(tables.runs.c.body.is_not(None))
        assert connection.scalars(select).all() == [other.trace.id]


def ids(page: KeptPage) -> list[str]:
    return [kept.entry.trace_id for kept in page.traces]


def test_after_a_whole_read_only_what_changed_in_the_domain_is_read(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one, two, three = (passed(number, text=b"%d" % number, vector=None) for number in range(3))
    elsewhere = passed(4, domain="code")
    store.add_many([one, two, elsewhere])
    page = store.kept.read("finance")
    assert page is not None
    assert (page.is_whole, ids(page)) == (True, [one.trace.id, two.trace.id])
    store.add_many([passed(5, score=0.1), passed(6, domain="code")])
    store.report_outcome(elsewhere.trace.id, success=False)
    assert store.kept.read("finance", since=page.state) is None

    store.add(three)
    store.report_outcome(one.trace.id, success=False)
    store.report_outcome(two.trace.id, confidence=0.9)
    page = store.kept.read("finance", since=page.state)
    assert page is not None
    assert (page.is_whole, ids(page)) == (False, [three.trace.id, two.trace.id])
    assert page.left == {one.trace.id}
    assert page.traces[1].confidence == pytest.approx(0.9)
    assert store.kept.read("finance", since=page.state) is None


def test_one_that_is_replaced_has_left_and_one_that_was_not_has_not(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one, stated, surer = (passed(number) for number in range(3))
    store.add_many([one, stated])
    store.report_outcome(stated.trace.id, success=True)
    page = store.kept.read("finance")
    assert page is not None
    store.add(replace(surer, replaces=(one.trace.id, stated.trace.id)))
    page = store.kept.read("finance", since=page.state)
    assert page is not None
    assert (set(ids(page)), page.left) == ({stated.trace.id, surer.trace.id}, {one.trace.id})


def test_a_run_that_is_added_once_more_keeps_the_order_of_changes(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one, two = passed(1), passed(2)
    store.add_many([one])
    page = store.kept.read("finance")
    assert page is not None
    store.add(replace(one, decision="below_threshold"))
    store.add(two)
    later = store.kept.read("finance", since=page.state)
    assert later is not None
    assert ids(later) == [two.trace.id]


def test_more_changes_than_are_compared_and_a_database_made_anew_are_read_whole(
    store: TraceStore, passed: Callable[..., ScoredTrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_traces, "MOST_COMPARED", 3)
    for number in range(4):
        store.add(passed(number))
    page = store.kept.read("finance", since=KeptState(0, 0))
    assert page is not None
    assert (page.is_whole, len(page.traces)) == (True, 3)
    page = store.kept.read(
        "finance", since=page.state._replace(newest_change=page.state.newest_change + 1)
    )
    assert page is not None
    assert page.is_whole


def test_it_says_which_of_the_awaited_runs_it_has(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one, below = passed(1), passed(2, score=0.1)
    store.add_many([one, below])
    page = store.kept.read("finance", awaited=[one.trace.id, below.trace.id, "kp:trace:never"])
    assert page is not None
    assert page.written == {one.trace.id, below.trace.id}


@pytest.mark.parametrize(
    "damage",
    [
        {"vector": b"abc"},
        {"vector": np.array([np.nan, 1], "<f4").tobytes()},
        {"vector": b""},
    ],
)
def test_a_damaged_vector_does_not_count(
    store: TraceStore, passed: Callable[..., ScoredTrace], damage: dict[str, Any]
) -> None:
    store.add(passed(1))
    with store.database.writing() as connection:
        connection.execute(sa.update(tables.run_entries).values(**damage))
    (kept,) = traces(store)
    assert (kept.entry.fingerprint, kept.entry.vector) == (b"hash", None)


@pytest.mark.parametrize("column", ["fingerprint", "model", "confidence", "vector", "is_stated"])
def test_a_row_that_was_changed_by_hand_costs_no_other(
    folder: Any, passed: Callable[..., ScoredTrace], column: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In SQLite, which takes a value of any type in any column."""
    with TraceStore(folder / "traces.db") as store:
        one, other = passed(1), passed(2)
        store.add_many([one, other])
        with store.database.writing() as connection:
            value = b"\0" if column in ("model", "confidence") else "text"
            row = sa.table("run_entries", sa.column("trace_id"), sa.column(column))
            update = sa.update(row).where(row.c.trace_id == one.trace.id)
            connection.execute(update.values({column: value}))
        with caplog.at_level(logging.WARNING, "kp_langchain"):
            kept = traces(store)
        assert other.trace.id in {trace.entry.trace_id for trace in kept}
        assert len(kept) == 1 or column in ("vector", "is_stated")
        assert ("are damaged" in caplog.text) is (len(kept) == 1)
        # A verdict on it, and on its twin, gets an answer, too.
        for run in (one, other):
            store.report_outcome(run.trace.id, success=True)


def test_an_identity_that_no_database_takes_leaves_the_text(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    odd = EmbedderIdentity(["no", "text"], "", 0.0)  # type: ignore[arg-type]
    store.add(passed(1, identity=odd))
    (kept,) = traces(store)
    assert (kept.entry.fingerprint, kept.entry.vector) == (b"hash", None)


def test_ids_and_names_of_any_kind_are_found_again(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    long_id = "kp:trace:" + "x" * 300
    one = passed(1, trace_id=long_id, score=0.7, identity=EmbedderIdentity("m\ud800\x00", "", 0.0))
    store.add(one)
    (kept,) = traces(store)
    surer = replace(passed(2), replaces=(kept.entry.trace_id,))
    store.add(surer)
    assert [trace.entry.trace_id for trace in traces(store)] == [surer.trace.id]
    assert store.get(kept.entry.trace_id).replaced_by == surer.trace.id  # type: ignore[union-attr]


@pytest.mark.parametrize("verdict", [None, Verdict(confidence=0.9)])
def test_what_a_verdict_states_meanwhile_is_not_replaced_by_an_estimate(
    store: TraceStore, passed: Callable[..., ScoredTrace], verdict: Verdict | None
) -> None:
    one, surer = passed(1, visibility="network"), passed(2, visibility="network")
    store.add(one, registry=REGISTRY)
    store.report_outcome(one.trace.id, success=True)
    surer = replace(surer, replaces=(one.trace.id,), verdict=verdict)
    store.add(surer, registry=REGISTRY)
    assert store.count(decision="contributed") == 2
    assert store.outbox.counts()["pending"] == 2


def test_a_confidence_alone_takes_back_no_statement(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one = passed(1)
    store.add(one)
    store.report_outcome(one.trace.id, success=True)
    store.report_outcome(one.trace.id, confidence=0.8)
    (kept,) = traces(store)
    assert kept.is_stated
    assert kept.confidence == pytest.approx(0.8)


def test_a_chain_of_surer_runs_in_one_transaction_leaves_the_last(
    store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    runs = [passed(number, visibility="network") for number in range(4)]
    chain = [replace(run, replaces=(before.trace.id,)) for before, run in pairwise(runs)]
    store.add_many([runs[0], *chain], registry=REGISTRY)
    assert [run.trace_id for run in store.runs(decision="contributed")] == [runs[-1].trace.id]
    assert store.outbox.counts() == {"pending": 1, "sent": 0, "dead": 0, "withdrawn": 3}


def test_a_run_of_an_earlier_version_is_recognised_by_its_text(
    store: TraceStore, scored: Callable[..., ScoredTrace]
) -> None:
    """Once a verdict came on it; before, the store has nothing to compare."""
    one, twin = (
        replace(scored(0, score=0.49, threshold=0.5), keep_days=7.0, twin_similarity=0.9)
        for _ in range(2)
    )
    store.add_many([one, twin])
    assert entries(store) == set()
    (first,) = store.report_outcome(one.trace.id, success=True)
    (second,) = store.report_outcome(twin.trace.id, success=True)
    assert (first.decision, second.decision) == ("contributed", "below_threshold")
    assert (second.twin_of, second.similarity_to_twin) == (one.trace.id, 1.0)


def test_a_run_that_was_stored_without_the_rule_passes_by_a_verdict(
    store: TraceStore, scored: Callable[..., ScoredTrace]
) -> None:
    runs = [scored(0, score=0.49, threshold=0.5, keep_days=7.0) for _ in range(2)]
    store.add_many(runs)
    with store.database.writing() as connection:
        connection.execute(sa.update(tables.runs).values(twin_similarity=None))
    for run in runs:
        (change,) = store.report_outcome(run.trace.id, success=True)
        assert change.decision == "contributed"


def test_of_twins_that_two_processes_confirm_at_the_same_time_one_is_kept(
    url: str, store: TraceStore, passed: Callable[..., ScoredTrace]
) -> None:
    one, twin = (passed(0, score=0.49, threshold=0.5) for _ in range(2))
    store.add_many([one, twin])
    changes: list[Rescored] = []

    def confirm() -> None:
        with TraceStore(url) as elsewhere:
            changes.extend(elsewhere.report_outcome(twin.trace.id, success=True))

    other = threading.Thread(target=confirm)
    with store.database.writing() as connection, TraceStore(url) as watching:
        (row,) = sql.run_queries.find_to_judge(connection, one.trace.id)
        first = write_verdict(connection, row, Verdict(success=True), None)
        assert first.decision == "contributed"
        other.start()
        while url.startswith("postgresql") and other.is_alive() and not is_waiting(watching):
            pass  # in SQLite it waits, too, which nothing shows
    other.join(60)
    (change,) = changes
    assert (change.decision, change.twin_of) == ("below_threshold", one.trace.id)


def is_waiting(store: TraceStore) -> bool:
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with store.database.reading() as connection:
        return bool(connection.scalar(sa.text(locks)))


def test_a_run_is_added_after_a_change_that_is_under_way_in_its_domain(
    new_postgres_url: Callable[[], str], passed: Callable[..., ScoredTrace]
) -> None:
    """Otherwise a change could appear after one with a higher number, and never be read."""
    url = new_postgres_url()
    one, two, elsewhere, below = passed(1), passed(2), passed(3, domain="code"), passed(4, score=0)
    with TraceStore(url) as store, TraceStore(url) as other, TraceStore(url) as watching:
        store.add(one)
        adding = threading.Thread(target=other.add, args=(two,))
        with store.database.writing() as connection:
            sql.run_queries.find_to_judge(connection, one.trace.id)
            watching.add_many([elsewhere, below])  # which does not wait
            adding.start()
            while adding.is_alive() and not is_waiting(watching):
                pass
            assert adding.is_alive()
        adding.join(60)
        assert store.count(decision="contributed") == 3
