"""Turn LangChain agent runs into scored, shareable knowledge.

The public API is what `__all__` names: here, in `scoring`, `store`, `registry`, `redaction`,
`gate`, `recall`, and in each file of `integrations`. Everything else may change in any version.

Names are loaded when they are first used, so that `import kp_langchain` costs next to nothing. With
`KP_CAPTURE=true` in the environment, it attaches a handler to every run of the process.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from kp_langchain._lazy import loader
from kp_langchain._version import __version__ as __version__

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy, Settings
    from kp_langchain.errors import (
        ConfigError,
        KPError,
        RegistryError,
        StoreError,
        UnknownRunError,
    )
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.policy import ScoringWeights
    from kp_langchain.recall.chains import KPExampleSelector, KPRetriever
    from kp_langchain.recall.few_shot import to_few_shot
    from kp_langchain.recall.middleware import KPMiddleware
    from kp_langchain.recording.capture import capture
    from kp_langchain.recording.from_messages import trace_from_messages
    from kp_langchain.recording.handler import KPCallbackHandler
    from kp_langchain.recording.outcome import FinishedRun
    from kp_langchain.registry import Registry
    from kp_langchain.schema import ReasoningTrace, TraceStep
    from kp_langchain.scoring.breakdown import ScoreBreakdown
    from kp_langchain.scoring.cache import VectorCache
    from kp_langchain.scoring.process_scorer import (
        aevaluate_value,
        default_scorer,
        evaluate_value,
    )
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import Verdict

_HOMES = {
    "kp_langchain.recording.capture": ("capture",),
    "kp_langchain.recording.from_messages": ("trace_from_messages",),
    "kp_langchain.recording.handler": ("KPCallbackHandler",),
    "kp_langchain.recording.outcome": ("FinishedRun",),
    "kp_langchain.config": ("DomainPolicy", "Settings"),
    "kp_langchain.errors": (
        "ConfigError",
        "KPError",
        "RegistryError",
        "StoreError",
        "UnknownRunError",
    ),
    "kp_langchain.gate": ("ScoredTrace",),
    "kp_langchain.recall.chains": ("KPExampleSelector", "KPRetriever"),
    "kp_langchain.recall.few_shot": ("to_few_shot",),
    "kp_langchain.recall.middleware": ("KPMiddleware",),
    "kp_langchain.registry": ("Registry",),
    "kp_langchain.schema": ("ReasoningTrace", "TraceStep"),
    "kp_langchain.scoring.breakdown": ("ScoreBreakdown",),
    "kp_langchain.scoring.cache": ("VectorCache",),
    "kp_langchain.scoring.process_scorer": (
        "aevaluate_value",
        "default_scorer",
        "evaluate_value",
    ),
    "kp_langchain.scoring.scorer": ("Scorer",),
    "kp_langchain.policy": ("ScoringWeights",),
    "kp_langchain.store": ("TraceStore",),
    "kp_langchain.verdict": ("Verdict",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ConfigError",
    "DomainPolicy",
    "FinishedRun",
    "KPCallbackHandler",
    "KPError",
    "KPExampleSelector",
    "KPMiddleware",
    "KPRetriever",
    "ReasoningTrace",
    "Registry",
    "RegistryError",
    "ScoreBreakdown",
    "ScoredTrace",
    "Scorer",
    "ScoringWeights",
    "Settings",
    "StoreError",
    "TraceStep",
    "TraceStore",
    "UnknownRunError",
    "VectorCache",
    "Verdict",
    "aevaluate_value",
    "capture",
    "default_scorer",
    "evaluate_value",
    "to_few_shot",
    "trace_from_messages",
]


__getattr__ = loader(__name__, _HOME_OF)


def __dir__() -> list[str]:
    return __all__


if os.environ.get("KP_CAPTURE", "") not in ("", "0", "false", "False"):
    import_module("kp_langchain.recording.capture").register()
