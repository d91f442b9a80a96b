"""How long an export takes, how large it is, and whether it holds a secret that was planted.

    python -m tests.benchmarks.export [--runs N] [--folder PATH]

imports recorded runs into a store that keeps all of them, each with a secret of a known form in
one of its messages, and gives half of them a verdict. Then it exports them in each format into a
folder. Both the recorded runs and the secrets lie beside the checkout.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ahocorasick_rs

from kp_langchain import TraceStore
from kp_langchain.exporting.exported_run import read_runs
from kp_langchain.exporting.formats import FORMATS, write_folder
from kp_langchain.exporting.selection import Request, select_runs
from tests.benchmarks.harness import machine, parser, table
from tests.benchmarks.workspace import (
    KEEPS_ALL,
    RECORDED,
    REPEATED,
    WITHOUT_MODEL,
    Run,
    Workspace,
)
from tests.benchmarks.workspace import (
    read_runs as read_recorded,
)
from tests.recorded import FOLDER

SECRETS = FOLDER.parent / "redaction" / "secrets.jsonl"
_SPREAD = 7  # a secret goes into another message of each run


def planted(runs: Sequence[Run]) -> Iterator[tuple[Run, str]]:
    """Yield runs with a secret in one of their messages, and the secret."""
    with SECRETS.open(encoding="utf-8") as lines:
        cases = [case for case in map(json.loads, lines) if not case["soft"] and "text" in case]
    for number, run in enumerate(runs):
        case = cases[number * _SPREAD % len(cases)]
        messages = [dict(one) for one in run.row["messages"]]
        texts = [one for one in messages if isinstance(one.get("content"), str)]
        if texts:
            message = texts[number % len(texts)]
            message["content"] = f"{message['content']}\n{case['text']}"
        yield run._replace(row={**run.row, "messages": messages}), case["secret"]


def texts_of(folder: Path) -> Iterator[str]:
    """Yield the texts of all files of an export; of a table, those of its columns."""
    for file in sorted(folder.iterdir()):
        if file.suffix == ".parquet":
            from pyarrow import parquet

            for row in parquet.read_table(file).to_pylist():
                yield json.dumps(row, ensure_ascii=False, default=str)
        else:
            yield from file.read_text(encoding="utf-8").splitlines()


def count_secrets(secrets: Iterable[str], texts: Iterable[str]) -> int:
    """Return how many secrets texts hold, as they are or as JSON escapes them."""
    forms: dict[str, str] = {}
    for secret in secrets:
        once = json.dumps(secret)[1:-1]
        for form in (secret, once, json.dumps(once)[1:-1]):
            forms.setdefault(form, secret)
    patterns = list(forms)
    search = ahocorasick_rs.AhoCorasick(patterns)
    found: set[str] = set()
    for text in texts:
        found.update(forms[patterns[at]] for at, _, _ in search.find_matches_as_indexes(text))
    return len(found)


def measure(store: TraceStore, name: str, secrets: Sequence[str], folder: Path) -> list[str]:
    """Return the row of a format."""
    form = FORMATS[name]
    request = Request(
        is_everything=True,
        with_identifiers=True,
        successes_only=form.failing_steps is not None,
        by_outcome=form.by_outcome,
        per_task=100,
        test_share=0.1,
    )
    folder.mkdir()
    began_s = time.perf_counter()
    selection = select_runs(store, {}, request)
    runs = read_runs(store, selection.choices)
    failing = form.failing_steps or "keep"
    tally = write_folder(runs, form, failing, folder, name, selection)
    took_s = time.perf_counter() - began_s
    size = sum(file.stat().st_size for file in folder.iterdir())
    return [
        name,
        f"{tally.count:,} of {selection.matching:,}",
        f"{tally.skipped.total():,}",
        f"{took_s:.2f}",
        f"{size / 1e6:.2f}",
        f"{count_secrets(secrets, texts_of(folder)):,}",
    ]


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    options: Any = parser("tests.benchmarks.export", __doc__)
    options.add_argument("--runs", type=int, default=1000, metavar="N", help="record so many")
    options.add_argument("--folder", type=Path, help="an empty folder that stays")
    chosen = options.parse_args(words)
    by_source = read_recorded([RECORDED, REPEATED])
    longest = max(map(len, by_source.values()))
    in_turn = (runs[at] for at in range(longest) for runs in by_source.values() if at < len(runs))
    pairs = list(planted(list(islice(in_turn, chosen.runs))))
    runs, secrets = [run for run, _ in pairs], [secret for _, secret in pairs]
    print(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        workspace = Workspace(folder / "work", "default", **KEEPS_ALL, **WITHOUT_MODEL)
        workspace.record(runs)
        workspace.label(runs[::2])
        with workspace.store() as store:
            bodies = (trace.model_dump_json() for trace in store.traces(with_expiring=True))
            in_store = count_secrets(secrets, bodies)
            rows = [measure(store, name, secrets, folder / name) for name in FORMATS]
    print(f"{len(set(secrets)):,} secrets planted; {in_store:,} of them are in the store.\n")
    head = ["format", "runs", "without a form", "seconds", "MB", "secrets found"]
    print(table("Export", head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
