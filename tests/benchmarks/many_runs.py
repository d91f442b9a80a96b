"""What is asked of a PostgreSQL store with millions of runs.

    python -m tests.benchmarks.many_runs [--runs 10000000] [--url URL]

Some hundred runs are copied until there are so many, of five domains, over a hundred days, a tenth
of them kept. That takes half an hour for ten million, and 15 GB; with `--url`, a database that was
filled before is asked.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.store.tables import metadata, runs
from tests.benchmarks.harness import machine, median_ms, parser, table
from tests.benchmarks.store import fill, made_runs

_TEMPLATES, _DOMAINS, _DAYS = 200, 5, 100
_AT_ONCE = 250_000


def _copies() -> str:
    """Return the statement that copies the templates, with ids, times and scores of their own."""
    others = {
        "trace_id": "'kp:trace:' || gen_random_uuid()",
        "run_id": "gen_random_uuid()::text",
        "created_at": f"now() - random() * interval '{_DAYS} days'",
        "domain": f"'domain-' || (number % {_DOMAINS})",
        "score": "(hashint4(number) & 1023) / 1024.0",
        "novelty": "(hashint4(-number) & 1023) / 1024.0",
        "decision": "CASE WHEN number % 10 = 0 THEN 'kept' ELSE 'below_threshold' END",
        "session": "'session ' || number / 10",
        "task": "'task ' || number % 1000003",
        "has_body": "false",
    }
    columns = [column.name for column in runs.columns]
    values = [others.get(name, f"template.{name}") for name in columns]
    return f"""
        INSERT INTO runs ({", ".join(columns)})
        SELECT {", ".join(values)}
        FROM generate_series(:first, :last) AS number
        JOIN (SELECT row_number() OVER () - 1 AS place, * FROM templates) AS template
          ON template.place = number % {_TEMPLATES}
    """  # noqa: S608 - names of our own columns


def fill_many(url: str, count: int) -> None:
    """Fill an empty database with so many runs."""
    with TraceStore(url) as store:
        fill(store, made_runs(_TEMPLATES, words=20))
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE templates AS SELECT * FROM runs"))
        for index in runs.indexes:
            index.drop(connection)
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count) - 1
        with engine.begin() as connection:
            connection.execute(sa.text(_copies()), {"first": first, "last": last})
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE templates"))
        for index in runs.indexes:
            index.create(connection)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE runs"))
    engine.dispose()
    assert "runs" in metadata.tables


if __name__ == "__main__":
    fill_many(sys.argv[1], int(sys.argv[2]))
