"""What is done with one block: its rows are read, compared, scored, and joined to files.

`read`, `compare` and `judge` are pure. The functions of the passes wrap them: each takes a job and
an item, does nothing if its result is there, and returns counts. They run in any process and any
order, so no worker knows of another.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kp_langchain._logging import describe_error
from kp_langchain.archive.blocks import Block, BlockCounts, Halo
from kp_langchain.archive.sources import Row, load_extra, read_part
from kp_langchain.archive.storage import Storage
from kp_langchain.archive.tables import (
    Judged,
    ReadRows,
    by_partition,
    errors_to_parquet,
    identity_in,
    join_tables,
    partitions_in,
    read_parquet,
    result_rows,
    row_group,
    to_parquet,
    vectors_in,
)
from kp_langchain.archive.traces import ReadTrace, TraceReader
from kp_langchain.calibration.agreement import AGREEMENT, RunDigest, TaskRun, agreement_of, pairs_of
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.flags import flags_of
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.calibration.planted_instructions import has_planted
from kp_langchain.config import Settings, warn_of_domain
from kp_langchain.embedding.embedder import NO_IDENTITY, EmbeddedColumns, EmbedderIdentity
from kp_langchain.errors import KPError
from kp_langchain.gate import decide, threshold_of
from kp_langchain.novelty_sources import UNREADABLE
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import Nearest
from kp_langchain.scoring.dimensions import outcome_confidence
from kp_langchain.scoring.evidence import Worth
from kp_langchain.scoring.novelty_memory import Matches
from kp_langchain.scoring.score_columns import NoveltyColumns, ScoreColumns
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.scoring.trace_columns import TraceColumns
from kp_langchain.scoring.window import Vectors, nearest_in_window, repeats_in_window
from kp_langchain.text import one_line

REASON_CHARS = 2000
_BATCH_ROWS = 256  # embedded at once
_COMPARED = ["trace_id", "fingerprint", "vector", "problem"]
_OF_TASK = ["task", "trace_id", "run_id", "conversations", "is_planted", "digest", "verdict"]
_MOST_RUNS_OF_TASK = 50
_GROUP_ROWS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Tools:
    """What every block is scored with.

    Attributes:
        settings: What is redacted, the policies and thresholds.
        scorer: Weights, embedder, and how much is remembered; its memory is not used.
        read_at: The time of runs that state none.
        models: Confidence models by domain.
        agrees: Whether runs of one task are compared.
        identity: The embedder that every worker must have; None for any.
    """

    settings: Settings
    scorer: Scorer
    read_at: datetime
    models: Mapping[str, ConfidenceModel] = field(default_factory=dict)
    agrees: bool = True
    identity: EmbedderIdentity | None = None


class Problem(NamedTuple):
    """A row that holds no trace: where it stands, and why."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """What is remembered before a block, the oldest first.

    Attributes:
        fingerprints: The fingerprints.
        ids: Their traces.
        vectors: The vectors; None if there are none.
        vector_ids: Their traces.
        identity: The embedder of the vectors; None if there are none.
    """

    fingerprints: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    vector_ids: list[str] = field(default_factory=list)
    identity: EmbedderIdentity | None = None

    def then(self, later: Remembered, window: int) -> Remembered:
        """Return what is remembered after more came; at most `window` of each kind."""
        if None not in (self.identity, later.identity) and self.identity != later.identity:
            raise KPError(
                f"the embedder was {self.identity} and is {later.identity} now; score again into "
                "another destination"
            )
        vectors = [one.vectors for one in (self, later) if one.vectors is not None]
        return Remembered(
            [*self.fingerprints, *later.fingerprints][-window:],
            [*self.ids, *later.ids][-window:],
            np.concatenate(vectors)[-window:] if vectors else None,
            [*self.vector_ids, *later.vector_ids][-window:],
            later.identity or self.identity,
        )

    @classmethod
    def of(cls, rows: ReadRows) -> Self:
        """Return what a block adds."""
        has_vectors = rows.embedded.vectors is not None
        return cls(
            rows.traces.fingerprints,
            rows.traces.trace_ids,
            rows.embedded.vectors,
            [rows.traces.trace_ids[row] for row in rows.vector_rows],
            rows.embedded.identity if has_vectors else None,
        )


# ------------------------------------------------------------------ read, compare, judge


def read(
    rows: Iterable[Row], tools: Tools, *, has_facts: bool = True
) -> tuple[ReadRows, list[Problem]]:
    """Return the rows that hold a trace with their embeddings, and those that hold none.

    Args:
        rows: The rows.
        tools: What they are scored with.
        has_facts: Whether all that the result says of a row is looked up; else its place and trace.
    """
    started = time.perf_counter()
    reader = TraceReader(tools.settings, tools.read_at)
    problems: list[Problem] = []
    read_traces: list[tuple[ReasoningTrace, dict[str, Any]]] = []
    for row in rows:
        try:
            one = reader.read(row)
            facts = {"file": row.file, "line": row.number, "trace": one.trace.model_dump_json()}
            if has_facts:
                facts |= _facts(one, tools)
            read_traces.append((one.trace, facts))
        except Exception as error:  # noqa: BLE001 - one row of millions costs one row
            reason = str(error) if isinstance(error, ValueError) else describe_error(error)
            problems.append(Problem(row.place, one_line(reason, REASON_CHARS)))
    traces = TraceColumns.of(trace for trace, _ in read_traces)
    embedded = _embed(tools.scorer, traces.texts)
    elapsed_ms = (time.perf_counter() - started) * 1000
    return ReadRows(traces, embedded, [facts for _, facts in read_traces], elapsed_ms), problems


def _embed(scorer: Scorer, texts: Sequence[str]) -> EmbeddedColumns:
    """Embed texts, not too many at once: a block may be a whole file."""
    firsts = range(0, len(texts), _BATCH_ROWS)
    parts = [scorer.embed_many(texts[first : first + _BATCH_ROWS]) for first in firsts]
    vectors = [part.vectors for part in parts if part.vectors is not None]
    return EmbeddedColumns(
        np.concatenate(vectors) if vectors else None,
        [problem for part in parts for problem in part.problems],
        [share for part in parts for share in part.unreadable_shares],
        next((part.identity for part in parts if part.vectors is not None), NO_IDENTITY),
    )


def _facts(one: ReadTrace, tools: Tools) -> dict[str, Any]:
    trace, run = one.trace, one.run
    facts: dict[str, Any] = {
        "created_at": trace.metadata.created_at,
        "agent_id": trace.metadata.agent_id,
        "framework": trace.metadata.framework,
        "objective": trace.task.objective,
        "answer": trace.outcome.result_summary,
        "flags": list(flags_of(trace)),
        "proves_failure": run is not None and run.proves_failure,
        "has_verdict": run is not None and run.reported is not None,
        "verdict": None if run is None or run.reported is None else run.reported.success,
    }
    if trace.metadata.task_domain in tools.models:
        features = features_of(
            trace,
            looked_successful=None if run is None else run.looked_successful,
            proves_failure=None if run is None else run.proves_failure,
        )
        facts["features"] = json.dumps(features)
    if tools.agrees and (task := one.task) is not None:
        facts |= {
            "task": task,
            "run_id": trace.id if run is None else str(run.run_id),
            "conversations": one.conversations,
            "is_planted": has_planted(trace),
            "digest": RunDigest.of(trace).to_bytes(),
        }
    return facts


def compare(rows: ReadRows, before: Remembered, scorer: Scorer) -> ScoreColumns:
    """Score the rows of a block, each compared with the last ones before it.

    Args:
        rows: The rows.
        before: What is remembered before the block.
        scorer: Weights, and how much is remembered.
    """
    started = time.perf_counter()
    traces, vectors, window = rows.traces, rows.embedded.vectors, scorer.max_remembered
    ids: list[str | None] = [None] * len(traces)
    similarities: list[float | None] = [None] * len(traces)
    if vectors is not None:
        own = Remembered.of(rows)
        before.then(own, window)  # raises if the embedders differ
        halo = before.vectors
        if halo is None:
            halo = np.zeros((0, vectors.shape[1]), np.float32)
        positions, found = nearest_in_window(Vectors.of(halo), Vectors.of(vectors), window=window)
        known = [*before.vector_ids, *own.vector_ids]
        for row, at, similarity in zip(
            rows.vector_rows, positions.tolist(), found.tolist(), strict=True
        ):
            if at >= 0:
                ids[row], similarities[row] = known[at], similarity
    known = [*before.ids, *traces.trace_ids]
    equal = repeats_in_window(before.fingerprints, traces.fingerprints, window=window)
    repeats = [None if at < 0 else Nearest(known[at], 1.0) for at in equal.tolist()]
    matches = Matches(ids, similarities, repeats)
    elapsed_ms = rows.elapsed_ms + (time.perf_counter() - started) * 1000
    measure = NoveltyColumns.of_matches(matches, rows.embedded, elapsed_ms)
    return scorer.score_columns(traces, measure)


def judge(
    rows: ReadRows,
    scores: ScoreColumns,
    tools: Tools,
    agreements: Mapping[int, tuple[float, int, int]],
) -> Judged:
    """Return what is said of the rows of a block besides their scores.

    Args:
        rows: The rows.
        scores: Their scores.
        tools: The policies and confidence models.
        agreements: By row, what its agreement with others of its task is; see `Judged`.
    """
    known = {*tools.scorer.profiles, *tools.settings.domains}
    for domain in dict.fromkeys(rows.traces.domains):
        warn_of_domain(domain, known)
    thresholds = []
    for domain, similarity in zip(rows.traces.domains, scores.nearest_similarity, strict=True):
        of_domain = threshold_of(domain, tools.settings.policy_for(domain).threshold)
        thresholds.append(of_domain.unmeasured if np.isnan(similarity) else of_domain.measured)
    passed = [
        decide(score, threshold) == "kept"
        for score, threshold in zip(scores.total.tolist(), thresholds, strict=True)
    ]
    worths = [
        _worth(rows, scores, row, tools, agreements.get(row)) for row in range(len(rows.facts))
    ]
    return Judged(thresholds, passed, worths, [agreements.get(row) for row in range(len(passed))])


def _worth(
    rows: ReadRows,
    scores: ScoreColumns,
    row: int,
    tools: Tools,
    agreement: tuple[float, int, int] | None,
) -> Worth | None:
    """Return the worth of a row, as `gate.judge.with_worth` has it."""
    facts, model = rows.facts[row], tools.models.get(rows.traces.domains[row])
    if model is None or facts.get("features") is None:
        return None
    if facts["has_verdict"]:
        confidence, basis = float(scores.outcome_confidence[row]), "a verdict"
    else:
        known = {} if agreement is None else {AGREEMENT: agreement[0]}
        estimate = model.confidence({**json.loads(facts["features"]), **known})
        confidence = outcome_confidence(estimate, success=not facts["proves_failure"])
        basis = model.source
    return Worth.of(confidence, float(scores.novelty[row]), basis)


# ------------------------------------------------------------------ the passes


@dataclass(frozen=True, slots=True)
class Job:
    """What travels to the workers.

    Attributes:
        storage: Where the results go.
        folder: What the paths of files are relative to.
        tools: The `Tools`, pickled, so that a worker makes them once.
    """

    storage: Storage
    folder: str
    tools: bytes

    @classmethod
    def of(cls, storage: Storage, tools: Tools) -> Self:
        """Return the job of scoring into a destination."""
        settings = tools.settings.without_secrets()
        plain = replace(tools, settings=settings)
        fields = {name: getattr(plain, name) for name in Tools.__slots__}
        return cls(storage, str(Path.cwd()), pickle.dumps(fields))


@lru_cache(maxsize=1)
def _tools(content: bytes) -> Tools:
    return Tools(**pickle.loads(content))  # noqa: S301 - of the process that started this one


class ReadCounts(NamedTuple):
    """What became of a block's rows in the first pass.

    Attributes:
        counts: How many are remembered.
        problems: Those that hold no trace.
        unmeasured: How many have no vector, by the reason.
        is_new: Whether this was done now.
    """

    counts: BlockCounts
    problems: list[Problem]
    unmeasured: dict[str, int]
    is_new: bool


def read_block(job: Job, block: Block) -> ReadCounts:
    """Read a block: its rows with their embeddings, and those that hold no trace."""
    storage, tools = job.storage, _tools(job.tools)
    name, of_errors = _read_name(block.number), f"_errors/{block.number:07}.parquet"
    if storage.exists(name):
        rows = read_parquet(storage, name, ["problem"])["problem"].to_pylist()
        problems = []
        if storage.exists(of_errors):
            errors = read_parquet(storage, of_errors).to_pylist()
            problems = [Problem(**one) for one in errors]
        return _read_counts(block, rows, problems, is_new=False)
    rows_of_block = read_part(block.file, block.kind, block.part, job.folder)
    read_rows, problems = read(rows_of_block, tools)
    embedded, expected = read_rows.embedded, tools.identity
    if embedded.vectors is not None and expected not in (None, embedded.identity):
        raise KPError(
            f"a worker has the embedder {embedded.identity}, and the archive {expected}; every "
            "machine needs the same files of the model, at the same place"
        )
    if problems:
        storage.write(of_errors, errors_to_parquet(problems))
    storage.write(name, read_rows.to_parquet())  # last, because it proves that all is there
    return _read_counts(block, read_rows.embedded.problems, problems, is_new=True)


def _read_counts(
    block: Block, reasons: Sequence[str], problems: list[Problem], *, is_new: bool
) -> ReadCounts:
    unmeasured = {
        reason: reasons.count(reason) for reason in {*reasons} if reason not in ("", UNREADABLE)
    }
    counts = BlockCounts(block.number, len(reasons), reasons.count(""))
    return ReadCounts(counts, problems, unmeasured, is_new)


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


def agree_bucket(job: Job, bucket: Bucket) -> bool:
    """Compare the runs of some tasks; return whether this was done now."""
    storage = job.storage
    name = _agreed_name(bucket.number)
    if storage.exists(name):
        return False
    (pa,) = load_extra("pyarrow")
    tasks: dict[str, list[tuple[int, int, TaskRun]]] = {}
    for block in bucket.blocks:
        table = read_parquet(storage, _read_name(block), _OF_TASK)
        for row, task in enumerate(table["task"].to_pylist()):
            if task is not None and crc32(task.encode()) % bucket.of == bucket.number:
                run = _task_run(table.slice(row, 1).to_pylist()[0])
                tasks.setdefault(task, []).append((block, row, run))
    found: list[dict[str, Any]] = []
    for runs in tasks.values():
        others = [run for _, _, run in runs[:_MOST_RUNS_OF_TASK]]
        for block, row, run in runs if len(runs) > 1 else ():
            agreement = agreement_of(pairs_of(run, others))
            if agreement is not None:
                values = (block, row, agreement.evidence, agreement.runs, agreement.agreeing)
                found.append(dict(zip(_AGREED, values, strict=True)))
    found.sort(key=lambda one: (one["block"], one["row"]))
    types = [pa.int64(), pa.int64(), pa.float64(), pa.int64(), pa.int64()]
    of_agreed = pa.schema(list(zip(_AGREED, types, strict=True)))
    table = pa.Table.from_pylist(found, of_agreed)
    storage.write(name, to_parquet(table, row_group_size=_GROUP_ROWS))
    return True


_AGREED = ("block", "row", "value", "runs", "agreeing")


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
        is_new: Whether this was done now.
    """

    number: int
    partitions: dict[str, int]
    passed: int
    is_new: bool


