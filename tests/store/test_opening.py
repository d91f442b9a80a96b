"""The store's contract, on SQLite and on PostgreSQL: where it lies, who opens it, what it refuses.

Alone and beside other processes, in copies that travel to them.
"""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kp_langchain import ConfigError, StoreError, TraceStore
from kp_langchain.config import data_dir
from kp_langchain.store import default_store
from kp_langchain.store import migrations as schema
from kp_langchain.store.migrations import Migration
from tests import programs
from tests.store.conftest import (
    LONG_S,
    Conversation,
    _scored,
    execute,
    fork,
    rows_by_table,
    sql,
)

VERSION = "UPDATE kp_schema SET version = :version, oldest = :version"


def test_nothing_is_made_before_the_first_use_which_says_nothing_in_the_log_of_the_host(
    url, tmp_path
):
    """In a process of its own: threads of other tests log at the level that is set here, too."""
    code = """
import logging, sys
logging.basicConfig(level=logging.DEBUG)
levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
from kp_langchain import TraceStore
from tests.store.conftest import _scored
store = TraceStore(sys.argv[1])
sys.stdin.readline()
store.add(_scored())
print(store.count(), {name: logging.getLogger(name).level for name in levels} == levels)
store.close()
"""
    done = programs.run("-c", code, url, stdin="go\n", PYTHONPATH=str(programs.ROOT))
    assert (done.stdout.split(), done.stderr) == (["1", "True"], "")
    store = TraceStore(url.replace("traces.db", "other.db"))
    assert not (tmp_path / "store" / "other.db").exists()
    store.close()


# ------------------------------------------------------------------ which database


def test_by_default_it_lies_in_the_users_data_folder_or_where_the_settings_say(
    tmp_path, monkeypatch
):
    assert TraceStore().location == str(data_dir() / "traces.db")
    monkeypatch.setenv("KP_DATABASE_URL", f"sqlite:///{tmp_path}/set.db")
    assert TraceStore().location == str(tmp_path / "set.db")
    assert TraceStore(tmp_path / "given.db").location == str(tmp_path / "given.db")
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = str(tmp_path / "a b%.db")
    for one in (
        "a b%.db", Path("a b%.db"), "sqlite:///a b%.db", f"sqlite:///{expected}", "~/a b%.db",
        expected, f"sqlite+pysqlite:///{expected}",
    ):  # fmt: skip
        assert TraceStore(one).location == expected


@pytest.mark.parametrize(
    "wrong",
    [
        "", "  ", 7, b"x.db", ":memory:", "sqlite://", "sqlite:///:memory:",
        "sqlite:///x.db?mode=ro", "sqlite://host/x.db", "sqlite:///file:x.db",
        "mysql://u:secret@h/db", "postgresql+psycopg://h:port/db",
    ],
)  # fmt: skip
def test_what_names_no_database_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"give|write") as caught:
        TraceStore(wrong).count()
    assert "secret" not in str(caught.value)


# ------------------------------------------------------------------ versions and strangers


def test_a_database_of_another_version_is_left_alone(store, url):
    store.add(_scored())
    ((version,),) = execute(store, "SELECT version FROM kp_schema")
    store.close()
    for other in ("9042", "3"):
        execute(url, VERSION, version=other)
        message = rf"schema version {other}, .* uses version {version}; give another database"
        with TraceStore(url) as opened, pytest.raises(StoreError, match=message):
            opened.count()
    execute(url, VERSION, version=version)
    assert store.count() == 1
    store.close()
    execute(url, "DROP TABLE kp_schema")
    execute(url, "CREATE TABLE kp_alembic_version (version_num TEXT)")  # as up to version 10
    with TraceStore(url) as opened, pytest.raises(StoreError, match="another program or version"):
        opened.count()


def test_processes_of_two_releases_use_a_database_while_it_only_grows(store, url, monkeypatch):
    """As an older process has it, `store`, and as newer ones do, which add to the tables."""

    def release(*migrations: Migration) -> TraceStore:
        monkeypatch.setattr(schema, "MIGRATIONS", migrations)
        return TraceStore(url)

    def adds(statement: str, **more: Any) -> Migration:
        return Migration(statement, lambda on: on.exec_driver_sql(statement), **more)

    mood = adds("ALTER TABLE runs ADD COLUMN mood VARCHAR(9) DEFAULT 'calm' NOT NULL")
    notes = adds("CREATE TABLE notes (note VARCHAR(9))")
    contract = adds("DROP TABLE notes", oldest=28)
    store.add(_scored(1))
    with release(mood, notes) as newer:
        newer.add(first := _scored(2))
        store.add(second := _scored(3))  # opened before
        with release() as old:  # opened after
            old.report_outcome(first.trace.id, success=False)
            assert old.delete(second.trace.id)
            assert old.count() == store.count() == newer.count() == 2
    versions = "SELECT version, oldest FROM kp_schema"
    assert execute(url, versions) == [("29", "27")]
    assert execute(url, "SELECT DISTINCT mood FROM runs") == [("calm",)]
    with release(mood, notes, contract) as newest:
        assert newest.count() == 2
    assert execute(url, versions) == [("30", "28")]
    with release(mood) as older:
        assert older.count() == 2
    message = r"schema version 30, .* uses version 27; give another database"
    with release() as oldest, pytest.raises(StoreError, match=message):
        oldest.count()


