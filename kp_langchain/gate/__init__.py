"""The gate: decides for a new run and for a late verdict alike whether a trace passes.

It knows no database: runs and verdicts in, `ScoredTrace` out.
"""

from kp_langchain.gate.check import (
    DEFAULT_THRESHOLDS,
    Threshold,
    threshold_of,
)
from kp_langchain.gate.judge import rejudge
from kp_langchain.gate.rescored import Rescored
from kp_langchain.gate.run import Decision, ScoredTrace, ShownTrace, decide

__all__ = [
    "DEFAULT_THRESHOLDS",
    "Decision",
    "Rescored",
    "ScoredTrace",
    "ShownTrace",
    "Threshold",
    "decide",
    "rejudge",
    "threshold_of",
]
