"""PostgreSQL alone: passwords, permissions, limits on every wait, frozen servers, lost tables.

What both engines have in common is in the other files of this folder; they take `url`.
"""

from __future__ import annotations

import os
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from kp_langchain import ConfigError, DomainPolicy, Registry, StoreError, TraceStore
from tests import programs
from tests.agents import handler
from tests.loopback_registry import LoopbackRegistry
from tests.recording.playing import last
from tests.store.conftest import LONG_S, _scored, complete, execute

psycopg = pytest.importorskip("psycopg", reason="needs the psycopg driver")

from kp_langchain.registry.sender import Sender  # noqa: E402
from kp_langchain.store import connections  # noqa: E402

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
    assert "check that the server runs" in refusal(other.count)
    nowhere = TraceStore("postgresql:///db?host=/nowhere/at/all")
    assert "check that the server runs" in refusal(nowhere.count)


def test_who_may_not_connect_or_write_is_told_what_to_do(postgres, url):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
        connection.execute("CREATE DATABASE secured OWNER guest")
        connection.execute("CREATE ROLE reader LOGIN")
    secured = postgres.get_uri(database="secured").replace("postgres:@", "guest:{}@")
    for place, message in (
        (secured.format("wrong"), "the server does not let this user in"),
        (secured.replace(":{}", ""), "the server does not let this user in"),
        (postgres.get_uri(database="missing"), "create it, or correct its name"),
        (url.replace("postgres:@", "reader@"), "grant the user CREATE on the schema"),
    ):
        assert message in refusal(TraceStore(place).count)
    with TraceStore(secured.format("right")) as store:
        assert store.count() == 0


def test_each_role_of_the_guide_may_do_its_part_and_no_more(postgres, url):
    guide = (programs.ROOT / "examples/guides/fleet.md").read_text()
    (statements,) = re.findall(r"```sql\n(.*?)```", guide, re.DOTALL)
    TraceStore(url).count()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(statements)

    def as_role(name: str) -> TraceStore:
        return TraceStore(url.replace("postgres:@", f"{name}@"))

    try:
        with as_role("kp_agent") as store, as_role("kp_reviewer") as review:
            watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
            with as_role("kp_sender") as sending, LoopbackRegistry() as registry:
                public = DomainPolicy(threshold=0.0, visibility="network")
                client = Registry(registry.url, api_key="kp_key")
                contributing = handler("shared", store=sending, policy=public, registry=client)
                sent = last(contributing)
                assert Sender(sending, client).loop.drain(LONG_S)
                assert sending.outbox.counts()["sent"] == 1
                assert review.delete(sent.trace.id).at_registry == 1
            first, again = (last(watching) for _ in range(2))
            assert (first.stored, first.decision, again.decision) == (True, "kept", "twin")
            watching.report_outcome(first.run_id, success=True)
            assert watching.flush()
            (change,) = review.report_outcome(again.trace.id, success=False)
            assert change.success is False
            assert review.domain_figures()["default"]["labelled"] == 2
            assert store.domain_figures()["default"]["runs"] == 2  # which it cannot keep
            review.effects.decide("default", shows=False, source="ann")
            for refused in (
                lambda: store.effects.decide("default", shows=True, source="agent"),
                lambda: store.models.remove("default"),
                lambda: execute(store, "UPDATE pulled_units SET state = 'admitted'"),
                lambda: execute(store, "DROP TABLE runs"),
            ):
                with pytest.raises((StoreError, sa.exc.ProgrammingError), match=r"denied|owner"):
                    refused()
            assert review.delete(first.trace.id)
            assert review.deletions.prune()
    finally:
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("DROP OWNED BY kp_agent, kp_sender, kp_reviewer")
            owner.execute("DROP ROLE kp_sender, kp_reviewer, kp_agent")


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
        left = "SELECT count(*) FROM pg_prepared_statements"
        raw = store.database.open().raw_connection()
        try:
            assert raw.cursor().execute(left).fetchone() == (0,)
        finally:
            raw.close()
        shown = [ask(store, f"SHOW {name}") for name in (
            "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout",
        )]  # fmt: skip
        assert shown == (["10s", "30s", "1min"] if how == "none" else ["1500ms", "5min", "0"])
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert ask(store, sessions) == "1"
        # Behind a pooler the session is somebody else's then.
        raw = store.database.open().raw_connection()
        try:
            after = raw.cursor().execute("SHOW lock_timeout").fetchone()
            assert after == (("0",) if how == "none" else ("1500ms",))
        finally:
            raw.close()


def test_what_is_locked_or_takes_too_long_ends_with_an_answer(url, monkeypatch):
    monkeypatch.setitem(connections._LIMITS, "lock_timeout", "100ms")

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
        assert "idle-in-transaction" in str(stopping.exception(LONG_S))
        assert store.count() == 1


def test_expired_bodies_are_deleted_without_waiting_for_others_that_hold_them(url):
    with TraceStore(url) as store, TraceStore(url) as again, ThreadPoolExecutor(1) as pool:
        store.add(one := _scored(score=0.1, keep_days=7.0))
        execute(store, "UPDATE runs SET body_expires_at = now() - interval '1 day'")
        with psycopg.connect(url) as other:
            other.execute("SELECT trace_id FROM runs FOR UPDATE")
            pool.submit(again.add, _scored(2)).result(LONG_S)
            assert execute(store, "SELECT count(*) FROM runs WHERE NOT has_body") == [(0,)]
        assert store.get(one.trace.id).has_trace is False


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


def test_connections_to_a_server_that_became_a_standby_are_replaced(url):
    with TraceStore(url) as store:
        store.add(_scored())
        name = ask(store, "SELECT current_database()")
        read_only = f"ALTER DATABASE {name} SET default_transaction_read_only = {{}}"
        execute(store, read_only.format("on"))
        store.close()
        for _ in range(2):
            assert "the server takes no writes now" in refusal(lambda: store.add(_scored(1)))
        assert store.count() == 1  # which keeps a connection to it
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SET default_transaction_read_only = off")
            other.execute(read_only.format("off"))
        assert "the server takes no writes now" in refusal(lambda: store.add(_scored(1)))
        store.add(_scored(1))
        assert store.count() == 2


def test_ids_are_compared_byte_by_byte_and_what_is_deleted_is_cut_off(url):
    with TraceStore(url) as store:
        store.add(*(complete(number, content="long " * 3000) for number in range(12)))
        columns = execute(
            store, "SELECT column_name FROM information_schema.columns WHERE collation_name = 'C'"
        )
        assert {"trace_id", "run_id"} <= {name for (name,) in columns}
        store.delete(domain="finance")
        assert store.compact()
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
