"""However large, endless or hostile its values: a run is stored, its trace valid and bounded."""

from __future__ import annotations

import itertools
import json
from collections import UserString, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import FinishedRun, KPCallbackHandler, ReasoningTrace, ScoredTrace, TraceStore
from kp_langchain.errors import VerdictError
from kp_langchain.recording.outcome import mean_probability
from kp_langchain.recording.plain_values import error_text, plain, text_size
from kp_langchain.recording.verdict_reader import read_verdict
from tests.agents import ASK, agent, call, handler, run, say, searching, shape

HUGE = 10**5000  # Python refuses to write it in decimals


@tool
def fetch(q: str) -> str:
    """Return a page."""
    return "page " * 2000


@tool
def convert(text: str) -> str:
    """Return more than was given."""
    return text[:1000] * 5


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
    def __init__(self) -> None:
        self.asked = 0

    def __getitem__(self, at: Any) -> Any:
        self.asked += 1
        return self if isinstance(at, slice) else "item"

    def __len__(self) -> int:
        return 2**62


class Loud:
    """Raises wherever it is looked at."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error(name)

    def __str__(self) -> str:
        raise self.error("str")

    __repr__ = __str__


class Louder(Loud):
    """Even where its class is looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit


class LoudMapping(dict[str, Any]):
    def items(self) -> Any:
        yield "a", 1
        raise SystemExit

    def values(self) -> Any:
        raise SystemExit

    def get(self, *_: Any) -> Any:
        raise SystemExit


class Word(str):
    """A text that lies about itself."""

    def __str__(self) -> str:
        raise SystemExit

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


# ------------------------------------------------------------------ long runs


def test_a_run_beyond_its_bound_keeps_its_steps_without_their_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_MAX_RUN_CHARS", "20")
    made = agent(
        say("I search twice.", call("search", q="first")),
        say("Once more.", call("search", q="second")),
        say("42"),
    )
    watching = handler()
    made.invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(60)
    assert scored is not None
    assert shape(scored.trace) == [
        "thought", "call search", "saw search", "thought", "call search", "saw search", "thought",
    ]  # fmt: skip
    assert scored.trace.steps[4].input == {"...": "1 more"}
    assert scored.trace.outcome.result_summary == "42"
    stats = watching.stats()
    assert stats["scored"] == 1
    assert stats["failed"] == stats["callback_errors"] == 0
    assert stats["dropped_texts"] == 5  # what follows the first call's input


@pytest.mark.parametrize(
    ("tool_", "calls"),
    [
        (fetch, [call("fetch", call_id=f"c{at}", q="a") for at in range(60)]),
        (convert, [call("convert", call_id=f"c{at}", text="word " * 600) for at in range(50)]),
    ],
    ids=["60 pages of 10,000 characters", "50 calls with 3 KB in and 5 KB out"],
)
def test_the_longest_runs_are_not_lost(tool_: Any, calls: list[Any]) -> None:
    made = agent(*(say("", one) for one in calls), say("done"), tools=(tool_,))
    watching = handler()
    made.invoke(ASK, {"callbacks": [watching], "recursion_limit": 1000})
    scored = watching.last(60)
    assert scored is not None, watching.stats()
    assert len(scored.trace.steps) == 2 * len(calls) + 1
    assert watching.stats()["dropped_texts"] > 0
    assert len(scored.trace.model_dump_json()) < 300_000


def test_nothing_is_counted_as_dropped_where_everything_was_kept() -> None:
    watching = handler()
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush(60)
    assert watching.stats()["dropped_texts"] == 0


def test_a_task_of_5000_digits_is_a_task_like_any_other() -> None:
    def task(value: object) -> str | None:
        watching = handler()
        searching().invoke(ASK, {"callbacks": [watching], "metadata": {"kp_task": value}})
        scored = watching.last(60)
        assert scored is not None, watching.stats()
        return scored.task

    assert task(HUGE) == task(HUGE) != task(HUGE + 1)
    assert task(7) == task("7")


# ------------------------------------------------------------------ any value at all

leaves = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=20), st.binary(max_size=9),
    st.integers(0, 4).map(lambda at: (0, 2**53 + 1, HUGE, -HUGE, 1e308)[at]),
    st.sampled_from(["x" * 5000, "\ud800\x00", Word("word"), UserString("u")]),
    st.builds(Loud, st.sampled_from([ValueError, SystemExit, RecursionError, GeneratorExit])),
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
metadata = st.dictionaries(
    st.sampled_from(
        ["kp_task", "kp_domain", "thread_id", "mcp_server", "langgraph_checkpoint_ns", "other"]
    ),
    values,
    max_size=4,
)


def size_of(trace: ReasoningTrace) -> int:
    """Characters of the texts of all steps."""
    return sum(
        len(step.content or "") + (0 if step.input is None else text_size(step.input))
        for step in trace.steps
    )


