"""Decisions of the gate: threshold or rate, score or worth, and what a run repeats.

Pure functions; how they are named is said once, in `checked`, `decided` and `passes`.
"""

from __future__ import annotations

import math
import random
import uuid
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage

from kp_langchain import (
    DomainPolicy,
    ScoreBreakdown,
    ScoredTrace,
    Scorer,
    ScoringWeights,
    Verdict,
    trace_from_messages,
)
from kp_langchain.embedding.embedder import NO_IDENTITY, EmbedderIdentity
from kp_langchain.gate import rejudge, threshold_of
from kp_langchain.gate.check import NONE_PASSES, WINDOW, JudgedRun, RecentValues, check
from kp_langchain.gate.run import reason_text
from kp_langchain.gate.twins import SURER_BY, KeptTrace, drop_repeats
from kp_langchain.novelty_sources import NEAREST
from kp_langchain.scoring import MemoryEntry, Worth
from kp_langchain.scoring.novelty_memory import Window

units = st.floats(0, 1)


@cache
def breakdown() -> ScoreBreakdown:
    trace = trace_from_messages([("user", "What is 6 x 7?"), ("ai", "42")], domain="default")
    return Scorer(embedder=None).score(trace)  # novelty 0.5, a single thought


def with_worth(confidence: float) -> ScoreBreakdown:
    return breakdown().with_worth(confidence, "a model")


def scored(confidence: float, weights: ScoringWeights | None = None) -> ScoreBreakdown:
    """A run with a tool call, with the confidence of a model."""
    messages = [
        ("user", "What is 6 x 7?"),
        ("ai", "I search."),
        AIMessage("", tool_calls=[{"name": "search", "args": {"q": "6"}, "id": "1"}]),
        ToolMessage("42", tool_call_id="1"),
        ("ai", "42"),
    ]
    trace = trace_from_messages(messages, domain="default")
    trace.outcome.confidence = confidence
    return Scorer(embedder=None).score(trace, weights=weights).with_worth(confidence, "a model")


def checked(one, values=(), base_rate=0.0, *, has_model=True, **policy):
    """What a run is held against: gate, value, threshold, pass rate."""
    policy = DomainPolicy(**policy)
    return check(
        one,
        "default",
        policy,
        recent=lambda _: RecentValues(values),
        is_new=len(values) < 30,
        has_model=has_model,
        base_rate=base_rate,
    )


# ------------------------------------------------------------------ score or worth

HUNDRED = [number / 100 for number in range(100)]
BY_WORTH = {"gate": "worth"}
FIXED = {"worth_threshold": 0.3, "threshold": 0.7}
BUILT_IN = threshold_of("default", None).unmeasured


@pytest.mark.parametrize(
    ("one", "values", "policy", "gate", "threshold", "rate"),
    [
        (with_worth(0.9), [], {}, "score", BUILT_IN, None),
        # A domain without a model is gated by its score whatever the policy says.
        (breakdown(), [], {**BY_WORTH, **FIXED}, "score", 0.7, None),
        (with_worth(0.8), [], {**BY_WORTH, **FIXED}, "worth", 0.3, None),
        # It waits until 30 runs are known, unless a threshold is set.
        (breakdown(), [0.5] * 29, BY_WORTH, "score", NONE_PASSES, None),
        (breakdown(), [0.5] * 30, BY_WORTH, "score", BUILT_IN, None),
        # Without a threshold the best tenth of the recent worths passes.
        (with_worth(0.8), HUNDRED, BY_WORTH, "worth", 0.9, 0.1),
        (with_worth(0.8), HUNDRED[:10], BY_WORTH, "worth", 0.09, 0.1),
        (with_worth(0.8), HUNDRED, {**BY_WORTH, "pass_rate": 0.3}, "worth", 0.7, 0.3),
        (with_worth(0.8), HUNDRED, {**BY_WORTH, "worth_threshold": 0.3}, "worth", 0.3, None),
        (with_worth(0.8), [0.1] * 9, {**BY_WORTH, "threshold": 0.4}, "score", 0.4, None),
        (breakdown(), HUNDRED, {"pass_rate": 0.2, "threshold": 0.95}, "score", 0.8, 0.2),
        (breakdown(), [0.5] * 9, {"pass_rate": 0.2, "threshold": 0.95}, "score", 0.95, None),
    ],
)  # fmt: skip
def test_what_a_run_is_held_against(one, values, policy, gate, threshold, rate):
    found = checked(one, values, has_model=one.worth is not None, **policy)
    value = one.total if gate == "score" else one.worth.value
    assert found == (gate, value, threshold, rate)


