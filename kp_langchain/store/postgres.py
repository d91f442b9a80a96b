"""A PostgreSQL database, with limits on every wait. Loads SQLAlchemy and psycopg.

The server ends statements that wait for a lock, or run, for too long. The system ends connections
through a network that drops every packet.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from kp_langchain._forksafe import fork_gate
from kp_langchain.errors import ConfigError
from kp_langchain.store.location import Location
from kp_langchain.store.rows import dumps, loads

# Limits of each transaction. The last one releases the rows of a process that was suspended.
_LIMITS = {
    "lock_timeout": "10s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
}
# Of the driver: how long the server may take to answer at first, and a network to lose what was
# sent. Limits in the URL prevail.
_NETWORK_LIMITS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}


class _Connection(psycopg.Connection[Any]):
    """A connection whose waits hold up no fork."""

    def wait(self, *args: Any, **options: Any) -> Any:
        with fork_gate.opened():
            return super().wait(*args, **options)


def new_engine(location: Location) -> sa.Engine:
    """Return an engine on a PostgreSQL database; nothing is connected yet.

    With `options` in its URL, or the environment variable PGOPTIONS, transactions have the limits
    that are set there, and none of ours.

    Raises:
        ConfigError: The URL cannot be read.
    """
    url = _url(location)
    limits = {name: one for name, one in _NETWORK_LIMITS.items() if name not in url.query}
    engine = sa.create_engine(
        url,
        # The driver begins no transactions itself, because ours begin with their limits.
        connect_args=limits | {"autocommit": True},
        json_serializer=dumps,
        json_deserializer=loads,
        hide_parameters=True,
        pool_pre_ping=True,
    )
    begin = "BEGIN"
    if "options" not in url.query and "PGOPTIONS" not in os.environ:
        # LOCAL, because a pooler may hand the session to another client after the transaction; and
        # in one message with BEGIN, so that they cost no round trip.
        limits_sql = [f"SET LOCAL {name} = '{limit}'" for name, limit in _LIMITS.items()]
        begin = "; ".join([begin, *limits_sql])
    sa.event.listen(engine, "do_connect", _connect)
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


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
        return _Connection.connect(*arguments, **options)
