"""Ids of imported runs: the same for the same run, whenever it is imported."""

from __future__ import annotations

from typing import Final
from uuid import UUID, uuid5

NAMESPACE: Final = UUID("6f3a1c52-9d0e-5b47-8a61-2c4be0d7f915")
"""Of the ids of runs whose own ids are no UUIDs."""


def span_uuid(trace_id: str, span_id: str) -> UUID:
    """Return the id of the run that a span is."""
    return uuid5(NAMESPACE, f"span:{trace_id}:{span_id}")
