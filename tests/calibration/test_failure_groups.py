"""Groups of failures that share a sign, and one run of each to label next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain.calibration.failure_groups import (
    FEWEST_FAILED_TASKS,
    FEWEST_FAILURES,
    domain_failures,
    failures_by_domain,
)
from kp_langchain.calibration.failure_signs import SignedRun
from kp_langchain.calibration.next_to_label import TaskVerdict, UnlabelledRun, next_to_label
from kp_langchain.calibration.task_clusters import CountedRun, Sample, correlation_of, p_value_of

START = datetime(2026, 2, 1, tzinfo=UTC)


# ------------------------------------------------------------------ groups


def signed(number: int, *, failed: bool | None, path: str = "a", **fields: Any) -> SignedRun:
    """A run with a verdict; each is of a task of its own."""
    run = SignedRun(
        trace_id=f"run {number}",
        domain="desk",
        task=f"task {number}",
        at=START + timedelta(minutes=number),
        signs={"path": path},
        ended_well=not failed,
        success=None if failed is None else not failed,
    )
    return replace(run, **fields)


def domain(*counts: tuple[str, int, int]) -> list[SignedRun]:
    """Runs of paths, each with how many of its runs failed, and how many did not."""
    rows = [(path, True) for path, failed, _ in counts for _ in range(failed)]
    rows += [(path, False) for path, _, right in counts for _ in range(right)]
    return [signed(at, failed=failed, path=path) for at, (path, failed) in enumerate(rows)]


@pytest.mark.parametrize(
    ("counts", "titles"),
    [
        ([("a", 20, 80), ("b", 18, 2)], ["calls b and nothing else"]),
        (
            [("a", 20, 80), ("b", 18, 2), ("c", 12, 0)],
            ["calls b and nothing else", "calls c and nothing else"],
        ),
        ([("a", 20, 80), ("b", 4, 0)], []),  # too few
        ([("a", 20, 20), ("b", 10, 6)], []),  # chance explains it
        ([("a", 50, 50), ("b", 2, 28)], ["calls a and nothing else"]),
        ([("a", 30, 0)], []),
        ([("a", 0, 30), ("b", 0, 9)], []),
    ],
)
def test_runs_that_fail_more_often_are_a_group(counts: Any, titles: list[str]) -> None:
    assert [group.title for group in domain_failures("desk", domain(*counts)).groups] == titles


def test_a_group_says_how_many_failed_and_what_successes_did() -> None:
    runs = domain(("a > b", 20, 80), ("c", 18, 2))
    tasks = [
        replace(run, task=f"task {at % 25}", tools=frozenset(run.signs["path"].split(" > ")))
        for at, run in enumerate(runs)
    ]
    unjudged = [signed(900, failed=None, path="c"), signed(901, failed=None, path="a > b")]
    gone = signed(902, failed=None, path="c", can_be_judged=False)
    result = domain_failures("desk", [*tasks, *unjudged, gone])
    (group,) = result.groups
    assert (group.runs, group.failures, result.grouped, result.failures) == (20, 18, 18, 38)
    assert group.share.low < 0.9 < group.share.high
    assert group.rate_text.startswith("18 of 20 failed (")
    assert group.rate_text.endswith("%), of the domain's other runs 20 %")
    assert group.unjudged == ("run 900",)
    assert group.example == group.failed[0] == "run 37"
    assert "of them call a" in group.otherwise
    assert "of the 18 failures 0" in group.otherwise
    assert result.text.startswith(
        "desk: 1 group holds 18 of 38 failures in 120 runs with a verdict"
    )


def test_what_successes_did_otherwise_goes_by_all_tools_or_is_not_said() -> None:
    runs = domain(("a", 10, 20), ("b", 18, 0))
    of_few = [replace(run, task=f"task {at % 5}") for at, run in enumerate(runs)]

    def otherwise(some: Sequence[SignedRun], *, of_success: str, of_failure: str) -> str | None:
        (group,) = domain_failures(
            "desk",
            [
                replace(run, tools=frozenset(of_success if run.success else of_failure))
                for run in some
            ],
        ).groups
        return group.otherwise

    start = "20 other runs of these tasks succeeded; "
    assert otherwise(of_few, of_success="xy", of_failure="x") == (
        f"{start}20 of them call y, of the 18 failures 0"
    )
    # A difference of one tool says little.
    assert otherwise(of_few, of_success="x", of_failure="x") == (
        f"{start}most often, 20 times, one calls a and nothing else"
    )
    alike = [replace(run, signs={"path": "a", "repeated": run.signs["path"]}) for run in of_few]
    assert otherwise(alike, of_success="x", of_failure="x") is None
    assert otherwise(runs, of_success="x", of_failure="y") is None  # of other tasks
    two = [
        replace(run, task="0" if at in (10, 11, 30) else run.task) for at, run in enumerate(runs)
    ]
    assert otherwise(two, of_success="x", of_failure="y") is None


def crossed(*counts: tuple[dict[str, str], int, int]) -> list[SignedRun]:
    """Runs with signs, each with how many failed, and of how many."""
    rows = [(shown, at < failed) for shown, failed, number in counts for at in range(number)]
    return [signed(at, failed=failed, signs=shown) for at, (shown, failed) in enumerate(rows)]


def test_a_group_that_shares_runs_with_a_stronger_one_remains() -> None:
    both, path, other = {"path": "p", "error": "A"}, {"path": "p"}, {"path": "q"}
    runs = crossed((both, 50, 50), (path, 15, 30), (other, 12, 120))
    strong, weak = domain_failures("desk", runs).groups
    assert (strong.title, strong.runs, strong.stronger) == ("ends on an error of A", 50, 0)
    assert (weak.title, weak.failures, weak.runs) == ("calls p and nothing else", 15, 30)
    assert strong.rate_text.endswith("of the domain's other runs 18 %")
    assert weak.rate_text.endswith("of the domain's other runs outside stronger groups 10 %")


def test_a_group_masked_by_a_larger_one_is_seen_once_that_took_its_runs() -> None:
    signs_of_each = ({"path": "A"}, 114, 120), ({"path": "B"}, 18, 40), ({"path": "C"}, 5, 100)
    groups = domain_failures("desk", crossed(*signs_of_each)).groups
    assert [group.sign for group in groups] == ["A", "B"]
    assert groups[1].others == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        (1, "desk: 1 failure is too few for a group (5), in 12 runs with a verdict."),
        (4, "desk: 4 failures are too few for a group (5), in 12 runs with a verdict."),
    ],
)
def test_it_says_that_failures_are_too_few(failed: int, text: str) -> None:
    assert domain_failures("desk", domain(("a", failed, 12 - failed))).text == text


def test_without_enough_verdicts_it_goes_by_how_runs_ended_and_says_so() -> None:
    runs = [replace(run, success=None) for run in domain(("a", 20, 80), ("b", 18, 2))]
    result = domain_failures("desk", runs)
    assert [group.title for group in result.groups] == ["calls b and nothing else"]
    assert "in 120 runs, as the runs ended; no verdicts yet;" in result.text
    one = replace(runs[0], success=False)
    assert "; 1 verdict is too few" in domain_failures("desk", [one, *runs[1:]]).text


def test_it_says_that_there_is_no_group_and_names_the_nearest() -> None:
    result = domain_failures("desk", domain(("a", 20, 30), ("b", 10, 6)))
    assert result.text == (
        "No failures of desk are alike beyond chance: 30 failures in 66 runs with a verdict."
    )
    assert result.nearest is not None
    assert result.nearest.title == "calls b and nothing else"
    assert (
        domain_failures("desk", []).text
        == "desk: no failures in 0 runs, as the runs ended; no verdicts yet."
    )


def test_runs_of_few_tasks_count_less() -> None:
    runs = domain(("a", 20, 80), ("b", 10, 2))
    assert domain_failures("desk", runs).groups
    of_few = [
        replace(run, task=f"task {at % 3}") if run.signs["path"] == "b" else run
        for at, run in enumerate(runs)
    ]
    # The runs of each task end alike.
    alike = [replace(run, task=f"{run.task} {run.success}") for run in of_few]
    assert not domain_failures("desk", [replace(run, task="one") for run in runs]).groups
    assert domain_failures("desk", alike).groups == ()


@pytest.mark.parametrize("failed", [5, 8, 12])
def test_without_repeats_the_test_is_fishers(failed: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    whole = [CountedRun(run, not run.success) for run in domain(("a", 20, 60), ("b", failed, 4))]
    part = Sample(one for one in whole if one.run.signs["path"] == "b")
    table = [[failed, 4], [20, 60]]
    expected = stats.fisher_exact(table, alternative="greater").pvalue
    assert p_value_of(part, Sample(whole), 0.0) == pytest.approx(expected)


def test_the_correlation_within_tasks() -> None:
    runs = domain(("a", 20, 20))
    alike = [replace(run, task=f"{run.success} {at % 5}") for at, run in enumerate(runs)]
    mixed = [replace(run, task=f"{at % 5}") for at, run in enumerate(runs)]
    for some, expected in ((runs, 0.0), (alike, 1.0), (mixed, 0.0)):
        counted = Sample(CountedRun(run, not run.success) for run in some)
        assert correlation_of(counted) == pytest.approx(expected)


_signs = st.dictionaries(
    st.sampled_from(["path", "error", "repeated", "unable"]), st.sampled_from(["x", "y"])
)


@st.composite
def _domains(draw: st.DrawFn) -> list[SignedRun]:
    runs = []
    for shared, failed in draw(
        st.lists(st.tuples(_signs, st.sampled_from([True, False, None])), max_size=12)
    ):
        for _ in range(draw(st.integers(1, 12))):
            at = len(runs)
            runs.append(signed(at, failed=failed, signs=shared, task=f"task {at % 17}"))
    return runs


@given(_domains(), st.randoms())
def test_no_run_is_in_two_groups_and_order_does_not_matter(
    runs: list[SignedRun], shuffled: random.Random
) -> None:
    result = domain_failures("desk", runs)
    members = [id_ for group in result.groups for id_ in (*group.failed, *group.unjudged)]
    assert len(members) == len(set(members))
    tasks = {run.trace_id: run.task for run in runs}
    for group in result.groups:
        assert group.failures == len(group.failed) >= FEWEST_FAILURES
        assert len({tasks[id_] for id_ in group.failed}) >= FEWEST_FAILED_TASKS
        assert group.share.low <= group.share.value <= group.share.high + 1e-9
        assert group.share.value > group.others
    in_order = list(runs)
    shuffled.shuffle(in_order)
    assert domain_failures("desk", in_order) == result
    assert failures_by_domain(in_order) == ([result] if runs else [])


def test_drawn_labels_rarely_make_a_group() -> None:
    rng, with_groups = random.Random(1), 0
    for _ in range(100):
        runs = [
            signed(
                at,
                failed=rng.random() < 0.4,
                signs={"path": rng.choice("abcdefgh"), "error": rng.choice("xyz")},
                task=f"task {at % 40}",
            )
            for at in range(120)
        ]
        with_groups += bool(domain_failures("desk", runs).groups)
    assert with_groups <= 5


# ------------------------------------------------------------------ what to label next


def unlabelled(number: int, *kinds: str, task: str | None = None) -> UnlabelledRun:
    shown = frozenset((kind, "web") for kind in kinds)
    return UnlabelledRun(f"run {number}", "desk", task or f"task {number}", None, shown)


def test_one_run_of_each_kind_of_failure_comes_first() -> None:
    runs = [unlabelled(at) for at in range(80)]
    runs += [unlabelled(at, "unanswered") for at in range(80, 90)]
    runs += [unlabelled(at, "error", "unanswered") for at in range(90, 95)]
    runs += [unlabelled(at, "repeated") for at in range(95, 98)]  # too few to be a kind
    offers = list(next_to_label(runs))
    reasons = [offer.reason for offer in offers]
    first = [set(offer.run.signs) for offer in offers if offer.new_sign is not None]
    assert first == [set(offer.run.signs) for offer in offers[: len(first)]]
    assert set().union(*first) == {("error", "web"), ("unanswered", "web")}
    assert reasons[0].startswith("a new task, and the first that ")
    assert set(reasons[len(first) :]) == {"a new task"}


def test_a_new_task_comes_before_a_new_kind_and_verdicts_cover_kinds() -> None:
    runs = [unlabelled(at, task=f"task {at % 40}") for at in range(80)]
    runs += [unlabelled(at, "error", task=f"task {at % 10}") for at in range(80, 90)]
    verdicts = [TaskVerdict("desk", f"task {at}", success=True) for at in range(10)]
    order = list(next_to_label(runs, verdicts))
    fewest = [offer.task_verdicts for offer in order]
    assert fewest == sorted(fewest)
    (kind,) = (at for at, offer in enumerate(order) if offer.new_sign is not None)
    assert fewest[kind - 1] < fewest[kind]
    covered = [replace(verdicts[0], signs=runs[-1].signs), *verdicts[1:]]
    assert all(offer.new_sign is None for offer in next_to_label(runs, covered))


def test_one_run_of_each_group_of_failures_comes_first() -> None:
    def shown(path: str) -> frozenset[tuple[str, str]]:
        return frozenset({("path", path)})

    verdicts = [
        TaskVerdict("desk", f"judged {path} {at}", success=at >= failed, signs=shown(path))
        for path, failed, number in (("a", 4, 40), ("b", 10, 10), ("c", 8, 8))
        for at in range(number)
    ]
    runs = [replace(unlabelled(at), signs=shown("abc"[at % 3])) for at in range(60)]
    offers = list(next_to_label(runs, verdicts))
    assert [offer.group for offer in offers[:3]] == [("path", "b"), ("path", "c"), None] or (
        [offer.group for offer in offers[:3]] == [("path", "c"), ("path", "b"), None]
    )
    for offer in offers[:2]:
        assert offer.group in offer.run.signs
        assert offer.reason.startswith("a new task, and like failures: it calls ")
    assert all(offer.group is None for offer in offers[2:])
    assert sorted(offer.run.trace_id for offer in offers) == sorted(run.trace_id for run in runs)
    assert all(offer.group is None for offer in next_to_label(runs, verdicts[:9]))


def test_runs_of_a_task_are_counted_in_their_order_after_one_of_a_group() -> None:
    verdicts = [
        TaskVerdict(
            "desk", f"judged {at}", success=at < 30, signs={("error", "e")} if at >= 30 else set()
        )
        for at in range(40)
    ]
    runs = [unlabelled(at, task="one") for at in range(5)]
    runs.append(replace(runs[0], trace_id="run 9", signs=frozenset({("error", "e")})))
    offers = list(next_to_label(runs, verdicts))
    assert offers[0].run.trace_id == "run 9"
    assert [offer.task_verdicts for offer in offers] == list(range(6))


@given(
    st.lists(st.tuples(st.integers(0, 6), st.sets(st.sampled_from(["error", "unable"])))),
    st.integers(0, 40),
)
def test_verdicts_in_this_order_do_not_change_the_rest(rows: Any, number: int) -> None:
    runs = [unlabelled(at, *kinds, task=f"task {task}") for at, (task, kinds) in enumerate(rows)]
    order = list(next_to_label(runs))
    verdicts = [
        TaskVerdict("desk", one.run.task, success=True, signs=one.run.signs)
        for one in order[:number]
    ]
    rest = [offer.run for offer in order[number:]]
    assert list(next_to_label(rest, verdicts)) == order[number:]
