"""What is held against earlier runs: novelty, repeats of kept runs, and what a run was shown."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import sqlalchemy as sa
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import create_retriever_tool

from kp_langchain import (
    DomainPolicy,
    KPCallbackHandler,
    KPRetriever,
    Registry,
    ScoredTrace,
    Scorer,
    TraceStore,
    default_scorer,
    evaluate_value,
)
from kp_langchain.gate import ShownTrace
from kp_langchain.gate.check import RecentValues
from kp_langchain.recall.few_shot import HEADER
from kp_langchain.recording import windows
from kp_langchain.recording.langchain_context import ambient_run_id
from kp_langchain.scoring import process_scorer
from kp_langchain.store import kept_runs
from kp_langchain.store import novelty as novelty_module
from kp_langchain.store.journal import Journal
from tests.agents import agent, call, handler, say, shape
from tests.loopback_registry import LoopbackRegistry
from tests.recall.words import EURO, Words, keep, passing_handler
from tests.recording.playing import Events, last, scored_by, stored
from tests.recording.test_verdicts import model
from tests.store.conftest import LONG_S, execute

EVERY = DomainPolicy(threshold=0.0)
CONFIDENCE_COUNTS = {
    "complexity": 0.1, "novelty": 0.0, "tool_diversity": 0.1, "outcome_confidence": 0.8,
}  # fmt: skip
SUCCESSES = DomainPolicy(threshold=0.6, weights=CONFIDENCE_COUNTS)
ROME = "how many live in Rome now"


class WordCounts:
    """Counts words, so that texts that share most of them are similar."""

    def __init__(self, baseline: float = 0.0) -> None:
        self.baseline = baseline
        self.texts = 0

    def embed(self, texts: Sequence[str]) -> Any:
        self.texts += len(texts)
        vectors = np.zeros((len(texts), 256), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.split():
                row[sum(word.encode()) % 256] += 1
        return vectors


def words(**options: Any) -> Scorer:
    return Scorer(embedder=WordCounts(), **options)


@pytest.fixture(autouse=True)
def small_default_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_scorer, "_default_scorer", words())


@pytest.fixture
def store() -> Iterator[TraceStore]:
    with TraceStore("runs.db") as store:
        yield store


def ask(watching: KPCallbackHandler, question: str = "what is a?", **config: Any) -> ScoredTrace:
    """Have an agent search once and answer; the same question gives the same trace."""
    searching = agent(say("I search.", call("search", q=question)), say("42"))
    return last(watching, searching, {"messages": [("user", question)]}, **config)


def novelty(text: str, watching: KPCallbackHandler) -> float:
    return round(ask(watching, text).breakdown.novelty.value, 6)


def sure(confidence: float) -> Callable[[object], dict[str, float]]:
    """An outcome function with an estimate, which is no verdict."""
    return lambda _: {"confidence": confidence}


def keeping(store: TraceStore | None, confidence: float | None = None, **options: Any) -> Any:
    """A handler that keeps whatever is no repeat."""
    if confidence is not None:
        options["outcome"] = sure(confidence)
    return handler(store=store, **{"policy": EVERY, **options})


def kept(store: TraceStore) -> set[str]:
    return {run.trace_id for run in store.runs(decision="kept")}


# ------------------------------------------------------------------ one of each


def test_of_identical_runs_one_is_kept(url: str) -> None:
    with TraceStore(url) as store:
        watching = keeping(store)
        first, *others = [ask(watching) for _ in range(4)]
        assert first.decision == "kept"
        assert kept(store) == {first.trace.id}
        for other in others:
            assert (other.decision, other.twin_of) == ("twin", first.trace.id)
            run = stored(store, other)
            assert (run.twin_of, run.similarity_to_twin) == (first.trace.id, 1.0)
            assert run.kept_until is not None  # for a verdict
        stats = watching.stats()
        assert (stats["scored"], stats["kept"], stats["below_threshold"], stats["twin"]) == (
            4, 1, 0, 3,
        )  # fmt: skip
        assert list(store.traces()) == [first.trace]


def test_of_repeats_that_four_processes_judge_at_the_same_time_one_is_kept(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_judged, waited = threading.Barrier(4), set()
    write_judged = Journal.write_judged

    def write_together(self: Journal, *args: Any) -> Any:
        if self not in waited:
            waited.add(self)
            all_judged.wait(LONG_S)
        return write_judged(self, *args)

    monkeypatch.setattr(Journal, "write_judged", write_together)
    with ExitStack() as stores:
        four = [keeping(stores.enter_context(TraceStore(url))) for _ in range(4)]
        threads = [threading.Thread(target=ask, args=(one,)) for one in four]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S)
        runs = [scored_by(one) for one in four]
        (first,) = (run for run in runs if run.decision == "kept")
        twins = [run.twin_of for run in runs if run.decision == "twin"]
        assert twins == [first.trace.id] * 3
        assert [one.stats()["twin"] for one in four] == [int(run is not first) for run in runs]
        with TraceStore(url) as store:
            assert kept(store) == {first.trace.id}
            assert store.count(decision="twin") == 3


def before_next_write(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen once, between judging a run and writing it."""
    write_judged, acts = Journal.write_judged, [act]

    def act_and_write(self: Journal, *args: Any) -> Any:
        if acts:
            acting = threading.Thread(target=acts.pop())  # the handler's own waits for nothing
            acting.start()
            acting.join(LONG_S)
        return write_judged(self, *args)

    monkeypatch.setattr(Journal, "write_judged", act_and_write)


