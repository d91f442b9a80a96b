"""An evaluation does not wait for a model that is still loading, and says so when it was slow."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from kp_langchain import Settings, aevaluate_value, default_scorer, evaluate_value
from kp_langchain.embedding import local_models
from kp_langchain.errors import ConfigError, ModelLoadError
from kp_langchain.scoring import ScoreBreakdown, Scorer, VectorCache
from kp_langchain.scoring import scorer as scorer_module
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


@pytest.mark.parametrize("budget_ms", [3_600_000, None])
def test_a_model_that_loads_within_the_budget_is_waited_for(budget_ms, slow, make_trace):
    scorer = Scorer(embedder=slow, latency_budget_ms=budget_ms)
    slow.load_once_asked()
    breakdown = scorer.evaluate(make_trace())
    assert breakdown.novelty_source == "empty cache"
    assert (breakdown.latency_budget_ms, breakdown.over_budget) == (budget_ms, False)
    another = make_trace(objective="another")
    assert scorer.evaluate(another).novelty_source == "nearest remembered trace"


def test_only_the_first_evaluation_waits_for_a_load(slow, make_trace):
    """A worker that waited with every run would fall behind, and drop runs."""
    scorer = Scorer(embedder=slow, latency_budget_ms=100)
    for number in range(5):
        assert scorer.evaluate(make_trace(objective=f"{number}")).novelty_source == LOADING
    assert len(slow.waits) == 1
    assert 0 < slow.waits[0] <= 0.08


def test_load_waits_and_raises_what_is_wrong(slow):
    scorer = Scorer(embedder=None)
    assert scorer.wait_until_ready(0)
    scorer.load()
    slow.failure = ModelLoadError("no such model")
    slow.load_once_asked()
    with pytest.raises(ModelLoadError, match="no such model"):
        Scorer(embedder=slow).load()


def test_an_exit_limits_the_wait_for_a_model(slow, make_trace, monkeypatch):
    monkeypatch.setattr(local_models, "_exit_waits_until", None)
    scorer = Scorer(embedder=slow)
    local_models.limit_waiting(0.1)
    assert scorer.evaluate(make_trace()).novelty_source == LOADING
    local_models.limit_waiting(3600)
    slow._note_warning("downloading")
    assert not scorer.wait_until_ready()


@pytest.mark.parametrize("failure", [None, ModelLoadError("no such model")])
def test_many_waiters_wake_up_when_it_is_loaded_or_has_failed(failure, make_trace):
    model, woken = Slow(failure), []
    scorers = [Scorer(embedder=model, latency_budget_ms=1) for _ in range(4)]
    assert not scorers[0].wait_until_ready(0)  # which begins the load
    assert scorers[0].evaluate(make_trace()).novelty_source == LOADING
    threads = [
        threading.Thread(target=lambda one=one: woken.append(one.wait_until_ready(60)))
        for one in scorers * 2
    ]
    for thread in threads:
        thread.start()
    model.go.set()
    for thread in threads:
        thread.join(60)
    assert woken == [True] * 8


def test_a_load_that_fails_is_reported_and_leaves_the_memory_empty(slow, make_trace, caplog):
    slow.failure = ModelLoadError("no such model")
    cache = VectorCache(dimensions=2)
    scorer = Scorer(embedder=slow, cache=cache, latency_budget_ms=3_600_000)
    slow.load_once_asked()
    assert scorer.evaluate(make_trace()).novelty_source == "embedder failed: ModelLoadError"
    assert cache.size == 0
    assert "no such model" in caplog.text


@pytest.mark.parametrize(
    "evaluate", [evaluate_value, lambda trace: asyncio.run(aevaluate_value(trace))]
)
def test_evaluate_value_waits_for_its_model(evaluate, slow, make_trace, monkeypatch):
    trace, cache = make_trace(), VectorCache(dimensions=2)
    # Remembered without its fingerprint, so that only its vector shows that it is not new.
    cache.add([len("an objective words words words"), 1.0], key="same")
    scorer = Scorer(embedder=slow, cache=cache, latency_budget_ms=1)
    monkeypatch.setattr(scorer_module, "_default_scorer", scorer)
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