@settings(suppress_health_check=list(HealthCheck))
@given(
    value=values,
    output=values,
    about=metadata,
    text_chars=st.sampled_from([1, 30, 500]),
    run_chars=st.sampled_from([1, 40, 2000]),
    calls=st.integers(1, 4),
)
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
        play(watching, value, output, about, calls)
        scored = watching.last(60)
        stats = watching.stats()
        assert scored is not None, stats
        assert stats["runs"] == stats["scored"] == 1
        assert stats["failed"] == stats["callback_errors"] == 0
        stored = store.get(str(scored.run_id))
    assert stored is not None
    text = scored.trace.model_dump_json()
    assert ReasoningTrace.model_validate_json(text).model_dump_json() == text
    json.loads(text, parse_constant=pytest.fail)
    assert len(scored.trace.steps) == 2 * calls + 1
    assert size_of(scored.trace) <= run_chars + 2 * text_chars + 120 * len(scored.trace.steps)


def play(watching: KPCallbackHandler, value: Any, output: Any, about: Any, calls: int) -> None:
    root = uuid4()
    watching.on_chain_start(None, value, run_id=root, metadata=about)
    for _ in range(calls):
        tool_id = uuid4()
        about_tool = {"run_id": tool_id, "parent_run_id": root, "metadata": about}
        watching.on_tool_start(
            {"name": "t"}, "", inputs={"a": value}, tool_call_id=str(tool_id), **about_tool
        )
        if output is value:
            watching.on_tool_error(ValueError(output), run_id=tool_id)
        else:
            watching.on_tool_end(output, run_id=tool_id)
    failed = {"run_id": uuid4(), "parent_run_id": root, "metadata": about}
    watching.on_chat_model_start(None, [[AIMessage("q")]], **failed)
    watching.on_retry(
        type("State", (), {"attempt_number": 2, "outcome": Failed(output)})(),
        run_id=failed["run_id"],
    )
    watching.on_llm_error(KeyError(value), run_id=failed["run_id"])
    watching.on_custom_event("kp.outcome", value, run_id=root)
    watching.on_chain_end(output, run_id=root)


class Failed:
    failed = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def exception(self) -> Exception:
        return RuntimeError(self.value)


# ------------------------------------------------------------------ what never ends


@pytest.mark.parametrize("keys_", [None, ["same"], [None]], ids=["new", "one", "None"])
@pytest.mark.parametrize("value", [None, "v", [], 1], ids=["None", "text", "list", "number"])
def test_an_endless_mapping_is_read_to_a_bound_wherever_it_stands(
    keys_: list[Any] | None, value: Any
) -> None:
    endless = Endless(keys_, value)
    watching = handler(outcome=lambda finished: None)
    play(watching, endless, Endless(keys_, value), {"mcp_server": endless}, 3)
    assert watching.flush(60)
    assert watching.stats()["scored"] == 1
    assert endless.asked < 5000


def test_an_endless_mapping_reaches_the_agent_of_a_real_chain_unread() -> None:
    endless = Endless()
    scored = run(RunnableLambda(lambda given: searching().invoke(ASK)), {"input": endless})
    assert len(scored.trace.steps) == 4
    assert endless.asked < 5000
    scored = run(RunnableLambda(lambda given: searching().invoke(ASK) and endless), endless)
    assert len(scored.trace.steps) == 4


def test_an_endless_outcome_is_refused() -> None:
    def work(_: Any) -> Any:
        dispatch_custom_event("kp.outcome", Endless())
        return searching().invoke(ASK)

    watching = handler()
    RunnableLambda(work).invoke("q", {"callbacks": [watching]})
    assert watching.flush(60)
    assert watching.stats()["outcome_errors"] == watching.stats()["scored"] == 1


@pytest.mark.parametrize(
    "made", [Endless, Louder, LoudMapping, lambda: Loud(SystemExit), lambda: HUGE]
)
def test_a_report_that_cannot_be_read_is_refused(made: Any) -> None:
    report = made()
    with pytest.raises(VerdictError):
        read_verdict(report, "a test")


def test_an_object_that_raises_for_its_class_costs_nothing_but_itself() -> None:
    watching = handler(outcome=lambda finished: None)
    play(watching, {"a": Louder(), "b": 1}, Louder(), {"thread_id": Louder()}, 2)
    scored = watching.last(60)
    assert scored is not None
    assert scored.trace.steps[0].input == {"a": {"a": "<Louder>", "b": 1}}
    assert scored.trace.steps[1].content == "<Louder>"
    assert watching.stats()["callback_errors"] == 0


def test_a_mapping_of_five_million_keys_is_read_as_fast_as_a_small_one() -> None:
    large = dict.fromkeys(range(1_000_000), "x")
    drawn = plain(large, 4000)
    assert len(drawn) <= 201
    assert drawn["..."] == "999800 more"
    assert len(error_text(KeyError(large), 4000)) <= 4000


