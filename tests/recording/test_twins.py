"""Repeats of kept runs, through real agents and real stores: one of each is kept, the surest."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from kp_langchain import (
    DomainPolicy,
    KPCallbackHandler,
    Registry,
    ScoredTrace,
    Scorer,
    TraceStore,
)
from kp_langchain.errors import StoreError
from kp_langchain.gate.recent_values import RecentValues
from kp_langchain.recording import kept_memory
from kp_langchain.store import StoredRun
from kp_langchain.store.kept_traces import KeptPage, KeptTraces
from tests.agents import agent, call, handler, say
from tests.loopback_registry import LoopbackRegistry
from tests.recording.test_worth import model

EVERY = DomainPolicy(threshold=0.0)
CONFIDENCE_COUNTS = {
    "complexity": 0.1, "novelty": 0.0, "tool_diversity": 0.1, "outcome_confidence": 0.8,
}  # fmt: skip
SUCCESSES = DomainPolicy(threshold=0.6, weights=CONFIDENCE_COUNTS)


class Words:
    """Counts words, so that texts that share most of them are similar."""

    def __init__(self, baseline: float = 0.0) -> None:
        self.baseline = baseline
        self.texts = 0
        self._places: dict[str, int] = {}

    def embed(self, texts: list[str]) -> np.ndarray:
        self.texts += len(texts)
        vectors = np.zeros((len(texts), 256), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.split():
                row[sum(word.encode()) % 256] += 1
        return vectors


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    with TraceStore(url) as store:
        yield store


def ask(watching: KPCallbackHandler, question: str = "what is a?", **config: Any) -> ScoredTrace:
    """Have an agent search once and answer; the same question gives the same trace."""
    searching = agent(say("I search.", call("search", q=question)), say("42"))
    inputs = {"messages": [("user", question)]}
    searching.invoke(inputs, {"callbacks": [watching], **config})
    scored = watching.last(60)
    assert scored is not None
    return scored


def sure(confidence: float) -> Callable[[object], dict[str, float]]:
    """An outcome function with an estimate, which is no verdict."""
    return lambda _: {"confidence": confidence}


def stored(store: TraceStore, scored: ScoredTrace) -> StoredRun:
    run = store.get(scored.trace.id)
    assert run is not None
    return run


def kept(store: TraceStore) -> set[str]:
    return {run.trace_id for run in store.runs(decision="contributed")}


# ------------------------------------------------------------------ one of each


def test_of_ten_identical_runs_one_is_kept(store: TraceStore) -> None:
    watching = handler(store=store, policy=EVERY)
    first, *others = [ask(watching) for _ in range(10)]
    assert first.decision == "contributed"
    assert kept(store) == {first.trace.id}
    for other in others:
        assert (other.decision, other.twin_of) == ("below_threshold", first.trace.id)
        assert other.similarity_to_twin == 1.0
        run = stored(store, other)
        assert (run.decision, run.twin_of, run.similarity_to_twin) == (
            "below_threshold",
            first.trace.id,
            1.0,
        )
        assert run.kept_until is not None  # for a verdict
    assert watching.stats()["contributed"] == 1
    assert list(store.traces()) == [first.trace]


def test_a_low_weight_of_novelty_does_not_have_them_all_kept(store: TraceStore) -> None:
    weights = {"complexity": 0.3, "novelty": 0.0, "tool_diversity": 0.2, "outcome_confidence": 0.5}
    for policy, number in (
        (DomainPolicy(weights=weights, threshold=0.4), 1),
        (DomainPolicy(weights=weights, threshold=0.4, twin_similarity=1), 10),
    ):
        domain = f"with {number}"
        watching = handler(domain, store=store, policy=policy, scorer=Scorer(embedder=Words()))
        runs = [ask(watching) for _ in range(10)]
        assert all(run.breakdown.total >= 0.4 for run in runs)
        assert sum(run.decision == "contributed" for run in runs) == number
        assert store.count(domain=domain, decision="contributed") == number


def test_without_a_store_the_handler_remembers_what_it_kept() -> None:
    watching = handler(policy=EVERY)
    first, second = ask(watching), ask(watching)
    assert (first.decision, second.twin_of) == ("contributed", first.trace.id)
    assert ask(watching, "what is b?").decision == "contributed"


def test_each_domain_keeps_its_own(store: TraceStore) -> None:
    for domain in ("finance", "code"):
        assert ask(handler(domain, store=store, policy=EVERY)).decision == "contributed"


def test_nearly_the_same_run_is_a_twin_and_another_one_is_not(store: TraceStore) -> None:
    watching = handler(store=store, policy=EVERY, scorer=Scorer(embedder=Words()))
    first = ask(watching, "find out how many people lived in Rome in the year 1900 please")
    near = ask(watching, "find out how many people lived in Rome in the year 1901 please")
    other = ask(watching, "which river flows through the city of Hamburg into the sea")
    assert near.twin_of == first.trace.id
    assert near.similarity_to_twin is not None
    assert 0.9 < near.similarity_to_twin < 1.0
    assert near.breakdown.novelty.value == pytest.approx(1 - near.similarity_to_twin, abs=1e-5)
    assert kept(store) == {first.trace.id, other.trace.id}


def test_similarity_is_counted_from_the_baseline_of_the_embedder() -> None:
    watching = handler(policy=EVERY, scorer=Scorer(embedder=Words(baseline=0.9)))
    ask(watching, "find out how many people lived in Rome in the year 1900 please")
    near = ask(watching, "find out how many people lived in Rome in the year 1901 please")
    assert near.decision == "contributed"


def test_no_text_is_embedded_twice(store: TraceStore) -> None:
    embedder = Words()
    watching = handler(store=store, policy=EVERY, scorer=Scorer(embedder=embedder))
    for number in range(3):
        ask(watching, f"what is {number}?")
    assert embedder.texts == 3


def test_a_scorer_of_another_kind_finds_the_same_text(store: TraceStore) -> None:
    class Plain:
        def evaluate(self, trace: Any, **_: Any) -> Any:
            return Scorer(embedder=None).score(trace)

    watching = handler(store=store, policy=EVERY, scorer=Plain())
    first, second = ask(watching), ask(watching)
    assert second.twin_of == first.trace.id
    assert ask(watching, "what is b?").decision == "contributed"


@pytest.mark.parametrize("entry", [None, "no entry", RuntimeError("broken")])
def test_a_scorer_whose_entry_is_of_no_use_costs_no_run(entry: object) -> None:
    class Odd(Scorer):
        def entry(self, trace: Any) -> Any:
            if isinstance(entry, Exception):
                raise entry
            return entry

    watching = handler(policy=EVERY, scorer=Odd(embedder=None))
    first, second = ask(watching), ask(watching)
    assert second.twin_of == first.trace.id
    assert watching.stats()["scorer_errors"] == 0


# ------------------------------------------------------------------ several handlers, restarts


def test_a_restart_in_between_changes_nothing(url: str) -> None:
    scorer = Scorer(embedder=Words())
    with TraceStore(url) as store:
        first = ask(handler(store=store, policy=EVERY, scorer=scorer), "how many live in Rome now")
    with TraceStore(url) as store:
        again = handler(store=store, policy=EVERY, scorer=Scorer(embedder=Words()))
        near = ask(again, "how many live in Rome now then")
        assert near.twin_of == first.trace.id
        assert near.similarity_to_twin is not None
        assert near.similarity_to_twin < 1.0
        assert ask(again, "which river is the longest of all").decision == "contributed"


def test_what_is_kept_is_not_forgotten_for_newer_runs(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = Scorer(embedder=Words(), max_remembered=2)
    watching = handler(store=store, policy=EVERY, scorer=scorer)
    first = ask(watching, "how many live in Rome now")
    for number in range(4):
        ask(watching, f"{number} something {number} else {number} that {number} is {number} new")
    repeat = ask(watching, "how many live in Rome now")
    assert repeat.breakdown.nearest is not None
    assert repeat.breakdown.nearest.trace_id != first.trace.id
    assert repeat.twin_of == first.trace.id


def test_two_handlers_of_one_store_know_what_the_other_kept(store: TraceStore) -> None:
    one, two = (handler(store=store, policy=EVERY) for _ in range(2))
    first = ask(one)
    assert ask(two).twin_of == first.trace.id


@pytest.mark.filterwarnings("ignore:Direct attribute assignment:DeprecationWarning")
def test_of_identical_runs_on_several_lanes_one_is_kept(store: TraceStore) -> None:
    scored: list[ScoredTrace] = []
    begin = threading.Barrier(4)
    # Functions of their own give them lanes of their own.
    watching = [
        handler(store=store, policy=EVERY, on_scored=lambda run: scored.append(run))
        for _ in range(4)
    ]

    def work(one: KPCallbackHandler) -> None:
        begin.wait(60)
        for _ in range(3):
            ask(one)

    threads = [threading.Thread(target=work, args=(one,)) for one in watching]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert all(one.flush(60) for one in watching)
    assert len(scored) == 12
    assert len(kept(store)) == 1


def test_traces_of_one_run_by_two_handlers_are_no_twins(store: TraceStore) -> None:
    both = [handler(store=store, policy=EVERY) for _ in range(2)]
    for twins in (0, 2):
        searching = agent(say("I search.", call("search", q="a")), say("42"))
        searching.invoke({"messages": [("user", "what is a?")]}, {"callbacks": both})
        runs = [one.last(60) for one in both]
        assert sum(run is not None and run.twin_of is not None for run in runs) == twins
    assert len(kept(store)) == 2


def test_what_another_process_keeps_counts_at_once(url: str) -> None:
    """As two workers do it, each with a connection of its own."""
    with TraceStore(url) as here, TraceStore(url) as elsewhere:
        one, two = (
            handler(store=store, policy=EVERY, outcome=sure(0.5)) for store in (here, elsewhere)
        )
        for number in range(3):
            question = f"what is {number}?"
            first = ask(two if number % 2 else one, question)
            assert one.flush(60)
            assert two.flush(60)
            assert first.decision == "contributed"
            for watching in (one, two):
                assert ask(watching, question).twin_of == first.trace.id
        surer = ask(handler(store=elsewhere, policy=EVERY, outcome=sure(0.8)), question)
        assert two.flush(60)
        assert surer.replaces == (first.trace.id,)
        assert ask(one, question).twin_of == surer.trace.id


def test_a_verdict_in_another_process_counts_at_once(url: str) -> None:
    with TraceStore(url) as here, TraceStore(url) as elsewhere:
        watching = handler(store=here, policy=SUCCESSES)
        first = ask(watching)
        assert watching.flush(60)
        elsewhere.report_outcome(first.trace.id, success=False)
        assert ask(watching).decision == "contributed"


def test_what_this_process_keeps_is_not_read_whole_again(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[KeptPage | None] = []
    read = KeptTraces.read

    def noted(self: KeptTraces, *args: Any, **kwargs: Any) -> KeptPage | None:
        pages.append(read(self, *args, **kwargs))
        return pages[-1]

    monkeypatch.setattr(KeptTraces, "read", noted)
    watching = handler(store=store, policy=EVERY)
    for number in range(5):
        assert ask(watching, f"what is {number}?").decision == "contributed"
        assert watching.flush(60)
    assert sum(page is not None and page.is_whole for page in pages) == 1
    assert [len(page.traces) for page in pages if page is not None] == [0, 1, 1, 1, 1]


def test_a_run_that_never_reached_the_store_is_forgotten(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise TypeError("not to be written")

    watching = handler(store=store, policy=EVERY)
    with monkeypatch.context() as patch:
        patch.setattr("kp_langchain.store.rows.row_of", lose)
        patch.setattr("kp_langchain.store.trace_store.row_of", lose)
        lost = ask(watching)
    assert watching.stats()["not_stored"] == 1
    monkeypatch.setattr(kept_memory, "_READ_AGAIN_S", 0.0)
    assert ask(watching).twin_of == lost.trace.id
    monkeypatch.setattr(kept_memory, "_LOST_AFTER_S", 0.0)
    assert ask(watching, "what is b?").decision == "contributed"
    assert ask(watching).decision == "contributed"


def test_while_the_store_cannot_be_read_runs_are_compared_with_those_of_the_process(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("it is away")

    monkeypatch.setattr(KeptTraces, "read", fail)
    watching = handler(store=store, policy=EVERY)
    with caplog.at_level(logging.WARNING, "kp_langchain"):
        first, second = ask(watching), ask(watching)
    assert (first.decision, second.twin_of) == ("contributed", first.trace.id)
    assert caplog.text.count("the kept runs cannot be read") == 1


# ------------------------------------------------------------------ the surer one


def test_a_surer_run_takes_the_place_of_the_kept_one(store: TraceStore) -> None:
    first = ask(handler(store=store, policy=EVERY, outcome=sure(0.5)))
    close = ask(handler(store=store, policy=EVERY, outcome=sure(0.6)))
    surer = ask(handler(store=store, policy=EVERY, outcome=sure(0.7)))
    assert (close.decision, close.twin_of) == ("below_threshold", first.trace.id)
    assert (surer.decision, surer.replaces) == ("contributed", (first.trace.id,))
    old, new = stored(store, first), stored(store, surer)
    assert (old.decision, old.replaced_by) == ("below_threshold", surer.trace.id)
    assert (new.decision, new.replaced_by, new.twin_of) == ("contributed", None, None)
    assert old.kept_until is not None
    assert abs(old.kept_until - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=10)
    # It is the new one that others are held against now.
    assert ask(handler(store=store, policy=EVERY, outcome=sure(0.7))).twin_of == surer.trace.id


def test_what_a_replaced_run_leaves_is_what_its_policy_says(store: TraceStore) -> None:
    for domain, policy, is_kept in (
        ("a", DomainPolicy(threshold=0.0, keep="all"), True),
        ("b", DomainPolicy(threshold=0.0, keep_days=0), False),
    ):
        first = ask(handler(domain, store=store, policy=policy, outcome=sure(0.5)))
        ask(handler(domain, store=store, policy=policy, outcome=sure(0.8)))
        old = stored(store, first)
        assert (old.decision, old.kept, old.kept_until) == ("below_threshold", is_kept, None)


def test_one_that_is_replaced_is_withdrawn_in_the_outbox_and_from_the_registry(
    store: TraceStore,
) -> None:
    policy = DomainPolicy(threshold=0.0, visibility="network")
    with LoopbackRegistry() as registry:
        options: dict[str, Any] = {
            "store": store,
            "policy": policy,
            "registry": Registry(registry.url, api_key="kp_key"),
        }
        sender = handler(outcome=sure(0.5), **options)
        first = ask(sender)
        assert sender.send(60)
        assert list(registry.units) == [first.trace.id]
        sender = handler(outcome=sure(0.8), **options)
        surer = ask(sender)
        assert sender.send(60)
        assert list(registry.units) == [surer.trace.id]
        twin = ask(sender)
        assert sender.send(60)
        assert list(registry.units) == [surer.trace.id]
    assert store.outbox.get(twin.trace.id) is None
    assert store.outbox.counts() == {"pending": 0, "sent": 1, "dead": 0, "withdrawn": 1}


def test_one_that_is_replaced_before_it_was_sent_never_leaves(store: TraceStore) -> None:
    policy = DomainPolicy(threshold=0.0, visibility="network")
    first = ask(handler(policy=policy, outcome=sure(0.5)))
    surer = ask(handler(policy=policy, outcome=sure(0.8)))
    surer = replace(surer, replaces=(first.trace.id,))
    store.add_many([first, surer], registry="https://registry.example.org")
    assert store.outbox.counts() == {"pending": 1, "sent": 0, "dead": 0, "withdrawn": 1}
    assert kept(store) == {surer.trace.id}


def test_a_verdict_is_not_replaced_by_an_estimate(store: TraceStore) -> None:
    stated = handler(
        store=store, policy=EVERY, outcome=lambda _: {"success": True, "confidence": 0.5}
    )
    first = ask(stated)
    assert ask(handler(store=store, policy=EVERY, outcome=sure(1.0))).twin_of == first.trace.id
    surer = ask(handler(store=store, policy=EVERY, outcome=lambda _: True))
    assert surer.replaces == (first.trace.id,)


def test_by_worth_the_confidence_of_the_model_is_what_counts(store: TraceStore) -> None:
    store.models.install(model())  # by which every run is right with the same probability
    policy = DomainPolicy(gate="worth", worth_threshold=0.0)
    first, twin = (ask(handler(store=store, policy=policy)) for _ in range(2))
    assert (first.gate, first.decision, twin.twin_of) == ("worth", "contributed", first.trace.id)
    (change,) = store.report_outcome(twin.trace.id, success=True)
    assert (change.decision, change.replaces) == ("contributed", (first.trace.id,))


# ------------------------------------------------------------------ verdicts that come later


def test_a_twin_of_a_kept_run_that_failed_is_kept(store: TraceStore) -> None:
    watching = handler(store=store, policy=SUCCESSES)
    first = ask(watching)
    (change,) = store.report_outcome(first.trace.id, success=False)
    assert change.decision == "below_threshold"
    assert ask(watching).decision == "contributed"


def test_a_confirmed_twin_takes_the_place_of_one_that_only_looked_right(store: TraceStore) -> None:
    watching = handler(store=store, policy=EVERY)
    first, twin, another = (ask(watching) for _ in range(3))
    (change,) = store.report_outcome(twin.trace.id, success=True)
    assert (change.decision, change.twin_of, change.replaces) == (
        "contributed",
        None,
        (first.trace.id,),
    )
    assert stored(store, first).replaced_by == twin.trace.id
    assert kept(store) == {twin.trace.id}
    # The next one is no surer: a verdict states both.
    (change,) = store.report_outcome(another.trace.id, success=True)
    assert (change.decision, change.twin_of) == ("below_threshold", twin.trace.id)
    assert stored(store, another).similarity_to_twin == 1.0
    assert ask(watching).twin_of == twin.trace.id


def test_a_twin_whose_kept_run_left_passes_by_a_verdict(store: TraceStore) -> None:
    watching = handler(store=store, policy=SUCCESSES)
    first, twin = ask(watching), ask(watching)
    store.report_outcome(first.trace.id, success=False)
    (change,) = store.report_outcome(twin.trace.id, success=True)
    assert (change.decision, change.replaces) == ("contributed", ())
    store.report_outcome(twin.trace.id, success=False)
    run = stored(store, twin)
    assert (run.decision, run.twin_of) == ("below_threshold", None)  # below by its own score


def test_of_twins_that_verdicts_lift_over_the_threshold_one_is_kept(store: TraceStore) -> None:
    scorer = Scorer(embedder=Words())
    watching = handler(store=store, policy=SUCCESSES, scorer=scorer, outcome=sure(0.5))
    runs = [
        ask(watching, question)
        for question in ("how many live in Rome now", "how many live in Rome now then") * 2
    ]
    assert {run.decision for run in runs} == {"below_threshold"}
    for run in runs:
        store.report_outcome(run.trace.id, success=True)
    assert kept(store) == {runs[0].trace.id}
    assert [stored(store, run).twin_of for run in runs[1:]] == [runs[0].trace.id] * 3
    assert [stored(store, run).similarity_to_twin == 1.0 for run in runs[1:]] == [
        False, True, False,
    ]  # fmt: skip


def test_a_replaced_run_that_a_verdict_confirms_takes_its_place_back(store: TraceStore) -> None:
    first = ask(handler(store=store, policy=EVERY, outcome=sure(0.5)))
    surer = ask(handler(store=store, policy=EVERY, outcome=sure(0.7)))
    (change,) = store.report_outcome(first.trace.id, success=True)
    assert (change.decision, change.replaces) == ("contributed", (surer.trace.id,))
    assert stored(store, first).replaced_by is None
    assert stored(store, surer).replaced_by == first.trace.id


def test_a_verdict_on_a_run_of_two_handlers_lifts_both_traces(store: TraceStore) -> None:
    both = [handler(store=store, policy=SUCCESSES, outcome=sure(0.3)) for _ in range(2)]
    run_id = uuid4()
    searching = agent(say("I search.", call("search", q="a")), say("42"))
    searching.invoke({"messages": [("user", "what is a?")]}, {"callbacks": both, "run_id": run_id})
    assert all(one.flush(60) for one in both)
    assert kept(store) == set()
    changes = store.report_outcome(str(run_id), success=True)
    assert [change.decision for change in changes] == ["contributed", "contributed"]


def test_a_verdict_through_the_handler_counts_for_the_next_run(store: TraceStore) -> None:
    watching = handler(store=store, policy=SUCCESSES)
    first = ask(watching)
    watching.report_outcome(first.trace.id, success=False)
    assert watching.flush(60)
    second = ask(watching)
    assert second.decision == "contributed"
    watching.report_outcome(second.trace.id, success=True)
    assert watching.flush(60)
    assert ask(watching).twin_of == second.trace.id


def test_with_the_rule_off_verdicts_lift_every_twin(store: TraceStore) -> None:
    policy = SUCCESSES.model_copy(update={"twin_similarity": 1.0})
    watching = handler(store=store, policy=policy, outcome=sure(0.3))
    runs = [ask(watching) for _ in range(3)]
    for run in runs:
        store.report_outcome(run.trace.id, success=True)
    assert len(kept(store)) == 3


# ------------------------------------------------------------------ what is said of it


def test_the_log_names_the_kept_one(caplog: pytest.LogCaptureFixture) -> None:
    watching = handler(policy=EVERY, outcome=sure(0.5))
    with caplog.at_level(logging.INFO, "kp_langchain"):
        first, second = ask(watching), ask(watching)
    kept_one, twin = (one for one in caplog.records if one.kp_event == "kp.trace_scored")
    assert (kept_one.twin_of, kept_one.replaces) == (None, [])
    assert (twin.twin_of, twin.similarity_to_twin) == (first.trace.id, 1.0)
    assert f"kp.trace_scored default twin (threshold 0.00) {second.breakdown.line()}" in caplog.text


def test_the_pass_rate_makes_up_for_twins_and_replaced_runs_also_over_a_restart(
    store: TraceStore,
) -> None:
    confidences = itertools.cycle([0.3, 0.5, 0.45, 0.7, 0.35, 0.95, 0.6, 0.9, 0.55, 0.8])
    watching = handler(
        store=store,
        policy=DomainPolicy(pass_rate=0.4, weights=CONFIDENCE_COUNTS),
        outcome=lambda _: {"confidence": next(confidences)},
    )
    runs = [ask(watching, f"what is {number % 37}?") for number in range(120)]
    assert any(run.twin_of for run in runs)
    assert any(run.replaces for run in runs)
    judged = store.recent_values("default")
    assert len(judged) == 120
    # The threshold of this process, which counts as it goes, is that of the next one.
    after_restart = RecentValues(judged=judged).threshold(0.4)
    assert ask(watching, "what is last?").threshold == pytest.approx(after_restart)


def test_twins_do_not_count_as_passed_for_the_pass_rate(store: TraceStore) -> None:
    watching = handler(store=store, policy=EVERY, outcome=sure(0.5))
    first, *_ = [ask(watching) for _ in range(3)]
    surer = ask(handler(store=store, policy=EVERY, outcome=sure(0.9)))
    assert first.decision == surer.decision == "contributed"
    assert [run.passes for run in store.recent_values("default")] == [True, False, False, False]
