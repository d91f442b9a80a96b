"""Databases that cannot be opened, read or written: each has its clear answer."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from contextlib import closing
from pathlib import Path

import pytest

from kp_langchain.errors import MissingExtraError, StoreError
from kp_langchain.store import TraceStore, sqlite

ROOT = Path(__file__).parents[2]


def run(program: str, *arguments: object) -> str:
    """Run `program` in a process of its own and return what it printed."""
    text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def refusal(path_or_url: object) -> str:
    """The one line that using the store there raises, which names the place."""
    with pytest.raises(StoreError) as caught:
        TraceStore(path_or_url).count()
    message = str(caught.value)
    assert TraceStore(path_or_url).location in message
    assert "\n" not in message
    return message


class TestSqlite:
    def test_a_folder_in_the_file_s_place(self, tmp_path):
        assert f"it is a folder; give a file's path, such as {tmp_path}/traces.db" in refusal(
            tmp_path
        )

    def test_a_file_in_the_folder_s_place(self, tmp_path):
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file" / "x.db", tmp_path / "file" / "deeper" / "x.db"):
            assert "not a folder; give a path in a folder you may write to" in refusal(path)

    def test_names_the_system_does_not_take(self, tmp_path):
        for name in ("x\0.db", "\ud800.db", "x" * 5000):
            assert "give a path in a folder you may write to" in refusal(f"{tmp_path}/{name}")

    def test_a_file_of_another_kind(self, tmp_path):
        path = tmp_path / "letter.txt"
        path.write_text("Dear reader, this is a letter. " * 100)
        assert "the file is not a SQLite database; give another path" in refusal(path)
        assert path.read_text().startswith("Dear reader")

    def test_an_empty_file_becomes_a_database(self, tmp_path):
        (tmp_path / "x.db").touch()
        with TraceStore(tmp_path / "x.db") as store:
            assert store.count() == 0

    @pytest.fixture
    def filled(self, tmp_path, scored):
        path = tmp_path / "x.db"
        with TraceStore(path) as store:
            store.add_many([scored(n, content="word " * 400) for n in range(60)])
        assert path.stat().st_size > 100_000
        return path

    def test_a_truncated_file(self, filled):
        os.truncate(filled, 40_000)
        with pytest.raises(StoreError, match=r"the file is damaged; restore it from a backup"):
            list(TraceStore(filled).traces())

    def test_an_overwritten_file(self, filled):
        with filled.open("r+b") as file:
            file.seek(4096)
            file.write(os.urandom(60_000))
        with pytest.raises(StoreError, match=r"the file is (damaged|not a SQLite database);"):
            list(TraceStore(filled).traces())

    def test_a_damaged_body_names_its_run(self, filled):
        with closing(sqlite3.connect(filled)) as connection, connection:
            connection.execute("UPDATE runs SET body = '{\"steps\": 1}'")
        with TraceStore(filled) as store:
            (run,) = store.runs(limit=1)
            with pytest.raises(StoreError, match=f"{run.trace_id}.* cannot be read back"):
                _ = run.trace
            with pytest.raises(StoreError, match="cannot be read back"):
                next(store.traces())
            with closing(sqlite3.connect(filled)) as connection, connection:
                connection.execute("UPDATE runs SET body = 'not JSON'")
            with pytest.raises(StoreError, match="cannot read"):
                next(store.traces())

    def test_a_table_dropped_under_an_open_store(self, filled, scored):
        with TraceStore(filled) as store:
            store.count()
            with closing(sqlite3.connect(filled)) as connection, connection:
                connection.execute("DROP TABLE run_summaries")
            with pytest.raises(StoreError, match=r"cannot read the trace store.*no such table"):
                store.count()
            with pytest.raises(StoreError, match="cannot write the trace store"):
                store.add(scored())

    def test_a_lock_that_is_never_released(self, filled, scored, monkeypatch):
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.01)
        with TraceStore(filled) as store, closing(sqlite3.connect(filled)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="another process has been writing to it"):
                store.add(scored())
            other.execute("ROLLBACK")
            store.add(scored())
            assert store.count() == 61

    @pytest.mark.skipif(os.name != "posix", reason="limits a file's size the POSIX way")
    def test_a_full_disk_undoes_the_whole_batch(self, filled):
        program = """
            import dataclasses, resource
            from kp_langchain.errors import StoreError
            from kp_langchain.gate import ScoredTrace
            from kp_langchain.store import TraceStore

            store = TraceStore(sys.argv[1])
            before = store.count()
            runs = store.runs(limit=None)
            batch = [
                ScoredTrace(
                    run.trace.model_copy(update={"id": run.trace_id[:-2] + "zz"}),
                    run.breakdown, run.decision, run.threshold, "again",
                )
                for run in runs
            ]
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            try:
                store.add_many(batch)
            except StoreError as error:
                print(error)
            print(before, store.count())
        """
        message, counts = run(program, filled).splitlines()
        assert re.search(r"cannot write .*: the disk (is full|refused to read or write);", message)
        assert counts == "60 60"
        with TraceStore(filled) as store:
            assert store.count() == 60

    @pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
    @pytest.mark.parametrize(
        ("file_mode", "folder_mode", "expected"),
        [
            (None, 0o555, "Permission denied; give a path in a folder you may write to"),
            (0o444, 0o755, "Permission denied; give a path in a folder you may write to"),
            (0o666, 0o555, "make the file and its folder writable"),
        ],
    )
    def test_what_may_not_be_written(self, filled, file_mode, folder_mode, expected):
        program = """
            import os
            from kp_langchain.errors import StoreError
            from kp_langchain.store import TraceStore, sql
            sql.load()

            if os.geteuid() == 0:  # whom permissions do not stop
                os.setgid(65534)
                os.setuid(65534)
            try:
                TraceStore(sys.argv[1]).count()
            except StoreError as error:
                print(error)
        """
        # Not in pytest's folder, which nobody else may enter.
        with tempfile.TemporaryDirectory(prefix="kp-store-") as name:
            folder = Path(name)
            path = folder / "x.db"
            if file_mode is not None:
                shutil.copy(filled, path)
                path.chmod(file_mode)
            folder.chmod(folder_mode)
            try:
                message = run(program, path)
            finally:
                folder.chmod(0o755)
        assert message.startswith(f"cannot open the trace store at {path}: ")
        assert message.endswith(expected)


class TestPostgres:
    def test_without_the_driver_the_extra_is_named(self):
        program = """
            sys.modules["psycopg"] = None
            from kp_langchain import TraceStore
            from kp_langchain.errors import MissingExtraError
            try:
                TraceStore("postgresql://me:secret@localhost/db")
            except MissingExtraError as error:
                print(error)
        """
        assert "pip install 'kp-langchain[postgres]'" in run(program)
        assert issubclass(MissingExtraError, ImportError)

    def test_nothing_answers(self):
        pytest.importorskip("psycopg", reason="needs the psycopg driver")
        message = refusal("postgresql://me:secret@127.0.0.1:1/db")
        assert "nothing answers there; check that the server runs" in message
        assert "postgresql://me:***@127.0.0.1:1/db" in message
        assert "nothing answers there" in refusal("postgresql:///db?host=/nowhere/at/all")

    def test_a_database_that_does_not_exist(self, postgres):
        message = refusal(postgres.get_uri(database="missing"))
        assert "the server has no such database; create it" in message

    def test_a_wrong_password(self, postgres):
        import psycopg

        with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
            connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
            connection.execute("CREATE DATABASE secured OWNER guest")
        url = postgres.get_uri(database="secured").replace("postgres:@", "guest:{}@")
        assert "user or password is wrong; check both" in refusal(url.format("wrong"))
        assert "the server wants a password" in refusal(url.replace(":{}", ""))
        with TraceStore(url.format("right")) as store:
            assert store.count() == 0

    def test_a_user_who_may_not_create_tables(self, postgres, new_postgres_url):
        import psycopg

        url = new_postgres_url()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE ROLE reader LOGIN")
        message = refusal(url.replace("postgres:@", "reader@"))
        assert "the user lacks a permission there; grant it CREATE on the schema" in message

    def test_connections_that_the_server_ended_are_replaced(self, new_postgres_url, scored):
        import psycopg

        url = new_postgres_url()
        with TraceStore(url) as store:
            store.add(scored())
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            store.add(scored())
            assert store.count() == 2

    def test_a_lock_on_the_migration_is_not_awaited_for_ever(self, new_postgres_url, monkeypatch):
        import psycopg

        from kp_langchain.store import postgres

        monkeypatch.setattr(postgres, "_LOCK_TIMEOUT_S", 0.01)
        url = new_postgres_url()
        with psycopg.connect(url) as other:
            other.execute(f"SELECT pg_advisory_xact_lock({postgres._MIGRATION_LOCK})")
            assert "another process has held a lock on it" in refusal(url)
        with TraceStore(url) as store:
            assert store.count() == 0
