"""An archive of recorded runs, repeated with changes: scored one after the other, and by workers.

    python -m tests.benchmarks.archives [--rows 50000] [--many 1000000] [--engines local ray]

Each row is a recorded run in which words and numbers are exchanged, some are repeated as they are,
and one line is broken. `Scorer.evaluate` scores them one after the other; every other way has to
give the same scores. One of them is killed halfway, and goes on. Texts are embedded by counting
words, in 384 dimensions, so that the model, which takes a hundred times as long as all else, does
not hide the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kp_langchain import ReasoningTrace, Scorer, Settings, trace_from_messages
from kp_langchain.archive.engines import Engine
from kp_langchain.archive.run import Progress, score_archive, tools_of
from tests import recorded
from tests.benchmarks.harness import environment, in_fresh_process, machine, parser, table

_WIDTH, _REMEMBERED, _FILES, _BLOCK_ROWS = 384, 1000, 8, 500
_EXCHANGED = 60
_REPEATED = 0.05
_WORD = re.compile(r"\b[a-z]{5,9}\b|\d+")
_BROKEN = '{"broken": '


class CountedWords:
    """An embedder that counts the first 400 words of a text."""

    model = "counted words"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), _WIDTH), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.split()[:400]:
                at, sign = _place(word)
                row[at] += sign
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(lengths == 0, 1, lengths)


@lru_cache(1 << 16)
def _place(word: str) -> tuple[int, float]:
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=5).digest()
    return int.from_bytes(digest[:4], "little") % _WIDTH, 1.0 if digest[4] & 1 else -1.0


# ------------------------------------------------------------------ the rows


def made_rows(count: int, seed: int = 45) -> Iterator[str]:
    """Yield traces in wire form, one of them broken."""
    draw = random.Random(seed)
    runs = [
        trace_from_messages(run["messages"], domain=run["domain"], success=run["success"])
        for name in ("runs.jsonl.gz", "runs2.jsonl.gz")
        for run in recorded.load(name)
        if len(run["messages"]) > 1
    ]
    traces = [one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in runs]
    words = sorted({word for one in traces for word in _WORD.findall(one["task"]["objective"])})
    recent: list[dict[str, Any]] = []
    for number in range(count):
        if number == count // 2:
            yield _BROKEN
            continue
        if recent and draw.random() < _REPEATED:
            trace = dict(draw.choice(recent))
        else:
            trace = _changed(draw.choice(traces), words, draw)
            recent = [*recent, trace][-900:]
        day = 1 + number * 10 // count
        at = f"2026-10-{day:02}T{number % 24:02}:{number % 60:02}:00Z"
        trace["id"] = f"kp:trace:{uuid.UUID(int=draw.getrandbits(128), version=4)}"
        trace["metadata"] = {**trace["metadata"], "created_at": at}
        yield json.dumps(trace, ensure_ascii=False)


def _changed(trace: dict[str, Any], words: list[str], draw: random.Random) -> dict[str, Any]:
    pairs = zip(draw.sample(words, _EXCHANGED), draw.sample(words, _EXCHANGED), strict=True)
    others, shift = dict(pairs), draw.randrange(1, 9999)

    def change(text: str) -> str:
        return _WORD.sub(
            lambda found: (
                str(int(found[0][-6:]) + shift)
                if found[0].isdecimal()
                else others.get(found[0], found[0])
            ),
            text,
        )

    steps = [{**step, "content": change(step.get("content") or "")} for step in trace["steps"]]
    task = {**trace["task"], "objective": change(trace["task"]["objective"])}
    return {**trace, "task": task, "steps": steps}


def write_files(folder: Path, count: int) -> list[str]:
    """Write the rows into files; return their names."""
    folder.mkdir()
    rows, names = made_rows(count), [str(folder / f"part-{at:03}.jsonl") for at in range(_FILES)]
    for name in names:
        Path(name).write_text("".join(f"{row}\n" for row in islice(rows, -(-count // _FILES))))
    return names


def write_many(folder: Path, files: Sequence[str], count: int) -> list[str]:
    """Write so many rows, those of some files again and again with other words, one broken."""
    folder.mkdir()
    texts = [row for file in files for row in Path(file).read_text().split("\n")]
    rows = [row for row in texts if row not in (_BROKEN, "")]
    many: list[str] = []
    for first in range(0, count, len(rows)):
        lines = []
        for at, row in enumerate(rows[: count - first], first):
            text = row.replace("kp:trace:", f"kp:trace:{first:x}-", 1)
            text = text.replace('"objective": "', f'"objective": "{at} times {first}: ', 1)
            lines.append(f"{_BROKEN if at == count // 2 else text}\n")
        many.append(str(folder / f"part-{len(many):03}.jsonl"))
        Path(many[-1]).write_text("".join(lines))
    return many


# ------------------------------------------------------------------ what is measured


def one_after_the_other(files: Sequence[str], out: str) -> dict[str, Any]:
    """Score the rows by `Scorer.evaluate`; write score and novelty of each."""
    scorer = Scorer(embedder=CountedWords(), max_remembered=_REMEMBERED)
    scores, began = [], time.perf_counter()
    for file in files:
        for line in Path(file).read_text().split("\n"):
            try:
                one = scorer.evaluate(ReasoningTrace.model_validate_json(line))
            except ValueError:
                continue
            scores.append((one.total, one.novelty.value))
    seconds = time.perf_counter() - began
    np.save(out, np.array(scores))
    return {"seconds": seconds, "scored": len(scores)}


def by_workers(files: Sequence[str], out: str, engine: Engine, workers: int) -> dict[str, Any]:
    """Score the rows as an archive; return how long that took, and the most memory."""
    passes_s: dict[str, float] = {}
    rows = 0

    def report(now: Progress) -> None:
        nonlocal rows
        passes_s[now.name] = time.perf_counter() - began
        rows = max(rows, now.rows)

    tools = tools_of(Settings(), scorer=Scorer(embedder=CountedWords(), max_remembered=_REMEMBERED))
    with _Memory() as memory:
        began = time.perf_counter()
        summary = score_archive(
            files, out, tools, engine=engine, workers=workers, block_rows=_BLOCK_ROWS, report=report
        )
        seconds = time.perf_counter() - began
    return {
        "seconds": seconds, "passes_s": passes_s, "peak_mb": memory.peak_kb >> 10, "rows": rows,
        "scored": summary.scored, "skipped": summary.skipped
    }  # fmt: skip


class _Memory:
    """Watches the memory of this process and its children; of what they share, each has a part."""

    def __init__(self) -> None:
        self.peak_kb = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.25):
            self.peak_kb = max(self.peak_kb, sum(map(_share_kb, _with_children(os.getpid()))))


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task").glob("*/children")
        for child in " ".join(one.read_text() for one in children).split():
            yield from _with_children(int(child))
    except OSError:  # it has ended
        return


def _share_kb(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) if match else 0


def kill_halfway(files: Sequence[str], out: str, folder: Path) -> int:
    """Score by two workers, and kill the process that started them; return the blocks it leaves."""
    arguments = {"files": list(files), "out": out, "engine": "local", "workers": 2}
    function = f"{__spec__.name}:by_workers"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.harness", function, json.dumps(arguments), "none"],
        cwd=folder,
        env=environment(folder),
    )
    blocks = Path(out, "_work/read")
    half = sum(Path(file).read_bytes().count(b"\n") for file in files) // _BLOCK_ROWS // 2
    while process.poll() is None and len([*blocks.glob("*.block")]) < half:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return len([*blocks.glob("*.block")])


def worst_difference(out: str, reference: str) -> tuple[float, float, int]:
    """Return the worst differences of score and novelty from the reference, and the rows."""
    import duckdb

    rows = duckdb.sql(
        f"SELECT score, novelty FROM '{out}/domain=*/day=*/*.parquet' ORDER BY file, line"  # noqa: S608
    ).fetchnumpy()
    expected = np.load(reference)
    found = np.stack([rows["score"], rows["novelty"]], axis=1)
    if found.shape != expected.shape:
        raise SystemExit(f"{out} has {len(found):,} rows, and {len(expected):,} are expected")
    worst = np.abs(found - expected).max(axis=0).tolist()
    return worst[0], worst[1], len(found)


# ------------------------------------------------------------------ the program


def main(words: Sequence[str] | None = None) -> None:
    """Print the tables."""
    reading = parser("tests.benchmarks.archives", __doc__)
    reading.add_argument("--rows", type=int, default=50_000)
    reading.add_argument("--many", type=int, default=0, help="rows of a large archive, beside")
    reading.add_argument("--engines", nargs="*", default=["local"], choices=["local", "ray"])
    options = reading.parse_args(words)
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory(prefix="kp-archives-") as name:
        folder = Path(name)
        files = write_files(folder / "rows", options.rows)
        reference = str(folder / "reference.npy")
        first = in_fresh_process(
            f"{__spec__.name}:one_after_the_other", {"files": files, "out": reference}
        )
        per_s = first["scored"] / first["seconds"]
        rows: list[tuple[object, ...]] = [
            ("`Scorer.evaluate`", f"{first['seconds']:.0f}", f"{per_s:,.0f}", "", "", "")
        ]
        ways = [(engine, workers) for engine in options.engines for workers in (1, 2)]
        for engine, workers in ways:
            out = str(folder / f"{engine}-{workers}")
            rows.append(_measured(f"{engine}, {workers}", files, out, engine, workers, reference))
        out = str(folder / "killed")
        left = kill_halfway(files, out, folder)
        rows.append(_measured("local, 2, killed before", files, out, "local", 2, reference))
        head = ["way, workers", "s", "rows a s", "MB", "score differs by", "novelty"]
        print(table(f"{options.rows:,} rows", head, rows))
        print(f"{left} blocks were there after it was killed.\n")
        if options.many:
            many = write_many(folder / "many", files, options.many)
            found = _score(many, str(folder / "out"), "local", 2)
            cells = [
                ("rows scored, skipped", f"{found['scored']:,}, {found['skipped']:,}"),
                ("s", f"{found['seconds']:.0f}"),
                ("rows a s", f"{found['scored'] / found['seconds']:,.0f}"),
                ("MB", found["peak_mb"]),
            ]
            print(table(f"{options.many:,} rows, 2 workers", ["", ""], cells))
            errors = folder / "out/_errors"
            print(_error_in(errors))


def _score(files: Sequence[str], out: str, engine: str, workers: int) -> dict[str, Any]:
    arguments = {"files": files, "out": out, "engine": engine, "workers": workers}
    found: dict[str, Any] = in_fresh_process(f"{__spec__.name}:by_workers", arguments)
    return found


def _measured(
    name: str, files: Sequence[str], out: str, engine: str, workers: int, reference: str
) -> tuple[object, ...]:
    found = _score(files, out, engine, workers)
    score, novelty, rows = worst_difference(out, reference)
    seconds = found["seconds"]
    per_s = f"{rows / seconds:,.0f}"
    return name, f"{seconds:.0f}", per_s, found["peak_mb"], f"{score:.1e}", f"{novelty:.1e}"


def _error_in(folder: Path) -> str:
    import pyarrow.parquet

    rows = [
        row for file in folder.glob("*") for row in pyarrow.parquet.read_table(file).to_pylist()
    ]
    return "\n".join(f"{Path(row['place']).name}: {row['reason']}" for row in rows)


if __name__ == "__main__":
    main()
