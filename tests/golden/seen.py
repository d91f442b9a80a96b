"""What the outside sees of runs: traces, decisions, the log, counters, what the CLI says."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer, VectorCache
from tests.commands import cli, cli_apart
from tests.golden.normal import canonical, normal

_SLOTS = 16
_BUCKETS = 24  # in all 384 values, as a cache takes by default
_OF_EVERY_RECORD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message", "asctime", "taskName",
}  # fmt: skip


class Sixteenths:
    """Texts are as similar as their words overlap, in sixteenths: exact on every machine."""

    model = "sixteenths"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), _SLOTS * _BUCKETS), np.float32)
        for row, text in zip(rows, texts, strict=True):
            words = {blake2b(word.encode(), digest_size=64).digest() for word in text.split()}
            hashes = [np.frombuffer(word, np.uint32) for word in words] or [np.zeros(16, np.uint32)]
            least = np.min(hashes, axis=0)
            row[np.arange(_SLOTS) * _BUCKETS + least % _BUCKETS] = 0.25
        return rows


class Records(logging.Handler):
    """Keeps what the package logs: level, message and fields."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.rows: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = {
            name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD
        }
        row = {"level": record.levelname, "message": record.getMessage(), **fields}
        self.rows.append(row)


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """The records that the package logs within the block."""
    logger = logging.getLogger("kp_langchain")
    records, level = Records(), logger.level
    logger.addHandler(records)
    logger.setLevel(logging.INFO)
    try:
        yield records.rows
    finally:
        logger.removeHandler(records)
        logger.setLevel(level)


def scorer() -> Scorer:
    """A scorer with a memory of its own."""
    return Scorer(embedder=Sixteenths(), cache=VectorCache())


class Seen:
    """A handler and all that it lets out.

    Args:
        domain: The domain of its runs.
        options: As of `KPCallbackHandler`.
    """

    def __init__(self, domain: str, **options: Any) -> None:
        self.scored: list[ScoredTrace] = []
        options.setdefault("scorer", scorer())
        self.handler = KPCallbackHandler(domain, on_scored=self.scored.append, **options)

    def all(self, records: list[dict[str, Any]], *, is_ordered: bool = True) -> dict[str, Any]:
        """Return what was seen, once everything is scored.

        Args:
            records: What was logged meanwhile.
            is_ordered: Whether steps of one run are always in the same order.
        """
        assert self.handler.flush(120)
        counters = {name: count for name, count in self.handler.stats().items() if count}
        counters.pop("over_budget", None)  # depends on the machine
        runs = [one.trace.model_dump(mode="json", by_alias=True, exclude_none=True)
                for one in self.scored]  # fmt: skip
        if not is_ordered:
            for run in runs:
                run["steps"].sort(key=lambda step: canonical(normal({**step, "step_id": 0})))
                for number, step in enumerate(run["steps"]):
                    step["step_id"] = number
        traces = [normal(run) for run in runs]
        rows = [normal(record) for record in records]
        # Runs that end at the same time are scored in any order.
        return {
            "traces": sorted(traces, key=canonical),
            "log": sorted(rows, key=canonical),
            "stats": counters,
        }


def command(*words: str, database: Path | None = None, program: str = "") -> dict[str, Any]:
    """Return exit status and output of a command; JSON lines are read.

    Args:
        words: The command and its arguments.
        database: The store that it uses.
        program: Runs it in a process of its own, because it leaves threads or writes past Python.
    """
    if database is not None:
        words = (*words, "--database", str(database))
    done = cli_apart(*words, program=program) if program else cli(*words)
    return {
        "exit": done.returncode,
        "stdout": [_read(line) for line in done.stdout.splitlines()],
        "stderr": sorted(filter(None, done.stderr.splitlines())),  # some are other threads'
    }


def _read(line: str) -> Any:
    if not line.startswith(("{", "[")):
        return line.rstrip()  # a table is as wide as its longest time
    try:
        return json.loads(line)
    except ValueError:
        return line
