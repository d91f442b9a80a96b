"""`StoredRun`: one scored run as the store has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from kp_langchain.errors import StoreError
from kp_langchain.schema import ReasoningTrace


def trace_of(body: dict[str, Any], trace_id: str) -> ReasoningTrace:
    """Return the trace that a kept body holds.

    Raises:
        StoreError: It holds none.
    """
    try:
        return ReasoningTrace.model_validate(body)
    except ValidationError as error:
        raise StoreError(
            f"the body of {trace_id} cannot be read back ({error.error_count()} faults); "
            "it was changed outside kp-langchain: restore it from a copy, or delete the run"
        ) from error


_ReadBody = Callable[[str], dict[str, Any] | None]


@dataclass(frozen=True)
class StoredRun:
    """One scored run as the store has it.

    Args:
        trace_id: The trace's id, `kp:trace:<uuid>` if it was made here. What no database takes of
            another's is replaced, and one of more than 150 characters cut; it then ends in a hash.
        run_id: LangChain's id of the root run.
        created_at: When the run began, in UTC.
        domain: The run's domain.
        framework: `langchain`, `langgraph`, ..., if known.
        agent_id: `kp:agent:<id>`, if known.
        objective: The task in words.
        success: Whether the run reached its goal.
        confidence: The outcome's confidence, 0 to 1.
        confidence_source: Where success and confidence came from, if known.
        n_steps: Number of steps.
        score: The score, 0 to 1.
        threshold: What it was held against, 0 to 1.
        decision: `contributed` or `below_threshold`.
        profile: Name of the weight profile.
        visibility: `private`, `org` or `network`.
        privacy_level: `aggregated`, `federated` or `private`.
        breakdown: How the score came about, as `ScoreBreakdown.to_dict` gives it.
        kept: Whether the trace itself is in the store.
        kept_until: When it goes, in UTC; None if it stays, or is not there.
        withheld: Why the trace must never be contributed, if so.
        session: The session it belongs to, as it was or hashed; see `RunKeys`.
        thread: The LangGraph thread it ran in, the same.
        user_hash: Whom it ran for, hashed.
        run_name: Its name, as it was or hashed.
        tags: Its tags, the same.
    """

    trace_id: str
    run_id: str
    created_at: datetime
    domain: str
    framework: str | None
    agent_id: str | None
    objective: str
    success: bool
    confidence: float
    confidence_source: str | None
    n_steps: int
    score: float
    threshold: float
    decision: str
    profile: str
    visibility: str
    privacy_level: str
    breakdown: dict[str, Any]
    kept: bool
    kept_until: datetime | None
    withheld: str | None
    session: str | None
    thread: str | None
    user_hash: str | None
    run_name: str | None
    tags: list[str]
    read_body: InitVar[_ReadBody]

    def __post_init__(self, read_body: _ReadBody) -> None:
        # Not a field: it is no part of what the run is, nor of its dict.
        vars(self)["_read_body"] = read_body

    @property
    def trace(self) -> ReasoningTrace | None:
        """The trace itself, read from the store now; None unless it was kept.

        Raises:
            StoreError: The store cannot be read, or what it holds is no trace.
        """
        read_body: _ReadBody = vars(self)["_read_body"]
        body = read_body(self.trace_id) if self.kept else None
        return None if body is None else trace_of(body, self.trace_id)
