"""What the handler costs on the agent's path, and what it costs to import.

    python tests/benchmarks/bench_handler.py

Events are played by hand, so that LangChain's own time is not in the figures; scoring is off. The
import times are CPU seconds of fresh interpreters, the two names in turn.
"""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kp_langchain import KPCallbackHandler, Scorer

ROUNDS = 300
STEPS = 5
GRAPH = {"thread_id": "t", "ls_integration": "langgraph"}
NODE = {**GRAPH, "langgraph_step": 1, "langgraph_node": "n", "langgraph_checkpoint_ns": "n:1"}
HISTORY = [HumanMessage("what is the answer?")] * 6
ANSWER = AIMessage(
    "I search.", tool_calls=[{"name": "search", "args": {"q": "a"}, "id": "c", "type": "tool_call"}]
)
RESULT = LLMResult(generations=[[ChatGeneration(message=ANSWER)]])
SEEN = ToolMessage("result for a", tool_call_id="c")


def play(handler: KPCallbackHandler) -> int:
    """Play one run of a tool-calling agent; return its number of events."""
    root = uuid4()
    handler.on_chain_start(
        None, {"messages": HISTORY[:1]}, run_id=root, metadata=GRAPH, name="LangGraph"
    )
    for _ in range(STEPS):
        node, model, tools, tool = uuid4(), uuid4(), uuid4(), uuid4()
        handler.on_chain_start(
            None,
            {"messages": HISTORY},
            run_id=node,
            parent_run_id=root,
            metadata=NODE,
            name="model",
        )
        handler.on_chat_model_start(
            None, [HISTORY], run_id=model, parent_run_id=node, metadata=NODE
        )
        handler.on_llm_end(RESULT, run_id=model)
        handler.on_chain_end({"messages": [ANSWER]}, run_id=node)
        handler.on_chain_start(
            None,
            [{"name": "search"}],
            run_id=tools,
            parent_run_id=root,
            metadata=NODE,
            name="tools",
        )
        handler.on_tool_start(
            {"name": "search"}, "", inputs={"q": "a"}, run_id=tool, parent_run_id=tools,
            metadata=NODE, tool_call_id="c",
        )  # fmt: skip
        handler.on_tool_end(SEEN, run_id=tool)
        handler.on_chain_end({"messages": [SEEN]}, run_id=tools)
    handler.on_chain_end({"messages": HISTORY}, run_id=root)
    return 2 + 8 * STEPS


def import_cost_s(statement: str) -> float:
    """CPU seconds that a fresh interpreter takes for an import."""
    script = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main() -> None:
    """Print the table."""
    logging.disable(logging.CRITICAL)
    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    handler._deliver = lambda record: None  # type: ignore[method-assign]
    handler._recorder._deliver = handler._deliver
    play(handler)
    times_us = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        events = play(handler)
        times_us.append((time.perf_counter() - began) / events * 1e6)
    low, median, high = statistics.quantiles(times_us, n=4)
    print(f"one event, without scoring   {median:6.2f} us   (quartiles {low:.2f} and {high:.2f})")
    began = time.perf_counter()
    for _ in range(ROUNDS):
        KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    print(f"making a handler             {(time.perf_counter() - began) / ROUNDS * 1e6:6.0f} us")
    statements = (
        "import langchain_core.callbacks",
        "import kp_langchain",
        "from kp_langchain import Scorer",
        "from kp_langchain import KPCallbackHandler",
    )
    costs: dict[str, list[float]] = {statement: [] for statement in statements}
    for _ in range(5):
        for statement in statements:
            costs[statement].append(import_cost_s(statement))
    baseline = statistics.median(costs[statements[0]])
    for statement, taken in costs.items():
        middle = statistics.median(taken)
        print(f"{statement:43} {middle:6.3f} s CPU   {middle / baseline:5.2f} of the first")


if __name__ == "__main__":
    main()
