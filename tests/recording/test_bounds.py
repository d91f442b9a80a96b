"""However large, endless or hostile its values: a run is stored, its trace valid and bounded."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
import threading
import tracemalloc
from collections import UserString, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4, uuid5

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.errors import GraphInterrupt

from kp_langchain import FinishedRun, KPCallbackHandler, ReasoningTrace, ScoredTrace, TraceStore
from tests.agents import (
    ASK,
    ScriptedChatModel,
    agent,
    call,
    handler,
    run,
    say,
    searching,
    shape,
)
from tests.recording.playing import Events, last, scored_by, stored

HUGE = 10**5000  # Python refuses to write it in decimals
EVENTS = (
    "on_chain_start", "on_chain_end", "on_chain_error", "on_chat_model_start", "on_llm_start",
    "on_llm_end", "on_llm_error", "on_tool_start", "on_tool_end", "on_tool_error",
    "on_retriever_start", "on_retriever_end", "on_custom_event", "on_interrupt", "on_resume",
)  # fmt: skip


class Endless(Mapping[str, Any]):
    """A mapping whose items never end; it counts those it was asked for."""

    def __init__(self, keys: Iterable[Any] | None = None, value: Any = None) -> None:
        self.keys_of = itertools.count() if keys is None else itertools.cycle(keys)
        self.value = value
        self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        for key in self.keys_of:
            self.asked += 1
            yield key

    def __getitem__(self, key: object) -> Any:
        return self.value

    def __len__(self) -> int:
        return 3


class Endlessly(Sequence[Any]):
    def __getitem__(self, at: Any) -> Any:
        return self if isinstance(at, slice) else "item"

    def __len__(self) -> int:
        return 2**62


class Loud:
    """Raises wherever it is looked at."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error(name)

    def __str__(self) -> str:
        raise self.error("str")

    __repr__ = __str__


