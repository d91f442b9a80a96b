"""Finding kept traces on both engines: as the store changes, and from several threads."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray

from kp_langchain import ScoredTrace, TraceStore
from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.recall import ExampleSearch, example_search
from kp_langchain.recall.planted_instructions import SCAN_VERSION
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import ReasoningTrace, Tool
from kp_langchain.store import recall_entries as recall_entries_module
from kp_langchain.store.pulled_units import ExaminedUnit
from kp_langchain.store.recall_entries import RecallEntries
from kp_langchain.store.tables import recall_entries
from tests.recall.words import EURO, GARDEN, POUND, Words

Scored = Callable[..., ScoredTrace]


class Counting(Words):
    """Counts the texts that it embeds."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += texts
        return super().embed(texts)


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


@pytest.fixture
def make(make_trace: Callable[..., ReasoningTrace]) -> Scored:
    """Builds a run that is kept, with a task."""
    from tests.store.conftest import _scored

    def build(number: int, task: str, **options: Any) -> ScoredTrace:
        one = _scored(number, **options)
        one.trace.task.objective = task
        return one

    return build


def found(search: ExampleSearch, task: str = EURO, **options: Any) -> list[str]:
    options.setdefault("floor", 0.5)
    examples = search.find(task, domain="finance", limit=5, **options)
    return [one.trace_id for one in examples.found]


def search_in(store: TraceStore, embedder: object | None = None) -> ExampleSearch:
    return ExampleSearch(store, embedder or Words())


def test_several_examples_are_of_different_tasks(store: TraceStore, make: Scored) -> None:
    again = [make(at, f"{POUND}{'!' * at}") for at in range(3)]
    other = make(7, "what is one franc in pounds")
    store.add_many([*again, other])
    shown = found(search_in(store), task=POUND, floor=0.2)
    assert len(shown) == 2
    assert shown[0] in [one.trace.id for one in again]
    assert shown[1] == other.trace.id


def test_many_runs_of_one_task_push_out_no_other_task(store: TraceStore, make: Scored) -> None:
    again = [make(at, POUND) for at in range(60)]
    others = [
        make(60 + at, f"what is one {word} in pounds") for at, word in enumerate(("yen", "won"))
    ]
    store.add_many([*again, *others])
    shown = found(search_in(store), task=POUND, floor=0.2)
    assert set(shown[1:]) == {one.trace.id for one in others}
    assert len(shown) == 3


def test_what_an_agent_cannot_call_pushes_out_nothing(store: TraceStore, make: Scored) -> None:
    foreign = [make(at, f"{EURO} {at}") for at in range(60)]
    own = make(60, POUND)
    own.trace.steps[1].tool = Tool(name="rates")
    store.add_many([*foreign, own])
    search = search_in(store)
    examples = search.find(EURO, domain="finance", floor=0.5, tools={"rates"}).found
    assert [one.trace_id for one in examples] == [own.trace.id]
    assert found(search)[0] != own.trace.id
    reason = search.find(EURO, domain="finance", floor=0.9, tools={"other"}).reason
    assert reason == "what is similar enough calls tools that the agent lacks"
    assert (
        "nearest task has similarity 0.16"
        in search.find(GARDEN, domain="finance", tools={"other"}).reason
    )


def test_a_damaged_trace_makes_room_for_another_run_of_its_task(
    tmp_path: Path, make: Scored
) -> None:
    with TraceStore(tmp_path / "kp.db") as store:
        runs = [make(at, POUND, score=0.9 - at / 10) for at in range(3)]
        store.add_many([*runs, other := make(7, "what is one franc in pounds")])
        search = search_in(store)
        best, *_ = found(search, task=POUND, floor=0.2)
        with closing(sqlite3.connect(tmp_path / "kp.db")) as connection, connection:
            connection.execute("UPDATE runs SET body = '{' WHERE trace_id = ?", (best,))
        shown = found(search, task=POUND, floor=0.2)
    assert len(shown) == 2
    assert shown[0] in {one.trace.id for one in runs} - {best}
    assert shown[1] == other.trace.id


def test_the_same_task_is_told_by_the_embedders_baseline(store: TraceStore, make: Scored) -> None:
    class Alike(Words):
        """To it, unrelated texts have similarity 0.7."""

        model, baseline = "alike", 0.7

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            rows = np.hstack([np.ones((len(texts), 1)), super().embed(texts)])
            return np.array(rows * np.sqrt([0.7, *[0.3] * 256]), np.float32)

    store.add_many([make(1, POUND), make(2, EURO)])  # their similarity is 0.86, their cosine 0.96
    assert len(found(search_in(store, Alike()), floor=0.2)) == 2


