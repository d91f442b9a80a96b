"""What is left of a text that is longer than a model's window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.embedding.window import both_ends, fit
from kp_langchain.scoring import resolve_embedder

tokenizers = pytest.importorskip("tokenizers")


def word_pieces(truncation: int | None = None) -> tokenizers.Tokenizer:
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


def unigrams() -> tokenizers.Tokenizer:
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
tokenisers = pytest.mark.parametrize("tokeniser", TOKENISERS.values(), ids=list(TOKENISERS))
texts = st.text("abcdefghij  xyz.\u00e9\u6771\U0001f600\n", max_size=300) | st.text(max_size=300)


def pieces(text: str, kind: str = "all tokens") -> list[str]:
    return TOKENISERS[kind].encode(text).tokens


@given(text=texts, window=st.integers(3, 60))
@tokenisers
def test_a_text_is_its_own_if_it_fits_else_its_two_ends(tokeniser, text, window):
    kept = fit(text, tokeniser, window)
    if tokeniser is not TOKENISERS["unigrams"] and len(pieces(text)) <= window:
        assert kept == text
    if kept != text:
        assert any(
            text.startswith(kept[:at]) and text.endswith(kept[at + 1 :])
            for at, character in enumerate(kept)
            if character == " "
        )


@pytest.mark.parametrize("tokeniser", [TOKENISERS["all tokens"], TOKENISERS["truncating"]])
def test_words_stay_whole_and_the_window_is_filled(tokeniser):
    text = " ".join(["cab"] * 50 + ["abcde"] * 50)
    kept = fit(text, tokeniser, 22)
    assert kept == " ".join(["cab"] * 10 + ["abcde"] * 2)
    assert len(pieces(kept)) == 22


def test_a_word_without_an_end_is_cut_where_the_window_ends():
    kept = fit("a" * 90, TOKENISERS["all tokens"], 22)
    assert kept == f"{'a' * 10} {'a' * 10}"


def test_a_window_without_room_leaves_the_text_to_the_model():
    assert fit("cab " * 30, TOKENISERS["all tokens"], 3) == "cab " * 30


@given(st.text(max_size=60), st.integers(3, 50))
def test_both_ends_by_characters(text, limit):
    kept = both_ends(text, limit)
    if len(text) <= limit:
        assert kept == text
        return
    assert len(kept) == limit
    head = limit // 2
    assert (kept[:head], kept[head + 1 :]) == (text[:head], text[-((limit - 1) // 2) :])


def test_a_foreign_embedder_gets_both_ends():
    class Foreign:
        def embed(self, texts):
            self.texts = list(texts)
            return [[1.0] for _ in texts]

    foreign = Foreign()
    long = "a" * 10_000_000 + "b" * 10_000_000
    resolve_embedder(foreign).embed([long, "short", "x" * 16_384])
    first, *others = foreign.texts
    assert first == f"{'a' * 8192} {'b' * 8191}"
    assert others == ["short", "x" * 16_384]
