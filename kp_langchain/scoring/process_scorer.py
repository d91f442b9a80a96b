"""The default scorer of the process: `evaluate_value`, `aevaluate_value` and `default_scorer`."""

from __future__ import annotations

import asyncio

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.scorer import Scorer, TraceLike

_default_scorer: Scorer | None = None
_default_lock = ForkSafeLock()


def evaluate_value(trace: TraceLike) -> float:
    """Score a trace with the process's default scorer, remember it, return the score, 0 to 1.

    The first call waits until the embedding model is loaded.

    Args:
        trace: The trace, or a mapping in wire form.

    Raises:
        pydantic.ValidationError: The mapping is not a valid trace; the message names the field.
        ConfigError: A setting cannot be read or used.
    """
    trace = ReasoningTrace.model_validate(trace)
    scorer = default_scorer()
    scorer.wait_until_ready()
    return scorer.evaluate(trace).total


async def aevaluate_value(trace: TraceLike) -> float:
    """Do what `evaluate_value` does, in a thread, so that the event loop is never blocked."""
    return await asyncio.to_thread(evaluate_value, trace)


def default_scorer() -> Scorer:
    """Return the one scorer behind `evaluate_value`, `aevaluate_value`, and handlers without store.

    Its latency budget, memory and step cap are the settings `latency_budget_ms`, `novelty_memory`
    and `step_cap` at the time of the first call. The budget limits how long `evaluate` waits for a
    model, and so the scoring of runs; `evaluate_value` waits for the model before it calls
    `evaluate`.

    Handlers with a store have this scorer with another memory, which is in the store.

    Raises:
        ConfigError: A setting cannot be read or used.
    """
    global _default_scorer
    with _default_lock:
        if _default_scorer is None:
            from kp_langchain.config import Settings

            settings = Settings()
            _default_scorer = Scorer(
                step_cap=settings.step_cap,
                latency_budget_ms=settings.latency_budget_ms,
                max_remembered=settings.novelty_memory,
            )
        return _default_scorer
