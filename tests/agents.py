"""Real LangChain agents with scripted models, and short forms to compare traces by."""

from __future__ import annotations

import asyncio
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, ToolException, tool

from kp_langchain import KPCallbackHandler, ReasoningTrace, ScoredTrace, Scorer
from kp_langchain.demo.scripted import ScriptedChatModel, call, say

__all__ = ["AIMessage", "ScriptedChatModel", "call", "say"]

QUESTION = "what is the answer?"
ASK: dict[str, Any] = {"messages": [("user", QUESTION)]}


@tool
def search(q: str) -> str:
    """Search."""
    return f"result for {q}"


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def asearch(q: str) -> str:
    """Search asynchronously."""
    await asyncio.sleep(0)
    return f"result for {q}"


@tool
def broken(x: str) -> str:
    """Raise."""
    raise ValueError(f"bad x={x}")


@tool
def soft(x: str) -> str:
    """Raise what LangChain hands to the model."""
    raise ToolException(f"soft {x}")


soft.handle_tool_error = True

TOOLS: tuple[BaseTool, ...] = (search, add, broken, soft)


def agent(*answers: Any, tools: tuple[BaseTool, ...] = TOOLS, **options: Any) -> Any:
    return create_agent(ScriptedChatModel(answers), list(tools), **options)


def searching() -> Any:
    """An agent that searches once and answers."""
    return agent(say("I search.", call("search", q="a")), say("42"))


def handler(domain: str = "default", **options: Any) -> KPCallbackHandler:
    options.setdefault("scorer", Scorer(embedder=None))
    options.setdefault("store", "runs.db" if options.get("send_scores_to") else None)
    return KPCallbackHandler(domain, **options)


def run(runnable: Runnable[Any, Any], inputs: Any = None, **options: Any) -> ScoredTrace:
    """Invoke with a fresh handler; return the one scored run."""
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append, **options)
    runnable.invoke(ASK if inputs is None else inputs, {"callbacks": [watching]})
    assert watching.flush(120)
    assert len(scored) == 1
    return scored[0]


def shape(trace: ReasoningTrace) -> list[str]:
    """Steps in short: `thought`, `call search`, `saw search`, `recovered search x2`."""
    words = {"tool_call": "call", "observation": "saw", "error_recovery": "recovered"}
    return [
        " ".join(
            filter(
                None,
                (
                    words.get(step.type, step.type),
                    step.tool.name if step.tool else "",
                    f"x{step.attempts}" if step.attempts else "",
                ),
            )
        )
        for step in trace.steps
    ]
