"""Where the novelty of each run came from, beside its figures."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_PAGE_SIZE = 1000
_NAME_CHARS = 500


def upgrade() -> None:
    op.add_column("run_summaries", sa.Column("novelty_source", sa.String()))
    connection = op.get_bind()
    runs = sa.table("runs", sa.column("trace_id"), sa.column("breakdown"))
    summaries = sa.table("run_summaries", sa.column("trace_id"), sa.column("novelty_source"))
    # As bytes where the engine has them, because a damaged text must not end the migration.
    to_bytes = sa.LargeBinary() if connection.dialect.name == "sqlite" else sa.Text()
    select = sa.select(runs.c.trace_id, sa.cast(runs.c.breakdown, to_bytes))
    select = select.order_by(runs.c.trace_id).limit(_PAGE_SIZE)
    update = sa.update(summaries).where(summaries.c.trace_id == sa.bindparam("of"))
    update = update.values(novelty_source=sa.bindparam("source"))
    last = ""
    while rows := connection.execute(select.where(runs.c.trace_id > last)).all():
        connection.execute(update, [{"of": key, "source": _source(text)} for key, text in rows])
        last = rows[-1][0]


def _source(breakdown: Any) -> str | None:
    try:
        source: str = json.loads(breakdown)["novelty_source"]
        source.encode()  # no engine takes a lone surrogate
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return source[:_NAME_CHARS].replace("\0", "")
