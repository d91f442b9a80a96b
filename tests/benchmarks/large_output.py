"""What our recorder holds of a tool output that is far too large, and what it takes to bound it."""

from __future__ import annotations

import gc
import logging
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from langchain_core.messages import HumanMessage, ToolMessage

LARGE_BYTES = 5_000_000


def outputs() -> dict[str, Any]:
    """The large output in the forms in which tools give them."""
    text = "a line of the ledger, " * (LARGE_BYTES // 22)
    parts = [text[start : start + 1000] for start in range(0, LARGE_BYTES, 1000)]
    blocks: list[Any] = [{"type": "text", "text": part} for part in parts]
    rows = [{"line": number, "text": part} for number, part in enumerate(parts)]
    return {
        "text": text,
        "message": ToolMessage(text, tool_call_id="c"),
        "message of blocks": ToolMessage(blocks, tool_call_id="c"),
        "message with artifact": ToolMessage("seen", tool_call_id="c", artifact=rows),
        "list of mappings": rows,
        "bytes": text.encode(),
    }


def measure() -> dict[str, Any]:
    """Bytes held and at the peak, and milliseconds of that event; called in a fresh process."""
    logging.disable(logging.CRITICAL)
    from kp_langchain import KPCallbackHandler, Scorer, Settings

    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    with _tool_under_way(handler):
        pass  # the first run has redaction loaded, which is no output's
    forms = {}
    for form, output in outputs().items():
        with _tool_under_way(handler) as tool:
            tracemalloc.start()
            handler.on_tool_end(output, run_id=tool)
            peak = tracemalloc.get_traced_memory()[1]
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
        with _tool_under_way(handler) as tool:
            began_s = time.perf_counter()
            handler.on_tool_end(output, run_id=tool)
            took_s = time.perf_counter() - began_s
        forms[form] = {
            "held_bytes": held,
            "peak_bytes": peak,
            "event_ms": round(took_s * 1000, 3),
        }
    handler.close()
    return {
        "output_bytes": LARGE_BYTES,
        "bound_chars": Settings().max_text_chars,
        "forms": forms,
    }


@contextmanager
def _tool_under_way(handler: Any) -> Iterator[Any]:
    root, tool = uuid4(), uuid4()
    handler.on_chain_start(None, {"messages": [HumanMessage("Why?")]}, run_id=root, name="agent")
    handler.on_tool_start(
        {"name": "search"}, "", inputs={"q": "a"}, run_id=tool, parent_run_id=root
    )
    yield tool
    handler.on_chain_end({"messages": []}, run_id=root)
    handler.flush()