def test_a_fixed_threshold_of_the_worth_is_for_calibrated_ones():
    policy = {**BY_WORTH, "worth_threshold": 0.2}
    found = checked(with_worth(0.6), HUNDRED, has_model=False, **policy)
    assert (found.threshold, found.pass_rate) == (0.9, 0.1)
    few = checked(with_worth(0.6), [0.1] * 9, has_model=False, **policy)
    assert (few.gate, few.threshold) == ("score", NONE_PASSES)


@pytest.mark.parametrize(
    ("domain", "measured", "unmeasured"),
    [
        ("default", 0.59, 0.65), ("finance", 0.61, 0.68), ("code", 0.62, 0.71),
        ("medical", 0.67, 0.71), ("customer_service", 0.63, 0.74), ("of the user", 0.59, 0.65),
    ],
)  # fmt: skip
def test_the_threshold_of_a_domain_depends_on_whether_novelty_was_measured(
    domain, measured, unmeasured
):
    assert threshold_of(domain, None) == (measured, unmeasured)


@given(units, units)
def test_worth_is_confidence_times_three_quarters_and_a_quarter_of_the_novelty(confidence, novelty):
    worth = Worth.of(confidence, novelty)
    assert worth.value == pytest.approx(confidence * (0.75 + novelty / 4))
    assert confidence * 0.75 <= worth.value <= confidence


@given(units, units)
def test_no_run_passes_by_a_rate_whose_confidence_is_below_the_base_rate(confidence, base_rate):
    # What is smaller than the rounding of the sum does not count.
    is_clear = abs(confidence - base_rate) > 1e-12
    for gate, one in (("score", scored(confidence)), ("worth", with_worth(confidence))):
        found = checked(one, [0.0] * 50, base_rate, pass_rate=1.0, gate=gate)
        assert (found.gate, 0 <= found.threshold <= 1) == (gate, True)
        assert not is_clear or (found.value >= found.threshold) is (confidence >= base_rate)


def test_a_score_that_does_not_count_the_confidence_is_not_held_against_the_base_rate():
    weights = ScoringWeights(
        complexity=0.5, novelty=0.25, tool_diversity=0.25, outcome_confidence=0.0
    )
    # The second is a single thought.
    for one in (scored(0.1, weights), with_worth(0.1)):
        found = checked(one, [0.0] * 50, 0.6, pass_rate=1.0)
        assert found.value >= found.threshold
    confirmed = scored(0.95).with_worth(0.3, "a model")  # it states more than the model believes
    found = checked(confirmed, [0.1] * 50, 0.6, pass_rate=0.1)
    assert found.value >= found.threshold


def test_worth_is_shown_beside_the_score_and_survives_json():
    one = with_worth(0.8)
    assert one.line().endswith("; worth 0.700")
    assert "worth               0.800 x 0.88 = 0.700" in one.text()
    assert "worth from          a model" in one.text()
    assert ScoreBreakdown.from_dict(one.to_dict()) == one
    assert "worth" not in breakdown().text() + breakdown().line()
    old = {name: value for name, value in one.to_dict().items() if name != "worth"}
    assert ScoreBreakdown.from_dict(old) == replace(one, worth=None)


# ------------------------------------------------------------------ the threshold of a pass rate


def passes(recent: RecentValues, values: list[float], pass_rate: float) -> list[bool]:
    """Gate values one after the other."""
    decisions = []
    for value in values:
        threshold = recent.threshold(pass_rate)
        decisions.append(threshold is not None and value >= threshold)
        recent.add(JudgedRun(value, decisions[-1], pass_rate))
    return decisions


def drawn(seed: int, number: int) -> list[float]:
    draw = random.Random(seed)
    return [draw.random() for _ in range(number)]


FALLING = [value * (1 - 0.4 * at / 300) for at, value in enumerate(drawn(3, 300))]
NEVER_BY_RATE = [JudgedRun(value, passes=False, pass_rate=None) for value in drawn(4, WINDOW)]


@pytest.mark.parametrize(
    ("recent", "values", "rate"),
    [
        *((RecentValues(drawn(1, 100)), drawn(2, 300), rate) for rate in (0.05, 0.1, 0.3, 0.7)),
        (RecentValues(drawn(1, 150)), FALLING, 0.1),
        (RecentValues([0.5] * 50), [0.5] * 300, 0.1),  # runs of one value
        # What passed by a fixed threshold is not made up for.
        (RecentValues((), NEVER_BY_RATE), drawn(2, 300), 0.1),
        (RecentValues([0.2] * 40), [0.2, 0.9, 0.3], 1.0),
    ],
)
def test_the_promised_share_passes(recent, values, rate):
    assert sum(passes(recent, values, rate)) / len(values) == pytest.approx(rate, abs=0.02)


