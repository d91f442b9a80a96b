"""A novelty memory in a store: after a restart it finds what it would have found without one."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import sqlite3
import subprocess
import sys
import textwrap
import time
import uuid
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, Scorer, TraceStore
from kp_langchain.embedding.identity import EmbedderIdentity
from kp_langchain.errors import ConfigError
from kp_langchain.scoring import MemoryEntry, NoveltyMemory
from kp_langchain.scoring.in_process_memory import InProcessMemory
from kp_langchain.store import pending_entries, remembered_queries, sqlite, stored_memory
from kp_langchain.store import remembered as stored_remembered
from kp_langchain.store.tables import remembered

ROOT = Path(__file__).resolve().parents[2]
LETTERS = EmbedderIdentity("letters", "1")


class Letters:
    """Counts letters; fails with a text that has none."""

    identity = LETTERS

    def embed(self, texts):
        if not all({*text} & {*"xyz"} for text in texts):
            raise ValueError
        return np.array([[text.count(letter) for letter in "xyz"] for text in texts], float)


class Others(Letters):
    identity = EmbedderIdentity("other letters", "1")


def trace_of(objective: str, domain: str = "finance") -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": domain, "success": True},
            "task": {"objective": objective},
            "steps": [{"step_id": 0, "type": "thought", "content": "."}],
            "outcome": {"result_summary": "done", "confidence": 0.5},
        }
    )


def scorer_on(store: TraceStore, embedder: object = None, **bounds: object) -> Scorer:
    return Scorer(embedder=embedder or Letters(), cache=store.novelty_memory(**bounds))


def matched(scorer: Scorer, trace: ReasoningTrace) -> tuple[object, ...]:
    """What the memory said of a trace that it then remembers."""
    breakdown = scorer.evaluate(trace)
    nearest = breakdown.nearest
    return (
        breakdown.novelty_source,
        nearest and nearest.trace_id,
        nearest and round(nearest.similarity, 6),
    )


def rows_in(store: TraceStore) -> list[dict[str, object]]:
    with store.database.reading() as connection:
        select = sa.select(remembered).order_by(remembered.c.number)
        return [dict(row) for row in connection.execute(select).mappings()]


def change(store: TraceStore, **values: object) -> None:
    with store.database.writing() as connection:
        connection.execute(sa.update(remembered).values(**values))


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others remember is read with each trace."""
    monkeypatch.setattr(stored_memory, "_READ_AGAIN_S", 0.0)


def test_it_is_a_novelty_memory(url):
    with TraceStore(url) as store:
        memory = store.novelty_memory(max_remembered=7)
        assert isinstance(memory, NoveltyMemory)
        assert Scorer(cache=memory).max_remembered == 7
        assert "store" in repr(memory) or "postgresql" in repr(memory)
        for bounds in ({"max_remembered": 0}, {"ttl_ms": -1}):
            with pytest.raises(ConfigError):
                store.novelty_memory(**bounds)


def test_a_trace_of_an_earlier_process_is_not_new(url):
    with TraceStore(url) as store:
        first = trace_of("xxy")
        assert scorer_on(store).evaluate(first).novelty_source == "empty cache"
    with TraceStore(url) as store:
        same, similar, other = (
            scorer_on(store).score(trace_of(text)) for text in ("xxy", "xy", "z")
        )
    assert (same.novelty.value, same.nearest.trace_id) == (0.0, first.id)
    assert similar.nearest.similarity == pytest.approx(3 / np.sqrt(10))
    assert other.novelty.value == 1.0


def test_a_text_without_a_vector_is_known_again(url):
    with TraceStore(url) as store:
        first = trace_of("...")  # the embedder fails on it
        assert scorer_on(store).evaluate(first).novelty.value == 0.5
        assert rows_in(store)[0]["vector"] is None
    with TraceStore(url) as store:
        repeat = scorer_on(store).score(trace_of("..."))
        assert (repeat.novelty_source, repeat.nearest.trace_id) == ("exact repeat", first.id)


