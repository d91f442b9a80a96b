"""Runs of a domain with a confidence model: what it makes of looks, and the gate by worth."""

from __future__ import annotations

import logging
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from kp_langchain import DomainPolicy, KPCallbackHandler, ScoredTrace, TraceStore
from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.hypothetical_score import estimated_score, hypothetical_worth
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.scoring import PROFILES
from tests.agents import ASK, agent, broken, call, handler, say, search, searching

CONFIDENCE = 0.7109495


def model(**changes: Any) -> ConfidenceModel:
    """Return a model by which every run is right with the probability `CONFIDENCE`."""
    fields: dict[str, Any] = {
        "domain": "default",
        "features_version": FEATURES_VERSION,
        "created_at": datetime(2026, 3, 1, tzinfo=UTC),
        "runs": 214,
        "tasks": 90,
        "base_rate": 0.5,
        "auc": 0.74,
        "auc_low": 0.67,
        "auc_high": 0.8,
        "brier": 0.2,
        "default_brier": 0.3,
        "intercept": 0.9,
        "terms": (),
        "worths": tuple(number / 100 for number in range(100)),
    }
    return ConfidenceModel(**fields | changes)


@pytest.fixture
def store(folder: Path) -> TraceStore:
    store = TraceStore(folder / "traces.db")
    store.models.install(model())
    return store


def last(watching: KPCallbackHandler, runnable: Any, task: Any = ASK) -> ScoredTrace:
    runnable.invoke(task, {"callbacks": [watching]})
    scored = watching.last(300)
    assert scored is not None
    return scored


def test_a_run_that_only_looks_like_a_failure_has_the_models_confidence(store: TraceStore) -> None:
    scored = last(handler(store=store), agent(say("I search.", call("search", q="a")), say("")))
    without = last(handler(store=None), agent(say("I search.", call("search", q="a")), say("")))
    assert without.trace.metadata.success is False
    assert without.breakdown.outcome_confidence.value == pytest.approx(0.2 * 0.3)
    assert scored.breakdown.outcome_confidence.value == pytest.approx(CONFIDENCE)
    assert scored.features is not None
    assert scored.features["looked_successful"] == 0.0


@pytest.mark.parametrize(("confidence", "success"), [(0.5, True), (0.49, False)])
def test_a_run_that_looks_like_a_failure_is_a_success_if_that_is_likelier(
    folder: Path, confidence: float, *, success: bool
) -> None:
    store = TraceStore(folder / "traces.db")
    store.models.install(model(intercept=math.log(confidence / (1 - confidence))))
    scored = last(handler(store=store), agent(say("I search.", call("search", q="a")), say("")))
    assert scored.trace.metadata.success is success
    outcome = scored.breakdown.outcome_confidence
    assert outcome.value == scored.trace.outcome.confidence == pytest.approx(confidence)
    assert outcome.contribution == pytest.approx(confidence * outcome.weight)
    parts = sum(one.contribution for one in scored.breakdown.dimensions.values())
    assert scored.breakdown.weighted_sum == pytest.approx(parts)
    assert outcome.why.endswith("succeeded" if success else "looked like a failure")
    run = store.get(scored.trace.id)
    assert run is not None
    assert (run.success, run.score) == (success, scored.breakdown.total)
    # What calibrate would say of it.
    store.report_outcome(scored.trace.id, success=True)
    (labelled,) = store.models.labelled("default")
    weights = PROFILES["default"]
    assert estimated_score(labelled, weights, confidence) == pytest.approx(run.score)
    assert hypothetical_worth(labelled, confidence) == pytest.approx(run.worth)


def test_a_run_that_an_error_ended_has_failed_whatever_the_model_says(store: TraceStore) -> None:
    watching = handler(store=store)
    with pytest.raises(ValueError, match="bad x"):
        agent(say("", call("broken", x="1")), tools=(broken,)).invoke(
            ASK, {"callbacks": [watching]}
        )
    scored = watching.last(300)
    assert scored is not None
    assert scored.trace.metadata.success is False
    assert scored.breakdown.outcome_confidence.value == pytest.approx(CONFIDENCE * 0.3)
    assert scored.breakdown.worth is not None
    assert scored.breakdown.worth.confidence == pytest.approx(CONFIDENCE * 0.3)
    assert scored.features is not None
    assert scored.features["proves_failure"] == 1.0


