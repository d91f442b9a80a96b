"""A mechanism that the design gives up: sections that a fork waits for.

In scripts, because a test process has threads of its own.
"""

from __future__ import annotations

import os

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


# `forking` is set when a fork begins, before it waits for any section: hooks before a fork run in
# the order opposite to that in which they were registered. `fork` returns what `child` returned.
HEAD = """
import os, threading, time
from kp_langchain import _forksafe
from kp_langchain._forksafe import ForkSafeLock, NoForkSection, allow_forks
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


@needs_fork
def test_a_fork_waits_for_sections_but_not_for_those_that_wait_for_it_or_only_wait(run_python):
    script = """
section, done = NoForkSection(), []
def work():
    with section:
        inside.set(); forking.wait()
        for other in [NoForkSection() for _ in range(50)]:
            with other: pass  # the fork waits for this thread, so it must not wait for the fork
        done.append(1)
def child():
    with section: return len(done)
thread = begin(work); print(fork(child)); thread.join()

short = NoForkSection(patience_s=0.01)
def hang():
    with short: inside.set(); go.wait()
thread = begin(hang)
def child():
    with short: return 2  # what was not waited for is free in the child
print(fork(child)); go.set(); thread.join()

def idle():
    with section, short:
        with allow_forks(): inside.set(); go.wait()
        done.append(1)
thread = begin(idle); print(fork(lambda: 3)); go.set(); thread.join(); print(len(done))

def child():
    taken = []
    thread = threading.Thread(target=lambda: section.__enter__() or taken.append(1), daemon=True)
    thread.start(); thread.join(0.2)
    return 40 + len(taken)
with section: code = fork(child)  # the child is still inside, alone
with section: print(code)
"""
    assert run_python(HEAD + script).stdout.split() == ["1", "2", "3", "2", "40"]


@needs_fork
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


@needs_fork
def test_many_threads_fork_and_work(run_python):
    script = """
sections, lock, codes = [NoForkSection() for _ in range(3)], ForkSafeLock(), []
def work(number):
    for _ in range(100):
        with sections[number % 3], sections[(number + 1) % 3] if number % 3 < 2 else lock: pass
def child():
    for section in [*sections, lock]:
        with section: pass
    return 0
def forks(): codes.extend(fork(child) for _ in range(5))
threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
threads += [threading.Thread(target=forks) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(set(codes), len(codes))
"""
    assert run_python(HEAD + script).stdout.split() == ["{0}", "10"]
