"""The kept runs of a process, beside what the store says of them, in any order."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace

import pytest

from kp_langchain import ScoredTrace, Scorer
from kp_langchain.gate.twins import KeptTrace
from kp_langchain.recording import kept_memory
from kp_langchain.recording.kept_memory import KeptMemory
from kp_langchain.scoring import MemoryEntry
from kp_langchain.store.kept_traces import KeptPage, KeptState
from tests.agents import run, searching


class Shelf:
    """Stands for a store: what was put on it, or taken from it, is what a read returns."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, KeptTrace | None]] = []
        self.whole_reads = 0
        self.awaited: Collection[str] = ()
        self.deletions = 0

    def read(
        self, domain: str, *, since: KeptState | None, awaited: Collection[str]
    ) -> KeptPage | None:
        self.awaited = awaited
        state = KeptState(self.deletions, len(self.changes))
        if since == state:
            return None
        if since is not None and since.deletions < self.deletions:
            since = None
        self.whole_reads += since is None
        latest = dict(self.changes[since.newest_change if since else 0 :])
        kept = [trace for trace in latest.values() if trace is not None]
        left = {trace_id for trace_id, trace in latest.items() if trace is None}
        written = set(awaited) & {trace_id for trace_id, _ in self.changes}
        return KeptPage(state, kept, left, written, is_whole=since is None)

    def put(self, *runs: ScoredTrace) -> None:
        for one in runs:
            assert one.entry is not None
            self.changes.append((one.trace.id, KeptTrace.of(one, one.entry)))

    def take(self, *runs: ScoredTrace) -> None:
        self.changes += [(one.trace.id, None) for one in runs]

    def delete(self, *runs: ScoredTrace) -> None:
        deleted = {one.trace.id for one in runs}
        self.changes = [change for change in self.changes if change[0] not in deleted]
        self.deletions += 1


@pytest.fixture(scope="module")
def template() -> ScoredTrace:
    return run(searching(), scorer=Scorer(embedder=None))


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def make(template: ScoredTrace):
    """Builds a run that passed; those of one text are twins."""
    numbers = iter(range(10_000))

    def make(text: str = "text", sure: float = 0.5, domain: str = "default") -> ScoredTrace:
        number = next(numbers)
        trace = template.trace.model_copy(
            update={
                "id": f"kp:trace:{number}",
                "metadata": template.trace.metadata.model_copy(update={"task_domain": domain}),
            }
        )
        return replace(
            template,
            trace=trace,
            run_id=f"run {number}",
            breakdown=template.breakdown.with_worth(sure),
            decision="contributed",
            twin_similarity=0.9,
            entry=MemoryEntry(trace.id, text.encode()),
        )

    return make


def test_a_replaced_run_is_no_longer_compared(make) -> None:
    memory = KeptMemory(None)
    first, second, third = (memory.admit(make(sure=sure)) for sure in (0.2, 0.4, 0.6))
    assert second.replaces == (first.trace.id,)
    assert third.replaces == (second.trace.id,)


def test_the_store_may_not_know_yet_what_was_replaced(make, shelf: Shelf) -> None:
    memory = KeptMemory(shelf.read)
    first, second = memory.admit(make(sure=0.2)), memory.admit(make(sure=0.4))
    shelf.put(first)
    assert set(shelf.awaited) == {first.trace.id}
    third = memory.admit(make(sure=0.6))
    assert third.replaces == (second.trace.id,)


def test_once_it_does_its_word_counts(make, shelf: Shelf) -> None:
    memory = KeptMemory(shelf.read)
    first, second = memory.admit(make(sure=0.2)), memory.admit(make(sure=0.4))
    shelf.put(first, second)
    shelf.put(first)  # a verdict has contributed it again
    third = memory.admit(make(sure=0.6))
    assert set(third.replaces) == {first.trace.id, second.trace.id}


def test_what_changed_is_read_and_not_all_of_it_again(make, shelf: Shelf) -> None:
    memory, own = KeptMemory(shelf.read), make("own")
    assert memory.admit(own).decision == "contributed"
    shelf.put(own)
    elsewhere, other = make("a"), make("b")
    shelf.put(elsewhere, other)
    assert memory.admit(make("a")).twin_of == elsewhere.trace.id
    shelf.take(elsewhere)
    again = memory.admit(make("a"))
    assert again.decision == "contributed"
    assert memory.admit(make("b")).twin_of == other.trace.id
    assert memory.admit(make("own")).twin_of == own.trace.id
    assert shelf.whole_reads == 1


