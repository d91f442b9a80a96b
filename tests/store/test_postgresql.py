"""PostgreSQL alone: passwords, permissions, limits on every wait, frozen servers, lost tables.

What both engines have in common is in the other files of this folder; they take `url`.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from kp_langchain import ConfigError, StoreError, TraceStore
from tests import agents, programs
from tests.store.conftest import LONG_S, _scored, complete, execute, fork

psycopg = pytest.importorskip("psycopg", reason="needs the psycopg driver")

from kp_langchain.store import postgres as connections  # noqa: E402

pytestmark = pytest.mark.skipif(os.name != "posix", reason="freezes processes the POSIX way")


@pytest.fixture
def url(new_postgres_url) -> str:
    return str(new_postgres_url())


def with_options(url: str, **options: str) -> str:
    more = "&".join(f"{name}={quote(value)}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{more}"


def ask(store: TraceStore, statement: str) -> str:
    """What the store's only idle connection answers."""
    with store.database.reading() as connection:
        return str(connection.exec_driver_sql(statement).scalar_one())


def refusal(operation) -> str:
    """What `operation`, which must end, raises as a StoreError."""
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(operation).exception(LONG_S)
    assert isinstance(error, StoreError), error
    return str(error)


# ------------------------------------------------------------------ who may connect


def test_a_password_is_shown_nowhere_and_travels():
    url = "postgres://me:s3cr%40et/@127.0.0.1:1/db?sslmode=disable&sslpassword=s3cr"
    store = TraceStore(url)
    assert store.location == "postgresql://me:***@127.0.0.1:1/db?sslmode=disable&sslpassword=***"
    with pytest.raises((StoreError, ConfigError)) as caught:
        store.count()
    assert "s3cr" not in f"{store!r} {caught.value}"
    store = TraceStore("postgresql://me:s3cr%40et@127.0.0.1:1/db")
    other = pickle.loads(pickle.dumps(store))  # noqa: S301
    assert other.database.location.url == "postgresql://me:s3cr%40et@127.0.0.1:1/db"
    assert "s3cr" not in repr(other) + other.location
    assert "nothing answers there; check that the server runs" in refusal(other.count)
    nowhere = TraceStore("postgresql:///db?host=/nowhere/at/all")
    assert "nothing answers there" in refusal(nowhere.count)


