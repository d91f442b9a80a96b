"""An evaluation waits for no model that is still loading; scorers without one, and forked ones."""

from __future__ import annotations

import asyncio
import logging
import os
import threading

import pytest

from kp_langchain import Settings, aevaluate_value, default_scorer, evaluate_value
from kp_langchain.embedding import local_models
from kp_langchain.errors import ConfigError, ModelLoadError
from kp_langchain.scoring import ScoreBreakdown, Scorer, VectorCache, process_scorer
from tests.agents import handler, searching
from tests.scoring.conftest import Slow

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
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


# ------------------------------------------------------------------ processes


def test_default_scorer_without_the_extra(run_python, make_trace):
    done = run_python(
        f"""
import asyncio, logging, sys, threading
from collections.abc import Mapping
sys.modules["sentence_transformers"] = sys.modules["fastembed"] = None
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
from kp_langchain import Settings
from kp_langchain.scoring import aevaluate_value, default_scorer, evaluate_value
from kp_langchain.schema import ReasoningTrace

trace = ReasoningTrace.model_validate_json({make_trace().model_dump_json()!r})

class Watched(Mapping):
    readers = set()
    def __init__(self, data): self.data = data
    def __iter__(self): self.readers.add(threading.current_thread()); return iter(self.data)
    def __len__(self): return len(self.data)
    def __getitem__(self, key): return self.data[key]

async def both():
    watched = Watched(trace.model_dump())
    value = await aevaluate_value(watched)
    assert Watched.readers and threading.current_thread() not in Watched.readers
    return value

values = [evaluate_value(trace), evaluate_value(trace.model_dump()), asyncio.run(both())]
assert default_scorer() is default_scorer()
assert default_scorer().wait_until_ready(0)
breakdown = default_scorer().score(trace, ignore={{trace.id}})
print(*values, breakdown.novelty_source, breakdown.latency_budget_ms, sep="|")
""",
        KP_LATENCY_BUDGET_MS="60000",
    )
    first, second, third, source, budget_ms = done.stdout.strip().split("|")
    assert 0.0 < float(second) < float(first) < 1.0
    assert second == third  # a repeat is no news, also without a model
    assert (source, budget_ms) == ("embeddings extra not installed", "60000.0")
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("WARNING kp_langchain ")
    assert "pip install 'kp-langchain[embeddings]'" in line


@needs_fork
def test_a_child_of_a_busy_process_knows_what_the_parent_knew(run_python, make_trace):
    script = f"""
import os, threading
import numpy as np
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import Scorer, VectorCache
trace = ReasoningTrace.model_validate_json({make_trace().model_dump_json()!r})
class Ones:
    def embed(self, texts): return np.ones((len(texts), 64), dtype=np.float32)
cache = VectorCache(max_elements=500, dimensions=64)
scorers = [Scorer(embedder=Ones(), cache=cache), Scorer(embedder=None)]
for scorer in scorers: scorer.evaluate(trace)
stop = threading.Event()
def work(scorer):
    while not stop.is_set(): scorer.evaluate(trace)
threads = [threading.Thread(target=work, args=(scorer,)) for scorer in scorers * 2]
for thread in threads: thread.start()
codes = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        novelty = [scorer.evaluate(trace).novelty.value for scorer in scorers]
        os._exit(0 if novelty == [0, 0] and 0 < cache.size <= 500 else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads: thread.join()
print(set(codes))
"""
    assert run_python(script).stdout.strip() == "{0}"
