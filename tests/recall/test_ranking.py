"""The order of kept traces for a task."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kp_langchain.recall.ranking import Candidate, Trust, rank
from kp_langchain.recall.usable_calls import similarity_weight

_UNITS = st.floats(0.0, 1.0)
_NUMBERS = st.one_of(_UNITS, st.sampled_from([math.nan, math.inf, -math.inf, -3.0, 7.0]))
_TRUSTS: st.SearchStrategy[Trust] = st.sampled_from(("verdict", "own", "registry"))


def candidate(trace_id: str = "kp:trace:1", **changes: object) -> Candidate:
    one = Candidate(
        trace_id,
        similarity=0.8,
        trust="own",
        success=True,
        confidence=0.8,
        worth=0.6,
        credit=0.0,
        hurts=False,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


@st.composite
def candidates(draw: st.DrawFn) -> list[Candidate]:
    number = draw(st.integers(0, 12))
    return [
        Candidate(
            f"kp:trace:{at}",
            similarity=draw(_NUMBERS),
            trust=draw(_TRUSTS),
            success=draw(st.booleans()),
            confidence=draw(_NUMBERS),
            worth=draw(_NUMBERS),
            credit=draw(_NUMBERS),
            hurts=draw(st.booleans()),
            plan=draw(st.dictionaries(st.sampled_from("abc"), st.integers(-1, 3))),
            weight=draw(_NUMBERS),
        )
        for at in range(number)
    ]


def ids(ranked: list[Candidate]) -> list[str]:
    return [one.trace_id for one in ranked]


@given(candidates(), st.randoms(use_true_random=False), _UNITS)
def test_the_order_given_does_not_matter(found, shuffled, floor):
    other = list(found)
    shuffled.shuffle(other)
    assert ids(rank(found, floor=floor)) == ids(rank(other, floor=floor))


@given(candidates(), _UNITS)
@example([candidate(similarity=-3.0, weight=0.0)], 0.0)
@example([candidate(similarity=-3.0, weight=math.nan)], 0.0)
def test_all_successes_above_the_floor_that_do_not_hurt(found, floor):
    ranked = rank(found, floor=floor)
    usable = [one for one in found if one.success and not one.hurts]
    reach = [one for one in usable if floor <= one.counted_similarity < math.inf]
    assert sorted(ids(ranked)) == sorted(ids(reach))
    assert all(one.similarity >= floor for one in ranked)


@given(
    st.lists(_TRUSTS, unique=True, min_size=2), _UNITS, st.lists(_NUMBERS, min_size=6, max_size=6)
)
def test_of_equally_similar_ones_a_verdict_comes_first_and_a_registry_last(
    trusts, similarity, numbers
):
    found = [
        candidate(trust, trust=trust, similarity=similarity, confidence=confidence, worth=worth)
        for trust, confidence, worth in zip(trusts, numbers, numbers[3:], strict=False)
    ]
    in_order = [trust for trust in ("verdict", "own", "registry") if trust in trusts]
    assert ids(rank(found, floor=0.0)) == in_order


def test_a_much_more_similar_run_comes_before_one_with_a_verdict():
    near = candidate("near", similarity=0.9)
    similar = candidate("similar", similarity=0.85, trust="verdict")
    far = candidate("far", similarity=0.5, trust="verdict")
    assert ids(rank([near, similar, far], floor=0.0)) == ["similar", "near", "far"]


def test_a_surer_run_comes_before_one_that_is_hardly_more_similar():
    surer = candidate("surer", similarity=0.78, confidence=0.9)
    less_sure = candidate("less sure", similarity=0.8, confidence=0.3)
    assert ids(rank([less_sure, surer], floor=0.0)) == ["surer", "less sure"]


def test_worth_decides_among_runs_that_help_equally():
    better = candidate("kp:trace:2", similarity=0.801, worth=0.7)
    worse = candidate("kp:trace:1", similarity=0.802, worth=0.5)
    assert ids(rank([worse, better], floor=0.0)) == ["kp:trace:2", "kp:trace:1"]


def test_what_helped_runs_comes_before_what_did_not():
    helped = candidate("helped", credit=0.2)
    unknown = candidate("unknown", similarity=0.82)
    no_help = candidate("no help", credit=-0.1)
    ranked = rank([unknown, no_help, helped], floor=0.0)
    assert ids(ranked) == ["helped", "unknown", "no help"]


def test_what_most_did_comes_before_what_one_did():
    usual, detour = {"search": 2, "book": 1}, {"search": 9, "wait": 4}
    found = [candidate(f"usual {at}", similarity=0.7 - at / 100, plan=usual) for at in range(3)]
    unusual = candidate("unusual", similarity=0.75, plan=detour)
    assert ids(rank([unusual, *found], floor=0.0))[0] == "usual 0"
    repeated = candidate("repeated", similarity=1.0, trust="verdict", plan=detour)
    assert ids(rank([repeated, *found], floor=0.0))[0] == "repeated"


def test_the_similarity_of_what_calls_other_tools_counts_half():
    whole = candidate("whole", similarity=0.5)
    half = candidate("half", similarity=0.6, weight=0.75)
    other = candidate("other", similarity=0.9, weight=0.5)
    found = [other, half, whole]
    assert ids(rank(found, floor=0.4)) == ["whole", "other", "half"]
    assert ids(rank(found, floor=0.46)) == ["whole"]
    assert [one.counted_similarity for one in found] == pytest.approx([0.45, 0.45, 0.5])


@pytest.mark.parametrize(
    ("plan", "tools", "share"),
    [
        ({"a": 3, "b": 1}, {"a"}, 0.75),
        ({"a": 3, "b": 1}, {"c"}, 0.0),
        ({"a": 3, "b": 1}, (), 1.0),
        ({}, {"a"}, 1.0),
        ({"a": -2, "b": 1}, {"a"}, 0.0),
        ({"[REDACTED:customer]_lookup": 1, "b": 1}, {"acme_lookup"}, 0.5),
    ],
)
def test_the_share_of_usable_calls(plan, tools, share):
    assert similarity_weight(plan, tools) == 0.5 + share / 2


def test_what_comes_from_a_registry_has_no_say():
    own = [candidate(f"own {at}", similarity=0.75 - at / 100, plan={"a": 1}) for at in range(2)]
    foreign = [candidate(f"b{at}", trust="registry", plan={"b": 1}) for at in range(8)]
    odd = candidate("odd", similarity=0.76, plan={"b": 1})
    assert ids(rank([*own, odd], floor=0.0)[:1]) == ["own 0"]
    assert ids(rank([*own, odd, *foreign], floor=0.0)[:1]) == ["own 0"]


@pytest.mark.parametrize("name", ["confidence", "worth", "credit"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_counts_as_absent(name, number):
    broken, absent = (candidate("x", **{name: value}) for value in (number, 0.0))
    other = candidate("y", similarity=0.7, confidence=0.5, worth=0.1)
    assert ids(rank([broken, other], floor=0.0)) == ids(rank([absent, other], floor=0.0))


@pytest.mark.parametrize("similarity", [math.nan, math.inf, -math.inf])
def test_a_trace_without_a_similarity_is_not_shown(similarity):
    assert rank([candidate(similarity=similarity)], floor=0.0) == []


def test_nothing_reaches_a_floor_that_is_no_number():
    assert rank([candidate()], floor=math.nan) == []
