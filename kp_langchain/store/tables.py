"""The tables of a store. Loads SQLAlchemy.

A run is one row of `runs`, from its first write on; what it says is in `bodies`, and how its score
came about in `scores`. Everything still to be done about a run is a row of `jobs`.
"""

from __future__ import annotations

import types
import typing
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from kp_langchain.store.stored_run import COMPUTED_FIELDS, StoredRun

SCHEMA_VERSION = "11"
"""Raised with every change of the tables. A store of another version is refused."""

VERSION_TABLE = "kp_schema"
EARLIER_VERSION_TABLE = "kp_alembic_version"
"""What versions of this package up to schema 10 called it."""


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


def _json() -> sa.JSON:
    return sa.JSON(none_as_null=True)


_TYPES: dict[Any, Any] = {
    str: sa.String,
    bool: sa.Boolean,
    int: sa.Integer,
    float: sa.Double,
    datetime: UtcTime,
    list: _json,
    dict: _json,
}
_KEYS = ("trace_id", "run_id", "twin_of", "replaced_by")
# What a run has from its first write on, before it is judged.
_RECORDED = (
    "trace_id", "run_id", "created_at", "domain", "objective", "n_steps", "visibility",
    "privacy_level",
)  # fmt: skip


def _columns_of_runs() -> list[sa.Column[Any]]:
    """Return a column for each field of `StoredRun` that is stored: its one declaration."""
    hints = typing.get_type_hints(StoredRun)
    columns = []
    for field in fields(StoredRun):
        if field.name in COMPUTED_FIELDS:
            continue
        kind = hints[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(one for one in typing.get_args(kind) if one is not types.NoneType)
        make = _TYPES[typing.get_origin(kind) or kind]
        columns.append(
            sa.Column(
                field.name,
                key_text() if field.name in _KEYS else make(),
                primary_key=field.name == "trace_id",
                nullable=field.name not in _RECORDED,
            )
        )
    return columns


metadata = sa.MetaData()

runs = sa.Table(
    "runs",
    metadata,
    *_columns_of_runs(),
    # `paused`, `recorded` or `judged`.
    sa.Column("state", sa.String(), nullable=False),
    # Whether its trace is in `bodies`; when that of a run that is not kept expires, and after how
    # many days; null for never.
    sa.Column("has_body", sa.Boolean(), nullable=False),
    sa.Column("body_expires_at", UtcTime()),
    sa.Column("keep_days", sa.Double()),
    sa.Column("task", sa.String()),
    # Who confirmed its outcome, in order.
    sa.Column("validated_by", _json()),
    # What the gate saw of the run and decided when it was judged; a verdict does not change that.
    sa.Column("gated_value", sa.Double()),
    sa.Column("passed", sa.Boolean()),
    sa.Column("pass_rate", sa.Double()),
    # From which similarity it repeats a kept one; 1 for the rule being off.
    sa.Column("twin_similarity", sa.Double()),
    # By the name of each dimension, its value and weight; by that of each rule, what it added.
    sa.Column("dimensions", _json()),
    sa.Column("rules", _json()),
    sa.Column("novelty", sa.Double()),
    sa.Column("novelty_source", sa.String()),
    # The beginning of the objective, case folded.
    sa.Column("search_text", sa.String(), nullable=False),
    # The number of the last change to what is kept that this run was part of: see `changes`.
    sa.Column("change", sa.BigInteger()),
    sa.CheckConstraint(
        " AND ".join(
            f"(state <> 'judged' OR {name} IS NOT NULL)"
            for name in ("success", "confidence", "score", "threshold", "decision", "profile")
        ),
        name="ck_runs_judged",
    ),
    sa.Index("ix_runs_run_id", "run_id"),
    sa.Index("ix_runs_created_at", "created_at", "trace_id"),
    sa.Index("ix_runs_domain", "domain", "created_at", "trace_id"),
    sa.Index(
        "ix_runs_change",
        "change",
        sqlite_where=sa.text("change IS NOT NULL"),
        postgresql_where=sa.text("change IS NOT NULL"),
    ),
    sa.Index(
        "ix_runs_body_expires_at",
        "body_expires_at",
        sqlite_where=sa.text("body_expires_at IS NOT NULL"),
        postgresql_where=sa.text("body_expires_at IS NOT NULL"),
    ),
)

# What each run says: its trace as it was recorded. Success, confidence, score and confirmations are
# in `runs`, because verdicts change them.
bodies = sa.Table(
    "bodies",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("trace", sa.JSON(), nullable=False),
)

# How the score of each run came about, and what a confidence model reads of its trace.
scores = sa.Table(
    "scores",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("breakdown", sa.JSON(), nullable=False),
    sa.Column("features", _json()),
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

# The tasks of kept runs and of admitted units, as recall compares them with a new task.
recall_entries = sa.Table(
    "recall_entries",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    # The embedder that the vector comes from.
    sa.Column("model", key_text(), primary_key=True),
    sa.Column("revision", key_text(), primary_key=True),
    sa.Column("vector", sa.LargeBinary()),  # float32, little-endian; null for an unreadable task
    # How often the run called each tool, by its name.
    sa.Column("plan", sa.JSON(none_as_null=True)),
    # What looks like planted instructions in the trace, and the version of the rules that looked.
    sa.Column("planted", sa.String()),
    sa.Column("scan_version", sa.Integer(), nullable=False),
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
    sa.Index("ix_shown_traces_shown_id", "shown_id"),
)

# Units of a registry. None is shown to a run before it is admitted.
pulled_units = sa.Table(
    "pulled_units",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("registry", sa.String(), nullable=False),
    sa.Column("domain", sa.String(), nullable=False),
    sa.Column("objective", sa.String(), nullable=False),
    # What its contributor claims.
    sa.Column("quality_score", sa.Double(), nullable=False),
    sa.Column("success", sa.Boolean(), nullable=False),
    sa.Column("confidence", sa.Double(), nullable=False),
    # `quarantined`, `admitted` or `rejected`. A rejected one has neither text nor findings left.
    sa.Column("state", sa.String(), nullable=False),
    sa.Column("findings", sa.JSON(), nullable=False),
    sa.Column("is_clean", sa.Boolean(), nullable=False),  # whether there are no findings
    sa.Column("body", sa.JSON(none_as_null=True)),
    # A hash of what the registry sent: another one means that the unit was changed there.
    sa.Column("digest", sa.String(), nullable=False),
    sa.Column("pulled_at", UtcTime(), nullable=False),
    sa.Column("changed_at", UtcTime()),
    # The last decision, which may be on what the unit was before it changed.
    sa.Column("decided_at", UtcTime()),
    sa.Column("decided_by", sa.String()),
    sa.Index("ix_pulled_units_domain", "domain", "state"),
    sa.Index("ix_pulled_units_digest", "digest"),
    sa.Index("ix_pulled_units_pulled_at", "pulled_at", "trace_id"),
)

# Counts that all processes on the store share. `deletions` says that runs were deleted, so that
# what a process remembers of them is read anew; `pulled`, that units of a registry changed.
counts = sa.Table(
    "counts",
    metadata,
    sa.Column("name", key_text(), primary_key=True),
    sa.Column("number", sa.BigInteger(), nullable=False),
)

# What the gate compares of each run whose body is kept, to keep no repeat of a kept one.
run_entries = sa.Table(
    "run_entries",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("fingerprint", sa.LargeBinary()),
    sa.Column("vector", sa.LargeBinary()),  # float32, little-endian
    # The embedder that the vector comes from; empty if there was none.
    sa.Column("model", sa.String(), nullable=False),
    sa.Column("revision", sa.String(), nullable=False),
    sa.Column("baseline", sa.Double(), nullable=False),
    # How sure the gate is of the run, and whether a verdict states its success.
    sa.Column("confidence", sa.Double(), nullable=False),
    sa.Column("is_stated", sa.Boolean(), nullable=False),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("number", sa.Integer(), primary_key=True),
    sa.Column("trace_id", key_text(), nullable=False),
    sa.Column("at", UtcTime(), nullable=False),
    sa.Column("success", sa.Boolean()),
    sa.Column("confidence", sa.Double()),
    sa.Column("note", sa.String()),
    sa.Column("source", sa.String(), nullable=False),
    sa.Column("by_model", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Index("ix_verdicts_trace_id", "trace_id", "at", "number"),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("domain", sa.String(), primary_key=True),
    sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
    sa.Column("active", sa.Boolean(), nullable=False),
    sa.Column("installed_at", UtcTime(), nullable=False),
    sa.Column("body", sa.JSON(), nullable=False),
)

# What is still to be done: `judge` a run, by its trace id. A process leases what it does; when it
# ends first, its leases expire, and another process does it.
jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("kind", sa.String(), primary_key=True),
    sa.Column("key", key_text(), primary_key=True),
    sa.Column("due_at", sa.Double(), nullable=False),  # seconds since 1970, as all of `jobs`
    sa.Column("attempts", sa.Integer(), nullable=False),
    sa.Column("lease_until", sa.Double(), nullable=False),
    sa.Column("owner", sa.String(), nullable=False),
    sa.Column("body", _json()),
    sa.Index("ix_jobs_due_at", "kind", "due_at"),
)

# What runs recorded before they paused for a human, redacted, until they are resumed or expire.
paused_runs = sa.Table(
    "paused_runs",
    metadata,
    sa.Column("place", key_text(), primary_key=True),  # a hash of thread, domain and agent
    sa.Column("half_id", key_text(), nullable=False),
    sa.Column("checkpoint_id", key_text()),
    sa.Column("paused_at", UtcTime(), nullable=False),
    sa.Column("expires_at", UtcTime(), nullable=False),
    sa.Column("body", sa.JSON(), nullable=False),
    # By which it is selected; as in `runs`.
    sa.Column("run_id", key_text(), nullable=False),
    sa.Column("created_at", UtcTime(), nullable=False),
    sa.Column("domain", sa.String(), nullable=False),  # empty if the run does not name one itself
    sa.Column("session", sa.String()),
    sa.Column("thread", sa.String()),
    sa.Column("user_hash", sa.String()),
    sa.Column("run_name", sa.String()),
    sa.Column("namespace", sa.String()),
    sa.Column("tags", _json()),
    sa.Index("ix_paused_runs_expires_at", "expires_at"),
    sa.Index("ix_paused_runs_paused_at", "paused_at"),
)

# The traces that novelty is measured against, the newest with the highest number.
remembered = sa.Table(
    "remembered",
    metadata,
    sa.Column("number", sa.Integer(), primary_key=True),
    sa.Column("trace_id", key_text(), nullable=False),
    sa.Column("scope", key_text(), nullable=False),  # a domain, or empty for all domains
    # The embedder that the vector comes from; empty if there was none.
    sa.Column("model", key_text(), nullable=False),
    sa.Column("revision", key_text(), nullable=False),
    sa.Column("baseline", sa.Double(), nullable=False),
    sa.Column("fingerprint", sa.LargeBinary()),
    sa.Column("vector", sa.LargeBinary()),  # float32, little-endian
    sa.Column("at", UtcTime(), nullable=False),
    sa.Column("domain", sa.String(), nullable=False),
    sa.Index(
        "ix_remembered_trace_id",
        "trace_id", "scope", "model", "revision", "baseline",
        unique=True,
    ),
    sa.Index("ix_remembered_scope", "scope", "number"),
    sa.Index("ix_remembered_model", "scope", "model", "revision", "baseline", "number"),
    # Otherwise SQLite would give the number of the newest row again once that row is deleted.
    sqlite_autoincrement=True,
)  # fmt: skip

outbox = sa.Table(
    "outbox",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("registry", sa.String(), nullable=False),
    sa.Column("state", sa.String(), nullable=False),
    # The exact text to send, because the idempotency key is its hash. Deleted once it was sent.
    sa.Column("body", sa.Text()),
    sa.Column("queued_at", UtcTime(), nullable=False),
    sa.Column("changed_at", UtcTime(), nullable=False),
    sa.Column("due_at", UtcTime(), nullable=False),
    sa.Column("attempts", sa.Integer(), nullable=False),
    sa.Column("first_attempt_at", UtcTime()),
    sa.Column("registry_id", sa.String()),
    sa.Column("reason", sa.String()),
    sa.Column("issues", sa.JSON(none_as_null=True)),
    # Verdicts set and clear it, and a withdrawal by hand clears it. The sender never writes it.
    sa.Column("withdraw_asked", sa.Boolean(), nullable=False, server_default=sa.false()),
    sa.Index("ix_outbox_due", "state", "registry", "due_at", "trace_id"),
    sa.Index("ix_outbox_queued_at", "queued_at", "trace_id"),
)

registries = sa.Table(
    "registries",
    metadata,
    sa.Column("registry", sa.String(), primary_key=True),
    sa.Column("key_id", sa.String(), primary_key=True),
    sa.Column("quiet_until", UtcTime()),
    sa.Column("quiet_s", sa.Double(), nullable=False),
    sa.Column("quiet_reason", sa.String()),
    sa.Column("stopped", sa.Boolean(), nullable=False),
    sa.Column("failures", sa.Integer(), nullable=False),
    sa.Column("remaining", sa.Integer()),
    sa.Column("window_limit", sa.Integer()),
    sa.Column("window_ends_at", UtcTime()),
    sa.Column("throttled_at", sa.JSON(), nullable=False),
)
