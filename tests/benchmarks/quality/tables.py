"""The figures as Markdown tables."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

COLUMNS = {
    "score": "score",
    "complexity": "complexity",
    "novelty": "novelty",
    "tool_diversity": "tools",
    "outcome_confidence": "outcome alone",
    "steps": "steps alone",
    "characters": "characters alone",
    "true_outcome": "score, true outcome",
}
STAGES = {"before": "as it is", "model": "with model", "worth": "by worth"}


def tables(report: dict[str, Any]) -> Iterator[str]:
    """All tables, each under a heading of its own."""
    sources = report["sources"]
    ranked = {name: one for name, one in sources.items() if one["enough"]}
    yield titled(
        "AUC of the score as it is, of its parts, and of what needs no score",
        ["source", "runs", "tasks", "succeeded", *COLUMNS.values()],
        [
            *(_as_it_is(name, one) for name, one in sources.items()),
            ["mean", "", "", "", *(_mean(_aucs(ranked, key)) for key in COLUMNS)],
        ],
    )
    with_firsts = [(name, one) for name, one in ranked.items() if one["auc_of_firsts"]]
    yield titled(
        "The score's AUC among the first runs of their tasks",
        ["source", "tasks", "score"],
        [
            *(
                [name, str(one["tasks"]), interval(one["auc_of_firsts"])]
                for name, one in with_firsts
            ),
            ["mean", "", _mean([one["auc_of_firsts"]["value"] for _, one in with_firsts])],
        ],
    )
    yield titled(
        "Within a task: pairs of a success and a failure of one task ranked right",
        ["source", "pairs", *COLUMNS.values()],
        [
            [name, str(one["pairs_within_task"]), *map(_plain, one["within_task"].values())]
            for name, one in ranked.items()
            if one["pairs_within_task"]
        ],
    )
    yield titled(
        "At the threshold in force",
        ["source", "runs", "passed", "of these succeeded", "of all succeeded", "top tenth"],
        [_gate(name, one) for name, one in sources.items()],
    )
    at_most = report["verdicts"]
    learned = {name: chosen(one["learned"], at_most) for name, one in ranked.items()}
    yield titled(
        f"Confidence models of at most {at_most} verdicts, on tasks that they never saw",
        ["source", "verdicts", "AUC", "Brier", "Brier of the base rate", "Brier by default",
         "models refused, provisional"],
        [*(_model(name, one) for name, one in learned.items()), _model_mean(learned)],
    )  # fmt: skip
    yield titled(
        "The score on the same runs, and the worth: their AUC",
        ["source", *(f"AUC {stage}" for stage in STAGES.values()), "gained by model",
         "gained by worth"],
        [*(_aucs_of_stages(name, one) for name, one in learned.items()),
         ["mean", *(_mean(_of_stage(learned, stage, "auc")) for stage in STAGES), "", ""]],
    )  # fmt: skip
    yield titled(
        "The success rate of the top tenth, of all = 1",
        ["source", *(f"top tenth {stage}" for stage in STAGES.values()),
         "by worth, refused too", "tasks in it", "tasks solved for each run kept",
         "models refused, provisional"],
        [*(_top(name, one) for name, one in learned.items()), _top_mean(learned)],
    )  # fmt: skip
    numbers = sorted({int(number) for one in ranked.values() for number in one["learned"]})
    yield titled(
        "Learning curve: the model's AUC by the number of verdicts",
        ["source", *map(str, numbers)],
        [
            [name, *(_curve(number, one["learned"].get(str(number))) for number in numbers)]
            for name, one in ranked.items()
        ],
    )
    yield titled(
        "What the models go by (log-odds for each standard deviation)",
        ["source", "features"],
        [[name, _features(one)] for name, one in learned.items()],
    )


def renewed(text: str, printed: Iterable[str]) -> str:
    """Return a text in which tables with the same head as a printed one are replaced by it."""
    for one in printed:
        table = one.partition("\n\n")[2]
        head = re.escape(table.partition("\n")[0])
        text = re.sub(rf"^{head}\n(?:\|.*\n)*", lambda _, t=table: t, text, flags=re.MULTILINE)
    return text


def chosen(learned: dict[str, Any], at_most: int) -> dict[str, Any]:
    """The figures with the most verdicts of those within a number."""
    numbers = [int(number) for number in learned]
    found: dict[str, Any] = learned[str(max(one for one in numbers if one <= at_most))]
    return found


def _as_it_is(name: str, one: dict[str, Any]) -> list[str]:
    cells = [name, str(one["runs"]), str(one["tasks"]), f"{one['base_rate']:.0%}"]
    if not one["enough"]:
        return [*cells, "too few", *[""] * (len(COLUMNS) - 1)]
    return [*cells, *(interval(one["auc"][key]) for key in COLUMNS)]


def _gate(name: str, one: dict[str, Any]) -> list[str]:
    passed, runs = one["passed"], one["runs"]
    precision = f"{one['good_of_passed'] / passed:.0%}" if passed else "-"
    shares = [f"{passed / runs:.0%}", precision, f"{one['base_rate']:.0%}"]
    return [name, str(runs), *shares, f"{one['top_rate']:.0%}"]


def _model(name: str, one: dict[str, Any]) -> list[str]:
    refused = _refused(one)
    if not one["fitted"]:
        return [name, str(one["verdicts"]), "too few", "", "", "", refused]
    briers = [f"{one[key]:.3f}" for key in ("brier", "base_brier", "default_brier")]
    return [name, str(one["verdicts"]), interval(one["model_auc"]), *briers, refused]


def _refused(one: dict[str, Any]) -> str:
    return f"{one['refused']}, {one['provisional']} of {one['samples']}"


def _model_mean(learned: dict[str, dict[str, Any]]) -> list[str]:
    found = [one for one in learned.values() if one["fitted"]]
    briers = [
        _mean([one[key] for one in found], places=3)
        for key in ("brier", "base_brier", "default_brier")
    ]
    return ["mean", "", _mean([one["model_auc"]["value"] for one in found]), *briers, ""]


def _aucs_of_stages(name: str, one: dict[str, Any]) -> list[str]:
    if not one["fitted"]:
        return [name, "too few", *[""] * (len(STAGES) + 1)]
    gains = [one["score"][stage]["gain"] for stage in ("model", "worth")]
    return [
        name,
        *(f"{one['score'][stage]['auc']['value']:.2f}" for stage in STAGES),
        *(f"{gain['value']:+.2f} ({gain['low']:+.2f} to {gain['high']:+.2f})" for gain in gains),
    ]


def _top(name: str, one: dict[str, Any]) -> list[str]:
    refused = _refused(one)
    if not one["fitted"]:
        return [name, "too few", *[""] * (len(STAGES) + 2), refused]
    stages = [one["score"][stage] for stage in STAGES]
    return [
        name,
        *(interval(stage["top_lift"]) for stage in stages),
        interval(one["worth_of_refused_too"]["top_lift"]),
        " / ".join(f"{stage['tasks_in_top']:.0f}" for stage in stages),
        " / ".join(f"{stage['solved_per_run']:.2f}" for stage in stages),
        refused,
    ]


def _top_mean(learned: dict[str, dict[str, Any]]) -> list[str]:
    lifts = [_mean(_of_stage(learned, stage, "top_lift")) for stage in STAGES]
    found = [one for one in learned.values() if one["fitted"]]
    with_refused = _mean([one["worth_of_refused_too"]["top_lift"]["value"] for one in found])
    solved = [_mean([one["score"][stage]["solved_per_run"] for one in found]) for stage in STAGES]
    return ["mean", *lifts, with_refused, "", " / ".join(solved), ""]


def _of_stage(learned: dict[str, dict[str, Any]], stage: str, figure: str) -> list[float]:
    return [one["score"][stage][figure]["value"] for one in learned.values() if one["fitted"]]


def _curve(asked: int, one: dict[str, Any] | None) -> str:
    if one is None:
        return ""
    if not one["fitted"]:
        return "too few"
    ends = one["model_auc_of_samples"]
    spread = f" ({ends['lowest']:.2f} to {ends['highest']:.2f})" if one["fitted"] > 1 else ""
    refused = f", {one['refused']} of {one['samples']} refused" if one["refused"] else ""
    all_there_are = f" with {one['verdicts']}" if one["verdicts"] < asked else ""
    return f"{one['model_auc']['value']:.2f}{all_there_are}{spread}{refused}"


def _features(one: dict[str, Any]) -> str:
    return ", ".join(f"{name} {weight:+.2f}" for name, weight in one.get("features", {}).items())


def _aucs(sources: dict[str, Any], key: str) -> list[float]:
    return [one["auc"][key]["value"] for one in sources.values()]


def _mean(values: Sequence[float], places: int = 2) -> str:
    return f"{statistics.fmean(values):.{places}f}" if values else "-"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def interval(one: dict[str, float] | None) -> str:
    return "-" if one is None else f"{one['value']:.2f} ({one['low']:.2f} to {one['high']:.2f})"


def titled(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *["---:"] * (len(head) - 1)]
    lines = ["| " + " | ".join(row) + " |" for row in (head, aligned, *rows)]
    return f"### {title}\n\n" + "\n".join(lines) + "\n"