def test_only_the_vector_the_hash_and_names_are_stored(url):
    with TraceStore(url) as store:
        trace = trace_of("the secret xyz")
        scorer_on(store, domain="legal").evaluate(trace)
        (row,) = rows_in(store)
    assert np.frombuffer(row.pop("vector"), "<f4").tolist() == [1, 1, 1]
    assert len(row.pop("fingerprint")) == 32
    assert abs(datetime.now(UTC) - row.pop("at")) < timedelta(hours=1)
    assert row == {
        "number": 1,
        "trace_id": trace.id,
        "scope": "legal",
        "model": "letters",
        "revision": "1",
        "baseline": 0.0,
        "domain": "finance",
    }


def test_another_model_s_vectors_do_not_count(url):
    with TraceStore(url) as store:
        scorer_on(store).evaluate(trace_of("x"))
        for embedder, more in (
            (Others(), {}),
            (Letters(), {"baseline": 0.25}),
        ):
            memory = store.novelty_memory()
            breakdown = Scorer(embedder=embedder, cache=memory, **more).score(trace_of("xx"))
            assert breakdown.novelty_source == "empty cache"
        # An exact repeat is one by its text alone.
        assert scorer_on(store, Others()).score(trace_of("x")).novelty.value == 0


def test_a_domain_s_memory_is_apart(url):
    with TraceStore(url) as store:
        scorer_on(store, domain="legal").evaluate(trace_of("x"))
        scorer_on(store).evaluate(trace_of("y"))
        for domain, text in ((None, "x"), ("legal", "y"), ("code", "x")):
            breakdown = scorer_on(store, domain=domain).score(trace_of(text))
            assert breakdown.novelty.value in (0.5, 1.0)
        assert scorer_on(store, domain="legal").score(trace_of("x")).novelty.value == 0


def test_a_trace_is_remembered_once(url):
    trace = trace_of("x")
    with TraceStore(url) as store:
        for _ in range(2):
            scorer = scorer_on(store)
            scorer.evaluate(trace)
            scorer.evaluate(trace)
        assert len(rows_in(store)) == 1


def test_a_vector_that_comes_late_joins_its_fingerprint(url):
    with TraceStore(url) as store:
        memory = store.novelty_memory()
        memory.compare_then_add([MemoryEntry("kp:trace:a", b"a" * 32)])
        memory.add(MemoryEntry("kp:trace:a", None, np.array([1, 0, 0], "f4"), LETTERS))
    with TraceStore(url) as store:
        memory = store.novelty_memory()
        entry = MemoryEntry("kp:trace:b", b"a" * 32, np.array([1, 0, 0], "f4"), LETTERS)
        nearest, repeat = memory.compare(entry)
        assert nearest.trace_id == repeat.trace_id == "kp:trace:a"


def test_a_vector_of_a_model_that_is_known_already_joins_its_row(url):
    with TraceStore(url) as store:
        memory = store.novelty_memory()
        memory.add(MemoryEntry("kp:trace:a", b"a" * 32, None, LETTERS))
        memory.add(MemoryEntry("kp:trace:a", None, np.array([1, 0, 0], "f4"), LETTERS))
        memory.add(MemoryEntry("kp:trace:a", b"b" * 32, np.array([0, 1, 0], "f4"), LETTERS))
        (row,) = rows_in(store)
        assert row["fingerprint"] == b"a" * 32
        assert np.frombuffer(row["vector"], "<f4").tolist() == [1, 0, 0]


def test_postgres_has_one_writer_at_a_time(new_postgres_url):
    """Otherwise a row could appear after one with a higher number, and never be read."""
    with TraceStore(new_postgres_url()) as store:
        store.novelty_memory().add(MemoryEntry("kp:trace:a", b"a" * 32))
        (row,) = rows_in(store)
        row |= {"trace_id": "kp:trace:b"}
        locks = sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted")
        with store.database.writing() as connection, store.database.reading() as other:
            assert other.scalar(locks) == 0
            del row["number"]
            remembered_queries.add(connection, [row])
            assert other.scalar(locks) == 1


