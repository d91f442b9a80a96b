"""Runs as trajectories in Harbor's format ATIF, version 1.7, one document for each run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kp_langchain.usage import TOKEN_FIELDS

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun
    from kp_langchain.exporting.turns import ToolCall, Turn
    from kp_langchain.usage import ModelCall

_VERSION = "ATIF-v1.7"
_UNKNOWN = "unknown"


def trajectory(run: ExportedRun) -> dict[str, Any]:
    """Return a run as a trajectory.

    The task is the first step. A turn of the agent is one step, with its calls, what they returned,
    and what its model took. A sub-agent has a trajectory of its own, to which the result of the
    tool refers that asked it. What is known of the run beside its steps is in `extra`.
    """
    trace, turns = run.trace, run.turns
    steps: list[dict[str, Any]] = [
        {
            "source": "user",
            "message": trace.task.objective,
            "timestamp": run.run.created_at.isoformat(),
        }
    ]
    steps += _steps(run, turns)
    answer = trace.outcome.result_summary
    if answer.strip() and answer not in [step["message"] for step in steps[1:]]:
        steps.append({"source": "agent", "message": answer, "extra": {"is_outcome": True}})
    return _without_none(
        {
            "schema_version": _VERSION,
            "session_id": run.run.run_id,
            "trajectory_id": trace.id,
            "agent": _without_none(
                {
                    "name": run.run.agent_id or run.run.framework or _UNKNOWN,
                    "version": _UNKNOWN,  # of the agent itself, which no run states
                    "model_name": run.model or None,
                    "tool_definitions": run.tools,
                    "extra": {"framework": run.run.framework} if run.run.framework else None,
                }
            ),
            "steps": _numbered(steps),
            "final_metrics": _final_metrics(run, len(steps)),
            "subagent_trajectories": _sub_trajectories(run, turns),
            "extra": run.annotations(),
        }
    )


def _steps(
    run: ExportedRun, turns: Sequence[Turn], caller: ToolCall | None = None
) -> list[dict[str, Any]]:
    """Return the turns of the agent, or those of the sub-agent that a call asks, as steps."""
    callers = {turn.caller.id for turn in turns if turn.caller}
    return [_step(turn, run, callers) for turn in turns if turn.caller is caller]


def _numbered(steps: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"step_id": number, **step} for number, step in enumerate(steps, start=1)]


def _sub_trajectories(
    run: ExportedRun, turns: Sequence[Turn], caller: ToolCall | None = None
) -> list[dict[str, Any]] | None:
    """Return a trajectory for each sub-agent that the agent asks, or that a sub-agent does."""
    trajectories = [
        _without_none(
            {
                "schema_version": _VERSION,
                "trajectory_id": _sub_id(run, call.id),
                "agent": {"name": call.name or _UNKNOWN, "version": _UNKNOWN},
                "steps": _numbered(steps),
                "subagent_trajectories": _sub_trajectories(run, turns, call),
            }
        )
        for turn in turns
        if turn.caller is caller
        for call in turn.calls
        if (steps := _steps(run, turns, call))
    ]
    return trajectories or None


def _sub_id(run: ExportedRun, call_id: str) -> str:
    return f"{run.trace.id}/{call_id}"


def _step(turn: Turn, run: ExportedRun, callers: Collection[str]) -> dict[str, Any]:
    if turn.source != "agent":
        kind = "error" if turn.source == "error" else "observation"
        return {
            "source": "system",
            "message": turn.text,
            "extra": {"kind": kind, "trace_step": turn.position},
        }
    answers = [one for one in run.model_calls if one.step == turn.position]
    step: dict[str, Any] = {
        "source": "agent",
        "message": turn.text,
        "model_name": next((one.model for one in answers if one.model), None),
        "llm_call_count": len(answers) or None,
        "metrics": _metrics(answers),
        "extra": {"trace_step": turn.position},
    }
    if turn.calls:
        step["tool_calls"] = [_tool_call(call) for call in turn.calls]
        results = [_result(call) for call in turn.calls if call.output is not None]
        for result in results:
            if result["source_call_id"] in callers:
                result["subagent_trajectory_ref"] = [
                    {"trajectory_id": _sub_id(run, result["source_call_id"])}
                ]
        if results:
            step["observation"] = {"results": results}
    return _without_none(step)


def _tool_call(call: ToolCall) -> dict[str, Any]:
    extra = {"mcp_server": call.step.tool.mcp_server if call.step.tool else None, "mark": call.mark}
    return _without_none(
        {
            "tool_call_id": call.id,
            "function_name": call.name,
            "arguments": call.arguments,
            "extra": _without_none(extra) or None,
        }
    )


def _result(call: ToolCall) -> dict[str, Any]:
    extra = {"latency_ms": call.latency_ms, "failed": call.has_failed or None}
    return _without_none(
        {
            "source_call_id": call.id,
            "content": call.result,
            "extra": _without_none(extra) or None,
        }
    )


def _metrics(answers: Iterable[ModelCall]) -> dict[str, Any] | None:
    reported = [one for one in answers if one.is_reported]
    if not reported:
        return None
    sums = {name: sum(getattr(one, name) for one in reported) for name in TOKEN_FIELDS}
    extra = {name: sums[name] for name in ("reasoning_tokens", "cache_write_tokens")}
    latencies_ms = [one.latency_ms for one in reported if one.latency_ms is not None]
    return {
        "prompt_tokens": sums["input_tokens"],
        "completion_tokens": sums["output_tokens"],
        "cached_tokens": sums["cached_tokens"],
        "extra": extra | ({"latency_ms": sum(latencies_ms)} if latencies_ms else {}),
    }


def _final_metrics(run: ExportedRun, steps: int) -> dict[str, Any]:
    tokens = run.tokens
    totals: dict[str, Any] = {"total_steps": steps}
    if run.usage is not None:
        totals["extra"] = run.usage.to_row()
    if tokens is None:
        return totals
    return {
        "total_prompt_tokens": tokens.input_tokens,
        "total_completion_tokens": tokens.output_tokens,
        "total_cached_tokens": tokens.cached_tokens,
        **({} if run.cost is None else {"total_cost_usd": run.cost}),
        **totals,
    }


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
