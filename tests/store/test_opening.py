"""Opening, creating and migrating a database, alone and beside other processes."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from kp_langchain._quiet_loggers import quiet_loggers
from kp_langchain.config import data_dir
from kp_langchain.errors import ConfigError, StoreError
from kp_langchain.store import TraceStore, schema_version, tables
from kp_langchain.store.rows import JsonText, row_of
from kp_langchain.store.tables import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]

# What the processes started here have in common: a way to make a scored run.
PREAMBLE = f"""
import os, sys, threading, uuid
sys.path.insert(0, {str(ROOT)!r})
from kp_langchain.gate import ScoredTrace
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task, TraceStep
from kp_langchain.scoring.breakdown import Dimension, ScoreBreakdown
from kp_langchain.store import TraceStore

def scored():
    part = Dimension(0.5, 0.25, 0.125)
    return ScoredTrace(
        ReasoningTrace(
            metadata=Metadata(task_domain="code", success=True),
            task=Task(objective="fix it"),
            steps=[TraceStep(step_id=0, type="thought", content="hm")],
            outcome=Outcome(result_summary="fixed", confidence=0.8),
        ),
        ScoreBreakdown(0.5, part, part, part, part, 0.5, "code", (), "no embedder"),
        "below_threshold", 0.6, uuid.uuid4(),
    )
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            PREAMBLE + textwrap.dedent(program),
            *map(str, arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the children it forked
            process.communicate()
    assert process.returncode == 0, err
    return out.strip()


def engine_of(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


def test_making_a_store_opens_nothing(url, tmp_path):
    store = TraceStore(url)
    assert url.endswith(store.location) or "postgresql" in store.location
    assert not (tmp_path / "store").exists()
    store.close()


def test_sqlalchemy_waits_for_the_first_use_and_alembic_for_a_migration(url, tmp_path):
    program = """
        store = TraceStore(sys.argv[1])
        before = "sqlalchemy" in sys.modules
        store.count()
        store.close()
        print(before, "sqlalchemy" in sys.modules, "alembic" in sys.modules)
    """
    (tmp_path / "store").mkdir(exist_ok=True)
    make_older(url, "0001")
    assert finish(start(program, url)) == "False True True"
    assert finish(start(program, url)) == "False True False"


def test_a_handler_loads_the_drivers_before_its_first_run(url, tmp_path):
    # A run that finishes while they are loaded is lost if the process is killed.
    program = """
        from kp_langchain import KPCallbackHandler
        KPCallbackHandler(store=sys.argv[1])
        driver = "psycopg" if "postgresql" in sys.argv[1] else "sqlite3"
        print("sqlalchemy" in sys.modules, driver in sys.modules)
    """
    assert finish(start(program, url)) == "True True"
    assert not (tmp_path / "store").exists()


def test_a_new_database_does_not_wait_for_alembic(url):
    # What finishes while it is made exists in memory only.
    program = """
        store = TraceStore(sys.argv[1])
        store.add(scored())
        print("alembic" in sys.modules)
    """
    assert finish(start(program, url)) == "False"


def schema_of(engine: sa.Engine) -> dict[str, object]:
    """What the database says of its tables, in their columns' order."""
    inspector = sa.inspect(engine)
    return {
        table: [
            [(one["name"], str(one["type"]), one["nullable"]) for one in columns],
            inspector.get_pk_constraint(table),
            inspector.get_foreign_keys(table),
            sorted(inspector.get_unique_constraints(table), key=str),
            sorted(inspector.get_check_constraints(table), key=str),
            sorted(map(comparable, inspector.get_indexes(table))),
        ]
        for (_, table), columns in inspector.get_multi_columns().items()
    }


def comparable(index: Any) -> str:
    """An index as a text, also one with a condition, which is an object."""
    options = {name: str(value) for name, value in index.pop("dialect_options", {}).items()}
    return str(sorted({**index, **options}.items()))


def version_in(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        options = {"version_table": tables.VERSION_TABLE}
        return MigrationContext.configure(connection, opts=options).get_current_revision()


def test_a_new_database_is_as_the_migrations_make_it(url, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    make_older(url, "head")
    engine = engine_of(url)
    migrated = schema_of(engine)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "version_table": tables.VERSION_TABLE}
        )
        assert compare_metadata(context, tables.metadata) == []
    assert version_in(engine) == tables.SCHEMA_VERSION
    everything = sa.MetaData()
    everything.reflect(engine)
    everything.drop_all(engine)
    with TraceStore(url) as store:
        assert store.count() == 0
    assert schema_of(engine) == migrated
    assert version_in(engine) == tables.SCHEMA_VERSION
    engine.dispose()
    scripts = ScriptDirectory(str(Path(tables.__file__).parent / "migrations"))
    assert scripts.get_heads() == [tables.SCHEMA_VERSION]


def set_version(url: str, version: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(
            sa.text("UPDATE kp_alembic_version SET version_num = :v"), {"v": version}
        )
    engine.dispose()


def test_a_newer_database_is_left_alone(url, scored):
    with TraceStore(url) as store:
        store.add(scored())
    set_version(url, "9042")
    with (
        TraceStore(url) as store,
        pytest.raises(
            StoreError, match=rf"version 9042, .* up to {SCHEMA_VERSION}; upgrade it: pip install"
        ),
    ):
        store.count()
    set_version(url, SCHEMA_VERSION)
    with TraceStore(url) as store:
        assert store.count() == 1


def make_older(url: str, version: str, row: dict[str, object] | None = None) -> None:
    """Leave a database as the migrations up to `version` made it, perhaps with one run in it."""
    config = Config()
    config.set_main_option(
        "script_location", str(Path(schema_version.__file__).parent / "migrations")
    )
    engine = engine_of(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    if row is None:
        engine.dispose()
        return
    with engine.begin() as connection:
        known = {column["name"] for column in sa.inspect(connection).get_columns("runs")}
        written = {
            name: json.loads(value) if isinstance(value, JsonText) else value
            for name, value in row.items()
            if name in known
        }
        columns = [sa.column(name, tables.runs.c[name].type) for name in written]
        connection.execute(sa.insert(sa.table("runs", *columns)).values(written))
    engine.dispose()


@pytest.mark.parametrize("version", ["0001", "0002"])
def test_a_database_of_an_earlier_version_is_brought_up_to_date(url, scored, version, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    one = scored(1)
    make_older(url, version, row_of(one))
    with TraceStore(url) as store:
        assert store.outbox.counts() == {"pending": 0, "sent": 0, "dead": 0, "withdrawn": 0}
        assert store.get(one.trace.id).trace == one.trace
        (change,) = store.report_outcome(one.trace.id, success=False)
        assert change.decision == "below_threshold"
        assert store.get(one.trace.id).kept_until is not None
        assert store.models.verdict_counts() == {}  # it has no features to learn from


def test_a_run_of_a_version_without_worth_has_none(url, scored, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    one = scored(1)
    make_older(url, "0005", row_of(one))
    with TraceStore(url) as store:
        assert store.get(one.trace.id).trace == one.trace
        assert (store.get(one.trace.id).gate, store.get(one.trace.id).worth) == ("score", None)
        with store.database.reading() as connection:
            columns = [tables.runs.c[name] for name in ("gate", "worth", "twin_of", "replaced_by")]
            assert set(connection.execute(sa.select(*columns))) == {(None, None, None, None)}
            assert connection.execute(sa.select(tables.remembered)).all() == []
            assert connection.execute(sa.select(tables.run_entries)).all() == []


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_an_upgrade_says_nothing_in_the_log_of_the_host(caplog, url, tmp_path, level):
    (tmp_path / "store").mkdir(exist_ok=True)
    make_older(url, "0001")
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    caplog.clear()
    with caplog.at_level(level), TraceStore(url) as store:
        assert store.count() == 0
    # Threads that another test has left log at the level that was set here, too.
    own = [record for record in caplog.records if record.thread == threading.get_ident()]
    assert [record.getMessage() for record in own] == []
    assert {name: logging.getLogger(name).level for name in levels} == levels
    # What the host migrates itself is in its log as ever, also while a store is opened.
    caplog.clear()
    caplog.set_level(level, logger="alembic")  # importing MLflow, as other tests do, raises it
    (tmp_path / "another").mkdir()
    with caplog.at_level(level), quiet_loggers("alembic.runtime.migration"):
        other = f"sqlite:///{tmp_path / 'another' / 'host.db'}"
        hosts = threading.Thread(target=make_older, args=(other, "0001"))
        hosts.start()
        hosts.join(60)
    assert "Running upgrade  -> 0001" in caplog.text


def test_nothing_is_logged_by_the_import_of_what_upgrades(url, tmp_path):
    (tmp_path / "store").mkdir(exist_ok=True)
    make_older(url, "0002")
    code = (
        "import logging, sys; logging.basicConfig(level=logging.DEBUG);"
        "from kp_langchain import TraceStore; print(TraceStore(sys.argv[1]).count());"
        "print('alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["0", "True"], "")


def test_an_unknown_older_version_is_an_error(url):
    with TraceStore(url) as store:
        store.count()
    set_version(url, "0000")
    with TraceStore(url) as store, pytest.raises(StoreError, match="cannot be brought to"):
        store.count()


@pytest.mark.parametrize("name", ["runs", "outbox"])
def test_a_stranger_s_table_is_not_touched(url, tmp_path, name):
    (tmp_path / "store").mkdir(exist_ok=True)
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {name} (mine INTEGER)"))
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num TEXT)"))
    with TraceStore(url) as store, pytest.raises(StoreError, match="a database of its own"):
        store.count()
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP TABLE {name}"))
    with TraceStore(url) as store:
        assert store.count() == 0
    assert "alembic_version" in sa.inspect(engine).get_table_names()
    engine.dispose()


def test_processes_may_create_the_database_at_the_same_moment(url):
    program = """
        import sqlalchemy, alembic.command
        from kp_langchain.store import sql
        sql.load()
        print("ready", flush=True)
        sys.stdin.readline()
        with TraceStore(sys.argv[1]) as store:
            for _ in range(20):
                store.add(scored())
    """
    processes = [start(program, url) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        finish(process)
    with TraceStore(url) as store:
        assert store.count() == 60


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_has_connections_of_its_own(url):
    program = """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # for forking beside a thread
        store = TraceStore(sys.argv[1])
        store.add(scored())
        paused, release = threading.Event(), threading.Event()

        def hold():
            with store.database._lock:
                paused.set()
                release.wait()

        holder = threading.Thread(target=hold)
        holder.start()
        paused.wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for _ in range(10):
                    store.add(scored())
                code = 0 if store.count() >= 11 else 2
                store.close()
            finally:
                os._exit(code)
        release.set()
        holder.join()
        for _ in range(10):
            store.add(scored())
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), store.count())
        store.close()
    """
    assert finish(start(program, url)) == "0 21"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_ends_leaves_the_parent_s_session_open(new_postgres_url):
    program = """
        store = TraceStore(sys.argv[1])
        store.add(scored())

        def session():
            with store.database.open().engine.connect() as connection:
                return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()

        before = session()
        child = os.fork()
        if child == 0:
            sys.exit(0)  # with everything that runs at exit
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), session() == before)
        store.close()
    """
    assert finish(start(program, new_postgres_url())) == "0 True"


def test_readers_do_not_wait_for_a_writer(url, scored):
    with TraceStore(url) as store:
        store.add(scored())
        engine = engine_of(url)
        with engine.connect() as connection, connection.begin():
            connection.execute(sa.text("DELETE FROM runs"))
            assert store.count() == 1
            assert len(list(store.traces())) == 1
            connection.rollback()
        engine.dispose()


class TestSqlite:
    def test_by_default_it_lies_in_the_user_s_data_folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("KP_DATABASE_URL", raising=False)
        monkeypatch.delenv("KP_CONFIG", raising=False)
        assert TraceStore().location == str(data_dir() / "traces.db")

    def test_the_settings_name_another_and_the_argument_goes_before_them(
        self, tmp_path, monkeypatch
    ):
        monkeypatch.setenv("KP_DATABASE_URL", f"sqlite:///{tmp_path}/set.db")
        assert TraceStore().location == str(tmp_path / "set.db")
        assert TraceStore(tmp_path / "given.db").location == str(tmp_path / "given.db")

    def test_paths_and_urls_mean_the_same_file(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        expected = str(tmp_path / "a b%.db")
        given = [
            "a b%.db",
            Path("a b%.db"),
            "sqlite:///a b%.db",
            f"sqlite:///{expected}",
            "~/a b%.db",
            expected,
            f"sqlite+pysqlite:///{expected}",
        ]
        assert [TraceStore(one).location for one in given] == [expected] * len(given)

    @pytest.mark.parametrize(
        "wrong",
        [
            "",
            "  ",
            7,
            b"x.db",
            ":memory:",
            "sqlite://",
            "sqlite:///:memory:",
            "sqlite:///x.db?mode=ro",
            "sqlite://host/x.db",
            "sqlite:///file:x.db",
            "mysql://u:secret@h/db",
            "postgresql+psycopg://h:port/db",
        ],
    )
    def test_what_names_no_database_is_refused(self, wrong):
        with pytest.raises(ConfigError, match=r"give|write") as caught:
            TraceStore(wrong).count()
        assert "secret" not in str(caught.value)

    @pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
    def test_only_the_owner_may_read_it(self, tmp_path, scored):
        umask = os.umask(0)
        try:
            store = TraceStore(tmp_path / "deep" / "folder" / "traces.db")
            store.add(scored())
        finally:
            os.umask(umask)
        folder = tmp_path / "deep" / "folder"
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
        assert modes == dict.fromkeys(["traces.db", "traces.db-wal", "traces.db-shm"], 0o600)
        store.close()

    def test_it_is_in_write_ahead_mode(self, tmp_path, scored):
        with TraceStore(tmp_path / "x.db") as store:
            store.add(scored())
        with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)

    def test_a_killed_writer_leaves_nothing_half_written(self, tmp_path, scored):
        program = """
            store = TraceStore(sys.argv[1])
            store.add(scored())

            def batch():
                for n in range(1000):
                    yield scored()
            from kp_langchain.store import engine, run_queries, rows
            with engine.write_transaction(store.database.open().engine) as connection:
                run_queries.write(connection, [rows.row_of(one) for one in batch()])
                os.kill(os.getpid(), 9)
        """
        process = start(program, tmp_path / "x.db")
        process.communicate(timeout=600)
        assert process.returncode != 0
        with TraceStore(tmp_path / "x.db") as store:
            assert store.count() == 1
            store.add(scored())
            assert store.count() == 2


def test_postgres_compares_ids_byte_by_byte_in_every_locale(new_postgres_url):
    url = new_postgres_url()
    with TraceStore(url) as store:
        store.count()
    engine = engine_of(url)
    with engine.connect() as connection:
        found = connection.execute(
            sa.text("SELECT column_name FROM information_schema.columns WHERE collation_name = 'C'")
        )
        assert {"trace_id", "run_id"} <= set(found.scalars())
    engine.dispose()


def test_the_password_is_shown_nowhere():
    url = "postgres://me:s3cr%40et/@127.0.0.1:1/db?sslmode=disable&sslpassword=s3cr"
    store = TraceStore(url)
    assert store.location == ("postgresql://me:***@127.0.0.1:1/db?sslmode=disable&sslpassword=***")
    assert "s3cr" not in repr(store)
    with pytest.raises((StoreError, ConfigError)) as caught:
        store.count()
    assert "s3cr" not in str(caught.value)


def test_threads_open_databases_of_their_own_at_once(tmp_path):
    def open_one(number):
        with TraceStore(tmp_path / f"{number}.db") as store:
            return store.count()

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(open_one, range(24))) == [0] * 24
