"""An evaluation does not wait for a model that is still loading, and says so when it was slow."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from kp_langchain import Settings, aevaluate_value, default_scorer, evaluate_value
from kp_langchain.embedding import model_loads
from kp_langchain.errors import ConfigError, EmbedderError
from kp_langchain.scoring import ScoreBreakdown, Scorer, VectorCache, process_scorer
from tests.agents import handler, searching
from tests.scoring.conftest import Slow

LOADING = "embedding model still loading"
ASK = {"messages": [("user", "look")]}


@pytest.fixture
def slow():
    model = Slow()
    yield model
    model.go.set()


def test_novelty_is_neutral_until_the_model_is_loaded(slow, make_trace):
    cache = VectorCache(dimensions=2)
    scorer = Scorer(embedder=slow, cache=cache, latency_budget_ms=5)
    first = make_trace()
    breakdown = scorer.evaluate(first)
    assert breakdown.novelty.value == 0.5
    assert breakdown.novelty_source == LOADING
    assert f"novelty from        {LOADING}" in breakdown.text()
    scorer.remember(make_trace(objective="another"))
    slow.go.set()
    assert scorer.wait_until_ready(60)
    assert cache.size == 0  # of runs before that the hash of the text is remembered alone
    assert scorer.score(first).novelty_source == "exact repeat"
    assert scorer.evaluate(make_trace(objective="a third")).novelty_source == "empty cache"
    other = scorer.score(make_trace(objective="a fourth"))
    assert other.novelty_source == "nearest remembered trace"
    assert slow.by[0] == "kp_langchain embedding"
    assert slow.by[-1] == threading.current_thread().name


@pytest.mark.parametrize("budget_ms", [3_600_000, None])
def test_a_model_that_loads_within_the_budget_is_waited_for(budget_ms, slow, make_trace):
    scorer = Scorer(embedder=slow, latency_budget_ms=budget_ms)
    slow.load_once_asked()
    breakdown = scorer.evaluate(make_trace())
    assert breakdown.novelty_source == "empty cache"
    assert (breakdown.latency_budget_ms, breakdown.over_budget) == (budget_ms, False)
    another = make_trace(objective="another")
    assert scorer.evaluate(another).novelty_source == "nearest remembered trace"
    assert slow.by[0] == "kp_langchain embedding"


def test_only_the_first_evaluation_waits_for_a_load(slow, make_trace, monkeypatch):
    """A worker that waited with every run would fall behind, and drop runs."""
    limits = []

    def noting(load, timeout_s):
        limits.append(timeout_s)
        return False  # as if the time were up

    monkeypatch.setattr(model_loads.ModelLoad, "wait", noting)
    scorer = Scorer(embedder=slow, latency_budget_ms=3_600_000)
    for number in range(5):
        assert scorer.evaluate(make_trace(objective=f"{number}")).novelty_source == LOADING
    assert 0 < limits[0] <= 0.8 * 3600
    assert limits[1:] == [0.0] * 4
    slow.go.set()


def test_load_waits_and_raises_what_is_wrong(slow):
    ready = Slow()
    ready.ready = True
    for scorer in (Scorer(embedder=ready), Scorer(embedder=None)):
        assert scorer.wait_until_ready(0)
        scorer.load()
    assert ready.by == []
    slow.failure = EmbedderError("no such model")
    slow.load_once_asked()
    with pytest.raises(EmbedderError, match="no such model"):
        Scorer(embedder=slow).load()
    assert slow.by[0] == "kp_langchain embedding"  # so that a fork need not wait for this thread


def test_waiting_begins_the_load_and_is_bounded(slow, make_trace):
    scorer = Scorer(embedder=slow, latency_budget_ms=1)
    assert not scorer.wait_until_ready(0)
    assert slow.asked.wait(60)
    assert not scorer.wait_until_ready(0.01)
    assert scorer.evaluate(make_trace()).novelty_source == LOADING
    slow.go.set()
    assert scorer.wait_until_ready(60)
    assert scorer.evaluate(make_trace()).novelty_source != LOADING


@pytest.mark.parametrize("failure", [None, EmbedderError("no such model"), SystemExit(3)])
def test_many_waiters_wake_up_when_it_is_loaded_or_has_failed(failure):
    model, woken = Slow(failure), []
    scorers = [Scorer(embedder=model, latency_budget_ms=1) for _ in range(4)]
    threads = [
        threading.Thread(target=lambda one=one: woken.append(one.wait_until_ready(60)))
        for one in scorers * 2
    ]
    for thread in threads:
        thread.start()
    assert model.asked.wait(60)
    model.go.set()
    for thread in threads:
        thread.join(60)
    assert woken == [True] * 8


def test_a_load_that_fails_is_reported_and_leaves_the_memory_empty(slow, make_trace, caplog):
    slow.failure = type("LoadFailure", (Exception,), {})("the secret text")
    cache = VectorCache(dimensions=2)
    scorer = Scorer(embedder=slow, cache=cache, latency_budget_ms=3_600_000)
    slow.load_once_asked()
    assert scorer.evaluate(make_trace()).novelty_source == "embedder failed: LoadFailure"
    assert cache.size == 0
    assert "LoadFailure" in caplog.text
    assert "secret" not in caplog.text


def test_an_embedder_that_hangs_holds_up_no_other(slow, make_trace):
    scorer = Scorer(embedder=slow, latency_budget_ms=1)
    assert scorer.evaluate(make_trace()).novelty_source == LOADING
    assert slow.asked.wait(60)
    other = Slow()
    other.go.set()
    working = Scorer(embedder=other, latency_budget_ms=1)
    assert working.wait_until_ready(60)
    assert working.evaluate(make_trace()).novelty_source == "empty cache"


@pytest.mark.parametrize(
    "evaluate", [evaluate_value, lambda trace: asyncio.run(aevaluate_value(trace))]
)
def test_evaluate_value_waits_for_its_model(evaluate, slow, make_trace, monkeypatch):
    trace, cache = make_trace(), VectorCache(dimensions=2)
    # Remembered without its fingerprint, so that only its vector shows that it is not new.
    cache.add([len("an objective words words words"), 1.0], key="same")
    scorer = Scorer(embedder=slow, cache=cache, latency_budget_ms=1)
    monkeypatch.setattr(process_scorer, "_default_scorer", scorer)
    slow.load_once_asked()
    assert evaluate(trace) == pytest.approx(Scorer(embedder=None).score(trace).total - 0.5 * 0.35)


def test_a_handler_waits_for_no_model(slow):
    """Even if its scorer does."""
    watching = handler(scorer=Scorer(embedder=slow))
    searching().invoke(ASK, {"callbacks": [watching]})
    slow.go.set()  # the agent is done
    assert watching.last(60).breakdown.novelty_source == "empty cache"


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "100", 86_400_001])
def test_a_budget_is_a_number_of_milliseconds(bad):
    with pytest.raises(ConfigError, match=r"latency_budget_ms is .*milliseconds above 0"):
        Scorer(embedder=None, latency_budget_ms=bad)
    if bad != "100":  # as it comes from the environment
        with pytest.raises(ConfigError, match="latency_budget_ms"):
            Settings(latency_budget_ms=bad)
    Scorer(embedder=None, latency_budget_ms=86_400_000)


def test_an_overrun_is_shown_counted_and_kept(make_trace, caplog, no_models):
    assert default_scorer().score(make_trace()).latency_budget_ms == 100.0
    over = Scorer(embedder=None, latency_budget_ms=1e-6)
    breakdown = over.evaluate(make_trace())
    assert breakdown.over_budget
    assert "over the budget of 1e-06 ms" in breakdown.text()
    assert ScoreBreakdown.from_dict(breakdown.to_dict()).over_budget
    within = Scorer(embedder=None, latency_budget_ms=3_600_000).evaluate(make_trace())
    assert not within.over_budget
    assert "budget" not in within.text()
    caplog.set_level(logging.INFO, logger="kp_langchain")
    watching = handler(scorer=over)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.last(60).breakdown.over_budget
    assert watching.stats()["over_budget"] == 1
    [scored] = [record for record in caplog.records if hasattr(record, "over_budget")]
    assert scored.over_budget is True
