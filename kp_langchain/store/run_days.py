"""`RunDays`: the figures of all runs, kept by domain and day.

A transaction that changes runs says of which days they are, in a row of its own, so that no writer
waits for another. Whoever asks for figures counts those days anew, and keeps the result.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.errors import StoreError
from kp_langchain.store.database import StorePart
from kp_langchain.store.rows import clean_name
from kp_langchain.store.run_queries import FIGURES, lock_names, oldest_first
from kp_langchain.store.selection import Conditions, beyond
from kp_langchain.store.tables import (
    batches,
    changed_days,
    execute_rows,
    insert_into,
    insert_or_replace,
    run_days,
    runs,
)
from kp_langchain.store.vectors import this_change

if TYPE_CHECKING:
    from kp_langchain.store.run_figures import Figures

_PAGE_SIZE = 20_000  # of rows of some hundred bytes
_c, _changed, _kept = runs.c, changed_days.c, run_days.c


class Day(NamedTuple):
    """A day of a domain.

    Attributes:
        domain: The domain.
        day: The day in UTC, as in 2026-02-28.
    """

    domain: str
    day: str

    @classmethod
    def of(cls, domain: str, created_at: datetime) -> Day:
        """Return the day of a run."""
        return cls(clean_name(domain), created_at.astimezone(UTC).date().isoformat())

    def conditions(self) -> Conditions:
        """Return the conditions on its runs."""
        start = datetime.fromisoformat(self.day).replace(tzinfo=UTC)
        end = start + timedelta(days=1, microseconds=-1)
        is_in = sa.and_(_c.created_at >= start, _c.created_at <= end)
        return [_c.domain == self.domain, is_in, _c.state == "judged"]


class RunDays(StorePart):
    """The figures of all runs, by domain. Got from `TraceStore.days`."""

    def figures(self, domain: str | None = None) -> dict[str, Figures]:
        """Return the figures of all runs by domain; those of days that changed are counted anew.

        Where the database cannot be written, they are counted anew the next time, too.

        Args:
            domain: Only this domain (exact name).

        Raises:
            StoreError: The database cannot be read.
        """
        of_domain = [] if domain is None else [_changed.domain == clean_name(domain)]
        changed = sa.select(_changed.domain, _changed.day).where(*of_domain).distinct()
        with self._database.reading() as connection:
            days = [Day(*row) for row in connection.execute(changed)]
        counted = {day: self._count_anew(day) for day in days}
        kept = sa.select(_kept.domain, _kept.day, _kept.figures)
        if domain is not None:
            kept = kept.where(_kept.domain == clean_name(domain))
        with self._database.reading() as connection:
            for row in connection.execute(kept):
                counted.setdefault(Day(*row[:2]), json.loads(zlib.decompress(row[2])))
        from kp_langchain.store.run_figures import add_figures  # loads NumPy

        sums: dict[str, Figures] = {}
        for day in sorted(counted, key=lambda one: one.day):
            if figures := counted[day]:
                sums[day.domain] = add_figures(sums.get(day.domain, {}), figures)
        return sums

    def _count_anew(self, day: Day) -> Figures:
        """Return the figures of a day, and keep them; empty if it has no runs any more."""
        try:
            with self._database.writing() as connection:
                # Else an older count might take the place of a newer one.
                lock_names(connection, [f"{day.day} {day.domain}"])
                of_day = sa.and_(_changed.domain == day.domain, _changed.day == day.day)
                connection.execute(sa.delete(changed_days).where(of_day))
                figures = count_runs(connection, day.conditions()).get(day.domain, {})
                row = {"domain": day.domain, "day": day.day}
                if figures:
                    text = zlib.compress(json.dumps(figures).encode())
                    insert = insert_or_replace(run_days, connection.dialect.name)
                    execute_rows(connection, insert, [row | {"figures": text}])
                else:
                    of_day = sa.and_(_kept.domain == day.domain, _kept.day == day.day)
                    connection.execute(sa.delete(run_days).where(of_day))
                return figures
        except StoreError:
            with self._database.reading() as connection:
                return count_runs(connection, day.conditions()).get(day.domain, {})


def count_runs(connection: sa.Connection, conditions: Conditions) -> dict[str, Figures]:
    """Return the figures of runs by domain.

    Args:
        connection: A connection to read with.
        conditions: Which runs.
    """
    from kp_langchain.store.run_figures import add_figures, figures_by_domain  # load NumPy

    sums: dict[str, Figures] = {}
    for rows in _pages(connection, conditions):
        columns = {
            column.name: values
            for column, values in zip(FIGURES, zip(*rows, strict=True), strict=False)
        }
        for domain, figures in figures_by_domain(columns).items():
            sums[domain] = add_figures(sums.get(domain, {}), figures)
    return sums


def _pages(connection: sa.Connection, conditions: Conditions) -> Iterator[list[Any]]:
    """Yield the rows of runs, the oldest first, so many at once that a statement ends in time."""
    select = sa.select(*FIGURES, _c.created_at).where(*conditions).order_by(*oldest_first)
    page = select = select.limit(_PAGE_SIZE)
    while rows := connection.execute(page).all():
        yield list(rows)
        last = rows[-1]
        page = select.where(beyond(last.created_at, last.trace_id, newest_first=False))


# ------------------------------------------------------------------ within a transaction


def note_days(connection: sa.Connection, days: Iterable[Day]) -> None:
    """Note that runs of some days are new or changed, within the transaction that changes them."""
    rows = [one._asdict() for one in set(days)]
    execute_rows(connection, _insert(connection.dialect.name), rows)


def merge_changes(connection: sa.Connection) -> None:
    """Have one row take the place of those that many transactions noted of a day."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(_MERGE)


# Without waiting for another process that does the same; so many that it takes a moment.
_MERGE = """
    WITH picked AS (
        SELECT ctid FROM changed_days LIMIT 20000 FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM changed_days WHERE ctid IN (SELECT ctid FROM picked) RETURNING domain, day
    )
    INSERT INTO changed_days (domain, day, change)
    SELECT DISTINCT domain, day, pg_current_xact_id()::text::bigint FROM gone
    ON CONFLICT DO NOTHING
"""


@cache
def _insert(dialect: str) -> Any:
    # SQLite has one writer at a time, which one row is enough for.
    change = this_change(dialect) if dialect == "postgresql" else sa.literal_column("0")
    insert = insert_into(changed_days, dialect).values(change=change)
    return insert.on_conflict_do_nothing(index_elements=list(changed_days.primary_key))


def note_days_of(connection: sa.Connection, trace_ids: Collection[str]) -> None:
    """Note that runs are changed or to be deleted, within the transaction that does it."""
    for batch in batches(trace_ids):
        select = sa.select(_c.domain, _c.created_at).where(_c.trace_id.in_(batch))
        note_days(connection, [Day.of(*row) for row in connection.execute(select)])
