"""Sections that a fork waits for. Scripts, because a test process has threads of its own."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

# `forking` is set when a fork begins, before it waits for any section: hooks before a fork run in
# the order opposite to that in which they were registered. `fork` returns what `child` returned.
HEAD = """
import os, threading
from kp_langchain import _forksafe
from kp_langchain._forksafe import NoForkSection
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
"""


def test_a_fork_waits_for_a_section(run_python):
    script = """
section, done = NoForkSection(), []
def work():
    with section:
        inside.set(); forking.wait(); done.append(1)
threading.Thread(target=work).start()
inside.wait()
def child():
    with section:
        return len(done)
print(fork(child))
"""
    assert run_python(HEAD + script).stdout.split() == ["1"]


def test_a_thread_inside_may_enter_further_sections_while_a_fork_waits(run_python):
    """The fork waits for it, so it must not wait for the fork."""
    script = """
outer, inner = NoForkSection(), [NoForkSection() for _ in range(50)]
def work():
    with outer:
        inside.set(); forking.wait()
        for section in inner:
            with section: pass
thread = threading.Thread(target=work); thread.start()
inside.wait()
print(fork(lambda: 7))
thread.join()
"""
    assert run_python(HEAD + script).stdout.split() == ["7"]


def test_each_section_says_how_long_a_fork_waits(run_python):
    script = """
short, long, done = NoForkSection(patience_s=0.01), NoForkSection(patience_s=3600), []
def hang():
    with short:
        inside.set(); go.wait()
def work():
    with long:
        begun.set(); forking.wait(); done.append(1)
begun = threading.Event()
threads = [threading.Thread(target=hang), threading.Thread(target=work)]
for thread in threads: thread.start()
inside.wait(); begun.wait()
def child():
    with short, long:  # what was not waited for is free in the child
        return len(done)
print(fork(child))
go.set()
for thread in threads: thread.join()
with short, long: print("free")
"""
    assert run_python(HEAD + script).stdout.split() == ["1", "free"]


def test_a_fork_does_not_wait_for_a_thread_that_only_waits(run_python):
    script = """
from kp_langchain._forksafe import allow_forks
first, second = NoForkSection(), NoForkSection()
def work():
    with first, second:
        with allow_forks():
            inside.set(); go.wait()
        print("back", flush=True)
thread = threading.Thread(target=work); thread.start()
inside.wait()
print(fork(lambda: 7), flush=True)
go.set(); thread.join()
with allow_forks(): print("nothing to leave")
"""
    assert run_python(HEAD + script).stdout.split("\n")[:3] == ["7", "back", "nothing to leave"]


def test_a_thread_may_fork_inside_its_section(run_python):
    script = """
section = NoForkSection()
def child():
    taken = []
    thread = threading.Thread(target=lambda: section.__enter__() or taken.append(1))
    thread.daemon = True
    thread.start(); thread.join(0.2)
    return 40 + len(taken)
with section:
    code = fork(child)  # the child is still inside, alone
with section:
    print(code)
"""
    assert run_python(HEAD + script).stdout.split() == ["40"]


def test_many_threads_fork_and_work(run_python):
    script = """
sections, codes = [NoForkSection() for _ in range(3)], []
def work(number):
    for _ in range(300):
        with sections[number % 3], sections[(number + 1) % 3] if number % 3 < 2 else sections[2]:
            pass
def forks():
    for _ in range(10):
        def child():
            for section in sections:
                with section: pass
            return 0
        codes.append(fork(child))
threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
threads += [threading.Thread(target=forks) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(set(codes), len(codes))
"""
    assert run_python(HEAD + script).stdout.split() == ["{0}", "20"]
