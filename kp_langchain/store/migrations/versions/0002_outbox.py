"""The outbox, and the rate-limit state of each registry."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# Written out rather than taken from tables.py: a migration must not change when the tables do.


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    time = sa.DateTime(timezone=True)
    op.create_table(
        "outbox",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("registry", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("body", sa.Text()),
        sa.Column("queued_at", time, nullable=False),
        sa.Column("changed_at", time, nullable=False),
        sa.Column("due_at", time, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("first_attempt_at", time),
        sa.Column("registry_id", sa.String()),
        sa.Column("reason", sa.String()),
        sa.Column("issues", sa.JSON()),
    )
    op.create_index("ix_outbox_due", "outbox", ["state", "registry", "due_at", "trace_id"])
    op.create_index("ix_outbox_queued_at", "outbox", ["queued_at", "trace_id"])
    op.create_table(
        "registries",
        sa.Column("registry", sa.String(), primary_key=True),
        sa.Column("key_id", sa.String(), primary_key=True),
        sa.Column("quiet_until", time),
        sa.Column("quiet_s", sa.Double(), nullable=False),
        sa.Column("quiet_reason", sa.String()),
        sa.Column("stopped", sa.Boolean(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("remaining", sa.Integer()),
        sa.Column("window_limit", sa.Integer()),
        sa.Column("window_ends_at", time),
        sa.Column("throttled_at", sa.JSON(), nullable=False),
    )