class TestAge:
    def test_it_carries_over(self, url):
        with TraceStore(url) as store:
            scorer_on(store, ttl_ms=60_000).evaluate(trace_of("x"))
            change(store, at=datetime.now(UTC) - timedelta(seconds=30))
            assert scorer_on(store, ttl_ms=60_000).score(trace_of("x")).novelty.value == 0
            change(store, at=datetime.now(UTC) - timedelta(seconds=61))
            breakdown = scorer_on(store, ttl_ms=60_000).score(trace_of("x"))
            assert breakdown.novelty_source == "empty cache"
            # Nothing expires for a memory without a limit.
            assert scorer_on(store).score(trace_of("x")).novelty.value == 0

    def test_what_was_loaded_expires_at_its_own_time(self, url):
        entry = MemoryEntry("kp:trace:a", b"a" * 32, np.array([1, 0, 0], "f4"), LETTERS)
        with TraceStore(url) as store:
            store.novelty_memory().add(entry)
            change(store, at=datetime.now(UTC) - timedelta(hours=1))
            hour_ms = 3_600_000
            memory = store.novelty_memory(ttl_ms=hour_ms + 200)
            memory.compare(entry)
            until = time.monotonic() + 600  # far less than an hour
            while memory.compare(entry) != (None, None):
                assert time.monotonic() < until

    def test_a_clock_that_is_ahead_counts_as_now(self, url):
        with TraceStore(url) as store:
            scorer_on(store).evaluate(trace_of("x"))
            change(store, at=datetime.now(UTC) + timedelta(days=3650))
            assert scorer_on(store, ttl_ms=60_000).score(trace_of("x")).novelty.value == 0

    def test_the_order_is_that_of_remembering_whatever_the_clock_said(self, url):
        with TraceStore(url) as store:
            memory = store.novelty_memory()
            for name in "abc":
                memory.add(MemoryEntry(f"kp:trace:{name}", name.encode() * 32))
            with store.database.writing() as connection:
                for number, minutes in ((1, 0), (2, 20), (3, 50)):
                    at = datetime.now(UTC) - timedelta(minutes=minutes)
                    statement = sa.update(remembered).where(remembered.c.number == number)
                    connection.execute(statement.values(at=at))
            memory = store.novelty_memory(max_remembered=2)
            assert memory.compare(MemoryEntry("q", b"a" * 32)).repeat is None
            memory.add(MemoryEntry("kp:trace:d", b"d" * 32))
            assert memory.compare(MemoryEntry("q", b"b" * 32)).repeat is None
            assert memory.compare(MemoryEntry("q", b"c" * 32)).repeat is not None


class TestPruning:
    def test_what_is_beyond_the_window_is_deleted_now_and_then(self, url):
        with TraceStore(url) as store:
            scorer = scorer_on(store, max_remembered=20)
            for number in range(200):
                scorer.evaluate(trace_of("x" * (number + 1)))
                assert store.remembered.count() <= 23
            numbers = [row["number"] for row in rows_in(store)]
        assert numbers[-20:] == list(range(181, 201))

    def test_a_process_that_writes_little_prunes_too(self, url):
        with TraceStore(url) as store:
            for number in range(30):
                scorer_on(store, max_remembered=5).evaluate(trace_of("x" * (number + 1)))
            assert store.remembered.count() <= 6

    def test_what_is_too_old_is_deleted(self, url):
        with TraceStore(url) as store:
            scorer_on(store).evaluate(trace_of("x"))
            change(store, at=datetime.now(UTC) - timedelta(days=2))
            scorer_on(store, ttl_ms=86_400_000).evaluate(trace_of("y"))
            assert len(rows_in(store)) == 1

    def test_each_model_and_scope_has_its_own_window(self, url):
        with TraceStore(url) as store:
            scorer_on(store, Others(), max_remembered=3).evaluate(trace_of("x"))
            scorer_on(store, domain="legal", max_remembered=3).evaluate(trace_of("x"))
            for number in range(20):
                scorer_on(store, max_remembered=3).evaluate(trace_of("x" * (number + 2)))
            rows = rows_in(store)
        assert [row["model"] for row in rows[:2]] == ["other letters", "letters"]
        assert rows[1]["scope"] == "legal"
        assert len(rows) <= 2 + 4


