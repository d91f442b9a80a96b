"""What runs took: tokens by model, calls, time, retries; and what that cost.

Held against what LangSmith's and OpenInference's tracers count in the same runs.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import SummarizationMiddleware, ToolRetryMiddleware
from langchain_core.language_models import FakeListLLM
from langchain_core.outputs import Generation, LLMResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from kp_langchain import ScoredTrace, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel
from kp_langchain.prices import ModelPrice, Prices
from kp_langchain.usage import ModelUsage, Tokens, Usage, merge, read_tokens
from tests.agents import ASK, agent, call, handler, run, say, search
from tests.importing.spans import genai_spans, lines, span
from tests.importing.ways import import_values, traced

SMALL, LARGE = "small-1-2026-01-01", "large-1"
PROVIDER = "scriptedchatmodel"  # what LangChain says of a class that says nothing


def counted(
    message: Any, read: int, written: int, *, cached: int = 0, thought: int = 0, model: str = SMALL
) -> Any:
    """An answer that reports its tokens."""
    usage = {
        "input_tokens": read,
        "output_tokens": written,
        "total_tokens": read + written,
        "input_token_details": {"cache_read": cached},
        "output_token_details": {"reasoning": thought},
    }
    more = {"usage_metadata": usage, "response_metadata": {"model_name": model}}
    return message.model_copy(update=more)


def answers() -> list[Any]:
    return [
        counted(say("I search.", call("search", q="a")), 100, 20, thought=5),
        counted(say("42"), 150, 10, cached=90),
    ]


def searching(*, model: str = SMALL) -> Any:
    first, last = answers()
    last.response_metadata["model_name"] = model
    return agent(first, last, tools=(search,))


def inner_calls() -> Any:
    """An agent of which LangChain summarises the messages, by a larger model."""
    summary = counted(say("SUMMARY"), 1000, 50, model=LARGE)
    middleware = SummarizationMiddleware(
        ScriptedChatModel([summary] * 4), trigger=("messages", 3), keep=("messages", 1)
    )
    return agent(*answers(), tools=(search,), middleware=[middleware])


def sub_agent() -> Any:
    @tool
    def ask(question: str) -> str:
        """Ask the other agent."""
        inner = agent(counted(say("seven"), 40, 4, model=LARGE), tools=(search,))
        return str(inner.invoke({"messages": [("user", question)]})["messages"][-1].content)

    first = counted(say("I ask.", call("ask", question="how many?")), 100, 20)
    return agent(first, counted(say("7"), 120, 3), tools=(ask,))


def stream(runnable: Any, config: Any) -> None:
    for _ in runnable.stream(ASK, config, stream_mode="messages"):
        pass


async def astream(runnable: Any, config: Any) -> None:
    async for _ in runnable.astream(ASK, config):
        pass


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "invoke": lambda runnable, config: runnable.invoke(ASK, config),
    "stream": stream,
    "ainvoke": lambda runnable, config: asyncio.run(runnable.ainvoke(ASK, config)),
    "astream": lambda runnable, config: asyncio.run(astream(runnable, config)),
    "batch": lambda runnable, config: runnable.batch([ASK], config),
}


def watched(go: Callable[[Any], Any], **options: Any) -> list[ScoredTrace]:
    scored: list[ScoredTrace] = []
    watching = handler(on_scored=scored.append, **options)
    go({"callbacks": [watching]})
    assert watching.flush(120)
    return scored


def usage_of(scored: ScoredTrace) -> Usage:
    assert scored.usage is not None
    return scored.usage


@pytest.mark.parametrize("way", WAYS)
def test_a_run_has_the_tokens_of_its_models(way: str) -> None:
    (scored,) = watched(lambda config: WAYS[way](searching(model=LARGE), config))
    usage = usage_of(scored)
    first = ModelUsage(
        model=SMALL, provider=PROVIDER, calls=1, reported_calls=1, input_tokens=100,
        output_tokens=20, reasoning_tokens=5,
    )  # fmt: skip
    last = ModelUsage(
        model=LARGE, provider=PROVIDER, calls=1, reported_calls=1, input_tokens=150,
        output_tokens=10, cached_tokens=90,
    )  # fmt: skip
    assert usage.models == (first, last)
    assert (usage.model_calls, usage.tool_calls, usage.retries) == (2, 1, 0)
    assert [one.step for one in scored.model_calls] == [0, 3]
    assert [one.total_tokens for one in scored.model_calls] == [120, 160]
    assert [one["name"] for one in scored.tools] == ["search"]
    assert usage.duration_ms is not None
    assert usage.model_ms is not None
    assert usage.tool_ms is not None
    assert 0 < usage.model_ms + usage.tool_ms <= usage.duration_ms


# ------------------------------------------------------------------ as other tracers count


def langsmith_tokens(runs: list[dict[str, Any]]) -> Tokens:
    found: Counter[str] = Counter()
    for one in runs:
        usage = ((one.get("extra") or {}).get("metadata") or {}).get("usage_metadata")
        if one["run_type"] == "llm" and usage:
            details = usage.get("input_token_details", {}), usage.get("output_token_details", {})
            found["input_tokens"] += usage["input_tokens"]
            found["output_tokens"] += usage["output_tokens"]
            found["cached_tokens"] += details[0].get("cache_read", 0)
            found["reasoning_tokens"] += details[1].get("reasoning", 0)
    return Tokens(**found)


def openinference_tokens(documents: list[dict[str, Any]]) -> Tokens:
    names = {
        "llm.token_count.prompt": "input_tokens",
        "llm.token_count.completion": "output_tokens",
        "llm.token_count.prompt_details.cache_read": "cached_tokens",
        "llm.token_count.completion_details.reasoning": "reasoning_tokens",
    }
    found: Counter[str] = Counter()
    for one in documents:
        (span,) = one["resourceSpans"][0]["scopeSpans"][0]["spans"]
        for pair in span.get("attributes", ()):
            if pair["key"] in names:
                found[names[pair["key"]]] += int(pair["value"]["intValue"])
    return Tokens(**found)


@pytest.mark.parametrize("make", [searching, inner_calls, sub_agent])
@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_other_tracers_count_the_same_tokens_and_an_import_has_them(
    make: Callable[[], Any], way: str, tmp_path: Path
) -> None:
    with traced() as files:
        (scored,) = watched(lambda config: WAYS[way](make(), config))
    own = usage_of(scored).tokens
    assert own is not None
    assert own == langsmith_tokens(files.langsmith)
    assert own == openinference_tokens(files.openinference)
    for name in ("langsmith", "openinference", "genai"):
        (tmp_path / name).mkdir()
        (imported,) = import_values(getattr(files, name), tmp_path / name)
        assert imported.scored is not None
        usage = usage_of(imported.scored)
        tokens = usage.tokens
        assert tokens is not None
        assert (tokens.input_tokens, tokens.output_tokens) == (own.input_tokens, own.output_tokens)
        assert usage.model_calls == usage_of(scored).model_calls
        assert usage.tool_calls == usage_of(scored).tool_calls
        assert {one.model for one in usage.models} <= {SMALL, LARGE, "ScriptedChatModel"}
        assert usage.duration_ms == pytest.approx(usage_of(scored).duration_ms, abs=500)
        if name != "genai":  # LangSmith's exporter leaves the details out
            assert usage.models == usage_of(scored).models


def test_calls_of_langchains_own_stand_apart() -> None:
    (scored,) = watched(lambda config: inner_calls().invoke(ASK, config))
    usage = usage_of(scored)
    own, inner = (
        [one for one in usage.models if one.is_inner is is_inner] for is_inner in (False, True)
    )
    assert [one.model for one in own] == [SMALL]
    assert inner
    assert {one.model for one in inner} == {LARGE}
    assert usage.inner_tokens == 1050 * sum(one.calls for one in inner)
    assert usage.model_calls == 2 + sum(one.calls for one in inner)
    assert len(scored.model_calls) == 2


# ------------------------------------------------------------------ calls, retries, time


def test_calls_that_are_made_again_are_retries() -> None:
    tries = iter([ValueError("busy"), ValueError("busy"), "fine"])

    @tool
    def flaky(q: str) -> str:
        """Fail at first."""
        outcome = next(tries)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    first = counted(say("", call("flaky", q="a")), 10, 1)
    middleware = [ToolRetryMiddleware(max_retries=3, initial_delay=0, jitter=False)]
    scored = run(agent(first, counted(say("ok"), 20, 2), tools=(flaky,), middleware=middleware))
    usage = usage_of(scored)
    assert usage.tool_calls in (1, 3)  # older releases retry inside one call
    assert usage.retries == usage.tool_calls - 1

    answers = [ConnectionError("down"), counted(say("hello"), 5, 1)]
    model = ScriptedChatModel(answers).with_retry(wait_exponential_jitter=False)
    usage = usage_of(run(model, "hello"))
    assert (usage.model_calls, usage.retries, usage.unreported_calls) == (2, 1, 1)
    assert usage.tokens == Tokens(input_tokens=5, output_tokens=1)


def test_the_time_of_a_pause_for_a_human_does_not_count(tmp_path: Path) -> None:
    @tool
    def ask_human(q: str) -> str:
        """Ask."""
        return str(interrupt(q))

    first = counted(say("I ask.", call("ask_human", q="which?")), 10, 1)
    last = counted(say("blue"), 20, 2)
    runnable = agent(first, last, tools=(ask_human,), checkpointer=InMemorySaver())
    scored: list[ScoredTrace] = []
    at_work_s = 0.0
    for inputs in (ASK, Command(resume="blue")):  # each in a handler of its own, as in a service
        watching = handler(on_scored=scored.append, store=str(tmp_path / "runs.db"))
        config = {"callbacks": [watching], "configurable": {"thread_id": "t"}}
        began_s = time.perf_counter()
        runnable.invoke(inputs, config)
        at_work_s += time.perf_counter() - began_s
        assert watching.flush(120)
    (one,) = scored
    usage = usage_of(one)
    assert usage.tokens == Tokens(input_tokens=30, output_tokens=3)
    assert usage.model_calls == 2
    assert usage.duration_ms is not None
    assert usage.duration_ms <= at_work_s * 1000  # without what passed between the two
    assert [call.total_tokens for call in one.model_calls] == [11, 22]
    assert {call.model for call in one.model_calls} == {SMALL}
    assert [tool["name"] for tool in one.tools] == ["ask_human"]


def test_calls_side_by_side_count_once_in_time(tmp_path: Path) -> None:
    root, asked, tool, last = genai_spans()  # the tool from 30 to 40 ms
    beside = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "c2",
    }
    (imported,) = import_values(
        lines(root, asked, tool, span(7, 1, 35, 48, having=beside), last), tmp_path
    )
    assert imported.scored is not None
    usage = usage_of(imported.scored)
    assert (usage.tool_calls, usage.tool_ms) == (2, pytest.approx(18))


def test_a_model_that_returns_plain_text_reports_by_llm_output() -> None:
    class Counting(FakeListLLM):
        def _generate(self, prompts: list[str], *args: Any, **kwargs: Any) -> LLMResult:
            usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
            return LLMResult(
                generations=[[Generation(text="hi")]],
                llm_output={"token_usage": usage, "model_name": "davinci"},
            )

    (model,) = usage_of(run(Counting(responses=["hi"]), "hello")).models
    assert (model.model, model.input_tokens, model.output_tokens) == ("davinci", 7, 3)


@pytest.mark.parametrize(
    "usage",
    [
        "many", [1], {}, {"input_tokens": "7"}, {"input_tokens": -1, "output_tokens": True},
        {"input_tokens": 10**400}, {"input_tokens": None, "output_token_details": 3},
    ],
)  # fmt: skip
def test_whatever_a_model_reports_the_run_is_recorded(usage: Any) -> None:
    answer = say("42").model_copy(
        update={"usage_metadata": usage, "response_metadata": {"model_name": ["x"]}}
    )
    found = usage_of(run(agent(answer)))
    assert found.tokens is None
    assert found.unreported_calls == 1


def test_a_model_may_have_any_name() -> None:
    tools = '[{"name":"search","description":"Search."}]'
    for name in (tools, "a\nb\x1b[2J", "n" * 5000, "sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr"):
        bound = ScriptedChatModel([counted(say("42"), 5, 1, model=name)]).bind(
            tools=[{"type": "function", "function": {"name": "search", "description": "Search."}}]
        )
        scored = run(bound, "hello")
        (model,) = usage_of(scored).models
        assert [tool["name"] for tool in scored.tools] == ["search"]
        assert len(model.model) <= 200
        assert "sk-proj" not in model.model


def test_beyond_the_most_calls_the_rest_are_counted_as_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kp_langchain.recording.run_record._MOST_CALLS", 2)
    scored = run(searching())
    assert usage_of(scored).model_calls == 1
    assert scored.dropped["usage"] == 1


# ------------------------------------------------------------------ stored and shown


def test_the_store_gives_back_what_a_run_took(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with TraceStore(path) as store:
        watching = handler(store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last(60)
        watching.flush(60)
        assert scored is not None
        run = store.get(scored.trace.id)
        assert run is not None
        assert run.usage == scored.usage
        assert run.to_row() == scored.to_row()
        row = run.to_row()
        assert (row["input_tokens"], row["models"], row["decision"]) == (250, SMALL, run.decision)
        calls = store.model_calls([run.trace_id])
        assert calls == {run.trace_id: scored.model_calls}
        assert store.tool_definitions([run.trace_id])[run.trace_id] == list(scored.tools)
        changed = store.report_outcome(run.trace_id, success=True)
        assert changed
        assert store.runs(limit=1)[0].usage == run.usage
        with sqlite3.connect(path) as connection:
            assert connection.execute("select count(*) from tool_sets").fetchone() == (1,)
        store.delete(*(one.trace_id for one in store.runs()))
        with sqlite3.connect(path) as connection:
            assert connection.execute("select count(*) from tool_sets").fetchone() == (0,)


def test_definitions_of_tools_hold_no_values_and_no_secrets() -> None:
    @tool
    def log_in(password: str = "hunter2-of-the-boss", region: str = "eu") -> str:  # noqa: S107
        """Log in with sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12Mn34Op56Qr78St90."""
        return region

    scored = run(agent(say("hello"), tools=(log_in,)))
    text = json.dumps(scored.tools)
    assert "hunter2" not in text
    assert "sk-proj" not in text
    assert set(scored.tools[0]["parameters"]["properties"]) == {"password", "region"}
    assert scored.tools[0]["parameters"]["properties"]["password"]["type"] == "string"


class Odd(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"child": schema}}
    return schema


def circle() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["child"] = schema
    return schema


WHOLE = {
    "type": "object",
    "properties": {
        "const": True, "default": {"type": "string"},
        "mode": {"enum": [f"m{at}" for at in range(900)]},
        "deep": nested(6), **{f"p{at}": {"type": "string"} for at in range(150)},
    },
    "required": ["const"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        (WHOLE, WHOLE), (circle(), {"type": "object"}), (nested(5000), {"type": "object"}),
        ({"type": "object", "properties": Odd([1])}, {"type": "object"}),
        ({"enum": ["x"] * 100_000}, {"type": "object"}), ("text", {"type": "object"}),
        (
            {"type": "object", "properties": {"cred": {"$ref": "#/$defs/Cred", "default": {
                "password": "hunter2", "api_key": "internal"}}}, "examples": [{"a": "b"}]},
            {"type": "object", "properties": {"cred": {"$ref": "#/$defs/Cred"}}},
        ),
    ],
    ids=["whole", "circle", "deep", "odd", "large", "text", "values"],
)  # fmt: skip
def test_a_schema_is_kept_whole_or_not_at_all_and_the_run_in_any_case(
    parameters: Any, kept: Any
) -> None:
    function = {"name": "tree", "description": "d", "parameters": parameters}
    model = ScriptedChatModel([say("42")]).bind(tools=[{"type": "function", "function": function}])
    (tool,) = run(model, "hello").tools
    assert tool == {"name": "tree", "description": "d", "parameters": kept}


def test_tools_that_change_during_a_run_are_all_kept_and_odd_ones_lose_no_run() -> None:
    def named(name: str) -> list[dict[str, Any]]:
        return [{"type": "function", "function": {"name": name, "parameters": {}}}]

    first, second = (
        ScriptedChatModel([say("x")]).bind(tools=named(name)) for name in ("one", "two")
    )
    scored = run(RunnableLambda(lambda text: (first.invoke(text), second.invoke(text))[1]), "hello")
    assert [tool["name"] for tool in scored.tools] == ["one", "two"]
    for tools in (Odd([1]), [None], [{"function": 3}], [{"type": "web_search"}]):
        assert run(ScriptedChatModel([say("42")]).bind(tools=tools), "hello").tools == ()


def test_the_log_has_what_a_run_took(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level("INFO", logger="kp_langchain"):
        run(searching())
    (record,) = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.trace_scored"]
    fields = vars(record)
    assert (fields["input_tokens"], fields["cached_tokens"], fields["models"]) == (250, 90, SMALL)
    assert fields["model_calls"] == 2
    assert fields["cost"] is None
    caplog.clear()
    monkeypatch.setenv("KP_PRICES", json.dumps({"small-1": {"input": 1000, "output": 0}}))
    with caplog.at_level("INFO", logger="kp_langchain"):
        run(searching())
    (record,) = [one for one in caplog.records if getattr(one, "kp_event", "") == "kp.trace_scored"]
    assert vars(record)["cost"] == pytest.approx(0.25)


# ------------------------------------------------------------------ sums and prices


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Tokens(input_tokens=5, output_tokens=2)),
        (
            {"prompt_tokens": 9, "completion_tokens": 4,
             "prompt_tokens_details": {"cached_tokens": 3},
             "completion_tokens_details": {"reasoning_tokens": 2}},
            Tokens(input_tokens=9, output_tokens=4, cached_tokens=3, reasoning_tokens=2),
        ),
        # A provider that counts what is cached apart.
        (
            {"input_tokens": 4, "output_tokens": 1,
             "input_token_details": {"cache_read": 90, "cache_creation": 10}},
            Tokens(input_tokens=104, output_tokens=1, cached_tokens=90, cache_write_tokens=10),
        ),
        # Anthropic's own form counts both apart, and LangChain says how long the cache keeps them.
        (
            {"input_tokens": 500, "output_tokens": 1, "cache_read_input_tokens": 300,
             "cache_creation_input_tokens": 200},
            Tokens(input_tokens=1000, output_tokens=1, cached_tokens=300, cache_write_tokens=200),
        ),
        (
            {"input_tokens": 900, "output_tokens": 1,
             "input_token_details": {"cache_creation": 0, "ephemeral_5m_input_tokens": 600,
                                     "ephemeral_1h_input_tokens": 100}},
            Tokens(input_tokens=900, output_tokens=1, cache_write_tokens=700),
        ),
        ({"total_tokens": 5}, None),
        (None, None),
    ],
)  # fmt: skip
def test_tokens_are_read_in_the_forms_of_providers(value: Any, tokens: Tokens | None) -> None:
    assert read_tokens(value) == tokens


numbers = st.integers(0, 10**6)
models = st.builds(
    ModelUsage,
    model=st.sampled_from(["a", "b", ""]), is_inner=st.booleans(), calls=numbers,
    reported_calls=numbers, input_tokens=numbers, output_tokens=numbers,
)  # fmt: skip
usages = st.builds(
    Usage, models=st.lists(models).map(merge), model_calls=numbers,
    duration_ms=st.none() | st.floats(0, 1e6),
)  # fmt: skip


@given(usages, usages)
def test_a_usage_comes_back_and_sums_have_every_token(one: Usage, other: Usage) -> None:
    assert Usage.from_dict(json.loads(json.dumps(one.to_dict()))) == one
    both = one + other
    assert both.model_calls == one.model_calls + other.model_calls
    for name in ("input_tokens", "calls"):
        parts = (sum(getattr(model, name) for model in usage.models) for usage in (one, other))
        assert sum(getattr(model, name) for model in both.models) == sum(parts)


def test_however_many_models_a_run_has_their_number_is_bounded() -> None:
    many = merge(
        ModelUsage(model=f"m{at}", calls=1, reported_calls=1, output_tokens=1) for at in range(100)
    )
    assert len(many) == 21
    assert sum(one.output_tokens for one in many) == 100
    assert many[-1].model == ""  # so that nobody computes a wrong cost
    assert Prices({"m1": PRICE}, with_package=False).missing(many)[-1] == ""


PRICE = ModelPrice(input=2.0, output=10.0, cached=0.5)


@pytest.mark.parametrize(
    ("model", "cost"),
    [
        # (100 - 40) x 2 + 40 x 0.5 + 10 x 10, in millionths
        ("large-1", 240e-6), ("large-1-2026-01-01", 240e-6), ("large-1@20260101", 240e-6),
        ("large-1-mini", None), ("large", None), ("", None),
    ],
)  # fmt: skip
def test_a_price_is_that_of_the_model_whatever_its_date(model: str, cost: float | None) -> None:
    used = ModelUsage(
        model=model, calls=2, reported_calls=1, input_tokens=100, output_tokens=10, cached_tokens=40
    )
    prices = Prices({"large-1": PRICE}, with_package=False)
    found = prices.cost(Usage(models=(used,)))
    assert found == (cost if cost is None else pytest.approx(cost))
    assert prices.missing([used]) == ([model] if cost is None else [])


def test_without_tokens_or_a_price_for_each_model_there_is_no_cost() -> None:
    prices = Prices({"large-1": PRICE}, with_package=False)
    known = ModelUsage(model="large-1", calls=1, reported_calls=1, output_tokens=1)
    silent, unknown = ModelUsage(model="x", calls=1), ModelUsage(model="y", reported_calls=1)
    assert prices.cost(None) is None
    assert prices.cost(Usage(models=(silent,))) is None
    assert prices.cost(Usage(models=(known, unknown))) is None
    assert prices.cost(Usage(models=(known, silent))) == pytest.approx(10e-6)


def test_the_package_of_prices_is_asked_where_it_is_installed() -> None:
    package = pytest.importorskip("genai_prices")
    used = ModelUsage(
        model="gpt-4o-mini-2024-07-18", calls=1, reported_calls=1, input_tokens=1000,
        output_tokens=100, cached_tokens=200,
    )  # fmt: skip
    usage = package.Usage(input_tokens=1000, output_tokens=100, cache_read_tokens=200)
    theirs = float(package.calc_price(usage, "gpt-4o-mini-2024-07-18").total_price)
    assert Prices().cost(Usage(models=(used,))) == pytest.approx(theirs)
    own = {"gpt-4o-mini": ModelPrice(input=0, output=1)}
    assert Prices(own).cost(Usage(models=(used,))) == pytest.approx(1e-4)
    assert Prices().missing([ModelUsage(model="zzz", reported_calls=1)]) == ["zzz"]
    of_cloud = used.__class__(
        model="us.anthropic.claude-3-5-sonnet-20241022-v2:0",
        provider="amazon_bedrock",
        reported_calls=1,
        output_tokens=1000,
    )
    assert Prices().missing([of_cloud]) == []