def failing_once(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Have the next write of a judged run fail when all was compared."""
    write, errors = Journal._write_judged, [error]

    def fail(self: Journal, *args: Any) -> None:
        if errors:
            raise errors.pop()
        write(self, *args)

    monkeypatch.setattr(Journal, "_write_judged", fail)


SAID = [f"w{number}" for number in range(9)]
BETWEEN = ["x", *SAID[1:]]  # is similar to both of the others, which are not to each other
OTHER_END = ["x", "y", *SAID[2:]]


def say_words(store: TraceStore, confidence: float, task: list[str]) -> ScoredTrace:
    policy = DomainPolicy(threshold=0.0, twin_similarity=0.9)
    return ask(keeping(store, confidence, scorer=words(), policy=policy), " ".join(task))


def test_a_run_that_turns_out_a_repeat_takes_the_place_of_none(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TraceStore(url) as one, TraceStore(url) as other:
        first = say_words(one, 0.5, SAID)
        before_next_write(monkeypatch, lambda: say_words(other, 0.7, OTHER_END))
        late = say_words(one, 0.7, BETWEEN)
        assert (late.decision, late.replaces) == ("twin", ())
        assert stored(one, first).decision == "kept"
        assert say_words(one, 0.5, SAID).twin_of == first.trace.id


def test_a_write_that_is_tried_again_takes_the_same_place(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TraceStore(url) as one, TraceStore(url) as other:
        say_words(one, 0.5, ["quite", "another", "task"])  # so that there is something to follow
        before = say_words(other, 0.5, SAID)
        failing_once(monkeypatch, sa.exc.OperationalError("", None, OSError("connection lost")))
        surer = say_words(one, 0.8, BETWEEN)
        assert keeping(one).flush(60)
        assert stored(one, surer).decision == "kept"
        assert stored(one, before).replaced_by == surer.trace.id


def test_a_run_that_cannot_be_written_has_no_repeats(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TraceStore(url) as store:
        watching = keeping(store)
        failing_once(monkeypatch, ValueError("unwritable"))
        lost = ask(watching)
        assert watching.stats()["not_stored"] == 1
        again = ask(watching)
        assert (lost.stored, again.decision, again.stored) == (False, "kept", True)


def test_a_verdict_that_comes_between_judging_and_writing_counts(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TraceStore(url) as one, TraceStore(url) as other:
        watching = keeping(one, policy=SUCCESSES, outcome=lambda _: {"confidence": 0.1})

        def lift() -> None:
            (run_id,) = execute(one, "SELECT trace_id FROM runs WHERE state = 'recorded'")[0]
            other.report_outcome(run_id, success=True)
            ask(keeping(other, policy=SUCCESSES))

        before_next_write(monkeypatch, lift)
        low = ask(watching)
        assert watching.flush(60)
        assert len(kept(one)) == 1
        assert stored(one, low).success


def test_the_same_text_is_a_repeat_however_many_were_kept_since(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "MOST_COMPARED", 2)
    monkeypatch.setattr(kept_runs, "MOST_COMPARED", 2)
    with TraceStore(url) as one, TraceStore(url) as other:
        first = ask(keeping(one), ROME)
        late, watching = keeping(other), keeping(one)
        for number in range(5):
            assert ask(watching, f"{number} " * 9).decision == "kept"
        for each in (watching, late):
            assert ask(each, ROME).twin_of == first.trace.id
        low = ask(keeping(one, policy=SUCCESSES, outcome=lambda _: {"success": False}), ROME)
        one.report_outcome(low.trace.id, success=True)
        assert stored(one, first).replaced_by == low.trace.id


@pytest.mark.parametrize("similarity", [0.9, 1.0])
def test_the_rule_may_be_switched_off(similarity: float, store: TraceStore) -> None:
    policy = SUCCESSES.model_copy(update={"twin_similarity": similarity})
    watching = keeping(store, 0.3, policy=policy)
    for run in [ask(watching) for _ in range(3)]:
        store.report_outcome(run.trace.id, success=True)
    assert len(kept(store)) == (3 if similarity == 1 else 1)


def test_without_a_store_the_handler_remembers_what_it_kept() -> None:
    watching = keeping(None)
    first, second = ask(watching), ask(watching)
    assert (first.decision, second.twin_of) == ("kept", first.trace.id)
    assert ask(watching, "what is b?").decision == "kept"
    sureness = iter((0.2, 0.4, 0.6))
    surer = keeping(None, outcome=lambda _: {"confidence": next(sureness)}, domain="code")
    runs = [ask(surer) for _ in range(3)]
    assert [run.replaces for run in runs] == [(), (runs[0].trace.id,), (runs[1].trace.id,)]


def test_nearly_the_same_run_is_a_twin_and_another_one_is_not(store: TraceStore) -> None:
    embedder = WordCounts()
    watching = keeping(store, scorer=Scorer(embedder=embedder))
    first = ask(watching, "find out how many people lived in Rome in the year 1900 please")
    near = ask(watching, "find out how many people lived in Rome in the year 1901 please")
    other = ask(watching, "which river flows through the city of Hamburg into the sea")
    assert near.twin_of == first.trace.id
    assert near.similarity_to_twin is not None
    assert 0.9 < near.similarity_to_twin < 1.0
    assert near.breakdown.novelty.value == pytest.approx(1 - near.similarity_to_twin, abs=1e-5)
    assert kept(store) == {first.trace.id, other.trace.id}
    assert embedder.texts == 3  # none is embedded twice
    far = keeping(None, scorer=Scorer(embedder=WordCounts(baseline=0.9)))
    ask(far, "find out how many people lived in Rome in the year 1900 please")
    near = ask(far, "find out how many people lived in Rome in the year 1901 please")
    assert near.decision == "kept"


class Plain:
    """A scorer of another kind."""

    def evaluate(self, trace: Any, **_: Any) -> Any:
        return Scorer(embedder=None).score(trace)


def test_any_scorer_finds_the_same_text() -> None:
    watching = keeping(None, scorer=Plain())
    first, second = ask(watching), ask(watching)
    assert second.twin_of == first.trace.id
    assert ask(watching, "what is b?").decision == "kept"
    assert watching.stats()["scorer_errors"] == 0


def test_each_domain_keeps_its_own_and_a_deleted_run_is_forgotten(store: TraceStore) -> None:
    for domain in ("finance", "code"):
        first = ask(keeping(store, domain=domain))
        assert first.decision == "kept"
    store.delete(first.trace.id)
    again = keeping(store, domain="code")
    second = ask(again)
    assert second.decision == "kept"
    assert ask(again).twin_of == second.trace.id


def test_what_is_kept_is_not_forgotten_for_newer_runs_or_a_restart(store: TraceStore) -> None:
    watching = keeping(store, scorer=words(max_remembered=2))
    first = ask(watching, ROME)
    for number in range(4):
        ask(watching, f"{number} something {number} else {number} that {number} is {number} new")
    with TraceStore(store.location) as other:
        for one in (watching, keeping(other, scorer=words())):
            repeat = ask(one, f"{ROME} then")
            assert repeat.twin_of == first.trace.id
            assert repeat.similarity_to_twin is not None
            assert repeat.similarity_to_twin < 1.0


def test_traces_of_one_run_by_two_handlers_are_no_twins(store: TraceStore) -> None:
    both = [keeping(store) for _ in range(2)]
    for twins in (0, 2):
        searching = agent(say("I search.", call("search", q="a")), say("42"))
        searching.invoke({"messages": [("user", "what is a?")]}, {"callbacks": both})
        assert sum(scored_by(one).twin_of is not None for one in both) == twins
    assert len(kept(store)) == 2


@pytest.mark.filterwarnings("ignore:Direct attribute assignment:DeprecationWarning")
def test_of_identical_runs_at_the_same_time_one_is_kept(store: TraceStore) -> None:
    scored: list[ScoredTrace] = []
    begin = threading.Barrier(4)
    # Functions of their own give them threads of their own.
    watching = [keeping(store, on_scored=lambda run: scored.append(run)) for _ in range(4)]

    def work(one: KPCallbackHandler) -> None:
        begin.wait(60)
        for _ in range(3):
            ask(one)

    threads = [threading.Thread(target=work, args=(one,)) for one in watching]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one.flush(60) for one in watching)
    assert len(scored) == 12
    assert len(kept(store)) == 1


def test_what_another_process_keeps_or_judges_counts_at_once(url: str) -> None:
    """As two workers do it, each with a connection of its own."""
    with TraceStore(url) as here, TraceStore(url) as elsewhere:
        one, two = (keeping(each, 0.5) for each in (here, elsewhere))
        first = ask(two)
        assert (first.decision, ask(one).twin_of) == ("kept", first.trace.id)
        surer = ask(keeping(elsewhere, 0.8))
        assert surer.replaces == (first.trace.id,)
        assert ask(one).twin_of == surer.trace.id
        watching = keeping(here, policy=SUCCESSES, domain="code")
        first = ask(watching)
        elsewhere.report_outcome(first.trace.id, success=False)
        assert ask(watching).decision == "kept"


def test_a_run_that_failed_and_whose_body_is_gone_has_no_repeats(url: str) -> None:
    with TraceStore(url) as here, TraceStore(url) as elsewhere:
        watching = keeping(here, policy=SUCCESSES, domain="code")
        first = ask(watching)
        here.report_outcome(first.trace.id, success=False)
        execute(here, "UPDATE runs SET body_expires_at = '2020-01-01 00:00:00'")
        with elsewhere.database.writing():
            pass  # the first write of a process deletes what has expired
        assert stored(here, first).trace is None
        assert ask(watching).decision == "kept"


def test_while_the_store_cannot_be_read_runs_are_compared_with_those_of_the_process(
    caplog: pytest.LogCaptureFixture, folder: Any
) -> None:
    (folder / "dir.db").mkdir()
    watching = keeping(TraceStore("dir.db"))
    first, second = ask(watching), ask(watching)
    assert (first.decision, second.twin_of) == ("kept", first.trace.id)
    assert caplog.text.count("a run cannot be kept in") == 1
    (folder / "dir.db").rmdir()
    assert watching.flush(60)


# ------------------------------------------------------------------ the surer one


def test_a_surer_run_takes_the_place_of_the_kept_one(store: TraceStore) -> None:
    first = ask(keeping(store, 0.5))
    close = ask(keeping(store, 0.6))
    surer = ask(keeping(store, 0.7))
    assert (close.decision, close.twin_of) == ("twin", first.trace.id)
    assert (surer.decision, surer.replaces) == ("kept", (first.trace.id,))
    old, new = stored(store, first), stored(store, surer)
    assert (old.decision, old.replaced_by) == ("twin", surer.trace.id)
    assert (new.decision, new.replaced_by, new.twin_of) == ("kept", None, None)
    assert old.kept_until is not None
    assert abs(old.kept_until - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=10)
    # It is the new one that others are held against now, until a verdict confirms the old one.
    assert ask(keeping(store, 0.7)).twin_of == surer.trace.id
    (change,) = store.report_outcome(first.trace.id, success=True)
    assert (change.decision, change.replaces) == ("kept", (surer.trace.id,))
    assert stored(store, first).replaced_by is None
    assert stored(store, surer).replaced_by == first.trace.id


@pytest.mark.parametrize(
    ("policy", "is_kept"), [({"keep": "all"}, True), ({"keep_days": 0}, False)]
)
def test_what_a_replaced_run_leaves_is_what_its_policy_says(
    policy: dict[str, Any], is_kept: bool, store: TraceStore
) -> None:
    options = {"policy": DomainPolicy(threshold=0.0, **policy)}
    first = ask(keeping(store, 0.5, **options))
    ask(keeping(store, 0.8, **options))
    old = stored(store, first)
    assert (old.decision, old.has_trace, old.kept_until) == ("twin", is_kept, None)


def test_one_that_is_replaced_is_withdrawn_from_the_registry(store: TraceStore) -> None:
    policy = DomainPolicy(threshold=0.0, visibility="network")
    with LoopbackRegistry() as server:
        options = {"policy": policy, "registry": Registry(server.url, api_key="kp_key")}
        for confidence in (0.5, 0.8):
            sender = keeping(store, confidence, **options)
            newest = ask(sender)
            assert sender.send(60)
            assert list(server.units) == [newest.trace.id]
        twin = ask(sender)
        assert sender.send(60)
        assert list(server.units) == [newest.trace.id]
    assert store.outbox.get(twin.trace.id) is None
    assert store.outbox.counts() == {"pending": 0, "sent": 1, "dead": 0, "withdrawn": 1}


def test_a_verdict_is_not_replaced_by_an_estimate(store: TraceStore) -> None:
    first = ask(keeping(store, outcome=lambda _: {"success": True, "confidence": 0.5}))
    assert ask(keeping(store, 1.0)).twin_of == first.trace.id
    assert ask(keeping(store, outcome=lambda _: True)).replaces == (first.trace.id,)


def test_by_worth_the_confidence_of_the_model_is_what_counts(store: TraceStore) -> None:
    store.models.install(model())  # by which every run is right with the same probability
    policy = DomainPolicy(gate="worth", worth_threshold=0.0)
    first, twin = (ask(keeping(store, policy=policy)) for _ in range(2))
    assert (first.gate, first.decision, twin.twin_of) == ("worth", "kept", first.trace.id)


# ------------------------------------------------------------------ verdicts that come later


def test_after_a_verdict_through_the_handler_the_next_repeat_is_judged_anew(
    store: TraceStore,
) -> None:
    watching = keeping(store, policy=SUCCESSES)
    first, twin = ask(watching), ask(watching)
    watching.report_outcome(first.trace.id, success=False)
    assert watching.flush(60)
    (change,) = store.report_outcome(twin.trace.id, success=True)  # its kept run has left
    assert (change.decision, change.replaces) == ("kept", ())
    assert ask(watching).twin_of == twin.trace.id
    store.report_outcome(twin.trace.id, success=False)
    run = stored(store, twin)
    assert (run.decision, run.twin_of) == ("below_threshold", None)  # below by its own score


def test_a_confirmed_twin_takes_the_place_of_one_that_only_looked_right(store: TraceStore) -> None:
    watching = keeping(store)
    first, twin, another = (ask(watching) for _ in range(3))
    (change,) = store.report_outcome(twin.trace.id, success=True)
    assert (change.decision, change.twin_of) == ("kept", None)
    assert change.replaces == (first.trace.id,)
    assert stored(store, first).replaced_by == twin.trace.id
    assert kept(store) == {twin.trace.id}
    # The next one is no surer: a verdict states both.
    (change,) = store.report_outcome(another.trace.id, success=True)
    assert (change.decision, change.twin_of) == ("twin", twin.trace.id)


def test_of_twins_that_verdicts_lift_over_the_threshold_one_is_kept(store: TraceStore) -> None:
    watching = keeping(store, 0.5, policy=SUCCESSES, scorer=words())
    runs = [ask(watching, question) for question in (ROME, f"{ROME} then") * 2]
    assert {run.decision for run in runs} == {"below_threshold"}
    for run in runs:
        store.report_outcome(run.trace.id, success=True)
    assert kept(store) == {runs[0].trace.id}
    twins = [stored(store, run) for run in runs[1:]]
    assert [run.twin_of for run in twins] == [runs[0].trace.id] * 3
    assert [run.similarity_to_twin == 1.0 for run in twins] == [False, True, False]


def test_a_verdict_on_a_run_of_two_handlers_lifts_both_traces(store: TraceStore) -> None:
    both, run_id = [keeping(store, 0.3, policy=SUCCESSES) for _ in range(2)], uuid4()
    searching = agent(say("I search.", call("search", q="a")), say("42"))
    searching.invoke({"messages": [("user", "what is a?")]}, {"callbacks": both, "run_id": run_id})
    assert all(one.flush(60) for one in both)
    changes = store.report_outcome(str(run_id), success=True)
    assert [change.decision for change in changes] == ["kept", "kept"]


def test_the_log_names_the_kept_one(caplog: pytest.LogCaptureFixture) -> None:
    watching = keeping(None, 0.5)
    with caplog.at_level(logging.INFO, "kp_langchain"):
        first, second = ask(watching), ask(watching)
    kept_one, twin = (vars(one) for one in caplog.records if "scored" in one.getMessage())
    assert (kept_one["twin_of"], kept_one["replaces"]) == (None, [])
    assert (twin["twin_of"], twin["similarity_to_twin"]) == (first.trace.id, 1.0)
    assert f"kp.trace_scored default twin (threshold 0.00) {second.breakdown.line()}" in caplog.text


def test_repeats_and_replaced_runs_do_not_count_as_passed_for_the_rate(store: TraceStore) -> None:
    watching = keeping(store, 0.5)
    for _ in range(3):
        ask(watching)
    ask(keeping(store, 0.9))
    judged = store.recent_values("default")
    assert [run.passes for run in judged] == [True, False, False, False]
    # The threshold of a process, which counts as it goes, is that of the next one.
    rated = keeping(store, 0.5, policy=DomainPolicy(pass_rate=0.4))
    for number in range(40):
        ask(rated, f"what is {number % 13}?")
    after_restart = RecentValues(judged=store.recent_values("default")).threshold(0.4)
    assert ask(rated, "what is last?").threshold == pytest.approx(after_restart)


# ------------------------------------------------------------------ novelty

TEXTS = ("abba", "banana", "cabbage", "banana", "xyz", "abba", "cabbages")


def test_novelty_is_the_same_with_a_restart_in_between(url: str) -> None:
    whole = [novelty(text, KPCallbackHandler(store=None)) for text in TEXTS]
    assert whole[0] == 0.5
    assert len(set(whole)) > 2
    halves = []
    for texts in (TEXTS[:3], TEXTS[3:]):
        with TraceStore(url) as store:
            halves += [novelty(text, KPCallbackHandler(store=store)) for text in texts]
    assert halves == whole


def test_handlers_of_one_store_share_a_memory_and_those_of_another_do_not(
    store: TraceStore, make_trace: Any
) -> None:
    novelty("abba", KPCallbackHandler("finance", store=store))
    assert novelty("abba", KPCallbackHandler("code", store=store)) == 0
    for other in (TraceStore("other.db"), None):
        assert novelty("abba", KPCallbackHandler(store=other)) == 0.5
    own = Scorer(embedder=WordCounts())
    assert novelty("abba", KPCallbackHandler(store=store, scorer=own)) == 0.5
    shared = Scorer(embedder=WordCounts(), cache=store.novelty_memory())
    assert novelty("abba", KPCallbackHandler(store=store, scorer=shared)) == 0
    # Without a store the memory is that of evaluate_value.
    trace = make_trace(objective="an objective of its own")
    evaluate_value(trace)
    watching = KPCallbackHandler(store=None)
    assert ask(watching, "an objective of its own").breakdown.nearest.trace_id == trace.id
    assert default_scorer().score(trace).novelty.value == 0


def remembered(store: TraceStore) -> int:
    """How many traces novelty is measured against."""
    ((number,),) = execute(store, "SELECT count(*) FROM vectors WHERE kind = 'memory'")
    return number


def test_the_bounds_of_what_is_remembered_are_the_settings(
    monkeypatch: pytest.MonkeyPatch, store: TraceStore
) -> None:
    monkeypatch.setenv("KP_NOVELTY_MEMORY", "2")
    watching = KPCallbackHandler(store=store)
    for text in ("abba", "banana", "cabbage"):
        novelty(text, watching)
    assert novelty("abba", watching) > 0
    assert remembered(store) <= 3


def test_a_withheld_run_and_another_trace_of_the_run_are_no_precedents(store: TraceStore) -> None:
    def fails(_: str) -> str:
        raise RuntimeError

    assert ask(KPCallbackHandler(store=store, redactor=fails), "abba").withheld
    assert remembered(store) == 0
    two = [KPCallbackHandler(domain, store=store) for domain in ("finance", "code")]
    looking = agent(say("abba", call("search", q="abba")), say("abba"))
    looking.invoke({"messages": [("user", "abba")]}, {"callbacks": two})
    assert [scored_by(one).breakdown.novelty.value for one in two] == [0.5, 0.5]


def test_workers_see_what_the_others_remember(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(novelty_module, "_READ_AGAIN_S", 0.0)
    with TraceStore("runs.db") as one, TraceStore("runs.db") as other:
        workers = [KPCallbackHandler(store=store) for store in (one, other)]
        assert novelty("abba", workers[0]) == 0.5
        assert novelty("abba", workers[1]) == 0


# ------------------------------------------------------------------ kept runs that a run was shown

TASK = "How many crowns is one guilder, says the bank?"
CALL = 'rate({"pair": "guilder to crown", "on": "Monday"})'
ANSWER = 'One guilder is "about" 3.25 crowns, says the bank.'
EXAMPLE = "\n".join(
    [
        HEADER,
        "<<<example 1: a run that succeeded>>>",
        f"Task: {json.dumps(TASK)}",
        f"12. {CALL} -> ok",
        f"Answer: {json.dumps(ANSWER)}",
        "<<<end of example 1>>>",
    ]
)
CODE = "def f(x):\n    if x:\n\n        return 1\n\n    return 2\n"
SHOWN = ShownTrace("kp:trace:kept", 1, 0.83)
LONGEST = 200  # characters of a thought, so that none is cut


def noting(watching: Any, *shown: ShownTrace, text: str = EXAMPLE) -> RunnableLambda[Any, Any]:
    """A step that says, inside the run, what the run is shown."""

    def note(inputs: Any) -> Any:
        run_id = ambient_run_id()
        assert run_id is not None
        assert watching.note_shown(run_id, shown or [SHOWN], text)
        return inputs

    return RunnableLambda(note)


def without_quotes(text: str, *examples: str) -> str:
    """Return what is kept of a thought in a run that was shown examples."""
    events = Events()
    for example in examples or (EXAMPLE,):
        events.watching.note_shown(events.root, [SHOWN], example)
    events.model(AIMessage(text, tool_calls=[call("t", "c")]))
    events.tool({}, tool_call_id="c")
    return "".join(one.content or "" for one in events.end().trace.steps if one.type == "thought")


@pytest.mark.parametrize("quote", [EXAMPLE, EXAMPLE.replace("\n", "\r\n"), "\ud800" * 30])
def test_the_lines_of_a_quote_go_and_those_beside_them_stay(quote: str) -> None:
    assert without_quotes(quote, EXAMPLE, quote).strip() == without_quotes("", EXAMPLE)
    text = f"{CODE}Answer: yes\n{quote}\n{CODE}"
    assert without_quotes(text, EXAMPLE, quote, "Answer: yes") == f"{CODE}Answer: yes\n{CODE}"


def shown_and_answered(*answers: Any, text: str = EXAMPLE) -> tuple[list[str], str, bool]:
    watching = handler()
    trace = last(watching, noting(watching, text=text) | agent(*answers)).trace
    thoughts = [step.content or "" for step in trace.steps if step.type == "thought"]
    return thoughts, trace.outcome.result_summary.strip(), trace.metadata.success


def test_an_answer_may_repeat_an_example_and_other_thoughts_do_not() -> None:
    for same in ("The claim is refuted by two sources.", EXAMPLE):
        search = say(f"They say:\n{same}\nI look, too.", call("search", q="a"))
        thoughts, answer, success = shown_and_answered(search, say(same), text=f"{EXAMPLE}\n{same}")
        assert (answer, success) == (same, True)
        assert thoughts == ["They say:\nI look, too.", same]
    reasoned = f"<think>\nThey say:\n{EXAMPLE}\n</think>\n{ANSWER}"
    assert shown_and_answered(say(reasoned)) == ([f"They say:\n\n{ANSWER}"], ANSWER, True)
    cut_off = say(ANSWER)
    cut_off.response_metadata["finish_reason"] = "length"
    assert shown_and_answered(cut_off)[2] is False


def test_what_a_tool_finds_of_kept_traces_is_shown_and_no_part_of_the_run(
    store: TraceStore,
) -> None:
    trace_id = keep(store)
    retriever = KPRetriever("finance", store=store, embedder=Words(), floor=0.5)
    earlier = create_retriever_tool(retriever, "earlier_runs", "Earlier runs.")
    asking = agent(say("", call("earlier_runs", query=EURO)), say("42"), tools=(earlier,))
    scored = last(passing_handler(store), asking, {"messages": [("user", EURO)]})
    assert [one.trace_id for one in scored.shown] == [trace_id]
    assert shape(scored.trace) == ["call earlier_runs", "saw earlier_runs", "thought"]
    assert "GBPUSD" not in scored.trace.model_dump_json()


def test_a_run_is_not_less_novel_for_following_what_it_was_shown() -> None:
    watching = handler(scorer=words())

    def repeat(*shown: ShownTrace) -> ScoredTrace:
        return last(watching, noting(watching, *shown, text="") | agent(say("a thought")))

    first = repeat()
    assert first.breakdown.novelty.value == 0.5
    assert repeat(ShownTrace(first.trace.id, 1, 0.9)).breakdown.novelty.value == 0.5
    held_out = ShownTrace(first.trace.id, 1, 0.9, held_out=True)
    assert repeat(held_out).breakdown.novelty.value == 0.0


@pytest.mark.parametrize("is_drawn", [True, False])
def test_only_a_lot_decides_that_a_run_is_held_out_whatever_it_is_shown_later(
    is_drawn: bool,
) -> None:
    watching = handler()
    held_out = ShownTrace(SHOWN.trace_id, 1, 0.83, held_out=True, is_drawn=is_drawn)
    steps = noting(watching, held_out, text="") | noting(watching, SHOWN)
    assert last(watching, steps | agent(say("42"))).shown == ((held_out if is_drawn else SHOWN),)


def test_what_a_run_was_shown_is_stored_and_bounded(store: TraceStore) -> None:
    watching = handler(store=store)
    many = [ShownTrace(f"kp:trace:{number}", number + 1, 0.5) for number in range(5000)]
    assert len(last(watching, noting(watching, *many) | agent(say("42"))).shown) == 200
    scored = last(watching, noting(watching) | agent(say("42")))
    assert store.shown.of_run(scored.trace.id) == [SHOWN]
    assert store.shown.is_shown(SHOWN.trace_id)
    assert not watching.note_shown(uuid4(), [SHOWN], EXAMPLE)  # a run that has ended
