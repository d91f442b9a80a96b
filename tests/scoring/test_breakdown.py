"""Weights, scores, and what a breakdown says of them."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from kp_langchain.errors import KPError, WeightsError
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring import (
    PROFILES,
    Agreement,
    Dimension,
    Nearest,
    RuleFired,
    ScoreBreakdown,
    Scorer,
    ScoringWeights,
    Worth,
    embedded_text,
)
from kp_langchain.scoring.dimensions import TraceShape, estimated_success
from tests.scoring.conftest import Returning

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())
PARITY = Path(__file__).parents[2].parent / "shared" / "parity"
NAMES = ("complexity", "novelty", "tool_diversity", "outcome_confidence")
EQUAL = dict.fromkeys(NAMES, 0.25)


# ------------------------------------------------------------------ scores


def score_of(case, make_trace) -> ScoreBreakdown:
    words = [word.partition("*") for word in case["steps"].split()]
    steps = [word for word, _, times in words for _ in range(int(times or 1))]
    about = {key: case[key] for key in ("domain", "success", "confidence")}
    trace = make_trace(*steps, **about)
    if not steps:
        trace = trace.model_copy(update={"steps": []})
    weights = ScoringWeights(*case["weights"]) if "weights" in case else None
    scorer = Scorer(embedder=None, step_cap=case.get("step_cap"))
    return scorer.score(trace, weights=weights)


@pytest.mark.parametrize("case", CASES["by hand"], ids=lambda case: case["name"])
def test_scores_worked_out_by_hand(case, make_trace):
    breakdown = score_of(case, make_trace)
    assert breakdown.total == pytest.approx(case["score"], abs=1e-12)
    assert breakdown.weighted_sum == pytest.approx(case["weighted_sum"], abs=1e-12)
    assert [rule.name for rule in breakdown.rules] == case["rules"]
    expected = "custom" if "weights" in case else case.get("profile", case["domain"])
    assert breakdown.profile == expected


@pytest.mark.parametrize("case", CASES["reference"], ids=lambda case: case["name"])
def test_scores_of_the_reference_implementation(case, make_trace):
    assert score_of(case, make_trace).total == pytest.approx(case["score"], abs=1e-9)


def parity_lines(name: str) -> list[dict]:
    if not PARITY.is_dir():
        pytest.skip("no folder shared/parity beside the checkout")
    with (PARITY / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_parity_without_embedder():
    scorer = Scorer(embedder=None)
    lines = parity_lines("no_embedder.jsonl")
    assert len(lines) == 300
    for line in lines:
        assert scorer.evaluate(line["trace"]).total == pytest.approx(line["score"], abs=1e-9)


def test_parity_of_a_sequence_with_its_embeddings():
    lines = parity_lines("sequence.jsonl")
    rows = np.load(PARITY / "sequence_embeddings.npy")
    assert len(lines) == len(rows) == 50
    scorer = Scorer(embedder=Returning(*(rows[at : at + 1] for at in range(50))))
    scores = [scorer.evaluate(line["trace"]).total for line in lines]
    assert scores == pytest.approx([line["score"] for line in lines], abs=1e-9)


UNIT = st.floats(0, 1)
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "step_id": st.integers(0, 99),
            "type": st.sampled_from(["thought", "tool_call", "observation", "error_recovery"]),
        },
        optional={
            "content": st.text(max_size=20),
            "tool": st.fixed_dictionaries({"name": st.text(min_size=1, max_size=3)}),
        },
    ),
    min_size=1,
    max_size=12,
)
DOMAINS = st.sampled_from(["finance", "code"]) | st.text(min_size=1)
TRACES = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"task_domain": DOMAINS, "success": st.booleans()}),
        "task": st.fixed_dictionaries({"objective": st.text(min_size=1)}),
        "steps": STEPS,
        "outcome": st.fixed_dictionaries(
            {"result_summary": st.text(), "confidence": st.floats(0, 1)}
        ),
    }
)
EMBEDDINGS = st.lists(st.floats(width=32), min_size=2, max_size=4).map(lambda row: [row])


@given(st.lists(st.tuples(TRACES, EMBEDDINGS), min_size=1, max_size=5), st.none() | st.just(20))
def test_scores_are_finite_and_add_up(sequence, step_cap):
    scorer = Scorer(embedder=Returning(*(row for _, row in sequence)), step_cap=step_cap)
    for wire, _ in sequence:
        breakdown = scorer.evaluate(wire)
        parts = breakdown.dimensions
        assert parts == {name: getattr(breakdown, name) for name in NAMES}
        assert all(
            0.0 <= one.value <= 1.0 for one in (*parts.values(), Dimension(float(breakdown), 0, 0))
        )
        assert breakdown.weighted_sum == pytest.approx(
            sum(part.value * part.weight for part in parts.values()), abs=1e-9
        )
        assert breakdown.weighted_sum == pytest.approx(
            sum(part.contribution for part in parts.values()), abs=1e-12
        )
        last = breakdown.rules[-1].after if breakdown.rules else breakdown.weighted_sum
        assert breakdown.total == pytest.approx(last, abs=1e-9)
        json.dumps(breakdown.to_dict(), allow_nan=False)


@given(STEPS, st.booleans(), st.booleans(), UNIT)
def test_with_another_outcome_a_score_is_that_of_such_a_trace(steps, before, success, confidence):
    def breakdown_of(success, confidence):
        about = {"metadata": {"task_domain": "code", "success": success}, "steps": steps}
        outcome = {"result_summary": "done", "confidence": confidence}
        trace = ReasoningTrace.model_validate(
            about | {"task": {"objective": "o"}, "outcome": outcome}
        )
        return Scorer(embedder=None).score(trace), TraceShape.of(trace)

    first, shape = breakdown_of(before, 0.5)
    first = dataclasses.replace(first, worth=Worth.of(0.5, 0.5))
    about = {"success": success, "confidence": confidence, "source": "a reviewer", "shape": shape}
    changed = first.with_outcome(**about)
    expected, _ = breakdown_of(success, confidence)
    assert changed.dimensions | {"outcome_confidence": None} == expected.dimensions | {
        "outcome_confidence": None
    }
    assert changed.outcome_confidence.value == expected.outcome_confidence.value
    assert (changed.total, changed.weighted_sum) == (expected.total, expected.weighted_sum)
    assert (changed.rules, changed.confidence_source) == (expected.rules, "a reviewer")
    assert changed.worth == Worth.of(
        changed.outcome_confidence.value, 0.5, "a verdict (a reviewer)"
    )
    without = dataclasses.replace(first, worth=None).with_outcome(lowers_confidence=False, **about)
    assert (without.worth, without.outcome_confidence.value) == (None, confidence)


@pytest.mark.parametrize(
    ("looked_successful", "confidence", "proves_failure", "expected"),
    [
        (True, 0.1, False, True), (False, 0.5, False, True), (False, 0.49, False, False),
        (True, 0.9, True, False), (False, 0.9, True, False),
    ],
)  # fmt: skip
def test_a_run_is_taken_for_a_success_if_it_looked_so_or_its_model_says_so(
    looked_successful, confidence, proves_failure, expected
):
    about = {"looked_successful": looked_successful, "proves_failure": proves_failure}
    assert estimated_success(confidence, **about) is expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5, 1.5])
def test_a_confidence_that_escaped_validation_is_refused(make_trace, bad):
    trace = make_trace()
    outcome = trace.outcome.model_copy(update={"confidence": bad})
    with pytest.raises(ValueError, match=r"outcome\.confidence"):
        Scorer(embedder=None).score(trace.model_copy(update={"outcome": outcome}))


def test_the_embedded_text_is_the_objective_and_the_contents_of_the_steps(make_trace):
    trace = make_trace("thought", "tool_call:a", "observation", objective="the goal")
    for step, content in zip(trace.steps, ["one", None, "three"], strict=True):
        step.content = content
    assert embedded_text(trace) == "the goal one  three"
    assert embedded_text(trace.model_copy(update={"steps": []})) == "the goal "


# ------------------------------------------------------------------ weights


def test_built_in_profiles():
    as_rows = {
        domain: tuple(getattr(weights, name) for name in NAMES)
        for domain, weights in PROFILES.items()
    }
    assert as_rows == {
        "default": (0.25, 0.35, 0.15, 0.25),
        "finance": (0.20, 0.25, 0.10, 0.45),
        "code": (0.20, 0.30, 0.30, 0.20),
        "medical": (0.15, 0.20, 0.10, 0.55),
        "customer_service": (0.20, 0.30, 0.20, 0.30),
    }
    with pytest.raises(TypeError):
        PROFILES["default"] = ScoringWeights(**EQUAL)


@pytest.mark.parametrize(
    "bad", [-0.1, 1.1, math.nan, math.inf, -math.inf, None, "0.25", True, [], 10**400, 1j]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_weight_is_named_with_its_value(name, bad):
    with pytest.raises(WeightsError) as caught:
        ScoringWeights(**{**EQUAL, name: bad})
    assert name in str(caught.value)
    assert repr(bad)[:20] in str(caught.value)
    assert isinstance(caught.value, KPError)
    assert isinstance(caught.value, ValueError)


def test_the_sum_of_weights_is_1_within_a_tolerance():
    ScoringWeights(0.25, 0.25, 0.25, 0.25 + 5e-10)
    with pytest.raises(WeightsError):
        ScoringWeights(0.25, 0.25, 0.25, 0.25 + 5e-9)
    with pytest.raises(WeightsError) as caught:
        ScoringWeights(0.5, 0.25, 0.25, 0.125)
    for part in ("complexity=0.5", "novelty=0.25", "outcome_confidence=0.125", "1.125"):
        assert part in str(caught.value)


class Policy(BaseModel):
    weights: ScoringWeights | None = None


def test_weights_are_a_pydantic_field():
    assert Policy(weights=EQUAL).weights == ScoringWeights(**EQUAL)
    weights = ScoringWeights(0.1, 0.2, 0.3, 0.4)
    assert Policy(weights=weights).weights is weights
    assert Policy.model_validate_json(Policy(weights=weights).model_dump_json()).weights == weights


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({**EQUAL, "novelty": 0.5}, "sum to 1.25"),
        ({**EQUAL, "novelty": -1}, "novelty"),
        ({**EQUAL, "novelity": 0.0}, "novelity"),
        ({"novelty": 1.0}, "complexity"),
        (7, "weights"),
        ([0.25] * 4, "weights"),
        ({1: 2}, "1"),
    ],
)
def test_what_is_no_weights_is_refused(value, message, make_trace):
    with pytest.raises(ValidationError, match="weights") as caught:
        Policy(weights=value)
    assert message in str(caught.value)
    with pytest.raises(WeightsError):
        Scorer(embedder=None).evaluate(make_trace(), weights=value)


# ------------------------------------------------------------------ breakdowns


@pytest.fixture
def explained(make_trace):
    scorer = Scorer(embedder=Returning([[1.0, 0.0]], [[0.6, 0.8]]))
    first = make_trace()
    scorer.remember(first)
    steps = ("thought", "tool_call:a", "error_recovery")
    trace = make_trace(*steps, objective="another", domain="code", confidence=0.5)
    return scorer.score(trace), first


def test_line(explained, make_trace):
    breakdown, _ = explained
    # C .375+.3+.03, N 1-.6, D 1/3*3, O .5
    assert breakdown.line() == str(breakdown)
    assert breakdown.line() == (
        "score 0.561 = complexity 0.705 x 0.20 + novelty 0.400 x 0.30 + tools 1.000 x 0.30"
        " + outcome 0.500 x 0.20, single_tool 0.661 -> 0.561 (code profile)"
    )
    neutral = Scorer(embedder=None).score(make_trace())
    assert neutral.line().endswith("(default profile; novelty: no embedder)")
    worth = dataclasses.replace(breakdown, worth=Worth.of(0.5, 0.4))
    assert worth.line().endswith("(code profile); worth 0.425")
    seen = dataclasses.replace(breakdown, agreement=Agreement(0.6, 4, 3), flags=("answer_unable",))
    assert seen.line().endswith("; agrees with 3 of 4 runs of this task; flag answer_unable")


def test_text(explained):
    breakdown, first = explained
    lines = dataclasses.replace(
        breakdown,
        confidence_source="reported by the caller",
        elapsed_ms=1.5,
        worth=Worth.of(0.5, 0.4, "a model"),
        agreement=Agreement(0.625, 2, 1),
        flags=("last_call_failed",),
    ).text()
    assert lines.splitlines() == [
        "score 0.561 with the weights of profile code",
        "  complexity          0.705 x 0.20 = 0.141   3 of 4 step types, 3 steps, 1 error recovery",
        "  novelty             0.400 x 0.30 = 0.120   "
        "similarity 0.600 to the nearest remembered trace",
        "  tool diversity      1.000 x 0.30 = 0.300   1 distinct tool in 3 steps",
        "  outcome confidence  0.500 x 0.20 = 0.100   confidence 0.50, succeeded",
        "  weighted sum                       0.661",
        "  rule single_tool          0.661 -> 0.561   all its tool calls went to the same tool",
        "  score                              0.561   in 1.50 ms",
        "  worth               0.500 x 0.85 = 0.425   confidence x (0.75 + novelty / 4)",
        f"  novelty from        nearest remembered trace, {first.id}",
        "  confidence from     reported by the caller",
        "  worth from          a model",
        "  agreement           agrees with 1 of 2 runs of this task, 0.62",
        "  flag                last_call_failed: its last tool call failed",
    ]


@pytest.mark.parametrize(
    ("steps", "loss"),
    [(["thought"], "rule single_thought"), (["thought", "thought"], "novelty")],
)
def test_what_lowered_a_score_most(steps, loss, make_trace):
    """One thought alone scores 0.1 however new it is."""
    scorer = Scorer(embedder=None)
    scorer.remember(make_trace(*steps))
    assert scorer.score(make_trace(*steps)).largest_loss()[0] == loss


def test_row_has_a_column_for_each_figure(explained):
    breakdown, first = explained
    parts = {
        f"{name}{ending}": getattr(one, field)
        for name, one in breakdown.dimensions.items()
        for ending, field in (
            ("", "value"), ("_weight", "weight"), ("_contribution", "contribution"),
        )
    }  # fmt: skip
    row = {
        "score": breakdown.total, **parts, "weighted_sum": breakdown.weighted_sum,
        "profile": "code", "rules": "single_tool", "novelty_source": "nearest remembered trace",
        "nearest_id": first.id, "nearest_similarity": breakdown.nearest.similarity,
        "confidence_source": "trace", "elapsed_ms": breakdown.elapsed_ms, "worth": None,
        "worth_confidence": None, "agreement": None, "agreeing_runs": 0, "compared_runs": 0,
        "flags": "",
    }  # fmt: skip
    assert breakdown.to_row() == row
    assert list(breakdown.to_row()) == list(row)
    worth = Worth.of(0.5, 0.4)
    judged = dataclasses.replace(breakdown, nearest=None, worth=worth).to_row()
    assert judged == row | {
        "nearest_id": None, "nearest_similarity": None, "worth": worth.value,
        "worth_confidence": 0.5,
    }  # fmt: skip


PARTS = st.builds(Dimension, value=UNIT, weight=UNIT, contribution=UNIT, why=st.text())
SIMILARITIES = st.floats(-1, 1)
BREAKDOWNS = st.builds(
    ScoreBreakdown,
    total=UNIT,
    **dict.fromkeys(NAMES, PARTS),
    weighted_sum=UNIT,
    profile=st.text(),
    rules=st.lists(st.builds(RuleFired, name=st.text(), before=UNIT, after=UNIT)).map(tuple),
    novelty_source=st.text(),
    nearest=st.none() | st.builds(Nearest, trace_id=st.none() | st.text(), similarity=SIMILARITIES),
    confidence_source=st.text(),
    elapsed_ms=st.floats(0, 1e6),
    unreadable_share=st.none() | UNIT,
    worth=st.none() | st.builds(Worth.of, UNIT, UNIT),
)


@pytest.mark.parametrize("data", [None, [], {}, "{", {"total": "x"}])
def test_what_is_no_breakdown_is_refused(data):
    with pytest.raises(ValidationError):
        ScoreBreakdown.from_dict(data)


@given(BREAKDOWNS)
def test_any_breakdown_has_its_texts_and_survives_json(breakdown):
    data = json.loads(json.dumps(breakdown.to_dict(), allow_nan=False))
    assert ScoreBreakdown.from_dict(data) == breakdown
    assert breakdown.line()
    assert breakdown.text()
    *rows, last = [row for row in breakdown.waterfall() if row.kind in ("dimension", "score")]
    assert [row.end - row.start for row in rows] == pytest.approx(
        [one.contribution for one in breakdown.dimensions.values()]
    )
    assert (last.start, last.end) == (0, breakdown.total)
