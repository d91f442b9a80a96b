"""A small archive, and what each of its rows scores when they are evaluated one after the other."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from numpy.typing import NDArray

from kp_langchain import ReasoningTrace, Scorer, Settings
from kp_langchain.archive.rows import Tools
from kp_langchain.archive.run import tools_of
from tests.cli.conftest import without_model as without_model
from tests.cli.made_runs import document

REMEMBERED = 20  # fewer than the rows, so that old ones are forgotten
WIDTH = 16


class Words:
    """An embedder that counts words: texts that share words are similar; some have no vector."""

    model = "words"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), WIDTH), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.split():
                row[hashlib.blake2b(word.encode()).digest()[0] % WIDTH] += 1
        return rows

    def unreadable_share(self, text: str) -> float:
        return float("unreadable" in text)


def query(sql: str) -> Any:
    """What DuckDB answers, which knows nothing of this package."""
    return duckdb.sql(sql)


def tools(**options: Any) -> Tools:
    """What the rows of these tests are scored with."""
    scorer = Scorer(embedder=Words(), max_remembered=REMEMBERED)
    return tools_of(Settings(), **{"scorer": scorer, **options})


def wire(number: int) -> dict[str, Any]:
    """A trace; some repeat one before, and some cannot be read by the embedder."""
    draw = random.Random(number % 41)  # so every 41st has the same text
    words = [
        "stock",
        "drug",
        "patch",
        "refund",
        "quarter",
        "dose",
        "merge",
        "ticket",
        "tax",
        "lint",
    ]
    text = " ".join(draw.choices(words, k=draw.randint(2, 6)))
    text += " unreadable" if number % 11 == 5 else ""
    steps: list[dict[str, Any]] = [{"type": "thought", "content": text}]
    steps += [{"type": "tool_call", "tool": {"name": name}} for name in "abc"[: draw.randint(0, 3)]]
    trace = document(
        number, domain=("finance", "code", "Größe/../x")[number % 3], objective=f"do {text}",
        steps=steps, answer=text, success=number % 4 != 0,
    )  # fmt: skip
    created_at = datetime(2026, 2, 1, 23, 30, tzinfo=UTC) + timedelta(minutes=number)
    trace["metadata"]["created_at"] = created_at.isoformat()
    trace["outcome"]["confidence"] = round(draw.random(), 3)
    return trace


@dataclasses.dataclass(frozen=True)
class Archive:
    """Files, and what their rows score.

    Attributes:
        files: The files, of lines.
        scores: By file and line, the score, novelty and nearest trace.
        bad: Where lines hold no trace.
    """

    files: list[str]
    scores: dict[tuple[str, int], tuple[float, float, str | None]]
    bad: list[str]


@pytest.fixture
def archive() -> Archive:
    """Two files with 150 traces and 4 lines that hold none."""
    scorer = Scorer(embedder=Words(), max_remembered=REMEMBERED)
    scores: dict[tuple[str, int], tuple[float, float, str | None]] = {}
    bad, number = [], 0
    for file, count in (("one.jsonl", 90), ("two.jsonl", 64)):
        lines = []
        for line in range(1, count + 1):
            if line % 40 == 3:
                bad_lines = [
                    "\xff nonsense",
                    '{"not": "a trace"}',
                    json.dumps({**wire(0), "x": math.nan}),
                ]
                lines.append(bad_lines[len(bad) % 3])
                bad.append(f"{file}:{line}")
                continue
            trace = wire(number)
            number += 1
            lines.append(json.dumps(trace))
            one = scorer.evaluate(ReasoningTrace.model_validate(trace))
            nearest = None if one.nearest is None else one.nearest.trace_id
            scores[file, line] = one.total, one.novelty.value, nearest
        Path(file).write_text("\n".join(lines) + "\n", encoding="latin-1")
    return Archive(["one.jsonl", "two.jsonl"], scores, bad)
