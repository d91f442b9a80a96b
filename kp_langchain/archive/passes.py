"""The passes over an archive: what is done with one block, tasks, or file of the result.

Each function takes a job and an item, does nothing if its result is there, and returns counts. They
run in any process and any order, so no worker knows of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self
from zlib import crc32

from kp_langchain.archive.blocks import BlockCounts, Halo
from kp_langchain.archive.files import Storage
from kp_langchain.archive.rows import Problem, Remembered, Tools, compare, judge, read, unpacked
from kp_langchain.archive.splitting import Block, read_rows_of
from kp_langchain.archive.tables import (
    ERRORS,
    ReadRows,
    by_partition,
    partitions_in,
    read_parquet,
    result_rows,
    row_group,
    to_parquet,
    vectors_in,
    write_results,
)
from kp_langchain.calibration.agreement import TaskRun, agreement_of, pairs_of
from kp_langchain.novelty_sources import UNREADABLE
from kp_langchain.parquet import load_extra, schema_of
from kp_langchain.scoring.evidence import Agreement

_COMPARED = ["trace_id", "fingerprint", "vector", "problem"]
_OF_TASK = ["task", "trace_id", "run_id", "conversations", "is_planted", "digest", "verdict"]
_MOST_RUNS_OF_TASK = 50
_GROUP_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Job:
    """What travels to the workers.

    Attributes:
        storage: Where the results go.
        folder: What the paths of files are relative to.
        tools: The `Tools`, packed.
    """

    storage: Storage
    folder: str
    tools: bytes

    @classmethod
    def of(cls, storage: Storage, tools: Tools) -> Self:
        """Return the job of scoring into a destination."""
        return cls(storage, str(Path.cwd()), tools.packed())


class ReadCounts(NamedTuple):
    """What became of a block's rows in the first pass.

    Attributes:
        counts: How many are remembered.
        problems: Those that hold no trace.
        unmeasured: How many have no vector, by the reason.
        new_rows: How many were read now, and not before.
    """

    counts: BlockCounts
    problems: list[Problem]
    unmeasured: dict[str, int]
    new_rows: int


def read_block(job: Job, block: Block) -> ReadCounts:
    """Read a block: its rows with their embeddings, and those that hold no trace."""
    (pa,) = load_extra("pyarrow")
    storage, tools = job.storage, unpacked(job.tools)
    name, of_errors = _read_name(block.number), f"_errors/{block.number:07}.parquet"
    if storage.exists(name):
        rows = read_parquet(storage, name, ["problem"])["problem"].to_pylist()
        problems = []
        if storage.exists(of_errors):
            errors = read_parquet(storage, of_errors).to_pylist()
            problems = [Problem(**one) for one in errors]
        return _read_counts(block, rows, problems, is_new=False)
    read_rows, problems = read(read_rows_of(storage, job.folder, block), tools)
    tools.check_embedded(read_rows.embedded)
    if problems:
        errors = pa.Table.from_pylist([one._asdict() for one in problems], schema_of(ERRORS))
        storage.write(of_errors, to_parquet(errors))
    storage.write(name, read_rows.to_parquet())  # last, because it proves that all is there
    return _read_counts(block, read_rows.embedded.problems, problems, is_new=True)


def _read_counts(
    block: Block, reasons: Sequence[str], problems: list[Problem], *, is_new: bool
) -> ReadCounts:
    unmeasured = {
        reason: reasons.count(reason) for reason in {*reasons} if reason not in ("", UNREADABLE)
    }
    counts = BlockCounts(block.number, len(reasons), reasons.count(""))
    return ReadCounts(counts, problems, unmeasured, len(reasons) if is_new else 0)


class Bucket(NamedTuple):
    """Tasks whose runs are compared together.

    Attributes:
        number: Which tasks: those whose hash leaves this remainder.
        of: The number of buckets.
        blocks: The blocks that have rows.
    """

    number: int
    of: int
    blocks: tuple[int, ...]


def agree_bucket(job: Job, bucket: Bucket) -> Written:
    """Compare the runs of some tasks."""
    storage = job.storage
    name = _agreed_name(bucket.number)
    if storage.exists(name):
        return Written(0)
    (pa,) = load_extra("pyarrow")
    first: dict[str, list[tuple[int, int, TaskRun]]] = {}
    found: dict[str, list[Any]] = {column: [] for column in _AGREED}

    def compare_with(
        runs: list[tuple[int, int, TaskRun]], block: int, row: int, run: TaskRun
    ) -> None:
        agreement = agreement_of(pairs_of(run, (one for _, _, one in runs)))
        if agreement is not None:
            values = {"block": block, "row": row, **asdict(agreement)}
            for column, known in found.items():
                known.append(values[column])

    for block in bucket.blocks:
        table = read_parquet(storage, _read_name(block), _OF_TASK)
        for row, task in enumerate(table["task"].to_pylist()):
            if task is not None and crc32(task.encode()) % bucket.of == bucket.number:
                run = _task_run(table.slice(row, 1).to_pylist()[0])
                runs = first.setdefault(task, [])
                if len(runs) < _MOST_RUNS_OF_TASK:
                    runs.append((block, row, run))
                else:
                    compare_with(runs, block, row, run)
    for runs in first.values():
        for block, row, run in runs:
            compare_with(runs, block, row, run)
    agreed = pa.table(found, schema_of(_AGREED)).sort_by(
        [("block", "ascending"), ("row", "ascending")]
    )
    storage.write(name, to_parquet(agreed, row_group_size=_GROUP_ROWS))
    return Written(len(agreed))


_AGREED = {
    **dict.fromkeys(("block", "row"), "integer"),
    "value": "float",
    **dict.fromkeys(("runs", "agreeing", "wrong"), "integer"),
}


def _task_run(fields: Mapping[str, Any]) -> TaskRun:
    return TaskRun(
        fields["trace_id"],
        fields["run_id"],
        fields["digest"],
        frozenset(fields["conversations"]),
        is_planted=fields["is_planted"],
        success=fields["verdict"],
    )


def _read_name(block: int) -> str:
    return f"_work/read/{block:07}.block"


def _agreed_name(bucket: int) -> str:
    return f"_work/agreed/{bucket:05}.block"


class Scoring(NamedTuple):
    """A block with what scoring it needs.

    Attributes:
        halo: The block, and those before it.
        buckets: How many files of agreements there are.
    """

    halo: Halo
    buckets: int


class ScoredCounts(NamedTuple):
    """What became of a block's rows in the second pass.

    Attributes:
        number: The block.
        partitions: How many rows each folder of the result gets from it.
        passed: How many rows reach their threshold.
        new_rows: How many were scored now, and not before.
    """

    number: int
    partitions: dict[str, int]
    passed: int
    new_rows: int


class Written(NamedTuple):
    """What was written by a pass that returns nothing else.

    Attributes:
        new_rows: How many rows were written now, and not before.
    """

    new_rows: int


def score_block(job: Job, item: Scoring) -> ScoredCounts:
    """Score the rows of a block, each compared with the last ones before it."""
    storage, tools = job.storage, unpacked(job.tools)
    number = item.halo.number
    name = _scored_name(number)
    if storage.exists(name):
        table = read_parquet(storage, name, ["passed"])
        passed = sum(table["passed"].to_pylist())
        return ScoredCounts(number, partitions_in(table), passed, 0)
    rows = ReadRows.from_table(read_parquet(storage, _read_name(number)))
    window = tools.scorer.max_remembered
    scores = compare(rows, _before(storage, item.halo, window), tools.scorer)
    agreements: dict[int, Agreement] = {}
    for bucket in range(item.buckets):
        agreements |= _agreements(storage, bucket, number)
    results = result_rows(rows, scores, judge(rows, scores, tools, agreements))
    content, partitions = by_partition(results)
    storage.write(name, content)
    return ScoredCounts(number, partitions, sum(row["passed"] for row in results), len(results))


def _scored_name(block: int) -> str:
    return f"_work/scored/{block:07}.block"


def _before(storage: Storage, halo: Halo, window: int) -> Remembered:
    before = Remembered()
    for block in sorted({*halo.row_blocks, *halo.vector_blocks}):
        table = read_parquet(storage, _read_name(block), _COMPARED)
        ids = table["trace_id"].to_pylist()
        problems = table["problem"].to_pylist()
        is_row_block = block in halo.row_blocks
        before = before.then(
            Remembered(
                table["fingerprint"].to_pylist() if is_row_block else [],
                ids if is_row_block else [],
                vectors_in(table),
                [id_ for id_, problem in zip(ids, problems, strict=True) if not problem],
            ),
            window,
        )
    return before


def _agreements(storage: Storage, bucket: int, block: int) -> dict[int, Agreement]:
    table = read_parquet(storage, _agreed_name(bucket), filters=[("block", "=", block)])
    rows = table.drop_columns(["block"]).to_pylist()
    return {row.pop("row"): Agreement(**row) for row in rows}


class ResultFile(NamedTuple):
    """A file of the result.

    Attributes:
        name: Where it is.
        groups: The blocks that it joins, each with the number of its row group.
    """

    name: str
    groups: tuple[tuple[int, int], ...]


def write_file(job: Job, file: ResultFile) -> Written:
    """Join rows of one folder to a file of the result."""
    storage = job.storage
    if storage.exists(file.name):
        return Written(0)
    groups = (row_group(storage, _scored_name(block), group) for block, group in file.groups)
    with storage.writing(file.name) as stream:
        return Written(write_results(stream, groups))
