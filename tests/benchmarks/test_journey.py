"""What is told of a user's journey, by cases with known answers."""

from __future__ import annotations

from typing import Any

from tests.benchmarks.quality.journey_tables import tables


def journey(source: str, draw: int, *, calibrated: bool, kept: set[int]) -> dict[str, Any]:
    """Twenty later runs of ten tasks; those of even tasks are right."""
    return {
        "source": source,
        "draw": draw,
        "labelled": 30,
        "later": 20,
        "calibrated": calibrated,
        "model": "accepted" if calibrated else "none",
        "gate": "worth" if calibrated else "score",
        "tasks": 25,
        "runs": [[at // 2, at // 2 % 2 == 0, at in kept] for at in range(20)],
        "twins": 0.5 if len(kept) > 1 else 0.0,
    }


def test_both_gates_stand_beside_each_other() -> None:
    journeys = []
    for draw in range(2):
        journeys += [
            journey("desk", draw, calibrated=False, kept={0, 2}),
            journey("desk", draw, calibrated=True, kept={0, 1, 4} if draw else {0}),
        ]
    by_source, by_draw = tables({"journeys": journeys})
    row = next(line for line in by_source.splitlines() if line.startswith("| desk"))
    _, _, models, kept, lift, solved, twins, *calibrated = (one.strip() for one in row.split("|"))
    assert models == "2 accepted"
    assert (kept, lift[:4], solved, twins) == ("10.0%", "1.00", "0.50", "50%")
    # Both draws keep only what is right; one of them keeps a task twice.
    assert (calibrated[0], calibrated[1][:4], calibrated[2]) == ("10.0%", "2.00", "0.83")
    assert by_source.splitlines()[-1].startswith("| mean |  | 10.0% | 1.00")
    assert "| desk | 2 | 30, 20 | accepted | worth | 10.0% | 50% | 15.0% | 100% | 50% |" in by_draw


def test_a_gate_that_keeps_nothing_is_right_about_nothing() -> None:
    journeys = [
        journey("desk", 0, calibrated=False, kept=set()),
        journey("desk", 0, calibrated=True, kept={0}),
    ]
    by_source, by_draw = tables({"journeys": journeys})
    assert "| desk | 1 accepted | 0.0% | - | - | 0% | 5.0% | 2.00" in by_source
    assert "| 0.0% | - | 5.0% | 100% |" in by_draw
