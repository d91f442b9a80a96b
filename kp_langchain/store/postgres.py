"""PostgreSQL connections on which nothing takes for ever. Loads SQLAlchemy and psycopg.

The server ends what waits for a lock or takes too long. A server that is frozen, or a network that
swallows everything, ends nothing, and TCP says so after hours; so the client has limits, too.
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

_CONNECT_TIMEOUT_S = 10
_LOCK_TIMEOUT_S = 10.0
_STATEMENT_TIMEOUT_S = 30.0
# Frees the rows of a process that is stopped in the middle of a transaction.
_IDLE_TIMEOUT_S = 60.0
_MIGRATION_TIMEOUT_S = 600.0
# Silence of the server. Of a statement it ends itself it tells, so this is longer.
_STATEMENT_SILENCE_S = 35.0
_GREETING_SILENCE_S = 10.0
# Half of what the driver waits for before it looks around.
_SURELY_READY_S = 0.05
# How long a fork waits for an answer.
_FORK_PATIENCE_S = 0.5

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_OWN_LIMIT = re.compile(
    r"(?:^|\s)(?:-c\s*|--)([\w-]+[_-]timeout)=(\d+)(us|ms|s|min|h|d|)(?=\s|$)", re.IGNORECASE
)


class _Connection(psycopg.Connection[Any]):
    """Is closed when the server keeps silent for too long.

    Attributes:
        silence_s: Longest silence in a transaction, in seconds.
    """

    silence_s = _STATEMENT_SILENCE_S

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        limit_s = min(_GREETING_SILENCE_S, self.silence_s) if idle else self.silence_s
        return super().wait(self._until_silent(gen, limit_s), *args, **options)

    def _until_silent(
        self, gen: Generator[Any, Any, Any], limit_s: float
    ) -> Generator[Any, Any, Any]:
        # The driver resumes `gen` when the socket is ready, and after a tenth of a second anyway.
        try:
            state = next(gen)
            heard_at = time.monotonic()
            is_outside = False
            with ExitStack() as outside:
                while True:
                    asked_at = time.monotonic()
                    ready = yield state
                    now = time.monotonic()
                    if now - asked_at < _SURELY_READY_S or self._is_ready(state):
                        heard_at = now
                        outside.close()
                        is_outside = False
                    elif now >= heard_at + limit_s:
                        self.close()
                        raise psycopg.OperationalError(f"no answer for {limit_s:g} s")
                    elif now >= heard_at + _FORK_PATIENCE_S and not is_outside:
                        outside.enter_context(allow_forks())
                        is_outside = True
                    state = gen.send(ready)
        except StopIteration as end:
            return end.value

    def _is_ready(self, state: int) -> bool:
        # Not every version of the driver tells truly why it resumes.
        with selectors.DefaultSelector() as selector:
            selector.register(self.pgconn.socket, state)
            return bool(selector.select(0))


def new_engine(location: Location) -> sa.Engine:
    """Return an engine on a PostgreSQL database; nothing is connected yet.

    Limits in the URL's `options`, or in the variable PGOPTIONS, go before ours.

    Raises:
        ConfigError: The URL cannot be read.
    """
    try:
        url = make_url(location.url or "").set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        # Without the cause, which may quote the password.
        url = None
    if url is None:
        raise ConfigError(
            f"{location} is not a URL that can be read; write postgresql://user:password@host/"
            "database, with special characters in the password percent-encoded"
        )
    options = url.query.get("options", os.environ.get("PGOPTIONS", ""))
    own_s = _limits_in(options if isinstance(options, str) else " ".join(options))
    waits = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT_S}
    engine = sa.create_engine(
        url,
        # The driver begins no transactions, because ours begin with their limits.
        connect_args=waits | {"autocommit": True},
        json_serializer=dumps,
        hide_parameters=True,
        pool_pre_ping=True,
    )

    @sa.event.listens_for(engine, "do_connect")
    def on_connect(_dialect: Any, _record: Any, args: Any, options: Any) -> _Connection:
        with allow_forks():
            connection = _Connection.connect(*args, **options)
        connection.silence_s = _silence_s(own_s)
        return connection

    begin = _begin(own_s)

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


@contextmanager
def time_for_migration(connection: sa.Connection) -> Iterator[None]:
    """A block, inside a transaction, in which a statement may take ten minutes."""
    limit = f"SET LOCAL statement_timeout = {_ms(_MIGRATION_TIMEOUT_S)}"
    connection.exec_driver_sql(limit)
    driver: Any = connection.connection.driver_connection
    before, driver.silence_s = driver.silence_s, _MIGRATION_TIMEOUT_S
    try:
        yield
    finally:
        driver.silence_s = before


def _limits_in(options: str) -> dict[str, float]:
    """Return the timeouts that a connection's options set, in seconds."""
    return {
        name.lower().replace("-", "_"): int(number) * _UNITS_S[unit.lower()]
        for name, number, unit in _OWN_LIMIT.findall(options)
    }


def _begin(own_s: dict[str, float]) -> str:
    ours = {
        "lock_timeout": _LOCK_TIMEOUT_S,
        "statement_timeout": _STATEMENT_TIMEOUT_S,
        "idle_in_transaction_session_timeout": _IDLE_TIMEOUT_S,
    }
    # For the transaction alone: a pooler may hand the session to somebody else after it. In one
    # message with its beginning, so that it costs no time.
    limits = [
        f"SET LOCAL {name} = {_ms(limit_s)}" for name, limit_s in ours.items() if name not in own_s
    ]
    return "; ".join(["BEGIN", *limits])


def _silence_s(own_s: dict[str, float]) -> float:
    if "statement_timeout" not in own_s:
        return _STATEMENT_SILENCE_S
    own = own_s["statement_timeout"]  # 0 means that there is none
    return own + _STATEMENT_SILENCE_S - _STATEMENT_TIMEOUT_S if own else float("inf")


def _ms(limit_s: float) -> int:
    return max(1, round(limit_s * 1000))
