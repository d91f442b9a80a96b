"""Spans as the collector's file exporter writes them, by hand."""

from __future__ import annotations

import json
from typing import Any

TRACE = "5b8efff798038103d269b633813fc60c"


def attribute(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, dict | list):
        value = json.dumps(value)
    return {"key": name, "value": {"stringValue": value}}


def span(number: int, parent: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "name": f"span {number}",
        "startTimeUnixNano": str(1_700_000_000_000_000_000 + start * 1_000_000),
        "endTimeUnixNano": str(1_700_000_000_000_000_000 + end * 1_000_000),
        "attributes": [attribute(name, value) for name, value in more.pop("having", {}).items()],
    }
    if parent:
        fields["parentSpanId"] = f"{parent:016x}"
    return fields | more


def lines(*spans: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]} for one in spans]


def genai_spans(**failure: Any) -> list[dict[str, Any]]:
    request = {"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "a"}}
    result = {"type": "tool_call_response", "id": "c1", "response": "result for a"}
    question = {"role": "user", "parts": [{"type": "text", "content": "what is the answer?"}]}
    first = {
        "role": "assistant",
        "parts": [{"type": "text", "content": "I search."}, request],
        "finish_reason": "tool_call",
    }
    last = {"role": "assistant", "parts": [{"type": "text", "content": "42"}]}
    last_with_reason = {**last, "finish_reason": "stop"}
    tool_result = {} if failure else {"gen_ai.tool.call.result": "result for a"}
    return [
        span(
            1, 9, 0, 100,
            having={
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "desk",
                "gen_ai.input.messages": [question],
                "gen_ai.output.messages": [last_with_reason],
            },
        ),
        span(
            2, 1, 10, 20,
            having={
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": [question],
                "gen_ai.output.messages": [first],
            },
        ),
        span(
            3, 1, 30, 40,
            having={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "search",
                "gen_ai.tool.call.id": "c1",
                "gen_ai.tool.call.arguments": {"q": "a"},
                **tool_result,
                **failure.get("having", {}),
            },
            **{key: value for key, value in failure.items() if key != "having"},
        ),
        span(
            4, 1, 50, 60,
            having={
                "gen_ai.operation.name": "chat",
                "gen_ai.input.messages": [
                    question, first, {"role": "tool", "parts": [result]},
                ],
                "gen_ai.output.messages": [last_with_reason],
            },
        ),
    ]  # fmt: skip
