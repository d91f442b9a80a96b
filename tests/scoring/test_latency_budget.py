"""An evaluation does not wait for a model that is still loading, and says so when it was slow."""

from __future__ import annotations

import logging
import threading

import numpy as np
import pytest

from kp_langchain import Settings
from kp_langchain.embedding import background as background_module
from kp_langchain.errors import ConfigError, EmbedderError
from kp_langchain.scoring import ScoreBreakdown, Scorer, VectorCache
from tests.agents import handler, searching

LOADING = "embedding model still loading"


class Slow:
    """A model that is loaded once the test says so; `embed` waits for it, as the real ones do."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.loaded = threading.Event()
        self.asked = threading.Event()
        self.failure = failure
        self.by: list[str] = []

    @property
    def ready(self) -> bool:
        return self.loaded.is_set()

    def embed(self, texts):
        self.asked.set()
        self.by.append(threading.current_thread().name)
        assert self.loaded.wait(60)
        if self.failure is not None:
            raise self.failure
        return np.array([[len(text), 1.0] for text in texts])


class LastHandler(logging.Handler):
    """The root logger's last handler: once it has a record, `caplog` has it as well."""

    def __init__(self) -> None:
        super().__init__()
        self.done = threading.Event()

    def emit(self, record):
        self.done.set()

    def __enter__(self):
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *error):
        logging.getLogger().removeHandler(self)


class Arrivals(VectorCache):
    """A cache that can be waited for."""

    def __init__(self) -> None:
        super().__init__(dimensions=2)
        self.arrived = threading.Semaphore(0)

    def add(self, vector, *, key=None):
        super().add(vector, key=key)
        self.arrived.release()


def test_novelty_is_neutral_and_the_embedding_comes_later(make_trace):
    model, cache = Slow(), Arrivals()
    scorer = Scorer(embedder=model, cache=cache, latency_budget_ms=5)
    first, second = make_trace(), make_trace()
    breakdown = scorer.evaluate(first)
    assert breakdown.novelty.value == 0.5
    assert breakdown.novelty_source == LOADING
    assert f"novelty from        {LOADING}" in breakdown.text()
    scorer.score(make_trace())  # is not remembered
    scorer.remember(second)
    assert cache.size == 0
    model.loaded.set()
    assert cache.arrived.acquire(timeout=60)
    assert cache.arrived.acquire(timeout=60)
    assert cache.size == 2
    again = scorer.score(first, ignore={second.id})
    assert again.novelty_source == "nearest remembered trace"
    assert again.novelty.value == 0.0
    assert again.nearest.trace_id == first.id
    other = scorer.score(make_trace(objective="another"))
    assert other.novelty_source == "nearest remembered trace"
    assert {other.nearest.trace_id} <= {first.id, second.id}
    assert set(model.by[:-2]) == {"kp_langchain embedding"}
    assert model.by[-1] == threading.current_thread().name  # loaded: no detour any more


def test_a_model_that_loads_within_the_budget_is_waited_for(make_trace):
    model = Slow()
    scorer = Scorer(embedder=model, latency_budget_ms=60_000)
    threading.Thread(target=lambda: (model.asked.wait(60), model.loaded.set())).start()
    assert scorer.evaluate(make_trace()).novelty_source == "empty cache"
    another = make_trace(objective="another")
    assert scorer.evaluate(another).novelty_source == "nearest remembered trace"


def test_without_a_budget_it_waits(make_trace):
    model = Slow()
    scorer = Scorer(embedder=model)
    threading.Thread(target=lambda: (model.asked.wait(60), model.loaded.set())).start()
    breakdown = scorer.evaluate(make_trace())
    assert breakdown.novelty_source == "empty cache"
    assert breakdown.latency_budget_ms is None
    assert not breakdown.over_budget
    assert model.by == ["kp_langchain embedding", threading.current_thread().name]


