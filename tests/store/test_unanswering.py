"""A PostgreSQL server that is locked, busy or frozen: each operation on it ends with an answer."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from kp_langchain import _forksafe
from kp_langchain.errors import StoreError
from kp_langchain.store import TraceStore, schema_version, sqlite
from tests import agents
from tests.store.test_opening import make_older

psycopg = pytest.importorskip("psycopg", reason="needs the psycopg driver")

from kp_langchain.store import postgres as connections  # noqa: E402

# Where a limit of the client did not work, a test would wait for ever.
LONGEST_S = 600

pytestmark = pytest.mark.skipif(os.name != "posix", reason="freezes processes the POSIX way")


@pytest.fixture
def url(new_postgres_url) -> str:
    return str(new_postgres_url())


@contextmanager
def frozen(*pids: int) -> Iterator[pytest.MonkeyPatch]:
    """A block in which these processes do nothing, and a greeting is not awaited for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections._Connection, "idle_silence_s", 3.0)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield patch
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def session_of(store: TraceStore) -> int:
    """The server's process that the store's only idle connection talks to."""
    with store.database.open().engine.connect() as connection:
        return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())


def postmaster_of(postgres) -> int:
    return int((postgres.pgdata / "postmaster.pid").read_text().splitlines()[0])


def setting(store: TraceStore, name: str) -> str:
    with store.database.open().engine.connect() as connection:
        return str(connection.exec_driver_sql(f"SHOW {name}").scalar_one())


def ends(operation) -> str:
    """What `operation`, which must end, raises as a StoreError."""
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(operation).exception(LONGEST_S)
    assert isinstance(error, StoreError), error
    return str(error)


class TestLimits:
    def test_every_transaction_has_them(self, url):
        with TraceStore(url) as store:
            assert setting(store, "lock_timeout") == "10s"
            assert setting(store, "statement_timeout") == "30s"
            assert setting(store, "idle_in_transaction_session_timeout") == "1min"

    def test_they_do_not_outlast_it(self, url):
        # Behind a pooler the session is somebody else's then.
        with TraceStore(url) as store:
            raw = store.database.open().engine.raw_connection()
            try:
                assert raw.cursor().execute("SHOW lock_timeout").fetchone() == ("0",)
            finally:
                raw.close()

    @pytest.mark.parametrize("how", ["url", "variable"])
    def test_the_user_s_own_go_before_them(self, url, how, monkeypatch):
        options = "-c statement_timeout=5min -c search_path=public -c lock_timeout=1500ms"
        if how == "url":
            url += ("&" if "?" in url else "?") + "options=" + quote(options)
        else:
            monkeypatch.setenv("PGOPTIONS", options)
        with TraceStore(url) as store:
            assert setting(store, "statement_timeout") == "5min"
            assert setting(store, "lock_timeout") == "1500ms"
            assert setting(store, "idle_in_transaction_session_timeout") == "1min"
            with store.database.open().engine.connect() as connection:
                assert connection.connection.driver_connection.silence_s == 305

    @pytest.mark.parametrize(
        ("options", "limits"),
        [
            ("", {}),
            ("-c statement_timeout=0", {"statement_timeout": 0}),
            (
                "-cstatement_timeout=250 --lock-timeout=2min",
                {"statement_timeout": 0.25, "lock_timeout": 120},
            ),
            ("-c  Statement_Timeout=3s", {"statement_timeout": 3}),
            ("-c work_mem=4MB", {}),
        ],
    )
    def test_options_are_read_as_the_server_reads_them(self, options, limits):
        assert connections._limits_in(options) == limits

    def test_who_allows_statements_any_time_waits_any_time(self, url):
        url += ("&" if "?" in url else "?") + "options=" + quote("-c statement_timeout=0")
        with TraceStore(url) as store, store.database.open().engine.connect() as connection:
            assert connection.connection.driver_connection.silence_s == float("inf")

    def test_many_transactions_on_one_connection(self, url, scored):
        # The driver prepares what it is given often, which it could not do with several statements.
        with TraceStore(url) as store:
            for number in range(20):
                store.add(scored(number))
            assert store.count() == 20
            assert store.database.open().engine.pool.checkedin() == 1


