"""What calls that are not the agent's own leave out of score, answer and examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import create_retriever_tool

from kp_langchain import KPRetriever, TraceStore
from tests.agents import QUESTION, ScriptedChatModel, agent, call, handler, run, say, search, shape
from tests.recall.words import EURO, Words, keep, passing_handler

MARKED: Any = {"metadata": {"lc_source": "summarization"}}


class Shelf(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(f"result for {query}")]


def using(made: Any) -> Any:
    asked = call(made.name, **{next(iter(made.args)): "a"})
    return agent(say("I search.", asked), say("42"), tools=(made,))


def test_a_retriever_as_a_tool_scores_as_any_other_tool() -> None:
    shelf = run(using(create_retriever_tool(Shelf(), "search", "Search.")))
    plain = run(using(search))
    assert shape(shelf.trace) == shape(plain.trace)
    assert shelf.breakdown.rules == plain.breakdown.rules
    assert "single_tool" in [rule.name for rule in shelf.breakdown.rules]
    assert shelf.breakdown.total == plain.breakdown.total


def test_kept_traces_that_a_tool_finds_are_shown(tmp_path: Path) -> None:
    with TraceStore(tmp_path / "kp.db") as store:
        kept = keep(store)
        retriever = KPRetriever("finance", store=store, embedder=Words(), floor=0.5)
        earlier = create_retriever_tool(retriever, "earlier_runs", "Earlier runs.")
        watching = passing_handler(store)
        agent(say("", call("earlier_runs", query=EURO)), say("42"), tools=(earlier,)).invoke(
            {"messages": [("user", EURO)]}, {"callbacks": [watching]}
        )
        scored = watching.last(120)
        assert scored is not None
        assert [one.trace_id for one in scored.shown] == [kept]
        assert shape(scored.trace) == ["call earlier_runs", "saw earlier_runs", "thought"]
        assert "GBPUSD" not in scored.trace.model_dump_json()


@pytest.mark.parametrize(
    ("mark", "value"), [("lc_source", "tool_selection"), ("lc_internal_call", "x")]
)
def test_a_marked_call_gives_neither_objective_nor_probabilities(mark: str, value: str) -> None:
    sure = {"logprobs": {"content": [{"logprob": 0.0}]}}
    unsure = {"logprobs": {"content": [{"logprob": -3.0}]}}

    def work(_inputs: object) -> str:
        marked: Any = {"metadata": {mark: value}}
        ScriptedChatModel([say("a title")]).invoke("Make a title.", marked)
        model = ScriptedChatModel([AIMessage("42", response_metadata=sure)])
        answer = model.invoke(QUESTION).text
        ScriptedChatModel([AIMessage("tags", response_metadata=unsure)]).invoke("Tag it.", marked)
        return str(answer)

    trace = run(RunnableLambda(work), 1).trace
    assert trace.task.objective == QUESTION
    assert trace.outcome.confidence == 1
    assert shape(trace) == ["thought"]


def test_an_answer_that_was_cut_off_stays_so_whatever_is_summarised_after_it() -> None:
    def work(_inputs: object) -> str:
        cut = AIMessage("It is", response_metadata={"finish_reason": "length"})
        answer = ScriptedChatModel([cut]).invoke(QUESTION).text
        ScriptedChatModel([say("SUMMARY")]).invoke("Summarise.", MARKED)
        return str(answer)

    assert run(RunnableLambda(work), 1).trace.metadata.success is False


def test_a_run_of_marked_calls_alone_is_empty() -> None:
    def work(_inputs: object) -> str:
        return str(ScriptedChatModel([say("SUMMARY")]).invoke("Summarise.", MARKED).text)

    watching = handler()
    RunnableLambda(work).invoke(1, {"callbacks": [watching]})
    assert watching.flush(120)
    assert watching.stats()["empty"] == 1


def test_a_marked_call_alone_is_a_run_of_its_own() -> None:
    alone = ScriptedChatModel([say("SUMMARY")]).with_config(MARKED)
    assert shape(run(alone, "q").trace) == ["thought"]


class TestMcpServer:
    @pytest.mark.parametrize(
        ("metadata", "name"),
        [
            ({"mcp_server": "github"}, "github"),
            ({"mcp": {"server": {"name": "github", "version": "2.0"}}}, "github"),
            ({"mcp": {"server": "github"}}, "github"),
            ({"mcp_server": {"name": "github"}}, "github"),
            ({"mcp_server": "ours", "mcp": {"server": {"name": "github"}}}, "ours"),
            ({"mcp_server": "", "mcp": {"server": {"name": "github"}}}, "github"),
            ({"mcp": {"server": {"name": 7}}}, None),
            ({"mcp": {"server": {}}}, None),
            ({"mcp": {"server": ["github"]}}, None),
            ({"mcp": {"tool": {"_meta": {"name": "github"}}}}, None),
            ({"mcp": "github"}, None),
            ({"mcp": None, "mcp_server": None}, None),
            ({}, None),
        ],
    )
    def test_it_comes_from_the_tools_metadata(self, metadata: Any, name: str | None) -> None:
        trace = run(using(search.model_copy(update={"metadata": metadata}))).trace
        servers = [step.tool.mcp_server for step in trace.steps if step.tool is not None]
        assert servers == [name, name]

    def test_a_long_name_is_cut(self) -> None:
        metadata = {"mcp": {"server": {"name": "n" * 100_000}}}
        trace = run(using(search.model_copy(update={"metadata": metadata}))).trace
        tool = trace.steps[1].tool
        assert tool is not None
        assert tool.mcp_server is not None
        assert len(tool.mcp_server) <= 200

    def test_metadata_that_cannot_be_read_cost_the_name_only(self) -> None:
        class Hostile(dict[str, Any]):
            def get(self, *_: Any) -> Any:
                raise RuntimeError("no")

        metadata = {"mcp": Hostile()}
        trace = run(using(search.model_copy(update={"metadata": metadata}))).trace
        assert shape(trace) == ["thought", "call search", "saw search", "thought"]
