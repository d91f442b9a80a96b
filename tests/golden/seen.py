"""What the outside sees of runs: traces, decisions, the log, counters, what the CLI says.

`normal` writes alike what differs between two runs of one program: ids, times, folders, digits.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer, VectorCache
from tests.commands import cli, cli_apart

_SLOTS = 16
_BUCKETS = 24  # in all 384 values, as a cache takes by default
_OF_EVERY_RECORD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", None, None))) | {
    "message", "asctime", "taskName",
}  # fmt: skip
DIGITS = 6  # of floats, after the point
_VOLATILE = re.compile(
    r"(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\bcall_\d+\b)"
    r"|(?P<short_id>\A[0-9a-f]{8}(?=  ))"
    r"|(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)"
    r"|(?P<address>\b0x[0-9a-f]{6,16}\b)"
    r"|(?P<took>(?<=took         )[\d.,]+ (?:ms|s|min)(?: \([^)]*\))?)"
    r"|(?P<elapsed>(?<=elapsed: )\d+\.\d+s|(?<=scored       in )\d+ ms)"
    rf"|(?P<folder>(?:/tmp|{re.escape(gettempdir())})/[\w./-]*?(?=[\w-]+\.\w+\b|[^\w./-]|\Z))"
)
# What releases of LangChain, pydantic and typer say differently.
_BY_RELEASE = re.compile(
    r"\n\s*For (?:troubleshooting,|further information) visit:? \S+ ?"
    r"|User rejected the tool call for `\w+` with reason: "
    r"|\. The tool was not executed\. Do not retry this tool call unless .*? requests it\."
    r"| tool_calls=\[\] invalid_tool_calls=\[\](?=\Z)"
    r"|\AUsage: .*"
    r"|(?<=\ATry ')python -m [\w.]+(?=kp-langchain )"
)
_TIMED = re.compile(r"_ms\Z|_seconds\Z|\A(?:created|updated|judged|began|ended|expires)_at\Z")
_LEFT_OUT = frozenset(("over_budget", "kp_version"))  # of the machine, of the release


@contextmanager
def working_folder() -> Iterator[Path]:
    """An empty working folder."""
    before = Path.cwd()
    with TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


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
        if fields.get("kp_event") != "kp.no_basis":  # once per process, so in any of the cases
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


def normal(value: Any) -> Any:
    """Return JSON in which ids are numbered, and times, durations and folders have one form.

    Args:
        value: Anything that JSON can hold. Other objects are written as text.
    """
    return _normal(value, {})


def _normal(value: Any, ids: dict[str, int]) -> Any:
    if isinstance(value, Mapping):
        members = (
            (str(key), item)
            for key, item in value.items()
            # The version of a model is a number, that of a package text.
            if key not in _LEFT_OUT and not (key == "version" and isinstance(item, str))
        )
        return {
            _text(key, ids): "TIMED" if _is_timed(key, item) else _normal(item, ids)
            for key, item in members
        }
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_normal(item, ids) for item in items]
    if isinstance(value, float):
        # First to more digits, so that half of the last one is rounded alike, whatever is summed in
        # which order: since Python 3.12 `sum` is more exact.
        return round(round(value, DIGITS + 4), DIGITS) + 0.0 if value == value else "nan"
    if value is None or isinstance(value, bool | int):
        return value
    return _text(str(value), ids)


def _is_timed(key: str, item: Any) -> bool:
    return item is not None and not isinstance(item, dict) and _TIMED.search(key) is not None


def _text(text: str, ids: dict[str, int]) -> str:
    return _VOLATILE.sub(partial(_placed, ids=ids), _BY_RELEASE.sub("", text))


def _placed(match: re.Match[str], ids: dict[str, int]) -> str:
    if match.lastgroup == "id":
        return f"id{ids.setdefault(match[0], len(ids) + 1)}"
    return str(match.lastgroup).upper()


def canonical(value: Any) -> str:
    """Return normal JSON as one line, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def short_hash(value: Any) -> str:
    """Return 10 hexadecimal digits for normal JSON."""
    return sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()[:10]
