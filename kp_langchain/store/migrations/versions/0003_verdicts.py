"""Verdicts, what a model learns from them, and bodies that are kept for a while."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

# Written out rather than taken from tables.py: a migration must not change when the tables do.


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    time = sa.DateTime(timezone=True)
    for column in (
        sa.Column("body_expires_at", time),
        sa.Column("keep_days", sa.Double()),
        sa.Column("task", sa.String()),
        sa.Column("features", sa.JSON()),
        sa.Column("withheld", sa.String()),
    ):
        op.add_column("runs", column)
    op.create_index("ix_runs_body_expires_at", "runs", ["body_expires_at"])
    # If a contributed run is withdrawn later, its body expires like one that never passed.
    op.execute("UPDATE runs SET keep_days = 7 WHERE decision = 'contributed'")
    op.create_table(
        "verdicts",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("trace_id", key, nullable=False),
        sa.Column("at", time, nullable=False),
        sa.Column("success", sa.Boolean()),
        sa.Column("confidence", sa.Double()),
        sa.Column("note", sa.String()),
        sa.Column("source", sa.String(), nullable=False),
    )
    op.create_index("ix_verdicts_trace_id", "verdicts", ["trace_id", "at", "number"])
    op.create_table(
        "models",
        sa.Column("domain", sa.String(), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("installed_at", time, nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
    )
    op.add_column(
        "outbox",
        sa.Column("withdraw_asked", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
