"""Whether runs of one task agree, and the signs that one went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage

from kp_langchain import ReasoningTrace, trace_from_messages
from kp_langchain.calibration.agreement import (
    MOST_WITNESSES,
    RunDigest,
    TaskRun,
    agreement_of,
    agreement_scale,
    pairs_of,
    task_hash,
)
from kp_langchain.calibration.flags import flags_of
from kp_langchain.calibration.model import confidence_by_agreement
from kp_langchain.scoring import Agreement
from kp_langchain.scoring.evidence import VETO_FLAGS, flag_meaning

Call = tuple[str, dict[str, Any], str]

RATE = ("rate", {"currency": "EUR"}, "1 EUR is 1.09 USD")
HOLDINGS = ("holdings", {"client": "ACME"}, "ACME holds 1,200,000 EUR and more")


def run(
    answer: str = "It is 1.09 dollars",
    calls: Sequence[Call] = (RATE,),
    task: str = "What is a euro?",
) -> ReasoningTrace:
    """A run that makes calls; one without an output gets no answer."""
    messages: list[Any] = [("user", task)]
    for number, (name, arguments, output) in enumerate(calls):
        call = {"name": name, "args": arguments, "id": str(number)}
        messages.append(AIMessage("", tool_calls=[call]))
        if output.startswith("!"):
            messages.append(ToolMessage(output[1:], tool_call_id=str(number), status="error"))
        else:
            messages.append(ToolMessage(output, tool_call_id=str(number)))
    return trace_from_messages([*messages, ("ai", answer)])


def task_run(trace: ReasoningTrace, **about: Any) -> TaskRun:
    return TaskRun(trace.id, trace.id, RunDigest.of(trace).to_bytes(), **about)


# ------------------------------------------------------------------ two runs


@pytest.mark.parametrize(
    ("other", "similarity"),
    [
        (run(), 1.0),
        # Three of five words each are the same, the number is not, and that halves it.
        (run("It is 2.50 dollars"), (3 * 3 / 7 + 3) / 6 / 2),
        (run("It's 1.090 dollars"), (3 * 2 / 7 + 3) / 6),  # the same number
        (run("It is unknown, in dollars"), (3 * 3 / 7 + 3) / 6 / 2),
        (run(calls=[(*RATE[:2], "1 EUR is 2.50 USD")]), 5 / 6),  # another output
        (run(calls=[("rate", {"currency": "CHF"}, RATE[2])]), 5 / 6),  # other arguments
        (run(calls=[HOLDINGS]), 3 / 6),
        (run(calls=[]), 3 / 6),
        (run("", calls=[HOLDINGS]), 0.0),
    ],
)  # fmt: skip
def test_similarity_is_half_that_of_the_answers(other: ReasoningTrace, similarity: float) -> None:
    digests = RunDigest.of(run()), RunDigest.of(other)
    assert digests[0].similarity(digests[1]) == pytest.approx(similarity)
    assert digests[0].similarity(digests[1]) == digests[1].similarity(digests[0])


def test_a_part_that_neither_run_has_is_left_out() -> None:
    one, other = (RunDigest.of(run(answer, [])) for answer in ("a b c", "a b d"))
    assert one.similarity(other) == 2 / 4
    assert RunDigest(frozenset(), frozenset(), frozenset(), 0, 0).similarity(one) == 0.0
    empty = RunDigest(frozenset(), frozenset(), frozenset(), 0, 0)
    assert empty.similarity(empty) is None


def test_placeholders_of_redaction_do_not_count() -> None:
    first, second = (
        RunDigest.of(
            run(f"It went to {who}", [("send", {"to": who, "text": text}, f"Sent to {who}")])
        )
        for who, text in (("ann@example.com", "hello you"), ("bob@example.org", "bye then"))
    )
    assert first.answer == second.answer == RunDigest.of(run("It went to", [])).answer
    assert first.last_output == second.last_output
    assert not first.arguments & second.arguments
    assert len(first.arguments) == 1  # of the text alone


words = st.frozensets(st.integers(1, 0xFFFF), max_size=50)
numbers = st.integers(0, 0xFFFF)


@given(st.builds(RunDigest, words, words, words, numbers, numbers))
def test_a_digest_survives_the_store(digest: RunDigest) -> None:
    content = digest.to_bytes()
    assert RunDigest.from_bytes(content) == digest
    assert len(content) <= 2 * (4 + 150)


@pytest.mark.parametrize(
    "content", [None, b"", b"\x01", b"\x00\x00", b"\x01\x00" * 4 + b"\x00", b"\xff" * 8]
)
def test_what_another_program_put_there_is_no_digest(content: bytes | None) -> None:
    assert RunDigest.from_bytes(content) is None


@pytest.mark.parametrize(
    ("objective", "other", "is_same"),
    [
        ("What is a  EURO worth?", "what is a euro worth?", True),
        ("What is a euro worth?", "What is a franc worth?", False),
        ("汇率是多少", "汇率是多少", True),
    ],
)
def test_an_objective_names_a_task(objective: str, other: str, is_same: bool) -> None:
    assert task_hash(objective) is not None
    assert (task_hash(objective) == task_hash(other)) is is_same


@pytest.mark.parametrize(
    "objective",
    [
        "", "yes, please", "Mail to [REDACTED:email] that I come",
        "Sum up: once upon a ... [40000 characters left out] ... ever after",
    ],
)  # fmt: skip
def test_an_objective_that_says_too_little_names_none(objective: str) -> None:
    assert task_hash(objective) is None


# ------------------------------------------------------------------ several runs


def test_a_run_is_compared_with_five_others_at_most() -> None:
    same, other = run(), run("Quite something else", [HOLDINGS])
    traces = [same, same, same, other, other, other]
    others = [
        TaskRun(str(at), str(at), RunDigest.of(one).to_bytes()) for at, one in enumerate(traces)
    ]
    found = agreement_of(pairs_of(task_run(run()), others))
    assert found is not None
    assert (found.runs, found.agreeing) == (MOST_WITNESSES, 3)
    assert found.value == pytest.approx(3 / 5, abs=0.05)
    assert str(found) == "agrees with 3 of 5 runs of this task"
    assert agreement_of([]) is None


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        # A retry repeats what failed.
        ({"conversations": frozenset("ab")}, {"conversations": frozenset("bc")}),
        ({"is_planted": True}, {}),  # runs that obey the same instruction agree
        ({}, {"is_planted": True}),
    ],
)
def test_some_runs_are_no_witnesses(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    trace = run()
    digest = RunDigest.of(trace).to_bytes()
    one, other = TaskRun("1", "1", digest, **mine), TaskRun("2", "2", digest, **theirs)
    assert pairs_of(one, [other]) == []
    # Neither are other traces of the same run, as several handlers recorded it.
    assert pairs_of(one, [TaskRun("2", "1", digest), TaskRun("1", "2", digest)]) == []
    is_planted = mine.get("is_planted", False)
    assert bool(pairs_of(one, [TaskRun("2", "2", digest, frozenset("d"))])) is not is_planted


def test_retries_in_one_conversation_are_one_witness() -> None:
    digest = RunDigest.of(run()).to_bytes()
    me, *others = (
        TaskRun(str(at), str(at), digest, frozenset(conversations))
        for at, conversations in enumerate(("", "ab", "ac", "bd", "e", ""))
    )
    assert [pair.run.trace_id for pair in pairs_of(me, others)] == ["1", "4", "5"]


@pytest.mark.parametrize(
    ("runs", "about", "may_gain"),
    [
        (0, {"waits": True}, False),
        (1, {}, True),
        (1, {"compared_runs": 1}, False),
        (1, {"compared_runs": 1, "waits": True}, True),
        (1, {"compared_runs": 1, "waits": True, "success": True}, True),
        (1, {"compared_runs": 1, "waits": True, "success": False}, False),
        (2, {"compared_runs": 1, "success": True}, True),
        (2, {"compared_runs": 1, "success": False}, False),
        (6, {"compared_runs": 5}, False),
    ],
)
def test_what_more_runs_may_change(runs: int, about: dict[str, Any], may_gain: bool) -> None:
    digest = RunDigest.of(run()).to_bytes()
    others = [TaskRun(str(at), str(at), digest) for at in range(runs)]
    agreement = task_run(run(), **about).new_agreement(others)
    assert (agreement is not None) is may_gain
    assert agreement in (None, agreement_of(pairs_of(task_run(run()), others)))


SAME, OTHER = run(), run("2.50", [HOLDINGS])
NEAR = run("It is worth 1.09 dollars and no more")
OPEN, WRONG, RIGHT, OTHER_WRONG, NEAR_WRONG = (
    TaskRun(str(at), str(at), RunDigest.of(one).to_bytes(), frozenset("t"), success=success)
    for at, (one, success) in enumerate(
        [(SAME, None), (SAME, False), (SAME, True), (OTHER, False), (NEAR, False)]
    )
)
REPEATS = "repeats 1 run that a verdict calls wrong"


@pytest.mark.parametrize(
    ("others", "value", "evidence", "words"),
    [
        ([OPEN], 1.0, 1.0, "agrees with the one other run of this task"),
        ([WRONG], 0.0, 0.0, REPEATS),
        ([WRONG, OPEN], 1.0, 0.0, f"agrees with the one other run of this task, and {REPEATS}"),
        ([WRONG, RIGHT], 1.0, 1.0, "agrees with the one other run of this task"),
        # A right one is nearer.
        ([NEAR_WRONG, OPEN], 1.0, 0.0,
         f"agrees with the one other run of this task, and {REPEATS}"),
        ([NEAR_WRONG, RIGHT], 1.0, 1.0, "agrees with the one other run of this task"),
        # To differ from what is wrong tells nothing.
        ([OTHER_WRONG, OPEN], 1.0, 1.0, "agrees with the one other run of this task"),
    ],
)  # fmt: skip
def test_a_run_that_repeats_a_wrong_one_has_no_evidence(
    others: list[TaskRun], value: float, evidence: float, words: str
) -> None:
    digest = RunDigest.of(run()).to_bytes()
    found = agreement_of(pairs_of(TaskRun("me", "me", digest), others))
    assert found is not None
    assert (found.value, found.evidence, str(found)) == (value, evidence, words)


def test_a_judged_run_counts_beside_five_others_and_a_wrong_one_in_its_own_conversation() -> None:
    digest = RunDigest.of(run()).to_bytes()
    others = [TaskRun(f"o{at}", f"o{at}", digest) for at in range(9)]
    for conversations, evidence in ((frozenset("t"), 0.0), (frozenset("u"), 1.0)):
        me = TaskRun("me", "me", digest, conversations)
        found = agreement_of(pairs_of(me, [*others, NEAR_WRONG, RIGHT]))
        assert found is not None
        assert (found.runs, found.evidence) == (MOST_WITNESSES, evidence)
        assert agreement_of(pairs_of(me, [OTHER_WRONG])) is None


def test_confidence_by_agreement_is_half_for_the_average_and_for_who_stands_alone() -> None:
    scale = agreement_scale([0.1, 0.3] * 200)
    low, average, high = (confidence_by_agreement(one, scale) for one in (0.0, 0.2, 1.0))
    assert low < 0.45 < average < 0.55 < high < 0.7
    assert confidence_by_agreement(None, scale) == 0.5
    assert agreement_scale([]) == pytest.approx((0.17, 0.13))


@pytest.mark.parametrize(
    ("agreement", "words"),
    [
        (Agreement(1.0, 1, 1), "agrees with the one other run of this task"),
        (Agreement(0.1, 1, 0), "disagrees with the one other run of this task"),
        (Agreement(0.1, 3, 0), "agrees with 0 of 3 runs of this task"),
    ],
)
def test_agreement_in_words(agreement: Agreement, words: str) -> None:
    assert str(agreement) == words


# ------------------------------------------------------------------ flags

LONG = "the same text of some length"
SHORT = "done"
MANY = dict.fromkeys(map(str, range(5000)), 1)
LONG_ENDS = [30_000 * "y" + str(at) + 30_000 * "z" for at in range(3)]


@pytest.mark.parametrize(
    ("trace", "flags"),
    [
        (run(), []),
        (run(calls=[]), []),
        (run(calls=[RATE, (*HOLDINGS[:2], "!no client ACME")]), ["last_call_failed"]),
        (run(calls=[RATE, (*HOLDINGS[:2], "Error: no client")]), ["last_call_failed"]),
        (run(calls=[(*HOLDINGS[:2], "!no client ACME"), RATE]), []),
        (run("I am sorry, I could not find it"), ["answer_unable"]),
        (run("抱歉我无法查到"), ["answer_unable"]),
        (run(calls=[RATE, RATE]), ["same_call_twice"]),
        # A retry after an error is none.
        (run(calls=[(*RATE[:2], "!the line is busy"), RATE]), []),
        (run(calls=[RATE, HOLDINGS, RATE]), []),
        (run(calls=[RATE, HOLDINGS, RATE, HOLDINGS, RATE]), ["repeated_calls"]),
        (run(calls=[("a", {}, LONG), ("b", {}, LONG)]), ["same_result_twice"]),
        (run(calls=[("a", {}, SHORT), ("b", {}, SHORT)]), []),
        # What differs was redacted, or left out.
        (run(calls=[("find", {"of": f"{who}@example.com"}, SHORT) for who in "abc"]), []),
        (run(calls=[(who, {}, f"The mail of {who}@example.com is known") for who in "ab"]), []),
        (run(calls=[("put", {"text": 10 * "x" + end}, SHORT) for end in LONG_ENDS]), []),
        (run(calls=[("put", {"keys": MANY | {"z": at}}, SHORT) for at in range(3)]), []),
    ],
)  # fmt: skip
def test_flags(trace: ReasoningTrace, flags: list[str]) -> None:
    assert list(flags_of(trace)) == flags
    assert set(flags) <= VETO_FLAGS.keys()
    assert flag_meaning("a flag of tomorrow") == "a sign of failure"


@pytest.mark.parametrize("ends", ["!no client|1.09 dollars", "1.09 dollars|!no client"])
def test_of_calls_at_once_one_that_answers_is_enough(ends: str) -> None:
    pairs = zip(("holdings", "rate"), ends.split("|"), strict=True)
    trace = run(calls=[(name, {}, output) for name, output in pairs])
    first, first_end, second, second_end, thought = trace.steps
    # Both begin before one of them ends.
    steps = [
        step.model_copy(update={"step_id": at})
        for at, step in enumerate((first, second, first_end, second_end, thought))
    ]
    assert not flags_of(trace.model_copy(update={"steps": steps}))


def test_a_call_without_an_answer_is_flagged() -> None:
    trace = run(calls=[RATE, HOLDINGS])
    steps = [step for step in trace.steps if not (step.content or "").startswith("ACME")]
    assert "unanswered_call" in flags_of(trace.model_copy(update={"steps": steps}))
