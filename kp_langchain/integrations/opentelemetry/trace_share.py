"""Which traces belong to a share of all: a function of their ids, so that all processes agree."""

from __future__ import annotations

EVERY_TRACE = 1 << 64
"""The numbers of `spread` are below it."""


def spread(trace_id: int) -> int:
    """Return a number below 2**64 that any bit of the trace id changes; splitmix64."""
    number = (trace_id ^ trace_id >> 64) % EVERY_TRACE
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % EVERY_TRACE
    number = (number ^ number >> 27) * 0x94D049BB133111EB % EVERY_TRACE
    return number ^ number >> 31
