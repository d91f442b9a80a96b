"""Removes what a store no longer needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.store import sql
from kp_langchain.store.paused_runs import PausedRuns

if TYPE_CHECKING:
    from kp_langchain.store.database import Database
    from kp_langchain.store.remembered import Remembered


@dataclass(frozen=True, slots=True)
class Pruning:
    """What a store no longer needed, and no longer has.

    Attributes:
        expired_traces: Traces of runs that did not pass, after their `keep_days`.
        expired_pauses: What runs recorded that waited too long for a human.
        contributions: Contributions of deleted runs that no registry has.
        remembered: Traces beyond those that novelty is measured against.
        leftovers: Tags, verdicts and the like of runs that another program deleted, and what recall
            noted of traces that are gone.
    """

    expired_traces: int
    expired_pauses: int
    contributions: int
    remembered: int
    leftovers: int


def prune(database: Database, remembered: Remembered) -> Pruning:
    """Remove what a store no longer needs.

    Args:
        database: The database of the store.
        remembered: The novelty memory, with the bounds that are in force.

    Raises:
        StoreError: The database cannot be read or written.
    """
    expired_traces = _drop_expired_traces(database)
    with database.writing() as connection:
        contributions = sql.outbox_queries.remove_finished_of_deleted(connection)
    with database.writing() as connection:
        leftovers = sql.deletion_queries.delete_leftovers(connection)
    return Pruning(
        expired_traces,
        PausedRuns(database).drop_expired(),
        contributions,
        remembered.prune_all(),
        leftovers,
    )


def _drop_expired_traces(database: Database) -> int:
    number = 0
    while True:
        with database.writing() as connection:
            dropped = sql.run_queries.drop_expired_bodies(connection)
        number += dropped
        if dropped < sql.run_queries.MOST_EXPIRED_AT_ONCE:
            return number
