"""Labelled runs from files of JSON lines, read whatever else they hold."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kp_langchain import ReasoningTrace, trace_from_messages
from kp_langchain.calibration.features import features_of
from kp_langchain.cli.jsonl import LONGEST_LINE_BYTES
from kp_langchain.cli.line_scorer import read_trace
from kp_langchain.recording.outcome import looks_successful
from kp_langchain.scoring.dimensions import DEFAULT_CONFIDENCE


@dataclass(frozen=True, slots=True)
class Run:
    """A run of which it is known whether it succeeded.

    Args:
        source: Where it comes from; runs are compared with others of their source only.
        task: What was to be done, folded; runs with equal task are repeats of one task.
        success: The truth.
        trace: The run with the outcome it looked to have, not with the truth.
    """

    source: str
    task: str
    success: bool
    trace: ReasoningTrace


@dataclass
class Runs:
    """What files held.

    Args:
        labelled: The runs with a label, in order.
        unlabelled: How many had none, by source.
        skipped: Lines that are no run.
    """

    labelled: list[Run] = field(default_factory=list)
    unlabelled: Counter[str] = field(default_factory=Counter)
    skipped: int = 0


def read(files: Iterable[Path], tell: Callable[[str], object], task_field: str = "task") -> Runs:
    """Read files of labelled runs; what is none of them is told as `file:line: reason`.

    A line is an object with `messages` (in OpenAI's form or LangChain's) or `trace` (in wire
    form), `success` (null where it is not known), `source`, and perhaps `domain` and `task`.

    Args:
        files: JSON lines, compressed if the name ends in `.gz`.
        tell: Is told of lines that are skipped.
        task_field: Where a line names its task; a dot leads into an object (`meta.task_id`). The
            objective stands for it in lines that have nothing there.
    """
    found = Runs()
    for file in files:
        for number, line in _lines(file):
            try:
                if isinstance(line, Exception):
                    raise line
                run = _run(line, task_field)
            except (ValueError, RecursionError, OSError, EOFError, zlib.error) as error:
                found.skipped += 1
                reason = str(error).partition("\n")[0] or type(error).__name__
                tell(f"{file}:{number}: {reason[:300]}")
                continue
            if isinstance(run, Run):
                found.labelled.append(run)
            else:
                found.unlabelled[run] += 1
    return found


def _lines(file: Path) -> Iterator[tuple[int, bytes | Exception]]:
    """The lines that are not blank, by number; an exception where one cannot be had."""
    number = 0
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            while line := lines.readline(LONGEST_LINE_BYTES):
                number += 1
                if len(line) == LONGEST_LINE_BYTES:
                    while line and not line.endswith(b"\n"):
                        line = lines.readline(LONGEST_LINE_BYTES)
                    yield number, ValueError(f"longer than {LONGEST_LINE_BYTES >> 20} MB")
                elif line.strip():
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        yield number + 1, error


def _run(line: bytes, task_field: str) -> Run | str:
    """The run of a line, or its source if it has no label."""
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__}; an object is needed")
    source = _text(row, "source")
    if source is None:
        raise ValueError("no source; name where the run comes from")
    success = row.get("success")
    if success is None:
        return source
    if not isinstance(success, bool):
        raise ValueError(f"success is {success!r}; true, false or null is needed")
    if ("messages" in row) == ("trace" in row):
        raise ValueError("either messages or trace is needed, and not both")
    domain = _text(row, "domain")
    if "messages" in row:
        trace = trace_from_messages(row["messages"], domain=domain or "default")
    else:
        trace = _as_it_looked(row["trace"], domain)
    *objects, name = task_field.split(".")
    within: Any = row
    for one in objects:
        within = within.get(one) if isinstance(within, dict) else None
    task = _text(within if isinstance(within, dict) else {}, name) or trace.task.objective
    return Run(source, " ".join(task.casefold().split()), success, trace)


def _as_it_looked(wire: Any, domain: str | None) -> ReasoningTrace:
    """The trace of its wire form, with the outcome that nobody had to report."""
    trace = read_trace(json.dumps(wire).encode())
    if not trace.steps:
        raise ValueError("a trace without steps")
    success = looks_successful(
        trace.outcome.result_summary,
        ended_well=True,
        unresolved_error=trace.steps[-1].type == "error_recovery",
        last_call_failed=bool(features_of(trace)["last_observation_fails"]),
    )
    trace.metadata.success = success
    trace.outcome.confidence = DEFAULT_CONFIDENCE[success]
    if domain is not None:
        trace.metadata.task_domain = domain
    return trace


def _text(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is None or (isinstance(value, str) and value.strip()):
        return value
    raise ValueError(f"{key} is {str(value)[:80]!r}; a text is needed")
