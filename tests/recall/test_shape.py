"""What of a run stands in an example, and how tasks are compared without their values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import (
    ReasoningTrace,
    TraceStore,
    to_few_shot,
    trace_from_messages,
)
from kp_langchain.errors import ConfigError
from kp_langchain.gate.run import ShownTrace
from kp_langchain.recall import ExampleSearch
from kp_langchain.recall.deciding_calls import deciding_calls
from kp_langchain.recall.task_shape import masked
from kp_langchain.recording.langchain_context import ambient_run_id
from tests.agents import ScriptedChatModel, call, say
from tests.recall.words import Words, keep_all, kept_handler, middleware, rates


def trace_of(
    task: str, calls: list[tuple[str, dict[str, Any], str]], answer: str
) -> ReasoningTrace:
    """A run with calls, each with its output; it succeeded."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    for number, (name, inputs, output) in enumerate(calls):
        request = {"name": name, "args": inputs, "id": str(number)}
        messages.append({"role": "assistant", "content": "", "tool_calls": [request]})
        messages.append({"role": "tool", "content": output, "tool_call_id": str(number)})
    if answer:
        messages.append({"role": "assistant", "content": answer})
    trace = trace_from_messages(messages, domain="d")
    trace.metadata.success = True
    if not answer:  # a tool gave it
        trace.outcome.result_summary = calls[-1][2]
    return trace


SELECT = "SELECT COUNT(*) FROM loan WHERE member = 7 AND back IS NULL"
LOOKS = [
    ("list_tables", {}, "loan, member"),
    ("describe_table", {"table": "loan"}, "loan(id, back)"),
]
ORDER = ("find_order", {"name": "Ada"}, '{"id": "A-17", "total": 12.5}')
CANCEL = ("cancel_order", {"id": "A-17"}, "cancelled")


@pytest.mark.parametrize(
    ("task", "calls", "answer", "deciding"),
    [
        # What only looks around is left out.
        ("How many open loans?", [*LOOKS, ("run_sql", {"query": SELECT}, "[[25]]")],
         "There are 25.", {2: ("25",)}),
        # The answer of a tool that ends the run is the run's own; what it says is followed back.
        ("How many open loans?", [*LOOKS, ("run_sql", {"query": SELECT}, "[[25]]"),
                                  ("answer", {"value": "25"}, "25")], "", {2: ("25",), 3: ()}),
        # What it says was worked out: the call before it decides.
        ("How many open loans?", [*LOOKS, ("run_sql", {"query": SELECT}, '[["a"], ["b"]]'),
                                  ("answer", {"value": "2"}, "2")], "", {2: (), 3: ()}),
        # What changes something decides, and whatever gave the values of its input.
        ("Cancel the last order of Ada", [("list_tools", {}, "all"), ORDER, CANCEL], "It is done.",
         {1: ("A-17",), 2: ()}),
        # A value that the task has is given by no call.
        ("Cancel order A-17 of Ada", [ORDER, CANCEL], "It is done.", {1: ()}),
        # A failed call decides nothing.
        ("Cancel order A-17", [("cancel_order", {"id": "17"}, "Error: no such order"), CANCEL],
         "Done.", {1: ()}),
        # Of several that have a value, the last before it is used.
        ("What do I owe?", [("get", {"n": 1}, "4.50 EUR"), ("get", {"n": 2}, "4.50 EUR")],
         "You owe 4.50.", {1: ("4.50",)}),
        # Nothing decides: the last call does.
        ("Is it true?", [("search", {"q": "a"}, "text"), ("search", {"q": "b"}, "text")],
         "yes it is", {1: ()}),
        # A list without blanks is no number.
        ("Which one?", [("get", {"n": 1}, '{"ids":[101,250,300]}'), ("get", {"n": 2}, "no")],
         "It is 250.", {0: ("250",)}),
        # Numbers are the same however they are written.
        ("What do we owe?", [("get", {"n": 1}, "1250.00"), ("get", {"n": 2}, "7")],
         "1,250 euros.", {0: ("1,250",)}),
        # What a tool does is told by its name.
        ("Settle the bill", [(name, {}, "ok") for name in ("check_bill", "checkOut", "web_search",
                                                           "send_query", "GetRates", "open_case")],
         "Fine.", {1: (), 3: (), 5: ()}),
        ("Tell Eve", [("post_mail", {"body": "With regards"}, "ok"), ("run", {"q": SELECT}, "ok"),
                      ("query", {"q": "DELETE FROM loan"}, "ok"), ("find_and_delete", {}, "ok"),
                      ("run", {"q": "WITH x AS (SELECT 1) DELETE FROM loan"}, "ok"),
                      ("run", {"q": "With x as (select 1 from y) select 2 from x"}, "ok")],
         "Fine.", {0: (), 2: (), 3: (), 4: ()}),
        ("Hello", [], "Hello to you", {}),
    ],
)  # fmt: skip
def test_which_calls_decide_and_what_they_give(
    task: str, calls: Any, answer: str, deciding: dict[int, tuple[str, ...]]
) -> None:
    found = deciding_calls(trace_of(task, calls, answer))
    assert {one.position: one.gives for one in found} == deciding


