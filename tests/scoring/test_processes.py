"""Scorers in processes: without the extra, in a forked child, and at a process's end."""

from __future__ import annotations

import os

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


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
