"""Finished runs that wait for their score."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Written out rather than taken from tables.py: a migration must not change when the tables do.


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    op.create_table(
        "unscored",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("run_id", key, nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
    )
