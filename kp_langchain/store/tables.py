"""The tables of a store, and the statements that any of them needs.

A run is one row of `runs`, from its first write on; what it says is in `bodies`, and how its score
came about in `scores`. Everything still to be done about a run is a row of `jobs`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from kp_langchain.store.registry_units import Contribution, PulledUnit, Standing
from kp_langchain.store.rows import dumps
from kp_langchain.store.run_columns import COLUMNS, KEY_COLUMNS, OtherColumns, StoredRun
from kp_langchain.usage import Usage


class UtcTime(sa.types.TypeDecorator[datetime]):
    """An aware datetime in UTC, also on SQLite, which has no time zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return the time in UTC, in the form that the database takes."""
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Return an aware datetime in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


def key_text() -> sa.types.TypeEngine[str]:
    """Return a text type that both engines compare by bytes, so that a prefix is an index range."""
    return sa.String().with_variant(sa.String(collation="C"), "postgresql")


def _number() -> sa.types.TypeEngine[int]:
    """Return the type of a running number, of which a fleet needs more than 32 bits have."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # which counts only those up


def _json() -> sa.JSON:
    return sa.JSON(none_as_null=True)


_TYPES: dict[Any, Any] = {
    str: sa.String,
    bool: sa.Boolean,
    int: sa.Integer,
    float: sa.Double,
    datetime: UtcTime,
    list: _json,
    Sequence: _json,
    dict: _json,
    Usage: _json,
}
_IDS = ("trace_id", "run_id", "twin_of", "replaced_by", "tool_set")


def _type_of(hint: Any) -> tuple[Any, bool]:
    """Return the type of a column for one of Python, and whether it may be null."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(one for one in parts if one is not types.NoneType)
    origin = typing.get_origin(kind) or kind
    if origin is typing.Literal:
        origin = str
    return _TYPES[origin](), types.NoneType in parts


def _column(
    name: str, hint: Any, *, may_be_null: bool = False, keys: Collection[str] = ("trace_id",)
) -> sa.Column[Any]:
    """Return the column of a field of a dataclass, which is the table's key if it is in `keys`."""
    kind, is_optional = _type_of(hint)
    return sa.Column(
        name,
        key_text() if name in _IDS else kind,
        primary_key=name in keys,
        nullable=is_optional or may_be_null,
    )


def _columns_of(kind: type, *, keys: Collection[str] = ("trace_id",)) -> list[sa.Column[Any]]:
    """Return the columns of the fields of a dataclass."""
    hints = typing.get_type_hints(kind)
    return [_column(name, hint, keys=keys) for name, hint in hints.items()]


def _index_of_key(name: str) -> sa.Index:
    """Return the index by which all runs of a session, say, are found; most runs have no key."""
    has_key = sa.column(name).is_not(None)
    columns = (name, "created_at", "trace_id")
    return sa.Index(f"ix_runs_{name}", *columns, postgresql_where=has_key, sqlite_where=has_key)


_HINTS = typing.get_type_hints(StoredRun) | typing.get_type_hints(OtherColumns)

metadata = sa.MetaData()

runs = sa.Table(
    "runs",
    metadata,
    *(
        _column(name, _HINTS[name], may_be_null=column.since != "recorded")
        for name, column in COLUMNS.items()
    ),
    sa.Index("ix_runs_run_id", "run_id"),
    sa.Index("ix_runs_created_at", "created_at", "trace_id"),
    sa.Index("ix_runs_domain", "domain", "created_at", "trace_id"),
    sa.Index("ix_runs_task", "task", "domain", "namespace", "created_at", "trace_id"),
    sa.Index("ix_runs_body_expires_at", "body_expires_at"),
    sa.Index("ix_runs_tool_set", "tool_set"),
    sa.Index("ix_runs_score", "score", "created_at", "trace_id"),
    sa.Index("ix_runs_novelty", "novelty", "created_at", "trace_id"),
    *(_index_of_key(name) for name in ("session", "thread", "user_hash")),
)
# What each run says: its trace as it was recorded, and the answers of its models. Success,
# confidence, score and confirmations are in `runs`, because verdicts change them.
bodies = sa.Table(
    "bodies",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("trace", sa.JSON(), nullable=False),
    sa.Column("model_calls", _json()),
)
# The tools that models could ask for, by a hash of their definitions: most runs have the same.
tool_sets = sa.Table(
    "tool_sets",
    metadata,
    sa.Column("digest", key_text(), primary_key=True),
    sa.Column("definitions", sa.JSON(), nullable=False),
)

