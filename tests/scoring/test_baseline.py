"""An embedder may say how alike unrelated texts are to it; novelty is counted from there."""

from __future__ import annotations

import math
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings

from kp_langchain.errors import ConfigError, VectorError
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import FastembedEmbedder, Scorer, VectorCache, resolve_embedder
from kp_langchain.scoring.dimensions import novelty

UNIT = st.floats(0, 1, exclude_max=True)


class Cone:
    """Embeds a text as a vector that has a cosine of 0.8 or more with that of any other."""

    baseline: object = 0.8

    def embed(self, texts):
        vectors = [[2.0, float("a" in text), float("b" in text), 0.0] for text in texts]
        return np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)


class LangChainCone(Embeddings):
    def __init__(self, **attributes) -> None:
        vars(self).update(attributes)

    def embed_documents(self, texts):
        return Cone().embed(texts).tolist()

    def embed_query(self, text):
        raise AssertionError("documents are embedded, not queries")


def trace(objective: str) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "default", "success": True},
            "task": {"objective": objective},
            "steps": [{"step_id": 0, "type": "tool_call", "tool": {"name": "x"}}],
            "outcome": {"result_summary": "", "confidence": 0.9},
        }
    )


def travelled(value):
    """What arrives in another process."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301


def after(scorer: Scorer, first: str = "a", then: str = "b"):
    scorer.evaluate(trace(first))
    return scorer.score(trace(then))


@pytest.mark.parametrize(
    "scorer",
    [
        lambda: Scorer(embedder=Cone()),
        lambda: Scorer(embedder=LangChainCone(baseline=0.8)),
        lambda: Scorer(embedder=LangChainCone(), baseline=0.8),
        lambda: Scorer(embedder=LangChainCone(baseline=0.1), baseline=0.8),
        lambda: travelled(Scorer(embedder=Cone(), baseline=0.8)),
        lambda: Scorer(embedder=LangChainCone(baseline=np.float32(0.8))),
        lambda: Scorer(embedder=LangChainCone(baseline=Fraction(4, 5))),
    ],
)
def test_novelty_is_counted_from_the_baseline(scorer):
    found = after(scorer())
    assert found.nearest.similarity == pytest.approx(0.8)  # as it is
    assert found.novelty.value == pytest.approx(1.0, abs=1e-6)
    assert "counted from the embedder's baseline 0.8" in found.text()
    between = after(scorer(), "a", "ab")
    similarity = between.nearest.similarity
    assert 0.8 < similarity < 1
    assert between.novelty.value == pytest.approx((1 - similarity) / 0.2, abs=1e-6)
    assert after(scorer(), "a", "a").novelty.value == pytest.approx(0, abs=1e-6)


def test_many_at_once_are_counted_the_same():
    traces = [trace(text) for text in ("a", "b", "ab", "c", "a")]
    one, many = Scorer(embedder=Cone()), Scorer(embedder=Cone())
    singly = [one.evaluate(each).novelty for each in traces]
    together = [each.novelty for each in many.evaluate_many(traces, batch_size=2)]
    assert [each.value for each in singly] == pytest.approx([each.value for each in together])
    assert [each.why for each in singly] == [each.why for each in together]


@pytest.mark.parametrize("said", [None, 0, 0.0])
def test_without_a_baseline_all_is_as_before(said):
    found = after(Scorer(embedder=LangChainCone(baseline=said)))
    assert found.novelty.value == 1 - found.nearest.similarity
    assert "counted" not in found.text()


@given(st.floats(-1, 1))
def test_a_baseline_of_0_changes_no_bit(similarity):
    assert novelty(similarity, 0.0) == novelty(similarity) == min(1.0, max(0.0, 1.0 - similarity))


@given(st.floats(-1.001, 1.001), st.floats(-1.001, 1.001), UNIT)
def test_the_more_alike_the_less_novel(one, other, baseline):
    least, most = novelty(max(one, other), baseline), novelty(min(one, other), baseline)
    assert 0 <= least <= most <= 1
    assert novelty(1.0, baseline) == 0
    assert novelty(baseline, baseline) == 1


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        1,
        1.0,
        1.5,
        -0.1,
        True,
        "0.8",
        b"0.8",
        [0.8],
        object(),
        10**400,
    ],
    ids=lambda value: repr(value)[:9],
)
def test_what_is_no_baseline_is_refused(value):
    for make in (
        lambda: Scorer(embedder=LangChainCone(baseline=value)),
        lambda: Scorer(embedder=Cone(), baseline=value),
        lambda: FastembedEmbedder(baseline=value),
    ):
        with pytest.raises(ConfigError, match=r"baseline of .* from 0 to below 1"):
            make()


def test_a_baseline_that_cannot_be_read_is_named():
    class Broken(Cone):
        @property
        def baseline(self):
            raise RuntimeError

    with pytest.raises(ConfigError, match="baseline of Broken cannot be read"):
        resolve_embedder(Broken())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"baseline": 0.8}, {"baseline": 0.7}),
        ({"baseline": 0.8}, {}),
        ({"model": "e5-small"}, {"model": "e5-large"}),
        ({"model_name": "e5", "revision": "1"}, {"model_name": "e5", "revision": "2"}),
    ],
)
def test_embeddings_of_two_models_are_never_compared(one, other):
    cache = VectorCache(dimensions=4)
    first = Scorer(embedder=LangChainCone(**one), cache=cache)
    second = Scorer(embedder=LangChainCone(**other), cache=cache)
    again = Scorer(embedder=LangChainCone(**one), cache=cache)
    first.evaluate(trace("a"))
    for use in (
        second.score,
        second.evaluate,
        second.remember,
        lambda t: [*second.evaluate_many([t])],
    ):
        with pytest.raises(VectorError, match="another model, revision or baseline"):
            use(trace("b"))
    assert cache.size == 1
    assert again.score(trace("b")).nearest is not None
    cache.clear()
    assert second.evaluate(trace("b")).novelty_source == "empty cache"


def test_a_baseline_of_the_scorer_belongs_to_the_memory_too():
    cache = VectorCache(dimensions=4)
    Scorer(embedder=Cone(), cache=cache).remember(trace("a"))
    with pytest.raises(VectorError):
        Scorer(embedder=Cone(), cache=cache, baseline=0.5).score(trace("a"))
    assert Scorer(embedder=Cone(), cache=cache, baseline=0.8).score(trace("a")).nearest


def test_vectors_that_the_caller_added_are_compared():
    cache = VectorCache(dimensions=4)
    cache.add([2.0, 1.0, 0.0, 0.0], key="own")
    found = Scorer(embedder=Cone(), cache=cache).score(trace("a"))
    assert found.nearest.trace_id == "own"


def test_settings_name_the_baseline_of_their_model(onnx_folder, monkeypatch):
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(onnx_folder))
    monkeypatch.setenv("KP_EMBEDDING_BASELINE", "0.25")
    of_settings = FastembedEmbedder()
    found = after(Scorer(embedder=of_settings), "fix the login error", "fix the login bug")
    assert found.novelty.value == pytest.approx((1 - found.nearest.similarity) / 0.75, abs=1e-6)
    assert "baseline 0.25" in found.text()
    assert of_settings.identity.model.endswith("model.onnx")
    assert of_settings.identity.revision
    own = FastembedEmbedder(onnx_folder)
    after(Scorer(embedder=own))
    assert own.identity.baseline == 0  # the settings say nothing of a model that they do not name
    copy = travelled(FastembedEmbedder(onnx_folder, baseline=0.5))
    copy.embed(["x"])
    assert copy.identity.baseline == 0.5


def test_another_model_begins_with_an_empty_memory(onnx_folder, monkeypatch):
    """What the settings name may change while a process runs; a child loads it again."""
    scorer = Scorer(embedder=(model := FastembedEmbedder(onnx_folder)))
    scorer.evaluate(trace("a"))
    assert scorer.score(trace("a")).novelty.value == pytest.approx(0, abs=1e-6)
    other = FastembedEmbedder(onnx_folder, baseline=0.5)
    other.embed(["x"])
    monkeypatch.setattr(model, "_identity", other.identity)
    assert scorer.evaluate(trace("b")).novelty_source == "empty cache"
    assert scorer.score(trace("b")).nearest is not None
    assert scorer.score(trace("a")).novelty_source == "exact repeat"  # whatever the model
