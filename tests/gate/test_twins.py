"""A run that repeats a kept one is kept only in its place, and only if it is surer."""

from __future__ import annotations

import math
import uuid
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ScoredTrace, Scorer, Verdict, trace_from_messages
from kp_langchain.embedding.identity import NO_IDENTITY, EmbedderIdentity
from kp_langchain.gate import rejudge
from kp_langchain.gate.twins import (
    SURER_BY,
    KeptTrace,
    find_twins,
    hold_against_twins,
    trusted_confidence,
)
from kp_langchain.scoring import MemoryEntry

MODEL = EmbedderIdentity("letters")


def at(degrees: float, length: float = 1.0) -> np.ndarray:
    angle = math.radians(degrees)
    return np.array([math.cos(angle), math.sin(angle)], dtype=np.float32) * np.float32(length)


def degrees_of(similarity: float) -> float:
    return math.degrees(math.acos(similarity))


def kept(
    name: str,
    vector: np.ndarray | None = None,
    *,
    text: bytes | None = None,
    confidence: float = 0.5,
    is_stated: bool = False,
    identity: EmbedderIdentity = MODEL,
    run_id: str = "",
    may_leave: bool = False,
    namespace: str | None = None,
) -> KeptTrace:
    entry = MemoryEntry(name, text or name.encode(), vector, identity)
    return KeptTrace(entry, run_id or name, confidence, is_stated, may_leave, namespace)


@cache
def passed() -> ScoredTrace:
    trace = trace_from_messages([("user", "What is 6 x 7?"), ("ai", "42")], domain="default")
    return ScoredTrace(
        trace=trace,
        breakdown=Scorer(embedder=None).score(trace),
        decision="contributed",
        threshold=0.0,
        run_id=uuid.uuid4(),
        keep_days=7.0,
        twin_similarity=0.9,
    )


def similarities(one: KeptTrace, *others: KeptTrace, least: float = 0.0) -> list[float]:
    return [twin.similarity for twin in find_twins(one, others, least)]


def test_without_a_twin_a_run_is_as_it_was() -> None:
    assert hold_against_twins(passed(), kept("new", at(0)), []) == passed()
    far = kept("far", at(degrees_of(0.89)))
    assert hold_against_twins(passed(), kept("new", at(0)), [far]) == passed()


def test_a_twin_that_is_not_surer_is_not_kept() -> None:
    near = kept("near", at(degrees_of(0.91)))
    held = hold_against_twins(passed(), kept("new", at(0), confidence=0.5 + SURER_BY / 2), [near])
    assert (held.decision, held.twin_of, held.replaces) == ("below_threshold", "near", ())
    assert held.similarity_to_twin == pytest.approx(0.91, abs=1e-4)
    assert held.keep_body  # a verdict may still contribute it
    at_once = replace(passed(), keep_days=0)
    assert not hold_against_twins(at_once, kept("new", at(0)), [near]).keep_body


def test_one_that_is_surer_takes_its_place() -> None:
    near = kept("near", at(5), confidence=0.5)
    held = hold_against_twins(passed(), kept("new", at(0), confidence=0.65), [near])
    assert (held.decision, held.twin_of, held.replaces) == ("contributed", None, ("near",))


def test_one_that_repeats_several_must_be_surer_than_each_and_takes_the_place_of_all() -> None:
    left, right = kept("left", at(-20), confidence=0.5), kept("right", at(15), confidence=0.7)
    assert find_twins(left, [right], 0.9) == []
    half = hold_against_twins(passed(), kept("new", at(0), confidence=0.8), [left, right])
    assert (half.decision, half.twin_of) == ("below_threshold", "right")
    whole = hold_against_twins(passed(), kept("new", at(0), confidence=0.9), [left, right])
    assert (whole.decision, whole.replaces) == ("contributed", ("left", "right"))


def test_an_estimate_never_takes_the_place_of_what_a_verdict_states() -> None:
    stated = kept("stated", confidence=0.3, is_stated=True, text=b"same")
    estimate = kept("new", confidence=1.0, text=b"same")
    assert hold_against_twins(passed(), estimate, [stated]).twin_of == "stated"
    verdict = replace(estimate, is_stated=True)
    assert hold_against_twins(passed(), verdict, [stated]).replaces == ("stated",)