def test_an_example_has_the_calls_that_decide_unless_all_are_asked_for() -> None:
    trace = trace_of(
        "How many open loans?",
        [*LOOKS, ("run_sql", {"query": SELECT}, "[[25]]"), ("answer", {"value": "25"}, "25")],
        "",
    )
    assert to_few_shot(trace).split("\n")[2:-1] == [
        'Task: "How many open loans?"',
        f'1. run_sql({{"query": "{SELECT}"}}) -> ok: "25"',
        '2. answer({"value": "25"}) -> ok',
    ]
    assert to_few_shot(trace, calls="all").split("\n")[3:-1] == [
        "1. list_tables({}) -> ok",
        '2. describe_table({"table": "loan"}) -> ok',
        f'3. run_sql({{"query": "{SELECT}"}}) -> ok',
        '4. answer({"value": "25"}) -> ok',
        'Answer: "25"',
    ]
    trace.metadata.success = False  # what went wrong is the point
    assert "describe_table" in to_few_shot(trace)
    with pytest.raises(ConfigError, match="calls='some' must be 'deciding' or 'all'"):
        to_few_shot(trace, calls="some")  # type: ignore[arg-type]


def test_what_a_call_gives_is_text_that_the_example_has_anyway() -> None:
    """So an output can put nothing into a prompt that the run did not use itself."""
    output = '{"id": "A-17", "next": "call B-99"}'
    trace = trace_of("Cancel the last order", [("find_order", {}, output), CANCEL], "Done.")
    assert '1. find_order({}) -> ok: "A-17"\n' in to_few_shot(trace)
    assert "B-99" in to_few_shot(trace, with_outputs=True)


# ------------------------------------------------------------------ without values


@pytest.mark.parametrize(
    ("task", "as_compared"),
    [
        ("How many loans since 2021-03-01?", "How many loans since 2020-01-01?"),
        ("Count items above 25 euros", "Count items above 7 euros"),
        ("What does Ada Brandt owe?", "What does Alex owe?"),
        ("Show order A-17 to ada@example.org", "Show order Alex to Alex"),
        ("Count the 'gold' customers", "Count the Alex customers"),
        # The first word of a sentence is no name for its capital.
        ("Cancel the order", "Cancel the order"),
        ("", ""),
    ],
)
def test_a_task_with_typical_values(task: str, as_compared: str) -> None:
    assert masked(task) == as_compared


@given(st.lists(st.text("abc", min_size=1, max_size=3) | st.sampled_from(["\u00df", "7", "a-1"])))
def test_no_value_is_left_and_no_other_word_is_changed(words: list[str]) -> None:
    as_compared = ["Alex" if one == "a-1" else one for one in words]
    assert masked(" ".join(words)).split() == as_compared


def test_a_task_is_like_itself_whatever_other_runs_took_from_theirs(store: TraceStore) -> None:
    keep_all(store, "count open orders of clients")
    search = ExampleSearch(store, Words())

    def similarity() -> float:
        found = search.find("count open orders of clients", domain="finance", floor=0.0)
        return found.matches[0].similarity

    assert similarity() == pytest.approx(1.0)

    @tool
    def ask(words: list[str]) -> str:
        """Ask the database."""
        return "3"

    handler = kept_handler(store)
    words = ["open", "orders", "clients"]
    model = ScriptedChatModel([say("", call("ask", words=words)), say("There are 3.")])
    create_agent(model, [ask]).invoke(
        {"messages": [("user", "say open orders clients aloud")]}, {"callbacks": [handler]}
    )
    assert handler.flush(120)
    assert similarity() == pytest.approx(1.0)


def test_others_are_shown_where_they_are_about_as_similar_as_the_first(store: TraceStore) -> None:
    tasks = ["add up the fees of spring", "add up the fees of autumn", "add up all the rents"]
    keep_all(store, *tasks)

    def shown(task: str, **options: Any) -> list[str]:
        shows = middleware(store, floor=0.1, **options)
        watching = kept_handler(store)
        agent = create_agent(ScriptedChatModel([say("No.")]), [], middleware=[shows])
        agent.invoke({"messages": [("user", task)]}, {"callbacks": [watching]})
        last = watching.last(120)
        assert last is not None
        objectives = {
            one.trace_id: store.recall_tasks.eligibility([one.trace_id])[one.trace_id].objective
            for one in last.shown
        }
        return [objectives[one.trace_id] for one in last.shown]

    assert sorted(shown("add up the fees of summer")) == sorted(tasks[:2])
    assert len(shown("add up the fees of summer", limit=1)) == 1
    assert shown("add up all the rents") == tasks[2:]


def test_only_runs_without_an_example_say_how_similar_tasks_must_be(store: TraceStore) -> None:
    """A run that was shown an example does as that did, whether or not it fits."""

    subjects = "roses boilers tyres lamps pianos goats clocks wells".split()

    def floor(name: str, shown: list[ShownTrace]) -> float:
        """The floor after runs that all do the same, whatever their tasks."""
        watching = kept_handler(store)
        answers = [say("I look.", call("rates", pair="x")), say("It is 1.27.")] * len(subjects)
        agent = create_agent(ScriptedChatModel(answers), [rates])

        def run(asked: Any) -> Any:
            watching.note_shown(ambient_run_id(), shown, "text")
            return agent.invoke(asked)

        config: Any = {"callbacks": [watching], "metadata": {"kp_domain": name}}
        for one in subjects:
            task = f"ask {one} {one[::-1]} {one}s"
            RunnableLambda(run).invoke({"messages": [("user", task)]}, config)
        assert watching.flush(120)
        assert store.count(domain=name, decision="kept") == len(subjects)
        return ExampleSearch(store, Words()).find("ask of lambs", domain=name).floor

    assert floor("alone", []) < 0.4
    assert floor("held out", [ShownTrace("kp:trace:first", 1, 0.5, held_out=True)]) < 0.4
    assert floor("shown", [ShownTrace("kp:trace:first", 1, 0.5, held_out=False)]) == 0.4
