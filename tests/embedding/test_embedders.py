"""Embedders of any make; the real model is in test_minilm.py."""

from __future__ import annotations

import numpy as np
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from kp_langchain.errors import ConfigError, EmbedderError
from kp_langchain.scoring import Embedder, SentenceTransformerEmbedder, resolve_embedder


class Lengths:
    """Embeds a text as its length and keeps what it was given."""

    def __init__(self, result=None) -> None:
        self.result = result
        self.seen: list[str] = []

    def embed(self, texts):
        self.seen += texts
        return [[float(len(text)), 1.0] for text in texts] if self.result is None else self.result


class Letters(Embeddings):
    """A LangChain embedding of its own."""

    def embed_documents(self, texts):
        return [[float(text.count("a")), float(text.count("b"))] for text in texts]

    def embed_query(self, text):
        raise AssertionError("documents are embedded, not queries")


def test_none_is_none():
    assert resolve_embedder(None) is None


def test_anything_with_embed():
    embedder = resolve_embedder(Lengths())
    assert isinstance(embedder, Embedder)
    vectors = embedder.embed(["abc", ""])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[3.0, 1.0], [0.0, 1.0]]


def test_langchain_embeddings():
    assert resolve_embedder(Letters()).embed(["aab", "b"]).tolist() == [[2.0, 1.0], [0.0, 1.0]]
    assert resolve_embedder(DeterministicFakeEmbedding(size=7)).embed(["x"]).shape == (1, 7)


def test_resolving_twice_changes_nothing():
    embedder = resolve_embedder(Lengths())
    assert resolve_embedder(embedder) is embedder
    own = SentenceTransformerEmbedder("/nowhere")
    assert resolve_embedder(own) is own


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("minilm", "'minilm'"),
        (5, "a int"),
        (object(), "a object"),
        (Lengths, "the class Lengths"),
        (len, "a builtin_function_or_method"),
        (b"auto", "a bytes"),
    ],
)
def test_what_is_no_embedder_is_named(given, named):
    with pytest.raises(ConfigError) as caught:
        resolve_embedder(given)
    assert named in str(caught.value)
    assert "embed(texts)" in str(caught.value)


def test_texts_arrive_clean_and_cut():
    inner = Lengths()
    resolve_embedder(inner).embed(["a\ud800b\udfff", "ü" * 3_000_000, "\x00"])
    assert inner.seen[0] == "a?b?"
    assert inner.seen[1] == f"{'ü' * 8192} {'ü' * 8191}"
    assert inner.seen[2] == "\x00"


@pytest.mark.parametrize(("texts", "error"), [("one text", TypeError), ([], ValueError)])
def test_texts_must_be_a_list_with_something_in_it(texts, error):
    with pytest.raises(error):
        resolve_embedder(Lengths()).embed(texts)


@pytest.mark.parametrize(
    "result",
    [
        [1.0, 2.0],
        [[1.0], [2.0]],
        [[]],
        [],
        np.ones((1, 2, 3)),
        [[float("nan"), 1.0]],
        [[float("inf"), 1.0]],
        [[1e300, 1.0]],
        [["1", "2"]],
        [[1j, 0.0]],
        [None],
        "vector",
        5,
        object(),
        [[1.0], [2.0, 3.0]],
    ],
    ids=lambda result: type(result).__name__,
)
def test_results_are_checked(result):
    with pytest.raises(EmbedderError, match="Lengths returned"):
        resolve_embedder(Lengths(result)).embed(["x"])


def test_what_an_embedder_raises_is_raised():
    class Interrupted:
        def embed(self, texts):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve_embedder(Interrupted()).embed(["x"])


def test_auto_imports_no_model_runner(run_python):
    script = (
        "import sys\n"
        "from kp_langchain.scoring import Scorer, resolve_embedder\n"
        "Scorer(); assert resolve_embedder('auto') is resolve_embedder('auto')\n"
        "print([m for m in ('torch', 'fastembed', 'onnxruntime', 'numpy') if m in sys.modules])"
    )
    assert run_python(script, is_cold=True).stdout.strip() == "[]"


def test_auto_without_a_package_that_runs_models(run_python):
    script = (
        "import sys; sys.modules['sentence_transformers'] = sys.modules['fastembed'] = None\n"
        "from kp_langchain.scoring import *\n"
        "print(resolve_embedder('auto'))\n"
        "for embedder in (SentenceTransformerEmbedder(), FastembedEmbedder()):\n"
        "    try: embedder.embed(['x'])\n"
        "    except ImportError as error: print(type(error).__name__, error)\n"
    )
    none, torch, onnx = run_python(script).stdout.strip().splitlines()
    assert none == "None"
    assert torch.startswith("MissingExtraError")
    assert "pip install 'kp-langchain[sentence-transformers]'" in torch
    assert onnx.startswith("MissingExtraError")
    assert "pip install 'kp-langchain[embeddings]'" in onnx
