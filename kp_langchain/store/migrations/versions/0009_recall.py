"""Recall of kept traces: tasks, what was shown to which run, units of a registry, namespaces."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    op.add_column("runs", sa.Column("namespace", key))
    op.create_table(
        "recall_entries",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("model", key, primary_key=True),
        sa.Column("revision", key, primary_key=True),
        sa.Column("vector", sa.LargeBinary()),
        sa.Column("plan", sa.JSON()),
        sa.Column("planted", sa.String()),
        sa.Column("scan_version", sa.Integer(), nullable=False),
    )
    op.create_table(
        "shown_traces",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("shown_id", key, primary_key=True),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("similarity", sa.Double(), nullable=False),
        sa.Column("held_out", sa.Boolean(), nullable=False),
    )
    op.create_index("ix_shown_traces_shown_id", "shown_traces", ["shown_id"])
    time = sa.DateTime(timezone=True)
    op.create_table(
        "pulled_units",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("registry", sa.String(), nullable=False),
        sa.Column("domain", sa.String(), nullable=False),
        sa.Column("objective", sa.String(), nullable=False),
        sa.Column("quality_score", sa.Double(), nullable=False),
        sa.Column("success", sa.Boolean(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("is_clean", sa.Boolean(), nullable=False),
        sa.Column("body", sa.JSON()),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("pulled_at", time, nullable=False),
        sa.Column("changed_at", time),
        sa.Column("decided_at", time),
        sa.Column("decided_by", sa.String()),
    )
    op.create_index("ix_pulled_units_domain", "pulled_units", ["domain", "state"])
    op.create_index("ix_pulled_units_digest", "pulled_units", ["digest"])
    op.create_index("ix_pulled_units_pulled_at", "pulled_units", ["pulled_at", "trace_id"])
