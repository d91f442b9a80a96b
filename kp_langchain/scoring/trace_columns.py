"""What scoring needs of many traces, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.dimensions import Shape, TraceShape, check_confidence, trace_counts
from kp_langchain.scoring.repeats import embedded_text, fingerprint

TraceSource: TypeAlias = ReasoningTrace | Mapping[str, Any] | str | bytes


class ShapeColumns(Shape[NDArray[np.int64]]):
    """The shapes of many traces."""

    __slots__ = ()

    def row(self, row: int) -> TraceShape:
        """Return the shape of one trace."""
        return TraceShape(*[int(getattr(self, name)[row]) for name in Shape.__slots__])


@dataclass(frozen=True, slots=True, eq=False)
class TraceColumns:
    """Columns with a row for each trace, from which its score is worked out.

    Attributes:
        trace_ids: The id.
        domains: The domain.
        texts: The text that is embedded.
        fingerprints: The hash of that text, see `repeats.fingerprint`.
        shape: Counts of its steps, types and tools.
        confidence: The outcome's confidence, 0 to 1.
        success: Whether the run succeeded.

    Raises:
        ValueError: The columns have different lengths, or a confidence is not within 0..1.
    """

    trace_ids: list[str]
    domains: list[str]
    texts: list[str]
    fingerprints: list[bytes]
    shape: ShapeColumns
    confidence: NDArray[np.float64]
    success: NDArray[np.bool_]

    def __post_init__(self) -> None:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        shape = columns.pop("shape")
        columns |= {name: getattr(shape, name) for name in Shape.__slots__}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns have different lengths: {lengths}")
        for value in self.confidence[~((self.confidence >= 0) & (self.confidence <= 1))].tolist():
            check_confidence(value)

    def __len__(self) -> int:
        return len(self.trace_ids)

    @classmethod
    def of(cls, traces: Iterable[TraceSource]) -> TraceColumns:
        """Read traces.

        Args:
            traces: Each a trace, a mapping in wire form, or the JSON of one.

        Raises:
            pydantic.ValidationError: One is not a valid trace; the message names the field.
            ValueError: A confidence is out of range (in a trace built without validation).
        """
        trace_ids, domains, texts, counts, confidence, success = [], [], [], [], [], []
        for source in traces:
            trace = _validated(source)
            counts.append(trace_counts(trace))
            texts.append(embedded_text(trace))
            metadata = trace.metadata
            trace_ids.append(trace.id)
            domains.append(metadata.task_domain)
            success.append(metadata.success)
            confidence.append(trace.outcome.confidence)
        shape = np.array(counts, dtype=np.int64).reshape(-1, len(Shape.__slots__)).T
        return cls(
            trace_ids,
            domains,
            texts,
            [fingerprint(text) for text in texts],
            ShapeColumns(*shape),
            np.array(confidence, dtype=np.float64),
            np.array(success, dtype=bool),
        )

    def batches(self, size: int) -> Iterator[slice]:
        """Yield the rows in batches of at most so many."""
        for first in range(0, len(self), size):
            yield slice(first, first + size)


def _validated(source: TraceSource) -> ReasoningTrace:
    if isinstance(source, str | bytes):
        return ReasoningTrace.model_validate_json(source)
    return ReasoningTrace.model_validate(source)
