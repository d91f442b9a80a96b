"""What texts quote of examples is removed, and nothing else."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.recall.few_shot import HEADER
from kp_langchain.recording.quotes import SHORTEST_QUOTE_CHARS, Quotes

TASK = "How many crowns is one guilder, says the bank?"
CALL = 'rate({"pair": "guilder to crown", "on": "Monday"})'
ANSWER = 'One guilder is "about" 3.25 crowns, says the bank.'
EXAMPLE = "\n".join(
    [
        HEADER,
        "<<<example 1: a run that succeeded>>>",
        f"Task: {json.dumps(TASK)}",
        f"12. {CALL} -> ok",
        f"Answer: {json.dumps(ANSWER)}",
        "<<<end of example 1>>>",
    ]
)
CODE = "def f(x):\n    if x:\n\n        return 1\n\n    return 2\n"
QUOTES = Quotes([EXAMPLE])
NO_QUOTES = Quotes([])

# The run's own lines share no character with these, so that none of them is a quote by chance.
example_lines = st.text("0123456789 \"'\\é", min_size=30, max_size=60).filter(
    lambda line: len(line.strip(" \"'\\")) >= SHORTEST_QUOTE_CHARS
)
own_lines = st.text("ab<>\t:.-")
line_ends = st.sampled_from(["\n", "\r\n", "\u2028"])


@pytest.mark.parametrize(
    "quote",
    [
        EXAMPLE,
        EXAMPLE.replace("\n", "\r\n"),
        f"    {CALL} -> ok",
        f"12. {CALL}",
        CALL,
        TASK,
        json.dumps(TASK),
        ANSWER,
        json.dumps(ANSWER)[1:-1],
        json.dumps(json.dumps(ANSWER))[1:-1],
        "  <<<end of example 1>>> ",
    ],
)
def test_the_line_of_a_quote_goes(quote: str) -> None:
    assert QUOTES.without(quote) == ""
    assert QUOTES.without(f"{CODE}{quote}\n{CODE}") == f"{CODE}{CODE}"


@pytest.mark.parametrize("name", ["rate", "taux_d'été", "курс"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_quote_inside_json_goes(name: str, ascii_only: bool) -> None:
    line = f'1. {name}({{"pair": "guilder to crown"}}) -> error (ValueError)'
    text = json.dumps({"docs": [line, "mine"]}, ensure_ascii=ascii_only)
    assert Quotes([line]).without(text) == '{"docs": ["", "mine"]}'


def test_what_stands_beside_a_quote_stays() -> None:
    text = f"  As they say: {ANSWER}  \n\n\t{TASK}\n{CODE}"
    assert QUOTES.without(text) == f"  As they say:   \n\n{CODE}"


@pytest.mark.parametrize(
    "text", ["Answer: yes", "<<<end of example 1>>> it says", "<<<end of example 2>>>", CODE]
)
def test_what_may_be_the_runs_own_stays(text: str) -> None:
    assert Quotes([EXAMPLE, "Answer: yes"]).without(text) is text


def test_a_quote_within_a_quote() -> None:
    text = f"{TASK[:9]}{ANSWER}{TASK[9:]}\nmine"
    assert QUOTES.without(text) == "mine"


@pytest.mark.parametrize("example", ["", "\n\n", "\ud800" * 30, '"' * 30, 'Task: "\\', "<<<"])
def test_hostile_examples(example: str) -> None:
    quotes = Quotes([example, EXAMPLE])
    assert quotes.without(f"mine \udfff\x00\n{ANSWER}\nmine") == "mine \udfff\x00\nmine"


def test_an_answer_loses_examples_that_it_repeats() -> None:
    assert QUOTES.without_in_answer(f"{EXAMPLE}\n\nIt is 3.25.") == "\nIt is 3.25."


def test_the_end_of_an_example_is_a_line_of_it() -> None:
    answer = f"It is 3.25.\nAnswer: {json.dumps(ANSWER)}\n<<<end of example 1>>>"
    assert QUOTES.without_in_answer(answer) == "It is 3.25.\n"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        ANSWER,
        f"Answer: {json.dumps(ANSWER)}",
        f"Sure. {ANSWER}\nThat is all.",
        f"Question: {TASK}\nAnswer: {ANSWER}",
        EXAMPLE,
        f"\n{EXAMPLE}\n ",
    ],
)
def test_an_answer_like_that_of_an_example_stays(answer: str) -> None:
    assert QUOTES.without_in_answer(answer) is answer


@given(st.lists(own_lines), line_ends, st.lists(example_lines, max_size=3))
def test_without_a_quote_the_text_itself_returns(
    own: list[str], end: str, examples: list[str]
) -> None:
    text = end.join(own)
    assert Quotes(examples).without(text) is text
    assert Quotes(examples).without_in_answer(text) is text


@given(st.data(), st.lists(example_lines, min_size=1, max_size=3), st.lists(own_lines), line_ends)
def test_only_quotes_and_lines_that_they_leave_empty_disappear(
    data: st.DataObject, examples: list[str], own: list[str], end: str
) -> None:
    quotes = Quotes(examples)
    text, expected = "", ""
    for line in own:
        before = data.draw(own_lines)
        quote = data.draw(st.sampled_from(["", *examples])).strip()
        text += f"{before}{quote}{line}{end}"
        if not quote or (before + line).strip():
            expected += f"{before}{line}{end}"
    assert quotes.without(text) == expected


@given(st.data(), st.lists(example_lines, min_size=2, max_size=3))
def test_a_second_removal_finds_nothing(data: st.DataObject, examples: list[str]) -> None:
    quotes, text = Quotes(examples), ""
    for _ in range(6):
        at = data.draw(st.integers(0, len(text)))
        part = data.draw(st.sampled_from([*examples, "a", "\n", "  \n"]))
        text = f"{text[:at]}{part}{text[at:]}"
    rest = quotes.without(text)
    assert quotes.without(rest) is rest
    answer = quotes.without_in_answer(text)
    assert quotes.without_in_answer(answer) is answer
    assert bool(answer.strip()) is bool(text.strip())


@given(st.lists(st.text(st.characters())), st.text(st.characters()))
def test_whatever_the_texts(examples: list[str], text: str) -> None:
    quotes = Quotes([*examples, EXAMPLE])
    assert len(quotes.without(text)) <= len(text)
    for example in examples:
        lines = (line.strip() for line in example.splitlines())
        rest = quotes.without(example)
        assert not any(len(line) >= SHORTEST_QUOTE_CHARS and line in rest for line in lines)


def test_time_grows_with_the_length_of_a_text_alone() -> None:
    example = "\n".join(f"{number}. {CALL[:-2]} {number:04}) -> ok" for number in range(300))
    quotes = Quotes([example])
    own = "".join(f"I look at number {number:06}, then I go on.\n" for number in range(20_000))
    nested = TASK[:20] * 20_000 + TASK[20:] * 20_000
    began = time.thread_time()
    for text in (own, example * 50, nested, "<<<\n" * 250_000):
        quotes.without_in_answer(text)
        quotes.without(text)
    assert time.thread_time() - began < 20  # seconds; if it were quadratic, minutes
    assert quotes.without(own) is own
