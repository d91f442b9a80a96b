"""Scoring a trace: four dimensions, weights by domain, three rules. Usable without LangChain.

Names are loaded when first used, so that importing this package stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._lazy import loader

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder import Embedder
    from kp_langchain.embedding.local_models import (
        FastembedEmbedder,
        SentenceTransformerEmbedder,
        resolve_embedder,
    )
    from kp_langchain.policy import PROFILES, ScoringWeights
    from kp_langchain.scoring.breakdown import Dimension, Nearest, ScoreBreakdown, WaterfallRow
    from kp_langchain.scoring.cache import VectorCache
    from kp_langchain.scoring.dimensions import RuleFired, Worth
    from kp_langchain.scoring.novelty_memory import Match, MemoryEntry, NoveltyMemory
    from kp_langchain.scoring.process_scorer import aevaluate_value, default_scorer, evaluate_value
    from kp_langchain.scoring.repeats import embedded_text
    from kp_langchain.scoring.scorer import Scorer

_NAMES = {
    "kp_langchain.embedding.embedder": ("Embedder",),
    "kp_langchain.embedding.local_models": (
        "FastembedEmbedder", "SentenceTransformerEmbedder", "resolve_embedder",
    ),
    "kp_langchain.scoring.breakdown": ("Dimension", "Nearest", "ScoreBreakdown", "WaterfallRow"),
    "kp_langchain.scoring.cache": ("VectorCache",),
    "kp_langchain.scoring.dimensions": ("RuleFired", "Worth"),
    "kp_langchain.scoring.novelty_memory": ("Match", "MemoryEntry", "NoveltyMemory"),
    "kp_langchain.scoring.repeats": ("embedded_text",),
    "kp_langchain.scoring.process_scorer": ("aevaluate_value", "default_scorer", "evaluate_value"),
    "kp_langchain.scoring.scorer": ("Scorer",),
    "kp_langchain.policy": ("PROFILES", "ScoringWeights"),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

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


__getattr__ = loader(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
