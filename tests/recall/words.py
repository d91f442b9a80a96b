"""Agents with examples, and an embedder to which tasks are similar if they share words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AnyMessage
from langchain_core.tools import tool
from numpy.typing import NDArray

from kp_langchain import (
    DomainPolicy,
    KPCallbackHandler,
    KPMiddleware,
    ScoredTrace,
    Scorer,
    TraceStore,
)
from tests.agents import ScriptedChatModel, call, say

POUND = "what is one pound in dollars today"
EURO = "what is one euro in dollars today"
GARDEN = "when should roses be pruned"
ASK: Any = {"messages": [("user", EURO)]}


class Words:
    """Counts words in 256 columns. Texts without a common word have similarity 0."""

    model = "words"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.zeros((len(texts), 256), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w+", text.lower()):
                row[crc32(word.encode()) % 256] += 1
        rows[~rows.any(axis=1), 0] = 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@tool
def rates(pair: str) -> str:
    """Return the rate of a pair of currencies."""
    return f"rate of {pair}: 1.27"


def answers(pair: str = "GBPUSD", answer: str = "One is 1.27.") -> list[Any]:
    """What the model says in one run."""
    return [say("I look the rate up.", call("rates", pair=pair)), say(answer)]


class Listening(ScriptedChatModel):
    """A scripted model that keeps what it was asked."""

    asked: list[list[AnyMessage]]

    def _generate(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.asked.append(list(messages))
        return super()._generate(messages, *args, **options)


def kept_handler(store: TraceStore, **options: Any) -> KPCallbackHandler:
    """A handler that keeps every run that is not a single thought."""
    options.setdefault("policy", DomainPolicy(threshold=0.2))
    options.setdefault("scorer", Scorer(embedder=None))
    return KPCallbackHandler("finance", store=store, **options)


def passing_handler(store: TraceStore, **options: Any) -> KPCallbackHandler:
    """A handler whose runs are stored and none of which is kept, so that no other is shown them."""
    return kept_handler(store, policy=DomainPolicy(threshold=1.0), **options)


def keep(
    store: TraceStore, task: str = POUND, pair: str = "GBPUSD", *, metadata: Any = None
) -> str:
    """Record a run that is kept; return the id of its trace."""
    watching = kept_handler(store)
    agent = create_agent(ScriptedChatModel(answers(pair)), [rates])
    config = {"callbacks": [watching], "metadata": metadata or {}}
    agent.invoke({"messages": [("user", task)]}, config)
    last = watching.last(120)
    assert last is not None
    assert last.decision == "kept", last.breakdown
    return last.trace.id


def keep_all(
    store: TraceStore, *tasks: str, tools: Sequence[Any] = (rates,), metadata: Any = None,
    **options: Any,
) -> list[str]:  # fmt: skip
    """Record runs that are kept, one after the other; return the ids of their traces.

    Args:
        store: The store.
        tasks: Their tasks.
        tools: The tools that each of them calls.
        metadata: Their metadata.
        options: As of `KPCallbackHandler`.
    """
    scored: list[ScoredTrace] = []
    watching = kept_handler(store, on_scored=scored.append, **options)
    calls = [call(one.name, **dict.fromkeys(one.args, "GBPUSD")) for one in tools]
    script = [say("I look it up.", *calls), say("One is 1.27.")]
    agent = create_agent(ScriptedChatModel(script * len(tasks)), list(tools))
    for task in tasks:
        config: Any = {"callbacks": [watching], "metadata": metadata or {}}
        agent.invoke({"messages": [("user", task)]}, config)
    assert watching.flush(120)
    assert len(scored) == len(tasks)
    return [one.trace.id for one in sorted(scored, key=lambda one: one.trace.metadata.created_at)]


def middleware(store: TraceStore, **options: Any) -> KPMiddleware:
    """The middleware of an agent whose runs are always shown something, if there is something."""
    options = {"embedder": Words(), "held_out": 0.0, "floor": 0.5, "timeout_s": 600.0, **options}
    return KPMiddleware("finance", store=store, **options)


def texts(messages: Sequence[AnyMessage]) -> list[str]:
    return [f"{message.type}: {message.text}" for message in messages]
