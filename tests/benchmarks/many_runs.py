"""What is asked of a PostgreSQL store with millions of runs.

    python -m tests.benchmarks.many_runs [--runs 10000000] [--url URL]

Some hundred runs are copied until there are so many, of five domains, over a hundred days, a tenth
of them kept. That takes half an hour for ten million, and 15 GB; with `--url`, a database that was
filled before is asked.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.report.collect import collect
from kp_langchain.store.tables import runs
from tests.benchmarks.harness import machine, median_ms, parser, table
from tests.benchmarks.store import fill, made_runs

_TEMPLATES, _DOMAINS, _DAYS = 200, 5, 100
_AT_ONCE = 250_000
_DELETED_DAYS = 0.3


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
        FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS number
        JOIN (SELECT row_number() OVER () - 1 AS place, * FROM templates) AS template
          ON template.place = number % {_TEMPLATES}
    """  # noqa: S608 - names of our own columns


def fill_many(url: str, count: int) -> None:
    """Fill an empty database with so many runs, and with the scores of those that are shown."""
    with TraceStore(url) as store:
        fill(store, made_runs(_TEMPLATES, words=20))
    with _connected(url) as connection:
        connection.execute(sa.text("CREATE TABLE templates AS SELECT * FROM runs"))
        for index in runs.indexes:
            index.drop(connection)
    for first in range(0, count, _AT_ONCE):
        last = min(first + _AT_ONCE, count) - 1
        with _connected(url) as connection:
            connection.execute(sa.text(_copies()), {"first": first, "last": last})
    with _connected(url) as connection:
        connection.execute(sa.text("DROP TABLE templates"))
        for index in runs.indexes:
            index.create(connection)
        connection.execute(sa.text(_SCORES))
        connection.execute(sa.text(_ALL_CHANGED))
    with TraceStore(url) as store:
        store.compact()
    with _connected(url) as connection:
        connection.execute(sa.text("ANALYZE"))


def _connected(url: str) -> Any:
    address = url.replace("postgresql:", "postgresql+psycopg:")
    engine = sa.create_engine(address, poolclass=sa.NullPool)
    return engine.begin()


_SCORES = """
    INSERT INTO scores (trace_id, breakdown)
    SELECT trace_id, (SELECT breakdown FROM scores LIMIT 1) FROM runs
    WHERE score > 0.9985 OR novelty > 0.9985 OR session = 'session 70'
       OR trace_id IN (SELECT trace_id FROM runs ORDER BY created_at DESC LIMIT 100000)
    ON CONFLICT DO NOTHING
"""
_ALL_CHANGED = """
    INSERT INTO changed_days (domain, day, change)
    SELECT DISTINCT domain, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), 1 FROM runs
    ON CONFLICT DO NOTHING
"""
_TODAY_CHANGED = """
    INSERT INTO changed_days (domain, day, change)
    SELECT DISTINCT domain, to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD'), 2 FROM run_days
"""
QUESTIONS: dict[str, dict[str, Any]] = {
    "the newest": {},
    "of a domain": {"domain": "domain-1"},
    "that were kept": {"decision": "kept"},
    "of the last day": {"since": datetime.now(UTC) - timedelta(days=1)},
    "of a session": {"session": "session 70"},
    "that used a tool": {"tool": "shell"},
    "the highest scores": {"sort": "score"},
    "the newest things": {"sort": "novelty"},
}


def ask(url: str) -> None:
    """Ask, and print the tables."""
    with TraceStore(url) as store:
        rows = []
        for name, filters in QUESTIONS.items():
            conditions = {key: one for key, one in filters.items() if key != "sort"}
            page_ms = median_ms(lambda: store.runs(limit=30, **filters))  # noqa: B023
            count_ms = median_ms(lambda: store.count(most=10_001, **conditions))  # noqa: B023
            rows.append((name, f"{page_ms:,.1f}", f"{count_ms:,.1f}"))
        times = [("figures of all days, once", _seconds(store.domain_figures))]
        with _connected(url) as connection:
            connection.execute(sa.text(_TODAY_CHANGED))
        times.append(("figures, today's runs changed", _seconds(store.domain_figures)))
        times.append(("figures, nothing changed", _seconds(store.domain_figures)))
        number = sum(one["runs"] for one in store.domain_figures().values())
        times.append(
            ("the page of the newest 1,000", _seconds(lambda: collect(store, {}, limit=1000)))
        )
        rows_of_deletion = _delete_some(store)
    with _connected(url) as connection:
        sizes = connection.execute(
            sa.text("SELECT pg_table_size('runs') / 1e9, pg_indexes_size('runs') / 1e9")
        ).one()
    print(machine(), end="\n\n")
    print(f"{number:,} runs: {sizes[0]:.1f} GB, and {sizes[1]:.1f} GB of indexes\n")
    print(table("The first page, ms", ("runs", "30 of them", "count up to 10,000"), rows))
    print(table("Deleting the oldest", ("", ""), rows_of_deletion))
    print(table("Statistics, s", ("", "s"), [(name, f"{s:.2f}") for name, s in times]))


def _delete_some(store: TraceStore) -> list[tuple[str, str]]:
    """Delete the oldest runs while others write; return what both took."""
    began, waits_ms = time.perf_counter(), []
    plan = store.deletions.plan(until=datetime.now(UTC) - timedelta(days=_DAYS - _DELETED_DAYS))
    planned_s = time.perf_counter() - began
    runs_to_write = made_runs(100_000, words=20)

    def write(count: int) -> float:
        waits_ms.clear()
        for _ in range(count):
            one = next(runs_to_write)
            waits_ms.append(1e3 * _seconds(lambda: store.add(one)))  # noqa: B023
            time.sleep(0.01)
        return statistics.quantiles(waits_ms, n=100)[98]

    alone_ms = write(300)
    deleting = threading.Thread(target=store.deletions.carry_out, args=(plan,))
    began = time.perf_counter()
    deleting.start()
    beside_ms = write(300)
    deleting.join()
    per_s = len(plan) / (time.perf_counter() - began)
    return [
        ("runs", f"{len(plan):,}"),
        ("planned in, s", f"{planned_s:.1f}"),
        ("deleted a second", f"{per_s:,.0f}"),
        ("p99 of a write before, ms", f"{alone_ms:.0f}"),
        ("p99 of a write meanwhile, ms", f"{beside_ms:.0f}"),
    ]


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main() -> None:
    """Read the command line, fill a database unless one is given, and ask."""
    reading = parser("tests.benchmarks.many_runs", __doc__)
    reading.add_argument("--runs", type=int, default=10_000_000)
    reading.add_argument("--url", help="a database that was filled before")
    options = reading.parse_args()
    with ExitStack() as stack:
        url = options.url
        if url is None:
            from tests.postgres import running_server

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            settings = ("shared_buffers = 2GB", "maintenance_work_mem = 1GB", "max_wal_size = 8GB")
            server = stack.enter_context(running_server(folder / "lock", *settings))
            url = server.get_uri()
            fill_many(url, options.runs)
        ask(url)


if __name__ == "__main__":
    main()
