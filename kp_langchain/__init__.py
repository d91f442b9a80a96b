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

from kp_langchain._lazy import lazy_names
from kp_langchain._version import __version__ as __version__

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy as DomainPolicy
    from kp_langchain.config import Settings as Settings
    from kp_langchain.errors import ConfigError as ConfigError
    from kp_langchain.errors import KPError as KPError
    from kp_langchain.errors import RegistryError as RegistryError
    from kp_langchain.errors import StoreError as StoreError
    from kp_langchain.errors import UnknownRunError as UnknownRunError
    from kp_langchain.gate import ScoredTrace as ScoredTrace
    from kp_langchain.pattern_schema import ToolCallPattern as ToolCallPattern
    from kp_langchain.policy import ScoringWeights as ScoringWeights
    from kp_langchain.recall.chains import KPExampleSelector as KPExampleSelector
    from kp_langchain.recall.chains import KPRetriever as KPRetriever
    from kp_langchain.recall.few_shot import to_few_shot as to_few_shot
    from kp_langchain.recall.middleware import KPMiddleware as KPMiddleware
    from kp_langchain.recording.capture import capture as capture
    from kp_langchain.recording.from_messages import trace_from_messages as trace_from_messages
    from kp_langchain.recording.handler import KPCallbackHandler as KPCallbackHandler
    from kp_langchain.recording.outcome import FinishedRun as FinishedRun
    from kp_langchain.registry import Registry as Registry
    from kp_langchain.schema import ReasoningTrace as ReasoningTrace
    from kp_langchain.schema import TraceStep as TraceStep
    from kp_langchain.scoring.breakdown import ScoreBreakdown as ScoreBreakdown
    from kp_langchain.scoring.cache import VectorCache as VectorCache
    from kp_langchain.scoring.process_scorer import aevaluate_value as aevaluate_value
    from kp_langchain.scoring.process_scorer import default_scorer as default_scorer
    from kp_langchain.scoring.process_scorer import evaluate_value as evaluate_value
    from kp_langchain.scoring.scorer import Scorer as Scorer
    from kp_langchain.store import TraceStore as TraceStore
    from kp_langchain.verdict import Verdict as Verdict

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "kp_langchain.recording.capture": "capture",
        "kp_langchain.recording.from_messages": "trace_from_messages",
        "kp_langchain.recording.handler": "KPCallbackHandler",
        "kp_langchain.recording.outcome": "FinishedRun",
        "kp_langchain.config": "DomainPolicy Settings",
        "kp_langchain.errors": "ConfigError KPError RegistryError StoreError UnknownRunError",
        "kp_langchain.gate": "ScoredTrace",
        "kp_langchain.recall.chains": "KPExampleSelector KPRetriever",
        "kp_langchain.recall.few_shot": "to_few_shot",
        "kp_langchain.recall.middleware": "KPMiddleware",
        "kp_langchain.registry": "Registry",
        "kp_langchain.pattern_schema": "ToolCallPattern",
        "kp_langchain.schema": "ReasoningTrace TraceStep",
        "kp_langchain.scoring.breakdown": "ScoreBreakdown",
        "kp_langchain.scoring.cache": "VectorCache",
        "kp_langchain.scoring.process_scorer": "aevaluate_value default_scorer evaluate_value",
        "kp_langchain.scoring.scorer": "Scorer",
        "kp_langchain.policy": "ScoringWeights",
        "kp_langchain.store": "TraceStore",
        "kp_langchain.verdict": "Verdict",
    },
)


def __dir__() -> list[str]:
    return __all__


if os.environ.get("KP_CAPTURE", "") not in ("", "0", "false", "False"):
    import_module("kp_langchain.recording.capture").register()
