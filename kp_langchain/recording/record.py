"""What is recorded of one root run, and how much of it is kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID

from kp_langchain.recording.messages import as_text

if TYPE_CHECKING:
    from kp_langchain.recording.recorder import Recorder

Kind = Literal["model", "tool", "retriever"]
Mark = Literal["start", "end", "error"]
Ending = Literal["finished", "failed", "cancelled", "paused"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the recorder keeps at most.

    Args:
        text_chars: Characters of one step's text, and of one step's input.
        steps: Steps of one run; what lies between the first and the last half is dropped.
        open_runs: Root runs under way; the oldest is given up for a new one.
        run_timeout_s: Seconds without an event after which a run counts as abandoned.
    """

    text_chars: int = 4000
    steps: int = 1000
    open_runs: int = 1000
    run_timeout_s: float = 3600.0


class Start(NamedTuple):
    """A run that began: its id, its parent's, its name, and LangChain's metadata of it."""

    run_id: UUID
    parent_id: UUID | None = None
    name: str = ""
    metadata: Mapping[str, Any] = MappingProxyType({})


class Call:
    """One call of a model, tool or retriever."""

    __slots__ = (
        "answered", "error", "failed", "input", "key", "kind", "latency_ms", "mcp_server",
        "name", "retries", "started_s", "text", "tool_call_id", "void",
    )  # fmt: skip

    def __init__(self, kind: Kind, name: str, key: object) -> None:
        self.kind: Kind = kind
        self.name = name
        self.key = key  # equal for the attempts of one call
        self.started_s = time.perf_counter()
        self.latency_ms: float | None = None
        self.input: dict[str, Any] | None = None
        self.mcp_server: str | None = None
        self.tool_call_id: str | None = None
        self.text = ""
        self.error = ""
        self.answered = False
        self.failed = False
        self.retries = 0
        self.void = False  # paused or cancelled: as if it had not been made

    def close(self) -> None:
        """Note that it answered, and how long it took."""
        self.answered = True
        self.latency_ms = (time.perf_counter() - self.started_s) * 1000


class RunRecord:
    """What was recorded of one root run."""

    __slots__ = (
        "answer", "claimed_confidence", "domain", "dropped_steps", "ending", "error",
        "fallback_objective", "head", "interrupted", "langgraph", "last_call", "last_seen_s",
        "limit_reached", "logprobs", "metadata", "name", "objective", "open_runs", "output",
        "pending", "recorder", "reported", "run_id", "started_at", "steps_bound", "tail",
        "thread_id",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, start: Start) -> None:
        run_id, _, name, metadata = start
        half = recorder.bounds.steps // 2
        self.recorder = recorder
        self.run_id = run_id
        self.name = name
        self.started_at = datetime.now(UTC)
        self.last_seen_s = time.monotonic()
        self.objective = ""
        self.fallback_objective = ""
        self.domain = as_text(metadata.get("kp_domain"), 100)
        self.thread_id = thread_id_in(metadata)
        self.metadata = metadata
        self.langgraph = "langgraph" in str(metadata.get("ls_integration", ""))
        self.steps_bound = recorder.bounds.steps - half
        self.head: list[tuple[Mark, Call]] = []
        self.tail: deque[tuple[Mark, Call]] = deque(maxlen=half)
        self.dropped_steps = 0
        self.pending: dict[str, str] = {}  # tool calls a model asked for, by id, not yet started
        self.open_runs: set[UUID] = set()
        self.last_call: Call | None = None
        self.logprobs: Any = None
        self.reported: Any = None
        self.interrupted = False
        self.limit_reached = False
        self.ending: Ending | None = None
        self.error = ""
        self.answer: str | None = None
        self.claimed_confidence: float | None = None
        self.output: object = None

    def mark(self, mark: Mark, call: Call) -> None:
        """Add a start, end or error of `call` to the timeline."""
        if len(self.head) < self.steps_bound:
            self.head.append((mark, call))
            return
        if len(self.tail) == self.tail.maxlen:
            self.dropped_steps += 1
        self.tail.append((mark, call))

    def timeline(self) -> list[tuple[Mark, Call]]:
        """Starts, ends and errors in the order in which they came."""
        return [*self.head, *self.tail]

    def continues(self, earlier: RunRecord) -> None:
        """Take over what a paused run had recorded before it paused."""
        since = self.timeline()
        self.objective = earlier.objective or self.objective
        self.fallback_objective = earlier.fallback_objective or self.fallback_objective
        self.started_at = earlier.started_at
        self.langgraph = self.langgraph or earlier.langgraph
        self.domain = self.domain or earlier.domain
        self.reported = self.reported or earlier.reported
        self.dropped_steps += earlier.dropped_steps
        self.pending = {**earlier.pending, **self.pending}
        self.head, self.tail = earlier.head, earlier.tail
        for mark, call in since:
            self.mark(mark, call)


def thread_id_in(metadata: Mapping[str, Any]) -> str | None:
    """The LangGraph thread that a run's metadata name, as text."""
    found = metadata.get("thread_id")
    return None if found is None else as_text(found, 200)