class TestAsTheStoreChanges:
    def test_what_one_process_has_embedded_no_other_does(
        self, store: TraceStore, make: Scored
    ) -> None:
        store.add_many([make(1, POUND), make(2, GARDEN)])
        assert len(found(search_in(store))) == 1
        counting = Counting()
        assert len(found(search_in(store, counting))) == 1
        assert counting.texts == [EURO]

    def test_what_is_kept_later(self, store: TraceStore, make: Scored) -> None:
        search = search_in(store, counting := Counting())
        assert found(search) == []
        store.add(one := make(1, POUND))
        assert found(search) == [one.trace.id]
        store.add(two := make(2, EURO))
        assert found(search) == [two.trace.id, one.trace.id]
        assert counting.texts == [EURO, EURO, POUND, EURO, EURO]

    def test_what_did_not_pass_or_failed(self, store: TraceStore, make: Scored) -> None:
        store.add_many([make(1, POUND, score=0.1), passed := make(2, POUND)])
        search = search_in(store)
        assert found(search) == [passed.trace.id]
        store.report_outcome(passed.trace.id, success=False)
        assert found(search) == []
        store.report_outcome(passed.trace.id, success=True)
        assert [one.trust for one in search.find(EURO, domain="finance", floor=0.5).found] == [
            "verdict"
        ]

    def test_what_is_deleted_at_the_last_moment(self, store: TraceStore, make: Scored) -> None:
        store.add(one := make(1, POUND))
        search = search_in(store)
        assert found(search) == [one.trace.id]
        index = search._index("finance", identity_in(search))
        index.update = lambda most_new=None: True  # type: ignore[method-assign]
        store.delete(one.trace.id)
        assert found(search) == []

    def test_what_is_deleted_while_it_is_embedded_leaves_nothing(
        self, store: TraceStore, make: Scored
    ) -> None:
        gone, stays = make(1, POUND), make(2, GARDEN)
        store.add_many([gone, stays])

        class Deleting(Words):
            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                if POUND in texts:
                    store.delete(gone.trace.id)
                return super().embed(texts)

        assert found(search_in(store, Deleting())) == []
        with store.database.reading() as connection:
            ids = list(connection.scalars(sa.select(recall_entries.c.trace_id)))
        assert ids == [stays.trace.id]

    def test_another_domain(self, store: TraceStore, make: Scored) -> None:
        store.add_many([make(1, POUND, domain="finance"), make(2, POUND, domain="code")])
        assert len(found(search_in(store))) == 1

    def test_another_embedder_embeds_anew(self, store: TraceStore, make: Scored) -> None:
        class Others(Counting):
            model = "others"

        store.add(make(1, POUND))
        found(search_in(store))
        others = Others()
        assert len(found(search_in(store, others))) == 1
        assert others.texts == [EURO, POUND]
        with store.database.reading() as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(recall_entries)) == 2

    def test_no_more_than_asked_for_is_embedded_at_once(
        self, store: TraceStore, make: Scored
    ) -> None:
        store.add_many([make(number, f"{POUND} {number}") for number in range(100)])
        search = search_in(store, counting := Counting())
        first = search.find(EURO, domain="finance", floor=0.5, limit=20, most_new=10)
        assert (len(first.found), first.is_complete) == (10, False)
        assert len(counting.texts) == 11
        assert search.find(EURO, domain="finance", floor=0.5).is_complete

    def test_units_of_a_registry_come_last_and_only_when_admitted(
        self, store: TraceStore, make: Scored
    ) -> None:
        own, unit = make(1, POUND), make(2, f"{POUND}, please").trace
        store.add(own)
        search = search_in(store)
        registry = "https://registry.example.org"
        store.pulled.write([ExaminedUnit(unit, "digest")], registry=registry, domain="finance")
        assert found(search) == [own.trace.id]
        store.pulled.admit(unit.id, by="a test")
        examples = search.find(EURO, domain="finance", floor=0.5, limit=5).found
        assert [(one.trace_id, one.trust) for one in examples] == [
            (own.trace.id, "own"),
            (unit.id, "registry"),
        ]
        store.pulled.reject(unit.id, by="a test")
        assert found(search) == [own.trace.id]

    def test_one_that_hurts_until_verdicts_say_otherwise(
        self, store: TraceStore, make: Scored
    ) -> None:
        store.add(one := make(1, POUND))
        later = []
        for number in range(20):
            shown = ShownTrace(one.trace.id, 1, 0.9, held_out=number % 2 == 0)
            later.append(run := make(10 + number, GARDEN, score=0.1, shown=(shown,)))
            store.add(run)
            store.report_outcome(run.trace.id, success=shown.held_out)
        assert found(search_in(store)) == []
        for run in later:
            store.report_outcome(run.trace.id, success=True)
        assert found(search_in(store)) == [one.trace.id]


