"""What is selected, and how much of it, as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks.quality.rates import WAYS
from tests.benchmarks.quality.tables import interval, titled


def tables(report: dict[str, Any]) -> Iterator[str]:
    """The tables, each under a heading of its own; none where nothing could be learned."""
    if report["selection"] is None:
        return
    yield from _forms(report["selection"])
    yield _rates(report["pass_rates"])


def _forms(selection: dict[str, Any]) -> Iterator[str]:
    sources = selection["sources"]
    yield titled(
        "The success rate of the top tenth of later runs, of all = 1, by the form of worth",
        ["ranked by", *sources, "mean", "behind the best"],
        [
            *(
                [form, *map(interval, _column(one, "lift")),
                 "best" if form == selection["best"] else interval(one["behind_best"])]
                for form, one in selection["forms"].items()
            ),
            ["draws: models accepted / provisional / refused; gates by worth",
             *(_models(one) for one in sources.values()), "", ""],
            ["runs with a verdict, later runs",
             *(f"{one['labelled']:.0f}, {one['further']:.0f}" for one in sources.values()),
             "", ""],
        ],
    )  # fmt: skip
    yield titled(
        "Tasks solved for each run of that tenth, and twins among them",
        ["of the top tenth", *(f"{name}, tasks solved, twins" for name in sources), "mean"],
        [
            [form, *map(_solved, [*one["sources"].values(), one["mean"]])]
            for form, one in selection["forms"].items()
        ],
    )


def _rates(pass_rates: dict[str, Any]) -> str:
    promised = next(iter(pass_rates.values()))["promised"]
    return titled(
        f"Share of the next runs that passes where {promised:.0%} is promised",
        ["source", "draws", "next runs", *WAYS],
        [
            [
                name,
                str(one["draws"]),
                f"{one['next_runs']:.0f}",
                *(_spread(one["kept"][way]) for way in WAYS),
            ]
            for name, one in pass_rates.items()
        ],
    )


def _column(one: dict[str, Any], figure: str) -> list[Any]:
    return [found[figure] for found in [*one["sources"].values(), one["mean"]]]


def _models(one: dict[str, Any]) -> str:
    states = (one["models"].get(state, 0) for state in ("accepted", "provisional", "refused"))
    return f"{' / '.join(map(str, states))}; {one['gates']}"


def _solved(one: dict[str, Any]) -> str:
    solved = one["solved_per_run"]
    return f"{'-' if solved is None else format(solved['value'], '.2f')}, {one['twins']:.0%}"


def _spread(shares: Sequence[float]) -> str:
    mean = f"{statistics.fmean(shares):.1%}"
    return mean if len(shares) < 2 else f"{mean} ({min(shares):.1%} to {max(shares):.1%})"
