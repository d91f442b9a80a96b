"""The tables as the newest migration leaves them. Loads SQLAlchemy."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

SCHEMA_VERSION = "0010"
"""Revision of the newest migration in `migrations/versions`. Later revisions sort later as text."""

VERSION_TABLE = "kp_alembic_version"
"""Not Alembic's default name, which the host application's own migrations may use."""


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


metadata = sa.MetaData()

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("run_id", key_text(), nullable=False),
    sa.Column("created_at", UtcTime(), nullable=False),
    sa.Column("domain", sa.String(), nullable=False),
    sa.Column("framework", sa.String()),
    sa.Column("agent_id", sa.String()),
    sa.Column("objective", sa.String(), nullable=False),
    sa.Column("success", sa.Boolean(), nullable=False),
    sa.Column("confidence", sa.Double(), nullable=False),
    sa.Column("confidence_source", sa.String()),
    sa.Column("n_steps", sa.Integer(), nullable=False),
    sa.Column("score", sa.Double(), nullable=False),
    sa.Column("threshold", sa.Double(), nullable=False),
    sa.Column("decision", sa.String(), nullable=False),
    sa.Column("profile", sa.String(), nullable=False),
    sa.Column("visibility", sa.String(), nullable=False),
    sa.Column("privacy_level", sa.String(), nullable=False),
    sa.Column("breakdown", sa.JSON(), nullable=False),
    sa.Column("body", sa.JSON(none_as_null=True)),
    # When the body of a run that did not pass expires, and after how many days; null for never.
    sa.Column("body_expires_at", UtcTime()),
    sa.Column("keep_days", sa.Double()),
    sa.Column("task", sa.String()),
    sa.Column("features", sa.JSON(none_as_null=True)),
    sa.Column("withheld", sa.String()),
    # The keys of the run, in plain text or hashed.
    sa.Column("session", key_text()),
    sa.Column("thread", key_text()),
    sa.Column("user_hash", key_text()),
    sa.Column("run_name", key_text()),
    sa.Column("tags", sa.JSON(none_as_null=True)),
    # What the threshold was compared with, `score` or `worth`; null for `score`.
    sa.Column("gate", sa.String()),
    sa.Column("worth", sa.Double()),
    # What the gate saw of the run and decided when it was scored; a verdict does not change that.
    sa.Column("gated_value", sa.Double()),
    sa.Column("passed", sa.Boolean()),
    sa.Column("pass_rate", sa.Double()),
    # Traces: the kept one that this one repeats, and the kept one that took this one's place.
    sa.Column("twin_of", key_text()),
    sa.Column("replaced_by", key_text()),
    # From which similarity it repeats a kept one, null for the rule being off; and how similar it
    # is to the one that it repeats.
    sa.Column("twin_similarity", sa.Double()),
    sa.Column("similarity_to_twin", sa.Double()),
    # The number of the last change to what is kept in the domain that this run was part of; null if
    # it was never kept. Later changes in a domain have higher numbers.
    sa.Column("kept_change", sa.BigInteger()),
    sa.Column("namespace", key_text()),
    sa.Index("ix_runs_run_id", "run_id"),
    sa.Index("ix_runs_created_at", "created_at", "trace_id"),
    sa.Index("ix_runs_domain", "domain", "created_at", "trace_id"),
    sa.Index("ix_runs_score", "score"),
    sa.Index("ix_runs_body_expires_at", "body_expires_at"),
    sa.Index("ix_runs_session", "session", "created_at", "trace_id"),
    sa.Index("ix_runs_thread", "thread", "created_at", "trace_id"),
    sa.Index("ix_runs_user_hash", "user_hash", "created_at", "trace_id"),
    sa.Index("ix_runs_run_name", "run_name", "created_at", "trace_id"),
    sa.Index(
        "ix_runs_kept_change",
        "domain", "kept_change",
        sqlite_where=sa.text("kept_change IS NOT NULL"),
        postgresql_where=sa.text("kept_change IS NOT NULL"),
    ),
)  # fmt: skip

# The tags of `runs`, one for each row, so that an index finds them.
run_tags = sa.Table(
    "run_tags",
    metadata,
    sa.Column("tag", key_text(), primary_key=True),
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Index("ix_run_tags_trace_id", "trace_id"),
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

# What runs are listed, searched and counted by. It repeats columns of `runs`, because that table
# has the bodies: reading a column of each of its rows means reading most of the file.
run_summaries = sa.Table(
    "run_summaries",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("created_at", UtcTime(), nullable=False),
    sa.Column("domain", sa.String(), nullable=False),
    sa.Column("decision", sa.String(), nullable=False),
    sa.Column("gate", sa.String(), nullable=False),
    sa.Column("score", sa.Double(), nullable=False),
    sa.Column("worth", sa.Double()),
    sa.Column("threshold", sa.Double(), nullable=False),
    sa.Column("success", sa.Boolean(), nullable=False),
    sa.Column("novelty", sa.Double(), nullable=False),
    sa.Column("recovered_errors", sa.Integer(), nullable=False),
    # Whether it repeats a kept run, or a run that repeats it took its place.
    sa.Column("is_near_duplicate", sa.Boolean(), nullable=False),
    sa.Column("is_withheld", sa.Boolean(), nullable=False),
    # By the name of each dimension, its value and weight; by that of each rule, what it added.
    sa.Column("dimensions", sa.JSON(), nullable=False),
    sa.Column("rules", sa.JSON(), nullable=False),
    # By name or kind, as counts; null for runs of versions that did not count them.
    sa.Column("tools", sa.JSON(none_as_null=True)),
    sa.Column("redactions", sa.JSON(none_as_null=True)),
    sa.Column("dropped", sa.JSON(none_as_null=True)),
    # The beginning of the objective, case folded.
    sa.Column("search_text", sa.String(), nullable=False),
    sa.Column("novelty_source", sa.String()),
    sa.Index("ix_run_summaries_created_at", "created_at", "trace_id"),
    sa.Index("ix_run_summaries_domain", "domain", "created_at", "trace_id"),
    sa.Index("ix_run_summaries_score", "score", "created_at", "trace_id"),
    sa.Index("ix_run_summaries_novelty", "novelty", "created_at", "trace_id"),
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

# Finished runs that wait for their score, each with the process that will score it.
unscored = sa.Table(
    "unscored",
    metadata,
    sa.Column("trace_id", key_text(), primary_key=True),
    sa.Column("run_id", key_text(), nullable=False),
    sa.Column("queued_at", UtcTime(), nullable=False),
    sa.Column("owner", sa.String(), nullable=False),
    sa.Column("body", sa.JSON(), nullable=False),
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
