"""The order of the passes over an archive, and the same in one pass over a stream.

An archive takes five passes, each of which maps one function over files or blocks:

0. `split_file`: files are divided into blocks.
1. `read_block`: rows are read, redacted and embedded.
2. `agree_bucket`: runs of one task are compared.
3. `score_block`: each row is compared with the last ones before it, and scored.
4. `write_file`: the rows of one domain and day are joined to files.

What each is to do follows from what the one before it returned, so an interrupted archive continues
with the files that are there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kp_langchain.archive.blocks import PLAN_FILE, halos, plan_of
from kp_langchain.archive.engines import Engine, MapBlocks, opened
from kp_langchain.archive.files import Storage
from kp_langchain.archive.passes import (
    Bucket,
    Job,
    ReadCounts,
    ResultFile,
    ScoredCounts,
    Scoring,
    Written,
    agree_bucket,
    read_block,
    score_block,
    write_file,
)
from kp_langchain.archive.rows import Problem, Remembered, Tools, compare, judge, read
from kp_langchain.archive.sources import read_groups
from kp_langchain.archive.splitting import FileParts, Splitting, split_file
from kp_langchain.archive.tables import Judged, ReadRows
from kp_langchain.archive.traces import TraceReader
from kp_langchain.config import Settings
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.embedding.local_models import AutoEmbedder
from kp_langchain.policy import PROFILES
from kp_langchain.scoring.score_columns import ScoreColumns
from kp_langchain.scoring.scorer import Scorer

_Result = TypeVar("_Result", ReadCounts, ScoredCounts, Written)
_FILE_ROWS = 25_000
# A worker holds the runs of a bucket, 50 MB; and opens each block once for each.
_BUCKET_ROWS, _MANY_BUCKETS = 100_000, 2_000
_WORK = ("_work/rows", "_work/read", "_work/agreed", "_work/scored")
_DEPENDS_ON = {
    *("agent_id", "defaults", "domains", "redaction"),
    *("max_text_chars", "max_run_chars", "max_steps"),
}


@dataclass(frozen=True, slots=True)
class Summary:
    """What became of the rows of an archive.

    Attributes:
        scored: How many were scored.
        passed: How many of them reach their threshold.
        skipped: How many hold no trace.
        unmeasured: For how many novelty could not be measured, by the reason.
    """

    scored: int = 0
    passed: int = 0
    skipped: int = 0
    unmeasured: Mapping[str, int] = field(default_factory=dict)


class Progress(NamedTuple):
    """How far a pass is.

    Attributes:
        name: What the pass does.
        done: How many items are done.
        total: How many there are.
        rows: How many rows were done now, without those that were done before.
        problems: The rows that hold no trace, of the item that was done last.
    """

    name: str
    done: int
    total: int
    rows: int = 0
    problems: Sequence[Problem] = ()


def tools_of(settings: Settings, **options: Any) -> Tools:
    """Return what runs are scored with by the settings.

    Args:
        settings: The settings.
        options: Further fields of `Tools`.
    """
    by_domain = {name: settings.policy_for(name).weights for name in (*PROFILES, *settings.domains)}
    # A worker on another machine may have other settings than these.
    name, baseline = settings.embedding_model, settings.embedding_baseline
    scorer = Scorer(
        embedder="auto" if name is None else AutoEmbedder(name, baseline=baseline),
        profiles={name: weights for name, weights in by_domain.items() if weights is not None},
        step_cap=settings.step_cap,
        max_remembered=settings.novelty_memory,
    )
    return Tools(settings, **{"scorer": scorer, "read_at": datetime.now(UTC), **options})


# ------------------------------------------------------------------ a stream


class ScoredRows(NamedTuple):
    """Some rows of a stream, scored.

    Attributes:
        rows: The rows.
        scores: Their scores.
        judged: What else is said of them.
        problems: Rows between them that hold no trace.
    """

    rows: ReadRows
    scores: ScoreColumns
    judged: Judged
    problems: list[Problem]


def score_stream(files: Iterable[str], tools: Tools) -> Iterator[ScoredRows]:
    """Score the rows of files in this process, and yield them as they are read.

    Args:
        files: Paths and URLs, or `-` for standard input.
        tools: What they are scored with.

    Raises:
        KPError: A file cannot be read.
    """
    before, tools = Remembered(), replace(tools, agrees=False)
    reader = TraceReader(tools.settings, tools.read_at)
    for file in files:
        for group in read_groups(file):
            rows, problems = read(group, tools, reader)
            scores = compare(rows, before, tools.scorer)
            before = before.then(Remembered.of(rows), tools.scorer.max_remembered)
            yield ScoredRows(rows, scores, judge(rows, scores, tools, {}), problems)


# ------------------------------------------------------------------ an archive


def score_archive(
    files: Sequence[str],
    url: str,
    tools: Tools,
    *,
    engine: Engine = "local",
    workers: int = 1,
    block_rows: int | None = None,
    report: Callable[[Progress], object] = lambda _: None,
) -> Summary:
    """Score the rows of files, and write Parquet files below a folder or URL.

    The result is the same for any engine, number of workers and size of blocks: the score of each
    row is what `Scorer.evaluate` gives it after all rows before it, to 1e-6.

    Args:
        files: Paths and URLs, in the order in which their rows are compared.
        url: The folder or URL; new, or of the same archive, which then continues.
        tools: What they are scored with.
        engine: What the blocks are mapped with.
        workers: How many blocks are worked on at the same time.
        block_rows: How many rows a block has at most; see `plan_of`.
        report: Called with each block that is done.

    Raises:
        KPError: A file cannot be read or written, another archive is there, or a worker ended.
    """
    storage = Storage(url)
    identity = tools.scorer.identity()
    settings = _settings_of(tools, identity)
    with opened(engine, workers) as map_blocks:

        def split(block_rows: int) -> list[FileParts]:
            items = [Splitting(number, file, block_rows) for number, file in enumerate(files)]
            parts: list[FileParts] = []
            report(Progress("divide", 0, len(items)))
            for one in map_blocks(partial(split_file, storage, str(Path.cwd())), items):
                parts.append(one)
                report(Progress("divide", len(parts), len(items)))
            return sorted(parts)

        plan = plan_of(storage, files, block_rows=block_rows, settings=settings, split=split)
        if plan.summary is not None:
            storage.remove_folders(_WORK)
            return Summary(**plan.summary)
        job = Job.of(storage, replace(tools, read_at=plan.read_at, identity=identity))
        passes = _Passes(job, map_blocks, report)
        summary = passes.run(plan.blocks(files), tools.scorer.max_remembered, agrees=tools.agrees)
    storage.remove_parts()
    storage.write(PLAN_FILE, replace(plan, summary=asdict(summary)).to_json())
    storage.remove_folders(_WORK)
    return summary


def _settings_of(tools: Tools, identity: EmbedderIdentity) -> dict[str, Any]:
    """Return what the result depends on besides the files."""
    scorer = tools.scorer
    of_runs = tools.settings.model_dump_json(include=_DEPENDS_ON)
    return {
        "novelty_memory": scorer.max_remembered,
        "embedder": asdict(identity),
        "weights": {name: asdict(weights) for name, weights in scorer.profiles.items()},
        "step_cap": tools.settings.step_cap,
        "domains, policies and redaction, hashed": sha256(of_runs.encode()).hexdigest(),
        "models": {name: one.created_at.isoformat() for name, one in tools.models.items()},
        "agreement": tools.agrees,
    }


@dataclass(frozen=True, slots=True)
class _Passes:
    """The passes of one archive, over one engine."""

    job: Job
    map_blocks: MapBlocks
    report: Callable[[Progress], object]

    def run(self, blocks: Sequence[Any], window: int, *, agrees: bool) -> Summary:
        """Run all passes, and return what became of the rows."""
        counts, unmeasured, skipped = [], Counter[str](), 0
        for one in self._each("read", read_block, blocks):
            counts.append(one.counts)
            unmeasured.update(one.unmeasured)
            skipped += len(one.problems)
        counts = sorted(one for one in counts if one.rows)
        rows, with_rows = sum(one.rows for one in counts), tuple(one.number for one in counts)
        buckets = min(-(-rows // _BUCKET_ROWS), _MANY_BUCKETS) if agrees else 0
        of_tasks = [Bucket(number, buckets, with_rows) for number in range(buckets)]
        for _ in self._each("compare", agree_bucket, of_tasks):
            pass
        to_score = [Scoring(one, buckets) for one in halos(counts, window)]
        scored = sorted(self._each("score", score_block, to_score))
        for _ in self._each("write", write_file, [*_result_files(scored)]):
            pass
        return Summary(rows, sum(one.passed for one in scored), skipped, dict(unmeasured))

    def _each(
        self, name: str, function: Callable[[Job, Any], _Result], items: Sequence[Any]
    ) -> Iterator[_Result]:
        """Yield what a pass returns for each item, and report it."""
        rows = 0
        self.report(Progress(name, 0, len(items)))
        results = self.map_blocks(partial(function, self.job), items)
        for done, one in enumerate(results, 1):
            rows += one.new_rows
            problems = one.problems if isinstance(one, ReadCounts) else ()
            self.report(Progress(name, done, len(items), rows, problems))
            yield one


def _result_files(scored: Sequence[ScoredCounts]) -> Iterator[ResultFile]:
    """Yield the files of each folder, each of whole row groups.

    Numbers are of all files: a file system may take folders for one that differ in case alone.
    """
    groups: dict[str, list[tuple[int, int, int]]] = {}
    for one in scored:
        for group, (folder, rows) in enumerate(one.partitions.items()):
            groups.setdefault(folder, []).append((one.number, group, rows))
    numbers = count()
    for folder, parts in sorted(groups.items()):
        rows, own = 0, list[tuple[int, int]]()
        for at, (block, group, rows_of_group) in enumerate(parts, 1):
            own.append((block, group))
            rows += rows_of_group
            if rows >= _FILE_ROWS or at == len(parts):
                yield ResultFile(f"{folder}/part-{next(numbers):07}.parquet", tuple(own))
                rows, own = 0, []
