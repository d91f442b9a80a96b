"""What is recorded of one root run, and how much of it is kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID

from kp_langchain.recording.messages import as_text, clip, contained, text_size, written
from kp_langchain.recording.requested_calls import RequestedCalls

if TYPE_CHECKING:
    from kp_langchain.recording.decisions import Decision
    from kp_langchain.recording.recorder import Recorder
    from kp_langchain.run_keys import RunKeys

Kind = Literal["model", "tool", "retriever", "chain"]
Mark = Literal["start", "end", "error"]
Ending = Literal["finished", "failed", "cancelled", "paused"]

# How agents and graphs name themselves in `metadata.ls_integration`.
_GRAPHS = ("langgraph", "langchain_create_agent")
MARGIN_CHARS = 2048  # on each side of a cut
NAME_CHARS = 200
_LONG_ID_CHARS = 10_000
_SHORT_BITS = 512


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the recorder keeps at most.

    Args:
        text_chars: Characters of one step's text, and of one step's input. While it is recorded,
            twice `MARGIN_CHARS` more are kept, so that redaction sees whole what crosses a cut.
        run_chars: Characters of all texts of one run's steps; the texts of further steps are left
            out and counted. The task and the answer are kept besides, each within `text_chars`.
        steps: Steps of one run; what lies between the first and the last half is dropped.
        open_runs: Root runs under way; the one silent for longest is given up for a new one.
        run_timeout_s: Seconds without an event after which a run counts as abandoned.
    """

    text_chars: int = 4000
    run_chars: int = 200_000
    steps: int = 1000
    open_runs: int = 1000
    run_timeout_s: float = 3600.0


class Start(NamedTuple):
    """A run that began: its id, its parent's, its name, LangChain's metadata and tags of it."""

    run_id: UUID
    parent_id: UUID | None = None
    name: str = ""
    metadata: Mapping[str, Any] = MappingProxyType({})
    tags: object = ()


@dataclass(slots=True, eq=False)
class Call:
    """One call of a model, tool or retriever; or a chain that raised, of its own accord."""

    kind: Kind
    name: str
    key: object  # equal for the attempts of one call
    started_s: float = field(default_factory=time.perf_counter)
    latency_ms: float | None = None
    input: dict[str, Any] | None = None
    mcp_server: str | None = None
    tool_call_id: str | None = None
    text: Any = ""  # or a structure, until `RunRecord.write_out`
    error: Any = ""
    answered: bool = False
    failed: bool = False
    cancelled: bool = False
    rejected: bool = False  # a human refused it
    after_no: bool = False  # it ended when a human had last said no
    retries: int = 0
    stopped: bool = False  # of an answer that was refused or cut off, or waits for an approval
    refusal: str = ""
    void: bool = False  # paused: as if it had not been made

    def close(self) -> None:
        """Note that it answered, and how long it took."""
        self.answered = True
        self.latency_ms = (time.perf_counter() - self.started_s) * 1000


@dataclass(slots=True, eq=False)
class Resumed:
    """That a run goes on from a pause.

    Args:
        thread_id: In which thread.
        earlier: What it had recorded in this process, if it did.
        checkpoint_id: LangGraph's id of the checkpoint from which it goes on, if known.
    """

    thread_id: str
    earlier: RunRecord | None
    checkpoint_id: str | None = None


@dataclass(frozen=True, slots=True)
class Before:
    """What is known of a run's earlier part besides its timeline, fit to be stored.

    Args:
        keys: What it is found by.
        task: What tells repeats of its task.
        withheld: Whether some of it could not be redacted.
    """

    keys: RunKeys | None = None
    task: str | None = None
    withheld: bool = False


