"""Scores equal those of an independent implementation, and those worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kp_langchain.scoring import Scorer

HAND_COMPUTED = json.loads((Path(__file__).parent / "hand_computed.json").read_text())["cases"]
PARITY = Path(__file__).parents[2].parent / "shared" / "parity"
needs_parity = pytest.mark.skipif(
    not PARITY.is_dir(), reason="no folder shared/parity beside the checkout"
)


class RowByRow:
    """Gives one row of a matrix after the other, whatever the texts."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = iter(rows)

    def embed(self, texts):
        return np.stack([next(self._rows) for _ in texts])


def _lines(name: str) -> list[dict]:
    with (PARITY / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("case", HAND_COMPUTED, ids=lambda case: case["name"])
def test_hand_computed(case, make_trace):
    trace = make_trace(
        domain=case["domain"], success=case["success"], confidence=case["confidence"]
    )
    steps = make_trace(*case["steps"]).steps if case["steps"] else []
    trace = trace.model_copy(update={"steps": steps})
    breakdown = Scorer(embedder=None).score(trace)
    assert breakdown.total == pytest.approx(case["score"], abs=1e-12)
    assert breakdown.weighted_sum == pytest.approx(case["weighted_sum"], abs=1e-12)
    assert [rule.name for rule in breakdown.rules] == case["rules"]
    assert breakdown.profile == case.get("profile", case["domain"])


@needs_parity
def test_without_embedder():
    scorer = Scorer(embedder=None)
    lines = _lines("no_embedder.jsonl")
    assert len(lines) == 300
    for line in lines:
        assert scorer.evaluate(line["trace"]).total == pytest.approx(line["score"], abs=1e-9)


@needs_parity
def test_sequence_with_embeddings():
    lines = _lines("sequence.jsonl")
    rows = np.load(PARITY / "sequence_embeddings.npy")
    assert len(lines) == len(rows) == 50
    scorer = Scorer(embedder=RowByRow(rows))
    for line in lines:
        assert scorer.evaluate(line["trace"]).total == pytest.approx(line["score"], abs=1e-9)