def test_load_waits_and_tells_what_is_wrong(make_trace):
    model = Slow()
    model.loaded.set()
    Scorer(embedder=model).load()  # nothing to do
    assert model.by == []
    Scorer(embedder=None).load()
    model = Slow(failure=EmbedderError("no such model"))
    scorer = Scorer(embedder=model)
    threading.Thread(target=lambda: (model.asked.wait(60), model.loaded.set())).start()
    with pytest.raises(EmbedderError, match="no such model"):
        scorer.load()


@pytest.mark.parametrize("budget_ms", [1, 60_000])
def test_a_load_that_fails(budget_ms, make_trace, caplog):
    """Told at once if it failed in time, and in the log if not; the memory stays empty."""
    cache, kind = Arrivals(), type(f"Failure{budget_ms}", (Exception,), {})
    model = Slow(failure=kind("the secret text"))
    scorer = Scorer(embedder=model, cache=cache, latency_budget_ms=budget_ms)
    if budget_ms > 1:
        threading.Thread(target=lambda: (model.asked.wait(60), model.loaded.set())).start()
        assert scorer.evaluate(make_trace()).novelty_source == f"embedder failed: {kind.__name__}"
    else:
        assert scorer.evaluate(make_trace()).novelty_source == LOADING
        with LastHandler() as last:
            model.loaded.set()
            scorer.evaluate(make_trace())  # asks the model itself, and hears the same
            assert last.done.wait(60)
    assert cache.size == 0
    assert kind.__name__ in caplog.text
    assert "secret" not in caplog.text


def test_a_vector_of_another_length_that_comes_late_is_no_harm(make_trace, caplog):
    model, cache = Slow(), Arrivals()
    scorer = Scorer(embedder=model, cache=VectorCache(dimensions=3), latency_budget_ms=1)
    fine = Scorer(embedder=model, cache=cache, latency_budget_ms=1)
    assert scorer.evaluate(make_trace()).novelty_source == LOADING
    assert fine.evaluate(make_trace()).novelty_source == LOADING
    model.loaded.set()
    assert cache.arrived.acquire(timeout=60)
    # Told by us, once, and not by the machinery that a callback of ours would have raised into.
    assert not [record for record in caplog.records if record.name != "kp_langchain"]


def test_no_more_than_a_thousand_texts_wait(make_trace):
    model, cache = Slow(), Arrivals()
    scorer = Scorer(embedder=model, cache=cache, latency_budget_ms=0.001)
    scorer.evaluate(make_trace())
    assert model.asked.wait(60)  # one is at work, now 1,000 may wait
    for number in range(1100):
        assert scorer.evaluate(make_trace(objective=f"{number}")).novelty_source == LOADING
    model.loaded.set()
    for _ in range(1001):
        assert cache.arrived.acquire(timeout=60)
    assert not cache.arrived.acquire(blocking=False)
    assert len(model.by) == 1001


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), True, "100", 1e9])
def test_a_budget_is_a_number_of_milliseconds(bad):
    with pytest.raises(ConfigError, match=r"latency_budget_ms is .*milliseconds above 0"):
        Scorer(embedder=None, latency_budget_ms=bad)
    if bad != "100":  # as it comes from the environment
        with pytest.raises(ConfigError, match="latency_budget_ms"):
            Settings(latency_budget_ms=bad)


def test_an_overrun_is_shown_counted_and_kept(make_trace, caplog):
    slow = Scorer(embedder=None, latency_budget_ms=1e-6)
    breakdown = slow.evaluate(make_trace())
    assert breakdown.over_budget
    assert "over the budget of 1e-06 ms" in breakdown.text()
    assert ScoreBreakdown.from_dict(breakdown.to_dict()).over_budget
    within = Scorer(embedder=None, latency_budget_ms=60_000).evaluate(make_trace())
    assert not within.over_budget
    assert "budget" not in within.text()

    caplog.set_level(logging.INFO, logger="kp_langchain")
    watching = handler(scorer=slow)
    searching().invoke({"messages": [("user", "look")]}, {"callbacks": [watching]})
    assert watching.last(60).breakdown.over_budget
    assert watching.stats()["over_budget"] == 1
    [scored] = [record for record in caplog.records if hasattr(record, "over_budget")]
    assert scored.over_budget is True


