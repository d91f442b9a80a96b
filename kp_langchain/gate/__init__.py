"""The gate: decides for a new run and for a late verdict alike whether a trace passes.

It knows no database: runs and verdicts in, `ScoredTrace` out.
"""

from kp_langchain.gate.decision import Decision, decide
from kp_langchain.gate.late_verdict import rejudge
from kp_langchain.gate.scored_trace import Rescored, ScoredTrace
from kp_langchain.gate.shown_trace import ShownTrace
from kp_langchain.gate.thresholds import (
    DEFAULT_THRESHOLDS,
    Threshold,
    default_threshold,
    threshold_of,
)

__all__ = [
    "DEFAULT_THRESHOLDS",
    "Decision",
    "Rescored",
    "ScoredTrace",
    "ShownTrace",
    "Threshold",
    "decide",
    "default_threshold",
    "rejudge",
    "threshold_of",
]
