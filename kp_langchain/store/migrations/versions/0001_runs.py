"""The table of scored runs."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Written out rather than taken from tables.py: a migration must not change when the tables do.


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    op.create_table(
        "runs",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("run_id", key, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
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
        sa.Column("body", sa.JSON()),
    )
    op.create_index("ix_runs_run_id", "runs", ["run_id"])
    op.create_index("ix_runs_created_at", "runs", ["created_at", "trace_id"])
    op.create_index("ix_runs_domain", "runs", ["domain", "created_at", "trace_id"])
    op.create_index("ix_runs_score", "runs", ["score"])
