"""Where other tracers recorded runs, and which verdicts a model gave."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    op.create_table(
        "external_traces",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("tool", key, primary_key=True),
        sa.Column("external_id", key, nullable=False),
        sa.Column("span_id", key),
        sa.Column("project", sa.String()),
        sa.Column("is_part", sa.Boolean(), nullable=False),
    )
    op.create_index("ix_external_traces_external_id", "external_traces", ["tool", "external_id"])
    op.add_column(
        "verdicts",
        sa.Column("by_model", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