def test_the_same_text_is_a_twin_whatever_the_vectors() -> None:
    same = kept("same", text=b"text")
    assert similarities(kept("new", at(0), text=b"text"), same, least=0.99) == [1.0]
    one, other = (
        replace(kept(name), entry=MemoryEntry(name, None)) for name in ("nothing", "other")
    )
    assert find_twins(one, [same, other], 0.9) == []


def test_vectors_of_another_embedder_or_length_are_not_compared() -> None:
    new = kept("new", at(0))
    assert similarities(new, kept("a", at(0), identity=NO_IDENTITY), least=0.1) == []
    assert similarities(new, kept("a", np.ones(3, np.float32)), least=0.1) == []
    assert similarities(new, kept("a", np.zeros(2, np.float32)), least=0.1) == []


def test_similarity_is_counted_from_the_embedders_baseline() -> None:
    high = EmbedderIdentity("e5", "", 0.8)
    one, other = (kept(name, at(angle), identity=high) for name, angle in (("a", 0), ("b", 20)))
    cosine = math.cos(math.radians(20))  # 0.94
    assert similarities(one, other) == pytest.approx([(cosine - 0.8) / 0.2])


@given(st.floats(1e-18, 1e18), st.floats(1e-18, 1e18), st.floats(0, 180))
def test_similarity_depends_on_the_direction_alone(
    length: float, other: float, degrees: float
) -> None:
    (similarity,) = similarities(kept("a", at(0, length)), kept("b", at(degrees, other)))
    assert 0.0 <= similarity <= 1.0
    assert similarity == pytest.approx(max(0.0, math.cos(math.radians(degrees))), abs=1e-5)


def test_traces_of_one_run_are_no_twins() -> None:
    one = kept("one", text=b"text", run_id="run")
    assert find_twins(kept("two", text=b"text", run_id="run"), [one], 0.9) == []
    assert find_twins(replace(one, run_id="again"), [one], 0.9) == []  # its own id


def test_what_is_private_holds_back_nothing_that_others_may_see() -> None:
    private, public = kept("private", text=b"x"), kept("public", text=b"x", may_leave=True)
    assert find_twins(public, [private], 0.9) == []
    assert [twin.kept for twin in find_twins(private, [public], 0.9)] == [public]


def test_with_1_the_rule_is_off() -> None:
    run = replace(passed(), twin_similarity=1.0)
    assert hold_against_twins(run, kept("new", text=b"x"), [kept("old", text=b"x")]) == run


def test_a_run_that_did_not_pass_is_no_twin() -> None:
    run = replace(passed(), decision="below_threshold")
    assert hold_against_twins(run, kept("new", text=b"x"), [kept("old", text=b"x")]) is run


def test_the_confidence_is_that_of_the_worth_if_there_is_one() -> None:
    breakdown = passed().breakdown
    assert trusted_confidence(breakdown) == breakdown.outcome_confidence.value
    assert trusted_confidence(breakdown.with_worth(0.37)) == 0.37


def test_a_verdict_has_what_a_run_repeats_looked_up_again() -> None:
    twin = hold_against_twins(passed(), kept("new", text=b"x"), [kept("old", text=b"x")])
    judged = rejudge(twin, Verdict(success=True))
    assert (judged.decision, judged.twin_of, judged.similarity_to_twin) == (
        "contributed",
        None,
        None,
    )
    assert judged.previous is twin
    assert rejudge(replace(passed(), replaces=("old",)), Verdict(success=True)).replaces == ()


@pytest.mark.parametrize("length", [1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_vectors_of_any_length_are_compared(length: float) -> None:
    others = [kept("a", at(0)), kept("b", at(60, 1e-25)), kept("c", at(90, 1e25))]
    assert similarities(kept("new", at(0, length)), *others) == pytest.approx([1, 0.5, 0], abs=1e-5)


def test_a_vector_that_is_no_direction_is_like_none() -> None:
    for value in (math.nan, math.inf, 0.0):
        odd = kept("odd", np.array([value, 1.0 if value else 0.0], np.float32))
        assert similarities(odd, kept("a", at(0)), least=0.1) == []
        assert similarities(kept("new", at(0)), odd, kept("a", at(0)), least=0.1) == [1.0]


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a", None), (None, "b")])
def test_runs_of_different_namespaces_are_no_twins(one: str | None, other: str | None) -> None:
    candidate = kept("candidate", text=b"same", namespace=one)
    assert find_twins(candidate, [kept("kept", text=b"same", namespace=other)], 0.9) == []
    assert len(find_twins(candidate, [kept("kept", text=b"same", namespace=one)], 0.9)) == 1
