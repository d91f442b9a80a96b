"""`Scorer`: scores, the caller's mistakes, an embedder's failures, and the settings."""

from __future__ import annotations

import json
import logging
import math

import numpy as np
import pytest
from pydantic import ValidationError

from kp_langchain import KPCallbackHandler, default_scorer, evaluate_value
from kp_langchain.errors import ConfigError, VectorError, WeightsError
from kp_langchain.scoring import Scorer, ScoringWeights, VectorCache
from tests.agents import ASK, searching
from tests.scoring.conftest import Returning, Words

EQUAL = {"complexity": 0.25, "novelty": 0.25, "tool_diversity": 0.25, "outcome_confidence": 0.25}


def test_novelty_is_the_distance_to_the_nearest_remembered_trace(make_trace):
    embedder = Words()
    scorer = Scorer(embedder=embedder, cache=(cache := VectorCache(dimensions=26)))
    trace, other = make_trace(), make_trace(objective="zebra zoo", content="zig")
    assert scorer.score(trace).novelty_source == "empty cache"
    assert (scorer.score(trace).novelty.value, cache.size) == (0.5, 0)
    calls = len(embedder.calls)
    assert scorer.evaluate(trace).novelty.value == 0.5
    assert len(embedder.calls) == calls + 1
    breakdown = scorer.score(make_trace())
    assert breakdown.novelty.value == pytest.approx(0.0, abs=1e-6)
    assert breakdown.novelty_source == "nearest remembered trace"
    assert breakdown.nearest.trace_id == trace.id
    assert breakdown.nearest.similarity == pytest.approx(1.0, abs=1e-6)
    assert scorer.score(other).novelty.value == pytest.approx(1.0, abs=1e-6)
    scorer.remember(other)
    assert scorer.evaluate(trace, ignore={trace.id}).nearest.trace_id == other.id


def test_a_vector_without_a_key(make_trace):
    cache = VectorCache(dimensions=26)
    cache.add(np.ones(26))
    breakdown = Scorer(embedder=Words(), cache=cache).score(make_trace())
    assert breakdown.nearest.trace_id is None
    assert "nearest remembered trace, a vector without a key" in breakdown.text()
    json.dumps(breakdown.to_dict(), allow_nan=False)


def test_the_domain_chooses_the_weights_and_a_call_may_bring_its_own(make_trace):
    own = ScoringWeights(0.7, 0.1, 0.1, 0.1)
    scorer = Scorer(embedder=None, profiles={"legal": own, "finance": EQUAL, "default": own})
    weights = {
        domain: scorer.score(make_trace(domain=domain)).complexity.weight
        for domain in ("legal", "finance", "code", "unheard of")
    }
    assert weights == {"legal": 0.7, "finance": 0.25, "code": 0.2, "unheard of": 0.7}
    assert scorer.profiles["legal"] == own
    assert Scorer(embedder=None).score(make_trace(domain="finance")).complexity.weight == 0.2
    for domain in ("Finance", "finance ", "legal", "custom", "ümläut"):
        assert Scorer(embedder=None).score(make_trace(domain=domain)).profile == "default"
    trace = make_trace(domain="finance")
    breakdown = scorer.score(trace, weights=ScoringWeights(0, 0, 0, 1))
    assert breakdown.profile == "custom"
    assert breakdown.total == pytest.approx(0.8, abs=1e-12)
    assert scorer.evaluate(trace, weights=EQUAL).novelty.weight == 0.25
    assert scorer.score(trace).profile == "finance"


def test_wire_form(make_trace):
    trace = make_trace(domain="code")
    scorer = Scorer(embedder=Words())
    wire = json.loads(trace.model_dump_json())
    assert scorer.evaluate(wire).total == scorer.evaluate(trace, ignore={trace.id}).total
    scorer.remember(wire)


@pytest.mark.parametrize("bad", [None, 1, "trace", [], {}, {"steps": []}, object()])
def test_what_is_no_trace_is_refused(bad):
    scorer = Scorer(embedder=None)
    for call in (scorer.score, scorer.evaluate, scorer.remember, scorer.entry):
        with pytest.raises(ValidationError):
            call(bad)


def test_lone_surrogates_and_megabytes(make_trace):
    scorer = Scorer(embedder=Words())
    trace = make_trace(content="x" * 2_000_000)
    # Validation refuses lone surrogates; a trace built or changed without it may hold them.
    task = trace.task.model_copy(update={"objective": "a\ud800 \udfff"})
    wild = trace.model_copy(update={"task": task})
    assert scorer.evaluate(wild).novelty_source == "empty cache"
    assert scorer.evaluate(wild).novelty.value == pytest.approx(0.0, abs=1e-6)


