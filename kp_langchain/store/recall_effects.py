"""`RecallEffects`: how runs ended with examples and without, and what a person decided of that."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from kp_langchain.store.database import StorePart
from kp_langchain.store.rows import clean_name
from kp_langchain.store.side_tables import IS_OUTCOME, IS_STATED
from kp_langchain.store.tables import insert_or_replace, recall_decisions, runs, shown_traces
from kp_langchain.store.verdicts import redact_words

_decisions = recall_decisions.c


class EffectCount(NamedTuple):
    """How many runs with examples, or held out from them, ended in one way, and what they took.

    Attributes:
        held_out: Whether they were held out.
        success: Whether they succeeded.
        is_stated: Whether a verdict says so, and not just the look of the run.
        namespace: Their namespace; None if they have none.
        runs: Their number.
        tokens: The tokens of all of them, and of how many runs that is.
        milliseconds: The time of all of them, and of how many runs that is.
    """

    held_out: bool
    success: bool
    is_stated: bool
    namespace: str | None
    runs: int
    tokens: tuple[float, int] = (0.0, 0)
    milliseconds: tuple[float, int] = (0.0, 0)


@dataclass(frozen=True, slots=True)
class RecallDecision:
    """What a person decided of the examples of a domain.

    Attributes:
        domain: The domain.
        shows: Whether its runs are shown examples.
        at: When that was decided, in UTC.
        counted_from: Only runs that began later count towards what examples do; None for all runs.
        source: Who decided.
        note: Why, in their words; None if they did not say.
    """

    domain: str
    shows: bool
    at: datetime
    counted_from: datetime | None
    source: str
    note: str | None


class RecallEffects(StorePart):
    """What examples do for the runs of each domain. Got from `TraceStore.effects`."""

    def counts(self, domain: str | None = None) -> dict[str, list[EffectCount]]:
        """Return by domain how runs ended with examples and without, as a lot decided.

        A run was shown examples if any of those that were found for it was shown. Of a domain whose
        examples a person resumed, only runs that began since then are counted.

        Args:
            domain: Only this domain; None for all with such runs.
        """
        of_runs = (
            _OF_RUNS if domain is None else _OF_RUNS.where(runs.c.domain == clean_name(domain))
        )
        run = of_runs.subquery().c
        groups = run.domain, run.held_out, run.success, run.is_stated, run.namespace
        sums = [sum_ for one in (run.tokens, run.milliseconds)
                for sum_ in (sa.func.sum(one), sa.func.count(one))]  # fmt: skip
        counts: dict[str, list[EffectCount]] = {}
        with self._database.reading() as connection:
            select = sa.select(*groups, sa.func.count(), *sums).group_by(*groups)
            for name, held_out, success, is_stated, namespace, number, *took in connection.execute(
                select
            ):
                tokens, ms = (took[0] or 0.0, took[1]), (took[2] or 0.0, took[3])
                counts.setdefault(name, []).append(
                    EffectCount(bool(held_out), success, is_stated, namespace, number, tokens, ms)
                )
        return counts

    def decisions(self, domain: str | None = None) -> dict[str, RecallDecision]:
        """Return what persons decided, by domain.

        Args:
            domain: Only of this domain; None for all.
        """
        select = sa.select(recall_decisions).order_by(_decisions.domain)
        if domain is not None:
            select = select.where(_decisions.domain == clean_name(domain))
        with self._database.reading() as connection:
            return {row.domain: RecallDecision(*row) for row in connection.execute(select)}

    def decide(
        self, domain: str, *, shows: bool, source: str = "person", note: str | None = None
    ) -> RecallDecision:
        """Store what a person decides of the examples of a domain, in place of an earlier decision.

        If they are shown again, only runs that begin from now on count towards what they do.

        Args:
            domain: The domain's exact name.
            shows: Whether its runs are to be shown examples.
            source: Who decides; redacted like the source of a verdict.
            note: Why, in their words; redacted like the note of a verdict.

        Returns:
            The decision as it is stored.

        Raises:
            ConfigError: The rules of redaction cannot be read.
        """
        note, source = redact_words(note, source)
        name, now = clean_name(domain), datetime.now(UTC)
        of_domain = sa.select(_decisions.counted_from).where(_decisions.domain == name)
        with self._database.writing() as connection:
            counted_from = now if shows else connection.scalar(of_domain)
            decision = RecallDecision(
                name, shows, now, counted_from, clean_name(source), note and clean_name(note)
            )
            insert = insert_or_replace(recall_decisions, connection.dialect.name)
            connection.execute(insert, [asdict(decision)])
        return decision


def drop_decisions_without_runs(connection: sa.Connection) -> None:
    """Delete decisions to show examples of domains without runs, which say nothing any more.

    That nothing is to be shown stays in force: units of a registry could be shown to later runs.

    Args:
        connection: A write transaction.
    """
    has_runs = sa.exists(sa.select(runs.c.trace_id).where(runs.c.domain == _decisions.domain))
    connection.execute(sa.delete(recall_decisions).where(_decisions.shows, ~has_runs))


def _of_runs() -> sa.Select[Any]:
    """Return the statement for each run for which examples were found: how it ended, what it took.

    `held_out` is 1 if it was shown none of them, and 0 otherwise.
    """
    c = runs.c
    is_counted = sa.or_(_decisions.counted_from.is_(None), c.created_at > _decisions.counted_from)
    is_held_out = sa.case((shown_traces.c.held_out, 1), else_=0)
    return (
        sa.select(
            c.domain,
            c.success,
            IS_STATED.label("is_stated"),
            c.namespace,
            c.total_tokens.label("tokens"),
            c.duration_ms.label("milliseconds"),
            sa.func.min(is_held_out).label("held_out"),
        )
        .select_from(
            shown_traces.join(runs, IS_OUTCOME).outerjoin(
                recall_decisions, _decisions.domain == c.domain
            )
        )
        .where(shown_traces.c.is_drawn, is_counted)
        .group_by(c.trace_id)
    )


_OF_RUNS = _of_runs()
