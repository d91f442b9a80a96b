"""`PulledUnits`: what was read from registries, and which of it may be shown to runs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.errors import StoreError
from kp_langchain.pattern_schema import PATTERN_ID_PREFIX
from kp_langchain.schema import TRACE_ID_PREFIX
from kp_langchain.store.database import StorePart
from kp_langchain.store.registry_units import (
    UNIT_STATES,
    ExaminedUnit,
    Fate,
    PulledUnit,
    UnitState,
)
from kp_langchain.store.rows import clean_name
from kp_langchain.store.run_queries import lock_names
from kp_langchain.store.selection import (
    MATCHES_SHOWN,
    check_page,
    count_by_state,
    find_by_id,
    only_match,
)
from kp_langchain.store.tables import batches, insert_or_replace, outbox, pulled_units, runs
from kp_langchain.store.unit_rows import (
    IS_OWN,
    NEWEST_FIRST,
    WITHOUT_TEXT,
    note_change,
    row_of,
    stored_unit,
)

if TYPE_CHECKING:
    from kp_langchain.pattern_schema import KnowledgeUnit
    from kp_langchain.schema import ReasoningTrace

_c = pulled_units.c
_DECISION = ("decided_at", "decided_by")
# What other rules of ours may make different of a unit that the registry did not change.
_TEXT = ("objective", "body", "findings")
_newest_first = NEWEST_FIRST.where(~IS_OWN)
_any_for_update = NEWEST_FIRST.order_by(None).order_by(_c.trace_id).with_for_update()
_for_update = _any_for_update.where(~IS_OWN)


class PulledUnits(StorePart):
    """The units of registries in one store. Got from `TraceStore.pulled`."""

    def counts(self) -> dict[UnitState, int]:
        """Return the number of units in each state."""
        with self._database.reading() as connection:
            return count_by_state(connection, pulled_units, UNIT_STATES, ~IS_OWN)

    def units(
        self,
        *,
        state: UnitState | None = None,
        domain: str | None = None,
        limit: int | None = 50,
    ) -> list[PulledUnit]:
        """Return units, those pulled last first.

        Args:
            state: Only those in this state.
            domain: Only those of this domain (exact name).
            limit: At most so many; None for all.

        Raises:
            ConfigError: `limit` is negative.
        """
        check_page(limit)
        select = _newest_first.limit(limit)
        if state is not None:
            select = select.where(_c.state == state)
        if domain is not None:
            select = select.where(_c.domain == clean_name(domain))
        with self._database.reading() as connection:
            return [PulledUnit(**row) for row in connection.execute(select).mappings()]

    def get(self, id: str) -> PulledUnit | None:  # noqa: A002 - as TraceStore.get
        """Return the unit that `id` identifies, or None.

        Args:
            id: Its id, or the first 4 characters or more of that.

        Raises:
            StoreError: It fits more than one; the message lists them.
        """
        select = _newest_first.limit(MATCHES_SHOWN)
        with self._database.reading() as connection:
            rows = find_by_id(
                connection,
                select,
                str(id),
                trace_id=_c.trace_id,
                prefixes=(TRACE_ID_PREFIX, PATTERN_ID_PREFIX),
            )
        match = only_match(rows, str(id))
        return None if match is None else PulledUnit(**match)

    def trace(self, trace_id: str) -> ReasoningTrace | None:
        """Return the trace of a unit in any state, as `unit` does; of a pattern, its steps as one.

        Args:
            trace_id: The whole id.

        Raises:
            StoreError: Its body holds neither a trace nor a pattern.
        """
        unit = self.unit(trace_id)
        return None if unit is None else unit.as_trace()

    def unit(self, trace_id: str) -> KnowledgeUnit | None:
        """Return a unit in any state; None for a rejected or an unknown one.

        Args:
            trace_id: The whole id.

        Raises:
            StoreError: Its body holds neither a trace nor a pattern.
        """
        with self._database.reading() as connection:
            remedy = f"forget the unit: kp-langchain registry quarantine forget {trace_id}"
            return stored_unit(connection, sa.and_(~IS_OWN, _c.trace_id == trace_id), remedy)

    def write(self, units: Sequence[ExaminedUnit], *, registry: str, domain: str) -> list[Fate]:
        """Write units in one transaction: all of them or none.

        Args:
            units: The units, each with an id of its own.
            registry: URL of the registry that they come from.
            domain: The domain that they were pulled for.

        Returns:
            For each unit, what became of it.
        """
        now = datetime.now(UTC)
        rows = {unit.unit.id: row_of(unit, registry, domain, now) for unit in units}
        fates: dict[str, Fate] = {}
        to_write: list[dict[str, Any]] = []
        with self._database.writing() as connection:
            # Units that two pulls bring at once are new to both.
            lock_names(connection, ["pulled units"])
            own_ids = _ids_of_own_runs(connection, rows)
            rejected = _rejected_digests(connection, [row["digest"] for row in rows.values()])
            earlier_rows = _rows_by_id(connection, rows, _any_for_update.add_columns(_c.body))
            for id_, row in rows.items():
                before = earlier_rows.get(id_)
                if id_ in own_ids:
                    fates[id_] = "own run"
                elif row["digest"] in rejected:
                    fates[id_] = "rejected"
                elif before is None:
                    fates[id_] = "new"
                    to_write.append(row)
                else:
                    fates[id_] = _fate_of(row, before)
                if before is not None and fates[id_] == "changed":
                    decision = {name: before[name] for name in _DECISION}
                    to_write.append(row | decision | {"changed_at": now})
                elif before is not None and fates[id_] == "unchanged":
                    to_write.append(before | {name: row[name] for name in _TEXT})
            if to_write:
                to_write.sort(key=lambda row: str(row["trace_id"]))
                connection.execute(
                    insert_or_replace(pulled_units, connection.dialect.name), to_write
                )
            note_change(connection, [earlier_rows[id_] for id_ in rows if fates[id_] == "changed"])
        return list(fates.values())

    def admit(self, *trace_ids: str, by: str, digest: str | None = None) -> list[str]:
        """Let quarantined units be shown to runs.

        Args:
            trace_ids: Their whole ids.
            by: Who decides.
            digest: The digest of what was read; needed for a unit that has changed at the registry,
                so that what is admitted is what was read.

        Returns:
            The ids of those that were not admitted before.

        Raises:
            StoreError: One is unknown, or was rejected, or has another digest, or has changed and
                no digest is given. None is admitted then.
        """
        with self._database.writing() as connection:
            rows = _known_rows(connection, trace_ids)
            for row in rows:
                _check_admissible(row, digest)
            return _decide(connection, rows, "admitted", by)

    def admit_clean(self, trace_ids: Collection[str], *, min_quality: float = 0.0) -> list[str]:
        """Let those of quarantined units be shown that have no findings.

        One that changed at its registry is left to a person.

        Args:
            trace_ids: Their whole ids.
            min_quality: Only units whose claimed quality is at least this, 0 to 1.

        Returns:
            The ids of those that are admitted by this.
        """
        quality = f", claimed quality at least {min_quality:g}" if min_quality else ""
        with self._database.writing() as connection:
            rows = [
                row
                for row in _rows_by_id(connection, trace_ids).values()
                if row["state"] == "quarantined"
                and not row["findings"]
                and row["changed_at"] is None
                and row["quality_score"] >= min_quality
            ]
            return _decide(connection, rows, "admitted", f"rule: no findings{quality}")

    def reject(self, *trace_ids: str, by: str) -> list[str]:
        """Never show units to runs, whether they were admitted before or not.

        Their texts and findings are deleted. What stays is the id, the registry, the claimed
        figures and the hash, so that neither the unit nor its content under another id comes back.

        Args:
            trace_ids: Their whole ids.
            by: Who decides.

        Returns:
            The ids of those that were not rejected before.

        Raises:
            StoreError: One is unknown. None is rejected then.
        """
        with self._database.writing() as connection:
            rows = _known_rows(connection, trace_ids)
            return _decide(connection, rows, "rejected", by, **WITHOUT_TEXT)

    def forget(self, *trace_ids: str) -> list[str]:
        """Delete units with all that the store knows of them; a later pull may bring them again.

        Args:
            trace_ids: Their whole ids.

        Returns:
            The ids of those that there were.
        """
        with self._database.writing() as connection:
            rows = _rows_by_id(connection, trace_ids)
            for batch in batches(rows):
                connection.execute(sa.delete(pulled_units).where(_c.trace_id.in_(batch)))
            note_change(connection, rows.values())
        return list(rows)


def _fate_of(row: Mapping[str, Any], before: Mapping[str, Any]) -> Fate:
    """Return what is to become of a unit that the store has in another or the same form."""
    if before["state"] == "rejected":
        return "rejected"
    if before["registry"] != row["registry"]:
        return "other registry"
    # A registry takes no account of case.
    is_same = before["domain"].casefold() == row["domain"].casefold()
    are_known = all(one in before["findings"] for one in json.loads(row["findings"]))
    return "unchanged" if is_same and before["digest"] == row["digest"] and are_known else "changed"


def _check_admissible(row: Mapping[str, Any], digest: str | None) -> None:
    """Check that a unit may be admitted by someone who has read the text with this digest.

    Raises:
        StoreError: It may not; the message says why.
    """
    id_ = row["trace_id"]
    has_changed = row["changed_at"] is not None and row["state"] == "quarantined"
    if has_changed if digest is None else digest != row["digest"]:
        what = "has changed, or new rules find more in it" if has_changed else "has another digest"
        raise StoreError(
            f"{id_} {what}; read what it is now, and give the digest that stands "
            f"there: kp-langchain registry quarantine show {id_}"
        )
    if row["state"] == "rejected":
        raise StoreError(
            f"{id_} was rejected, and its text was deleted; to have it pulled again: "
            f"kp-langchain registry quarantine forget {id_}"
        )


# ------------------------------------------------------------------ within a transaction


def _rows_by_id(
    connection: sa.Connection, trace_ids: Iterable[str], select: sa.Select[Any] = _for_update
) -> dict[str, dict[str, Any]]:
    """Return those of the units that there are, by id, locked for this transaction."""
    by_id: dict[str, dict[str, Any]] = {}
    for batch in batches(sorted(set(trace_ids))):
        of_batch = connection.execute(select.where(_c.trace_id.in_(batch)))
        by_id |= {row["trace_id"]: dict(row) for row in of_batch.mappings()}
    return by_id


def _known_rows(connection: sa.Connection, trace_ids: Sequence[str]) -> list[dict[str, Any]]:
    """Return the units, locked for this transaction.

    Raises:
        StoreError: One is unknown.
    """
    rows_by_id = _rows_by_id(connection, trace_ids)
    for id_ in trace_ids:
        if id_ not in rows_by_id:
            raise StoreError(
                f"no unit {id_!r:.200} was pulled; list them: kp-langchain registry quarantine"
            )
    return list(rows_by_id.values())


def _ids_of_own_runs(connection: sa.Connection, trace_ids: Collection[str]) -> set[str]:
    """Return those ids that a run of this store has or had; ids in lower case match as well."""
    forms = {form for id_ in trace_ids for form in (id_, id_.lower())}
    own_ids: set[str] = set()
    for column in (runs.c.trace_id, outbox.c.trace_id):
        for batch in batches(forms):
            own_ids |= set(connection.scalars(sa.select(column).where(column.in_(batch))))
    return {id_ for id_ in trace_ids if not own_ids.isdisjoint((id_, id_.lower()))}


def _rejected_digests(connection: sa.Connection, digests: Collection[str]) -> set[str]:
    """Return those of the digests that rejected units have."""
    select = sa.select(_c.digest).where(_c.digest.in_(digests), _c.state == "rejected")
    return set(connection.scalars(select))


def _decide(
    connection: sa.Connection,
    units: Iterable[Mapping[str, Any]],
    state: UnitState,
    by: str,
    **more: Any,
) -> list[str]:
    """Write a decision on those units that are not in a state yet, and return their ids.

    Args:
        connection: A write transaction.
        units: The units, as they were.
        state: Their new state.
        by: Who or what decides.
        more: New values of other columns.
    """
    to_decide = [unit for unit in units if unit["state"] != state]
    ids = [unit["trace_id"] for unit in to_decide]
    decision = {"state": state, "decided_at": datetime.now(UTC), "decided_by": clean_name(by)}
    for batch in batches(ids):
        update = sa.update(pulled_units).where(_c.trace_id.in_(batch))
        connection.execute(update.values(**decision | more))
    note_change(connection, to_decide)
    return ids