def test_what_is_read_bit_by_bit_is_no_more_than_what_is_compared(
    make, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_memory, "MOST_COMPARED", 3)
    memory = KeptMemory(shelf.read)
    memory.admit(make("first"))
    for text in "abcd":
        shelf.put(make(text))
        assert memory.admit(make(text)).decision == "below_threshold"
    assert memory.admit(make("b")).decision == "below_threshold"
    assert memory.admit(make("a")).decision == "contributed"


def test_what_is_written_and_no_longer_kept_is_forgotten(make, shelf: Shelf) -> None:
    memory = KeptMemory(shelf.read)
    first = memory.admit(make())
    assert memory.admit(make()).twin_of == first.trace.id
    shelf.take(first)
    assert memory.admit(make()).decision == "contributed"


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_deleted_run_is_forgotten_whether_or_not_it_was_noticed_to_be_written(
    make, shelf: Shelf, is_noticed: bool
) -> None:
    memory = KeptMemory(shelf.read)
    memory.admit(make("another"))
    first = memory.admit(make())
    shelf.put(first)
    if is_noticed:
        assert memory.admit(make()).twin_of == first.trace.id
    shelf.delete(first)
    assert memory.admit(make()).decision == "contributed"


def test_after_a_deletion_what_stays_is_compared_as_before(make, shelf: Shelf) -> None:
    memory = KeptMemory(shelf.read)
    gone, stays = memory.admit(make("gone")), memory.admit(make("stays"))
    shelf.put(gone, stays)
    shelf.delete(gone)
    shelf.put(make("one more"))  # takes the number of the change that was deleted
    assert memory.admit(make("stays")).twin_of == stays.trace.id
    assert memory.admit(make("one more")).decision == "below_threshold"


def test_a_read_that_comes_late_undoes_nothing(make, shelf: Shelf) -> None:
    elsewhere = make()
    nested: list[ScoredTrace] = []

    def slow(domain: str, *, since: KeptState | None, awaited: Collection[str]) -> KeptPage | None:
        page = shelf.read(domain, since=since, awaited=awaited)
        if not shelf.changes:
            shelf.put(elsewhere)
            nested.append(memory.admit(make()))
        return page

    memory = KeptMemory(slow)
    assert memory.admit(make()).twin_of == elsewhere.trace.id
    assert [one.twin_of for one in nested] == [elsewhere.trace.id]


def test_the_newest_of_each_domain_are_held(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_memory, "MOST_COMPARED", 3)
    memory = KeptMemory(None)
    for text in "abcd":
        assert memory.admit(make(text)).decision == "contributed"
    assert memory.admit(make("b")).decision == "below_threshold"
    assert memory.admit(make("a")).decision == "contributed"


def test_the_domains_that_were_used_last_are_held(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_memory, "_MOST_DOMAINS", 2)
    memory = KeptMemory(None)
    for domain in "abac":
        memory.admit(make(domain=domain))
    assert memory.admit(make(domain="a")).decision == "below_threshold"
    assert memory.admit(make(domain="b")).decision == "contributed"


def test_without_an_entry_a_run_is_as_it_was(make) -> None:
    memory = KeptMemory(None)
    assert memory.admit(replace(make(), entry=None)).decision == "contributed"
    below = replace(make(), decision="below_threshold")
    assert memory.admit(below) is below
    assert memory.admit(make()).decision == "contributed"


def test_with_the_rule_off_the_store_is_not_asked(make, shelf: Shelf) -> None:
    shelf.put(make())
    memory = KeptMemory(shelf.read)
    assert memory.admit(replace(make(), twin_similarity=1.0)).decision == "contributed"
    assert memory.admit(make()).decision == "below_threshold"


def test_of_equal_runs_that_come_at_the_same_time_one_is_kept(make) -> None:
    memory, begin = KeptMemory(None), threading.Barrier(8)
    runs = [make() for _ in range(8)]
    held: list[ScoredTrace] = []

    def admit(one: ScoredTrace) -> None:
        begin.wait(60)
        held.append(memory.admit(one))

    threads = [threading.Thread(target=admit, args=(one,)) for one in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(one.decision == "contributed" for one in held) == 1