# How the score of each run came about, what a confidence model reads of its trace, and what other
# runs of its task are compared with.
scores = sa.Table(
    "scores",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("breakdown", sa.JSON(), nullable=False),
    sa.Column("features", _json()),
    sa.Column("digest", sa.LargeBinary()),
)

# Where other tracers recorded `runs`, one row for each run and tool.
external_traces = sa.Table(
    "external_traces",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("tool", key_text(), primary_key=True),
    sa.Column("external_id", key_text(), nullable=False),
    sa.Column("span_id", key_text()),
    sa.Column("project", sa.String()),
    sa.Column("is_part", sa.Boolean(), nullable=False),
    sa.Index("ix_external_traces_external_id", "tool", "external_id"),
)

# Which kept traces a run was shown as examples, or would have been if it had not been held out.
shown_traces = sa.Table(
    "shown_traces",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("shown_id", key_text(), primary_key=True),
    sa.Column("rank", sa.Integer(), nullable=False),
    sa.Column("similarity", sa.Double(), nullable=False),
    sa.Column("held_out", sa.Boolean(), nullable=False),
    sa.Column("is_drawn", sa.Boolean(), nullable=False),
    sa.Index("ix_shown_traces_shown_id", "shown_id"),
)

# What a person decided of the examples of a domain, and since when runs count towards what these
# do; null for all runs.
recall_decisions = sa.Table(
    "recall_decisions",
    metadata,
    sa.Column("domain", sa.String(), primary_key=True),
    sa.Column("shows", sa.Boolean(), nullable=False),
    sa.Column("at", UtcTime(), nullable=False),
    sa.Column("counted_from", UtcTime()),
    sa.Column("source", sa.String(), nullable=False),
    sa.Column("note", sa.String()),
)

# Units of a registry, none of which is shown to a run before it is admitted. Those without one are
# patterns of this store's runs that a person admitted or rejected.
pulled_units = sa.Table(
    "pulled_units",
    metadata,
    *_columns_of(PulledUnit),
    sa.Column("body", sa.JSON(none_as_null=True)),
    sa.Index("ix_pulled_units_domain", "domain", "state"),
    sa.Index("ix_pulled_units_digest", "digest"),
    sa.Index("ix_pulled_units_pulled_at", "pulled_at", "trace_id"),
)

# Counts that all processes on the store share. `resets` says how often runs were deleted or units
# of a registry changed, so that what a process remembers of them is read anew; `changes`, in
# SQLite, how often `vectors` changed.
counts = sa.Table(
    "counts",
    metadata,
    sa.Column("name", key_text(), primary_key=True),
    sa.Column("number", sa.BigInteger(), nullable=False),
)

# The figures of the runs of a domain and day, and the days that changed since; see `RunDays`.
run_days = sa.Table(
    "run_days",
    metadata,
    sa.Column("domain", sa.String(), primary_key=True),
    sa.Column("day", sa.String(), primary_key=True),
    sa.Column("figures", sa.LargeBinary(), nullable=False),
)
changed_days = sa.Table(
    "changed_days",
    metadata,
    sa.Column("domain", sa.String(), primary_key=True),
    sa.Column("day", sa.String(), primary_key=True),
    sa.Column("change", sa.BigInteger(), primary_key=True),  # as in `vectors`
)

