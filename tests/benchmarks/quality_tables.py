"""The tables of `python -m tests.benchmarks.quality`, in Markdown."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kp_langchain.scoring.evidence import VETO_FLAGS
from tests.benchmarks.harness import table
from tests.benchmarks.intervals import Sampled, Selection, mean, mean_of_families
from tests.benchmarks.ranks import Figures
from tests.benchmarks.sources import JudgedRun, Source

_FEWEST_FLAGGED = 5


@dataclass(frozen=True)
class Results:
    """The figures of all sources.

    Attributes:
        sources: The sources.
        figures: By the name of each source, and by way and number of verdicts.
    """

    sources: Sequence[Source]
    figures: Mapping[str, Mapping[tuple[str, int], Figures]]

    def of(self, way: str, number: int, figure: str) -> dict[str, Sampled]:
        """Return a figure, by the name of its field, of each source."""
        return {
            one.name: getattr(self.figures[one.name][way, number], figure) for one in self.sources
        }

    def over_sources(self, way: str, number: int, figure: str) -> Sampled:
        """Return the mean over sources."""
        return mean(self.of(way, number, figure).values())

    def where_tasks_repeat(self, way: str, number: int, figure: str) -> Sampled:
        """Return the mean over sources whose runs are compared with others."""
        figures = self.of(way, number, figure)
        return mean(figures[one.name] for one in self.sources if one.tasks_repeat)

    def by_family(self, way: str, number: int, figure: str) -> dict[str, list[Sampled]]:
        """Return the figures of the sources of each family."""
        families: defaultdict[str, list[Sampled]] = defaultdict(list)
        for one in self.sources:
            families[one.family].append(self.of(way, number, figure)[one.name])
        return families

    def over_families(self, way: str, number: int, figure: str) -> Sampled:
        """Return the mean over families of the means over their sources."""
        return mean_of_families(self.by_family(way, number, figure))

    def installed(self, way: str, number: int) -> float:
        """Return how often a model was installed, 0 to 1."""
        return statistics.fmean(one[way, number].installed for one in self.figures.values())


def source_table(sources: Sequence[Source]) -> str:
    """Return the table of what is measured with."""
    rows = [
        [
            one.name,
            one.family,
            len(one.runs),
            len({run.task for run in one.runs}),
            f"{statistics.fmean(run.success for run in one.runs):.0%}",
            f"{statistics.fmean(run.agreement is not None for run in one.runs):.0%}",
        ]
        for one in sources
    ]
    head = ["source", "family", "runs", "tasks", "right", "compared with others of their task"]
    return table("Sources", head, rows)


def verdict_table(results: Results, gate: str, alone: str, numbers: Sequence[int]) -> str:
    """Return the table of the gate by the number of verdicts, over all sources.

    Args:
        results: The figures.
        gate: The way in which the gate ranks.
        alone: The way that it is compared with.
        numbers: The numbers of verdicts.
    """
    sources, families = results.over_sources, results.over_families
    figures = {
        "lift of the first tenth, mean of sources": (gate, "lift", sources, ".2f"),
        "the same where tasks repeat": (gate, "lift", results.where_tasks_repeat, ".2f"),
        "the same, mean of families": (gate, "lift", families, ".2f"),
        "AUC, mean of sources": (gate, "auc", sources, ".2f"),
        "AUC, mean of families": (gate, "auc", families, ".2f"),
        "AUC within tasks, mean of sources": (gate, "within", sources, ".2f"),
        "Brier score of the installed models": (gate, "brier", sources, ".3f"),
        "Brier score of the base rate": (gate, "base_brier", sources, ".3f"),
        "difference": (gate, "brier_difference", sources, "+.3f"),
        f"{alone}: lift, mean of sources": (alone, "lift", sources, ".2f"),
        f"{alone}: lift, mean of families": (alone, "lift", families, ".2f"),
        f"{alone}: AUC, mean of sources": (alone, "auc", sources, ".2f"),
    }
    rows = [
        [title, *(over(way, number, figure).text(form) for number in numbers)]
        for title, (way, figure, over, form) in figures.items()
    ]
    for title, way in (("models installed", gate), (f"{alone}: models installed", alone)):
        rows.append([title, *(f"{results.installed(way, number):.0%}" for number in numbers)])
    return table("The gate by the number of verdicts", ["", *map(str, numbers)], rows)


def tables_by_source(
    results: Results, gate: str, alone: str, numbers: Sequence[int]
) -> Iterator[str]:
    """Yield the tables of lift and AUC by source, and of the lift by family."""
    cases = [(alone, 0), *((gate, number) for number in numbers)]
    columns = ["documents' score, 0", *map(str, numbers)]
    for title, figure in (
        ("Lift of the first tenth", "lift"),
        ("AUC", "auc"),
        ("AUC within tasks", "within"),
    ):
        of_cases = [results.of(*case, figure) for case in cases]
        rows = [[one.name, *(_short(of[one.name]) for of in of_cases)] for one in results.sources]
        yield table(f"{title}, by source", ["source", *columns], rows)
    by_family = [results.by_family(*case, "lift") for case in cases]
    rows = [[family, *(mean(of[family]).text() for of in by_family)] for family in by_family[0]]
    yield table("Lift of the first tenth, by family", ["family", *columns], rows)
    with_model = [number for number in numbers if number]
    differences = [results.of(gate, number, "brier_difference") for number in with_model]
    rows = [
        [one.name, *(_short(of[one.name], "+.3f") for of in differences)] for one in results.sources
    ]
    title = "Brier score of the installed models less that of the base rate, by source"
    yield table(title, ["source", *map(str, with_model)], rows)


def _short(figure: Sampled, form: str = ".2f") -> str:
    """Return a figure without its interval."""
    return figure.text(form).partition(" ")[0]


def ablation_tables(results: Results, ways: Sequence[str], numbers: Sequence[int]) -> Iterator[str]:
    """Yield the tables of what the gate is without its parts: over all sources, and by source."""
    rows = []
    for way in ways:
        row = [way]
        for number in numbers:
            row += [
                results.over_sources(way, number, "lift").text(),
                f"{results.over_families(way, number, 'lift').value:.2f}",
                f"{results.over_sources(way, number, 'auc').value:.3f}",
            ]
        rows.append(row)
    columns = ("lift, sources", "lift, families", "AUC")
    head = ["", *(f"{number}: {column}" for number in numbers for column in columns)]
    yield table("Ablations, by the number of verdicts", head, rows)
    without_verdicts = [results.of(way, 0, "lift") for way in ways]
    rows = [
        [one.name, *(_short(of[one.name]) for of in without_verdicts)] for one in results.sources
    ]
    yield table("Lift without verdicts, by source", ["source", *ways], rows)


def flag_table(sources: Sequence[Source]) -> str:
    """Return the table of how often runs have each flag, and how often those are right."""
    rows: list[list[Any]] = []
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    columns = [*VETO_FLAGS, "any", "none"]
    for source in sources:
        base = statistics.fmean(run.success for run in source.runs)
        successes: defaultdict[str, list[bool]] = defaultdict(list)
        for run in source.runs:
            flags = run.breakdown.flags
            for name in (*flags, "any" if flags else "none"):
                successes[name].append(run.success)
        cells = []
        for name in columns:
            cell = str(len(successes[name]))
            if len(successes[name]) >= _FEWEST_FLAGGED:
                ratios[name].append(statistics.fmean(successes[name]) / base)
                cell = f"{ratios[name][-1]:.2f} ({cell})"
            cells.append(cell)
        rows.append([source.name, *cells])
    means = [f"{statistics.fmean(ratios[name]):.2f}" if ratios[name] else "-" for name in columns]
    title = "How often flagged runs are right, all runs of the source = 1 (runs)"
    return table(title, ["source", *columns], [*rows, ["mean", *means]])


def gate_table(sources: Sequence[Source], measured: Sequence[Source]) -> str:
    """Return the table of what the gates keep without verdicts.

    Args:
        sources: All sources.
        measured: Those whose means are formed.
    """
    kept = {
        source.name: (
            _selection(source, lambda run: run.is_kept),
            _selection(source, lambda run: run.is_kept_by_default),
        )
        for source in sources
    }
    rows: list[list[Any]] = [
        [one.name, len(one.runs), *(cell for gate in kept[one.name] for cell in _cells([gate]))]
        for one in sources
    ]
    groups = {"mean": measured, "mean where tasks repeat": [s for s in measured if s.tasks_repeat]}
    for title, group in groups.items():
        gates = zip(*(kept[source.name] for source in group), strict=True)
        rows.append([title, "", *(cell for gate in gates for cell in _cells(gate))])
    figures = ("kept", "lift", "tasks per kept run")
    head = ["source", "runs"]
    head += [f"{gate}: {one}" for gate in ("worth", "default gate") for one in figures]
    return table("What the gate keeps without verdicts", head, rows)


def _selection(source: Source, is_kept: Callable[[JudgedRun], bool]) -> Selection:
    runs = source.runs
    successes, tasks = [run.success for run in runs], [run.task for run in runs]
    return Selection(successes, tasks, [is_kept(run) for run in runs], source.resamples)


def _cells(selections: Sequence[Selection]) -> list[str]:
    """Return the means of the figures of several sources."""
    tasks = [one.tasks_per_run for one in selections if any(one.kept)]
    return [
        f"{statistics.fmean(one.share for one in selections):.1%}",
        mean(one.lift() for one in selections).text(),
        f"{statistics.fmean(tasks):.2f}" if tasks else "-",
    ]