def identity_in(search: ExampleSearch) -> Any:
    ((_, identity),) = search._indexes
    return identity


class TestWhoMaySeeWhat:
    def test_namespaces(self, store: TraceStore, make: Scored) -> None:
        mine = make(1, f"{POUND}, please", keys=RunKeys(namespace="tenant-a"))
        shared = make(2, POUND)
        store.add_many([mine, shared])
        search = search_in(store)
        assert found(search) == [shared.trace.id]
        assert found(search, namespace="tenant-b") == [shared.trace.id]
        assert set(found(search, namespace="tenant-a")) == {mine.trace.id, shared.trace.id}

    def test_a_trace_with_only_its_secrets_redacted_stays_in_its_namespace(
        self, store: TraceStore, make: Scored
    ) -> None:
        one = make(1, POUND, keys=RunKeys(namespace="tenant-a"))
        other = make(2, POUND)
        for run in (one, other):
            run.trace.metadata.privacy_level = "private"
        store.add_many([one, other])
        search = search_in(store)
        assert found(search) == []
        assert found(search, namespace="tenant-a") == [one.trace.id]

    def test_a_namespace_with_many_runs_pushes_out_no_other(
        self, store: TraceStore, make: Scored, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(recall_entries_module, "MOST_TASKS", 20)
        words = ("small", "large", None)
        options = [{"keys": RunKeys(namespace=word)} if word else {} for word in words]
        tasks = [f"{POUND} for {number} {number}" for number in range(84)]
        small = [make(number, tasks[number], **options[0]) for number in range(4)]
        shared = [make(number, tasks[number], **options[2]) for number in range(4, 24)]
        large = [make(number, tasks[number], **options[1]) for number in range(24, 84)]
        store.add_many([*small, *shared, *large])
        examples = search_in(store).find(EURO, domain="finance", namespace="small", limit=20)
        ids = {one.trace_id for one in examples.found}
        assert ids == {one.trace.id for one in (*small, *shared[-8:])}

    def test_a_withheld_trace(self, store: TraceStore, make: Scored) -> None:
        store.add(make(1, POUND, withheld="redaction failed"))
        assert found(search_in(store)) == []


class TestDamage:
    def test_damaged_rows_are_left_out(self, tmp_path: Path, make: Scored) -> None:
        file = tmp_path / "kp.db"
        with TraceStore(file) as store:
            traces = [make(number, f"{POUND} for {number} {number}") for number in range(6)]
            store.add_many(traces)
            ids = [one.trace.id for one in traces]
            found(search_in(store))
            with closing(sqlite3.connect(file)) as connection, connection:
                changes = [
                    ("UPDATE recall_entries SET vector = ? WHERE trace_id = ?", b"odd"),
                    ("UPDATE recall_entries SET vector = ? WHERE trace_id = ?", "text"),
                    ("UPDATE recall_entries SET plan = ? WHERE trace_id = ?", "{no json"),
                    ("UPDATE runs SET body = ? WHERE trace_id = ?", "{no json"),
                    ("UPDATE runs SET worth = ? WHERE trace_id = ?", "much"),
                ]
                for (statement, value), id_ in zip(changes, ids, strict=False):
                    connection.execute(statement, (value, id_))
            assert set(found(search_in(store))) <= {ids[2], ids[4], ids[5]}
            assert ids[5] in found(search_in(store))

    def test_a_store_that_cannot_be_written(
        self, tmp_path: Path, make: Scored, caplog: pytest.LogCaptureFixture
    ) -> None:
        file = tmp_path / "kp.db"
        with TraceStore(file) as store:
            store.add(one := make(1, POUND))
            with closing(sqlite3.connect(file)) as connection, connection:
                connection.execute(
                    "CREATE TRIGGER no_more BEFORE INSERT ON recall_entries "
                    "BEGIN SELECT RAISE(FAIL, 'no room'); END"
                )
            assert found(search_in(store)) == [one.trace.id]
            assert "cannot be written" in caplog.text

    def test_entries_of_an_earlier_scan_are_made_again(
        self, store: TraceStore, make: Scored
    ) -> None:
        store.add(make(1, POUND))
        found(search_in(store))
        with store.database.writing() as connection:
            older = {"scan_version": SCAN_VERSION - 1, "planted": "anything"}
            connection.execute(sa.update(recall_entries).values(**older))
        assert len(found(search_in(store, counting := Counting()))) == 1
        assert counting.texts == [EURO, POUND]


class TestHowMuchIsInMemory:
    def whole_reads(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch, domains: Sequence[str]
    ) -> list[str]:
        """Search in domains; return those that were read whole."""
        read, whole = RecallEntries.read, []

        def noting(entries: RecallEntries, domain: str, *args: Any, **options: Any) -> Any:
            page = read(entries, domain, *args, **options)
            if page is not None and page.is_whole:
                whole.append(domain)
            return page

        monkeypatch.setattr(RecallEntries, "read", noting)
        search = search_in(store)
        for domain in domains:
            search.find(EURO, domain=domain)
        return whole

    def test_many_small_domains_are_read_once(
        self, store: TraceStore, make: Scored, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        domains = [f"domain {number}" for number in range(40)]
        store.add_many(make(number, POUND, domain=one) for number, one in enumerate(domains))
        assert self.whole_reads(store, monkeypatch, domains * 3) == domains

    def test_the_least_recently_used_give_way(
        self, store: TraceStore, make: Scored, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(example_search, "_LEAST_TASKS", 2)
        monkeypatch.setattr(example_search, "_MOST_TASKS", 10)
        store.add_many(make(number, POUND, domain="abc"[number // 4]) for number in range(12))
        searches = ["a", "b", "a", "c", "a", "c", "b", "a"]
        assert self.whole_reads(store, monkeypatch, searches) == ["a", "b", "c", "b"]

    def test_any_number_of_empty_domains(
        self, store: TraceStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(example_search, "_MOST_TASKS", 1000)
        search = search_in(store)
        for number in range(30):
            search.find(EURO, domain=f"domain {number}")
        assert len(search._indexes) == 10


class Refusing(Counting):
    """Refuses batches in which roses come up, as a server does that takes no longer text."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if any("roses" in text for text in texts):
            raise ValueError("the input is too long")
        return super().embed(texts)


class TestAnEmbedderThatFails:
    @pytest.mark.parametrize("most_new", [None, 1])
    def test_a_task_that_it_refuses_costs_no_other(
        self, store: TraceStore, make: Scored, most_new: int | None
    ) -> None:
        store.add_many([one := make(1, POUND), make(2, GARDEN)])
        search = search_in(store, refusing := Refusing())
        while not search.update("finance", most_new=most_new):
            pass
        assert found(search) == [one.trace.id]
        store.add(later := make(3, EURO))
        assert found(search) == [later.trace.id, one.trace.id]
        del refusing.texts[:]
        assert found(search) == [later.trace.id, one.trace.id]
        assert refusing.texts == [EURO]
        assert len(found(search_in(store), GARDEN)) == 1  # another process tries again

    def test_when_all_fail_what_was_read_is_searched(
        self, store: TraceStore, make: Scored, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Limited(Counting):
            is_down = False

            def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
                if self.is_down and texts != [EURO]:
                    raise ConnectionError("too many requests")
                return super().embed(texts)

        store.add(one := make(1, POUND))
        search = search_in(store, limited := Limited())
        limited.is_down = True
        with pytest.raises(ConnectionError):
            found(search)
        limited.is_down = False
        assert found(search) == [one.trace.id]
        store.add(two := make(2, f"{POUND} again"))
        limited.is_down = True
        assert [found(search), found(search)] == [[one.trace.id]] * 2
        assert caplog.text.count("cannot be embedded") == 1
        limited.is_down = False
        assert set(found(search)) == {one.trace.id, two.trace.id}

    def test_the_task_of_the_run_fails_that_search_alone(
        self, store: TraceStore, make: Scored
    ) -> None:
        store.add(one := make(1, POUND))
        search = search_in(store, Refusing())
        with pytest.raises(ValueError, match="too long"):
            found(search, GARDEN)
        assert found(search) == [one.trace.id]


class TestAtOnce:
    def test_from_eight_threads(self, store: TraceStore, make: Scored) -> None:
        traces = [make(number, f"{POUND} {number}") for number in range(40)]
        store.add_many(traces)
        search = search_in(store)
        results: list[list[str]] = []
        threads = [threading.Thread(target=lambda: results.append(found(search))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [len(one) for one in results] == [5] * 8
        assert len({json.dumps(one) for one in results}) == 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    @pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
    def test_in_a_forked_child(self, tmp_path: Path, make: Scored) -> None:
        with TraceStore(tmp_path / "kp.db") as store:
            store.add(make(1, POUND))
            search = search_in(store)
            expected = found(search)
            child = os.fork()
            if child == 0:
                os._exit(0 if found(search) == expected else 1)
            assert os.waitpid(child, 0)[1] == 0
