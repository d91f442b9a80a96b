"""The store's contract, on SQLite and on PostgreSQL: what runs are compared with and shown.

The memory of novelty, the kept runs that others repeat, what was recalled, units of registries.
"""

from __future__ import annotations

import pickle
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import ConfigError, DomainPolicy, Scorer, StoreError, TraceStore, Verdict
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.gate import ShownTrace
from kp_langchain.gate.run import Run
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task, TraceStep
from kp_langchain.scoring import MemoryEntry, NoveltyMemory
from kp_langchain.store import connections, tables, vectors
from kp_langchain.store import novelty as novelty_module
from kp_langchain.store.recall_tasks import TaskVector
from kp_langchain.store.registry_units import ExaminedUnit
from kp_langchain.store.side_tables import OutcomeCount
from kp_langchain.store.vectors import Follower, Page
from kp_langchain.usage import Usage
from tests.store.conftest import (
    LONG_S,
    REGISTRY,
    START,
    Conversation,
    Letters,
    _scored,
    execute,
    fork,
    rows_by_table,
    scorer_on,
    trace_of,
    with_vector,
)

ELSEWHERE = "https://other.example.org"


def matched(scorer, trace):
    """What the memory said of a trace that it then remembers."""
    breakdown = scorer.evaluate(trace)
    nearest = breakdown.nearest
    at = nearest and (nearest.trace_id, round(nearest.similarity, 6))
    return (breakdown.novelty_source, at)


