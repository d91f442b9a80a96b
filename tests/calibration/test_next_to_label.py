"""The order in which runs are offered for a verdict."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.calibration.fitting import FEWEST_RUNS
from kp_langchain.calibration.next_to_label import (
    DRAWN_EVERY,
    Offer,
    Shortfall,
    TaskVerdict,
    UnlabelledRun,
    next_to_label,
    shortfall,
)

_names = st.sampled_from(["a", "b", "c", "d"])
_confidences = st.none() | st.floats(0, 1)


@st.composite
def _runs(draw: st.DrawFn) -> list[UnlabelledRun]:
    rows = draw(st.lists(st.tuples(_names, _names, _confidences), max_size=60))
    ids = draw(st.lists(st.text(max_size=5), min_size=len(rows), max_size=len(rows), unique=True))
    return [UnlabelledRun(id_, *row) for id_, row in zip(ids, rows, strict=True)]


_verdicts = st.lists(st.builds(TaskVerdict, _names, _names, st.booleans()), max_size=40)


def runs(
    number: int, *, domain: str = "finance", confidence: float | None = None, repeats: int = 1
) -> list[UnlabelledRun]:
    return [
        UnlabelledRun(
            f"{domain} {confidence} {at}", domain, f"{confidence} {at // repeats}", confidence
        )
        for at in range(number)
    ]


def verdict_of(offer: Offer, *, success: bool = True) -> TaskVerdict:
    return TaskVerdict(offer.run.domain, offer.run.task, success)


@given(_runs(), _verdicts)
def test_every_run_is_offered_once(unlabelled: list[UnlabelledRun], labelled: list[TaskVerdict]):
    offers = list(next_to_label(unlabelled, labelled))
    assert sorted(offer.run.trace_id for offer in offers) == sorted(
        run.trace_id for run in unlabelled
    )


@given(_runs(), _verdicts)
def test_no_task_comes_again_while_another_of_its_domain_has_fewer_verdicts(
    unlabelled: list[UnlabelledRun], labelled: list[TaskVerdict]
):
    verdicts = Counter((one.domain, one.task) for one in labelled)
    left = Counter((run.domain, run.task) for run in unlabelled)
    for offer in next_to_label(unlabelled, labelled):
        task = (offer.run.domain, offer.run.task)
        others = [verdicts[one] for one in left if one[0] == task[0] and left[one]]
        assert offer.task_verdicts == verdicts[task] == min(others)
        verdicts[task] += 1
        left[task] -= 1


@given(_runs(), _verdicts, st.randoms())
def test_the_order_does_not_depend_on_the_order_of_what_is_given(unlabelled, labelled, random):
    order = list(next_to_label(unlabelled, labelled))
    random.shuffle(unlabelled)
    random.shuffle(labelled)
    assert list(next_to_label(unlabelled, labelled)) == order


@given(_runs(), _verdicts, st.integers(0, 60), st.booleans())
def test_after_the_first_verdicts_the_rest_of_the_order_is_left(
    unlabelled: list[UnlabelledRun], labelled: list[TaskVerdict], given_verdicts: int, success: bool
):
    order = list(next_to_label(unlabelled, labelled))
    given_first, rest = order[:given_verdicts], order[given_verdicts:]
    labelled = [*labelled, *(verdict_of(offer, success=success) for offer in given_first)]
    assert list(next_to_label([offer.run for offer in rest], labelled)) == rest


@given(_runs(), _verdicts)
def test_one_of_every_few_is_drawn_at_random(
    unlabelled: list[UnlabelledRun], labelled: list[TaskVerdict]
):
    unlabelled = [run for run in unlabelled if run.domain == "a" and run.confidence is not None]
    choices = [offer.choice for offer in next_to_label(unlabelled, labelled)]
    for at in range(len(choices) - DRAWN_EVERY + 1):
        assert choices[at : at + DRAWN_EVERY].count("drawn") == 1


@given(_runs(), _verdicts)
def test_the_others_are_those_that_the_model_is_least_sure_of(
    unlabelled: list[UnlabelledRun], labelled: list[TaskVerdict]
):
    left = {run.trace_id: run for run in unlabelled}
    verdicts = Counter((one.domain, one.task) for one in labelled)
    for offer in next_to_label(unlabelled, labelled):
        run = offer.run
        if offer.choice == "unsure":
            rivals = [
                one for one in left.values()
                if one.domain == run.domain
                and verdicts[one.domain, one.task] == offer.task_verdicts
            ]  # fmt: skip
            assert all(_doubt(run) >= _doubt(one) for one in rivals)
        del left[run.trace_id]
        verdicts[run.domain, run.task] += 1


def _doubt(run: UnlabelledRun) -> float:
    return -abs((0.5 if run.confidence is None else run.confidence) - 0.5)


def test_neither_sure_nor_doubtful_runs_are_alone() -> None:
    mixed = runs(100, confidence=0.97) + runs(100, confidence=0.55)
    first = list(islice(next_to_label(mixed), 80))
    sure = [offer for offer in first if offer.run.confidence == 0.97]
    assert {offer.choice for offer in sure} == {"drawn"}
    assert 5 <= len(sure) <= 15  # of the 20 drawn, about half
    assert first[0].run.confidence == 0.55


def test_without_a_model_all_are_drawn_and_none_is_offered_because_of_its_place() -> None:
    order = [offer.run.trace_id for offer in next_to_label(runs(50))]
    assert order != [run.trace_id for run in runs(50)]
    assert {offer.choice for offer in next_to_label(runs(50))} == {"drawn"}


@pytest.mark.parametrize("confidence", [float("nan"), float("inf"), None])
def test_a_confidence_that_is_no_number_counts_as_the_least_sure(confidence: float | None) -> None:
    first = next(next_to_label([*runs(5, confidence=0.6), *runs(1, confidence=confidence)]))
    assert first.run.confidence is confidence


def test_nothing_to_offer() -> None:
    assert list(next_to_label([])) == []
    assert list(next_to_label([], [TaskVerdict("finance", "a", success=True)])) == []


def test_one_domain_after_the_other_gets_what_a_model_needs() -> None:
    unlabelled = runs(100, domain="code") + runs(100, domain="finance") + runs(9, domain="small")
    labelled = [TaskVerdict("finance", str(at), success=True) for at in range(10)]
    domains = [offer.run.domain for offer in next_to_label(unlabelled, labelled)]
    lacking = FEWEST_RUNS - len(labelled)
    assert domains[:lacking] == ["finance"] * lacking
    assert domains[lacking : lacking + FEWEST_RUNS] == ["code"] * FEWEST_RUNS
    in_turn = domains[lacking + FEWEST_RUNS : -9]
    counts = Counter(in_turn[:100])
    assert abs(counts["code"] - counts["finance"]) <= 1
    assert domains[-9:] == ["small"] * 9


def test_a_task_of_thousands_of_runs_is_ordered_at_once() -> None:
    many = runs(20_000, repeats=20_000, confidence=0.5)
    assert len(list(next_to_label(many))) == 20_000


def test_the_reason_in_words() -> None:
    first, second = islice(next_to_label(runs(2, confidence=0.6, repeats=2)), 2)
    assert first.reason.startswith("a new task")
    assert second.reason == ("run 2 of its task; of such runs the model is least sure of it (0.60)")
    (third,) = next_to_label(
        [UnlabelledRun("x", "d", "t")], [TaskVerdict("d", "t", success=True)] * 2
    )
    assert third.reason == "run 3 of its task; drawn at random"


def test_what_a_model_still_lacks() -> None:
    assert shortfall([]) == Shortfall(30, 5, 5)
    verdicts = [TaskVerdict("d", str(at % 4), success=at % 4 < 2) for at in range(40)]
    assert shortfall(verdicts) == Shortfall(0, 3, 3)
    verdicts = [TaskVerdict("d", str(at), success=at < 20) for at in range(40)]
    assert shortfall(verdicts) == Shortfall(0, 0, 0)