CACHE = VectorCache()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"step_cap": bad}, "^step_cap.* above 0, or None")
            for bad in (0, -1, 2.5, True, "20", math.inf)
        ),
        ({"max_remembered": 0}, "max_remembered is 0; it must be a whole number above 0, or None"),
        ({"max_remembered": True}, "max_remembered is True"),
        ({"cache": CACHE, "max_remembered": 5}, "VectorCache"),
        ({"profiles": [EQUAL]}, r"profiles is \[\{'complexity'.*give a mapping from domain"),
        ({"profiles": []}, r"profiles is \[\]; give a mapping from domain"),
        ({"profiles": {"legal": {**EQUAL, "novelty": 0.5}}}, r"profile 'legal'.*1\.25"),
    ],
)
def test_options_that_cannot_be_used_are_named(options, message):
    with pytest.raises((ConfigError, WeightsError), match=message):
        Scorer(embedder=None, **options)


# ------------------------------------------------------------------ an embedder that fails


class FirstError(RuntimeError):
    """Error types of this module's own, because each kind is logged once per process."""


def test_an_embedder_that_raises_is_logged_once_without_the_text(make_trace, caplog):
    good = [[1.0, 0.0]]
    error = FirstError("the secret text of the trace")
    scorer = Scorer(embedder=Returning(good, error, error, good))
    with caplog.at_level(logging.DEBUG, logger="kp_langchain"):
        traces = [make_trace(objective=f"task {number}") for number in range(4)]
        breakdowns = [scorer.evaluate(trace) for trace in traces]
    failed = "embedder failed: FirstError"
    sources = ["empty cache", failed, failed, "nearest remembered trace"]
    assert [one.novelty_source for one in breakdowns] == sources
    assert (breakdowns[1].novelty.value, breakdowns[1].nearest) == (0.5, None)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "FirstError" in caplog.text
    assert "secret" not in caplog.text


def test_embedder_none_says_so_and_logs_nothing(make_trace, caplog):
    with caplog.at_level(logging.DEBUG, logger="kp_langchain"):
        assert Scorer(embedder=None).evaluate(make_trace()).novelty_source == "no embedder"
    assert caplog.records == []


@pytest.mark.parametrize(
    "garbage", [None, [1.0, 2.0], [[math.nan, 0.0]], [[1.0], [2.0]], [[1e300]]]
)
def test_an_embedder_that_returns_garbage(make_trace, garbage):
    cache = VectorCache(dimensions=2)
    breakdown = Scorer(embedder=Returning(garbage), cache=cache).evaluate(make_trace())
    assert breakdown.novelty.value == 0.5
    assert breakdown.novelty_source == "embedder failed: BadEmbeddingError"
    assert cache.size == 0


def test_an_embedder_that_changes_its_length(make_trace):
    scorer = Scorer(embedder=Returning([[1.0, 0.0]], [[1.0, 0.0, 0.0]], [[1.0, 0.0]]))
    traces = [make_trace(objective=f"task {number}") for number in range(3)]
    sources = [scorer.evaluate(trace).novelty_source for trace in traces]
    failed = "embedder failed: BadEmbeddingError"
    assert sources == ["empty cache", failed, "nearest remembered trace"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_interrupts_pass(make_trace, interrupt):
    scorer = Scorer(embedder=Returning(interrupt))
    with pytest.raises(type(interrupt)):
        scorer.evaluate(make_trace())


def test_a_given_cache_of_another_length_is_the_caller_s_to_mend(make_trace):
    scorer = Scorer(embedder=Words(), cache=VectorCache(dimensions=384))
    for call in (scorer.score, scorer.remember, scorer.evaluate):
        with pytest.raises(VectorError, match=r"26.*384"):
            call(make_trace())


# ------------------------------------------------------------------ what the settings say


def test_the_settings_bound_the_memory_of_the_process(no_models, monkeypatch, make_trace):
    monkeypatch.setenv("KP_NOVELTY_MEMORY", "1")
    first, second = make_trace(), make_trace(objective="Bake bread.")
    assert evaluate_value(first) == evaluate_value(second)
    assert default_scorer().max_remembered == 1
    assert default_scorer().score(second).nearest.trace_id == second.id
    assert default_scorer().score(first).nearest is None  # the second has pushed it out


def test_a_handler_without_a_scorer_goes_by_the_settings(no_models, monkeypatch, make_trace):
    monkeypatch.setenv("KP_STEP_CAP", "1")
    handler = KPCallbackHandler(store=None)
    searching().invoke(ASK, {"callbacks": [handler]})
    scored = handler.last()
    assert len(scored.trace.steps) == 4
    capped = Scorer(embedder=None, step_cap=1).score(scored.trace)
    assert (
        scored.breakdown.complexity
        == capped.complexity
        == default_scorer().score(scored.trace).complexity
    )
    assert scored.breakdown.complexity != Scorer(embedder=None).score(scored.trace).complexity