def remembered(store):
    rows = [row for row in rows_by_table(store)["vectors"] if row["kind"] == "memory"]
    return sorted(rows, key=lambda row: row["number"])


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others remember is read with each trace."""
    monkeypatch.setattr(novelty_module, "_READ_AGAIN_S", 0.0)


# ------------------------------------------------------------------ novelty


def test_a_trace_of_an_earlier_process_is_not_new(url):
    first, unreadable = trace_of("xxy"), trace_of("...")  # on which the embedder fails
    with TraceStore(url) as store:
        memory = store.novelty_memory(max_remembered=7)
        assert isinstance(memory, NoveltyMemory)
        assert Scorer(cache=memory).max_remembered == 7
        with pytest.raises(ConfigError):
            store.novelty_memory(max_remembered=0)
        assert scorer_on(store).evaluate(first).novelty_source == "empty cache"
        for _ in range(2):  # it is remembered once
            scorer_on(store).evaluate(unreadable)
    with TraceStore(url) as store:
        same, similar, other, repeat = (
            scorer_on(store).score(trace_of(text)) for text in ("xxy", "xy", "z", "...")
        )
        assert (same.novelty.value, same.nearest.trace_id) == (0.0, first.id)
        assert similar.nearest.similarity == pytest.approx(3 / np.sqrt(10))
        assert other.novelty.value == 1.0
        assert (repeat.novelty_source, repeat.nearest.trace_id) == ("exact repeat", unreadable.id)
        row, no_vector = remembered(store)
    assert no_vector["vector"] is None
    # Only the vector, the hash and names are stored.
    assert np.frombuffer(row.pop("vector"), "<f4").tolist() == [2, 1, 0]
    assert len(row.pop("fingerprint")) == 32
    assert row.pop("change") > 0
    assert {name: value for name, value in row.items() if value is not None} == {
        "number": 1, "kind": "memory", "trace_id": first.id, "model": "letters",
        "revision": "1", "baseline": 0.0,
    }  # fmt: skip


def test_each_model_and_baseline_has_a_memory_of_its_own(store):
    class Longer(Letters):
        def embed(self, texts):
            return np.pad(super().embed(texts), ((0, 0), (0, 2)))

    scorer_on(store).evaluate(trace_of("y"))
    for options, text, novelty in (
        ({}, "x", 1.0),
        ({"embedder": Letters("other")}, "yy", 0.5),
        ({"embedder": Letters(baseline=0.25)}, "yy", 0.5),
        ({"embedder": Letters("other")}, "y", 0.0),  # an exact repeat is one by its text alone
    ):  # fmt: skip
        score = scorer_on(store, **options).score(trace_of(text))
        assert score.novelty.value == pytest.approx(novelty), (options, text)
    assert scorer_on(store, Longer()).evaluate(trace_of("yy")).novelty.value == 0.5
    assert scorer_on(store, Longer()).evaluate(trace_of("yyy")).novelty.value == 0.0


def test_a_vector_that_comes_late_joins_its_fingerprint(store):
    memory = store.novelty_memory()
    identity, vector = Letters().identity, np.array([1, 0, 0], "f4")
    memory.compare_then_add(MemoryEntry("kp:trace:a", b"a" * 32))
    memory.add(MemoryEntry("kp:trace:a", None, vector, identity))
    nearest, repeat = store.novelty_memory().compare(
        MemoryEntry("kp:trace:b", b"a" * 32, vector, identity)
    )
    assert nearest.trace_id == repeat.trace_id == "kp:trace:a"
    assert nearest.similarity == pytest.approx(1.0)


def test_what_is_beyond_the_window_is_deleted_now_and_then(store):
    scorer = scorer_on(store, max_remembered=10)
    for number in range(40):
        scorer.evaluate(trace_of("x" * (number + 1)))
        if number > 30:  # a process that writes little prunes too
            scorer = scorer_on(store, max_remembered=10)
    rows = remembered(store)
    assert 10 <= len(rows) <= 13
    assert [row["number"] for row in rows[-10:]] == list(range(31, 41))


WORDS = st.text("xyz", min_size=1, max_size=3)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(WORDS, max_size=14),
    restart=st.integers(0, 14),
    size=st.integers(1, 6),
)
def test_a_restart_changes_no_match(store, url, texts, restart, size):
    """At a random place in a random sequence."""
    traces = [trace_of(text) for text in texts]
    whole = Scorer(embedder=Letters(), max_remembered=size)
    expected = [matched(whole, trace) for trace in traces]
    found = []
    store.count()  # which makes the tables
    execute(store, "DELETE FROM vectors")
    for part in (traces[:restart], traces[restart:]):
        with TraceStore(url) as reopened:
            scorer = scorer_on(reopened, max_remembered=size)
            found += [matched(scorer, trace) for trace in part]
    assert found == expected


def test_a_memory_is_read_in_pages(store, monkeypatch):
    monkeypatch.setattr(novelty_module, "_PAGE_SIZE", 2)
    traces = [trace_of(f"{'x' * number}{'y' * (9 - number)}") for number in range(10)]
    for trace in traces:
        scorer_on(store).evaluate(trace)
    assert [row["trace_id"] for row in remembered(store)] == [trace.id for trace in traces]
    for size in (1, 2, 7, 12):
        scorer = scorer_on(store, max_remembered=size)
        for number, trace in enumerate(traces):
            nearest = scorer.score(trace.model_copy(update={"id": "kp:trace:q"})).nearest
            assert (nearest.trace_id == trace.id) is (number >= 10 - size)


SHARING = """
import sys
from kp_langchain import TraceStore
from tests.store.conftest import scorer_on, trace_of
with TraceStore(sys.argv[1]) as store:
    scorer = scorer_on(store)
    print(scorer.evaluate(trace_of("x")).novelty.value, flush=True)
    sys.stdin.readline()
    for number in range(20):
        scorer.evaluate(trace_of(f"{sys.argv[2]}-{number}"))
