"""Random events, possible or not, from several threads: nothing escapes, nothing grows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult

from kp_langchain import KPCallbackHandler, ScoredTrace
from tests.agents import handler

SPACE = UUID(int=7)
RUNS = 12  # few, so that runs meet: as parents, as duplicates, as ends without starts


class GraphInterrupt(Exception):  # noqa: N818 - LangGraph's name
    __module__ = "langgraph.errors"


class GraphBubbleUp(Exception):  # noqa: N818 - LangGraph's name
    __module__ = "langgraph.errors"


class Loud:
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


run_ids = st.integers(0, RUNS - 1).map(lambda at: uuid5(SPACE, str(at)))
texts = st.sampled_from(["", "a", "\ud800", "x" * 10_000])
messages = st.one_of(
    st.builds(lambda text: AIMessage(text), st.sampled_from(["", "hi", "y" * 5000])),
    st.builds(
        lambda call_id: AIMessage(
            "t", tool_calls=[{"name": "t", "args": {}, "id": call_id, "type": "tool_call"}]
        ),
        st.sampled_from(["c1", "c2"]),
    ),
    st.builds(
        lambda call_id, status: ToolMessage("out", tool_call_id=call_id, status=status),
        st.sampled_from(["c1", "c2"]),
        st.sampled_from(["success", "error"]),
    ),
    st.just(HumanMessage("why?")),
)
values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    texts,
    st.floats(),
    st.binary(max_size=20),
    messages,
    st.lists(messages, max_size=3),
    st.dictionaries(st.sampled_from(["messages", "input"]), st.lists(messages), max_size=2),
    st.just(Loud()),
    st.just({"a": Loud()}),
    st.just({}),
)
errors = st.sampled_from(
    [ValueError("v"), GraphInterrupt(), GraphBubbleUp(), GeneratorExit(), SystemExit(), None]
)
metadata = st.sampled_from(
    [
        None,
        {},
        {"thread_id": "t"},
        {"thread_id": "t", "ls_integration": "langgraph"},
        {"langgraph_step": 1, "langgraph_node": "n", "thread_id": "t"},
        {"kp_domain": "finance"},
        {"kp_domain": 3, "thread_id": 4, "mcp_server": b"x"},
    ]
)

Event = Callable[[KPCallbackHandler], None]


@st.composite
def events(draw: st.DrawFn) -> Event:
    run_id = draw(run_ids)
    start = {
        "run_id": run_id,
        "parent_run_id": draw(st.none() | run_ids),
        "metadata": draw(metadata),
        "name": draw(st.sampled_from([None, "n", "ModelCallLimitMiddleware.before_model"])),
    }
    value, error = draw(values), draw(errors)
    call_id = draw(st.sampled_from([None, "c1", "c2"]))
    answer = draw(messages)
    result = LLMResult(
        generations=[[ChatGeneration(message=answer)]] if isinstance(answer, AIMessage) else []
    )
    name = draw(
        st.sampled_from(
            [
                "on_chain_start", "on_chain_end", "on_chain_error", "on_chat_model_start",
                "on_llm_start", "on_llm_end", "on_llm_error", "on_tool_start", "on_tool_end",
                "on_tool_error", "on_retriever_start", "on_retriever_end", "on_custom_event",
                "on_interrupt", "on_resume",
            ]
        )
    )  # fmt: skip

    def play(watching: KPCallbackHandler) -> None:
        callback = getattr(watching, name)
        match name:
            case "on_chain_start" | "on_retriever_start":
                callback(None, value, **start)
            case "on_chat_model_start":
                callback(None, [[answer]], **start)
            case "on_llm_start":
                callback(None, ["p"], **start)
            case "on_tool_start":
                callback({"name": "t"}, "x", inputs=value, tool_call_id=call_id, **start)
            case "on_llm_end":
                callback(result, run_id=run_id)
            case "on_chain_error" | "on_llm_error" | "on_tool_error":
                callback(error, run_id=run_id)
            case "on_custom_event":
                callback("kp.outcome", value, run_id=run_id)
            case "on_interrupt" | "on_resume":
                callback(type("Event", (), {"run_id": run_id})())
            case _:
                callback(value, run_id=run_id)

    return play


def check(watching: KPCallbackHandler, scored: list[ScoredTrace]) -> None:
    assert watching.flush(60)
    stats = watching.stats()
    assert stats["failed"] == stats["dropped"] == stats["queued"] == 0
    # Every run has exactly one fate.
    assert stats["runs"] == sum(
        stats[fate]
        for fate in ("scored", "cancelled", "abandoned", "handed_over", "empty", "open", "paused")
    )
    assert stats["scored"] == len(scored) == len({one.trace.id for one in scored})
    watching.close()
    # Nothing of the runs is left behind.
    recorder = watching._recorder
    assert not recorder._roots
    assert not recorder._open
    assert len(recorder._over) <= 1024


@given(st.lists(events(), max_size=60))
def test_any_sequence_of_events(sequence: list[Event]) -> None:
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append)
    for play in sequence:
        play(watching)
    check(watching, scored)


@given(st.lists(st.lists(events(), max_size=30), min_size=2, max_size=4))
def test_any_sequences_of_events_from_several_threads(sequences: list[list[Event]]) -> None:
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append)
    escaped: list[BaseException] = []
    together = threading.Barrier(len(sequences))

    def play_all(sequence: list[Event]) -> None:
        together.wait()
        try:
            for play in sequence:
                play(watching)
        except BaseException as error:
            escaped.append(error)

    threads = [threading.Thread(target=play_all, args=(each,)) for each in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not escaped
    check(watching, scored)


def test_memory_does_not_grow_with_the_number_of_runs() -> None:
    import gc
    import tracemalloc

    watching = handler()

    def play(times: int) -> None:
        for at in range(times):
            run_id, tool_id = uuid5(SPACE, f"r{at}"), uuid5(SPACE, f"t{at}")
            watching.on_chain_start(None, {"input": "q"}, run_id=run_id)
            watching.on_tool_start({"name": "t"}, "x", run_id=tool_id, parent_run_id=run_id)
            if at % 3:
                watching.on_tool_end("done", run_id=tool_id)
            if at % 2:
                watching.on_chain_error(GeneratorExit(), run_id=run_id)
            else:
                watching.on_chain_end({"output": "x"}, run_id=run_id)
        assert watching.flush(60)
        gc.collect()

    tracemalloc.start()  # before memories of a bounded size fill up
    play(2500)
    before = tracemalloc.get_traced_memory()[0]
    play(2000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 2000 * 100


@pytest.mark.filterwarnings("ignore:Direct attribute assignment:DeprecationWarning")
@pytest.mark.parametrize("threads", [2, 8])
def test_one_handler_for_many_threads_at_once(threads: int) -> None:
    from tests.agents import ASK, searching

    watching = handler()

    def work() -> None:
        for _ in range(5):
            searching().invoke(ASK, {"callbacks": [watching]})

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert watching.flush(60)
    assert watching.stats()["scored"] == watching.stats()["runs"] == threads * 5
