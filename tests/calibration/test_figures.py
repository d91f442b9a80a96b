"""Figures with intervals, thresholds, scores under other weights, and what to label next."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, ScoreBreakdown, Scorer
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.fitting import FEWEST_RUNS
from kp_langchain.calibration.gate_proposal import propose_threshold
from kp_langchain.calibration.measures import (
    auc,
    auc_gain,
    auc_value,
    brier,
    mean_p_value,
    reliability,
    share,
)
from kp_langchain.calibration.model import LabelledRun, hypothetical_score
from kp_langchain.calibration.next_to_label import (
    DRAWN_EVERY,
    Offer,
    Shortfall,
    TaskVerdict,
    UnlabelledRun,
    next_to_label,
    shortfall,
)
from kp_langchain.errors import ConfigError
from kp_langchain.scoring import PROFILES

metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")


# ------------------------------------------------------------------ figures agree with libraries


SCORED = st.lists(
    st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])),
    min_size=4,
    max_size=40,
).filter(lambda pairs: len({success for success, _ in pairs}) == 2)


def drawn(tasks: int, repeats: int, seed: int) -> tuple[list[bool], list[float], list[str]]:
    """Runs of tasks, the runs of a task nearly alike."""
    rng = random.Random(seed)
    rows = []
    for task in range(tasks):
        success = rng.random() < 0.5
        middle = rng.gauss(1.0 if success else 0.0, 1)
        rows += [(success, middle + rng.gauss(0, 0.01), str(task)) for _ in range(repeats)]
    return [one[0] for one in rows], [one[1] for one in rows], [one[2] for one in rows]


@given(SCORED)
def test_auc_brier_and_reliability_are_those_of_scikit_learn(pairs: Any) -> None:
    truth, scores = [one[0] for one in pairs], [one[1] for one in pairs]
    tasks = [str(at) for at in range(len(pairs))]
    found = auc(truth, scores, tasks)
    assert found.value == auc_value(truth, scores)
    assert found.value == pytest.approx(metrics.roc_auc_score(truth, scores), abs=1e-12)
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert brier(truth, scores) == pytest.approx(metrics.brier_score_loss(truth, scores))
    bins = reliability(truth, scores, tasks)
    assert sum(one.runs for one in bins) == len(pairs)
    assert sum(one.runs * one.success_rate.value for one in bins) == pytest.approx(sum(truth))
    assert all(one.confidence <= next_.confidence + 1e-9 for one, next_ in pairwise(bins))


def test_the_interval_is_as_wide_as_tasks_drawn_anew_say() -> None:
    truth, scores, tasks = drawn(tasks=80, repeats=3, seed=2)
    found = auc(truth, scores, tasks)
    rng = random.Random(0)
    members = {task: [at for at, one in enumerate(tasks) if one == task] for task in set(tasks)}
    names = sorted(members)
    again = []
    for _ in range(400):
        places = [at for task in rng.choices(names, k=len(names)) for at in members[task]]
        again.append(metrics.roc_auc_score([truth[i] for i in places], [scores[i] for i in places]))
    width = 2 * 1.96 * statistics.stdev(again)
    assert found.high - found.low == pytest.approx(width, rel=0.2)


def test_saying_everything_five_times_makes_nothing_surer() -> None:
    truth, scores, tasks = drawn(tasks=40, repeats=1, seed=3)
    once, often = auc(truth, scores, tasks), auc(truth * 5, scores * 5, tasks * 5)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))
    assert share(truth * 5, tasks * 5) == share(truth, tasks)


def test_the_interval_holds_what_it_says() -> None:
    """True AUC of two normal distributions one standard deviation apart: 0.760."""
    held = 0
    for seed in range(200):
        found = auc(*drawn(tasks=60, repeats=2, seed=seed))
        held += found.low <= 0.760 <= found.high
    assert 180 <= held <= 200


def test_a_gain_is_surer_than_two_figures_apart() -> None:
    truth, scores, tasks = drawn(tasks=60, repeats=2, seed=4)
    rng = random.Random(0)
    worse = [one + rng.gauss(0, 0.5) for one in scores]
    gain = auc_gain(truth, scores, worse, tasks)
    both = auc(truth, scores, tasks), auc(truth, worse, tasks)
    assert gain.value == pytest.approx(both[0].value - both[1].value)
    assert gain.high - gain.low < both[0].high - both[0].low
    assert auc_gain(truth, scores, scores, tasks).low == 0


@pytest.mark.parametrize(("good", "runs"), [(0, 5), (5, 5), (9, 10), (30, 70)])
def test_a_share_is_scipys_wilson_interval(good: int, runs: int) -> None:
    found = share([at < good for at in range(runs)], [str(at) for at in range(runs)])
    expected = stats.binomtest(good, runs).proportion_ci(0.90, "wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_the_p_value_of_a_mean_is_that_of_a_t_test_for_runs_of_a_task_each() -> None:
    rng = random.Random(3)
    values = [rng.gauss(0.2, 1) for _ in range(30)]
    tasks = [str(at) for at in range(30)]
    expected = stats.ttest_1samp(values, 0, alternative="greater").pvalue
    assert mean_p_value(values, tasks) == pytest.approx(expected, abs=1e-9)


def test_repeats_of_a_task_make_a_mean_no_surer() -> None:
    rng = random.Random(4)
    values, tasks = [rng.gauss(0.5, 1) for _ in range(20)], [str(at) for at in range(20)]
    once = mean_p_value(values, tasks)
    assert 0 < once < 0.2
    assert mean_p_value(values * 5, tasks * 5) == pytest.approx(once)
    apart = [str(at) for at in range(100)]
    assert mean_p_value(values * 5, apart) < once / 10


@pytest.mark.parametrize(
    ("values", "tasks", "expected"),
    [([1.0, 1.0], ["a", "a"], 1.0), ([1.0, 1.0], ["a", "b"], 0.0), ([0.0, 0.0], ["a", "b"], 1.0)],
)
def test_a_mean_without_spread(values: list[float], tasks: list[str], expected: float) -> None:
    assert mean_p_value(values, tasks) == expected


# ------------------------------------------------------------------ thresholds keep their promise


SCORES = st.lists(st.floats(0, 1) | st.sampled_from([0.5, 0.6]), min_size=1, max_size=60)


@given(scores=SCORES, wished=st.floats(0.01, 1))
def test_no_larger_share_passes_than_wished(labelled: Any, scores: Any, wished: float) -> None:
    runs = labelled(len(scores))
    found = propose_threshold(runs, scores, pass_rate=wished)
    for point in found.curve:
        passing = [run for run, score in zip(runs, scores, strict=True) if score >= point.threshold]
        assert point.runs == len(passing)
        assert point.tasks == len({run.task for run in passing})
        assert point.pass_rate == pytest.approx(len(passing) / len(runs))
        assert point.precision.value == pytest.approx(
            sum(run.success for run in passing) / len(passing)
        )
    if found.point is None:
        assert found.refusal is not None
        assert all(point.pass_rate > wished for point in found.curve)
    else:
        assert found.point.pass_rate <= wished
        lower = [point for point in found.curve if point.threshold < found.point.threshold]
        assert all(point.pass_rate > wished for point in lower)


def test_the_best_score_reaches_the_highest_threshold(labelled: Any) -> None:
    # Times 1000 they are rounded up to whole numbers.
    just_below = [math.nextafter(at / 1000, 0) for at in range(1, 1001)]
    runs = labelled(1)
    for score in just_below:
        (point,) = propose_threshold(runs, [score], pass_rate=1.0).curve
        assert score - 0.0011 < point.threshold <= score


def test_the_best_tenth(labelled: Any) -> None:
    runs = labelled(200)
    found = propose_threshold(runs, [at / 200 for at in range(200)], pass_rate=0.1)
    assert found.point is not None
    assert found.point.threshold == 0.9
    assert found.point.runs == 20


def test_a_precision_is_promised_by_the_lower_end_of_its_interval(labelled: Any) -> None:
    runs = [replace(run, success=at >= 100) for at, run in enumerate(labelled(200, repeats=1))]
    found = propose_threshold(runs, [at / 200 for at in range(200)], precision=0.9)
    assert found.refusal is None
    assert found.point is not None
    assert found.point.precision.low >= 0.9
    assert 0.45 < found.point.threshold < 0.55
    below = [point for point in found.curve if point.threshold < found.point.threshold]
    assert all(point.precision.low < 0.9 for point in below)


@pytest.mark.parametrize(
    "lucky",
    [
        {"number": 12, "repeats": 1, "success": True},  # too few to be sure
        {"number": 200, "task": "the same", "success": True},  # one task, solved 200 times
        {"number": 200, "success": False},
    ],
)
def test_a_precision_that_cannot_be_promised_is_not(labelled: Any, lucky: dict[str, Any]) -> None:
    runs = labelled(**lucky)
    found = propose_threshold(runs, [at / len(runs) for at in range(len(runs))], precision=0.9)
    assert found.point is None
    assert found.curve
    assert found.refusal is not None
    assert "no threshold is sure to give precision 0.9:" in found.refusal
    assert f"of {len(runs)} runs" in found.refusal


def test_few_promises_are_broken(labelled: Any) -> None:
    """Where 75 of 100 succeed whatever their score, 0.8 is promised in few samples of 200."""
    promised = 0
    for seed in range(60):
        rng = random.Random(seed)
        runs = [
            replace(run, success=rng.random() < 0.75) for run in labelled(200, repeats=1, seed=seed)
        ]
        scores = [rng.random() for _ in runs]
        promised += propose_threshold(runs, scores, precision=0.8).point is not None
    assert promised <= 12


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({}, "either a pass rate or a precision"),
        ({"pass_rate": 0.1, "precision": 0.9}, "either a pass rate or a precision"),
        ({"pass_rate": 0}, "pass rate is 0"),
        ({"pass_rate": 1.5}, "pass rate is 1.5"),
        ({"precision": float("nan")}, "precision is nan"),
        ({"precision": 1}, "precision is 1"),
        ({"precision": True}, "precision is True"),
    ],
)
def test_a_wish_that_makes_no_sense_is_named(labelled: Any, wish: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        propose_threshold(labelled(5), [0.5] * 5, **wish)


def test_every_precision_below_1_is_a_target_and_no_runs_give_no_threshold(labelled: Any) -> None:
    for precision in (0.9995, math.nextafter(1, 0)):
        proposal = propose_threshold(labelled(5), [0.5] * 5, precision=precision)
        assert proposal.point is None
        assert proposal.refusal is not None
    with pytest.raises(ConfigError, match="no labelled runs"):
        propose_threshold([], [], pass_rate=0.1)


# ------------------------------------------------------------------ scores under other weights


STEPS = st.tuples(
    st.sampled_from(["thought", "tool_call", "observation", "error_recovery"]),
    st.sampled_from([None, "search", "write"]),
)


def trace_of(steps: Any, *, success: bool, confidence: float) -> ReasoningTrace:
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "finance", "success": success},
            "task": {"objective": "an objective"},
            "steps": [
                {"step_id": at, "type": kind, "tool": tool and {"name": tool}}
                for at, (kind, tool) in enumerate(steps)
            ],
            "outcome": {"result_summary": "done", "confidence": confidence},
        }
    )


def labelled_run(trace: ReasoningTrace, breakdown: ScoreBreakdown, looked: bool) -> LabelledRun:
    return LabelledRun(
        task="a",
        success=True,
        features=features_of(trace),
        looked_successful=looked,
        values={name: one.value for name, one in breakdown.dimensions.items()},
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


@given(
    st.lists(STEPS, min_size=1, max_size=12),
    st.booleans(),
    st.floats(0, 1),
    st.booleans(),
    st.sampled_from(sorted(PROFILES)),
)
def test_it_is_what_the_scorer_says_of_such_a_trace(
    steps: Any, looked: bool, confidence: float, success: bool, profile: str
) -> None:
    scorer = Scorer(embedder=None)
    before = trace_of(steps, success=looked, confidence=0.8 if looked else 0.2)
    breakdown = scorer.score(before)
    run = labelled_run(before, breakdown, looked)
    weights = PROFILES[profile]
    assert hypothetical_score(run, weights) == pytest.approx(
        scorer.score(before, weights=weights).total, abs=1e-12
    )
    after = trace_of(steps, success=success, confidence=confidence)
    assert hypothetical_score(run, weights, confidence, success) == pytest.approx(
        scorer.score(after, weights=weights).total, abs=1e-12
    )


def test_a_confidence_out_of_range_is_refused(labelled: Any) -> None:
    (run,) = labelled(1)
    with pytest.raises(ValueError, match=r"outcome\.confidence is 1\.5"):
        hypothetical_score(run, PROFILES["default"], 1.5)


# ------------------------------------------------------------------ what to label next


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
def test_every_run_is_offered_once_of_its_domain_the_least_labelled_tasks_first(
    unlabelled: list[UnlabelledRun], labelled: list[TaskVerdict]
):
    """Those that are not drawn are those that the model is least sure of."""
    verdicts = Counter((one.domain, one.task) for one in labelled)
    left = {run.trace_id: run for run in unlabelled}
    for offer in next_to_label(unlabelled, labelled):
        run = offer.run
        of_domain = [one for one in left.values() if one.domain == run.domain]
        fewest = min(verdicts[one.domain, one.task] for one in of_domain)
        assert offer.task_verdicts == verdicts[run.domain, run.task] == fewest
        if offer.choice == "unsure":
            rivals = [one for one in of_domain if verdicts[one.domain, one.task] == fewest]
            assert all(_doubt(run) >= _doubt(one) for one in rivals)
        del left[run.trace_id]
        verdicts[run.domain, run.task] += 1
    assert not left


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
