"""Locks and caches in a forked child. Scripts, because a test process has threads of its own."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_a_lock_that_another_thread_holds_is_free_in_the_child(run_python):
    script = """
import os, threading
from kp_langchain._forksafe import ForkSafeLock
lock, held, done = ForkSafeLock(), threading.Event(), threading.Event()
def hold():
    with lock:
        held.set(); done.wait()
thread = threading.Thread(target=hold); thread.start(); held.wait()
child = os.fork()
if child == 0:
    with lock, lock:
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set(); thread.join()
with lock:
    print("free")
"""
    assert run_python(script).stdout.split() == ["7", "free"]


def test_a_lock_that_the_forking_thread_holds_stays_its_own(run_python):
    script = """
import os, threading
from kp_langchain._forksafe import ForkSafeLock
lock = ForkSafeLock()
taken = []
def take():
    with lock:
        taken.append(1)
with lock:
    child = os.fork()
    thread = threading.Thread(target=take); thread.start()
    if child == 0:
        assert not taken
thread.join()
if child == 0:
    os._exit(40 + len(taken))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(taken))
"""
    assert run_python(script).stdout.split() == ["41", "1"]


def test_a_fork_does_not_wait_for_who_comes_later(run_python):
    script = """
import os, threading, time
from kp_langchain import _forksafe
_forksafe._FORK_PATIENCE_S = 10_000
stop = threading.Event()
def work(lock, section):
    while not stop.is_set():
        with lock, section:
            time.sleep(0.01)
pairs = [(_forksafe.ForkSafeLock(), _forksafe.NoForkSection()) for _ in range(3)]
threads = [threading.Thread(target=work, args=pair) for pair in pairs]
for thread in threads: thread.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
stop.set()
for thread in threads: thread.join()
print("forked")
"""
    assert run_python(script).stdout.strip() == "forked"


def test_cache_and_scorer_in_children_of_a_busy_process(run_python, make_trace):
    script = f"""
import os, threading
import numpy as np
from kp_langchain import _forksafe
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import Scorer, VectorCache
trace = ReasoningTrace.model_validate_json({make_trace().model_dump_json()!r})
class Ones:
    def embed(self, texts): return np.ones((len(texts), 64), dtype=np.float32)
_forksafe._FORK_PATIENCE_S = 10_000  # whoever waits for the other for ever is found out
cache = VectorCache(max_elements=500, dimensions=64)
scorer = Scorer(embedder=Ones(), cache=cache)
stop = threading.Event()
def work():
    while not stop.is_set():
        scorer.evaluate(trace)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
codes = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        breakdown = scorer.evaluate(trace)
        os._exit(0 if 0 <= breakdown.total <= 1 and 0 < cache.size <= 500 else 1)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop.set()
for thread in threads: thread.join()
print(set(codes))
"""
    assert run_python(script).stdout.strip() == "{0}"
