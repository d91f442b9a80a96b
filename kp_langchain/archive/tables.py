"""The rows of a block in columns, their Parquet form, and the columns of the result."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from kp_langchain.embedding.embedder import EmbeddedColumns, EmbedderIdentity
from kp_langchain.errors import KPError
from kp_langchain.parquet import load_extra, schema_of
from kp_langchain.scoring.dimensions import DIMENSION_NAMES, Shape
from kp_langchain.scoring.trace_columns import ShapeColumns, TraceColumns

if TYPE_CHECKING:
    from kp_langchain.archive.files import Storage
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.evidence import Agreement, Worth
    from kp_langchain.scoring.score_columns import ScoreColumns

RESULT: Mapping[str, str] = {
    "file": "string",
    "line": "integer",
    "trace_id": "string",
    "created_at": "time",
    **dict.fromkeys(("task_domain", "agent_id", "framework", "objective", "answer"), "string"),
    "success": "bool",
    **dict.fromkeys(("confidence", "score", "threshold"), "float"),
    "passed": "bool",
    **dict.fromkeys(DIMENSION_NAMES, "float"),
    "profile": "string",
    "rules": "strings",
    **dict.fromkeys(("novelty_source", "nearest_id"), "string"),
    "nearest_similarity": "float",
    **dict.fromkeys(("n_steps", "recovered_errors"), "integer"),
    "flags": "strings",
    "features": "string",
    "worth": "float",
    "worth_basis": "string",
    "agreement": "float",
    **dict.fromkeys(("agreement_runs", "agreement_agreeing"), "integer"),
    **dict.fromkeys(("breakdown", "trace"), "string"),
}
"""The columns of the result with the kind of their values; `features` and the last two are JSON."""

ERRORS: Mapping[str, str] = {"place": "string", "reason": "string"}
"""The columns of the table of rows that hold no trace."""

FACTS: Mapping[str, str] = {
    "file": "string",
    "line": "integer",
    "created_at": "time",
    **dict.fromkeys(("agent_id", "framework", "objective", "answer"), "string"),
    "flags": "strings",
    **dict.fromkeys(("features", "confidence_source"), "string"),
    "proves_failure": "bool",
    **dict.fromkeys(("task", "run_id"), "string"),
    "conversations": "strings",
    "is_planted": "bool",
    "digest": "binary",
    "has_verdict": "bool",
    "verdict": "bool",
    "trace": "string",
}
"""What is known of a row besides what its score follows from."""

_READ = {
    "trace_id": "string",
    "domain": "string",
    "fingerprint": "binary",
    **dict.fromkeys(Shape.__slots__, "integer"),
    "confidence": "float",
    "success": "bool",
    "problem": "string",
    "unreadable_share": "float",
    "vector": "vector",
}
_IDENTITY, _PARTITIONS = b"embedder", b"partitions"
_NULL = "__HIVE_DEFAULT_PARTITION__"  # which readers take for none
_GROUP_ROWS, _GROUP_BYTES = 1000, 64 << 20
_LONGEST_NAME_CHARS, _KEPT_CHARS, _DIGEST_CHARS = 200, 16, 12


@dataclass(frozen=True, slots=True, eq=False)
class ReadRows:
    """The rows of a block that have a trace.

    Attributes:
        traces: What their scores follow from; without their texts if it comes from a file.
        embedded: Their embeddings.
        facts: What else is known of each, by the names in `FACTS`.
        elapsed_ms: Milliseconds that reading and embedding took; 0 if it comes from a file.
    """

    traces: TraceColumns
    embedded: EmbeddedColumns
    facts: list[dict[str, Any]]
    elapsed_ms: float = 0.0

    @property
    def vector_rows(self) -> list[int]:
        """Which of them have a vector."""
        return [row for row, problem in enumerate(self.embedded.problems) if not problem]

    def to_parquet(self) -> bytes:
        """Return the rows as they are kept between the passes."""
        (pa,) = load_extra("pyarrow")
        traces, embedded = self.traces, self.embedded
        vectors: list[Any] = [None] * len(traces)
        for row, vector in zip(self.vector_rows, _rows_of(embedded.vectors), strict=True):
            vectors[row] = vector
        columns = {
            "trace_id": traces.trace_ids,
            "domain": traces.domains,
            "fingerprint": traces.fingerprints,
            **{name: getattr(traces.shape, name) for name in Shape.__slots__},
            "confidence": traces.confidence,
            "success": traces.success,
            "problem": embedded.problems,
            "unreadable_share": embedded.unreadable_shares,
            "vector": vectors,
        }
        table = pa.table(columns, schema_of(_READ))
        facts = pa.Table.from_pylist(self.facts, schema_of(FACTS))
        for name in FACTS:
            table = table.append_column(facts.field(name), facts[name])
        identity = json.dumps(asdict(embedded.identity)).encode()
        return to_parquet(table.replace_schema_metadata({_IDENTITY: identity}))

    @classmethod
    def from_table(cls, table: Any) -> Self:
        """Return the rows that `to_parquet` wrote."""
        column = {name: table[name] for name in _READ if name != "vector"}
        problems = column["problem"].to_pylist()
        traces = TraceColumns(
            column["trace_id"].to_pylist(),
            column["domain"].to_pylist(),
            [""] * len(table),
            column["fingerprint"].to_pylist(),
            ShapeColumns(*[column[name].to_numpy() for name in Shape.__slots__]),
            column["confidence"].to_numpy(),
            np.array(column["success"].to_pylist(), dtype=bool),
        )
        embedded = EmbeddedColumns(
            vectors_in(table),
            problems,
            column["unreadable_share"].to_pylist(),
            EmbedderIdentity(**json.loads(table.schema.metadata[_IDENTITY])),
        )
        return cls(traces, embedded, table.select(list(FACTS)).to_pylist())


def _rows_of(vectors: NDArray[np.float32] | None) -> Sequence[NDArray[np.float32]]:
    return () if vectors is None else list(vectors)


def vectors_in(table: Any) -> NDArray[np.float32] | None:
    """Return the vectors of a table of read rows, of those that have one; None if none has."""
    column = table["vector"].combine_chunks().drop_null()
    if not len(column):
        return None
    values: NDArray[np.float32] = column.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(column), -1)


# ------------------------------------------------------------------ the result


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """What is said of the rows of a block besides their scores, one of each row.

    Attributes:
        thresholds: What their scores are compared with, 0 to 1.
        passed: Whether they reach it.
        worths: The worth; None where nothing is known but the score.
        agreements: How far a run agrees with others of its task; None if it was compared with none.
    """

    thresholds: list[float]
    passed: list[bool]
    worths: list[Worth | None]
    agreements: list[Agreement | None]


def breakdown_of(rows: ReadRows, scores: ScoreColumns, judged: Judged, row: int) -> ScoreBreakdown:
    """Return the score of a row with all that is said of it."""
    return replace(
        scores.breakdown(row),
        confidence_source=rows.facts[row]["confidence_source"],
        worth=judged.worths[row],
        agreement=judged.agreements[row],
        flags=tuple(rows.facts[row]["flags"]),
    )


def result_rows(rows: ReadRows, scores: ScoreColumns, judged: Judged) -> list[dict[str, Any]]:
    """Return the rows of the result, by the names in `RESULT`."""
    columns = {name: getattr(scores, name).tolist() for name in DIMENSION_NAMES}
    similarities = scores.nearest_similarity.tolist()
    results = []
    for row, facts in enumerate(rows.facts):
        worth, agreement = judged.worths[row], judged.agreements[row]
        score, similarity = float(scores.total[row]), similarities[row]
        # Without the time it took: the same rows give the same files.
        breakdown = replace(breakdown_of(rows, scores, judged, row), elapsed_ms=0.0)
        results.append(
            {name: facts[name] for name in RESULT if name in facts}
            | {
                "trace_id": rows.traces.trace_ids[row],
                "task_domain": rows.traces.domains[row],
                "success": bool(rows.traces.success[row]),
                "confidence": float(rows.traces.confidence[row]),
                "score": score,
                "threshold": judged.thresholds[row],
                "passed": judged.passed[row],
                **{name: column[row] for name, column in columns.items()},
                "profile": scores.profile[row],
                "rules": [name for name in scores.rules[row].split(",") if name],
                "novelty_source": scores.novelty_source[row],
                "nearest_id": scores.nearest_id[row],
                "nearest_similarity": None if np.isnan(similarity) else similarity,
                "n_steps": int(rows.traces.shape.steps[row]),
                "recovered_errors": int(rows.traces.shape.error_recoveries[row]),
                "worth": None if worth is None else worth.value,
                "worth_basis": None if worth is None else worth.basis,
                "agreement": None if agreement is None else agreement.value,
                "agreement_runs": None if agreement is None else agreement.runs,
                "agreement_agreeing": None if agreement is None else agreement.agreeing,
                "breakdown": json.dumps(breakdown.to_dict(), ensure_ascii=False),
                "trace": json.dumps(scored_trace(facts["trace"], score), ensure_ascii=False),
            }
        )
    return results


def scored_trace(trace: str, score: float) -> dict[str, Any]:
    """Return a trace in wire form with its score.

    Args:
        trace: The trace as JSON.
        score: The score, 0 to 1.
    """
    fields: dict[str, Any] = json.loads(trace)
    fields["metadata"]["quality_score"] = score
    return fields


def partition_of(row: Mapping[str, Any]) -> str:
    """Return the folder of a row of the result: its domain, and the day (UTC) when it began."""
    day = row["created_at"].isoformat()[:10]  # `strftime` writes the year 1 without zeros
    return f"domain={folder_name(row['task_domain'])}/day={day}"


def folder_name(domain: str) -> str:
    """Return a name of letters, digits and `_.-~%` alone, which no file system refuses.

    It is percent-encoded, as in a URL, which readers of such folders undo; so is a `_` at the
    beginning, which would mean something to them. A long one is cut, and ends in a hash of the
    whole.
    """
    name = re.sub("^_", "%5F", quote(domain, safe="", errors="replace"))
    if len(name) <= _LONGEST_NAME_CHARS and domain != _NULL:
        return name
    digest = sha256(domain.encode(errors="replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{quote(domain[:_KEPT_CHARS], safe='', errors='replace')}-{digest}"


def by_partition(results: Sequence[Mapping[str, Any]]) -> tuple[bytes, dict[str, int]]:
    """Return the results of a block, with a row group for each folder, and their rows in each."""
    pa, parquet = load_extra("pyarrow", "pyarrow.parquet")
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in results:
        groups.setdefault(partition_of(row), []).append(row)
    counts = {folder: len(groups[folder]) for folder in sorted(groups)}
    of_result = schema_of(RESULT).with_metadata({_PARTITIONS: json.dumps(counts).encode()})
    stream = io.BytesIO()
    with parquet.ParquetWriter(stream, of_result, compression="zstd") as writer:
        for folder in counts:
            writer.write_table(pa.Table.from_pylist(groups[folder], of_result))
    return stream.getvalue(), counts


def partitions_in(table: Any) -> dict[str, int]:
    """Return the folders of a block's results with their rows, in the order of its row groups."""
    counts: dict[str, int] = json.loads(table.schema.metadata[_PARTITIONS])
    return counts


