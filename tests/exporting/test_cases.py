"""Cases, read by pydantic-evals and run by pytest; feedback, read by GEPA and MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Assessment
from mlflow.tracing.utils import generate_mlflow_trace_id_from_otel_trace_id
from pydantic_evals import Dataset

from kp_langchain import TraceStore
from tests.exporting.conftest import CASES, export, exported

JUDGED = "an error that was recovered"


@pytest.fixture
def judged(every_case: TraceStore) -> TraceStore:
    """A store with a run that is right, one that a model calls wrong, and others."""
    runs = every_case.runs(newest_first=False)
    by_name = dict(zip(CASES, runs, strict=True))
    every_case.report_outcome(by_name[JUDGED].trace_id, success=True, note="right", source="desk")
    every_case.report_outcome(
        by_name["a call"].trace_id, success=False, note="too short", source="judge", by_model=True
    )
    return every_case


def test_pydantic_evals_reads_the_cases(judged: TraceStore) -> None:
    export("cases", "-o", "cases.json")
    dataset = Dataset[str, str, Any].from_file("cases.json")
    assert len(dataset.cases) == len(CASES)
    expected = [one for one in dataset.cases if one.expected_output is not None]
    (case,) = expected
    assert case.expected_output == "Order 7 is here."
    assert case.metadata["verdict"]["note"] == "right"
    (tool,) = case.evaluators
    assert tool.query == {
        "or_": [
            {"has_attributes": {"gen_ai.tool.name": "find"}},
            {"has_attributes": {"tool.name": "find"}},
            {"name_equals": "execute_tool find"},
        ]
    }
    labels = [one.metadata["verdict"] for one in dataset.cases]
    assert sum(one is not None and one["success"] is False for one in labels) == 1


AGENT = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())


def run_agent(task: str) -> str:
    with trace.get_tracer("agent").start_as_current_span("a tool") as span:
        span.set_attribute("gen_ai.tool.name", "find")
    return "order 7  is here"
"""
LANGCHAIN = """
from langchain_core.tools import tool
from openinference.instrumentation.langchain import LangChainInstrumentor
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from tests.agents import agent, call, say

trace.set_tracer_provider(TracerProvider())
LangChainInstrumentor().instrument()


@tool
def find(id: str) -> str:
    \"\"\"Find.\"\"\"
    return "order"


def run_agent(task: str) -> str:
    own = agent(say("I look.", call("find", id="7")), say("Order 7 is here."), tools=(find,))
    return own.invoke({"messages": [("user", task)]})["messages"][-1].content
"""
PYTEST = "import pytest; print(pytest.main(['-q', '-p', 'no:cacheprovider', {!r}]))"


@pytest.mark.parametrize(
    ("own", "outcome"),
    [
        ("run_agent = None", f"{len(CASES)} skipped"), (AGENT, f"{len(CASES)} passed"),
        (LANGCHAIN, f"{len(CASES)} passed"),
        (AGENT.replace("a tool", "execute_tool find").replace("gen_ai.tool", "x"),
         f"{len(CASES)} passed"),
        (AGENT.replace("find", "delete"), f"1 failed, {len(CASES) - 1} passed"),
        (AGENT.replace("order 7", "order 8"), f"1 failed, {len(CASES) - 1} passed"),
    ],
    ids=[
        "as it is", "the tool is called", "an agent of LangChain", "the span is named",
        "another tool is called", "another answer",
    ],
)  # fmt: skip
def test_pytest_runs_the_module_and_a_tool_plan_holds_where_a_span_names_the_tool(
    judged: TraceStore, run_python: Any, own: str, outcome: str
) -> None:
    export("cases", "-o", "cases")
    module = Path("cases", "test_cases.py").resolve()
    module.write_text(module.read_text().replace("run_agent = None", own))
    done = run_python(PYTEST.format(str(module)))
    assert outcome in done.stdout
    if "failed" in outcome:
        assert "test_case[task number 4 of the desk 00000004]" in done.stdout


def test_feedback_is_what_gepa_reflects_on(judged: TraceStore) -> None:
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    lines = exported("feedback")
    fields = ("Inputs", "Generated Outputs", "Feedback")
    records = [{name: line[name] for name in fields} for line in lines]
    prompt = InstructionProposalSignature.prompt_renderer(
        {
            "current_instruction_doc": "Answer.",
            "dataset_with_feedback": records,
            "prompt_template": InstructionProposalSignature.default_prompt_template,
        }
    )
    assert "too short" in str(prompt)
    scores = {line["assessment"]["source"]["source_id"]: line["score"] for line in lines}
    assert scores == {"desk": 1.0, "judge": 0.0, "default": pytest.approx(0.8)}


def test_feedback_is_an_assessment_of_mlflow(judged: TraceStore) -> None:
    read = [Assessment.from_dictionary(line["assessment"]) for line in exported("feedback")]
    of_source = {one.source.source_id: one for one in read}
    assert of_source["desk"].source.source_type == "HUMAN"
    assert (of_source["desk"].value, of_source["desk"].rationale) == (True, "right")
    assert of_source["judge"].source.source_type == "LLM_JUDGE"
    assert (of_source["judge"].value, of_source["judge"].rationale) == (False, "too short")
    assert of_source["default"].source.source_type == "CODE"


def test_a_verdict_without_a_note_has_no_rationale_and_sentences_end(
    every_case: TraceStore,
) -> None:
    runs = every_case.runs(newest_first=False)
    by_name = dict(zip(CASES, runs, strict=True))
    every_case.report_outcome(by_name["a call"].trace_id, success=True, source="desk")
    every_case.report_outcome(
        by_name[JUDGED].trace_id, success=False, note="checked by hand", source="clerk"
    )
    by_source = {line["assessment"]["source"]["source_id"]: line for line in exported("feedback")}
    assert "rationale" not in by_source["desk"]["assessment"]
    assert Assessment.from_dictionary(by_source["desk"]["assessment"]).rationale is None
    assert by_source["clerk"]["Feedback"] == "Wrong. checked by hand. Failed calls: find."


def test_an_assessment_is_on_the_trace_that_mlflow_makes_of_the_spans(judged: TraceStore) -> None:
    spans = [line["resourceSpans"][0]["scopeSpans"][0]["spans"][0] for line in exported("otlp")]
    ids = {generate_mlflow_trace_id_from_otel_trace_id(int(one["traceId"], 16)) for one in spans}
    assert {line["assessment"]["trace_id"] for line in exported("feedback")} == ids
