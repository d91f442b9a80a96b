"""What a fork waits for, and what its child finds. In scripts: a test process has other threads."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

# `forking` is set when a fork begins, before it waits for the gate: hooks before a fork run in the
# order opposite to that in which they were registered. `fork` returns what `child` returned.
HEAD = """
import os, threading
from kp_langchain import _forksafe
from kp_langchain._forksafe import ForkSafeLock, GatedLock, fork_gate
_forksafe._FORK_PATIENCE_S = 3600  # a fork that waits in vain never ends
forking, inside, go = threading.Event(), threading.Event(), threading.Event()
os.register_at_fork(before=forking.set)
def fork(child):
    pid = os.fork()
    if pid == 0:
        code = 99
        try: code = child()
        finally: os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def begin(work):
    forking.clear(); inside.clear(); go.clear()
    thread = threading.Thread(target=work); thread.start(); inside.wait()
    return thread
"""


def test_a_fork_waits_for_who_is_inside_but_not_for_ever_or_for_who_only_waits(run_python):
    script = """
gated, done = GatedLock(), []
def work():
    with gated:
        inside.set(); forking.wait()
        with fork_gate, gated: pass  # the fork waits for this thread, so it must not wait for it
        done.append(1)
def child():
    with gated: return len(done)
thread = begin(work); print(fork(child)); thread.join()

def idle():
    with gated, fork_gate, fork_gate.opened():
        inside.set(); go.wait()
    done.append(1)
thread = begin(idle); print(fork(lambda: 2)); go.set(); thread.join(); print(len(done))

def hang():
    with gated: inside.set(); go.wait()
_forksafe._FORK_PATIENCE_S = 0.01
def child():
    with gated: return 3  # what was not waited for is free in the child
thread = begin(hang); print(fork(child)); go.set(); thread.join()
_forksafe._FORK_PATIENCE_S = 3600

def child():
    taken = []
    thread = threading.Thread(target=lambda: gated.__enter__() or taken.append(1), daemon=True)
    thread.start(); thread.join(0.2)
    return 40 + len(taken)
with gated: code = fork(child)  # the child is still inside, alone
with gated: print(code)
"""
    assert run_python(HEAD + script).stdout.split() == ["1", "2", "2", "3", "40"]


def test_a_lock_is_free_in_the_child_unless_the_forking_thread_holds_it(run_python):
    script = """
lock, taken = ForkSafeLock(), []
def hold():
    with lock: inside.set(); go.wait()
def child():
    with lock, lock: return 7
thread = begin(hold); print(fork(child)); go.set(); thread.join()
def take():
    with lock: taken.append(1)
with lock:
    pid = os.fork()
    thread = threading.Thread(target=take); thread.start()
    if pid == 0: assert not taken
thread.join()
if pid == 0: os._exit(40 + len(taken))
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(taken))
"""
    assert run_python(HEAD + script).stdout.split() == ["7", "41", "1"]


def test_many_threads_fork_and_work(run_python):
    script = """
locks, lock, codes = [GatedLock() for _ in range(3)], ForkSafeLock(), []
def work(number):
    for _ in range(100):
        with locks[number % 3], locks[(number + 1) % 3] if number % 3 < 2 else lock: pass
def child():
    for each in [*locks, lock]:
        with each: pass
    return 0
def forks(): codes.extend(fork(child) for _ in range(5))
threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
threads += [threading.Thread(target=forks) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(set(codes), len(codes))
"""
    assert run_python(HEAD + script).stdout.split() == ["{0}", "10"]


def test_a_fork_does_not_wait_for_a_tool_that_takes_its_time_with_a_score(run_python):
    script = """
import tempfile
from langchain_core.language_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from kp_langchain import KPCallbackHandler, Scorer
from kp_langchain.gate.run import ExternalTrace
class Slow:
    name = "slow"
    def find_trace(self, root_id, parent_id): return ExternalTrace(str(root_id))
    def send(self, scored, external): inside.set(); go.wait()
store = tempfile.mkdtemp() + "/runs.db"
handler = KPCallbackHandler(store=store, scorer=Scorer(embedder=None), send_scores_to=[Slow()])
chain = ChatPromptTemplate.from_template("{it}") | FakeListChatModel(responses=["An answer."])
chain.invoke({"it": "a question"}, {"callbacks": [handler]})
handler.flush(); inside.wait()
print(fork(lambda: 5)); go.set(); print(handler.send(300))
"""
    assert run_python(HEAD + script).stdout.split() == ["5", "True"]