@dataclass(slots=True, eq=False)
class RunRecord:
    """What was recorded of one root run."""

    recorder: Recorder
    start: InitVar[Start]
    run_id: UUID = field(init=False)
    name: str = field(init=False)
    metadata: Mapping[str, Any] = field(init=False)
    tags: object = field(init=False)
    domain: str = field(init=False)
    thread_id: str | None = field(init=False)
    langgraph: bool = field(init=False)
    steps_bound: int = field(init=False)
    tail: deque[tuple[Mark, Call]] = field(init=False)
    room_chars: int = field(init=False)
    head: list[tuple[Mark, Call]] = field(default_factory=list)
    dropped_steps: int = 0
    dropped_texts: int = 0
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    last_seen_s: float = field(init=False)
    objective: str = ""
    fallback_objective: str = ""
    open_runs: set[UUID] = field(default_factory=set)
    requested: RequestedCalls = field(default_factory=RequestedCalls)
    last_action: tuple[str, object] = ("", None)  # the tool that a classic agent chose, its input
    provider_calls: dict[str, Call] = field(default_factory=dict)  # of providers' tools, open
    last_call: Call | None = None
    last_failure: Call | None = None  # of a chain, as long as nothing has begun after it
    raised: list[int] = field(default_factory=list)  # ids of the exceptions that are recorded
    asked_in: set[str] = field(default_factory=set)  # the threads in which something new is asked
    decision: Decision | None = None  # a human's, on what waited; None where none is known
    interrupted: bool = False
    limit_reached: bool = False
    over: bool = False
    settled: bool = False  # it has a fate, or is handed to the worker
    ending: Ending | None = None
    error: str = ""
    answer: Any = None
    agent_answer: Any = ""
    output: object = None
    claimed_confidence: float | None = None
    logprobs: object = None
    reported: Any = None
    paused_at: datetime | None = None
    half_id: str = ""  # of what it recorded until then
    checkpoint_id: str | None = None
    kept: bool = False  # that is in the store
    resumed: Resumed | None = None  # to be joined to what it recorded before
    before: Before | None = None

    def __post_init__(self, start: Start) -> None:
        self.run_id, _, name, self.metadata, self.tags = start
        self.name = short_name(name)
        self.last_seen_s = time.monotonic()
        self.domain = clip(text_in(self.metadata, "kp_domain"), 4 * NAME_CHARS).strip()[:100]
        self.thread_id = thread_id_in(self.metadata)
        self.langgraph = text_in(self.metadata, "ls_integration") in _GRAPHS
        self.room_chars = self.recorder.bounds.run_chars
        tail = self.recorder.bounds.steps // 2
        self.steps_bound = self.recorder.bounds.steps - tail
        self.tail = deque(maxlen=tail)

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

    def write_out(self) -> None:
        """Make text of the structures that stand where text belongs.

        Done on the worker: writing them out would take the agent's time.
        """
        limit = self.recorder.bounds.text_chars + 2 * MARGIN_CHARS
        if self.answer is not None:
            self.answer = written(self.answer, limit)
        for _, call in self.timeline():
            call.text, call.error = written(call.text, limit), written(call.error, limit)
        if self.before is not None:
            self._fit()

    def _fit(self) -> None:
        """Leave out the last texts of a run that has too many, as each of its parts had not."""
        room = self.recorder.bounds.run_chars
        for call in dict.fromkeys(call for _, call in self.timeline()):
            size = text_size(call.text) + text_size(call.error) + text_size(call.input)
            if room <= 0 and size:
                call.text, call.error = clip(call.text, 0), clip(call.error, 0)
                call.input = None if call.input is None else {}
                self.dropped_texts += 1
            room -= size

    @property
    def is_awaiting_half(self) -> bool:
        """Whether only the store may know what it recorded before it paused."""
        if self.resumed is None:
            return False
        return self.resumed.earlier is None or self.resumed.earlier.is_awaiting_half

    def resumes(self, thread_id: str, earlier: RunRecord | None) -> None:
        """Note that it goes on from a pause; `continues` follows when it has ended."""
        if self.resumed is not None:  # a second graph inside one run
            if earlier is not None:
                self.continues(earlier)
            return
        self.resumed = Resumed(thread_id, earlier)
        if earlier is not None:
            self.requested.continue_from(earlier.requested)
            self.requested.wait()
            self.provider_calls = {**earlier.provider_calls, **self.provider_calls}
            self.room_chars -= self.recorder.bounds.run_chars - earlier.room_chars

    def continues(self, earlier: RunRecord) -> None:
        """Take over what a paused run had recorded before it paused."""
        since = self.timeline()
        self.objective = earlier.objective or self.objective
        self.fallback_objective = earlier.fallback_objective or self.fallback_objective
        self.name = earlier.name or self.name
        self.started_at = earlier.started_at
        self.langgraph = self.langgraph or earlier.langgraph
        self.domain = self.domain or earlier.domain
        self.reported = self.reported or earlier.reported
        self.dropped_steps += earlier.dropped_steps
        self.dropped_texts += earlier.dropped_texts
        self.requested.continue_from(earlier.requested)
        self.provider_calls = {**earlier.provider_calls, **self.provider_calls}
        self.metadata = {**earlier.metadata, **self.metadata}
        self.tags = earlier.tags if not self.tags else self.tags
        self.before = self.before or earlier.before
        self.head, self.tail = earlier.head, earlier.tail
        for mark, call in since:
            self.mark(mark, call)


def text_in(metadata: Mapping[str, Any], key: str) -> str:
    """The text that a run's metadata hold under `key`; "" if they hold none."""
    found = metadata.get(key)
    return "" if found is None else found if type(found) is str else _text(found)


@contained("")
def _text(value: object) -> str:
    return str.__str__(value) if isinstance(value, str) else ""


def thread_id_in(metadata: Mapping[str, Any]) -> str | None:
    """The LangGraph thread that a run's metadata name, as text."""
    found = metadata.get("thread_id")
    if found is None or (type(found) is str and len(found) <= NAME_CHARS):
        return found
    return _short_id(found)


@contained(None)
def _short_id(found: object) -> str:
    if isinstance(found, int) and found.bit_length() > _SHORT_BITS:
        text = hex(found)  # Python refuses to write it in decimals
    else:
        text = as_text(found, _LONG_ID_CHARS)
    # Two long ids may begin alike.
    return text if len(text) <= NAME_CHARS else sha256(text.encode(errors="replace")).hexdigest()


def short_name(name: object) -> str:
    """The name of a run or tool, cut where it is none that anybody would read."""
    if type(name) is str and len(name) <= NAME_CHARS:
        return name
    return clip(name, NAME_CHARS) if isinstance(name, str) else ""
