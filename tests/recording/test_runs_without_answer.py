"""What a run was given is no answer: its result is empty then, and it counts as a failure."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from kp_langchain import ScoredTrace
from tests.agents import ASK, QUESTION, ScriptedChatModel, handler, run, say

OLD: list[Any] = [("user", "old question"), ("ai", "old answer"), ("user", QUESTION)]


class Plain(TypedDict):
    messages: Annotated[list[Any], operator.add]


class Wider(MessagesState):
    route: str
    answer: str
    final_report: str


class Rag(TypedDict, total=False):
    question: str
    answer: str


def graph(update: Any, state: Any = MessagesState, **options: Any) -> Any:
    """A graph of one node that asks a model, and updates the state with something else."""

    def node(_state: Any) -> Any:
        ScriptedChatModel([say("It is about numbers.")]).invoke("classify")
        return update() if callable(update) else update

    builder = StateGraph(state)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(**options)


def result(scored: ScoredTrace) -> tuple[str, bool]:
    return scored.trace.outcome.result_summary, scored.trace.metadata.success


NO_ANSWER = ("", False)
GIVEN: dict[str, tuple[Any, Any]] = {
    "a question": (MessagesState, ASK),
    "a text": (MessagesState, {"messages": QUESTION}),
    "a history": (MessagesState, {"messages": OLD}),
    "a history of objects": (
        MessagesState,
        {"messages": [HumanMessage("old"), AIMessage("old answer"), HumanMessage(QUESTION)]},
    ),
    "a history that ends in an answer": (MessagesState, {"messages": OLD[:2]}),
    "pairs that stay pairs": (Plain, {"messages": OLD}),
    "a state without messages": (Rag, {"question": QUESTION}),
}


@pytest.mark.parametrize("given", GIVEN)
def test_a_graph_that_adds_no_answer_has_none(given: str) -> None:
    state, inputs = GIVEN[given]
    assert result(run(graph({}, state), inputs)) == NO_ANSWER


@pytest.mark.parametrize("mode", ["updates", "values", "messages"])
def test_so_it_is_for_a_stream(mode: str) -> None:
    watching = handler()
    list(graph({}).stream(ASK, {"callbacks": [watching]}, stream_mode=mode))
    scored = watching.last(60)
    assert scored is not None
    assert result(scored) == NO_ANSWER


def test_so_it_is_where_the_graph_is_wrapped() -> None:
    inner = graph({})
    wrapped = RunnableLambda(lambda words: inner.invoke({"messages": [("user", words)]}))
    assert result(run(wrapped, QUESTION)) == NO_ANSWER
    wrapped = RunnableLambda(lambda given: inner.invoke({"messages": [("user", given["q"])]}))
    assert result(run(wrapped, {"q": QUESTION})) == NO_ANSWER


ANSWERS: dict[str, Any] = {
    "a pair": ("ai", "42"),
    "OpenAI's form": {"role": "assistant", "content": "42"},
    "a message": AIMessage("42"),
    "an agent in the user's role": HumanMessage("42", name="researcher"),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
@pytest.mark.parametrize("state", [MessagesState, Plain])
def test_a_node_that_answers_without_a_model_has_answered(answer: Any, state: Any) -> None:
    inputs = {"messages": OLD}
    assert result(run(graph({"messages": [answer]}, state), inputs)) == ("42", True)


def test_the_answer_counts_where_a_simulated_user_has_the_last_word() -> None:
    update = {"messages": [AIMessage("42"), HumanMessage("Thank you.")]}
    assert result(run(graph(update))) == ("42", True)


def test_other_keys_of_a_state() -> None:
    assert result(run(graph({"answer": "42"}, Rag), {"question": QUESTION})) == ("42", True)
    assert result(run(graph({"answer": "42"}, Wider))) == ("42", True)
    assert result(run(graph({"route": "poem"}, Wider))) == NO_ANSWER


def test_a_new_text_is_the_answer_under_any_key_of_a_state() -> None:
    report = "Most numbers are large. Sources: [1]"
    assert result(run(graph({"final_report": report}, Wider))) == (report, True)
    assert result(run(graph({"final_report": report, "route": "end"}, Wider))) == (report, True)
    long_word = "https://reports.example.org/2026/numbers"
    assert result(run(graph({"final_report": long_word}, Wider))) == (long_word, True)
    given = {**ASK, "final_report": report}
    assert result(run(graph({"final_report": report}, Wider), given)) == NO_ANSWER


def test_a_caller_may_extend_the_list_that_it_gave() -> None:
    watching = handler()
    history: list[Any] = [("user", QUESTION)]
    updates = graph({"messages": [("ai", "42")]}).stream(
        {"messages": history}, {"callbacks": [watching]}, stream_mode="updates"
    )
    for update in updates:
        history.extend(update["node"]["messages"])
    scored = watching.last(60)
    assert scored is not None
    assert result(scored) == ("42", True)


def test_a_chain_that_returns_its_own_inputs_with_an_answer() -> None:
    def answer(inputs: dict[str, str]) -> dict[str, str]:
        inputs["answer"] = str(ScriptedChatModel([say("42")]).invoke("q").text)
        return inputs

    assert result(run(RunnableLambda(answer), {"question": QUESTION})) == ("42", True)


def test_a_list_of_messages_answers_with_the_last_of_an_agent() -> None:
    def converse(messages: list[Any], *more: Any) -> Any:
        answer = ScriptedChatModel([say("42")]).invoke(messages)
        return add_messages(messages, [answer, *more])

    given = [HumanMessage(QUESTION)]
    assert result(run(RunnableLambda(converse), given)) == ("42", True)


def _asks_first() -> Any:
    interrupt("may I?")
    return {}


def test_an_earlier_turn_of_the_thread_is_no_answer() -> None:
    watching = handler()
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": "turns"}}
    one = graph({}, checkpointer=InMemorySaver())
    one.invoke({"messages": OLD[:2]}, config)
    one.invoke(ASK, config)
    scored = watching.last(60)
    assert scored is not None
    assert result(scored) == NO_ANSWER


def test_a_resumed_run_that_adds_nothing_has_none() -> None:
    watching = handler()
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": "resumed"}}
    one = graph(_asks_first, checkpointer=InMemorySaver())
    one.invoke(ASK, config)
    one.invoke(Command(resume="yes"), config)
    scored = watching.last(60)
    assert scored is not None
    assert result(scored) == NO_ANSWER
