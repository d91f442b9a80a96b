"""What is deleted is gone: from every table, from the files, from other processes' memory."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import DomainPolicy, ScoredTrace, Scorer, TraceStore, Verdict
from kp_langchain.embedding.identity import EmbedderIdentity
from kp_langchain.errors import ConfigError, StoreError, UnknownRunError
from kp_langchain.gate import ShownTrace
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.run_keys import RunKeys
from kp_langchain.scoring import MemoryEntry
from kp_langchain.store import deletion, sqlite, stored_memory
from kp_langchain.store.paused_runs import FirstHalf
from kp_langchain.store.pulled_units import ExaminedUnit
from kp_langchain.store.recall_entries import TaskEntry
from kp_langchain.store.tables import metadata, outbox
from kp_langchain.store.tables import runs as runs_table
from tests.agents import ASK, handler, searching
from tests.store.conftest import _scored
from tests.store.test_stored_memory import matched, scorer_on, trace_of

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = "https://registry.example.org"
MODEL = EmbedderIdentity("a model", "1", 0.25)
NOT_OF_RUNS = {"models", "paused_runs", "counts", "registries", "pulled_units"}


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


def complete(number: int = 0, **more: Any) -> ScoredTrace:
    """A run with everything that a run can have."""
    options = {
        "visibility": "network",
        "keys": RunKeys(session=f"s-{number}", user=f"hash:{number:032x}", tags=("beta", "b")),
        "verdict": Verdict(success=True, note=f"note {number}"),
        "twin_similarity": 0.9,
        "features": {"n_steps": 2.0},
        "external_traces": {"langfuse": ExternalTrace(f"external-{number}", "span", "project")},
        "shown": (ShownTrace("kp:trace:shown", 1, 0.8),),
        **more,
    }
    one = _scored(number, **options)
    vector = np.array([1.0, number], np.float32)
    return replace(one, entry=MemoryEntry(one.trace.id, b"hash", vector, MODEL))


def draft(run_id: str, **keys: Any) -> dict[str, Any]:
    """As much of a draft as a deletion reads."""
    wire = _scored(content="a draft").trace.model_dump(mode="json")
    return {"run_id": run_id, "trace": wire, "keys": RunKeys(**keys).to_dict()}


def half(place: str, run_id: str, **keys: Any) -> FirstHalf:
    body = {
        "run_id": run_id,
        "started_at": "2026-02-01T12:00:00+00:00",
        "domain": "finance",
        "keys": RunKeys(**keys).to_dict(),
    }
    return FirstHalf(place, "half", None, datetime.now(UTC), body)


def remember(store: TraceStore, *trace_ids: str) -> None:
    for scope in (None, "finance"):
        memory = store.novelty_memory(domain=scope)
        for trace_id in trace_ids:
            vector = np.array([1.0, 0.0], np.float32)
            memory.add(MemoryEntry(trace_id, trace_id.encode(), vector, MODEL, "finance"))


def rows(store: TraceStore) -> dict[str, set[str]]:
    """The trace ids in each table that has any."""
    with store.database.reading() as connection:
        return {
            name: set(connection.scalars(sa.select(table.c.trace_id)))
            for name, table in metadata.tables.items()
            if name not in NOT_OF_RUNS
        }


class TestTables:
    def test_a_run_is_deleted_from_every_table(self, store: TraceStore) -> None:
        gone, stays = complete(1), complete(2)
        store.add_many([gone, stays], registry=REGISTRY)
        store.unscored.add((one.trace.id, str(one.run_id), {}) for one in (gone, stays))
        remember(store, gone.trace.id, stays.trace.id)
        tasks = {one.trace.id: TaskEntry(None) for one in (gone, stays)}
        store.recall_entries.write(tasks, MODEL, 1)
        assert all(ids == {gone.trace.id, stays.trace.id} for ids in rows(store).values())
        deleted = store.delete(gone.trace.id)
        assert (deleted.by_domain, deleted.at_registry, len(deleted)) == ({"finance": 1}, 0, 1)
        assert all(ids == {stays.trace.id} for ids in rows(store).values())
        assert store.get(gone.trace.id) is None
        assert len(store.verdicts(stays.trace.id)) == 1

    def test_the_log_of_who_was_shown_it_too(self, store: TraceStore) -> None:
        gone = complete(1)
        stays = complete(2, shown=(ShownTrace(gone.trace.id, 1, 0.8),))
        store.add_many([gone, stays])
        store.delete(gone.trace.id)
        assert store.shown.of_run(stays.trace.id) == []
        assert store.shown.outcome_counts("finance") == []

    def test_what_recall_noted_of_traces_that_are_gone_is_pruned(self, store: TraceStore) -> None:
        gone, stays, unit = complete(1), complete(2), complete(3).trace
        shown = tuple(ShownTrace(one, 1, 0.8) for one in (gone.trace.id, stays.trace.id, unit.id))
        later = complete(4, shown=shown)
        store.add_many([gone, stays, later])
        store.pulled.write([ExaminedUnit(unit, "digest")], registry=REGISTRY, domain="finance")
        ids = (gone.trace.id, stays.trace.id, unit.id)
        store.recall_entries.write({one: TaskEntry(None) for one in ids}, MODEL, 1)
        of_it = runs_table.c.trace_id == gone.trace.id
        with store.database.writing() as connection:  # as another program deletes it
            connection.execute(sa.delete(runs_table).where(of_it))
        assert store.prune().leftovers > 0
        assert rows(store)["recall_entries"] == set(ids[1:])
        assert {one.trace_id for one in store.shown.of_run(later.trace.id)} == set(ids[1:])
        assert store.prune().leftovers == 0

    def test_in_batches(self, store: TraceStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(deletion, "_BATCH_SIZE", 3)
        runs = [complete(n, domain="code" if n % 3 else "finance") for n in range(20)]
        store.add_many(runs)
        deleted = store.delete(domain="code")
        assert deleted.by_domain == {"code": 13}
        assert (store.count(), store.count(domain="code")) == (7, 0)
        assert len(rows(store)["verdicts"]) == 7

    def test_by_the_filters_of_a_listing(self, store: TraceStore) -> None:
        runs = [complete(n, score=n / 10) for n in range(10)]
        store.add_many(runs)
        middle = runs[5].trace.metadata.created_at
        assert len(store.delete(until=middle, min_score=0.3)) == 2
        assert len(store.delete(session="s-9")) == 1
        assert len(store.delete(tag="no such tag")) == 0
        assert store.count() == 7
        assert len(store.delete(tag="beta")) == 7

    def test_the_newest_may_stay(self, store: TraceStore) -> None:
        runs = [complete(n) for n in range(5)]
        store.add_many(runs)
        plan = store.plan_deletion(keep=2)
        assert set(plan.trace_ids) == {run.trace.id for run in runs[:3]}
        assert store.count() == 5
        store.carry_out(plan)
        assert [run.trace_id for run in store.runs()] == [runs[4].trace.id, runs[3].trace.id]
        assert len(store.plan_deletion(keep=2)) == 0

    def test_an_id_is_whatever_a_listing_shows(self, store: TraceStore) -> None:
        run_id = uuid.uuid4()
        siblings = [complete(n, run_id=run_id) for n in range(2)]
        other = complete(3)
        store.add_many([*siblings, other])
        beginning = other.trace.id.removeprefix("kp:trace:")[:8].upper()
        assert len(store.delete(beginning)) == 1
        assert len(store.delete(str(run_id))) == 2
        assert store.count() == 0

    def test_an_unknown_or_ambiguous_id_deletes_nothing(self, store: TraceStore) -> None:
        ids = [f"kp:trace:aaaaaaaa-0000-4000-8000-{n:012}" for n in range(2)]
        store.add_many([complete(n, trace_id=id_) for n, id_ in enumerate(ids)])
        with pytest.raises(UnknownRunError, match="no run 'nothing'"):
            store.delete(ids[0], "nothing")
        with pytest.raises(UnknownRunError, match="may mean several runs"):
            store.delete(ids[0], "aaaaaaaa")
        assert store.count() == 2

    @pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # a server refuses such a value
    def test_a_damaged_run_can_be_deleted(self, store: TraceStore) -> None:
        one = complete()
        store.add(one)
        with store.database.writing() as connection:
            columns = ("breakdown", "body", "tags", "features")
            damaged = {column: sa.literal_column("'not JSON'") for column in columns}
            connection.execute(sa.update(metadata.tables["runs"]).values(damaged))
            connection.execute(sa.delete(metadata.tables["run_summaries"]))
        assert len(store.delete(one.trace.id)) == 1
        assert not any(rows(store).values())

    @pytest.mark.parametrize(
        "filters",
        [{}, {"domain": None}, {"search": "  "}, {"recovered_errors": False}],
        ids=str,
    )
    def test_without_a_condition_it_is_refused(
        self, store: TraceStore, filters: dict[str, Any]
    ) -> None:
        store.add(complete())
        with pytest.raises(ConfigError, match="needs ids or conditions"):
            store.delete(**filters)
        assert store.count() == 1

    def test_ids_beside_conditions_are_refused(self, store: TraceStore) -> None:
        one = complete()
        store.add(one)
        for options in ({"domain": "finance"}, {"keep": 3}):
            with pytest.raises(ConfigError, match="not both"):
                store.plan_deletion(one.trace.id, **options)
        with pytest.raises(ConfigError, match="keep=-1 must not be negative"):
            store.plan_deletion(keep=-1)

    def test_what_is_no_run_yet_goes_by_its_keys_time_and_domain(self, store: TraceStore) -> None:
        store.unscored.add([("kp:trace:1", "run 1", draft("run 1", session="s", tags=("a", "b")))])
        store.unscored.add([("kp:trace:2", "run 2", draft("run 2"))])
        store.unscored.add([("kp:trace:3", "run 3", {"damaged": True})])
        store.paused.put(
            [half("place 4", "run 4", session="s"), half("place 5", "run 5", session="t")],
            days=1,
            most=10,
        )
        for conditions, number in (
            ({"session": "s"}, 2),
            ({"session": "s", "tag": "b"}, 1),
            ({"session": "s", "min_score": 0.5}, 0),
            ({"domain": "finance"}, 4),
            ({"domain": "code"}, 0),
            ({"until": datetime(2026, 2, 1, 12, tzinfo=UTC)}, 0),
            ({"until": datetime(2026, 2, 1, 12, 1, tzinfo=UTC)}, 4),
            ({"since": datetime(2026, 2, 1, 12, 1, tzinfo=UTC)}, 0),
        ):
            assert len(store.plan_deletion(**conditions)) == number, conditions
        deleted = store.delete(session="s")
        assert (list(deleted.unscored), list(deleted.paused)) == (["kp:trace:1"], ["place 4"])
        assert (store.unscored.count(), store.paused.count()) == (2, 1)
        assert len(store.delete("run 5")) == 1
        assert len(store.delete("kp:trace:2")) == 1
        with pytest.raises(UnknownRunError):
            store.delete("run 5")

    def test_a_run_id_means_what_each_handler_recorded_scored_or_not(
        self, store: TraceStore
    ) -> None:
        one = complete()
        store.add(one)
        store.unscored.add([("kp:trace:2", str(one.run_id), draft(str(one.run_id)))])
        assert len(store.plan_deletion(one.trace.id)) == 1
        assert len(store.delete(str(one.run_id))) == 2
        assert not any(rows(store).values())


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "verdict", "sent", "delete", "delete domain", "remember"]),
        st.integers(0, 5),
    ),
    max_size=30,
)


def act(store: TraceStore, action: str, number: int) -> None:
    one = complete(number, trace_id=f"kp:trace:no. {number}", domain=f"domain {number % 2}")
    exists = store.get(one.trace.id) is not None
    if action == "add":
        store.add(one, registry=REGISTRY)
    elif action == "remember" and exists:
        remember(store, one.trace.id)
    elif action == "verdict" and exists:
        store.report_outcome(one.trace.id, success=bool(number % 3), registry=REGISTRY)
    elif action == "sent" and (unit := store.outbox.get(one.trace.id)) is not None:
        store.outbox.settle(
            replace(unit, state="sent", registry_id=unit.unit_id, body=None), read=unit
        )
    elif action == "delete" and exists:
        store.delete(one.trace.id)
    elif action == "delete domain":
        store.delete(domain=f"domain {number % 2}")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_every_table_has_rows_of_existing_runs_alone(tmp_path: Path, actions: Any) -> None:
    with TraceStore(tmp_path / f"{uuid.uuid4()}.db") as store:
        for action, number in actions:
            act(store, action, number)
            found = rows(store)
            existing, contributions = found["runs"], found.pop("outbox")
            assert {name for name, ids in found.items() if not ids <= existing} == set()
            assert found["run_summaries"] == existing
            with store.database.reading() as connection:
                orphans = connection.execute(
                    sa.select(outbox).where(outbox.c.trace_id.in_(contributions - existing))
                ).mappings()
                for row in orphans:
                    assert (row["body"], row["reason"], row["issues"]) == (None, None, None)
                    assert (row["state"], row["withdraw_asked"]) == ("sent", True)


class TestFiles:
    TEXT = "the merger of ACME"

    def fill(self, store: TraceStore) -> list[str]:
        runs = [
            replace(
                complete(n, content=f"{self.TEXT} {n} " * 300),
                verdict=Verdict(success=True, note=f"{self.TEXT} {n}"),
            )
            for n in range(12)
        ]
        for run in runs:
            run.trace.task.objective = f"{self.TEXT} {run.trace.id}"
        store.add_many(runs, registry=REGISTRY)
        store.unscored.add(
            [("kp:trace:draft", "run", draft("run", session="s") | {"text": self.TEXT})]
        )
        store.paused.put([half("place", "run 4", session="s")], days=1, most=10)
        return [run.trace.id for run in runs]

    def content(self, folder: Path) -> bytes:
        return b"".join(file.read_bytes() for file in folder.iterdir())

    def test_no_byte_of_a_text_is_left(self, tmp_path: Path) -> None:
        folder = tmp_path / "store"
        with TraceStore(folder / "x.db") as store:
            self.fill(store)
            store.add(complete(99, content="what stays"))
            assert self.TEXT.encode() in self.content(folder)
            store.delete(search="merger")
            store.delete(session="s")
            compaction = store.compact()
            assert compaction.is_complete
            assert compaction.bytes_after < compaction.bytes_before
            left = self.content(folder)
            assert b"what stays" in left
            for text in (self.TEXT, self.TEXT.lower(), "merger"):
                assert text.encode() not in left
            assert (folder / "x.db-wal").stat().st_size == 0

    def test_not_even_in_free_pages_once_the_log_is_copied(self, tmp_path: Path) -> None:
        path = tmp_path / "x.db"
        with TraceStore(path) as store:
            self.fill(store)
        with TraceStore(path) as store:
            store.delete(search="merger")
            store.delete(session="s")
        with closing(sqlite3.connect(path)) as connection:  # its end copies the log
            assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 0
        assert self.TEXT.encode() not in path.read_bytes()

    def test_a_reader_delays_the_end_of_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.05)
        monkeypatch.setattr(sqlite, "_SHORT_WAIT_MS", 1)
        with (
            TraceStore(tmp_path / "x.db") as store,
            closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as reader,
        ):
            self.fill(store)
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM runs").fetchone()
            store.delete(domain="finance")
            assert not store.compact().is_complete
            store.add(complete())  # others can write all the same
            reader.execute("COMMIT")
            assert store.compact().is_complete

    def test_a_writer_ends_it_with_a_message(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.05)
        with (
            TraceStore(tmp_path / "x.db") as store,
            closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as writer,
        ):
            self.fill(store)
            writer.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match=r"cannot compact .* has been writing"):
                store.compact()
            writer.execute("ROLLBACK")
            assert store.compact().is_complete
            assert store.count() == 12

    def test_a_server_is_vacuumed(self, new_postgres_url: Callable[[], str]) -> None:
        with TraceStore(new_postgres_url()) as store:
            self.fill(store)
            store.delete(domain="finance")
            compaction = store.compact()
            assert compaction.is_complete
            assert min(compaction.bytes_before, compaction.bytes_after) > 0
            with store.database.reading() as connection:  # what is empty is cut off
                assert connection.scalar(sa.select(sa.func.pg_relation_size("runs"))) == 0
            store.add(complete())
            assert store.count() == 1


class TestOtherProcesses:
    def test_what_novelty_remembers_of_it_is_forgotten(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stored_memory, "_READ_AGAIN_S", 0.0)
        with TraceStore(url) as one, TraceStore(url) as other:
            here, there = scorer_on(one), scorer_on(other)
            gone, stays = trace_of("xx"), trace_of("yy")
            for trace in (gone, stays):
                here.remember(trace)
            assert there.score(trace_of("xx")).nearest.trace_id == gone.id
            run = _scored(trace_id=gone.id)
            one.add(run)
            one.delete(gone.id)
            for scorer in (here, there):
                assert scorer.score(trace_of("xx")).nearest.trace_id == stays.id
                assert scorer.score(trace_of("yy")).nearest.trace_id == stays.id
            assert matched(there, trace_of("xx"))[1] == stays.id

    def test_until_it_is_time_to_read_nothing_changes(self, tmp_path: Path) -> None:
        with TraceStore(tmp_path / "x.db") as store:
            scorer, gone = scorer_on(store), trace_of("xx")
            scorer.remember(gone)
            scorer.score(gone)
            store.add(_scored(trace_id=gone.id))
            store.delete(gone.id)
            assert scorer.score(trace_of("xx")).nearest.trace_id == gone.id

    def test_a_kept_run_has_no_twins_any_more(self, url: str) -> None:
        policy = DomainPolicy(threshold=0.0)
        with TraceStore(url) as store, TraceStore(url) as elsewhere:
            watching = handler(store=store, policy=policy, scorer=Scorer(embedder=None))
            ids = []
            for _ in range(2):
                searching().invoke(ASK, {"callbacks": [watching]})
                scored = watching.last()
                assert scored is not None
                ids.append((scored.trace.id, scored.decision, scored.twin_of))
            assert watching.flush(600)
            assert ids[1][1:] == ("below_threshold", ids[0][0])
            elsewhere.delete(ids[0][0])
            searching().invoke(ASK, {"callbacks": [watching]})
            scored = watching.last()
            assert scored is not None
            assert (scored.decision, scored.twin_of) == ("contributed", None)
            watching.close()

    def test_a_run_that_is_deleted_before_it_has_a_score_is_not_written(self, url: str) -> None:
        begun, go_on = threading.Event(), threading.Event()

        def outcome(run: object) -> bool:
            begun.set()
            assert go_on.wait(600)
            return True

        with TraceStore(url) as store, TraceStore(url) as elsewhere:
            watching = handler("finance", store=store, outcome=outcome)
            config: Any = {"callbacks": [watching], "metadata": {"session_id": "s-1"}}
            searching().invoke(ASK, config)
            assert begun.wait(600)
            watching._writer.wait()
            assert elsewhere.unscored.count() == 1
            assert len(elsewhere.delete(session="s-1")) == 1
            go_on.set()
            assert watching.flush(600)
            assert (store.count(), store.unscored.count()) == (0, 0)
            searching().invoke(ASK, {"callbacks": [watching]})
            assert watching.flush(600)
            assert store.count() == 1
            watching.close()

    def test_a_handler_of_another_process_goes_on_through_it(self, tmp_path: Path) -> None:
        """What it records before, between and after that is there, but for what was deleted."""
        program = """
            import sys
            from kp_langchain import DomainPolicy, TraceStore
            from tests.agents import ASK, handler, searching
            watching = handler(store=TraceStore("x.db"), policy=DomainPolicy(threshold=0.0))
            for line in sys.stdin:
                searching().invoke(ASK, {"callbacks": [watching]})
                scored = watching.last()
                assert watching.flush(600)
                print(scored.decision, scored.breakdown.novelty_source, flush=True)
        """
        with (
            TraceStore(tmp_path / "x.db") as store,
            subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as child,
        ):
            assert child.stdin is not None
            assert child.stdout is not None

            def play() -> str:
                child.stdin.write("go\n")
                child.stdin.flush()
                return child.stdout.readline().split()[0]

            assert [play(), play()] == ["contributed", "below_threshold"]
            assert len(store.delete(domain="default")) == 2
            assert store.compact().is_complete
            assert [play(), play()] == ["contributed", "below_threshold"]
            store.add(complete(content="more " * 5000))
            store.delete(domain="finance")
            assert store.compact().is_complete
            assert play() == "below_threshold"
            child.stdin.close()
            assert child.wait(600) == 0
            assert store.count() == 3


def test_others_write_while_thousands_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_BATCH_SIZE", 2)
    path = tmp_path / "x.db"
    with TraceStore(path) as store:
        store.add_many([complete(n) for n in range(60)])
        plan = store.plan_deletion(domain="finance")
        counts: list[int] = []
        turns = iter(range(60))

        def write() -> None:
            with TraceStore(path) as other:
                other.add(complete(next(turns), domain="code"))
                counts.append(other.count(domain="finance"))

        monkeypatch.setattr(deletion, "_let_others_write", write)
        store.carry_out(plan)
        assert counts == [*range(58, -1, -2)]
        assert store.count() == store.count(domain="code") == 30


def test_many_threads_add_judge_replace_and_delete_the_same_runs(url: str) -> None:
    """None waits for another for ever, and no table has more than the others in the end."""
    errors: list[BaseException] = []

    def play(seed: int) -> None:
        drawn = random.Random(seed)
        try:
            with TraceStore(url) as store:
                for _ in range(25):
                    number, other = drawn.sample(range(8), 2)
                    one = complete(number, trace_id=f"kp:trace:no. {number}")
                    match drawn.randrange(4):
                        case 0:
                            replaces = (f"kp:trace:no. {other}",)
                            store.add(replace(one, replaces=replaces), registry=REGISTRY)
                        case 1:
                            store.delete(domain="finance", session=f"s-{number}")
                        case 2:
                            remember(store, one.trace.id)
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
            thread.join(600)
        assert errors == []
        found = rows(store)
        found.pop("remembered")  # what was remembered of a run that was gone by then
        contributions = found.pop("outbox")
        assert {name for name, ids in found.items() if not ids <= found["runs"]} == set()
        assert contributions <= found["runs"]


def test_what_is_deleted_can_be_added_again(store: TraceStore) -> None:
    one = complete()
    store.add(one, registry=REGISTRY)
    store.delete(one.trace.id)
    store.add(one, registry=REGISTRY)
    assert store.count() == 1
    assert store.outbox.counts()["pending"] == 1
    assert [verdict.note for verdict in store.verdicts(one.trace.id)] == ["note 0"]


def test_it_is_no_run_of_yesterday(store: TraceStore) -> None:
    """A time without a zone is local, as in a listing."""
    one = complete(created_at=datetime.now(UTC) - timedelta(hours=3))
    store.add(one)
    store.unscored.add([("kp:trace:1", "run 1", draft("run 1"))])
    assert len(store.plan_deletion(until=datetime.now() - timedelta(hours=2))) == 2
    assert len(store.plan_deletion(since=datetime.now() - timedelta(hours=2))) == 0
