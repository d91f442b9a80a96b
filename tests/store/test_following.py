"""A follower of `vectors` sees every change, in whatever order transactions begin and commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import pytest
import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.store import sql
from kp_langchain.store.vectors import Follower, Page
from tests.store.conftest import _scored, execute, with_vector

# Each of three transactions appears twice: where it writes for the first time, and where it ends.
ORDERS = sorted(set(permutations("aabbcc")))


class Reader:
    """What one process has seen of the rows of a scope."""

    def __init__(self, store: TraceStore, scope: str) -> None:
        self.seen: set[str] = set()
        self.pages: list[Page[Any]] = []

        def read(connection: sa.Connection, since: int | None) -> Iterator[Sequence[Any]]:
            memory = sql.vector_queries.Space("memory", scope)
            return sql.vector_queries.memory_rows(
                connection, memory, since=since, newest=100, oldest=None
            )

        self.follower = Follower(store.database, read)

    def look(self) -> set[str]:
        self.pages.clear()
        self.follower.read(self.take)
        return self.seen

    def take(self, page: Page[Any]) -> None:
        self.pages.append(page)
        self.seen |= {row.trace_id for row in page.rows}


def insert(connection: sa.Connection, scope: str, trace_id: str) -> None:
    row = {
        "kind": "memory", "scope": scope, "trace_id": trace_id, "model": "", "revision": "",
        "baseline": 0.0, "fingerprint": trace_id.encode(), "at": datetime.now(UTC),
    }  # fmt: skip
    sql.vector_queries.write(connection, [row])


def test_no_order_of_concurrent_commits_hides_a_row(new_postgres_url):
    """Numbers of a sequence would: one that is higher may be seen before one that is lower."""
    with TraceStore(new_postgres_url()) as store:
        engine = store.database.open()
        assert len(ORDERS) == 90
        for order in ORDERS:
            scope = "".join(order)
            reader, committed = Reader(store, scope), set()
            with ExitStack() as open_ones:
                under_way: dict[str, tuple[ExitStack, sa.Connection]] = {}
                for name in order:
                    if name not in under_way:
                        transaction = open_ones.enter_context(ExitStack())
                        connection = transaction.enter_context(
                            sql.connections.write_transaction(engine)
                        )
                        insert(connection, scope, f"first of {name}")
                        under_way[name] = transaction, connection
                    else:
                        transaction, connection = under_way[name]
                        insert(connection, scope, f"second of {name}")
                        transaction.close()
                        committed |= {f"first of {name}", f"second of {name}"}
                    assert reader.look() == committed, order
            assert len(committed) == 6
            assert Reader(store, scope).look() == committed


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_of_writers_that_take_turns_none_hides_a_row(store, url):
    for order in ORDERS:
        scope = "".join(order)
        reader = Reader(store, scope)
        with TraceStore(url) as b, TraceStore(url) as c:
            writers = {"a": store, "b": b, "c": c}
            for number, name in enumerate(order):
                with writers[name].database.writing() as connection:
                    insert(connection, scope, str(number))
                assert reader.look() == set(map(str, range(number + 1)))


def test_what_is_undone_or_deleted_hides_nothing(store):
    reader = Reader(store, "s")

    def fail() -> None:
        with store.database.writing() as connection:
            insert(connection, "s", "undone")
            raise ZeroDivisionError

    for number in range(4):
        with store.database.writing() as connection:
            insert(connection, "s", str(number))
        with pytest.raises(ZeroDivisionError):
            fail()
        assert reader.look() == set(map(str, range(number + 1)))
        execute(store, "DELETE FROM vectors")  # the newest row, too


def test_only_what_changed_is_read_again_and_all_after_a_deletion(store):
    reader = Reader(store, "s")
    for trace_id in "ab":
        with store.database.writing() as connection:
            insert(connection, "s", trace_id)
        reader.look()
    assert [row.trace_id for page in reader.pages for row in page.rows] == ["b"]
    assert not any(page.is_anew for page in reader.pages)
    reader.look()
    reader.look()
    assert reader.pages == []
    store.add(gone := with_vector(_scored(), (1.0, 0.0)))
    store.delete(gone.trace.id)
    reader.look()
    (page,) = reader.pages
    assert page.is_anew
    assert [row.trace_id for row in page.rows] == ["a", "b"]
