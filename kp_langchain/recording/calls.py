"""Calls of models, tools and retrievers, and the timeline of what happened in a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from kp_langchain.recording.content import thought_text
from kp_langchain.recording.values import gist_text

CallKind = Literal["model", "tool", "retriever", "chain"]
Mark = Literal["start", "end", "error"]
"""What one entry of a run's timeline records of a call."""

_SHORTEST_QUOTE = 12


@dataclass(slots=True, eq=False)
class Call:
    """One call of a model, tool or retriever; or a chain that raised an error of its own.

    Attributes:
        kind: What was called.
        name: The name of the model, tool or retriever; "" if unknown, or for a chain.
        key: Equal for all attempts of one call, and for nothing else.
        started_s: When it began, in seconds of `time.perf_counter`.
        latency_ms: Milliseconds that it took; None while it runs, or if no run of its own began.
        input: The input of a tool or retriever, in the form of `plain`.
        mcp_server: The MCP server that has the tool, if its metadata name one.
        tool_call_id: The id of the request for a tool call, by which the model knows it.
        text: What it returned: a text, or a structure until `write_out`.
        has_tags: Whether tags may enclose reasoning in the text of a model, until `write_out`.
        error: Why it failed: a text, or a structure until `write_out`.
        has_ended: Whether it returned or raised.
        has_failed: Whether it raised an error, or returned a message that says so.
        is_cancelled: Whether it was cancelled.
        is_rejected: Whether a human rejected it.
        is_after_rejection: Whether it ended when a human's last decision was a rejection.
        retries: Further attempts that the model or tool made inside this call.
        is_incomplete: Whether it belongs to an answer that was refused, withheld or cut off, or
            waits for an approval.
        refusal: The words in which a model refused; "" if it did not.
        offers_choice: Whether a model could choose between several tools, by what it was asked.
        is_remote: Whether only the state that a remote graph returned shows it.
        is_void: Whether it leaves no step, because it is made again after a pause, is recorded
            elsewhere in the timeline, or is not the agent's own.
        returns_examples: Whether it is, or contains, the search that found the run's examples.
    """

    kind: CallKind
    name: str
    key: object
    started_s: float = field(default_factory=time.perf_counter)
    latency_ms: float | None = None
    input: dict[str, Any] | None = None
    mcp_server: str | None = None
    tool_call_id: str | None = None
    text: Any = ""
    has_tags: bool = False
    error: Any = ""
    has_ended: bool = False
    has_failed: bool = False
    is_cancelled: bool = False
    is_rejected: bool = False
    is_after_rejection: bool = False
    retries: int = 0
    is_incomplete: bool = False
    refusal: str = ""
    offers_choice: bool = False
    is_remote: bool = False
    is_void: bool = False
    returns_examples: bool = False

    def end(self) -> None:
        """Note that it ended now, and how long it took."""
        self.has_ended = True
        self.latency_ms = (time.perf_counter() - self.started_s) * 1000

    def set_result(self, text: Any) -> Mark:
        """Set `text`, or `error` if it has failed; return the mark for the timeline."""
        if self.has_failed:
            self.error = text
            return "error"
        self.text = text
        return "end"

    def write_out(self, limit: int) -> None:
        """Turn what it returned into text of at most `limit` characters, which takes time."""
        if self.has_tags:
            self.text, self.has_tags = thought_text(self.text, limit), False
        self.text, self.error = gist_text(self.text, limit), gist_text(self.error, limit)

    def leave_to(self, result: Any, limit: int) -> None:
        """Leave no step if what it said, or its error, stands in the result of its only caller."""
        self.write_out(limit)
        said = self.error if self.has_failed else self.text
        if said and isinstance(said, str) and isinstance(result, str):
            # A message that a tool returns as it is becomes text by `str`. A short word may stand
            # in any text.
            is_inside = len(said) >= _SHORTEST_QUOTE and said in result
            self.is_void = self.is_void or said == result or is_inside or repr(said) in result

    def reject(self) -> None:
        """Turn a failure into a human's rejection, whose words are the call's text."""
        self.has_failed, self.is_rejected = False, True
        self.text, self.error = self.error, ""


class Timeline:
    """The first and the last marks of a run: starts, ends and errors of calls.

    Args:
        max_marks: The most marks to keep.

    Attributes:
        dropped: The number of marks that were dropped from the middle.
    """

    __slots__ = ("_first", "_last", "_max_first", "dropped")

    def __init__(self, max_marks: int) -> None:
        max_last = max_marks // 2
        self._max_first = max_marks - max_last
        self._first: list[tuple[Mark, Call]] = []
        self._last: deque[tuple[Mark, Call]] = deque(maxlen=max_last)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._first) + len(self._last)

    def __iter__(self) -> Iterator[tuple[Mark, Call]]:
        yield from self._first
        yield from self._last

    def calls(self) -> list[Call]:
        """Return its calls, each once, in the order in which they came first."""
        return list(dict.fromkeys(call for _, call in self))

    def add(self, mark: Mark, call: Call) -> None:
        """Add a start, end or error of `call`."""
        if len(self._first) < self._max_first:
            self._first.append((mark, call))
            return
        if len(self._last) == self._last.maxlen:
            self.dropped += 1
        self._last.append((mark, call))

    def joined_to(self, earlier: Timeline) -> Timeline:
        """Return a timeline of `earlier` and then this one, of as many marks as `earlier` keeps."""
        joined = Timeline(earlier._max_first + (earlier._last.maxlen or 0))
        joined.dropped = earlier.dropped + self.dropped
        for mark, call in (*earlier, *self):
            joined.add(mark, call)
        return joined