def test_a_stated_failure_counts_whatever_the_model_says(store: TraceStore) -> None:
    scored = last(handler(store=store, outcome=lambda _: {"success": False, "confidence": 0.5}),
                  searching())  # fmt: skip
    assert scored.breakdown.outcome_confidence.value == pytest.approx(0.15)
    assert scored.worth == pytest.approx(0.15 * 0.75)


def test_worth_stands_beside_the_score_and_the_score_stays_the_gate(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kp_langchain"):
        scored = last(handler(store=store), searching())
    assert scored.gate == "score"
    assert scored.worth == pytest.approx(CONFIDENCE * 0.75)
    (record,) = (one for one in caplog.records if one.kp_event == "kp.trace_scored")
    assert (record.gate, record.worth) == ("score", scored.worth)
    run = store.get(scored.trace.id)
    assert run is not None
    assert (run.gate, run.worth) == ("score", scored.worth)


def test_a_domain_may_be_gated_by_worth(store: TraceStore) -> None:
    for worth_threshold, decision in ((0.5, "contributed"), (0.6, "below_threshold")):
        policy = DomainPolicy(gate="worth", worth_threshold=worth_threshold, threshold=1.0)
        scored = last(handler(store=store, policy=policy), searching())
        assert (scored.gate, scored.threshold) == ("worth", worth_threshold)
        assert scored.decision == decision


def test_without_its_model_a_domain_gated_by_worth_is_gated_by_its_score(folder: Path) -> None:
    policy = DomainPolicy(gate="worth", worth_threshold=0.0, threshold=1.0)
    scored = last(handler(store=TraceStore(folder / "other.db"), policy=policy), searching())
    assert (scored.gate, scored.worth, scored.threshold) == ("score", None, 1.0)
    assert scored.decision == "below_threshold"


def test_with_a_model_the_best_tenth_passes_unless_a_threshold_is_set(folder: Path) -> None:
    # The model is less sure than the default was: the built-in thresholds were not made for it.
    store = TraceStore(folder / "scores.db")
    store.models.install(model(scores=tuple(number / 200 for number in range(100))))
    scored = last(handler(store=store), searching())
    assert (scored.gate, scored.threshold) == ("score", 0.45)
    assert scored.decision == "contributed"
    fixed = last(handler(store=store, policy=DomainPolicy(threshold=0.59)), searching())
    assert (fixed.gate, fixed.threshold) == ("score", 0.59)


def test_a_verdict_moves_the_worth_and_the_gate_stays(store: TraceStore) -> None:
    policy = DomainPolicy(gate="worth", worth_threshold=0.6)
    scored = last(handler(store=store, policy=policy), searching())
    assert scored.decision == "below_threshold"
    (change,) = store.report_outcome(scored.trace.id, success=True)
    assert (change.gate, change.worth, change.decision) == ("worth", 0.75, "contributed")
    assert change.worth_before == pytest.approx(CONFIDENCE * 0.75)
    run = store.get(scored.trace.id)
    assert run is not None
    assert (run.gate, run.worth, run.decision) == ("worth", 0.75, "contributed")
    (change,) = store.report_outcome(scored.trace.id, success=False)
    assert (change.worth, change.decision) == (0.0, "below_threshold")


def test_a_confidence_that_the_run_states_itself_is_not_its_worth(store: TraceStore) -> None:
    def boast(_: object) -> dict[str, float]:
        search.invoke({"q": "a"})
        return {"confidence": 1.0}

    scored = last(handler(store=store), RunnableLambda(boast), "how sure are you?")
    assert scored.breakdown.confidence_source == "structured output"
    assert scored.breakdown.worth is not None
    assert scored.breakdown.worth.confidence == pytest.approx(CONFIDENCE)


def test_the_rate_begins_with_the_models_held_out_worths_and_survives_a_restart(
    store: TraceStore,
) -> None:
    policy = DomainPolicy(gate="worth", pass_rate=0.3)
    first = last(handler(store=store, policy=policy), searching())
    assert first.gate == "worth"
    assert first.threshold == pytest.approx(0.7)
    assert store.recent_values("default", "worth") == [(first.worth, False, 0.3)]
    again = last(handler(store=TraceStore(store.location), policy=policy), searching())
    # One run of 101 did not pass, of which 0.3 should have: of the next, 0.315 are to pass.
    assert again.threshold == pytest.approx(0.68)
    store.report_outcome(first.trace.id, success=True)
    both = [(first.worth, False, 0.3), (again.worth, False, 0.3)]
    assert store.recent_values("default", "worth") == both
    assert store.recent_values("default", "score") == []