def test_a_restart_between_changes_nothing_and_another_rate_holds_at_once():
    values = drawn(2, WINDOW)
    whole = passes(RecentValues(drawn(1, 150)), values, 0.1)
    before = whole[:120]
    judged = [JudgedRun(one, done, 0.1) for one, done in zip(values, before, strict=False)]
    again = RecentValues(drawn(1, 150), judged)
    assert [*before, *passes(again, values[120:], 0.1)] == whole
    for first, second in ((0.1, 0.3), (0.3, 0.1)):
        recent = RecentValues(drawn(1, 100))
        passes(recent, drawn(2, 300), first)
        assert sum(passes(recent, drawn(5, 200), second)) / 200 == pytest.approx(second, abs=0.03)
    few = RecentValues([0.5] * 9)
    assert few.threshold(0.1) is None
    few.add(JudgedRun(0.5, passes=False, pass_rate=0.1))
    assert few.threshold(0.1) is not None


@given(
    st.lists(units, min_size=30, max_size=300),
    st.lists(st.booleans(), max_size=300),
    st.floats(0.01, 1.0),
)
def test_whatever_came_before_the_share_is_at_most_four_times_the_promised_one(
    values, decisions, pass_rate
):
    recent = RecentValues(values, (JudgedRun(0.5, one, pass_rate) for one in decisions))
    known = [*values, *[0.5] * len(decisions)][-WINDOW:]
    above = sum(value > recent.threshold(pass_rate) for value in known)
    assert above <= round(min(1.0, 4 * pass_rate) * len(known))


# ------------------------------------------------------------------ what a run repeats

MODEL = EmbedderIdentity("letters")


def at(degrees: float, length: float = 1.0) -> np.ndarray:
    angle = math.radians(degrees)
    return np.array([math.cos(angle), math.sin(angle)], dtype=np.float32) * np.float32(length)


def degrees_of(similarity: float) -> float:
    return math.degrees(math.acos(similarity))


def kept(name, vector=None, *, text=None, confidence=0.5, is_stated=False, identity=MODEL,
         run_id="", may_leave=False, namespace=None) -> KeptTrace:  # fmt: skip
    entry = MemoryEntry(name, text or name.encode(), vector, identity)
    return KeptTrace(entry, run_id or name, confidence, is_stated, may_leave, namespace)


@cache
def passed() -> ScoredTrace:
    return ScoredTrace(
        trace=trace_from_messages([("user", "What is 6 x 7?"), ("ai", "42")], domain="default"),
        breakdown=breakdown(), decision="kept", threshold=0.0, run_id=uuid.uuid4(),
        keep_days=7.0, twin_similarity=0.9,
    )  # fmt: skip


def decided(candidate: KeptTrace, *others: KeptTrace, **options) -> ScoredTrace:
    return drop_repeats(replace(passed(), **options), candidate, window_of(*others))


def window_of(*kept_traces: KeptTrace) -> Window[KeptTrace]:
    window: Window[KeptTrace] = Window(10)
    window.put((one.entry, one) for one in kept_traces)
    return window


LEFT, RIGHT = kept("left", at(-20), confidence=0.5), kept("right", at(15), confidence=0.7)
STATED = kept("stated", text=b"new", confidence=0.3, is_stated=True)
OLD = kept("old", text=b"new")


@pytest.mark.parametrize(
    ("candidate", "others", "options", "twin_of", "replaces"),
    [
        (kept("new", at(0)), [], {}, None, ()),
        (kept("new", at(0)), [kept("far", at(degrees_of(0.89)))], {}, None, ()),
        (kept("new", at(0)), [kept("near", at(degrees_of(0.91)))], {}, "near", ()),
        (kept("new", at(0), confidence=0.5 + SURER_BY / 2), [kept("n", at(5))], {}, "n", ()),
        (kept("new", at(0), confidence=0.5 + SURER_BY), [kept("n", at(5))], {}, None, ("n",)),
        # One that repeats several must be surer than each, and takes the place of all.
        (kept("new", at(0), confidence=0.8), [LEFT, RIGHT], {}, "right", ()),
        (kept("new", at(0), confidence=0.9), [LEFT, RIGHT], {}, None, ("left", "right")),
        # An estimate never takes the place of what a verdict states.
        (kept("new", confidence=1.0), [STATED], {}, "stated", ()),
        (kept("new", confidence=1.0, is_stated=True), [STATED], {}, None, ("stated",)),
        (kept("new"), [OLD], {}, "old", ()),  # the same text, without vectors
        (kept("new"), [OLD], {"twin_similarity": 1.0}, None, ()),  # the rule is off
        (kept("new"), [OLD], {"decision": "below_threshold"}, None, ()),
        # Traces of one run, and other namespaces.
        (kept("new", run_id="old"), [OLD], {}, None, ()),
        (kept("new"), [replace(OLD, namespace="a")], {}, None, ()),
        (kept("new", namespace="a"), [OLD], {}, None, ()),
        (kept("new", namespace="a"), [replace(OLD, namespace="b")], {}, None, ()),
        (kept("new", namespace="a"), [replace(OLD, namespace="a")], {}, "old", ()),
        # What is private holds back nothing that others may see.
        (kept("new", may_leave=True), [OLD], {}, None, ()),
        (kept("new"), [replace(OLD, may_leave=True)], {}, "old", ()),
    ],
)
def test_a_repeat_is_kept_only_in_the_place_of_what_it_repeats(
    candidate, others, options, twin_of, replaces
):
    run = decided(candidate, *others, **options)
    assert (run.twin_of, run.replaces) == (twin_of, replaces)
    if twin_of is not None:
        assert (run.decision, run.keep_body) == ("twin", True)  # for a verdict
        assert 0.9 <= run.similarity_to_twin <= 1.0
        assert not decided(candidate, *others, keep_days=0).keep_body
    else:
        assert run.decision == options.get("decision", "kept")


