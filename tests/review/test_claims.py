"""What an answer claims, and what of it stands in the outputs of tools."""

from __future__ import annotations

import pytest

from kp_langchain import ReasoningTrace
from kp_langchain.review.claims import Claims, claims_of


def trace(answer: str, *outputs: str, objective: str = "find it") -> ReasoningTrace:
    steps = [{"type": "observation", "content": output} for output in outputs]
    steps.append({"type": "thought", "content": answer})
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "other", "success": True},
            "task": {"objective": objective},
            "steps": [step | {"step_id": number} for number, step in enumerate(steps)],
            "outcome": {"result_summary": answer, "confidence": 0.8},
        }
    )


def test_numbers_and_names_are_looked_for_in_what_the_tools_returned() -> None:
    answer = "It costs 4.50 at Casa Miznon, not 7 as in Piazza Roma."
    claims = claims_of(trace(answer, "casa miznon: 4.50 EUR"))
    assert claims.seen == ("4.50", "Casa Miznon")
    assert claims.unseen == ("7", "Piazza Roma")


@pytest.mark.parametrize("output", ["2026-05-15T10:30:00", "at 10:30", "10:30,11:00"])
def test_a_time_may_be_part_of_a_longer_one(output: str) -> None:
    assert claims_of(trace("At 10:30.", output)).unseen == ()


def test_an_id_of_letters_and_digits_is_one_name() -> None:
    claims = claims_of(trace("Changed GV1N64 and 4WQ150 to HAT 290.", '{"id": "GV1N64"}'))
    assert claims.seen == ("GV1N64",)
    assert claims.unseen == ("4WQ150", "290")


@pytest.mark.parametrize("answer", ["at 10AM", "for 10000USD"])
def test_a_number_with_its_unit_is_a_number(answer: str) -> None:
    assert claims_of(trace(answer, "10:00, 10000 USD")).unseen == ()


def test_a_number_is_no_part_of_a_longer_number() -> None:
    assert claims_of(trace("There are 4.", "144 units")).unseen == ("4",)


def test_what_the_task_says_is_no_claim() -> None:
    claims = claims_of(trace("I sent 20 to Emma.", "ok", objective="Send 20 to Emma"))
    assert claims == Claims(tone=("done",), seen=(), unseen=())


@pytest.mark.parametrize("answer", ["1. tea\n2. milk", "  3) tea", "Thought 7: tea"])
def test_the_numbers_of_a_list_are_no_claims(answer: str) -> None:
    assert claims_of(trace(answer, "tea")).unseen == ()


@pytest.mark.parametrize("answer", ["Nothing was there. Perhaps so.", "In February", "Class: x"])
def test_one_capitalised_word_is_no_name(answer: str) -> None:
    assert claims_of(trace(answer, "")).unseen == ()


@pytest.mark.parametrize(("answer", "output"), [("50.00", "50.0 EUR"), ("4.5", "4.50")])
def test_an_amount_may_be_written_with_other_decimals(answer: str, output: str) -> None:
    assert claims_of(trace(f"It is {answer}.", output)).seen == (answer,)
    assert claims_of(trace(f"It is {answer}.", "1500.0 or 50.01")).unseen == (answer,)


@pytest.mark.parametrize(
    ("answer", "tone"),
    [
        ("The booking is completed.", ("done",)),
        ("Sorry, I cannot do that.", ("unable",)),
        ("It may be so.", ("unsure",)),
        ("Shall I book it?", ("asking back",)),
        ("Paris", ()),
    ],
)
def test_its_words_say_how_sure_it_is(answer: str, tone: tuple[str, ...]) -> None:
    assert claims_of(trace(answer, "")).tone == tone


def test_they_are_told_in_a_few_words() -> None:
    claims = Claims(tone=("done", "unsure"), seen=("1", "2", "3"), unseen=("9",))
    assert claims.text(2) == "sounds done, unsure; in no output: 9; in an output: 1, 2 and 1 more"
    assert Claims((), (), ()).text(2) == ""


@pytest.mark.parametrize("answer", ["", "\ud800 7", "9" * 20_000, "A" * 20_000, "\x00"])
def test_any_answer_is_read(answer: str) -> None:
    claims_of(trace(answer, answer))