def test_the_default_scorer_takes_the_setting(run_python):
    script = """
from kp_langchain import Settings
from kp_langchain.scoring import default_scorer
from kp_langchain.schema import ReasoningTrace
trace = ReasoningTrace.model_validate({"metadata": {"task_domain": "x", "success": True},
    "task": {"objective": "o"}, "steps": [{"step_id": 0, "type": "thought", "content": "t"}],
    "outcome": {"result_summary": "r", "confidence": 0.5}})
print(Settings().latency_budget_ms, default_scorer().score(trace).latency_budget_ms)
"""
    assert run_python(script).stdout.split() == ["100.0", "100.0"]
    assert run_python(script, KP_LATENCY_BUDGET_MS="7").stdout.split() == ["7.0", "7.0"]


def test_a_process_that_ends_while_the_model_loads_waits_for_nothing_else(run_python):
    """The texts that wait are dropped; the one at work is finished."""
    script = """
import threading, time
from kp_langchain.scoring import Scorer
from kp_langchain.embedding.background import background
from kp_langchain.schema import ReasoningTrace
trace = ReasoningTrace.model_validate({"metadata": {"task_domain": "x", "success": True},
    "task": {"objective": "o"}, "steps": [{"step_id": 0, "type": "thought", "content": "t"}],
    "outcome": {"result_summary": "r", "confidence": 0.5}})
at_work = threading.Event()
class Loading:
    ready = False
    def embed(self, texts):
        at_work.set()
        while background._ended_at is None: time.sleep(0.001)
        print("embedded", flush=True)
        return [[1.0]]
scorer = Scorer(embedder=Loading(), latency_budget_ms=1)
for _ in range(100): scorer.evaluate(trace)
at_work.wait()
"""
    assert run_python(script).stdout.split() == ["embedded"]


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')", reason="this system does not fork")
def test_a_forked_child_begins_anew(run_python):
    script = """
import os, threading
from kp_langchain.scoring import Scorer
from kp_langchain.schema import ReasoningTrace
trace = ReasoningTrace.model_validate({"metadata": {"task_domain": "x", "success": True},
    "task": {"objective": "o"}, "steps": [{"step_id": 0, "type": "thought", "content": "t"}],
    "outcome": {"result_summary": "r", "confidence": 0.5}})
entered, forking = threading.Semaphore(0), threading.Event()
class Loading:
    ready = False
    def embed(self, texts):
        entered.release()
        if os.getpid() == parent: forking.wait()
        return [[1.0]]
parent = os.getpid()
scorer = Scorer(embedder=Loading(), latency_budget_ms=1)
for _ in range(3): scorer.evaluate(trace)
entered.acquire()
os.register_at_fork(before=forking.set)  # called before the fork waits for the embedder
child = os.fork()
if child == 0:
    patient = Scorer(embedder=Loading(), latency_budget_ms=60000)
    os._exit(0 if patient.evaluate(trace).novelty_source == "empty cache" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(script).stdout.strip() == "0"


def test_only_the_first_evaluation_waits_for_a_load(make_trace, monkeypatch):
    """A worker that waited with every run would fall behind, and drop runs."""
    limits = []
    real = background_module.wait

    def noting(futures, timeout):
        limits.append(timeout)
        return real(futures, timeout=0)  # as if the time were up

    monkeypatch.setattr(background_module, "wait", noting)
    model, cache = Slow(), Arrivals()
    scorer = Scorer(embedder=model, cache=cache, latency_budget_ms=3_600_000)
    for number in range(5):
        assert scorer.evaluate(make_trace(objective=f"{number}")).novelty_source == LOADING
    assert 0 < limits[0] <= 0.8 * 3600
    assert limits[1:] == [0.0] * 4
    model.loaded.set()
    for _ in range(5):
        assert cache.arrived.acquire(timeout=60)