TEXTS = st.lists(st.text("xyz.", min_size=1, max_size=3), max_size=14)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS, restart=st.integers(0, 14), size=st.integers(1, 6), data=st.data())
def test_a_restart_changes_no_match(url, texts, restart, size, data):
    """At a random place in a random sequence, some of which has no vector."""
    traces = [trace_of(text) for text in texts]
    whole = Scorer(embedder=Letters(), max_remembered=size)
    expected = [matched(whole, trace) for trace in traces]
    scope = str(uuid.uuid4())
    batched = data.draw(st.booleans())
    found = []
    for part in (traces[:restart], traces[restart:]):
        with TraceStore(url) as store:
            scorer = scorer_on(store, max_remembered=size, domain=scope)
            if batched:
                list(scorer.evaluate_many(part[:-1], batch_size=3))
                found += expected[len(found) : len(found) + len(part[:-1])]
                part = part[-1:]
            found += [matched(scorer, trace) for trace in part]
    assert found == expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    turns=st.lists(st.tuples(st.text("xyz.", min_size=1, max_size=3), st.booleans()), max_size=14)
)
def test_two_memories_that_look_each_time_are_one(always, url, turns):
    whole = InProcessMemory(5)
    scope = str(uuid.uuid4())
    with TraceStore(url) as one, TraceStore(url) as other:
        scorers = [scorer_on(store, max_remembered=5, domain=scope) for store in (one, other)]
        expected = Scorer(embedder=Letters(), cache=None, max_remembered=5).with_memory(whole)
        for text, is_second in turns:
            trace = trace_of(text)
            assert matched(scorers[is_second], trace) == matched(expected, trace)


@pytest.mark.parametrize("size", [1, 2, 7, 12])
def test_a_memory_is_read_in_pages(url, monkeypatch, size):
    monkeypatch.setattr(stored_remembered, "_PAGE_SIZE", 2)
    with TraceStore(url) as store:
        traces = [trace_of(f"{'x' * number}{'y' * (9 - number)}") for number in range(10)]
        list(scorer_on(store).evaluate_many(traces))
        scorer = scorer_on(store, max_remembered=size)
        for number, trace in enumerate(traces):
            nearest = scorer.score(trace.model_copy(update={"id": "kp:trace:q"})).nearest
            assert (nearest.trace_id == trace.id) is (number >= 10 - size)