"""


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_processes_share_it_and_a_forked_child_goes_on(store, url):
    scorer = scorer_on(store)
    first = trace_of("x")
    scorer.evaluate(first)
    children = [Conversation(SHARING, url, name) for name in "ab"]
    assert [child.line() for child in children] == ["0.0", "0.0"]
    for child in children:
        child.say()
    for child in children:
        child.end()
    assert len(remembered(store)) == 1 + 2 * 21
    for name in "ab":
        assert scorer_on(store).score(trace_of(f"{name}-19")).novelty.value == 0

    def child_goes_on() -> bool:
        assert scorer.evaluate(trace_of("x")).novelty.value == 0
        return scorer.evaluate(trace_of("y")).novelty.value == 1.0

    assert fork(child_goes_on) == 0
    assert scorer_on(store).score(trace_of("y")).novelty.value == 0
    arrived = pickle.loads(pickle.dumps(scorer))  # noqa: S301
    assert arrived.score(trace_of("x")).novelty.value == 0


def test_ids_and_names_that_no_database_takes_are_remembered(store, always):
    odd = Letters("m\0\ud800" * 400)
    odd.identity = replace(odd.identity, revision="r" * 5000)
    first = trace_of("x", domain="d\0" * 700)
    first = first.model_copy(update={"id": "kp:trace:" + "\ud800" * 300})
    scorer = scorer_on(store, odd)
    scorer.evaluate(first)
    for one in (scorer, scorer_on(store, odd)):
        assert one.score(trace_of("xx")).novelty.value == pytest.approx(0)
        # Read back, it is known, and takes no second place.
        (row,) = remembered(store)
        assert scorer.score(trace_of("xx")).nearest.trace_id == row["trace_id"]


def test_while_the_store_is_away_novelty_is_measured_in_this_process(tmp_path, caplog, monkeypatch):
    (tmp_path / "folder").write_text("")  # in its place
    away = TraceStore(tmp_path / "folder" / "runs.db")
    scorer, plain = scorer_on(away), Scorer(embedder=Letters())
    first = trace_of("x")
    for trace in (first, *map(trace_of, ("xy", "x", "..", ".."))):
        assert matched(scorer, trace) == matched(plain, trace)
    for message in ("cannot be read now", "cannot be written"):
        assert caplog.text.count(message) == 1
    Path(away.location).parent.unlink()
    memory = scorer._memory
    monkeypatch.setattr(memory, "_due_at", 0.0)  # it is asked again after a minute
    scorer.evaluate(trace_of("y"))
    assert scorer.score(trace_of("x")).novelty.value == 0  # what could not be written is known here
    assert len(remembered(away)) == 1
    with closing(sqlite3.connect(away.location)) as other:
        monkeypatch.setattr(connections, "_BUSY_TIMEOUT_S", 0.01)
        other.execute("BEGIN IMMEDIATE")
        scorer = scorer_on(away)
        assert scorer.evaluate(trace_of("y")).novelty.value == 0  # it can be read
        other.rollback()
    scorer.evaluate(trace_of("z"))
    assert len(remembered(away)) == 2
    away.close()


# ------------------------------------------------------------------ repeats of kept runs


def passed(number=0, vector=(1.0, 0.5), text=b"hash", **more):
    """A run that passed; all of them are alike."""
    return with_vector(_scored(number, **{"keep_days": 7.0, **more}), vector, text)


def near(number=0, **more):
    """One that a success lifts over its threshold."""
    return passed(number, score=0.49, threshold=0.5, **more)


def confirmed(store, run, **options):
    (change,) = store.report_outcome(run.trace.id, success=True, **options)
    return change.decision, change.twin_of


def test_of_repeats_that_verdicts_lift_one_is_kept(store):
    one, twin, by_text, far, elsewhere, off = (
        near(1), near(2, vector=(1.0, 0.55), text=b"other"), near(3, vector=(0.0, 1.0)),
        near(4, vector=(0.0, 1.0), text=b"far"), near(5, domain="code"),
        replace(near(6), twin_similarity=1.0),
    )  # fmt: skip
    store.add(*[one, twin, by_text, far, elsewhere, off])
    assert confirmed(store, one) == ("kept", None)
    assert confirmed(store, twin) == ("twin", one.trace.id)
    assert confirmed(store, by_text) == ("twin", one.trace.id)
    for run in (far, elsewhere, off):
        assert confirmed(store, run) == ("kept", None)
    run = store.get(by_text.trace.id)
    assert (run.twin_of, run.similarity_to_twin) == (one.trace.id, 1.0)
    # A run without a body is compared with none.
    store.add(*[near(7, keep=False), bare := _scored(8, score=0.49, threshold=0.5)])
    assert confirmed(store, bare) == ("kept", None)
    # One that left makes room.
    for run in (one, off):
        store.report_outcome(run.trace.id, success=False)
    assert confirmed(store, twin) == ("kept", None)


def test_of_repeats_that_are_confirmed_at_the_same_time_one_is_kept(store, url):
    for number in range(4):
        pair = [near(2 * number + at, domain=f"d{number}") for at in range(2)]
        store.add(*pair)
        start, decisions = threading.Barrier(2), []

        def confirm(run, start=start, decisions=decisions):
            with TraceStore(url) as other:
                other.count()
                start.wait(LONG_S)
                decisions.append(confirmed(other, run)[0])

        threads = [threading.Thread(target=confirm, args=(run,)) for run in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        assert sorted(decisions) == ["kept", "twin"]


@pytest.mark.parametrize("verdict", [None, Verdict(confidence=0.9)])
def test_a_surer_run_takes_the_place_of_an_estimate_and_never_of_a_verdict(store, verdict):
    runs = [passed(number, visibility="network", keep_days=0.0) for number in range(4)]
    store.add(runs[0], registry=REGISTRY)
    for before, run in pairwise(runs):
        store.add(replace(run, replaces=(before.trace.id,)), registry=REGISTRY)
    assert [run.trace_id for run in store.runs(decision="kept")] == [runs[3].trace.id]
    assert store.outbox.counts() == {"pending": 1, "sent": 0, "dead": 0, "withdrawn": 3}
    assert store.get(runs[0].trace.id).replaced_by == runs[1].trace.id
    bodies = [row["trace_id"] for row in rows_by_table(store)["bodies"]]
    assert bodies == [runs[3].trace.id]  # those that are kept for no days are deleted at once
    store.report_outcome(runs[3].trace.id, success=True)
    store.report_outcome(runs[3].trace.id, confidence=0.8)  # which takes back no statement
    surer = replace(passed(5, visibility="network"), replaces=(runs[3].trace.id,), verdict=verdict)
    store.add(surer, registry=REGISTRY)
    assert store.count(decision="kept") == store.outbox.counts()["pending"] == 2
    stated = replace(passed(6), replaces=(runs[3].trace.id,), verdict=Verdict(success=True))
    store.add(stated)
    assert store.get(runs[3].trace.id).replaced_by == stated.trace.id


def test_of_twins_only_the_kept_one_is_queued_whatever_verdicts_say(store):
    first, twin = (passed(number, visibility="network") for number in (1, 2))
    twin = replace(twin, decision="twin", twin_of=first.trace.id)
    store.add(*[first, twin], registry=REGISTRY)

    def queued():
        return {one.trace_id: one.state for one in store.outbox.contributions()}

    assert queued() == {first.trace.id: "pending"}
    assert confirmed(store, twin, registry=REGISTRY) == ("kept", None)
    assert (store.get(first.trace.id).decision, queued()) == (
        "twin", {first.trace.id: "withdrawn", twin.trace.id: "pending"},
    )  # fmt: skip
    assert confirmed(store, first, registry=REGISTRY) == ("twin", twin.trace.id)
    assert queued()[first.trace.id] == "withdrawn"
    store.report_outcome(twin.trace.id, success=False)
    assert confirmed(store, first, registry=REGISTRY) == ("kept", None)
    assert queued() == {first.trace.id: "pending", twin.trace.id: "withdrawn"}


# ------------------------------------------------------------------ what recall shows


def test_a_run_that_is_not_judged_yet_is_no_outcome(store):
    shown = (ShownTrace("kp:trace:a", 1, 0.9),)
    one = _scored(shown=shown)
    store.journal.record(
        [
            Run(
                one.trace,
                uuid.uuid4(),
                DomainPolicy(),
                looked_successful=True,
                keys=one.keys,
                shown=shown,
            )
        ]
    )
    assert store.journal.waiting() == 1
    assert store.shown.outcome_counts("finance") == []
    assert store.shown.outcome_counts_by_domain() == {}
    assert not store.shown.is_shown("kp:trace:a")


def test_what_many_runs_were_shown_and_how_they_ended(store):
    shown = (ShownTrace("kp:trace:b", 2, 0.5), ShownTrace("kp:trace:a", 1, 0.9, True))
    runs = [_scored(n, shown=shown if n % 2 else ()) for n in range(1203)]
    store.add(*runs)
    by_run = store.shown.of_runs([run.trace.id for run in runs])
    assert by_run.keys() == {run.trace.id for run in runs[1::2]}
    assert set(map(tuple, by_run.values())) == {shown[::-1]}
    assert store.shown.of_run(runs[1].trace.id) == [*shown[::-1]]
    assert store.shown.of_run(runs[0].trace.id) == []
    assert store.shown.of_runs([]) == {}
    own = _scored(2000, domain="code", namespace="tenant")
    one = (ShownTrace("kp:trace:a", 1, 0.9), ShownTrace(own.trace.id, 2, 0.9))
    store.add(*[own, *(_scored(2000 + n, domain="code", shown=one) for n in range(2))])
    store.add(_scored(2003, domain="code", shown=one, namespace="tenant"))
    counts = {(each.shown_id, each.namespace): each.runs
              for each in store.shown.outcome_counts("code")}  # fmt: skip
    # Whoever may see a trace of a namespace, its own runs are not counted for others.
    assert counts == {
        ("kp:trace:a", None): 2, ("kp:trace:a", "tenant"): 1, (own.trace.id, None): 3,
    }  # fmt: skip
    store.add(_scored(3000, domain="law", shown=one[:1]))
    by_domain = store.shown.outcome_counts_by_domain()
    assert by_domain.keys() == {"finance", "code", "law"}
    assert by_domain["law"] == [OutcomeCount("kp:trace:a", False, True, False, 1)]


def test_how_runs_ended_with_examples_and_without(store):
    one, other = (ShownTrace(f"kp:trace:{name}", 1, 0.9, is_drawn=True) for name in "ab")
    held_out = replace(one, held_out=True)
    usage = Usage.from_dict({"duration_ms": 1500.0})
    assert store.effects.counts() == {}
    store.add(
        _scored(1, shown=(held_out, other), verdict=Verdict(success=True), usage=usage),
        _scored(2, shown=(one, other), verdict=Verdict(success=True), namespace="tenant"),
        _scored(3, shown=(one,), usage=usage),
        _scored(4, trace_id="kp:trace:four", shown=(held_out,)),
        _scored(5, verdict=Verdict(success=True)),
        _scored(6, domain="law", shown=(one,), created_at=START + timedelta(days=36500)),
    )
    store.report_outcome("kp:trace:four", success=False)
    counts = store.effects.counts()
    assert counts.keys() == {"finance", "law"}
    finance = {(*each[:3], each.namespace): each for each in counts["finance"]}
    assert {key: each.runs for key, each in finance.items()} == {
        (False, True, True, None): 1, (False, True, True, "tenant"): 1,
        (False, True, False, None): 1, (True, False, True, None): 1,
    }  # fmt: skip
    assert finance[False, True, True, None].milliseconds == (1500.0, 1)
    assert finance[False, True, True, "tenant"].milliseconds == (0.0, 0)
    assert store.effects.counts("finance") == {"finance": counts["finance"]}
    assert store.effects.decisions() == {}
    for domain in ("finance", "law"):
        store.effects.decide(domain, shows=True)
    assert store.effects.counts() == {"law": counts["law"]}
    shown = store.effects.decisions("law")["law"]
    stopped = store.effects.decide("law", shows=False, source="someone", note="too slow")
    assert stopped == store.effects.decisions()["law"]
    assert (shown.shows, stopped.shows, stopped.note) == (True, False, "too slow")
    assert stopped.counted_from == shown.counted_from == shown.at < stopped.at
    assert store.effects.counts("law") == {"law": counts["law"]}


def unit(number=0, *, content="the fees are in the ledger", quality=0.9, domain="finance",
         findings=(), digest=None):  # fmt: skip
    trace = ReasoningTrace(
        id=f"kp:trace:00000000-0000-4000-8000-{number:012}",
        metadata=Metadata(task_domain=domain, success=True, quality_score=quality),
        task=Task(objective=f"add up the fees of month {number}"),
        steps=[TraceStep(step_id=0, type="thought", content=content)],
        outcome=Outcome(result_summary="12 francs", confidence=0.8),
    )
    return ExaminedUnit(trace, digest or f"{number} {content}", findings)


FINDING = {"kind": "override", "words": "ignore what you were told"}


def id_of(one):
    return one.trace.id


def write(store, *units, registry=REGISTRY, domain="finance"):
    return list(store.pulled.write(units, registry=registry, domain=domain))


def shows(store, *units):
    """The units that recall may show."""
    open_ = store.recall_tasks.eligibility([id_of(one) for one in units])
    return {id_ for id_, one in open_.items() if one.is_open}


def test_whether_recall_may_show_a_trace(store):
    kept, below, failed, planted = (_scored(1), _scored(2, score=0.1), _scored(3), _scored(6))
    withheld = _scored(4, withheld="the redactor failed")
    store.add(*[kept, below, failed, withheld, planted])
    store.report_outcome(failed.trace.id, success=False)
    for model, version, found in (("b", 1, (None, "override")), ("a", 2, (None, "hidden"))):
        entries = {one.trace.id: TaskVector(None, found[at])
                   for at, one in enumerate((kept, planted))}  # fmt: skip
        store.recall_tasks.write(entries, EmbedderIdentity(model, "1"), version)
    ids = [one.trace.id for one in (kept, below, failed, withheld, planted)]
    assert store.recall_tasks.planted(ids) == {planted.trace.id: "hidden"}  # by the newest rules
    eligibility = store.recall_tasks.eligibility([*ids, "kp:trace:gone"])
    assert eligibility.keys() == {*ids}
    assert eligibility[planted.trace.id].planted == "hidden"
    assert [one for one in ids if eligibility[one].is_open] in ([kept.trace.id], [ids[0], ids[4]])
    store.delete(kept.trace.id)
    assert store.recall_tasks.eligibility([kept.trace.id]) == {}


def test_a_unit_is_shown_from_its_admission_to_its_rejection_which_leaves_no_text(store):
    one, other = unit(1, content="a sentence to be gone", findings=(FINDING,)), unit(2)
    assert write(store, one, other) == ["new", "new"]
    kept = store.pulled.get(id_of(one))
    assert (kept.state, kept.registry, kept.domain) == ("quarantined", REGISTRY, "finance")
    assert (kept.quality_score, kept.success, kept.confidence) == (0.9, True, 0.8)
    assert (kept.objective, kept.findings) == ("add up the fees of month 1", [FINDING])
    assert kept.changed_at is kept.decided_at is kept.decided_by is None
    assert store.pulled.trace(id_of(one)) == one.trace
    assert shows(store, one, other) == set()
    assert store.pulled.admit(id_of(one), by="ada") == [id_of(one)]
    assert store.pulled.admit(id_of(one), by="ben") == []
    assert store.pulled.get(id_of(one)).decided_by == "ada"
    assert shows(store, one, other) == {id_of(one)}
    assert write(store, one, other) == ["unchanged", "unchanged"]
    assert store.pulled.counts() == {"quarantined": 1, "admitted": 1, "rejected": 0}
    assert store.pulled.reject(id_of(one), by="ben") == [id_of(one)]
    assert store.pulled.reject(id_of(one), by="cyd") == []
    assert shows(store, one, other) == set()
    text = str(rows_by_table(store)).replace(one.digest, "")
    for gone in ("a sentence to be gone", "fees of month 1", "ignore what you were told"):
        assert gone not in text
    kept = store.pulled.get(id_of(one))
    assert (store.pulled.trace(id_of(one)), kept.objective, kept.findings) == (None, "", [])
    # It stays so whatever a registry says, also under another id, until it is forgotten.
    for again in (one, unit(1, content="second"), unit(7, digest=one.digest)):
        assert write(store, again) == ["rejected"]
    assert write(store, one, registry=ELSEWHERE) == ["rejected"]
    with pytest.raises(StoreError, match="kp-langchain registry quarantine forget kp:trace:0000"):
        store.pulled.admit(id_of(one), by="ada")
    assert store.pulled.forget(id_of(one), "kp:trace:unknown") == [id_of(one)]
    assert write(store, one) == ["new"]


def test_a_unit_that_changed_or_comes_from_elsewhere_is_not_shown(store):
    one = unit(content="harmless")
    write(store, one)
    store.pulled.admit(id_of(one), by="ada")
    assert write(store, unit(content="poisoned"), registry=ELSEWHERE) == ["other registry"]
    assert shows(store, one) == {id_of(one)}
    assert "poisoned" not in str(rows_by_table(store))
    store.recall_tasks.write({id_of(one): TaskVector(None)}, EmbedderIdentity("m"), 1)
    assert write(store, unit(content="poisoned", findings=(FINDING,))) == ["changed"]
    assert shows(store, one) == set()
    kept = store.pulled.get(id_of(one))
    assert (kept.state, kept.decided_by, kept.findings) == ("quarantined", "ada", [FINDING])
    assert kept.changed_at >= kept.decided_at
    assert store.pulled.trace(id_of(one)).steps[0].content == "poisoned"
    assert rows_by_table(store)["vectors"] == []  # what recall knew of its text
    # Own runs are neither replaced nor shadowed, in any letters, sent and deleted ones included.
    store.add(_scored(trace_id=id_of(unit(1))))
    store.add(_scored(trace_id="kp:trace:abcdef", visibility="network"), registry=REGISTRY)
    upper = unit(2).trace.model_copy(update={"id": "kp:trace:ABCDEF"})
    assert write(store, unit(1), ExaminedUnit(upper, "x")) == ["own run", "own run"]
    sent = replace(store.outbox.get("kp:trace:abcdef"), state="sent", attempts=1)
    store.outbox.save(sent)
    store.delete("kp:trace:abcdef")
    assert write(store, ExaminedUnit(upper, "y")) == ["own run"]


def test_only_clean_units_that_never_changed_are_admitted_by_rule(store):
    clean, poor, found, changed = unit(1), unit(2, quality=0.7), unit(3), unit(4)
    write(store, clean, poor, replace(found, findings=(FINDING,)), changed)
    assert write(store, unit(4, content="other words")) == ["changed"]
    others = [id_of(poor), id_of(found), id_of(changed)]
    assert store.pulled.admit_clean(others, min_quality=0.8) == []
    assert store.pulled.admit_clean([*others, id_of(clean)], min_quality=0.8) == [id_of(clean)]
    by_rule = store.pulled.get(id_of(clean)).decided_by
    assert by_rule == "rule: no findings, claimed quality at least 0.8"
    assert store.pulled.admit_clean(others) == [id_of(poor)]
    quarantined = {one.trace_id for one in store.pulled.units(state="quarantined")}
    assert quarantined == {id_of(found), id_of(changed)}


def test_units_are_listed_and_found_by_the_beginning_of_their_id(store):
    write(store, unit(1), unit(2))
    write(store, unit(31, domain="legal"), domain="legal")
    first, second, third = (id_of(unit(number)) for number in (1, 2, 31))
    for options, expected in (
        ({}, [third, second, first]), ({"domain": "legal"}, [third]),
        ({"limit": 2}, [third, second]), ({"limit": None}, [third, second, first]),
    ):  # fmt: skip
        assert [one.trace_id for one in store.pulled.units(**options)] == expected
    assert store.pulled.get("00000000-0000-4000-8000-000000000002").trace_id == second
    hostile = unit(1)
    hostile.trace.id = first[:-4]
    write(store, replace(hostile, digest="hostile"))
    assert store.pulled.get(hostile.trace.id).trace_id == hostile.trace.id
    for several in ("0000", hostile.trace.id.removeprefix("kp:trace:")):
        with pytest.raises(StoreError, match="may mean several"):
            store.pulled.get(several)
    assert store.pulled.get("ffff") is None
    with pytest.raises(ConfigError, match="negat"):
        store.pulled.units(limit=-1)
    for decide in (store.pulled.admit, store.pulled.reject):
        with pytest.raises(StoreError, match="no unit 'kp:trace:none' was pulled"):
            decide(first, "kp:trace:none", by="ada")
    assert store.pulled.counts()["quarantined"] == 4


def test_hostile_text_is_stored_clean(store):
    one = unit(content="a\x00b", findings=({"kind": "k", "words": "\x00\udfff"},))
    one.trace.task.objective = "x\x00" * 20_000
    assert write(store, one, unit(2)) == ["new", "new"]
    kept = store.pulled.get(id_of(one))
    assert len(kept.objective) <= 10_000
    assert kept.findings == [{"kind": "k", "words": "\ufffd\ufffd"}]
    assert store.pulled.trace(id_of(one)).steps[0].content == "a\ufffdb"
    assert store.pulled.reject(id_of(one), by="ada") == [id_of(one)]


# ------------------------------------------------------------------ following the vectors

# Each of three transactions appears twice: where it writes for the first time, and where it ends.
ORDERS = sorted(set(permutations("aabbcc")))[::4]


class Reader:
    """What one process has seen of the rows of a kind."""

    def __init__(self, store: TraceStore, kind: str) -> None:
        self.seen: set[str] = set()
        self.number_read = 0
        self.pages: list[Page[Any]] = []

        def read(connection: sa.Connection, since: vectors.Mark | None) -> Iterator[Sequence[Any]]:
            columns = tables.vectors.c
            select = sa.select(columns.trace_id).where(columns.kind == kind)
            if since is not None:
                select = select.where(since.unseen(columns.change))
            yield connection.execute(select.order_by(columns.number)).all()

        self.follower = Follower(store.database, read)

    def look(self) -> set[str]:
        self.pages.clear()
        self.follower.read(self.take)
        return self.seen

    def take(self, page: Page[Any]) -> None:
        self.pages.append(page)
        self.seen |= {row.trace_id for row in page.rows}
        self.number_read += len(page.rows)


def insert(connection: sa.Connection, kind: str, trace_id: str) -> None:
    row = {"kind": kind, "trace_id": trace_id, "model": "", "revision": "", "baseline": 0.0}
    vectors.write(connection, [row])


def test_no_order_of_concurrent_commits_hides_a_row_or_has_it_read_twice(new_postgres_url):
    """Numbers of a sequence would: one that is higher may be seen before one that is lower."""
    with TraceStore(new_postgres_url()) as store:
        engine = store.database.open()
        assert len(ORDERS) == 23
        for order in ORDERS:
            kind = "".join(order)
            reader, committed = Reader(store, kind), set()
            with ExitStack() as open_ones:
                under_way: dict[str, tuple[ExitStack, sa.Connection]] = {}
                for name in order:
                    if name not in under_way:
                        transaction = open_ones.enter_context(ExitStack())
                        connection = transaction.enter_context(
                            connections.write_transaction(engine)
                        )
                        insert(connection, kind, f"first of {name}")
                        under_way[name] = transaction, connection
                    else:
                        transaction, connection = under_way[name]
                        insert(connection, kind, f"second of {name}")
                        transaction.close()
                        committed |= {f"first of {name}", f"second of {name}"}
                    assert reader.look() == committed, order
            assert len(committed) == reader.number_read == 6  # each is read once
            assert Reader(store, kind).look() == committed


def test_what_a_transaction_writes_after_it_has_read_is_read_later(new_postgres_url):
    url = new_postgres_url()
    with TraceStore(url) as store, TraceStore(url) as other:
        reader = Reader(store, "s")
        with store.database.writing() as connection:
            insert(connection, "s", "a")
            with other.database.writing() as elsewhere:
                insert(elsewhere, "s", "b")
            reader.follower.read(reader.take, connection)
            insert(connection, "s", "c")
        assert reader.look() == {*"abc"}
        reader.look()
        assert reader.pages == []


def test_changes_of_a_server_that_counts_otherwise_are_not_read_for_ever(new_postgres_url):
    url = new_postgres_url()
    with TraceStore(url) as store:
        with store.database.writing() as connection:
            insert(connection, "run", "a")
        execute(store, "UPDATE vectors SET change = 1000000000000")  # as in a restored backup
    with TraceStore(url) as store:
        reader = Reader(store, "run")
        assert reader.look() == {"a"}
        with store.database.writing() as connection:
            insert(connection, "run", "b")
        reader.look()
        assert [row.trace_id for page in reader.pages for row in page.rows] == ["b"]


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
    reader.follower._anew_every_s = LONG_S  # as in the middle of a long deletion
    for is_anew in (True, False, False):
        store.add(gone := _scored())
        store.delete(gone.trace.id)
        reader.look()
        assert any(page.is_anew for page in reader.pages) is is_anew
    with store.database.writing() as connection:
        insert(connection, "s", "c")
    assert reader.look() == {*"abc"}
    reader.follower._anew_at = 0.0
    reader.look()
    assert [page.is_anew for page in reader.pages] == [True]
