"""A PostgreSQL database, with limits on every wait. Loads SQLAlchemy and psycopg.

The server ends statements that wait for a lock, or run, for too long. A frozen server, or a network
that drops every packet, ends nothing, and TCP reports that after hours; so the client has limits of
its own.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Generator
from typing import Any, ClassVar

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kp_langchain._forksafe import fork_gate
from kp_langchain.errors import ConfigError
from kp_langchain.store.engine import OpenDatabase
from kp_langchain.store.location import Location
from kp_langchain.store.rows import dumps
from kp_langchain.store.tables import metadata

_CONNECT_TIMEOUT_S = 10
_LOCK_TIMEOUT_S = 10.0
_STATEMENT_TIMEOUT_S = 30.0
# Releases the rows of a process that was suspended in the middle of a transaction.
_IDLE_TIMEOUT_S = 60.0
_VACUUM_SILENCE_S = 600.0
_CREATION_LOCK = 0x6B705F6C63  # any number, the same in every version of this package
# Beyond the server's own limit, because the server reports a statement that it ends.
_MORE_SILENCE_S = 5.0
_GREETING_SILENCE_S = 10.0

_CHECK_SERVER = "check that the server runs and that the URL's host and port are right"


class _Connection(psycopg.Connection[Any]):
    """A connection that closes itself when the server is silent for too long.

    Attributes:
        silence_s: The longest silence in a transaction, in seconds.
        idle_silence_s: The longest silence outside one, in seconds.
        begin: The statement that begins a transaction, with our limits.
    """

    silence_s = _STATEMENT_TIMEOUT_S + _MORE_SILENCE_S
    idle_silence_s = _GREETING_SILENCE_S
    begin = "BEGIN"

    def set_limits(self) -> None:
        """Set the limits of its transactions that the user has not set."""
        ours_ms = {
            "lock_timeout": _LOCK_TIMEOUT_S * 1000,
            "statement_timeout": _STATEMENT_TIMEOUT_S * 1000,
            "idle_in_transaction_session_timeout": _IDLE_TIMEOUT_S * 1000,
        }
        users = "SELECT name, setting FROM pg_settings WHERE source = 'client' AND unit = 'ms'"
        users_ms = {name: float(limit_ms) for name, limit_ms in self.execute(users)}
        # LOCAL, because a pooler may hand the session to another client after the transaction; and
        # in one message with BEGIN, so that they cost no round trip.
        limits = [
            f"SET LOCAL {name} = {round(limit_ms)}"
            for name, limit_ms in ours_ms.items()
            if name not in users_ms
        ]
        self.begin = "; ".join(["BEGIN", *limits])
        limit_s = (ours_ms | users_ms)["statement_timeout"] / 1000
        self.silence_s = limit_s + _MORE_SILENCE_S if limit_s else float("inf")

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        is_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        limit_s = min(self.idle_silence_s, self.silence_s) if is_idle else self.silence_s
        with fork_gate.opened():
            return super().wait(self._until_silent(gen, limit_s), *args, **options)

    def _until_silent(
        self, gen: Generator[Any, Any, Any], limit_s: float
    ) -> Generator[Any, Any, Any]:
        # The driver resumes `gen` when the socket is ready, and after a tenth of a second anyway.
        try:
            state = next(gen)
            last_answer_at = time.monotonic()
            while True:
                ready = yield state
                now = time.monotonic()
                if self._is_ready(state):
                    last_answer_at = now
                elif now >= last_answer_at + limit_s:
                    self.close()
                    raise psycopg.OperationalError(f"no answer for {limit_s:g} s")
                state = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _is_ready(self, state: int) -> bool:
        # Before version 3.3 of the driver, the value that it resumes with is not reliable.
        with selectors.DefaultSelector() as selector:
            selector.register(self.pgconn.socket, state)
            return bool(selector.select(0))


class PostgresDatabase(OpenDatabase):
    """A database on a PostgreSQL server.

    Timeouts in the URL's `options`, or in the environment variable PGOPTIONS, override ours.
    """

    CREATION_LOCK: ClassVar = sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK))
    EXPLANATIONS: ClassVar = {
        "no space left": "the disk is full; make room and try again",
        "lock timeout": "another process has held a lock on it for 10 s; "
        "try again when that has ended",
        "statement timeout": "the server has worked on one statement for 30 s, as long as it may; "
        "see what keeps it busy, or raise the limit in the URL: "
        "?options=-c%20statement_timeout%3D5min",
        "idle-in-transaction timeout": "this process was stopped for a minute in the middle of it; "
        "try again",
        "no answer for": "the server does not answer any more; check that it runs; try again",
        "password authentication failed": "user or password is wrong; check both in the URL",
        "no password supplied": "the server wants a password; put it in the URL",
        "no pg_hba.conf entry": "the server does not let this user or host in; "
        "ask its administrator",
        "permission denied": "the user lacks a permission there; "
        "grant it CREATE on the schema, or give it a database that it owns",
        'database ".*" does not exist': "the server has no such database; "
        "create it, or correct its name",
        "connection refused|no such file": f"nothing answers there; {_CHECK_SERVER}",
        "resolve host|name or service": f"the host name is unknown; {_CHECK_SERVER}",
        "timeout": f"the server does not answer; {_CHECK_SERVER}",
        "connection failed": f"the server cannot be reached; {_CHECK_SERVER}",
        "server closed the connection": "the server closed the connection; try again",
    }

    def _new_engine(self, location: Location) -> sa.Engine:
        url = _url(location)
        limits = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
        engine = sa.create_engine(
            url,
            # The driver begins no transactions itself, because ours begin with their limits.
            connect_args=limits | {"autocommit": True},
            json_serializer=dumps,
            hide_parameters=True,
            pool_pre_ping=True,
        )

        sa.event.listen(engine, "do_connect", _connect)
        sa.event.listen(engine, "begin", _begin)
        return engine

    def size_bytes(self) -> int:
        """Return the size of our tables on the server, with their indexes."""
        sizes = [sa.func.pg_total_relation_size(name) for name in metadata.tables]
        with self.engine.connect() as connection:
            return sum(connection.execute(sa.select(*sizes)).one())

    def compact(self) -> bool:
        """Make the room of deleted rows free for new ones, with ten minutes for all tables."""
        connection = self.engine.raw_connection()
        try:
            driver: Any = connection.driver_connection
            driver.silence_s = driver.idle_silence_s = _VACUUM_SILENCE_S
            connection.cursor().execute(f"VACUUM {', '.join(metadata.tables)}")
        except psycopg.Error as error:
            raise sa.exc.OperationalError("VACUUM", None, error) from error
        finally:
            connection.invalidate()  # with its limits
            connection.close()
        return True


def _url(location: Location) -> sa.URL:
    try:
        return make_url(location.url or "").set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        pass
    # Not chained, because the cause may quote the password.
    raise ConfigError(
        f"{location} cannot be read as a URL; write postgresql://user:password@host/database,"
        " with special characters in the password percent-encoded"
    )


def _connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> _Connection:
    with fork_gate.opened():
        connection = _Connection.connect(*arguments, **options)
    connection.set_limits()
    return connection


def _begin(connection: sa.Connection) -> None:
    driver: Any = connection.connection.driver_connection
    connection.exec_driver_sql(driver.begin)