class TestOthers:
    def test_what_another_process_adds_is_seen_when_it_is_time(self, url, monkeypatch):
        with TraceStore(url) as store:
            mine, theirs = scorer_on(store), scorer_on(store)
            mine.evaluate(trace_of("x"))
            theirs.evaluate(trace_of("y"))
            assert mine.score(trace_of("y")).novelty.value == 1.0  # not yet: it has just looked
            memory = mine._memory
            monkeypatch.setattr(memory, "_due_at", 0.0)
            assert mine.score(trace_of("y")).novelty.value == 0.0

    def test_a_store_that_was_made_anew_is_read_from_its_beginning(self, url, always):
        with TraceStore(url) as store:
            mine = scorer_on(store)
            for text in ("x", "xy", "xyz"):
                mine.evaluate(trace_of(text))
            with store.database.writing() as connection:
                connection.execute(sa.delete(remembered))
                if connection.dialect.name == "sqlite":
                    connection.execute(sa.text("DELETE FROM sqlite_sequence"))
                else:
                    connection.execute(sa.text("ALTER SEQUENCE remembered_number_seq RESTART"))
            scorer_on(store).evaluate(trace_of("z"))
            assert mine.score(trace_of("z")).novelty.value == 0.0
            assert mine.score(trace_of("x")).novelty.value == 0.0

    def test_two_processes_share_it(self, url):
        with TraceStore(url) as store:
            scorer_on(store).evaluate(trace_of("x"))
        program = """
            import sys
            from kp_langchain import Scorer, TraceStore
            from tests.store.test_stored_memory import Letters, scorer_on, trace_of
            with TraceStore(sys.argv[1]) as store:
                scorer = scorer_on(store)
                print(scorer.evaluate(trace_of("x")).novelty.value)
                for number in range(50):
                    scorer.evaluate(trace_of(f"{sys.argv[2]}-{number}"))
        """
        children = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(program), url, str(number)],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        assert [child.communicate(timeout=600)[0].strip() for child in children] == ["0.0", "0.0"]
        with TraceStore(url) as store:
            assert store.remembered.count() == 1 + 2 * 51
            for number in range(2):
                assert scorer_on(store).score(trace_of(f"{number}-49")).novelty.value == 0


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            {"vector": b"\0" * 8},
            {"vector": b""},
            {"vector": np.array([np.nan, 0, 0], "<f4").tobytes()},
            {"vector": np.array([np.inf, 0, 0], "<f4").tobytes()},
        ],
    )
    def test_a_row_that_cannot_be_used_does_not_count(self, url, damage, caplog):
        with TraceStore(url) as store:
            scorer = scorer_on(store)
            scorer.evaluate(trace_of("x"))
            change(store, **damage)
            scorer.evaluate(trace_of("y"))
            fresh = scorer_on(store)
            assert fresh.score(trace_of("xx")).novelty.value == 1.0
            assert fresh.score(trace_of("x")).novelty.value == 0.0  # its fingerprint is sound
            assert fresh.score(trace_of("y")).novelty.value == 0.0
        (record,) = [one for one in caplog.records if "damaged" in one.getMessage()]
        assert record.levelno == logging.WARNING
        assert "1 traces" in record.getMessage()

    def test_a_row_without_vector_and_fingerprint_is_nothing(self, url, caplog):
        with TraceStore(url) as store:
            scorer_on(store).evaluate(trace_of("x"))
            change(store, vector=None, fingerprint=None)
            assert scorer_on(store).score(trace_of("x")).novelty_source == "empty cache"
        assert caplog.records == []

    def test_values_of_another_type(self, tmp_path, caplog):
        with TraceStore(tmp_path / "runs.db") as store:
            scorer = scorer_on(store)
            scorer.evaluate(trace_of("x"))
            with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
                connection.execute("UPDATE remembered SET vector = 'text', fingerprint = 7.5")
            scorer.evaluate(trace_of("y"))
            fresh = scorer_on(store)
            assert fresh.score(trace_of("y")).novelty.value == 0.0
            assert fresh.score(trace_of("x")).novelty.value == 1.0
        assert len([one for one in caplog.records if "damaged" in one.getMessage()]) == 1

    def test_an_embedder_of_another_length_starts_anew(self, url, caplog):
        class Longer(Letters):
            def embed(self, texts):
                return np.pad(super().embed(texts), ((0, 0), (0, 2)))

        with TraceStore(url) as store:
            scorer_on(store).evaluate(trace_of("x"))
            assert scorer_on(store, Longer()).evaluate(trace_of("xx")).novelty.value == 0.5
            assert scorer_on(store, Longer()).evaluate(trace_of("xxx")).novelty.value == 0.0
        assert "another length" in caplog.text

    def test_ids_and_names_that_no_database_takes(self, url, always):
        class Odd(Letters):
            identity = EmbedderIdentity("m\0\ud800" * 400, "r" * 5000)

        with TraceStore(url) as store:
            first = trace_of("x", domain="d\0" * 700).model_copy(
                update={"id": "kp:trace:" + "\ud800" * 300}
            )
            scorer = scorer_on(store, Odd(), domain="s\0" * 900)
            scorer.evaluate(first)
            for one in (scorer, scorer_on(store, Odd(), domain="s\0" * 900)):
                assert one.score(trace_of("xx")).novelty.value == pytest.approx(0)
            (row,) = rows_in(store)
            # Read back, it is known, and takes no second place.
            assert scorer.score(trace_of("xx")).nearest.trace_id == row["trace_id"]
            assert scorer._memory._window._own_cache.size == 1

    @pytest.mark.parametrize(
        "identity", [EmbedderIdentity("m", "r", float("nan")), EmbedderIdentity(7)]
    )
    def test_an_identity_that_cannot_be_stored_is_remembered_here(self, url, identity, caplog):
        class Odd(Letters):
            pass

        Odd.identity = identity
        with TraceStore(url) as store:
            scorer = scorer_on(store, Odd())
            scorer.evaluate(trace_of("x"))
            assert scorer.evaluate(trace_of("x")).novelty.value == 0.0
            assert rows_in(store) == []
        assert caplog.text.count("embedder's identity") == 1


