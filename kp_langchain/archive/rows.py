"""What is done with the rows of a block: they are read, compared with those before, and judged.

Pure functions: no file, no process. A block needs what is remembered before it, and no more.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kp_langchain._logging import describe_error
from kp_langchain.archive.sources import Row
from kp_langchain.archive.tables import Judged, ReadRows
from kp_langchain.archive.traces import NoReaderError, ReadTrace, TraceReader
from kp_langchain.calibration.agreement import AGREEMENT, RunDigest
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.flags import flags_of
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.calibration.planted_instructions import has_planted
from kp_langchain.config import Settings, warn_of_domain
from kp_langchain.embedding.embedder import NO_IDENTITY, EmbeddedColumns, EmbedderIdentity
from kp_langchain.errors import KPError
from kp_langchain.gate import decide, threshold_of
from kp_langchain.novelty_sources import UNREADABLE
from kp_langchain.redaction import redact
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import Nearest
from kp_langchain.scoring.dimensions import outcome_confidence
from kp_langchain.scoring.evidence import Agreement, Worth
from kp_langchain.scoring.novelty_memory import Matches
from kp_langchain.scoring.score_columns import NoveltyColumns, ScoreColumns
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.scoring.trace_columns import TraceColumns
from kp_langchain.scoring.window import Vectors, nearest_in_window, repeats_in_window
from kp_langchain.text import one_line

REASON_CHARS = 2000
_BATCH_ROWS = 256  # embedded at once


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

    def packed(self) -> bytes:
        """Return what travels to workers: all of it, without the secrets of the settings."""
        plain = replace(self, settings=self.settings.without_secrets())
        return pickle.dumps({name: getattr(plain, name) for name in Tools.__slots__})

    def check_embedded(self, embedded: EmbeddedColumns) -> None:
        """Check that a worker has the embedder that all have to have, and that it works.

        Raises:
            KPError: It has another one, or this fails for all that it could read.
        """
        if self.identity is None:
            return
        failed = [one for one in embedded.problems if one not in ("", UNREADABLE)]
        if embedded.vectors is None and failed and self.identity != NO_IDENTITY:
            raise KPError(f"a worker cannot embed: {failed[0]}; the same command continues")
        if embedded.vectors is not None and embedded.identity != self.identity:
            raise KPError(
                f"a worker has the embedder {embedded.identity}, and it has to be "
                f"{self.identity}; every machine needs the same files of the model, at the same "
                "place"
            )


@lru_cache(maxsize=1)
def unpacked(tools: bytes) -> Tools:
    """Return what `Tools.packed` returned as it was; made once in a worker."""
    return Tools(**pickle.loads(tools))  # noqa: S301 - of the process that started this one


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
    """

    fingerprints: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    vector_ids: list[str] = field(default_factory=list)

    def then(self, later: Remembered, window: int) -> Remembered:
        """Return what is remembered after more came; at most `window` of each kind."""
        vectors = [one.vectors for one in (self, later) if one.vectors is not None]
        return Remembered(
            [*self.fingerprints, *later.fingerprints][-window:],
            [*self.ids, *later.ids][-window:],
            np.concatenate(vectors)[-window:] if vectors else None,
            [*self.vector_ids, *later.vector_ids][-window:],
        )

    @classmethod
    def of(cls, rows: ReadRows) -> Self:
        """Return what a block adds."""
        return cls(
            rows.traces.fingerprints,
            rows.traces.trace_ids,
            rows.embedded.vectors,
            [rows.traces.trace_ids[row] for row in rows.vector_rows],
        )


# ------------------------------------------------------------------ read, compare, judge


def read(
    rows: Iterable[Row], tools: Tools, reader: TraceReader | None = None
) -> tuple[ReadRows, list[Problem]]:
    """Return the rows that hold a trace with their embeddings, and those that hold none.

    Args:
        rows: The rows.
        tools: What they are scored with.
        reader: What read the rows of the file before these; None if there are none.

    Raises:
        KPError: No run can be read in this process; see `TraceReader.read`.
    """
    started = time.perf_counter()
    reader = reader or TraceReader(tools.settings, tools.read_at)
    problems: list[Problem] = []
    read_traces: list[tuple[ReasoningTrace, dict[str, Any]]] = []
    for row in rows:
        try:
            one = reader.read(row)
            place = {"file": row.file, "line": row.number}
            read_traces.append((one.trace, place | _facts(one, tools)))
        except NoReaderError:
            raise
        except Exception as error:  # noqa: BLE001 - one row of millions costs one row
            reason = str(error) if isinstance(error, ValueError) else describe_error(error)
            # Which may quote what the row holds.
            reason = redact(one_line(reason, REASON_CHARS)).value
            problems.append(Problem(row.place, reason))
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
        "features": json.dumps(
            features_of(
                trace,
                looked_successful=None if run is None else run.looked_successful,
                proves_failure=None if run is None else run.proves_failure,
            )
        ),
        "confidence_source": one.confidence_source,
        "proves_failure": run is not None and run.proves_failure,
        "has_verdict": run is not None and run.reported is not None,
        "verdict": None if run is None or run.reported is None else run.reported.success,
        "trace": trace.model_dump_json(),
    }
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
        halo = before.vectors
        if halo is None:
            halo = np.zeros((0, vectors.shape[1]), np.float32)
        positions, found = nearest_in_window(Vectors.of(halo), Vectors.of(vectors), window=window)
        known = [*before.vector_ids, *(traces.trace_ids[row] for row in rows.vector_rows)]
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
    agreements: Mapping[int, Agreement],
) -> Judged:
    """Return what is said of the rows of a block besides their scores.

    Args:
        rows: The rows.
        scores: Their scores.
        tools: The policies and confidence models.
        agreements: By row, how far it agrees with others of its task.
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
    agreement: Agreement | None,
) -> Worth | None:
    """Return the worth of a row, as `gate.judge.with_worth` has it."""
    facts, model = rows.facts[row], tools.models.get(rows.traces.domains[row])
    if model is None:
        return None
    if facts["has_verdict"]:
        confidence = float(scores.outcome_confidence[row])
        basis = f"a verdict ({facts['confidence_source']})"
    else:
        known = {} if agreement is None else {AGREEMENT: agreement.evidence}
        estimate = model.confidence({**json.loads(facts["features"]), **known})
        confidence = outcome_confidence(estimate, success=not facts["proves_failure"])
        basis = model.source
    return Worth.of(confidence, float(scores.novelty[row]), basis)