def score_block(job: Job, item: Scoring) -> ScoredCounts:
    """Score the rows of a block, each compared with the last ones before it."""
    storage, tools = job.storage, _tools(job.tools)
    number = item.halo.number
    name = _scored_name(number)
    if storage.exists(name):
        table = read_parquet(storage, name, ["passed"])
        passed = sum(table["passed"].to_pylist())
        return ScoredCounts(number, partitions_in(table), passed, is_new=False)
    rows = ReadRows.from_table(read_parquet(storage, _read_name(number)))
    window = tools.scorer.max_remembered
    scores = compare(rows, _before(storage, item.halo, window), tools.scorer)
    agreements: dict[int, tuple[float, int, int]] = {}
    for bucket in range(item.buckets):
        agreements |= _agreements(storage, bucket, number)
    results = result_rows(rows, scores, judge(rows, scores, tools, agreements))
    content, partitions = by_partition(results)
    storage.write(name, content)
    return ScoredCounts(number, partitions, sum(row["passed"] for row in results), is_new=True)


def _scored_name(block: int) -> str:
    return f"_work/scored/{block:07}.block"


def _before(storage: Storage, halo: Halo, window: int) -> Remembered:
    before = Remembered()
    for block in sorted({*halo.row_blocks, *halo.vector_blocks}):
        table = read_parquet(storage, _read_name(block), _COMPARED)
        ids, vectors = table["trace_id"].to_pylist(), vectors_in(table)
        problems = table["problem"].to_pylist()
        is_row_block = block in halo.row_blocks
        before = before.then(
            Remembered(
                table["fingerprint"].to_pylist() if is_row_block else [],
                ids if is_row_block else [],
                vectors,
                [id_ for id_, problem in zip(ids, problems, strict=True) if not problem],
                None if vectors is None else identity_in(table),
            ),
            window,
        )
    return before


def _agreements(storage: Storage, bucket: int, block: int) -> dict[int, tuple[float, int, int]]:
    table = read_parquet(storage, _agreed_name(bucket), filters=[("block", "=", block)])
    return {row["row"]: (row["value"], row["runs"], row["agreeing"]) for row in table.to_pylist()}


class ResultFile(NamedTuple):
    """A file of the result.

    Attributes:
        name: Where it is.
        groups: The blocks that it joins, each with the number of its row group.
    """

    name: str
    groups: tuple[tuple[int, int], ...]


def write_file(job: Job, file: ResultFile) -> bool:
    """Join rows of one folder to a file of the result; return whether this was done now."""
    storage = job.storage
    if storage.exists(file.name):
        return False
    tables = []
    for block, group in file.groups:
        with storage.open(_scored_name(block)) as stream:
            tables.append(row_group(stream, group))
    storage.write(file.name, join_tables(tables))
    return True