class TestFailing:
    @pytest.fixture
    def away(self, tmp_path):
        """A store in a folder that cannot be made, until `come` is called."""
        (tmp_path / "folder").write_text("")
        return TraceStore(tmp_path / "folder" / "runs.db")

    def come(self, away: TraceStore) -> None:
        Path(away.location).parent.unlink()

    def test_novelty_is_measured_in_this_process(self, away, caplog):
        scorer = scorer_on(away)
        plain = Scorer(embedder=Letters())
        for text in ("x", "xy", "x", "..", ".."):
            trace = trace_of(text)
            assert matched(scorer, trace) == matched(plain, trace)
        warnings = [one.getMessage() for one in caplog.records if "novelty" in one.getMessage()]
        assert len([one for one in warnings if "cannot be read now" in one]) == 1
        assert len([one for one in warnings if "cannot be kept" in one]) == 1

    def test_it_is_asked_again_after_a_minute(self, away, monkeypatch):
        scorer = scorer_on(away)
        memory = scorer._memory
        first = trace_of("x")
        scorer.evaluate(first)
        self.come(away)
        with TraceStore(away.location) as other:
            scorer_on(other).evaluate(trace_of("y"))
        assert scorer.score(trace_of("y")).novelty.value == 1.0
        assert memory._resting_until > 0
        monkeypatch.setattr(memory, "_resting_until", 0.0)
        memory._pending.end_pause()
        assert scorer.evaluate(trace_of("y")).novelty.value == 0.0
        # What waited is written, in its order.
        with TraceStore(away.location) as other:
            rows = rows_in(other)
            assert [row["trace_id"] for row in rows][1] == first.id
            assert len(rows) == 3

    def test_what_waits_is_bounded(self, away, monkeypatch, caplog):
        monkeypatch.setattr(pending_entries, "_MAX_WAITING", 3)
        scorer = scorer_on(away)
        for number in range(5):
            scorer.evaluate(trace_of("x" * (number + 1)))
        assert len(scorer._memory._pending) == 3
        assert caplog.text.count("wait to be remembered") == 1
        assert scorer.score(trace_of("x")).novelty.value == 0

    def test_a_batch_larger_than_what_may_wait_is_written_whole(self, url, monkeypatch):
        monkeypatch.setattr(stored_memory, "MAX_BATCH", 4)
        monkeypatch.setattr(pending_entries, "_MAX_WAITING", 4)
        with TraceStore(url) as store:
            traces = [trace_of("x" * (number + 1)) for number in range(10)]
            list(scorer_on(store).evaluate_many(traces))
            assert [row["trace_id"] for row in rows_in(store)] == [trace.id for trace in traces]

    def test_a_lock_that_is_never_released(self, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.01)
        with TraceStore(tmp_path / "runs.db") as store:
            scorer_on(store).evaluate(trace_of("x"))
            with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
                other.execute("BEGIN IMMEDIATE")
                scorer = scorer_on(store)
                assert scorer.evaluate(trace_of("x")).novelty.value == 0  # it can be read
                other.rollback()
            assert "cannot be kept" in caplog.text
            scorer._memory._pending.end_pause()
            scorer.evaluate(trace_of("y"))
            assert len(rows_in(store)) == 3

    def test_a_missing_table(self, url, caplog):
        with TraceStore(url) as store:
            scorer_on(store).evaluate(trace_of("x"))
            with store.database.writing() as connection:
                connection.execute(sa.text("DROP TABLE remembered"))
            scorer = scorer_on(store)
            scorer.evaluate(trace_of("x"))
            assert scorer.evaluate(trace_of("x")).novelty.value == 0
        assert "a table is missing" in caplog.text

    def test_an_interrupt_reaches_the_caller_and_loses_nothing(self, url, monkeypatch):
        with TraceStore(url) as store:
            scorer = scorer_on(store)
            scorer.evaluate(trace_of("x"))
            add = type(store.remembered).add

            def interrupted(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            monkeypatch.setattr(type(store.remembered), "add", interrupted)
            with pytest.raises(KeyboardInterrupt):
                scorer.evaluate(trace_of("y"))
            monkeypatch.setattr(type(store.remembered), "add", add)
            scorer.evaluate(trace_of("z"))
            assert len(rows_in(store)) == 3


def test_an_embedder_that_changes_its_identity_is_not_followed_each_time(url, monkeypatch):
    class Changing(Letters):
        identity = LETTERS

    embedder = Changing()
    with TraceStore(url) as store:
        scorer_on(store, Others()).evaluate(trace_of("y"))
        scorer = scorer_on(store, embedder)
        reads = []
        vectors = type(store.remembered).vectors

        def counted(self, identity, *rest):
            reads.append(identity)
            return vectors(self, identity, *rest)

        monkeypatch.setattr(type(store.remembered), "vectors", counted)
        for number in range(10):
            # The adapter reads the attribute when it is made.
            scorer._embedder.identity = (LETTERS, Others.identity)[number % 2]
            scorer.evaluate(trace_of("x" * (number + 1)))
    assert reads == [LETTERS]


def test_a_scorer_with_one_can_be_sent_to_another_process(url):
    with TraceStore(url) as store:
        scorer = scorer_on(store, max_remembered=7)
        scorer.evaluate(trace_of("x"))
        arrived = pickle.loads(pickle.dumps(scorer))  # noqa: S301
        assert arrived.max_remembered == 7
        assert arrived.score(trace_of("x")).novelty.value == 0
        arrived._memory._remembered._database.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_goes_on_with_the_window(url, run_python):
    script = f"""
        import os
        from kp_langchain import TraceStore
        from tests.store.test_stored_memory import rows_in, scorer_on, trace_of
        store = TraceStore({url!r})
        scorer = scorer_on(store)
        mine = trace_of("x")
        scorer.evaluate(mine)
        scorer._memory._pending.put([])
        # What waits is the parent's.
        scorer._memory._pending._entries.append("the parent's")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                assert scorer.evaluate(trace_of("x")).nearest.trace_id == mine.id
                assert scorer.evaluate(trace_of("y")).novelty.value == 1.0
                code = 0 if len(rows_in(store)) == 3 else 2
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(len(scorer._memory._pending))
        scorer._memory._pending._entries.clear()
        print(scorer_on(store).score(trace_of("y")).novelty.value)
        store.close()
    """
    assert run_python(textwrap.dedent(script)).stdout.split() == ["0", "1", "0.0"]


def test_memories_do_not_outlive_their_users(url):
    with TraceStore(url) as store:
        scorer_on(store).evaluate(trace_of("x"))
        gc.collect()
        assert [
            one for one in pending_entries._queues if one._remembered.location == store.location
        ] == []
