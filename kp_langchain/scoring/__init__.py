"""Scoring a trace: four dimensions, weights by domain, three rules. Usable without LangChain.

Names are loaded when first used, so that importing this package stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.scoring.breakdown import Dimension, Nearest, ScoreBreakdown
    from kp_langchain.scoring.cache import VectorCache
    from kp_langchain.scoring.dimensions import embedded_text
    from kp_langchain.scoring.embedders import Embedder, resolve_embedder
    from kp_langchain.scoring.fastembed_model import FastembedEmbedder
    from kp_langchain.scoring.rules import RuleFired
    from kp_langchain.scoring.scorer import (
        Scorer,
        aevaluate_value,
        default_scorer,
        evaluate_value,
    )
    from kp_langchain.scoring.sentence_transformers_model import SentenceTransformerEmbedder
    from kp_langchain.scoring.weights import PROFILES, ScoringWeights

_HOMES = {
    "Dimension": "breakdown",
    "Embedder": "embedders",
    "FastembedEmbedder": "fastembed_model",
    "Nearest": "breakdown",
    "PROFILES": "weights",
    "RuleFired": "rules",
    "ScoreBreakdown": "breakdown",
    "Scorer": "scorer",
    "ScoringWeights": "weights",
    "SentenceTransformerEmbedder": "sentence_transformers_model",
    "VectorCache": "cache",
    "aevaluate_value": "scorer",
    "default_scorer": "scorer",
    "embedded_text": "dimensions",
    "evaluate_value": "scorer",
    "resolve_embedder": "embedders",
}

__all__ = [
    "PROFILES",
    "Dimension",
    "Embedder",
    "FastembedEmbedder",
    "Nearest",
    "RuleFired",
    "ScoreBreakdown",
    "Scorer",
    "ScoringWeights",
    "SentenceTransformerEmbedder",
    "VectorCache",
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
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