def test_what_counts_as_one_more_kept():
    twin = decided(kept("new"), OLD)
    in_place = replace(passed(), replaces=("old",))
    assert [one.counts_toward_rate for one in (passed(), twin, in_place)] == [True, False, False]


def similarities(one: KeptTrace, *others: KeptTrace, least: float = 0.0) -> list[float]:
    return [similarity for _, similarity in window_of(*others).similar(one.entry, least)]


def test_similarity_is_counted_from_the_baseline_of_one_embedder():
    high = EmbedderIdentity("e5", "", 0.8)
    one, other = (kept(name, at(angle), identity=high) for name, angle in (("a", 0), ("b", 20)))
    cosine = math.cos(math.radians(20))  # 0.94
    assert similarities(one, other) == pytest.approx([(cosine - 0.8) / 0.2])
    new = kept("new", at(0))
    for odd in (
        kept("a", at(0), identity=NO_IDENTITY), kept("a", np.ones(3, np.float32)),
        kept("a", np.zeros(2, np.float32)),
    ):  # fmt: skip
        assert similarities(new, odd, least=0.1) == similarities(odd, new, least=0.1) == []
        assert similarities(new, odd, kept("b", at(0)), least=0.1) == [1.0]
    nothing = replace(kept("nothing"), entry=MemoryEntry("nothing", None))
    assert similarities(nothing, kept("a", text=b"x"), least=0.9) == []
    for length in (1e-30, 1e30):
        others = [kept("a", at(0)), kept("b", at(60, 1e-25)), kept("c", at(90, 1e25))]
        expected = pytest.approx([1, 0.5, 0], abs=1e-5)
        assert similarities(kept("new", at(0, length)), *others) == expected


def test_a_verdict_has_what_a_run_repeats_looked_up_again():
    twin = decided(kept("new"), OLD)
    judged = rejudge(twin, Verdict(success=True))
    assert (judged.decision, judged.twin_of, judged.similarity_to_twin) == (
        "kept", None, None,
    )  # fmt: skip
    assert judged.previous is twin
    assert rejudge(replace(passed(), replaces=("old",)), Verdict(success=True)).replaces == ()
    # The confidence that counts is that of the worth, if there is one.
    entry = MemoryEntry("new", b"new")
    assert KeptTrace.of(passed(), entry).confidence == breakdown().outcome_confidence.value
    by_worth = replace(passed(), breakdown=with_worth(0.37))
    assert KeptTrace.of(by_worth, entry).confidence == 0.37


@pytest.mark.parametrize(
    ("value", "threshold", "words"),
    [
        (0.5899, 0.59, "score 0.5899 is below the threshold of finance, 0.59"),
        (0.7, 0.70004, "score 0.70000 is below the threshold of finance, 0.70004"),
        (0.48, 0.491504, "score 0.480 is below the threshold of finance, 0.492"),
        (0.5, math.nextafter(0.5, 1.0), "score 0.500 is not above the threshold of finance, 0.5"),
    ],
)
def test_the_reason_shows_as_many_digits_as_tell_a_value_from_its_threshold(
    value: float, threshold: float, words: str
) -> None:
    breakdown = SimpleNamespace(
        novelty_source=NEAREST, worth=None, agreement=None, largest_loss=lambda _: None
    )
    run: Any = SimpleNamespace(
        decision="below_threshold", withheld=None, veto=None, gate="score",
        gated_value=value, threshold=threshold, breakdown=breakdown,
    )  # fmt: skip
    assert reason_text(run, "finance", None) == words
