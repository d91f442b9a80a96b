"""The text that stands for a trace: it is embedded, and compared to find exact repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace


def embedded_text(trace: ReasoningTrace) -> str:
    """Return the text whose embedding stands for the trace.

    The objective, one space, then the contents of all steps joined by one space; a step without
    content counts as an empty text.
    """
    return f"{trace.task.objective} {' '.join([step.content or '' for step in trace.steps])}"
