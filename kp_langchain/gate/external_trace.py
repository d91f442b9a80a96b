"""`ExternalTrace`: a run as another tracer recorded it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ExternalTrace:
    """Where another tracer, such as Langfuse or MLflow, recorded a run.

    Attributes:
        trace_id: Its id of the trace.
        span_id: Its id of the span that is the root run, if it has one.
        project: The project that it recorded the trace in, if known.
        is_part: Whether the trace has more than this run, because the run began inside a span of
            the program. What is said of the trace is then not said of this run.
    """

    trace_id: str
    span_id: str | None = None
    project: str | None = None
    is_part: bool = False

    def to_list(self) -> list[str | bool | None]:
        """Return it as JSON-like values."""
        return [self.trace_id, self.span_id, self.project, self.is_part]

    @classmethod
    def from_list(cls, values: Any) -> Self:
        """Return what `to_list` wrote.

        Raises:
            TypeError: The values are not those of an external trace.
        """
        return cls(*values)
