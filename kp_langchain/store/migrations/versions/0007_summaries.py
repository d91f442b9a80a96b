"""What runs are listed, searched and counted by, and counts that all processes share."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

# Written out rather than taken from other modules: a migration must not change when they do.

_PAGE_SIZE = 200
_SEARCH_CHARS = 1000
_NAME_CHARS, _MOST_TOOLS = 500, 100
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_DIMENSIONS = ("complexity", "novelty", "tool_diversity", "outcome_confidence")
_PLACEHOLDER = re.compile(r"\[REDACTED:([a-z0-9_]{1,40})(?:#[a-z0-9]{1,16}){0,2}\]")
_RUN_COLUMNS = (
    "trace_id", "created_at", "domain", "decision", "gate", "score", "worth", "threshold",
    "success", "withheld", "twin_of", "replaced_by", "objective",
)  # fmt: skip
_REPEATED_COLUMNS = _RUN_COLUMNS[:9]
_TEXTS = ("objective", "breakdown", "body")
_DERIVED = (
    "novelty", "recovered_errors", "is_near_duplicate", "is_withheld", "dimensions", "rules",
    "tools", "redactions", "search_text",
)  # fmt: skip


def upgrade() -> None:
    key = sa.String().with_variant(sa.String(collation="C"), "postgresql")
    runs = sa.table("runs", *map(sa.column, (*_RUN_COLUMNS, "breakdown", "body")))
    summaries = op.create_table(
        "run_summaries",
        sa.Column("trace_id", key, primary_key=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("domain", sa.String(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("gate", sa.String(), nullable=False),
        sa.Column("score", sa.Double(), nullable=False),
        sa.Column("worth", sa.Double()),
        sa.Column("threshold", sa.Double(), nullable=False),
        sa.Column("success", sa.Boolean(), nullable=False),
        sa.Column("novelty", sa.Double(), nullable=False),
        sa.Column("recovered_errors", sa.Integer(), nullable=False),
        sa.Column("is_near_duplicate", sa.Boolean(), nullable=False),
        sa.Column("is_withheld", sa.Boolean(), nullable=False),
        sa.Column("dimensions", sa.JSON(), nullable=False),
        sa.Column("rules", sa.JSON(), nullable=False),
        sa.Column("tools", sa.JSON(none_as_null=True)),
        sa.Column("redactions", sa.JSON(none_as_null=True)),
        sa.Column("dropped", sa.JSON(none_as_null=True)),
        sa.Column("search_text", sa.String(), nullable=False),
    )
    op.create_table(
        "counts",
        sa.Column("name", key, primary_key=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
    )
    connection = op.get_bind()
    columns = [runs.c[name] for name in _RUN_COLUMNS if name not in _TEXTS]
    # As bytes where the engine has them, because a damaged text must not end the migration.
    to_bytes = sa.LargeBinary() if connection.dialect.name == "sqlite" else sa.Text()
    texts = [sa.cast(runs.c[name], to_bytes).label(name) for name in _TEXTS]
    select = sa.select(*columns, *texts).order_by(runs.c.trace_id).limit(_PAGE_SIZE)
    last = ""
    while rows := connection.execute(select.where(runs.c.trace_id > last)).mappings().all():
        # SQLite's times pass through as the text that they are stored as.
        connection.execute(_insert(), [_summary(row) for row in rows])
        last = rows[-1]["trace_id"]
    by_time = ["created_at", "trace_id"]
    for name, columns_of_index in (
        ("created_at", by_time),
        ("domain", ["domain", *by_time]),
        ("score", ["score", *by_time]),
        ("novelty", ["novelty", *by_time]),
    ):
        op.create_index(f"ix_{summaries.name}_{name}", summaries.name, columns_of_index)


def _insert() -> sa.Insert:
    names = [*_REPEATED_COLUMNS, *_DERIVED]
    json_type = sa.JSON(none_as_null=True)
    types = dict.fromkeys(("dimensions", "rules", "tools", "redactions"), json_type)
    table = sa.table(
        "run_summaries", *(sa.column(name, types.get(name, sa.types.NULLTYPE)) for name in names)
    )
    return sa.insert(table)


def _summary(row: Mapping[Any, Any]) -> dict[str, Any]:
    breakdown, body = _object(_text(row["breakdown"])), _text(row["body"])
    trace = None if body is None else _object(body)
    steps = [step for step in _list(trace, "steps") if isinstance(step, dict)]
    parts = {name: breakdown.get(name) for name in _DIMENSIONS}
    dimensions = {
        name: [_number(part.get("value")), _number(part.get("weight"))]
        for name, part in parts.items()
        if isinstance(part, dict)
    }
    return {name: row[name] for name in _REPEATED_COLUMNS} | {
        "gate": row["gate"] or "score",
        "novelty": dimensions.get("novelty", [0.0])[0],
        "recovered_errors": sum(step.get("type") == "error_recovery" for step in steps),
        "is_near_duplicate": row["twin_of"] is not None or row["replaced_by"] is not None,
        "is_withheld": row["withheld"] is not None,
        "dimensions": dimensions,
        "rules": {
            str(_text(rule["name"])): _number(rule.get("after")) - _number(rule.get("before"))
            for rule in _list(breakdown, "rules")
            if isinstance(rule, dict) and "name" in rule
        },
        "tools": None if trace is None else _tools(steps),
        "redactions": None if trace is None else dict(Counter(_PLACEHOLDER.findall(body or ""))),
        "search_text": " ".join((_text(row["objective"]) or "").casefold().split())[:_SEARCH_CHARS],
    }


def _text(value: Any) -> str | None:
    """Return what a column holds as text that every engine takes."""
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return _UNSTORABLE.sub("\ufffd", str(value))


def _object(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _list(value: dict[str, Any] | None, name: str) -> list[Any]:
    items = (value or {}).get(name)
    return items if isinstance(items, list) else []


def _tools(steps: list[dict[str, Any]]) -> list[str]:
    names = filter(None, map(_tool, steps))
    return list(dict.fromkeys(names))[:_MOST_TOOLS]


def _tool(step: dict[str, Any]) -> str | None:
    tool = step.get("tool")
    name = tool.get("name") if isinstance(tool, dict) else None
    return _text(name[:_NAME_CHARS]) if isinstance(name, str) else None


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, int | float) else 0.0
    except OverflowError:
        return 0.0
    return number if math.isfinite(number) else 0.0
