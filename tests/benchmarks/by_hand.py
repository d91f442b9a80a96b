"""What one event costs our handler itself, with LangChain's own time left out.

The events of a tool-calling agent are played by hand, so the figure is steadier than a difference
between two agents, and lower: in an agent the processor's caches hold other things.
"""

from __future__ import annotations

import logging
import time
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from tests.benchmarks.candidates import attached
from tests.benchmarks.figures import Quartiles, quartiles

STEPS = 5
EVENTS = 2 + 8 * STEPS
_GRAPH = {"thread_id": "t", "ls_integration": "langgraph"}
_NODE = {**_GRAPH, "langgraph_step": 1, "langgraph_node": "n", "langgraph_checkpoint_ns": "n:1"}
_HISTORY = [HumanMessage("what is the answer?")] * 6
_ANSWER = AIMessage(
    "I search.", tool_calls=[{"name": "search", "args": {"q": "a"}, "id": "c", "type": "tool_call"}]
)
_RESULT = LLMResult(generations=[[ChatGeneration(message=_ANSWER)]])
_SEEN = ToolMessage("result for a", tool_call_id="c")


def play(handler: Any) -> None:
    """Play one run of `EVENTS` events."""
    root = uuid4()
    handler.on_chain_start(
        None, {"messages": _HISTORY[:1]}, run_id=root, metadata=_GRAPH, name="LangGraph"
    )
    for _ in range(STEPS):
        node, model, tools, tool = uuid4(), uuid4(), uuid4(), uuid4()
        inside: dict[str, Any] = {"run_id": node, "parent_run_id": root, "metadata": _NODE}
        handler.on_chain_start(None, {"messages": _HISTORY}, **inside, name="model")
        inside = {"run_id": model, "parent_run_id": node, "metadata": _NODE}
        handler.on_chat_model_start(None, [_HISTORY], **inside)
        handler.on_llm_end(_RESULT, run_id=model)
        handler.on_chain_end({"messages": [_ANSWER]}, run_id=node)
        inside = {"run_id": tools, "parent_run_id": root, "metadata": _NODE}
        handler.on_chain_start(None, [{"name": "search"}], **inside, name="tools")
        inside = {"run_id": tool, "parent_run_id": tools, "metadata": _NODE}
        handler.on_tool_start({"name": "search"}, "", inputs={"q": "a"}, **inside, tool_call_id="c")
        handler.on_tool_end(_SEEN, run_id=tool)
        handler.on_chain_end({"messages": [_SEEN]}, run_id=tools)
    handler.on_chain_end({"messages": _HISTORY}, run_id=root)


def measure(rounds: int) -> Quartiles:
    """CPU microseconds of an event, recorded only; called in a fresh process."""
    logging.disable(logging.CRITICAL)
    taken_us = []
    with attached("recording") as handled:
        (callback,) = handled.callbacks
        for _ in range(rounds):
            play(callback)
        for _ in range(rounds):
            began_ns = time.process_time_ns()
            play(callback)
            taken_us.append((time.process_time_ns() - began_ns) / 1e3 / EVENTS)
    return quartiles(taken_us)