# ------------------------------------------------------------------ kin


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (2**53, 2**53),
        (2**53 + 1, "9007199254740993"),
        (-(10**30), "-1" + "0" * 30),
        ([HUGE], ["<integer of 16610 bits>"]),
        (float("inf"), "inf"),
        (1e308, 1e308),
        (Word("word"), "word"),
        ({1: "a", "1": "b"}, {"1": "a", "1 (1)": "b"}),
        ({None: 1, (1, 2): 2, HUGE: 3}, {"None": 1, "[1, 2]": 2, "<integer of 16610 bits>": 3}),
        (deque([1]), [1]),
        ({"a": 1}.values(), [1]),
        (memoryview(b"abc"), "<3 bytes>"),
        (LoudMapping(), {"a": 1, "...": "<LoudMapping>"}),
        ([Loud(), 1], ["<Loud>", 1]),
        (Slotted([1]), '{"rows": [1]}'),
    ],
)
def test_values_as_they_are_kept(value: Any, kept: Any) -> None:
    assert plain(value, 1000) == kept


@pytest.mark.parametrize(
    "value",
    [
        [[[None] * 200] * 200] * 200,
        [[[True] * 200] * 200] * 200,
        {str(at): {"k" * 190 + str(one): None for one in range(200)} for at in range(200)},
        ["" for _ in range(200)] * 5,
        [{}] * 10_000,
    ],
    ids=["None", "True", "keys", "empty texts", "empty mappings"],
)
def test_values_without_a_text_have_a_size_too(value: Any) -> None:
    assert len(json.dumps(plain(value, 1000))) < 5000


def test_a_tool_name_of_megabytes_is_cut() -> None:
    watching, root = handler(), uuid4()
    watching.on_chain_start(None, {"input": "q"}, run_id=root, name="n" * 5_000_000)
    for _ in range(50):
        tool_id = uuid4()
        watching.on_tool_start({"name": "t" * 5_000_000}, "x", run_id=tool_id, parent_run_id=root)
        watching.on_tool_end("y", run_id=tool_id)
    watching.on_chain_end({"output": "z"}, run_id=root)
    scored = watching.last(60)
    assert scored is not None
    assert len(scored.trace.model_dump_json()) < 60_000


def test_a_name_that_is_no_text_costs_nothing_but_itself() -> None:
    watching = handler()
    config: Any = {"callbacks": [watching], "run_name": 7}
    RunnableLambda(lambda _: searching().invoke(ASK)).invoke("q", config)
    scored = watching.last(60)
    assert scored is not None
    assert len(scored.trace.steps) == 4


def test_errors_draw_on_the_runs_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_MAX_RUN_CHARS", "10000")
    watching, root = handler(), uuid4()
    watching.on_chain_start(None, {"input": "q"}, run_id=root)
    for _ in range(100):
        tool_id = uuid4()
        watching.on_tool_start({"name": "t"}, "x", run_id=tool_id, parent_run_id=root)
        watching.on_tool_error(ValueError("e" * 9000), run_id=tool_id)
    watching.on_chain_end({"output": "z"}, run_id=root)
    scored = watching.last(60)
    assert scored is not None
    assert size_of(scored.trace) < 30_000
    assert watching.stats()["dropped_texts"] > 90


@pytest.mark.parametrize("logprobs", [[-HUGE], [HUGE], [{"logprob": -HUGE}], [LoudMapping()]])
def test_token_probabilities_that_no_float_holds_cost_their_opinion_only(logprobs: Any) -> None:
    assert mean_probability(logprobs) in (None, 0.0, 1.0)


def test_an_outcome_function_is_given_the_steps_of_a_run_beyond_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_MAX_RUN_CHARS", "1")
    given_: list[FinishedRun] = []
    scored: ScoredTrace = run(searching(), outcome=given_.append)
    assert len(given_[0].steps) == len(scored.trace.steps) == 4


def test_a_redactor_that_leaves_nothing_costs_the_texts_only() -> None:
    watching = handler(redactor=lambda text: "")
    config: Any = {"callbacks": [watching], "metadata": {"kp_domain": "finance"}}
    searching().invoke(ASK, config)
    scored = watching.last(60)
    assert scored is not None, watching.stats()
    assert scored.trace.task.objective == "(removed)"
    assert scored.trace.metadata.task_domain == "default"


def test_objects_inside_objects_are_written_to_a_bound() -> None:
    value: Any = "x"
    for _ in range(12):
        value = Slotted([SimpleNamespace(inner=[value] * 300)] * 300)
    assert len(json.dumps(plain({"a": value}, 4000))) < 20_000
    assert len(error_text(ValueError(value), 4000)) <= 4000
