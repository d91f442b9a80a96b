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
    """

    trace_id: str
    span_id: str | None = None
    project: str | None = None

    def to_list(self) -> list[str | None]:
        """Return it as JSON-like values."""
        return [self.trace_id, self.span_id, self.project]

    @classmethod
    def from_list(cls, values: Any) -> Self:
        """Return what `to_list` wrote.

        Raises:
            TypeError: The values are not those of an external trace.
        """
        return cls(*values)
