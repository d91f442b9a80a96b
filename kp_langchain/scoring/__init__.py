"""Scoring a trace: four dimensions, weights by domain, three rules. Usable without LangChain.

Names are loaded when first used, so that importing this package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder_protocol import Embedder, resolve_embedder
    from kp_langchain.embedding.fastembed_model import FastembedEmbedder
    from kp_langchain.embedding.sentence_transformers_model import SentenceTransformerEmbedder
    from kp_langchain.scoring.breakdown import Dimension, Nearest, ScoreBreakdown
    from kp_langchain.scoring.cache import VectorCache
    from kp_langchain.scoring.novelty_memory import Match, MemoryEntry, NoveltyMemory
    from kp_langchain.scoring.process_scorer import aevaluate_value, default_scorer, evaluate_value
    from kp_langchain.scoring.rules import RuleFired
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.scoring.trace_text import embedded_text
    from kp_langchain.scoring.waterfall import WaterfallRow
    from kp_langchain.scoring.worth import Worth
    from kp_langchain.weights import PROFILES, ScoringWeights

_HOMES = {
    "Dimension": "kp_langchain.scoring.breakdown",
    "Embedder": "kp_langchain.embedding.embedder_protocol",
    "FastembedEmbedder": "kp_langchain.embedding.fastembed_model",
    "Match": "kp_langchain.scoring.novelty_memory",
    "MemoryEntry": "kp_langchain.scoring.novelty_memory",
    "Nearest": "kp_langchain.scoring.breakdown",
    "NoveltyMemory": "kp_langchain.scoring.novelty_memory",
    "PROFILES": "kp_langchain.weights",
    "RuleFired": "kp_langchain.scoring.rules",
    "ScoreBreakdown": "kp_langchain.scoring.breakdown",
    "Scorer": "kp_langchain.scoring.scorer",
    "ScoringWeights": "kp_langchain.weights",
    "SentenceTransformerEmbedder": "kp_langchain.embedding.sentence_transformers_model",
    "VectorCache": "kp_langchain.scoring.cache",
    "WaterfallRow": "kp_langchain.scoring.waterfall",
    "Worth": "kp_langchain.scoring.worth",
    "aevaluate_value": "kp_langchain.scoring.process_scorer",
    "default_scorer": "kp_langchain.scoring.process_scorer",
    "embedded_text": "kp_langchain.scoring.trace_text",
    "evaluate_value": "kp_langchain.scoring.process_scorer",
    "resolve_embedder": "kp_langchain.embedding.embedder_protocol",
}

__all__ = [
    "PROFILES",
    "Dimension",
    "Embedder",
    "FastembedEmbedder",
    "Match",
    "MemoryEntry",
    "Nearest",
    "NoveltyMemory",
    "RuleFired",
    "ScoreBreakdown",
    "Scorer",
    "ScoringWeights",
    "SentenceTransformerEmbedder",
    "VectorCache",
    "WaterfallRow",
    "Worth",
    "aevaluate_value",
    "default_scorer",
    "embedded_text",
    "evaluate_value",
    "resolve_embedder",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