# Vectors and text hashes of traces, by which they are compared. A row is of one of three kinds:
# `run`: of a run whose trace is in `bodies`. What repeats a kept run is found by it.
# `memory`: of a trace that novelty is measured against, the newest with the highest number.
# `task`: of the task of a kept run, or of an admitted unit; recall compares it with a new task.
vectors = sa.Table(
    "vectors",
    metadata,
    sa.Column("number", _number(), primary_key=True),
    sa.Column("kind", sa.String(), nullable=False),
    sa.Column("trace_id", key_text(), nullable=False),
    # The embedder that the vector comes from; empty if there was none.
    sa.Column("model", key_text(), nullable=False),
    sa.Column("revision", key_text(), nullable=False),
    sa.Column("baseline", sa.Double(), nullable=False),
    # The number of its last change: see `vectors.Mark`.
    sa.Column("change", sa.BigInteger(), nullable=False),
    # Of a run: how sure the gate is of it, and whether a verdict states its success.
    sa.Column("confidence", sa.Double()),
    sa.Column("is_stated", sa.Boolean()),
    # Of a task: how often the trace called each tool, by its name; what it took from the task into
    # the inputs of tools; what looks like planted instructions in the trace, and the version of the
    # rules that looked.
    sa.Column("plan", _json()),
    sa.Column("planted", sa.String()),
    sa.Column("scan_version", sa.Integer()),
    sa.Column("fingerprint", sa.LargeBinary()),
    sa.Column("vector", sa.LargeBinary()),  # float32, little-endian
    sa.Index(
        "ix_vectors_trace_id",
        "trace_id", "kind", "model", "revision", "baseline",
        unique=True,
    ),
    sa.Index("ix_vectors_number", "kind", "number"),
    sa.Index("ix_vectors_change", "kind", "change"),
    sa.Index("ix_vectors_fingerprint", "fingerprint", "kind"),
    # Otherwise SQLite would give the number of the newest row again once that row is deleted.
    sqlite_autoincrement=True,
)  # fmt: skip

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("number", _number(), primary_key=True),
    sa.Column("trace_id", key_text(), nullable=False),
    sa.Column("at", UtcTime(), nullable=False),
    sa.Column("success", sa.Boolean()),
    sa.Column("confidence", sa.Double()),
    sa.Column("note", sa.String()),
    sa.Column("source", sa.String(), nullable=False),
    sa.Column("by_model", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Index("ix_verdicts_trace_id", "trace_id", "at", "number"),
)

# The confidence model in force for each domain.
models = sa.Table(
    "models",
    metadata,
    sa.Column("domain", sa.String(), primary_key=True),
    sa.Column("body", sa.JSON(), nullable=False),
)

# What is still to be done: see `store/jobs.py`. A process leases what it does; when it
# ends first, its leases expire, and another process does it.
jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("kind", sa.String(), primary_key=True),
    sa.Column("key", key_text(), primary_key=True),
    sa.Column("attempts", sa.Integer(), nullable=False),
    sa.Column("lease_until", sa.Double(), nullable=False),  # seconds since 1970
    sa.Column("owner", sa.String(), nullable=False),
    sa.Column("body", _json()),
    sa.Index("ix_jobs_lease_until", "kind", "lease_until"),
)

# What runs recorded before they paused for a human, redacted, until they are resumed or expire.
paused_runs = sa.Table(
    "paused_runs",
    metadata,
    sa.Column("key", key_text(), primary_key=True),  # a hash of thread, domain and agent
    sa.Column("paused_at", UtcTime(), nullable=False),
    sa.Column("expires_at", UtcTime(), nullable=False),
    sa.Column("body", sa.JSON(), nullable=False),
    # By which it is selected; as in `runs`.
    sa.Column("run_id", key_text(), nullable=False),
    sa.Column("created_at", UtcTime(), nullable=False),
    sa.Column("domain", sa.String(), nullable=False),  # empty if the run does not name one itself
    *(_column(name, _HINTS[name], may_be_null=True) for name in KEY_COLUMNS),
    sa.Index("ix_paused_runs_expires_at", "expires_at"),
    sa.Index("ix_paused_runs_paused_at", "paused_at"),
)

