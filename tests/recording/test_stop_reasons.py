"""An answer that was refused, withheld or cut off is told from one that was finished."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.language_models.llms import LLM
from langchain_core.messages import AIMessage
from langchain_core.outputs import Generation, LLMResult
from langchain_core.runnables import RunnableLambda

from kp_langchain import trace_from_messages
from kp_langchain.recording.stop_reasons import ended_early
from tests.agents import ScriptedChatModel, agent, call, run, say


@pytest.mark.parametrize(
    "metadata",
    [
        {"finish_reason": "length"},
        {"finish_reason": "content_filter"},
        {"finish_reason": "content-filter"},
        {"finish_reason": "model_length"},
        {"finish_reason": "FinishReason.MAX_TOKENS"},
        {"finish_reason": "SAFETY"},
        {"finish_reason": "PROHIBITED_CONTENT"},
        {"finish_reason": "MALFORMED_FUNCTION_CALL"},
        {"finish_reason": "STOPMAX_TOKENS"},
        {"finish_reason": "token_limit"},
        {"finish_reason": "TIMEOUT"},
        {"incomplete_details": {"reason": "max_output_tokens"}},
        {"stop_reason": "max_tokens"},
        {"stop_reason": "refusal"},
        {"stop_reason": "model_context_window_exceeded"},
        {"stop_reason": "pause_turn"},
        {"stopReason": "guardrail_intervened"},
        {"done_reason": "length"},
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
        {"status": "failed"},
        {"prompt_feedback": {"block_reason": "SAFETY"}},
    ],
)
def test_stopped(metadata: Any) -> None:
    assert ended_early(metadata)
    scored = run(agent(AIMessage("It is", response_metadata=metadata)))
    assert scored.trace.metadata.success is False
    assert scored.trace.outcome.result_summary == "It is"
    trace = trace_from_messages([("user", "q"), AIMessage("It is", response_metadata=metadata)])
    assert trace.metadata.success is False


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        None,
        "length",
        {"finish_reason": "stop"},
        {"finish_reason": "STOP"},
        {"finish_reason": "tool_calls"},
        {"finish_reason": "stopstop"},
        {"finish_reason": None},
        {"finish_reason": ["length"]},
        {"finish_reason": "x" * 5000 + "length"},
        {"stop_reason": "end_turn"},
        {"stop_reason": "stop_sequence"},
        {"stop_reason": "tool_use"},
        {"status": "completed"},
        {"status": {"a": 1}},
        {"prompt_feedback": {"block_reason": None}},
        {"prompt_feedback": {"block_reason": 0, "safety_ratings": []}},
        {"prompt_feedback": {"block_reason": "BLOCKED_REASON_UNSPECIFIED"}},
    ],
)
def test_finished(metadata: Any) -> None:
    assert not ended_early(metadata)


def test_only_the_last_answer_counts() -> None:
    cut = AIMessage(
        "I search",
        tool_calls=[call("search", q="a")],
        response_metadata={"finish_reason": "length"},
    )
    assert run(agent(cut, say("42"))).trace.metadata.success is True


class Completing(LLM):
    """A model without chat, which tells beside its text why it stopped."""

    reason: str

    @property
    def _llm_type(self) -> str:
        return "completing"

    def _call(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def _generate(self, prompts: list[str], *_: Any, **__: Any) -> LLMResult:
        info = {"finish_reason": self.reason}
        return LLMResult(generations=[[Generation(text="It is", generation_info=info)]])


@pytest.mark.parametrize(("reason", "success"), [("length", False), ("stop", True)])
def test_a_model_without_chat(reason: str, success: bool) -> None:
    assert run(Completing(reason=reason), "q").trace.metadata.success is success


@pytest.mark.parametrize("content", [None, ""])
def test_a_refusal_in_openais_own_dictionaries(content: Any) -> None:
    refused = {"role": "assistant", "content": content, "refusal": "I can't."}
    trace = trace_from_messages([{"role": "user", "content": "q"}, refused])
    assert trace.metadata.success is False
    assert trace.outcome.result_summary == "I can't."
    assert trace.steps[0].content == "I can't."


def test_a_report_comes_before_it() -> None:
    cut = AIMessage("It is", response_metadata={"finish_reason": "length"})
    scored = run(GenericFakeChatModel(messages=iter([cut])), "q", outcome=lambda _: True)
    assert scored.trace.metadata.success is True


@pytest.mark.parametrize(
    ("reason", "title_reason", "success"),
    [("refusal", "end_turn", False), ("end_turn", "max_tokens", True)],
)
def test_the_answer_decides_and_not_a_title_that_is_made_after_it(
    reason: str, title_reason: str, success: bool
) -> None:
    def answered(text: str, why: str) -> AIMessage:
        return AIMessage(text, response_metadata={"stop_reason": why})

    model = ScriptedChatModel([answered("It is 42.", reason), answered("On numb", title_reason)])

    def work(question: str) -> str:
        answer = model.invoke(question)
        model.invoke("a title, please")
        return str(answer.content)

    assert run(RunnableLambda(work), "q").trace.metadata.success is success
