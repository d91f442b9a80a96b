"""The traces that novelty is measured against, and what a gate by worth writes of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# Written out rather than taken from tables.py: a migration must not change when the tables do.


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    for column in (
        sa.Column("gate", sa.String()),
        sa.Column("worth", sa.Double()),
        sa.Column("gated_value", sa.Double()),
        sa.Column("passed", sa.Boolean()),
        sa.Column("pass_rate", sa.Double()),
        sa.Column("twin_of", key),
        sa.Column("replaced_by", key),
        sa.Column("twin_similarity", sa.Double()),
        sa.Column("similarity_to_twin", sa.Double()),
        sa.Column("kept_change", sa.BigInteger()),
    ):
        op.add_column("runs", column)
    is_set = sa.text("kept_change IS NOT NULL")
    op.create_index(
        "ix_runs_kept_change",
        "runs",
        ["domain", "kept_change"],
        sqlite_where=is_set,
        postgresql_where=is_set,
    )
    op.create_table(
        "run_entries",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("fingerprint", sa.LargeBinary()),
        sa.Column("vector", sa.LargeBinary()),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("revision", sa.String(), nullable=False),
        sa.Column("baseline", sa.Double(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=False),
        sa.Column("is_stated", sa.Boolean(), nullable=False),
    )
    op.create_table(
        "remembered",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("trace_id", key, nullable=False),
        sa.Column("scope", key, nullable=False),
        sa.Column("model", key, nullable=False),
        sa.Column("revision", key, nullable=False),
        sa.Column("baseline", sa.Double(), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary()),
        sa.Column("vector", sa.LargeBinary()),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("domain", sa.String(), nullable=False),
        sqlite_autoincrement=True,
    )
    identity = ["scope", "model", "revision", "baseline"]
    op.create_index("ix_remembered_trace_id", "remembered", ["trace_id", *identity], unique=True)
    op.create_index("ix_remembered_scope", "remembered", ["scope", "number"])
    op.create_index("ix_remembered_model", "remembered", [*identity, "number"])
