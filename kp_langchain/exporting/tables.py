"""Runs as rows of a Parquet file: one row each, flat columns. Needs the extra `parquet`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from kp_langchain.exporting.conversations import UnwritableError, openai_example
from kp_langchain.parquet import load_extra, schema_of
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from kp_langchain.store.run_columns import STORED_FIELDS
from kp_langchain.usage import TOKEN_FIELDS, usage_row
from kp_langchain.values import map_texts

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun

_ROWS_AT_ONCE = 100
_INTEGERS = (*TOKEN_FIELDS, "inner_tokens", "model_calls", "tool_calls", "retries")
_TIMES = ("duration_ms", "model_ms", "tool_ms")
_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("trace_id", "run_id", "task", "split"), "string"),
    "created_at": "time",
    **dict.fromkeys(("domain", "namespace", "agent_id", "framework"), "string"),
    **dict.fromkeys(("objective", "answer"), "string"),
    "success": "bool",
    "confidence": "float",
    "confidence_source": "string",
    "verdict_success": "bool",
    "verdict_confidence": "float",
    "verdict_by_model": "bool",
    **dict.fromkeys(("verdict_source", "note", "decision", "gate"), "string"),
    **dict.fromkeys(("score", "worth", "threshold", *DIMENSION_NAMES), "float"),
    "veto": "string",
    "flags": "strings",
    **dict.fromkeys(("n_steps", "recovered_errors", "failed_calls", "retried_calls"), "integer"),
    "tools": "strings",
    "models": "string",
    **dict.fromkeys(_INTEGERS, "integer"),
    **dict.fromkeys((*_TIMES, "cost"), "float"),
    **dict.fromkeys(("step_marks", "tool_definitions", "messages", "trace"), "string"),
}
"""The columns by name with the kind of their values; the last four hold JSON."""


class ParquetWriter:
    """Writes runs into a Parquet file.

    Args:
        stream: The file.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._pa, parquet = load_extra("pyarrow", "pyarrow.parquet")
        self._schema = schema_of(_COLUMNS)
        self._writer = parquet.ParquetWriter(stream, self._schema)
        self._tables: list[Any] = []  # of one row each, so that each fails alone

    def value_of(self, run: ExportedRun) -> Any:
        """Return the row of a run."""
        return self._pa.Table.from_pylist([_clean(_row(run))], self._schema)

    def write(self, value: Any) -> None:
        """Add a row."""
        self._tables.append(value)
        if len(self._tables) >= _ROWS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        try:
            self._flush()
            self._writer.close()
        finally:
            self._writer.is_open = False  # else it writes again as it is deleted

    def _flush(self) -> None:
        if self._tables:
            self._writer.write_table(self._pa.concat_tables(self._tables).combine_chunks())
            self._tables = []


def _row(run: ExportedRun) -> dict[str, Any]:
    stored, verdict, marks = run.run, run.verdict, run.marks()
    dimensions = stored.breakdown.dimensions
    return {
        **{name: getattr(stored, name) for name in _COLUMNS if name in STORED_FIELDS},
        **usage_row(run.usage, run.cost),
        **{name: dimensions[name].value for name in DIMENSION_NAMES if name in dimensions},
        "trace_id": run.trace.id,
        "task": run.task,
        "split": run.split,
        "confidence_source": stored.confidence_source or "default",
        "threshold": run.threshold,
        "objective": run.trace.task.objective,
        "answer": run.trace.outcome.result_summary,
        "verdict_success": verdict and verdict.success,
        "verdict_confidence": verdict and verdict.confidence,
        "verdict_by_model": verdict and verdict.by_model,
        "verdict_source": verdict and verdict.source,
        "note": verdict and verdict.note,
        "flags": list(stored.breakdown.flags),
        "failed_calls": sum(bool(mark.get("failed")) for mark in marks),
        "retried_calls": sum("attempts" in mark for mark in marks),
        "step_marks": _json(marks),
        "tool_definitions": _json(run.tools) if run.tools else None,
        "messages": _messages(run),
        "trace": _json(run.trace.model_dump(mode="json")),
    }


def _messages(run: ExportedRun) -> str | None:
    """Return the run as OpenAI's messages; None if it ends without an answer."""
    try:
        return _json(openai_example(run, "keep")["messages"])
    except UnwritableError:
        return None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _clean(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of which each text is valid in UTF-8."""
    cleaned: dict[str, Any] = map_texts(
        row, lambda text: text.encode(errors="replace").decode(), change_key=str
    )
    return cleaned
