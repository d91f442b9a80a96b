"""PostgreSQL connections with limits on every wait. Loads SQLAlchemy and psycopg.

The server ends statements that wait for a lock, or run, for too long. A frozen server, or a network
that drops every packet, ends nothing, and TCP reports that after hours; so the client has limits of
its own.
"""

from __future__ import annotations

import os
import re
import selectors
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kp_langchain._forksafe import allow_forks
from kp_langchain.errors import ConfigError
from kp_langchain.store.location import Location
from kp_langchain.store.rows import dumps
from kp_langchain.store.tables import metadata

_CONNECT_TIMEOUT_S = 10
_LOCK_TIMEOUT_S = 10.0
_STATEMENT_TIMEOUT_S = 30.0
# Releases the rows of a process that was suspended in the middle of a transaction.
_IDLE_TIMEOUT_S = 60.0
_MIGRATION_TIMEOUT_S = 600.0
_MIGRATION_LOCK = 0x6B705F6C63  # any number, the same in every version of this package
# Longer than the server's own limit, because the server reports a statement that it ends.
_STATEMENT_SILENCE_S = 35.0
_GREETING_SILENCE_S = 10.0
# Half of the driver's polling interval.
_SURELY_READY_S = 0.05
# How long a fork waits for an answer of the server.
_FORK_PATIENCE_S = 0.5

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_OWN_LIMIT = re.compile(
    r"(?:^|\s)(?:-c\s*|--)([\w-]+[_-]timeout)=(\d+)(us|ms|s|min|h|d|)(?=\s|$)", re.IGNORECASE
)


class _Connection(psycopg.Connection[Any]):
    """A connection that closes itself when the server is silent for too long.

    Attributes:
        silence_s: The longest silence in a transaction, in seconds.
        idle_silence_s: The longest silence outside one, in seconds.
    """

    silence_s = _STATEMENT_SILENCE_S
    idle_silence_s = _GREETING_SILENCE_S

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        is_idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        limit_s = min(self.idle_silence_s, self.silence_s) if is_idle else self.silence_s
        return super().wait(self._until_silent(gen, limit_s), *args, **options)

    def _until_silent(
        self, gen: Generator[Any, Any, Any], limit_s: float
    ) -> Generator[Any, Any, Any]:
        # The driver resumes `gen` when the socket is ready, and after a tenth of a second anyway.
        try:
            state = next(gen)
            last_answer_at = time.monotonic()
            lets_forks_pass = False
            with ExitStack() as outside:
                while True:
                    wait_began_at = time.monotonic()
                    ready = yield state
                    now = time.monotonic()
                    if now - wait_began_at < _SURELY_READY_S or self._is_ready(state):
                        last_answer_at = now
                        outside.close()
                        lets_forks_pass = False
                    elif now >= last_answer_at + limit_s:
                        self.close()
                        raise psycopg.OperationalError(f"no answer for {limit_s:g} s")
                    elif now >= last_answer_at + _FORK_PATIENCE_S and not lets_forks_pass:
                        outside.enter_context(allow_forks())
                        lets_forks_pass = True
                    state = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _is_ready(self, state: int) -> bool:
        # In some versions of the driver, the value that it resumes with is not reliable.
        with selectors.DefaultSelector() as selector:
            selector.register(self.pgconn.socket, state)
            return bool(selector.select(0))


def new_engine(location: Location) -> sa.Engine:
    """Return an engine on a PostgreSQL database; nothing is connected yet.

    Timeouts in the URL's `options`, or in the environment variable PGOPTIONS, override ours.

    Raises:
        ConfigError: The URL cannot be read.
    """
    try:
        url = make_url(location.url or "").set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        # Not chained, because the cause may quote the password.
        url = None
    if url is None:
        raise ConfigError(
            f"{location} cannot be read as a URL; write postgresql://user:password@host/database,"
            " with special characters in the password percent-encoded"
        )
    options = url.query.get("options", os.environ.get("PGOPTIONS", ""))
    own_limits_s = _limits_in(options if isinstance(options, str) else " ".join(options))
    limits = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    engine = sa.create_engine(
        url,
        # The driver begins no transactions itself, because ours begin with their limits.
        connect_args=limits | {"autocommit": True},
        json_serializer=dumps,
        hide_parameters=True,
        pool_pre_ping=True,
    )

    @sa.event.listens_for(engine, "do_connect")
    def on_connect(_dialect: Any, _record: Any, args: Any, options: Any) -> _Connection:
        with allow_forks():
            connection = _Connection.connect(*args, **options)
        connection.silence_s = _silence_s(own_limits_s)
        return connection

    begin = _begin_statement(own_limits_s)

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def migration_lock(connection: sa.Connection) -> Iterator[None]:
    """Let one process at a time create the tables, with ten minutes for each statement.

    Args:
        connection: The transaction that creates them; the lock is held until it ends.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: Another process held the lock for too long.
    """
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {_ms(_MIGRATION_TIMEOUT_S)}")
    driver: Any = connection.connection.driver_connection
    before, driver.silence_s = driver.silence_s, _MIGRATION_TIMEOUT_S
    try:
        yield
    finally:
        driver.silence_s = before


def size_bytes(engine: sa.Engine) -> int:
    """Return the size of our tables on the server, with their indexes."""
    sizes = [sa.func.pg_total_relation_size(name) for name in metadata.tables]
    with engine.connect() as connection:
        return sum(connection.execute(sa.select(*sizes)).one())


def vacuum(engine: sa.Engine) -> None:
    """Make the room of deleted rows free for new ones, with ten minutes for all tables.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: The server cannot do it.
    """
    connection = engine.raw_connection()
    try:
        driver: Any = connection.driver_connection
        driver.silence_s = driver.idle_silence_s = _MIGRATION_TIMEOUT_S
        connection.cursor().execute(f"VACUUM {', '.join(metadata.tables)}")
    except psycopg.Error as error:
        raise sa.exc.OperationalError("VACUUM", None, error) from error
    finally:
        connection.invalidate()  # with its limits
        connection.close()


def _limits_in(options: str) -> dict[str, float]:
    """Return the timeouts that a connection's options set: seconds by name."""
    return {
        name.lower().replace("-", "_"): int(number) * _UNITS_S[unit.lower()]
        for name, number, unit in _OWN_LIMIT.findall(options)
    }


def _begin_statement(own_limits_s: dict[str, float]) -> str:
    """Return the statement that begins a transaction with the limits that the user did not set."""
    ours = {
        "lock_timeout": _LOCK_TIMEOUT_S,
        "statement_timeout": _STATEMENT_TIMEOUT_S,
        "idle_in_transaction_session_timeout": _IDLE_TIMEOUT_S,
    }
    # LOCAL, because a pooler may hand the session to another client after the transaction; and in
    # one message with BEGIN, so that they cost no round trip.
    limits = [
        f"SET LOCAL {name} = {_ms(limit_s)}"
        for name, limit_s in ours.items()
        if name not in own_limits_s
    ]
    return "; ".join(["BEGIN", *limits])


def _silence_s(own_limits_s: dict[str, float]) -> float:
    if "statement_timeout" not in own_limits_s:
        return _STATEMENT_SILENCE_S
    own_s = own_limits_s["statement_timeout"]  # 0 means no limit
    return own_s + _STATEMENT_SILENCE_S - _STATEMENT_TIMEOUT_S if own_s else float("inf")


def _ms(limit_s: float) -> int:
    return max(1, round(limit_s * 1000))
