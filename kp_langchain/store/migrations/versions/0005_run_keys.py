"""What runs are found by, and the first halves of runs that wait for a human."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# Written out rather than taken from tables.py: a migration must not change when the tables do.


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    time = sa.DateTime(timezone=True)
    names = ("session", "thread", "user_hash", "run_name")
    for name in names:
        op.add_column("runs", sa.Column(name, key))
    op.add_column("runs", sa.Column("tags", sa.JSON()))
    for name in names:
        op.create_index(f"ix_runs_{name}", "runs", [name, "created_at", "trace_id"])
    op.create_table(
        "run_tags",
        sa.Column("tag", key, primary_key=True),
        sa.Column("trace_id", key, primary_key=True),
    )
    op.create_index("ix_run_tags_trace_id", "run_tags", ["trace_id"])
    op.create_table(
        "paused_runs",
        sa.Column("place", key, primary_key=True),
        sa.Column("half_id", key, nullable=False),
        sa.Column("checkpoint_id", key),
        sa.Column("paused_at", time, nullable=False),
        sa.Column("expires_at", time, nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
    )
    op.create_index("ix_paused_runs_expires_at", "paused_runs", ["expires_at"])
    op.create_index("ix_paused_runs_paused_at", "paused_runs", ["paused_at"])
