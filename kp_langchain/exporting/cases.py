"""Runs as cases of tests, and as feedback that prompts and judges are improved by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun

_SENTENCE_ENDS = (".", "!", "?", ":", ";", "…")
_MLFLOW_TRACE = "tr-"  # which MLflow puts before the ids of OpenTelemetry
CASES_HEAD = '{"name": "kp-langchain", "cases": [\n'
CASES_TAIL = "\n]}\n"
CASES_MODULE = '''\
"""Each case of cases.json as a test: set `run_agent`, and run pytest in this folder.

Tool plans are held against the spans that your agent makes, so have it make some: of a LangChain
agent, by OpenInference's or another instrumentation of LangChain, with a tracer provider of
OpenTelemetry or logfire.configure().
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic_evals import Dataset

CASES = Dataset[str, str, dict].from_file(Path(__file__).with_name("cases.json")).cases

run_agent = None  # your function here: it gets a task, and returns the agent's answer


def is_right(answer: str, expected: str) -> bool:
    """Return whether an answer is as good as the one that a verdict called right.

    Equal but for case, white space and a last full stop: replace it where answers are sentences.
    """
    one, other = (" ".join(str(text).casefold().split()).rstrip(".") for text in (answer, expected))
    return one == other


def name_of(case) -> str:
    return f"{' '.join(case.inputs.split())[:40]} {case.name.removeprefix('kp:trace:')[:8]}"


@pytest.mark.skipif(run_agent is None, reason="run_agent is not set")
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_case(case) -> None:
    report = Dataset(name="kp-langchain", cases=[case]).evaluate_sync(run_agent, progress=False)
    assert not report.failures
    (result,) = report.cases
    assert not result.evaluator_failures
    missing = [one.name for one in result.assertions.values() if not one.value]
    assert not missing
    if case.expected_output is not None:
        assert is_right(result.output, case.expected_output), (result.output, case.expected_output)
'''


def case(run: ExportedRun) -> dict[str, Any]:
    """Return a run as a case of pydantic-evals.

    The answer is what is expected only where a verdict called it right. Then each tool that was
    used without failing is asserted, too: that a span names it, by any of three conventions.
    """
    values: dict[str, Any] = {
        "name": run.trace.id,
        "inputs": run.trace.task.objective,
        "metadata": run.annotations(),
    }
    if run.judgement:
        values["expected_output"] = run.trace.outcome.result_summary
        calls = [call for turn in run.turns for call in turn.calls if not call.is_useless]
        names = dict.fromkeys(call.name for call in calls if call.name)
        values["evaluators"] = [_asserts_tool(name) for name in names]
    return values


def _asserts_tool(name: str) -> dict[str, Any]:
    attributes = ("gen_ai.tool.name", "tool.name")  # of OpenTelemetry, and of OpenInference
    spans: list[dict[str, Any]] = [{"has_attributes": {one: name}} for one in attributes]
    query = {"or_": [*spans, {"name_equals": f"execute_tool {name}"}]}
    return {"HasMatchingSpan": {"query": query, "evaluation_name": f"calls {name}"}}


# ------------------------------------------------------------------ feedback


def feedback(run: ExportedRun) -> dict[str, Any]:
    """Return a run as feedback.

    `Inputs`, `Generated Outputs` and `Feedback` are the fields of GEPA's records, with its `score`;
    `assessment` is MLflow's.
    """
    calls = [call for turn in run.turns for call in turn.calls]
    names = [call.name for call in calls]
    return {
        "Inputs": {"task": run.trace.task.objective},
        "Generated Outputs": {"answer": run.trace.outcome.result_summary, "tool_calls": names},
        "Feedback": _feedback_text(run),
        "score": _reward(run),
        "assessment": _assessment(run),
        "annotations": run.annotations(),
    }


def _reward(run: ExportedRun) -> float:
    """Return what a verdict says, or else the confidence in the result, 0 to 1."""
    verdict = run.verdict
    if verdict is not None and verdict.success is not None:
        return float(verdict.success)
    stated = None if verdict is None else verdict.confidence
    return run.run.confidence if stated is None else stated


def _feedback_text(run: ExportedRun) -> str:
    """Return in words whether the run was right, the note of the verdict, and what failed."""
    words = {True: "Right.", False: "Wrong.", None: "Nobody judged this run."}
    parts = [words[run.judgement]]
    if run.verdict is not None and run.verdict.note:
        note = run.verdict.note.rstrip()
        parts.append(note if note.endswith(_SENTENCE_ENDS) else f"{note}.")
    failed = [mark for mark in run.marks() if mark.get("failed")]
    if failed:
        tools = dict.fromkeys(mark["tool"] or "a model" for mark in failed)
        parts.append(f"Failed calls: {', '.join(tools)}.")
    if run.run.breakdown.flags:
        parts.append(f"Flags: {', '.join(run.run.breakdown.flags)}.")
    return " ".join(parts)


def _assessment(run: ExportedRun) -> dict[str, Any]:
    """Return the verdict as MLflow's assessment `success`; without one, what the run looks like.

    It is on the trace that MLflow makes of the run's spans.
    """
    verdict = run.verdict
    if verdict is None:
        stated = run.run.confidence_source or "default"
        source = {"source_type": "CODE", "source_id": stated}
        at, value = run.run.created_at, run.run.success
    else:
        kind = "LLM_JUDGE" if verdict.by_model else "HUMAN"
        source = {"source_type": kind, "source_id": verdict.source}
        at = verdict.at or run.run.created_at
        value = run.run.success if verdict.success is None else verdict.success
    time = at.isoformat().replace("+00:00", "Z")
    rationale = _feedback_text(run) if verdict is None else verdict.note
    return {
        "assessment_name": "success",
        "trace_id": f"{_MLFLOW_TRACE}{run.otlp_trace_id}",
        "source": source,
        "create_time": time,
        "last_update_time": time,
        "feedback": {"value": value},
        **({"rationale": rationale} if rationale else {}),
        "valid": True,
    }