class TestLocked:
    def test_a_locked_table(self, url, scored, monkeypatch):
        monkeypatch.setattr(connections, "_LOCK_TIMEOUT_S", 0.1)
        with TraceStore(url) as store:
            store.count()
            with psycopg.connect(url) as other:
                other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
                for operation in (store.runs, lambda: store.add(scored())):
                    assert "another process has held a lock on it" in ends(operation)
            store.add(scored())
            assert store.count() == 1

    def test_a_statement_that_takes_too_long(self, url):
        def slow() -> None:
            with store.database.reading() as connection:
                connection.exec_driver_sql("SET LOCAL statement_timeout = 100")
                connection.exec_driver_sql("SELECT pg_sleep(1000)")

        with TraceStore(url) as store:
            assert "?options=-c%20statement_timeout%3D5min" in ends(slow)
            assert store.count() == 0

    def test_a_process_that_stops_in_the_middle_frees_what_it_holds(self, url, scored):
        with TraceStore(url) as store:
            store.count()
            stopped, go_on = threading.Event(), threading.Event()

            def stop() -> None:
                with store.database.writing() as connection:
                    connection.exec_driver_sql("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
                    connection.exec_driver_sql(
                        "SET LOCAL idle_in_transaction_session_timeout = 100"
                    )
                    stopped.set()
                    go_on.wait(LONGEST_S)
                    connection.exec_driver_sql("SELECT 1")

            with ThreadPoolExecutor(1) as pool:
                stopping = pool.submit(stop)
                assert stopped.wait(LONGEST_S)
                store.add(scored())  # waits until the server has ended the other one
                go_on.set()
                error = stopping.exception(LONGEST_S)
            assert isinstance(error, StoreError)
            assert "this process was stopped" in str(error)
            assert store.count() == 1


class TestFrozen:
    @pytest.fixture
    def url(self, new_postgres_url) -> str:
        url = str(new_postgres_url())
        return f"{url}{'&' if '?' in url else '?'}connect_timeout=4"

    def test_its_process_before_a_transaction(self, url, scored):
        with TraceStore(url) as store:
            store.add(scored())
            with frozen(session_of(store)):
                assert store.count() == 1  # on a new connection
                store.add(scored())
            assert store.count() == 2

    @pytest.mark.parametrize("statement", ["SELECT 1", "commit"])
    def test_its_process_in_the_middle_of_a_transaction(self, url, scored, statement):
        with TraceStore(url) as store, ExitStack() as until_told:
            store.add(scored())
            pid = session_of(store)

            def work() -> None:
                with store.database.writing() as connection:
                    connection.exec_driver_sql("SELECT 1")
                    connection.connection.driver_connection.silence_s = 1.0
                    until_told.enter_context(frozen(pid))
                    if statement != "commit":
                        connection.exec_driver_sql(statement)

            assert "the server does not answer any more" in ends(work)
            assert store.count() == 1
            store.add(scored())
            assert store.count() == 2

    def test_the_whole_server(self, url, scored, postgres):
        with TraceStore(url) as store:
            store.add(scored())
            with frozen(postmaster_of(postgres), session_of(store)):
                assert "the server does not answer" in ends(lambda: store.add(scored()))
                assert "the server does not answer" in ends(TraceStore(url).count)
            store.add(scored())
            assert store.count() == 2

    def test_the_sole_sender_s_lock(self, url, postgres, scored):
        with TraceStore(url) as store:
            store.add(scored())

            def send() -> None:
                with store.outbox.sending() as held:
                    assert held

            with frozen(postmaster_of(postgres), session_of(store)):
                assert "the server does not answer" in ends(send)
            send()

    def test_threads_do_not_wait_for_each_other(self, url, postgres, scored):
        with TraceStore(url) as store:
            store.add(scored())
            server = frozen(postmaster_of(postgres), session_of(store))
            with server, ThreadPoolExecutor(8) as pool:
                for each in [pool.submit(store.count) for _ in range(8)]:
                    assert isinstance(each.exception(LONGEST_S), StoreError)
            assert store.count() == 1

    def test_rows_that_arrive_are_no_silence(self, url, monkeypatch):
        now, wait = [0.0], psycopg.Connection.wait

        def arriving(gen):
            """By this clock, something arrives every two seconds."""
            try:
                state = next(gen)
                while True:
                    ready = yield state
                    now[0] += 2.0 if ready else 0.0
                    state = gen.send(ready)
            except StopIteration as end:
                return end.value

        with TraceStore(url) as store, store.database.reading() as connection:
            monkeypatch.setattr(
                psycopg.Connection,
                "wait",
                lambda self, gen, *more: wait(self, arriving(gen), *more),
            )
            monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now[0]))
            connection.connection.driver_connection.silence_s = 3.0
            rows = connection.exec_driver_sql(
                "SELECT repeat('x', 1000000), pg_sleep(0.2) FROM generate_series(1, 10)"
            )
            assert len(rows.all()) == 10
        assert now[0] > 20.0


