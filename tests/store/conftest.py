"""A store with runs in it, used by its public names; what lies in its tables is read as SQL."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import sqlalchemy as sa

from kp_langchain import ReasoningTrace, ScoredTrace, Scorer, TraceStore, Verdict
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.gate import ShownTrace
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import Metadata, Outcome, Task, Tool, TraceStep
from kp_langchain.scoring import Dimension, MemoryEntry, ScoreBreakdown
from tests import programs

START = datetime(2026, 2, 1, 12, tzinfo=UTC)
REGISTRY = "https://registry.example.org"
LONG_S = 600.0  # only a deadlock takes as long


def _scored(
    number: int = 0,
    *,
    trace_id: str | None = None,
    run_id: uuid.UUID | str | None = None,
    domain: str = "finance",
    score: float = 0.7,
    novelty: float | None = None,
    threshold: float = 0.6,
    keep: bool = True,
    created_at: datetime | None = None,
    objective: str | None = None,
    content: str | None = "compare the quarters",
    tool_input: dict[str, Any] | None = None,
    visibility: Literal["private", "org", "network"] = "private",
    keys: RunKeys | None = None,
    session: str | None = None,
    tags: tuple[str, ...] = (),
    namespace: str | None = None,
    **more: Any,
) -> ScoredTrace:
    part = Dimension(score, 0.25, score / 4)
    trace = ReasoningTrace(
        **({"id": trace_id} if trace_id else {}),
        metadata=Metadata(
            created_at=created_at or START + timedelta(minutes=number),
            task_domain=domain,
            success=True,
            quality_score=score,
            agent_id="kp:agent:desk",
            framework="langgraph",
            visibility=visibility,
        ),
        task=Task(objective=f"task {number}" if objective is None else objective),
        steps=[
            TraceStep(step_id=0, type="thought", content=content),
            TraceStep(step_id=1, type="tool_call", tool=Tool(name="ledger"), input=tool_input),
        ],
        outcome=Outcome(result_summary="it grew", confidence=0.8),
    )
    if session or tags or namespace:
        keys = RunKeys(session=session, tags=tags, namespace=namespace)
    return ScoredTrace(
        trace=trace,
        breakdown=ScoreBreakdown(
            total=score,
            complexity=part,
            novelty=part if novelty is None else Dimension(novelty, 0.25, novelty / 4),
            tool_diversity=part,
            outcome_confidence=part,
            weighted_sum=score,
            profile=domain,
            rules=(),
            novelty_source="no embedder",
            confidence_source="reported",
        ),
        decision="kept" if score >= threshold else "below_threshold",
        threshold=threshold,
        run_id=run_id or uuid.uuid4(),  # type: ignore[arg-type]
        keep_body=keep,
        keys=keys,
        **more,
    )


@pytest.fixture(scope="session")
def scored() -> Callable[..., ScoredTrace]:
    """Builds one scored run; a higher number began later."""
    return _scored


@pytest.fixture
def store(url: str) -> Iterator[TraceStore]:
    """An empty store on each engine in turn."""
    with TraceStore(url) as store:
        yield store


def with_vector(one: ScoredTrace, vector: tuple[float, ...], text: bytes = b"hash") -> ScoredTrace:
    """Return a run that others are compared with, by a vector of `Letters`."""
    entry = MemoryEntry(one.trace.id, text, np.array(vector, np.float32), Letters().identity)
    return replace(one, entry=entry, twin_similarity=0.9)


def complete(number: int = 0, **more: Any) -> ScoredTrace:
    """Return a run with everything that a run can have."""
    options = {
        "visibility": "network",
        "keys": RunKeys(session=f"s-{number}", user=f"hash:{number:032x}", tags=("beta", "b")),
        "verdict": Verdict(success=True, note=f"note {number}"),
        "features": {"n_steps": 2.0},
        "external_traces": {"langfuse": ExternalTrace(f"external-{number}", "span", "project")},
        "shown": (ShownTrace("kp:trace:shown", 1, 0.8),),
        **more,
    }
    return with_vector(_scored(number, **options), (1.0, number))


# ------------------------------------------------------------------ what lies in the tables


@contextmanager
def sql(store: TraceStore | str) -> Iterator[sa.Connection]:
    """A transaction on the database of a store, as another program has it."""
    url = store if isinstance(store, str) else store.database.location.url
    url = url or f"sqlite:///{store.location}"  # type: ignore[union-attr]
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def execute(store: TraceStore | str, statement: str, **values: Any) -> list[Any]:
    """Execute a statement as another program does; return its rows."""
    with sql(store) as connection:
        result = connection.execute(sa.text(statement), values)
        return list(result.all()) if result.returns_rows else []


def rows_by_table(store: TraceStore) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of all tables."""
    tables = sa.MetaData()
    with sql(store) as connection:
        tables.reflect(connection)
        return {
            name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for name, table in tables.tables.items()
        }


# ------------------------------------------------------------------ scorers with a memory


class Letters:
    """Counts letters; fails with a text that has none."""

    def __init__(self, model: str = "letters", baseline: float = 0.0) -> None:
        self.identity = EmbedderIdentity(model, "1", baseline)

    def embed(self, texts: list[str]) -> Any:
        if not all({*text} & {*"xyz"} for text in texts):
            raise ValueError
        return np.array([[text.count(letter) for letter in "xyz"] for text in texts], float)


def trace_of(objective: str, domain: str = "finance") -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": domain, "success": True},
            "task": {"objective": objective},
            "steps": [{"step_id": 0, "type": "thought", "content": "."}],
            "outcome": {"result_summary": "done", "confidence": 0.5},
        }
    )


def scorer_on(store: TraceStore, embedder: object = None, **bounds: Any) -> Scorer:
    return Scorer(embedder=embedder or Letters(), cache=store.novelty_memory(**bounds))


# ------------------------------------------------------------------ other processes


class Conversation:
    """A program in a process of its own that reads and prints lines."""

    def __init__(self, code: str, *words: str) -> None:
        given, self._to = os.pipe()
        self._from, out = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        with os.fdopen(given, "rb") as stdin, os.fdopen(out, "wb") as stdout:
            self.program = programs.start(
                "-c", code, *words, stdin=stdin, stdout=stdout, stderr=self._errors,
                PYTHONPATH=str(programs.ROOT),
            )  # fmt: skip
        self._lines = os.fdopen(self._from, "r")

    def say(self, line: str = "go") -> None:
        os.write(self._to, f"{line}\n".encode())

    def line(self) -> str:
        """Wait for the next line that it prints; empty if it has ended."""
        return self._lines.readline().removesuffix("\n")

    def kill(self) -> None:
        self.program.kill()
        self.end(-signal.SIGKILL)

    def end(self, expected: int = 0) -> None:
        """Close its input, and see that it ends well."""
        os.close(self._to)
        status = self.program.wait()
        self._lines.close()
        with self._errors as errors:
            errors.seek(0)
            assert status == expected, errors.read().decode()


def fork(child: Callable[[], object]) -> int:
    """Run `child` in a forked child; return 0 if it returned something true."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # for forking beside threads
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if child() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def files_below(folder: Path) -> bytes:
    """Return the bytes of all files of a folder."""
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


# ------------------------------------------------------------------ redactors that settings name


def without_names(text: str) -> str:
    return text.replace("Ada", "[name]")


def failing(text: str) -> str:
    raise LookupError(text)