# What goes to registries. The text of a contribution is the exact one to send, because the
# idempotency key is its hash. Verdicts set and clear `withdraw_asked`, and a withdrawal by hand
# clears it; the sender never writes it.
outbox = sa.Table(
    "outbox",
    metadata,
    *_columns_of(Contribution),
    sa.Index("ix_outbox_due", "state", "registry", "due_at", "trace_id"),
    sa.Index("ix_outbox_queued_at", "queued_at", "trace_id"),
)
registries = sa.Table("registries", metadata, *_columns_of(Standing, keys=("registry", "key_id")))


Key = TypeVar("Key")

_BATCH_SIZE = 500  # the keys of one statement


@cache  # building one takes longer than executing it
def insert_or_replace(table: sa.Table, dialect: str) -> Any:
    """Return the statement that inserts rows; each replaces an earlier row with its primary key.

    Args:
        table: The table.
        dialect: The database's dialect, `sqlite` or `postgresql`.
    """
    insert = insert_into(table, dialect)
    keys = table.primary_key.columns
    return insert.on_conflict_do_update(
        index_elements=list(keys),
        set_={c.name: insert.excluded[c.name] for c in table.columns if c not in keys.values()},
    )


@cache
def insert_or_ignore(table: sa.Table, dialect: str) -> Any:
    """Return the statement that inserts rows; one whose primary key exists already is ignored.

    Args:
        table: The table.
        dialect: The database's dialect, `sqlite` or `postgresql`.
    """
    return insert_into(table, dialect).on_conflict_do_nothing(
        index_elements=list(table.primary_key.columns)
    )


def insert_into(table: sa.Table, dialect: str) -> Any:
    """Return the dialect's insert statement for a table, with no rule for conflicts yet."""
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # long to load, and SQLite needs nothing of it

        return postgresql.insert(table)
    return sqlite.insert(table)


def execute_rows(
    connection: sa.Connection, statement: Any, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Execute a statement for rows, in half the time that SQLAlchemy takes for it.

    Args:
        connection: A write transaction.
        statement: The statement, which must be one that was built once.
        rows: Rows of the same columns.
    """
    if not rows:
        return
    dialect: Any = type(connection.dialect)
    text, order, constants = _text_of(statement, dialect, tuple(rows[0]))
    values: Any = [{**constants, **row} for row in rows]
    if order:
        values = [tuple(_as_sqlite(row[name]) for name in order) for row in values]
    else:
        values = [{name: _plain(one) for name, one in row.items()} for row in values]
    connection.exec_driver_sql(text, values)


@cache
def _text_of(
    statement: Any, dialect: type[sa.Dialect], names: tuple[str, ...]
) -> tuple[str, Sequence[str], dict[str, Any]]:
    """Return the text of a statement, the order of its parameters, and those that are constant.

    The order is empty where parameters have names.
    """
    compilation = statement.compile(dialect=dialect(), column_keys=names)
    constants = {name: one for name, one in compilation.params.items() if name not in names}
    return str(compilation), compilation.positiontup or (), constants


def _plain(value: Any) -> Any:
    return dumps(value) if isinstance(value, dict | list) else value


def _as_sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    return _plain(value)


def batches(keys: Collection[Key], size: int = _BATCH_SIZE) -> Iterator[list[Key]]:
    """Yield keys in lists that are short enough for one statement.

    Args:
        keys: The keys.
        size: The length of a list.
    """
    in_order = list(keys)
    for start in range(0, len(in_order), size):
        yield in_order[start : start + size]