def test_who_may_not_connect_or_write_is_told_what_to_do(postgres, url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
        connection.execute("CREATE DATABASE secured OWNER guest")
        connection.execute("CREATE ROLE reader LOGIN")
    secured = postgres.get_uri(database="secured").replace("postgres:@", "guest:{}@")
    for place, message in (
        (secured.format("wrong"), "user or password is wrong; check both"),
        (secured.replace(":{}", ""), "the server wants a password"),
        (postgres.get_uri(database="missing"), "the server has no such database; create it"),
        (url.replace("postgres:@", "reader@"), "the user lacks a permission there; grant it CREA"),
    ):
        assert message in refusal(TraceStore(place).count)
    with TraceStore(secured.format("right")) as store:
        assert store.count() == 0


def test_without_the_driver_the_extra_is_named():
    code = """
import sys
sys.modules["psycopg"] = None
from kp_langchain import TraceStore
try:
    TraceStore("postgresql://me:secret@localhost/db")
except ImportError as error:
    print(type(error).__name__, error)
"""
    done = programs.run("-c", code, PYTHONPATH=str(programs.ROOT))
    assert done.stdout.startswith("MissingExtraError ")
    assert "pip install 'kp-langchain[postgres]'" in done.stdout


# ------------------------------------------------------------------ limits on waiting


@pytest.mark.parametrize("how", ["none", "url", "variable"])
def test_every_transaction_has_limits_and_the_users_own_go_before_them(url, how, monkeypatch):
    options = "-cstatement_timeout=5min -c search_path=public --lock-timeout=1500ms"
    if how == "url":
        url = with_options(url, options=options)
    elif how == "variable":
        monkeypatch.setenv("PGOPTIONS", options)
    with TraceStore(url) as store:
        for number in range(10):  # on one connection
            store.add(_scored(number))
        shown = [ask(store, f"SHOW {name}") for name in (
            "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout",
        )]  # fmt: skip
        assert shown == (["10s", "30s", "1min"] if how == "none" else ["1500ms", "5min", "1min"])
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert ask(store, sessions) == "1"
        # Behind a pooler the session is somebody else's then.
        raw = store.database.open().engine.raw_connection()
        try:
            after = raw.cursor().execute("SHOW lock_timeout").fetchone()
            assert after == (("0",) if how == "none" else ("1500ms",))
            allowed = raw.driver_connection.silence_s
        finally:
            raw.close()
    assert allowed == (35 if how == "none" else 305)
    if how == "none":
        url = with_options(url, options="-c statement_timeout=0")
        with TraceStore(url) as store, store.database.open().engine.connect() as connection:
            assert connection.connection.driver_connection.silence_s == float("inf")


def test_what_is_locked_or_takes_too_long_ends_with_an_answer(url, monkeypatch):
    monkeypatch.setattr(connections, "_LOCK_TIMEOUT_S", 0.1)

    def slow() -> None:
        with store.database.reading() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 100")
            connection.exec_driver_sql("SELECT pg_sleep(1000)")

    locked = "another process has held a lock on it"
    with TraceStore(url) as store:
        with psycopg.connect(url) as other:  # while another process makes the tables
            other.execute(f"SELECT pg_advisory_xact_lock({connections._CREATION_LOCK})")
            assert locked in refusal(store.count)
        store.count()
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            for operation in (store.runs, lambda: store.add(_scored())):
                assert locked in refusal(operation)
        assert "?options=-c%20statement_timeout%3D5min" in refusal(slow)
        store.add(_scored())
        assert store.count() == 1


def test_a_process_that_stops_in_the_middle_frees_what_it_holds(url):
    stopped, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        with store.database.writing() as connection:
            connection.exec_driver_sql("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 100")
            stopped.set()
            go_on.wait(LONG_S)
            connection.exec_driver_sql("SELECT 1")

    with TraceStore(url) as store, ThreadPoolExecutor(1) as pool:
        store.count()
        stopping = pool.submit(stop)
        assert stopped.wait(LONG_S)
        store.add(_scored())  # waits until the server has ended the other one
        go_on.set()
        assert "this process was stopped" in str(stopping.exception(LONG_S))
        assert store.count() == 1


def test_expired_bodies_are_deleted_without_waiting_for_others_that_hold_them(url):
    with TraceStore(url) as store, TraceStore(url) as again, ThreadPoolExecutor(1) as pool:
        store.add(one := _scored(score=0.1, keep_days=7.0))
        execute(store, "UPDATE runs SET body_expires_at = now() - interval '1 day'")
        with psycopg.connect(url) as other:
            other.execute("SELECT trace_id FROM runs FOR UPDATE")
            pool.submit(again.add, _scored(2)).result(LONG_S)
            assert execute(store, "SELECT count(*) FROM runs WHERE NOT has_body") == [(0,)]
        assert store.get(one.trace.id).kept is False


# ------------------------------------------------------------------ servers that do not answer


@contextmanager
def frozen(*pids: str | int) -> Iterator[pytest.MonkeyPatch]:
    """A block in which these processes do nothing, and a greeting is not awaited for long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections._Connection, "idle_silence_s", 3.0)
        for pid in pids:
            os.kill(int(pid), signal.SIGSTOP)
        try:
            yield patch
        finally:
            for pid in pids:
                os.kill(int(pid), signal.SIGCONT)


def session_of(store: TraceStore) -> str:
    return ask(store, "SELECT pg_backend_pid()")


def postmaster_of(postgres) -> str:
    return str((postgres.pgdata / "postmaster.pid").read_text().splitlines()[0])


def test_a_frozen_session_costs_no_other(url):
    url = with_options(url, connect_timeout="4")
    with TraceStore(url) as store:
        store.add(_scored())
        with frozen(session_of(store)):
            assert store.count() == 1  # on a new connection
            store.add(_scored())
        for number, statement in enumerate(("SELECT 1", "commit")):
            with ExitStack() as until_told:
                pid = session_of(store)

                def work(pid=pid, statement=statement, block=until_told) -> None:
                    with store.database.writing() as connection:
                        connection.exec_driver_sql("SELECT 1")
                        connection.connection.driver_connection.silence_s = 1.0
                        block.enter_context(frozen(pid))
                        if statement != "commit":
                            connection.exec_driver_sql(statement)

                assert "the server does not answer any more" in refusal(work)
                assert store.count() == 2 + number
                store.add(_scored())


def test_a_frozen_server_ends_every_wait_and_holds_up_no_fork(url, postgres):
    url = with_options(url, connect_timeout="4")
    with TraceStore(url) as store, ThreadPoolExecutor(4) as pool:
        handler = agents.handler(store=store)
        store.add(_scored())

        def send() -> None:
            with store.outbox.sending() as lease:
                assert lease is not None

        with frozen(postmaster_of(postgres), session_of(store)):
            asked = [pool.submit(work) for work in (
                lambda: store.add(_scored()), TraceStore(url).count, send, store.count,
            )]  # fmt: skip
            # Meanwhile a run is recorded, whose writer waits, too; a fork does not wait for it.
            agents.searching().invoke(agents.ASK, {"callbacks": [handler]})
            assert fork(lambda: True) == 0
            for one in asked:
                assert "the server does not answer" in str(one.exception(LONG_S))
        assert handler.flush(LONG_S)
        while handler.stats()["waiting_to_store"]:
            handler.flush(1.0)
        send()
        assert store.count() == 2
        handler.close()


def test_rows_that_arrive_are_no_silence(url, monkeypatch):
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
            psycopg.Connection, "wait", lambda self, gen, *more: wait(self, arriving(gen), *more)
        )
        monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now[0]))
        connection.connection.driver_connection.silence_s = 3.0
        rows = connection.exec_driver_sql(
            "SELECT repeat('x', 1000000), pg_sleep(0.2) FROM generate_series(1, 10)"
        )
        assert len(rows.all()) == 10
    assert now[0] > 20.0


# ------------------------------------------------------------------ what others take away


def test_connections_that_the_server_ended_are_replaced(url):
    with TraceStore(url) as store:
        store.add(_scored())
        execute(
            store, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )  # fmt: skip
        store.add(_scored())
        assert store.count() == 2


@pytest.mark.parametrize("what", ["tables", "database"])
def test_what_is_dropped_is_made_anew_and_said(url, postgres, caplog, what):
    caplog.set_level(logging.WARNING, "kp_langchain")
    name = url.partition("?")[0].rpartition("/")[2]
    with TraceStore(url) as store, psycopg.connect(postgres.get_uri(), autocommit=True) as admin:
        handler = agents.handler(store=store)
        agents.searching().invoke(agents.ASK, {"callbacks": [handler]})
        assert handler.flush(LONG_S)
        execute(store, "DROP TABLE verdicts")
        with pytest.raises(StoreError, match=r"a table is missing \(.*verdicts.*restore the"):
            store.verdicts("kp:trace:1")
        assert store.count() == 1
        if what == "tables":
            execute(store, "DROP SCHEMA public CASCADE")
            execute(store, "CREATE SCHEMA public")
        else:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
            with pytest.raises(StoreError, match="the server has no such database; create it"):
                store.count()
            admin.execute(f"CREATE DATABASE {name}")
        for _ in range(3):
            agents.searching().invoke(agents.ASK, {"callbacks": [handler]})
            assert handler.flush(LONG_S)
        while handler.stats()["waiting_to_store"]:
            handler.flush(1.0)
        assert store.count() == 3
        handler.close()
    assert "lost its tables" in caplog.text


def test_ids_are_compared_byte_by_byte_and_what_is_deleted_is_cut_off(url):
    with TraceStore(url) as store:
        store.add_many(complete(number, content="long " * 3000) for number in range(12))
        columns = execute(
            store, "SELECT column_name FROM information_schema.columns WHERE collation_name = 'C'"
        )
        assert {"trace_id", "run_id"} <= {name for (name,) in columns}
        store.delete(domain="finance")
        compaction = store.compact()
        assert compaction.is_complete
        assert min(compaction.bytes_before, compaction.bytes_after) > 0
        with store.database.reading() as connection:  # what is empty is cut off
            assert connection.scalar(sa.select(sa.func.pg_relation_size("runs"))) == 0


CHILD = """
import os, sys
from kp_langchain import TraceStore
store = TraceStore(sys.argv[1])
def session():
    with store.database.reading() as connection:
        return connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()
before = session()
child = os.fork()
if child == 0:
    sys.exit(0)  # with everything that runs at exit
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), session() == before)
"""


def test_a_child_that_ends_leaves_the_parents_session_open(url):
    done = programs.run("-c", CHILD, url, PYTHONPATH=str(programs.ROOT))
    assert done.stdout.split() == ["0", "True"], done.stderr
