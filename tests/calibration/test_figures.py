"""Figures with intervals, thresholds, scores under other weights, and what to label next."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, Scorer
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.fitting import FEWEST_RUNS
from kp_langchain.calibration.measures import (
    auc,
    mean_p_value,
    share,
)
from kp_langchain.calibration.model import LabelledRun, default_score
from kp_langchain.calibration.next_to_label import (
    Offer,
    Shortfall,
    TaskVerdict,
    UnlabelledRun,
    next_to_label,
    shortfall,
)
from kp_langchain.scoring import PROFILES

metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")


# ------------------------------------------------------------------ figures agree with libraries


def drawn(tasks: int, repeats: int, seed: int) -> tuple[list[bool], list[float], list[str]]:
    """Runs of tasks, the runs of a task nearly alike."""
    rng = random.Random(seed)
    rows = []
    for task in range(tasks):
        success = rng.random() < 0.5
        middle = rng.gauss(1.0 if success else 0.0, 1)
        rows += [(success, middle + rng.gauss(0, 0.01), str(task)) for _ in range(repeats)]
    return [one[0] for one in rows], [one[1] for one in rows], [one[2] for one in rows]


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0])),
        min_size=4,
        max_size=40,
    ).filter(lambda pairs: len({success for success, _ in pairs}) == 2)
)
def test_the_auc_is_that_of_scikit_learn(pairs: Any) -> None:
    truth, scores = [one[0] for one in pairs], [one[1] for one in pairs]
    area = auc(truth, scores, [str(at) for at in range(len(pairs))])
    assert area.value == pytest.approx(metrics.roc_auc_score(truth, scores), abs=1e-12)
    assert 0 <= area.low <= area.value <= area.high <= 1
    on_another_processor = [score + 1e-14 * (at % 3) for at, score in enumerate(scores)]
    assert auc(truth, on_another_processor, [str(at) for at in range(len(pairs))]) == area


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


@given(st.lists(STEPS, min_size=1, max_size=12), st.booleans(), st.sampled_from(sorted(PROFILES)))
def test_a_score_without_a_verdict_is_what_the_scorer_returns(
    steps: Any, looked: bool, profile: str
) -> None:
    scorer, weights = Scorer(embedder=None), PROFILES[profile]
    trace = trace_of(steps, success=looked, confidence=0.8 if looked else 0.2)
    run = LabelledRun(
        task="a",
        success=True,
        features=features_of(trace),
        looked_successful=looked,
        values={name: one.value for name, one in scorer.score(trace).dimensions.items()},
        judged_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    expected = scorer.score(trace, weights=weights).total
    assert default_score(run, weights) == pytest.approx(expected, abs=1e-12)


# ------------------------------------------------------------------ what to label next


_names = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def _runs(draw: st.DrawFn) -> list[UnlabelledRun]:
    rows = draw(st.lists(st.tuples(_names, _names), max_size=60))
    ids = draw(st.lists(st.text(max_size=5), min_size=len(rows), max_size=len(rows), unique=True))
    return [UnlabelledRun(id_, *row) for id_, row in zip(ids, rows, strict=True)]


_verdicts = st.lists(st.builds(TaskVerdict, _names, _names, st.booleans()), max_size=40)


def runs(number: int, domain: str) -> list[UnlabelledRun]:
    return [UnlabelledRun(f"{domain} {at}", domain, str(at)) for at in range(number)]


def verdict_of(offer: Offer, *, success: bool = True) -> TaskVerdict:
    return TaskVerdict(offer.run.domain, offer.run.task, success)


@given(_runs(), _verdicts)
def test_every_run_is_offered_once_of_its_domain_the_least_labelled_tasks_first(
    unlabelled: list[UnlabelledRun], labelled: list[TaskVerdict]
) -> None:
    verdicts = Counter((one.domain, one.task) for one in labelled)
    left = {run.trace_id: run for run in unlabelled}
    for offer in next_to_label(unlabelled, labelled):
        run = offer.run
        of_domain = [one for one in left.values() if one.domain == run.domain]
        fewest = min(verdicts[one.domain, one.task] for one in of_domain)
        assert offer.task_verdicts == verdicts[run.domain, run.task] == fewest
        assert offer.reason == (f"run {fewest + 1} of its task" if fewest else "a new task")
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


def test_one_domain_after_the_other_gets_what_a_model_needs() -> None:
    unlabelled = runs(100, "code") + runs(100, "finance") + runs(9, "small")
    labelled = [TaskVerdict("finance", str(at), success=True) for at in range(4)]
    domains = [offer.run.domain for offer in next_to_label(unlabelled, labelled)]
    lacking = FEWEST_RUNS - len(labelled)
    assert domains[:lacking] == ["finance"] * lacking
    assert domains[lacking : lacking + FEWEST_RUNS] == ["code"] * FEWEST_RUNS
    in_turn = domains[lacking + FEWEST_RUNS : -9]
    counts = Counter(in_turn[:100])
    assert abs(counts["code"] - counts["finance"]) <= 1
    assert domains[-9:] == ["small"] * 9


def test_what_a_model_still_lacks() -> None:
    assert shortfall([]) == Shortfall(10, 2, 2)
    verdicts = [TaskVerdict("d", str(at % 2), success=at % 2 < 1) for at in range(40)]
    assert shortfall(verdicts) == Shortfall(0, 1, 1)
    verdicts = [TaskVerdict("d", str(at), success=at < 20) for at in range(40)]
    assert shortfall(verdicts) == Shortfall(0, 0, 0)