class Louder(Loud):
    """Even where its class is looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise LookupError


class LoudMapping(dict[str, Any]):
    def items(self) -> Any:
        yield "a", 1
        raise LookupError

    def values(self) -> Any:
        raise LookupError

    def get(self, *_: Any) -> Any:
        raise LookupError


class Word(str):
    """A text that lies about itself."""

    def __str__(self) -> str:
        raise LookupError

    def __len__(self) -> int:
        return 0

    def strip(self, *_: Any) -> Any:
        return 7


@dataclass(slots=True)
class Slotted:
    rows: Any = None


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = {"in": value} if level % 2 else [value]
    return value


def input_of(value: Any) -> Any:
    """Return what is kept of a value that a tool is given."""
    events = Events()
    events.tool({"a": value})
    kept = events.end().trace.steps[0].input
    assert kept is not None
    return kept["a"]


def size_of(trace: ReasoningTrace) -> int:
    """Characters of the texts of all steps."""
    return sum(
        len(step.content or "") + (0 if step.input is None else len(json.dumps(step.input)))
        for step in trace.steps
    )


# ------------------------------------------------------------------ any value at all

leaves = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=20), st.binary(max_size=9),
    st.integers(0, 4).map(lambda at: (0, 2**53 + 1, HUGE, -HUGE, 1e308)[at]),
    st.sampled_from(["x" * 5000, "\ud800\x00", Word("word"), UserString("u")]),
    st.builds(Loud, st.sampled_from([ValueError, LookupError, RecursionError])),
    st.builds(Endless, st.sampled_from([None, ["same"], [None]]), st.sampled_from([None, "v", {}])),
    st.builds(Endlessly), st.builds(LoudMapping), st.builds(deep, st.sampled_from([9, 3000])),
    st.builds(Slotted, st.just([None] * 3000)),
    st.sampled_from([ToolMessage("seen", tool_call_id="c"), AIMessage([{"type": "text"}])]),
)  # fmt: skip
keys = st.one_of(
    st.text(max_size=5), st.integers(), st.none(), st.binary(max_size=3),
    st.integers(0, 1).map(lambda at: (HUGE, ("a",) * 500)[at]),
    st.sampled_from(["k" * 5000, "messages", "input", "confidence", "structured_response"]),
)  # fmt: skip
values = st.recursive(
    st.one_of(leaves, leaves.map(lambda one: [one] * 300)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.dictionaries(keys, inner, max_size=5),
        st.builds(Slotted, inner),
        inner.map(lambda one: ValueError(one)),
    ),
    max_leaves=8,
)
about_runs = st.dictionaries(
    st.sampled_from(
        ["kp_task", "kp_domain", "thread_id", "mcp_server", "langgraph_checkpoint_ns", "other"]
    ),
    values,
    max_size=4,
)


def play_all(watching: KPCallbackHandler, value: Any, output: Any, about: Any, calls: int) -> None:
    """Put a value wherever LangChain may hand one over."""
    events = Events(watching, value, metadata=about)
    for at in range(calls):
        ended = ValueError(output) if output is value else output
        events.tool({"a": value}, ended, tool_call_id=str(at), metadata=about)
    failed = {"run_id": uuid4(), "parent_run_id": events.root, "metadata": about}
    watching.on_chat_model_start(None, [[AIMessage("q")]], **failed)
    watching.on_llm_error(KeyError(value), run_id=failed["run_id"])
    watching.on_custom_event("kp.outcome", value, run_id=events.root)
    watching.on_chain_end(output, run_id=events.root)


@settings(suppress_health_check=list(HealthCheck))
@given(
    value=values, output=values, about=about_runs, text_chars=st.sampled_from([1, 30, 500]),
    run_chars=st.sampled_from([1, 40, 2000]), calls=st.integers(1, 4),
)  # fmt: skip
@example(value=HUGE, output=HUGE, about={"kp_task": HUGE}, text_chars=1, run_chars=1, calls=4)
@example(
    value={HUGE: HUGE}, output={}, about={"thread_id": HUGE}, text_chars=1, run_chars=1, calls=1
)
@example(value="", output="", about={"kp_task": Word("word")}, text_chars=1, run_chars=1, calls=1)
def test_any_value_leaves_a_stored_run_and_a_valid_bounded_trace(
    value: Any, output: Any, about: Any, text_chars: int, run_chars: int, calls: int
) -> None:
    with pytest.MonkeyPatch.context() as patch, TraceStore("runs.db") as store:
        patch.setenv("KP_MAX_TEXT_CHARS", str(text_chars))
        patch.setenv("KP_MAX_RUN_CHARS", str(run_chars))
        watching = handler(store=store, outcome=lambda finished: None)
        play_all(watching, value, output, about, calls)
        scored = scored_by(watching)
        stats = watching.stats()
        assert stats["runs"] == stats["scored"] == 1
        assert stats["failed"] == stats["callback_errors"] == 0
        assert stored(store, scored).trace == scored.trace
    text = scored.trace.model_dump_json()
    assert ReasoningTrace.model_validate_json(text).model_dump_json() == text
    json.loads(text, parse_constant=pytest.fail)
    assert len(scored.trace.steps) == 2 * calls + 1
    assert size_of(scored.trace) <= run_chars + 2 * text_chars + 160 * len(scored.trace.steps)


@given(
    st.recursive(st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_nothing_that_a_run_hands_over_is_changed(value: Any) -> None:
    before = copy.deepcopy(value)
    play_all(handler(), value, [value], {}, 1)
    assert value == before


def test_a_structure_is_recorded_as_it_was_when_the_tool_returned_it() -> None:
    rows: dict[str, Any] = {"rows": [{"id": 1, "open": True}], "total": 2.5}
    events = Events()
    events.tool({}, rows)
    rows["rows"].append("added by the agent")
    scored = events.end(rows)
    assert scored.trace.steps[-1].content == '{"rows": [{"id": 1, "open": true}], "total": 2.5}'
    assert scored.trace.outcome.result_summary.startswith('{"rows": [{"id": 1, "open": true}, "add')


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (2**53, 2**53), (2**53 + 1, "9007199254740993"), (-(10**30), "-1" + "0" * 30),
        ([HUGE], ["<int>"]), (float("inf"), "inf"), (1e308, 1e308),
        (Word("word"), "word"), ({1: "a", "b": 2}, {"1": "a", "b": 2}),
        ({None: 1, (1, 2): 2}, {"None": 1, "(1, 2)": 2}),
        (deque([1]), [1]), (bytearray(b"abc"), "<3 bytes>"),
        (LoudMapping(), "<LoudMapping>"), ([Loud(), 1], ["<Loud>", 1]),
        (Slotted([1]), {"rows": [1]}),
    ],
)  # fmt: skip
def test_values_as_they_are_kept(value: Any, kept: Any) -> None:
    assert input_of(value) == kept


def nested_objects() -> Any:
    value: Any = "x"
    for _ in range(12):
        value = Slotted([Slotted([value] * 300)] * 300)
    return value


@pytest.mark.parametrize(
    "value",
    [
        [[[None] * 200] * 200] * 200, [[[True] * 200] * 200] * 200, [{}] * 10_000, [""] * 1000,
        {str(at): {"k" * 190 + str(one): None for one in range(200)} for at in range(200)},
        dict.fromkeys(range(1_000_000), "x"), nested_objects(),
    ],
    ids=["None", "True", "empty mappings", "empty texts", "keys", "a million keys", "objects"],
)  # fmt: skip
def test_values_of_any_size_are_cut(value: Any) -> None:
    assert len(json.dumps(input_of(value))) < 20_000


@pytest.mark.parametrize("keys_", [None, ["same"], [None]], ids=["new", "one", "None"])
@pytest.mark.parametrize("value", [None, "v", []], ids=["None", "text", "list"])
def test_an_endless_mapping_is_read_to_a_bound_wherever_it_stands(keys_: Any, value: Any) -> None:
    endless = Endless(keys_, value)
    watching = handler(outcome=lambda finished: None)
    play_all(watching, endless, Endless(keys_, value), {"mcp_server": endless}, 3)
    scored_by(watching)
    assert endless.asked < 5000


@pytest.mark.parametrize("made", [Endless, LoudMapping, lambda: Loud(LookupError)])
def test_a_report_that_cannot_be_read_is_refused(made: Callable[[], Any]) -> None:
    def work(_: Any) -> Any:
        dispatch_custom_event("kp.outcome", made())
        return searching().invoke(ASK)

    watching = handler()
    last(watching, RunnableLambda(work), "q")
    assert watching.stats()["outcome_errors"] == watching.stats()["scored"] == 1


def test_names_and_tasks_of_any_kind_cost_nothing_but_themselves() -> None:
    def task(value: object) -> str | None:
        return last(handler(), metadata={"kp_task": value}).task

    # Python refuses to write it in decimals; then the objective is the task.
    assert task(HUGE) == task(None) is not None
    assert task(7) == task("7")
    assert {task(value) for value in ("", " \n", True, False)} == {task(None)}
    assert task(0) == task("0") != task(None)
    assert input_of({"a": Louder(), "b": 1}) == {"a": "<Louder>", "b": 1}
    named_7 = RunnableLambda(lambda _: searching().invoke(ASK))
    assert len(last(handler(), named_7, "q", run_name=7).trace.steps) == 4
    events = Events(name="n" * 5_000_000)
    for _ in range(50):
        events.tool(name="t" * 5_000_000)
    assert len(events.end().trace.model_dump_json()) < 60_000


def test_lone_surrogates_and_nul_are_replaced() -> None:
    with TraceStore("t.db") as store:
        inputs = {"messages": [("user", "why \udfff\x00?")]}
        scored = last(handler(store=store), agent(say("bad \ud800 text\x00")), inputs)
        assert scored.trace.steps[0].content == "bad \ufffd text\ufffd"
        assert stored(store, scored).objective == "why \ufffd\ufffd?"


def test_arguments_that_make_no_sense_are_counted() -> None:
    watching = handler()
    for name in EVENTS:
        getattr(watching, name)()
        getattr(watching, name)(None, None, None, run_id=[], parent_run_id=object())
    assert watching.stats()["callback_errors"] >= len(EVENTS)
    assert watching.stats()["open"] == 0


# ------------------------------------------------------------------ long texts, long runs

MARK = re.compile(r"\.\.\. \[(\d+) characters left out\] \.\.\.")


@given(
    st.text("ab \u0431", min_size=1).map(lambda text: text * 40),
    st.integers(60, 400),
    st.integers(1, 40),
)
def test_of_a_long_text_both_ends_are_kept_and_the_rest_is_counted(
    text: str, limit: int, blocks: int
) -> None:
    content: list[Any] = [{"type": "text", "text": text} for _ in range(blocks)]
    whole = "\n".join([text] * blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KP_MAX_TEXT_CHARS", str(limit))
        events = Events()
        events.tool(output=ToolMessage(content, tool_call_id="c"))
        cut = events.end().trace.steps[1].content or ""
    if len(whole) <= limit:
        assert cut == whole
        return
    (mark,) = MARK.finditer(cut)
    assert len(cut) <= limit
    assert whole.startswith(cut[: mark.start()])
    assert whole.endswith(cut[mark.end() :])
    assert int(mark[1]) == len(whole) - len(cut) + len(mark[0])


def test_the_objective_keeps_a_question_behind_a_long_prompt() -> None:
    prompt = "You are an expert in using functions. " * 400
    inputs = {"messages": [("user", f"{prompt}Question: how old is S1238552?")]}
    objective = run(searching(), inputs).trace.task.objective
    assert objective.startswith(prompt[:1900])
    assert objective.endswith("Question: how old is S1238552?")


def test_a_long_text_is_recorded_in_no_more_memory_than_its_bound_needs() -> None:
    text = "ab \u0431" * 5_000_000
    events = Events()
    events.tool()
    tracemalloc.start()
    events.tool(output=text)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 300_000


def test_a_run_beyond_its_bound_keeps_its_steps_without_their_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_MAX_RUN_CHARS", "20")
    seen: list[FinishedRun] = []
    watching = handler(outcome=seen.append)
    texts = ("I search twice.", "first"), ("Once more.", "second")
    answers = [say(words, call("search", q=query)) for words, query in texts]
    scored = last(watching, agent(*answers, say("42")))
    assert shape(scored.trace) == ["thought", "call search", "saw search"] * 2 + ["thought"]
    assert scored.trace.steps[4].input == {"...": "1 more"}
    assert scored.trace.outcome.result_summary == "42"
    assert watching.stats()["dropped_texts"] == 5  # what follows the first call's input
    assert len(seen[0].steps) == len(scored.trace.steps)


@pytest.mark.parametrize("pauses", [False, True])
def test_steps_beyond_the_bound_are_dropped_from_the_middle_and_counted(
    pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_MAX_STEPS", "10")
    metadata = {"thread_id": "t", "ls_integration": "langgraph"}
    events = Events(name="LangGraph", metadata=metadata)
    for at in range(50):
        if pauses and at == 25:
            events.watching.on_chain_error(GraphInterrupt(), run_id=events.root)
            assert events.watching.stats()["paused"] == 1
            events = Events(events.watching, None, name="LangGraph", metadata=metadata)
        events.tool({"input": str(at)}, f"saw {at}")
    trace = events.end().trace
    assert len(trace.steps) == 10
    assert trace.steps[0].input == {"input": "0"}
    assert trace.steps[-1].content == "saw 49"
    assert events.watching.stats()["dropped_steps"] == 90


# ------------------------------------------------------------------ errors that stand for others


def group(*errors: BaseException, message: str = "unhandled errors") -> BaseExceptionGroup[Any]:
    return BaseExceptionGroup(message, errors)


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    error.__cause__ = cause
    return error


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


REFUSED = ConnectionRefusedError("port 443 refused")
IS_REFUSED = "ConnectionRefusedError: port 443 refused"
ONE = "ExceptionGroup: unhandled errors (1 sub-exception)"
TWO = "ExceptionGroup: unhandled errors (2 sub-exceptions)"


def error_text(error: BaseException) -> str:
    events = Events()
    events.tool(output=error)
    return events.end().trace.steps[1].content or ""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("plain"), "ValueError: plain"), (ValueError(), "ValueError"),
        (group(REFUSED), f"{ONE} ({IS_REFUSED})"),
        (group(group(REFUSED), ValueError("b")), f"{TWO} ({ONE}; ValueError: b)"),
        (raised(ValueError("it says enough"), REFUSED), "ValueError: it says enough"),
        (raised(TimeoutError(), asyncio.CancelledError()), "TimeoutError"),
        (group(SilentError()), f"{ONE} (SilentError: <SilentError>)"),
    ],
)  # fmt: skip
def test_the_text_names_what_an_error_stands_for(error: BaseException, text: str) -> None:
    assert error_text(error) == text


def nested_group(depth: int) -> BaseException:
    error: BaseException = ValueError("the bottom")
    for _ in range(depth):
        error = group(error)
    return error


def chain(length: int) -> Exception:
    error = Exception()
    for _ in range(length):
        error = raised(RuntimeError(), error)
    return error


def ring() -> Exception:
    one, two = RuntimeError(), ValueError()
    one.__cause__, two.__cause__ = two, one
    return one


class Lying(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("not mine")


@pytest.mark.parametrize(
    "make",
    [
        ring, lambda: group(*(ValueError(f"number {n}") for n in range(10_000))),
        lambda: nested_group(1000), lambda: group(*(ValueError("x" * 1_000_000) for _ in range(9))),
        lambda: chain(10_000), lambda: Lying("m", [ValueError("v")]),
        lambda: group(*[group(*[group(*[ValueError()] * 50)] * 50)] * 50),
    ],
)  # fmt: skip
def test_hostile_groups_leave_a_bounded_text(make: Callable[[], BaseException]) -> None:
    error = make()
    text = error_text(error)
    assert len(text) <= 4000
    assert text.count(";") <= 8
    assert text.startswith(type(error).__name__)


def test_exceptions_that_are_raised_again_or_wrapped_are_recorded_once() -> None:
    events, inner, first = Events(), uuid4(), ValueError("first")
    node: dict[str, Any] = {"run_id": uuid4(), "parent_run_id": events.root}
    events.watching.on_chain_start(None, {}, **node, name="node")
    events.watching.on_chain_start(None, {}, run_id=inner, parent_run_id=node["run_id"], name="in")
    events.watching.on_chain_error(first, run_id=inner)
    events.watching.on_chain_error(first, run_id=node["run_id"])
    scored = events.end(raised(RuntimeError("second"), first))
    assert [step.content for step in scored.trace.steps] == ["ValueError: first"]
    assert scored.trace.outcome.result_summary == "RuntimeError: second"


def test_a_failure_in_a_task_group_is_recorded_once() -> None:
    model = ScriptedChatModel([OSError("down")])

    async def ask_in_group(_state: object) -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(model.ainvoke("q"))

    watching = handler()
    with pytest.raises(ExceptionGroup):
        asyncio.run(RunnableLambda(ask_in_group).ainvoke(ASK, {"callbacks": [watching]}))
    (step,) = scored_by(watching).trace.steps
    assert (step.type, step.content) == ("observation", "OSError: down")


def test_a_tool_that_was_cancelled_has_not_failed() -> None:
    for outputs, end in (("done", []), (ValueError("v"), ["saw"])):
        events = Events()
        events.tool(output=asyncio.CancelledError(), name="slow")
        events.tool(name="quick")
        steps = shape(events.end(outputs).trace)
        assert steps == ["call slow", "call quick", "saw quick", *end]


# ------------------------------------------------------------------ runs that never end


def test_runs_that_wait_beyond_the_bound_are_given_up_the_most_silent_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setenv("KP_MAX_OPEN_RUNS", "2")
    monkeypatch.setenv("KP_RUN_TIMEOUT_S", "60")
    watching = handler()
    busy = Events(watching)
    clock[0] += 1
    silent = Events(watching)
    clock[0] += 1
    tool_id = busy.begin_tool()
    clock[0] += 1
    Events(watching)
    assert (watching.stats()["open"], watching.stats()["abandoned"]) == (2, 1)
    watching.on_chain_end({}, run_id=silent.root)
    watching.on_tool_end("seen", run_id=tool_id)
    busy.end()
    assert (watching.stats()["scored"], watching.stats()["abandoned"]) == (1, 1)
    clock[0] += 61  # nobody hears of the third one any more
    assert (watching.stats()["open"], watching.stats()["abandoned"]) == (0, 2)


def test_what_starts_after_its_root_has_ended_is_not_a_new_run() -> None:
    events, child = Events(), uuid4()
    events.watching.on_chain_error(asyncio.CancelledError(), run_id=events.root)
    for run_id, parent in ((child, events.root), (uuid4(), child)):
        events.watching.on_chain_start(None, {"input": "q"}, run_id=run_id, parent_run_id=parent)
    stats = events.watching.stats()
    assert (stats["runs"], stats["cancelled"], stats["open"]) == (1, 1, 0)


def many_things(wait: Any) -> Any:
    """What LangChain begins without a parent, and an agent that is given the handler once more."""

    async def work(inputs: Any, config: Any) -> Any:
        await wait()
        broken = ScriptedChatModel([OSError("down")])
        await broken.with_fallbacks([ScriptedChatModel([say("42")])]).ainvoke("q")
        return await searching().ainvoke(inputs, {"callbacks": config["callbacks"].handlers})

    return RunnableLambda(work)


def test_of_runs_at_once_each_is_counted_once_and_the_bound_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KP_MAX_OPEN_RUNS", "10")
    watching = handler()

    async def gather() -> None:
        made = many_things(asyncio.Barrier(30).wait)
        config: Any = {"callbacks": [watching]}
        await asyncio.gather(*[made.ainvoke(ASK, config) for _ in range(30)])

    asyncio.run(gather())
    assert watching.flush(300)
    stats = watching.stats()
    assert (stats["runs"], stats["scored"], stats["abandoned"], stats["open"]) == (30, 10, 20, 0)
    (warning,) = (one for one in caplog.messages if "max_open_runs" in one)
    assert "max_open_runs (10)" in warning
    # Of a run whose parent this handler never saw, it knows nothing either: it is a new one.
    inner = searching().with_config(callbacks=[watching])

    @tool
    def ask(q: str) -> str:
        """Delegate."""
        return str(inner.invoke({"messages": [("user", q)]})["messages"][-1].text)

    agent(say("I delegate.", call("ask", q="x")), say("42"), tools=(ask,)).invoke(ASK)
    assert shape(scored_by(watching).trace) == ["thought", "call search", "saw search", "thought"]
    assert watching.stats()["runs"] == 31


# ------------------------------------------------------------------ any order of events

SPACE = UUID(int=7)


class GraphBubbleUp(Exception):  # noqa: N818 - LangGraph's name
    __module__ = "langgraph.errors"


run_ids = st.integers(0, 11).map(lambda at: uuid5(SPACE, str(at)))  # few, so that runs meet
calling = {"name": "t", "args": {}, "id": "c1", "type": "tool_call"}
messages = st.sampled_from(
    [
        AIMessage(""), AIMessage("y" * 5000), AIMessage("t", tool_calls=[calling]),  # type: ignore[list-item]
        ToolMessage("out", tool_call_id="c1"), HumanMessage("why?"),
        ToolMessage("out", tool_call_id="c2", status="error"),
    ]
)  # fmt: skip
outputs = st.one_of(
    st.none(), st.floats(), messages, st.lists(messages, max_size=3), st.just(Loud(LookupError)),
    st.sampled_from(["", "a", "\ud800", "x" * 10_000, {}, {"a": Loud()}]),
    st.dictionaries(st.sampled_from(["messages", "input"]), st.lists(messages), max_size=2),
)  # fmt: skip
errors = st.sampled_from(
    [ValueError("v"), GraphInterrupt(), GraphBubbleUp(), GeneratorExit(), SystemExit(), None]
)
metadata = st.sampled_from(
    [
        None, {}, {"thread_id": "t"}, {"thread_id": "t", "ls_integration": "langgraph"},
        {"langgraph_step": 1, "langgraph_node": "n", "thread_id": "t"}, {"kp_domain": "finance"},
        {"kp_domain": 3, "thread_id": 4, "mcp_server": b"x"},
    ]
)  # fmt: skip
titles = st.sampled_from([None, "n", "ModelCallLimitMiddleware.before_model"])
Event = Callable[[KPCallbackHandler], None]


@st.composite
def events_of(draw: st.DrawFn) -> Event:
    run_id, name = draw(run_ids), draw(st.sampled_from(EVENTS))
    value, answer = draw(outputs), draw(messages)
    start = {"run_id": run_id, "parent_run_id": draw(st.none() | run_ids), "name": draw(titles),
             "metadata": draw(metadata)}  # fmt: skip
    error, call_id = draw(errors), draw(st.sampled_from([None, "c1", "c2"]))
    made = [[ChatGeneration(message=answer)]] if isinstance(answer, AIMessage) else []

    def play(watching: KPCallbackHandler) -> None:
        callback: Any = getattr(watching, name)
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
                callback(LLMResult(generations=made), run_id=run_id)
            case "on_chain_error" | "on_llm_error" | "on_tool_error":
                callback(error, run_id=run_id)
            case "on_custom_event":
                callback("kp.outcome", value, run_id=run_id)
            case "on_interrupt" | "on_resume":
                callback(SimpleNamespace(run_id=run_id))
            case _:
                callback(value, run_id=run_id)

    return play


@given(st.lists(st.lists(events_of(), max_size=40), min_size=1, max_size=4))
def test_after_any_events_from_any_threads_each_run_has_one_fate(
    sequences: list[list[Event]],
) -> None:
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append)
    escaped: list[BaseException] = []
    together = threading.Barrier(len(sequences))

    def play_one(sequence: list[Event]) -> None:
        together.wait()
        try:
            for play in sequence:
                play(watching)
        except BaseException as error:
            escaped.append(error)

    threads = [threading.Thread(target=play_one, args=(each,)) for each in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not escaped
    assert watching.flush(60)
    stats = watching.stats()
    assert stats["failed"] == stats["dropped"] == stats["queued"] == 0
    fates = ("scored", "cancelled", "abandoned", "handed_over", "empty", "open", "paused")
    assert stats["runs"] == sum(stats[fate] for fate in fates)
    assert stats["scored"] == len(scored) == len({one.trace.id for one in scored})
    watching.close()
    assert watching.stats()["open"] == watching.stats()["paused"] == 0


def test_memory_does_not_grow_with_the_number_of_runs() -> None:
    import gc

    watching = handler()

    def play(times: int) -> int:
        for at in range(times):
            events = Events(watching)
            tool_id = events.begin_tool()
            if at % 3:
                watching.on_tool_end("done", run_id=tool_id)
            error = GeneratorExit() if at % 2 else None
            if error:
                watching.on_chain_error(error, run_id=events.root)
            else:
                watching.on_chain_end({"output": "x"}, run_id=events.root)
        assert watching.flush(60)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()  # before memories of a bounded size fill up
    before = play(2500)
    grown = play(2000) - before
    tracemalloc.stop()
    assert grown < 2000 * 100
