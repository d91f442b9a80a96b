"""What is counted and compared for people: figures of a domain, traces side by side, claims."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace
from kp_langchain.calibration.basis import Basis
from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.prices import ModelPrice, Prices
from kp_langchain.review.run_facts import Claims, claims_of
from kp_langchain.review.stats import DomainStats, domain_stats
from kp_langchain.schema import Tool, TraceStep
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from kp_langchain.usage import ModelUsage, Usage

Row = dict[str, Any]


def row(number: int = 0, *, score: float = 0.5, **more: Any) -> Row:
    """The figures of one run; dimensions as pairs of value and weight."""
    values: Row = {
        "trace_id": f"kp:trace:{number}",
        "domain": "finance",
        "decision": "kept" if score >= 0.6 else "below_threshold",
        "gate": "score",
        "score": score,
        "worth": None,
        "threshold": 0.6,
        "label": None,
        "recovered_errors": 0,
        "novelty_source": None,
        "veto": None,
        "is_twin": False,
        "is_withheld": False,
        "is_compared": False,
        "dimensions": {"complexity": [0.5, 0.4], "novelty": [0.25, 0.6]},
        "rules": {},
        "redactions": {},
        "dropped": {},
        "usage": {},
        "total_tokens": None,
        "duration_ms": None,
        "success": False,
    } | more
    dimensions = values.pop("dimensions")
    for name in DIMENSION_NAMES:
        values[name], values[f"{name}_weight"] = dimensions.get(name, (None, None))
    as_text = ("rules", "redactions", "dropped", "usage")
    return values | {name: json.dumps(values[name]) for name in as_text}


def stats_of(*rows: Row) -> list[DomainStats]:
    """The statistics of runs, the oldest first."""
    return domain_stats({name: [one[name] for one in rows] for name in row()})


def only(*rows: Row) -> DomainStats:
    (stats,) = stats_of(*rows)
    return stats


def test_the_part_that_loses_most_comes_first() -> None:
    stats = only(row(0), row(1, dimensions={"complexity": [1.0, 0.4], "novelty": [0.5, 0.6]}))
    assert [(part.name, part.median, part.weight) for part in stats.parts] == [
        ("novelty", 0.375, pytest.approx(0.6)),
        ("complexity", 0.75, pytest.approx(0.4)),
    ]
    assert [part.lost for part in stats.parts] == [
        pytest.approx((0.45 + 0.3) / 2),
        pytest.approx((0.2 + 0.0) / 2),
    ]


def test_novelty_is_not_blamed_where_it_was_not_measured() -> None:
    failed, loading = "embedder failed: ModelLoadError", "embedding model still loading"
    neutral = {"complexity": [0.5, 0.4], "novelty": [0.5, 0.6]}
    runs = [
        row(0, dimensions=neutral, novelty_source=loading),
        row(1, dimensions=neutral, novelty_source=failed),
        row(2, dimensions=neutral, novelty_source=failed),
        row(
            3,
            dimensions={"complexity": [0.5, 0.4], "novelty": [0.2, 0.6]},
            novelty_source="nearest remembered trace",
        ),
    ]
    stats = only(*runs)
    part = next(part for part in stats.parts if part.name == "novelty")
    assert (part.median, part.unmeasured) == (0.2, {"model not loaded": 3})
    assert part.lost == pytest.approx(0.8 * 0.6 / 4)
    assert stats.explanation() == (
        "finance keeps 0 % of 4 runs: complexity is 0.50 in the median and costs 0.20; "
        "novelty was not measured in 3 of 4 runs (model not loaded)."
    )
    first = runs[0] | {"novelty_source": "empty cache"}
    only_first = only(first, runs[3])
    (part,) = (part for part in only_first.parts if part.name == "novelty")
    assert part.unmeasured == {"nothing to compare with": 1}
    assert "not measured" not in only_first.explanation()
    assert "not measured in 2 of 4 runs (model not loaded)" in only(first, *runs[1:]).explanation()
    none = only(*runs[:3])
    novelty = next(part for part in none.parts if part.name == "novelty")
    assert (novelty.median, novelty.lost) == (None, 0)
    assert "novelty is" not in none.explanation()
    worth = [run | {"gate": "worth", "worth": 0.375} for run in runs[:3]]
    assert "not measured in 3 of 3 runs (model not loaded)" in only(*worth).explanation()


def test_a_rule_counts_the_runs_that_would_have_passed_without_it() -> None:
    stats = only(
        row(0, score=0.55, rules={"single_tool": -0.1}),
        row(1, score=0.45, rules={"single_tool": -0.1}),
        row(2, score=0.55, rules={"single_tool": -0.1}, is_twin=True),
        row(3, score=0.55, rules={"single_tool": -0.1}, is_withheld=True),
        row(4, score=0.65, rules={"recovered_errors": 0.1}),
    )
    first, second = stats.rules
    assert (first.name, first.runs, first.passes_lost) == ("single_tool", 4, 1)
    assert first.change == pytest.approx(-0.1)
    assert (second.name, second.runs, second.passes_lost) == ("recovered_errors", 1, 0)


def test_one_sentence_says_what_costs_most() -> None:
    runs = [row(at, score=0.7 if at == 0 else 0.55) for at in range(10)]
    runs[1] = row(1, score=0.55, rules={"single_tool": -0.1})
    runs[2] = runs[2] | {"is_twin": True}
    assert only(*runs).explanation() == (
        "finance keeps 10 % of 10 runs: novelty is 0.25 in the median and costs 0.45; "
        "`single_tool` cost 1 run 0.10, 1 of them their pass; 1 run repeats a kept one."
    )
    assert only(row(dimensions={})).explanation() == "finance keeps 0 % of 1 run."


def test_of_a_worth_its_two_factors_are_pairs_of() -> None:
    half = row(gate="worth", worth=0.4375, threshold=0.4, dimensions={"novelty": [0.5, 0.6]})
    stats = only(half)
    assert (stats.gate, stats.median) == ("worth", pytest.approx(0.4375, abs=1e-3))
    by_name = {part.name: part for part in stats.parts}
    assert by_name["confidence"].median == pytest.approx(0.5)
    assert by_name["confidence"].lost == pytest.approx(0.875 * 0.5)
    assert by_name["novelty"].lost == pytest.approx(0.5 * 0.125)


def test_vetoed_runs_are_counted_by_flag_and_pass_no_threshold() -> None:
    flags = ["unanswered_call", "answer_unable", "unanswered_call", None]
    stats = only(
        *[row(at, score=0.9, veto=flag, is_compared=at < 2) for at, flag in enumerate(flags)]
    )
    assert stats.vetoed == {"unanswered_call": 2, "answer_unable": 1}
    assert stats.compared == 2
    assert stats.curve[60].runs == 1
    assert "; 3 runs are vetoed, most by `unanswered_call`." in stats.explanation()
    one = only(row(veto="answer_unable"), row())
    assert "; 1 run is vetoed by `answer_unable`." in one.explanation()


def test_the_basis_of_a_domain_is_what_was_given() -> None:
    figures = {name: [row()[name]] for name in row()}
    (stats,) = domain_stats(figures, {"finance": Basis("by a coin"), "code": Basis("by a die")})
    assert stats.basis == stats.to_dict()["basis"] == "by a coin"
    assert only(row()).basis == ""


def test_a_second_part_that_costs_nearly_as_much_is_named_too() -> None:
    near = {"complexity": [0.5, 0.4], "novelty": [0.6, 0.5], "tool_diversity": [0.7, 0.5]}
    assert only(row(dimensions=near)).explanation() == (
        "finance keeps 0 % of 1 run: complexity is 0.50 in the median and costs 0.20; "
        "novelty is 0.60 in the median and costs 0.20."
    )


def test_a_rule_that_costs_passes_comes_before_one_that_costs_points() -> None:
    points = [row(at, score=0.1, rules={"single_thought": -0.3}) for at in range(5)]
    stats = only(*points, row(9, score=0.55, rules={"single_tool": -0.1}))
    assert [rule.name for rule in stats.rules] == ["single_tool", "single_thought"]


def test_each_threshold_is_counted() -> None:
    stats = only(row(0), row(1, threshold=0.7), row(2))
    assert stats.thresholds == ((0.6, 2), (0.7, 1))


def test_only_runs_of_the_present_gate_are_compared() -> None:
    stats = only(row(0, score=0.9), row(1, gate="worth", worth=0.2, threshold=0.3))
    assert (stats.runs, stats.kept, stats.judged) == (2, 1, 1)
    assert stats.explanation().startswith("finance keeps 50 % of 2 runs; 1 of them went by worth: ")
    assert (stats.gate, stats.median, stats.threshold) == ("worth", 0.2, 0.3)


def test_verdicts_say_how_many_of_those_that_pass_are_right() -> None:
    stats = only(
        row(0, score=0.9, label=True),
        row(1, score=0.7, label=False),
        row(2, score=0.5, label=True),
        row(3, score=0.9),
        row(4, score=0.9, label=True, is_twin=True, decision="twin"),
    )
    assert (stats.labelled, stats.successes) == (4, 3)
    assert (stats.kept_labelled, stats.kept_successes) == (2, 1)
    by_threshold = {round(point.threshold, 2): point for point in stats.curve}
    assert (by_threshold[0.8].runs, by_threshold[0.8].labelled, by_threshold[0.8].successes) == (
        2, 1, 1,
    )  # fmt: skip
    assert (by_threshold[0.0].runs, by_threshold[1.0].runs) == (4, 0)


def test_what_was_replaced_dropped_and_recovered_is_counted() -> None:
    stats = only(
        row(0, redactions={"email": 2, "card": 1}, recovered_errors=3, dropped={"steps": 4}),
        row(1, redactions={"email": 1}, dropped={"steps": 1, "texts": 2}),
        row(2, is_withheld=True),
    )
    assert stats.redactions == {"email": 3, "card": 1}
    assert stats.dropped == {"steps": 5, "texts": 2}
    assert (stats.redacted_runs, stats.recovered, stats.withheld) == (2, 1, 1)


def took(tokens: int | None, seconds: float | None, *, success: bool = True, **more: Any) -> Row:
    model = ModelUsage(model="m", calls=1, reported_calls=1, output_tokens=tokens or 0)
    usage = Usage(models=() if tokens is None else (model,))
    ms = None if seconds is None else seconds * 1000
    figures = {"total_tokens": tokens, "duration_ms": ms, "usage": usage.to_dict()}
    return row(success=success, **figures, **more)


def test_what_runs_took_is_told_of_all_kept_and_successful_ones() -> None:
    rows = [took(100, 1.0, score=0.9), took(300, 3.0, success=False), took(None, None)]
    figures = {name: [one[name] for one in rows] for name in row()}
    prices = Prices({"m": ModelPrice(input=0, output=10_000)}, with_package=False)
    (stats,) = domain_stats(figures, prices=prices)
    every, kept, successful = stats.usage
    assert (every.count, every.tokens, every.duration_ms, every.cost) == (3, 200, 2000, 2)
    assert (kept.count, kept.tokens, kept.spent_tokens, kept.spent_cost) == (1, 100, 400, 4)
    assert (successful.count, successful.tokens, successful.spent_tokens) == (2, 100, 200)
    assert only(row(), row()).usage == ()
    assert all(one.cost is None for one in stats_of(*rows)[0].usage)


def test_the_domain_with_most_runs_comes_first() -> None:
    runs = [row(at, domain=domain) for at, domain in enumerate("abbc")]
    assert [stats.domain for stats in stats_of(*runs)] == ["b", "a", "c"]
    assert stats_of() == []


UNIT = st.floats(0, 1)
SUMMARIES = st.lists(
    st.builds(
        row,
        st.integers(0, 1000),
        score=UNIT,
        label=st.sampled_from([None, True, False]),
        threshold=UNIT,
        is_twin=st.booleans(),
        is_withheld=st.booleans(),
        dimensions=st.dictionaries(st.sampled_from(DIMENSION_NAMES), st.tuples(UNIT, UNIT)),
        rules=st.dictionaries(st.sampled_from("rs"), st.floats(-1, 1)),
    ),
    min_size=1,
    max_size=20,
)


@given(SUMMARIES)
def test_the_figures_add_up(runs: list[Row]) -> None:
    stats = only(*runs)
    assert sum(stats.histogram) == stats.judged == stats.runs == len(runs)
    passing = [point.runs for point in stats.curve]
    assert passing == sorted(passing, reverse=True)
    assert all(point.successes <= point.labelled <= point.runs for point in stats.curve)
    assert all(0 <= part.lost <= part.weight + 1e-9 for part in stats.parts)
    assert stats.kept_successes <= min(stats.successes, stats.kept_labelled)
    assert json.loads(json.dumps(stats.to_dict()))["explanation"] == stats.explanation()


# ------------------------------------------------------------------ calls


def step(kind: str, tool: str | None, content: str | None = None) -> TraceStep:
    return TraceStep(
        step_id=0, type=kind, tool=None if tool is None else Tool(name=tool), content=content
    )


def test_each_call_has_its_own_output() -> None:
    steps = [
        step("thought", None, "hm"),
        step("tool_call", "a"),
        step("tool_call", "b"),
        step("observation", "b", "of b"),
        step("error_recovery", "a", "of a"),
        step("tool_call", "c"),
        step("observation", None, "of c"),
        step("observation", "d", "of none"),
        step("tool_call", "e"),
    ]
    calls = calls_of(steps)
    outputs = [None if one.output is None else one.output.content for one in calls]
    steps_of_tools = [one.call or one.output for one in calls]
    assert [one.tool.name for one in steps_of_tools if one and one.tool] == [*"abcde"]
    assert outputs == ["of a", "of b", "of c", "of none", None]
    assert [one.has_failed for one in calls] == [True, False, False, False, False]
    assert calls[3].call is None


# ------------------------------------------------------------------ what an answer claims


def trace(answer: str, *outputs: str, objective: str = "find it") -> ReasoningTrace:
    steps = [{"type": "observation", "content": output} for output in outputs]
    steps.append({"type": "thought", "content": answer})
    return ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "other", "success": True},
            "task": {"objective": objective},
            "steps": [step | {"step_id": number} for number, step in enumerate(steps)],
            "outcome": {"result_summary": answer, "confidence": 0.8},
        }
    )


@pytest.mark.parametrize(
    ("answer", "output", "seen", "unseen"),
    [
        (
            "It costs 4.50 at Casa Miznon, not 7 as in Piazza Roma.",
            "casa miznon: 4.50 EUR",
            ("4.50", "Casa Miznon"),
            ("7", "Piazza Roma"),
        ),
        # A time may be part of a longer one, a number not of a longer number.
        ("At 10:30.", "2026-05-15T10:30:00", ("10:30",), ()),
        ("At 10:30.", "at 10:30", ("10:30",), ()),
        ("At 10:30.", "10:30,11:00", ("10:30",), ()),
        ("There are 4.", "144 units", (), ("4",)),
        # Letters and digits are one name, and a number with its unit is a number.
        ("Changed GV1N64 and 4WQ150 to HAT 7.", '{"id": "GV1N64"}', ("GV1N64",), ("4WQ150", "7")),
        ("at 10AM", "10:00, 10000 USD", ("10",), ()),
        ("for 10000USD", "10:00, 10000 USD", ("10000",), ()),
        # An amount may be written with other decimals.
        ("It is 50.00.", "50.0 EUR", ("50.00",), ()),
        ("It is 4.5.", "4.50", ("4.5",), ()),
        ("It is 50.00.", "1500.0 or 50.01", (), ("50.00",)),
        ("It is 4.5.", "1500.0 or 50.01", (), ("4.5",)),
        # What the task says, the numbers of a list, and one capitalised word are no claims.
        ("I sent 20 to Emma.", "ok", (), ()),
        *((answer, "tea", (), ()) for answer in ("1. tea\n2. milk", "  3) tea", "Thought 7: tea")),
        *(
            (answer, "", (), ())
            for answer in ("Nothing was there. Perhaps so.", "In February", "Class: x")
        ),
    ],
)  # fmt: skip
def test_numbers_and_names_are_looked_for_in_what_the_tools_returned(
    answer: str, output: str, seen: tuple[str, ...], unseen: tuple[str, ...]
) -> None:
    claims = claims_of(trace(answer, output, objective="Send 20 to Emma"))
    assert (claims.seen, claims.unseen) == (seen, unseen)


@pytest.mark.parametrize(
    ("answer", "tone"),
    [
        ("The booking is completed.", ("done",)),
        ("Sorry, I cannot do that.", ("unable",)),
        ("It may be so.", ("unsure",)),
        ("Shall I book it?", ("asking back",)),
        ("Paris", ()),
    ],
)
def test_its_words_say_how_sure_it_is(answer: str, tone: tuple[str, ...]) -> None:
    assert claims_of(trace(answer, "")).tone == tone


def test_they_are_told_in_a_few_words() -> None:
    claims = Claims(tone=("done", "unsure"), seen=("1", "2", "3"), unseen=("9",))
    assert claims.text(2) == "sounds done, unsure; in no output: 9; in an output: 1, 2 and 1 more"
    assert Claims((), (), ()).text(2) == ""


@pytest.mark.parametrize("answer", ["", "\ud800 7", "9" * 20_000, "A" * 20_000, "\x00"])
def test_any_answer_is_read(answer: str) -> None:
    claims_of(trace(answer, answer))