def row_group(storage: Storage, name: str, group: int) -> Any:
    """Return a row group of a Parquet file as a table.

    Raises:
        KPError: The file is not there, or broken.
    """
    (parquet,) = load_extra("pyarrow.parquet")
    with _opened(storage, name) as stream:
        return parquet.ParquetFile(stream).read_row_group(group)


def write_results(stream: Any, tables: Iterable[Any]) -> int:
    """Write tables of results into one Parquet file, one after the other; return their rows.

    Small ones are joined to row groups, and no more than one of these is in memory.
    """
    pa, parquet = load_extra("pyarrow", "pyarrow.parquet")
    of_result = schema_of(RESULT)
    with parquet.ParquetWriter(stream, of_result, compression="zstd") as writer:
        rows, group = 0, list[Any]()
        for table in tables:
            rows += len(table)
            group.append(table.cast(of_result))
            if (
                sum(map(len, group)) >= _GROUP_ROWS
                or sum(one.nbytes for one in group) >= _GROUP_BYTES
            ):
                writer.write_table(pa.concat_tables(group))
                group = []
        if group:
            writer.write_table(pa.concat_tables(group))
    return rows


# ------------------------------------------------------------------ Parquet


def to_parquet(table: Any, **options: Any) -> bytes:
    """Return a table as a Parquet file.

    Args:
        table: The table.
        options: Further arguments of pyarrow's `write_table`.
    """
    (parquet,) = load_extra("pyarrow.parquet")
    stream = io.BytesIO()
    parquet.write_table(table, stream, compression="zstd", **options)
    return stream.getvalue()


def read_parquet(
    storage: Storage, name: str, columns: Sequence[str] | None = None, filters: Any = None
) -> Any:
    """Return the table of a Parquet file, or some of its columns and rows.

    Args:
        storage: Where it is.
        name: The file.
        columns: The columns; all if none are named.
        filters: As for pyarrow's `read_table`.

    Raises:
        KPError: It is not there, or broken.
    """
    (parquet,) = load_extra("pyarrow.parquet")
    with _opened(storage, name) as stream:  # only what is asked for is read of it
        return parquet.read_table(stream, columns=columns, filters=filters)


@contextmanager
def _opened(storage: Storage, name: str) -> Iterator[Any]:
    (pa,) = load_extra("pyarrow")
    with storage.open(name) as stream:
        try:
            yield stream
        except (pa.ArrowException, OSError) as error:
            raise KPError(
                f"{storage.url}/{name} cannot be read ({error}); if it is broken, remove it, and "
                "the same command makes it again"
            ) from error
