"""Runs as spans in OTLP JSON by OpenTelemetry's conventions for generative AI.

A run is a trace with the agent as its root, a span for each answer of a model, and one for each
tool call; those of a sub-agent are inside the span of the tool that asks it. The store has no clock
times but that of the start and how long calls took: spans that take no known time are a microsecond
long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from kp_langchain._version import __version__
from kp_langchain.run_keys import NAMESPACE_NAME
from kp_langchain.usage import TOKEN_FIELDS

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun
    from kp_langchain.exporting.turns import ToolCall, Turn
    from kp_langchain.usage import ModelCall, Tokens

_TICK_NS = 1_000
_NS_PER_MS = 1_000_000
_LONGEST_NS = 1 << 61
_INTERNAL, _CLIENT = 1, 3  # the kinds of spans
_ERROR = 2
_EXCEPTION = re.compile(r"([A-Za-z_]\w*)(?:: (.*))?", re.DOTALL)
_NO_EXCEPTION = "_OTHER"  # the conventions' word
_NUMBERS = 1 << 63
_TOKEN_DETAILS: Mapping[str, str] = {
    "gen_ai.usage.cache_read.input_tokens": "cached_tokens",
    "gen_ai.usage.cache_creation.input_tokens": "cache_write_tokens",
    "gen_ai.usage.reasoning.output_tokens": "reasoning_tokens",
}


def spans_document(run: ExportedRun) -> dict[str, Any]:
    """Return a run as one document of OTLP JSON."""
    scope = {"name": "kp_langchain", "version": __version__}
    resource = {"attributes": _attributes({"service.name": run.run.agent_id or "kp-langchain"})}
    spans = _SpanList(run).build()
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]},
        ]
    }


class _SpanList:
    """Builds the spans of one run, on a clock that moves with its steps."""

    def __init__(self, run: ExportedRun) -> None:
        self._run = run
        self._trace_id = run.otlp_trace_id
        self._numbers = count(1)
        self._now_ns = max(int(run.run.created_at.timestamp() * 1e6) * 1000, _TICK_NS)
        self._spans: list[dict[str, Any]] = []
        self._tools: dict[int, dict[str, Any]] = {}  # the spans of calls, by their positions
        self._ends: dict[int, tuple[dict[str, Any], ToolCall]] = {}  # by positions of outputs

    def build(self) -> list[dict[str, Any]]:
        run, trace = self._run, self._run.trace
        asked = {"role": "user", "parts": [_text(trace.task.objective)]}
        answered = {
            "role": "assistant",
            "parts": [_text(trace.outcome.result_summary)],
            "finish_reason": "stop",
        }
        root = self._start("invoke_agent", run.run.agent_id or "agent", _INTERNAL, {})
        starts = {turn.position: turn for turn in run.turns}
        calls = {call.position: (call, turn) for turn in starts.values() for call in turn.calls}
        for position in range(len(trace.steps)):
            if position in starts:
                self._add_turn(starts[position])
            if position in calls:
                self._start_tool(*calls[position])
            if position in self._ends:
                self._end_tool(*self._ends.pop(position))
        own = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": _provider(run.model_calls),
            "gen_ai.agent.name": run.run.agent_id,
            "gen_ai.request.model": run.model or None,
            "gen_ai.input.messages": [asked],
            "gen_ai.output.messages": [answered],
            "gen_ai.tool.definitions": [{"type": "function", **one} for one in run.functions]
            or None,
            "kp_domain": run.run.domain,
            NAMESPACE_NAME: run.run.namespace,
            **_tokens(run.tokens),
            **_flat(run.annotations()),
        }
        root["attributes"] = _attributes(own)
        self._end(root, 0)
        return self._spans

    def _start(
        self,
        operation: str,
        name: str,
        kind: int,
        attributes: Mapping[str, Any],
        turn: Turn | None = None,
    ) -> dict[str, Any]:
        """Return a new span that begins now; those of a turn are part of its caller or the run."""
        self._now_ns += _TICK_NS
        span: dict[str, Any] = {
            "traceId": self._trace_id,
            "spanId": f"{int(self._trace_id[:8], 16):08x}{next(self._numbers):08x}",
            "name": f"{operation} {name}".rstrip(),
            "kind": kind,
            "startTimeUnixNano": str(self._now_ns),
            "attributes": _attributes(attributes),
        }
        if turn is not None:
            parent = self._tools[turn.caller.position] if turn.caller else self._spans[0]
            span["parentSpanId"] = parent["spanId"]
        self._spans.append(span)
        return span

    def _end(self, span: dict[str, Any], latency_ms: float | None) -> None:
        started_ns = int(span["startTimeUnixNano"])
        lasted_ns = min(round((latency_ms or 0) * _NS_PER_MS), _LONGEST_NS - started_ns)
        self._now_ns = max(self._now_ns + _TICK_NS, started_ns + lasted_ns)
        span["endTimeUnixNano"] = str(self._now_ns)

    def _add_turn(self, turn: Turn) -> None:
        if turn.source == "environment":
            of_tool = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "unknown",
                "gen_ai.tool.call.result": turn.text,
            }
            span = self._start("execute_tool", "unknown", _INTERNAL, of_tool, turn)
            self._end(span, None)
            return
        answers = [one for one in self._run.model_calls if one.step == turn.position]
        model = next((one.model for one in answers if one.model), "")
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model or None,
            "gen_ai.provider.name": _provider(answers),
        }
        if turn.source == "agent":
            parts = [_text(turn.text)] if turn.text else []
            parts += [_request(call) for call in turn.calls]
            reason = "tool_call" if turn.calls else "stop"
            message = {"role": "assistant", "parts": parts, "finish_reason": reason}
            attributes |= {"gen_ai.output.messages": [message], **_tokens(*answers)}
        span = self._start("chat", model, _CLIENT, attributes, turn)
        if turn.source == "error":
            _fail(span, turn.text)
        self._end(span, sum(one.latency_ms or 0 for one in answers))

    def _start_tool(self, call: ToolCall, turn: Turn) -> None:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name or None,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": call.arguments,
            "kp.attempts": call.step.tries if call.step.tries > 1 else None,
        }
        span = self._start("execute_tool", call.name, _INTERNAL, attributes, turn)
        self._tools[call.position] = span
        if call.output_position is None:
            self._end(span, None)
        else:
            self._ends[call.output_position] = span, call

    def _end_tool(self, span: dict[str, Any], call: ToolCall) -> None:
        # An error that nothing followed is an observation, like a text that tells of an error.
        is_last = call.output_position == len(self._run.trace.steps) - 1
        is_exception = _EXCEPTION.fullmatch(call.result) is not None
        has_failed = call.is_recovered or (is_last and is_exception and call.has_failed)
        if has_failed:
            _fail(span, call.result)
        if not (has_failed and is_exception):
            span["attributes"] += _attributes({"gen_ai.tool.call.result": call.result})
        self._end(span, call.latency_ms)


def _fail(span: dict[str, Any], text: str) -> None:
    """Write an error into a span: as an exception, if the text has the form of one."""
    match = _EXCEPTION.fullmatch(text)
    span["status"] = {"code": _ERROR, "message": text}
    span["attributes"] += _attributes({"error.type": match[1] if match else _NO_EXCEPTION})
    if match is None:
        return
    exception = {"exception.type": match[1], "exception.message": match[2] or ""}
    span["events"] = [
        {
            "name": "exception",
            "timeUnixNano": span["startTimeUnixNano"],
            "attributes": _attributes(exception),
        }
    ]


def _text(content: str) -> dict[str, str]:
    return {"type": "text", "content": content}


def _request(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}


def _provider(answers: Iterable[ModelCall]) -> str | None:
    """Return who provides the model of some answers; None if that is not known."""
    return next((name for one in answers if (name := one.provider)), None)


def _tokens(*parts: Tokens | ModelCall | None) -> dict[str, int | None]:
    """Return the tokens of a run, or of the answers of one turn, as attributes."""
    known = [one for one in parts if one is not None and getattr(one, "is_reported", True)]
    if not known:
        return {}
    sums = {name: sum(getattr(one, name) for one in known) for name in TOKEN_FIELDS}
    details = {name: sums[field] or None for name, field in _TOKEN_DETAILS.items()}
    return {
        "gen_ai.usage.input_tokens": sums["input_tokens"],
        "gen_ai.usage.output_tokens": sums["output_tokens"],
        **details,
    }


def _flat(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Return annotations as attributes: `kp.score`, `kp.verdict.success`, ..."""
    attributes: dict[str, Any] = {}
    for name, value in annotations.items():
        if name == "verdict" and value is not None:
            attributes |= {f"kp.verdict.{key}": one for key, one in value.items()}
        elif name not in ("domain", NAMESPACE_NAME):
            attributes[f"kp.{name}"] = value or None if isinstance(value, list) else value
    return attributes


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in OTLP's form, without those that are None; structures are JSON texts."""
    return [
        {"key": name, "value": _value(value)} for name, value in values.items() if value is not None
    ]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -_NUMBERS <= value < _NUMBERS:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"stringValue": json.dumps(value, ensure_ascii=False)}