def test_a_migration_that_fails_changes_nothing(store, url, monkeypatch):
    def fail(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE runs ADD COLUMN mood VARCHAR(9)")
        raise OSError("no room")

    store.add(_scored())
    before = execute(url, "SELECT * FROM kp_schema")
    with monkeypatch.context() as patch, TraceStore(url) as newer:
        patch.setattr(schema, "MIGRATIONS", (Migration("", fail),))
        with pytest.raises(StoreError, match="no room"):
            newer.count()
    assert execute(url, "SELECT * FROM kp_schema") == before
    assert "mood" not in rows_by_table(store)["runs"][0]


def test_a_strangers_tables_are_not_touched(url, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    execute(url, "CREATE TABLE alembic_version (version_num TEXT)")
    for name in ("runs", "outbox"):
        execute(url, f"CREATE TABLE {name} (mine INTEGER)")
        with TraceStore(url) as store, pytest.raises(StoreError, match="of another program or"):
            store.count()
        execute(url, f"DROP TABLE {name}")
    with TraceStore(url) as store:
        assert store.count() == 0
    with sql(url) as connection:
        assert "alembic_version" in sa.inspect(connection).get_table_names()


# ------------------------------------------------------------------ beside others

CREATING = """
import sys
from kp_langchain import TraceStore
from tests.store.conftest import _scored
store = TraceStore(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for _ in range(10):
    store.add(_scored())
store.close()
"""


def test_processes_may_create_the_database_at_the_same_moment(url):
    processes = [Conversation(CREATING, url) for _ in range(3)]
    assert [process.line() for process in processes] == ["ready"] * 3
    for process in processes:
        process.say()
    for process in processes:
        process.end()
    with TraceStore(url) as store:
        assert store.count() == 30


def test_readers_do_not_wait_for_a_writer(store):
    store.add(_scored())
    with sql(store) as connection:
        connection.execute(sa.text("DELETE FROM runs"))
        assert store.count() == 1
        assert len(list(store.traces())) == 1
        connection.rollback()


def test_a_forked_child_has_connections_of_its_own(store):
    store.add(_scored())

    def child() -> bool:
        for _ in range(10):
            store.add(_scored())
        return store.count() == 11

    assert fork(child) == 0
    for _ in range(10):
        store.add(_scored())
    assert store.count() == 21


def test_a_fork_in_the_middle_of_anothers_write_leaves_the_child_free(store):
    store.add(_scored())
    holding, release = threading.Event(), threading.Event()

    def hold():
        with store.database._lock:
            holding.set()
            release.wait(LONG_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(LONG_S)
    assert fork(lambda: store.add(_scored()) or store.count() == 2) == 0
    release.set()
    holder.join(LONG_S)
    assert store.count() == 2


@contextmanager
def another_process(method: str) -> Iterator[ProcessPoolExecutor]:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system starts no process by {method}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # for forking beside threads
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            yield pool


@pytest.mark.parametrize(("url", "method"), [("sqlite", "spawn"), ("postgresql", "fork")],
                         indirect=["url"])  # fmt: skip
def test_a_store_travels_to_another_process(store, method, tmp_path, monkeypatch):
    shared = default_store(tmp_path / "shared.db")
    monkeypatch.setenv("KP_DATABASE_URL", str(tmp_path / "before.db"))
    default = TraceStore()
    with another_process(method) as process:

        def there(function, *arguments):
            return process.submit(function, *arguments).result(LONG_S)

        store.add(_scored(1))
        there(TraceStore.add, store, _scored(2))
        runs = there(TraceStore.runs, store)
        assert [run.objective for run in runs] == ["task 2", "task 1"]
        assert runs[0].trace.task.objective == "task 2"  # read by the store that came with it
        store.add(_scored(3))
        assert store.count() == there(TraceStore.count, store) == 3
        for one in (shared, default):
            one.add(_scored())
            assert there(TraceStore.count, one) == 1
    shared.close()
    default.close()
