"""Scoring a trace: four dimensions, weights by domain, three rules. Usable without LangChain.

Names are loaded when first used, so that importing this package stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain._lazy import lazy_names

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder import Embedder as Embedder
    from kp_langchain.embedding.local_models import (
        FastembedEmbedder as FastembedEmbedder,
    )
    from kp_langchain.embedding.local_models import (
        SentenceTransformerEmbedder as SentenceTransformerEmbedder,
    )
    from kp_langchain.embedding.local_models import resolve_embedder as resolve_embedder
    from kp_langchain.policy import PROFILES as PROFILES
    from kp_langchain.policy import ScoringWeights as ScoringWeights
    from kp_langchain.scoring.breakdown import Dimension as Dimension
    from kp_langchain.scoring.breakdown import Nearest as Nearest
    from kp_langchain.scoring.breakdown import ScoreBreakdown as ScoreBreakdown
    from kp_langchain.scoring.breakdown import WaterfallRow as WaterfallRow
    from kp_langchain.scoring.cache import VectorCache as VectorCache
    from kp_langchain.scoring.dimensions import RuleFired as RuleFired
    from kp_langchain.scoring.evidence import Agreement as Agreement
    from kp_langchain.scoring.evidence import Worth as Worth
    from kp_langchain.scoring.novelty_memory import Match as Match
    from kp_langchain.scoring.novelty_memory import MemoryEntry as MemoryEntry
    from kp_langchain.scoring.novelty_memory import NoveltyMemory as NoveltyMemory
    from kp_langchain.scoring.process_scorer import aevaluate_value as aevaluate_value
    from kp_langchain.scoring.process_scorer import default_scorer as default_scorer
    from kp_langchain.scoring.process_scorer import evaluate_value as evaluate_value
    from kp_langchain.scoring.repeats import embedded_text as embedded_text
    from kp_langchain.scoring.score_columns import ScoreColumns as ScoreColumns
    from kp_langchain.scoring.scorer import Scorer as Scorer
    from kp_langchain.scoring.trace_columns import TraceColumns as TraceColumns

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "kp_langchain.embedding.embedder": "Embedder",
        "kp_langchain.embedding.local_models": (
            "FastembedEmbedder SentenceTransformerEmbedder resolve_embedder"
        ),
        "kp_langchain.scoring.breakdown": "Dimension Nearest ScoreBreakdown WaterfallRow",
        "kp_langchain.scoring.cache": "VectorCache",
        "kp_langchain.scoring.dimensions": "RuleFired",
        "kp_langchain.scoring.evidence": "Agreement Worth",
        "kp_langchain.scoring.novelty_memory": "Match MemoryEntry NoveltyMemory",
        "kp_langchain.scoring.repeats": "embedded_text",
        "kp_langchain.scoring.process_scorer": "aevaluate_value default_scorer evaluate_value",
        "kp_langchain.scoring.score_columns": "ScoreColumns",
        "kp_langchain.scoring.scorer": "Scorer",
        "kp_langchain.scoring.trace_columns": "TraceColumns",
        "kp_langchain.policy": "PROFILES ScoringWeights",
    },
)


def __dir__() -> list[str]:
    return __all__
