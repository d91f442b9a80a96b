"""Units of registries in a store: what comes in, who lets it be shown, what a rejection leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from kp_langchain import TraceStore
from kp_langchain.errors import ConfigError, StoreError
from kp_langchain.gate import ScoredTrace
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task, TraceStep
from kp_langchain.store import sql
from kp_langchain.store.pulled_unit import ExaminedUnit
from kp_langchain.store.tables import pulled_units, recall_entries

HERE, ELSEWHERE = "https://registry.example.org", "https://other.example.org"
FINDING = {"kind": "override", "words": "ignore what you were told"}


def unit(
    number: int = 0,
    *,
    content: str = "the fees are in the ledger",
    quality: float = 0.9,
    domain: str = "finance",
    findings: tuple[dict[str, str], ...] = (),
    digest: str | None = None,
) -> ExaminedUnit:
    trace = ReasoningTrace(
        id=f"kp:trace:00000000-0000-4000-8000-{number:012}",
        metadata=Metadata(task_domain=domain, success=True, quality_score=quality),
        task=Task(objective=f"add up the fees of month {number}"),
        steps=[TraceStep(step_id=0, type="thought", content=content)],
        outcome=Outcome(result_summary="12 francs", confidence=0.8),
    )
    return ExaminedUnit(trace, digest or f"{number} {content}", findings)


def id_of(one: ExaminedUnit) -> str:
    return one.trace.id


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


def write(store: TraceStore, *units: ExaminedUnit, registry: str = HERE) -> list[str]:
    return list(store.pulled.write(units, registry=registry, domain="finance"))


def recalled(store: TraceStore, domain: str = "finance") -> list[str]:
    with store.database.reading() as connection:
        return [one.trace_id for one in sql.pulled_queries.admitted(connection, domain)]


def bodies(store: TraceStore, *trace_ids: str) -> dict[str, str]:
    with store.database.reading() as connection:
        return sql.pulled_queries.bodies(connection, trace_ids)


def numbers(store: TraceStore) -> tuple[int, int]:
    """How often units changed, and how often something was deleted."""
    with store.database.reading() as connection:
        return (
            sql.pulled_queries.newest_change(connection),
            sql.deletion_queries.deletions(connection),
        )


def text_in(store: TraceStore, trace_id: str) -> str:
    """All that the row of a unit holds."""
    with store.database.reading() as connection:
        row = connection.execute(
            sa.select(pulled_units).where(pulled_units.c.trace_id == trace_id)
        ).one()
    return repr(row)


def test_a_new_unit_is_quarantined_and_not_recalled(store: TraceStore) -> None:
    one = unit(findings=(FINDING,))
    assert write(store, one) == ["new"]
    kept = store.pulled.get(id_of(one))
    assert kept is not None
    assert (kept.state, kept.registry, kept.domain) == ("quarantined", HERE, "finance")
    assert (kept.quality_score, kept.success, kept.confidence) == (0.9, True, 0.8)
    assert kept.objective == "add up the fees of month 0"
    assert kept.findings == [FINDING]
    assert kept.changed_at is kept.decided_at is kept.decided_by is None
    assert store.pulled.trace(id_of(one)) == one.trace
    assert (recalled(store), bodies(store, id_of(one))) == ([], {})
    assert store.pulled.counts() == {"quarantined": 1, "admitted": 0, "rejected": 0}


def test_an_admitted_unit_is_recalled_until_it_is_rejected(store: TraceStore) -> None:
    one, other = unit(1), unit(2)
    write(store, one, other)
    changes, deletions = numbers(store)
    assert store.pulled.admit(id_of(one), by="ada") == [id_of(one)]
    assert store.pulled.admit(id_of(one), by="ben") == []
    kept = store.pulled.get(id_of(one))
    assert kept is not None
    assert (kept.state, kept.decided_by) == ("admitted", "ada")
    assert kept.decided_at is not None
    with store.database.reading() as connection:
        (entry,) = sql.pulled_queries.admitted(connection, "finance")
    assert tuple(entry) == (id_of(one), "add up the fees of month 1", True, 0.8, 0.9)
    assert recalled(store, "legal") == []
    (text,) = bodies(store, id_of(one), id_of(other), "kp:trace:unknown").values()
    assert ReasoningTrace.model_validate_json(text) == one.trace
    assert numbers(store) == (changes + 1, deletions)

    assert store.pulled.reject(id_of(one), by="ben") == [id_of(one)]
    assert (recalled(store), bodies(store, id_of(one))) == ([], {})
    assert numbers(store) == (changes + 2, deletions + 1)
    assert store.pulled.reject(id_of(one), by="cyd") == []
    # The other one was never recalled, so nothing has to forget it.
    assert store.pulled.reject(id_of(other), by="ben") == [id_of(other)]
    assert numbers(store) == (changes + 3, deletions + 1)


def test_a_rejection_leaves_no_text(store: TraceStore) -> None:
    one = unit(content="a sentence to be gone", findings=(FINDING,))
    write(store, one)
    store.pulled.reject(id_of(one), by="ada")
    row = text_in(store, id_of(one))
    for text in ("a sentence to be gone", "add up the fees", "ignore what you were told"):
        assert text not in row.replace(one.digest, "")
    assert store.pulled.trace(id_of(one)) is None
    kept = store.pulled.get(id_of(one))
    assert kept is not None
    assert (kept.objective, kept.findings, kept.digest) == ("", [], one.digest)


def test_a_rejected_unit_stays_so_whatever_the_registry_says(store: TraceStore) -> None:
    one = unit(content="first")
    write(store, one)
    store.pulled.reject(id_of(one), by="ada")
    before = numbers(store)
    assert write(store, one) == ["rejected"]
    assert write(store, unit(content="second")) == ["rejected"]
    assert write(store, one, registry=ELSEWHERE) == ["rejected"]
    # Nor under another id.
    assert write(store, unit(7, digest=one.digest)) == ["rejected"]
    assert store.pulled.get(id_of(unit(7))) is None
    with pytest.raises(StoreError, match="kp-langchain quarantine forget kp:trace:0000"):
        store.pulled.admit(id_of(one), by="ada")
    assert store.pulled.counts()["rejected"] == 1
    assert numbers(store) == before


def test_what_is_forgotten_may_come_again(store: TraceStore) -> None:
    one, other = unit(1), unit(2)
    write(store, one, other)
    store.pulled.reject(id_of(one), by="ada")
    store.pulled.admit(id_of(other), by="ada")
    changes, deletions = numbers(store)
    assert store.pulled.forget(id_of(one), "kp:trace:unknown") == [id_of(one)]
    assert numbers(store) == (changes + 1, deletions)
    assert write(store, one) == ["new"]
    assert store.pulled.forget(id_of(other)) == [id_of(other)]
    assert recalled(store) == []
    assert numbers(store)[1] == deletions + 1


def test_an_unchanged_unit_keeps_its_state(store: TraceStore) -> None:
    one, other = unit(1), unit(2)
    write(store, one, other)
    store.pulled.admit(id_of(one), by="ada")
    before, kept = numbers(store), store.pulled.entries()
    assert write(store, one, other) == ["unchanged", "unchanged"]
    assert store.pulled.entries() == kept
    assert numbers(store) == before


def test_a_changed_unit_is_quarantined_again_and_that_is_recorded(store: TraceStore) -> None:
    one = unit(content="harmless")
    write(store, one)
    store.pulled.admit(id_of(one), by="ada")
    with store.database.writing() as connection:  # what recall knows of its text
        row = {"trace_id": id_of(one), "model": "m", "revision": "", "scan_version": 1}
        connection.execute(sa.insert(recall_entries), [row])
    changes, deletions = numbers(store)
    assert write(store, unit(content="poisoned", findings=(FINDING,))) == ["changed"]
    assert recalled(store) == []
    assert numbers(store) == (changes + 1, deletions + 1)
    kept = store.pulled.get(id_of(one))
    assert kept is not None
    assert (kept.state, kept.decided_by, kept.findings) == ("quarantined", "ada", [FINDING])
    assert kept.changed_at is not None
    assert kept.decided_at is not None
    assert kept.changed_at >= kept.decided_at
    trace = store.pulled.trace(id_of(one))
    assert trace is not None
    assert trace.steps[0].content == "poisoned"
    with store.database.reading() as connection:
        assert connection.execute(sa.select(recall_entries.c.trace_id)).all() == []
    # One that was only quarantined changes without anybody having to forget it.
    write(store, unit(5))
    deletions = numbers(store)[1]
    assert write(store, unit(5, content="other words")) == ["changed"]
    assert numbers(store)[1] == deletions


def test_only_clean_units_that_never_changed_are_admitted_by_rule(store: TraceStore) -> None:
    clean, poor, found, changed = unit(1), unit(2, quality=0.7), unit(3), unit(4)
    found = replace(found, findings=(FINDING,))
    write(store, clean, poor, found, changed)
    assert write(store, unit(4, content="other words")) == ["changed"]
    rule = {"min_quality": 0.8}
    assert store.pulled.admit_clean(**rule, domain="legal") == []
    assert store.pulled.admit_clean(**rule, among=[id_of(poor), id_of(found)]) == []
    assert store.pulled.admit_clean(**rule) == [id_of(clean)]
    assert store.pulled.admit_clean(**rule) == []
    assert store.pulled.admit_clean(among=[id_of(poor)], by="ada") == [id_of(poor)]
    assert {one.trace_id for one in store.pulled.entries(state="quarantined")} == {
        id_of(found), id_of(changed),
    }  # fmt: skip
    kept = store.pulled.get(id_of(clean))
    assert kept is not None
    assert kept.decided_by == "rule: no findings, claimed quality at least 0.8"
    kept = store.pulled.get(id_of(poor))
    assert kept is not None
    assert kept.decided_by == "ada"


def test_an_own_run_is_not_replaced_nor_shadowed(
    store: TraceStore, scored: Callable[..., ScoredTrace]
) -> None:
    mine, theirs = unit(1), unit(2)
    store.add(scored(trace_id=id_of(mine)))
    assert write(store, mine, theirs) == ["own run", "new"]
    upper = unit(1).trace.model_copy(update={"id": "kp:trace:ABCDEF"})
    store.add(scored(trace_id="kp:trace:abcdef"))
    assert write(store, ExaminedUnit(upper, "x")) == ["own run"]
    # A run that comes later counts, and not the unit.
    store.pulled.admit(id_of(theirs), by="ada")
    assert recalled(store) == [id_of(theirs)]
    store.add(scored(trace_id=id_of(theirs)))
    assert (recalled(store), bodies(store, id_of(theirs))) == ([], {})


def test_what_was_sent_and_deleted_here_is_an_own_run(
    store: TraceStore, scored: Callable[..., ScoredTrace]
) -> None:
    one = unit(1)
    store.add(scored(trace_id=id_of(one), visibility="network"), registry=HERE)
    contribution = store.outbox.get(id_of(one))
    assert contribution is not None
    store.outbox.save(replace(contribution, state="sent", attempts=1))
    store.delete(id_of(one))
    assert store.get(id_of(one)) is None
    assert write(store, one) == ["own run"]


def test_another_registry_replaces_nothing(store: TraceStore) -> None:
    one = unit(content="harmless")
    write(store, one)
    store.pulled.admit(id_of(one), by="ada")
    assert write(store, unit(content="poisoned"), registry=ELSEWHERE) == ["other registry"]
    assert recalled(store) == [id_of(one)]
    assert "poisoned" not in text_in(store, id_of(one))


def test_a_decision_on_an_unknown_unit_decides_nothing(store: TraceStore) -> None:
    one = unit()
    write(store, one)
    for decide in (store.pulled.admit, store.pulled.reject):
        with pytest.raises(StoreError, match="no unit 'kp:trace:none' was pulled"):
            decide(id_of(one), "kp:trace:none", by="ada")
    assert store.pulled.counts()["quarantined"] == 1


def test_units_are_listed_and_found_by_the_beginning_of_their_id(store: TraceStore) -> None:
    write(store, unit(1), unit(2))
    store.pulled.write([unit(31, domain="legal")], registry=HERE, domain="legal")
    first, second, third = (id_of(unit(number)) for number in (1, 2, 31))
    assert [one.trace_id for one in store.pulled.entries()] == [third, second, first]
    assert [one.trace_id for one in store.pulled.entries(domain="legal")] == [third]
    assert [one.trace_id for one in store.pulled.entries(limit=1, offset=1)] == [second]
    assert [one.trace_id for one in store.pulled.entries(limit=None, offset=2)] == [first]
    assert store.pulled.get("00000000-0000-4000-8000-000000000002").trace_id == second
    with pytest.raises(StoreError, match="may mean several"):
        store.pulled.get("0000")
    assert store.pulled.get("ffff") is None
    with pytest.raises(ConfigError, match="'gone' is not a state"):
        store.pulled.entries(state="gone")
    with pytest.raises(ConfigError, match="must not be negative"):
        store.pulled.entries(offset=-1)


def test_hostile_text_is_stored_clean(store: TraceStore) -> None:
    one = unit(content="a\x00b", findings=({"kind": "k", "words": "\x00\udfff"},))
    one.trace.task.objective = "x\x00" * 20_000
    assert write(store, one) == ["new"]
    kept = store.pulled.get(id_of(one))
    assert kept is not None
    assert len(kept.objective) <= 10_000
    assert kept.findings == [{"kind": "k", "words": "\ufffd\ufffd"}]
    trace = store.pulled.trace(id_of(one))
    assert trace is not None
    assert trace.steps[0].content == "a\ufffdb"


@pytest.mark.parametrize("damage", ["not JSON", "[1]", '{"a": 1}', "null"])
def test_damaged_rows_are_neither_clean_nor_fatal(store: TraceStore, damage: str) -> None:
    one, other = unit(1), unit(2)
    write(store, one, other)
    if store.database.location.path is None and damage == "not JSON":
        pytest.skip("PostgreSQL takes nothing but JSON")
    json = "CAST(:damage AS json)" if store.database.location.path is None else ":damage"
    statement = f"UPDATE pulled_units SET findings = {json}, body = {json} WHERE trace_id = :id"  # noqa: S608
    with store.database.writing() as connection:
        connection.execute(sa.text(statement), {"damage": damage, "id": id_of(one)})
    listed = {kept.trace_id: kept for kept in store.pulled.entries()}
    assert listed[id_of(other)].findings == []
    assert listed[id_of(one)].findings[0]["kind"] == "unreadable"
    with pytest.raises(StoreError, match="cannot be read back"):
        store.pulled.trace(id_of(one))
    assert store.pulled.reject(id_of(one), by="ada") == [id_of(one)]


def test_many_writers_at_once_lose_nothing(store: TraceStore) -> None:
    sets = [[unit(n) for n in range(start, start + 20)] for start in (0, 10, 5, 0)]
    store.pulled.write([unit(99)], registry=HERE, domain="finance")
    errors: list[BaseException] = []

    def pull(units: list[ExaminedUnit]) -> None:
        try:
            write(store, *reversed(units))
            store.pulled.admit_clean()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=pull, args=(units,)) for units in sets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert store.pulled.counts() == {"quarantined": 0, "admitted": 31, "rejected": 0}


def test_an_id_that_is_the_beginning_of_another_is_not_taken_for_it(store: TraceStore) -> None:
    one = unit(1)
    hostile = unit(2)
    hostile.trace.id = one.trace.id[:-4]
    write(store, one, hostile)
    short = hostile.trace.id.removeprefix("kp:trace:")
    with pytest.raises(StoreError, match="may mean several"):
        store.pulled.get(short)
    found = store.pulled.get(hostile.trace.id)
    assert found is not None
    assert found.trace_id == hostile.trace.id