class TestForks:
    """Without an end of the waiting, each would take as long as a fork may wait: minutes here."""

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch):
        monkeypatch.setattr(_forksafe, "_FORK_PATIENCE_S", 600.0)

    def fork(self) -> float:
        """Fork, and return for how many seconds that was held back."""
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # for forking beside threads
            child = os.fork()
        if child == 0:
            os._exit(0)
        took_s = time.monotonic() - began
        assert os.waitpid(child, 0)[1] == 0
        return took_s

    def test_one_does_not_wait_for_a_frozen_server(self, url, postgres):
        with TraceStore(url) as store:
            handler = agents.handler(store=store)
            agents.searching().invoke(agents.ASK, {"callbacks": [handler]})
            assert handler.flush(LONGEST_S)
            with frozen(postmaster_of(postgres), session_of(store)) as patch:
                patch.setattr(connections._Connection, "idle_silence_s", 300.0)
                patch.setattr(connections, "_CONNECT_TIMEOUT_S", 300)
                agents.searching().invoke(agents.ASK, {"callbacks": [handler]})
                assert not handler.flush(0.3)  # its writer waits
                assert self.fork() < LONGEST_S
            assert handler.flush(LONGEST_S)
            assert store.count() == 2
            handler.close()

    def test_one_does_not_wait_for_a_file_that_another_writes(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 300)
        with TraceStore(tmp_path / "x.db") as store:
            handler = agents.handler(store=store)
            agents.searching().invoke(agents.ASK, {"callbacks": [handler]})
            assert handler.flush(LONGEST_S)
            with closing(sqlite3.connect(tmp_path / "x.db", isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                agents.searching().invoke(agents.ASK, {"callbacks": [handler]})
                assert not handler.flush(0.3)
                assert self.fork() < LONGEST_S
            assert handler.flush(LONGEST_S)
            assert store.count() == 2
            handler.close()


def test_a_migration_may_take_longer(url, monkeypatch):
    make_older(url, "0001")
    limits = []
    upgrade = schema_version._upgrade

    def watched(connection, location):
        limits.append(connection.exec_driver_sql("SHOW statement_timeout").scalar_one())
        limits.append(connection.connection.driver_connection.silence_s)
        upgrade(connection, location)

    monkeypatch.setattr(schema_version, "_upgrade", watched)
    with TraceStore(url) as store:
        assert store.count() == 0
        assert setting(store, "statement_timeout") == "30s"
        with store.database.open().engine.connect() as connection:
            limits.append(connection.connection.driver_connection.silence_s)
    assert limits == ["10min", 600.0, 35.0]
