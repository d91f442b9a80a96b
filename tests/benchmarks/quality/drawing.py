"""The figures as one SVG: before and after by source, what is kept, and the learning curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.benchmarks.plot import COLOURS, INK, MARKERS, styled
from tests.benchmarks.quality.tables import chosen

_SHOWN = {
    "before": ("score, as it is", INK, "o"),
    "model": ("score with the model", "#0b84d8", "s"),
    "worth": ("worth", "#d9730d", "D"),
    "auc": ("model alone", "#2da44e", "^"),
}


def draw(report: dict[str, Any], path: Path) -> Path | None:
    """Draw what was learned.

    Returns:
        The path; None when nothing could be learned.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    learned = {name: one["learned"] for name, one in report["sources"].items() if one["enough"]}
    at_most = {name: chosen(one, report["verdicts"]) for name, one in learned.items()}
    fitted = {name: one for name, one in at_most.items() if one["fitted"]}
    if not fitted:
        return None
    with styled() as plt:
        height = 1.6 + 0.5 * len(fitted)
        figure, (left, middle, right) = plt.subplots(
            1, 3, figsize=(11, max(3.0, height)), width_ratios=[1.2, 1.2, 1], layout="constrained"
        )
        _before_and_after(left, fitted, "auc", 0.5)
        left.set_yticks(range(len(fitted)), list(fitted))
        left.set_xlabel("AUC on tasks not learned from")
        _before_and_after(middle, fitted, "top_lift", 1.0)
        middle.set_yticks(range(len(fitted)), [""] * len(fitted))
        middle.set_xlabel("success rate of the top tenth, of all = 1")
        _curves(right, learned)
        for axis in (left, middle, right):
            axis.grid(axis="y" if axis is right else "x")
            axis.set_axisbelow(True)
            axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2,
                        handletextpad=0.1, columnspacing=1.0)  # fmt: skip
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
    return path


def _before_and_after(axis: Any, fitted: dict[str, Any], figure: str, of_chance: float) -> None:
    """Draw a figure of each stage with its 95 % interval, source by source."""
    axis.axvline(of_chance, color=INK, linewidth=1)
    for row, one in enumerate(fitted.values()):
        shown = {stage: figures[figure] for stage, figures in one["score"].items()}
        if figure == "auc":
            shown["auc"] = one["model_auc"]
        for number, (stage, (title, colour, marker)) in enumerate(_SHOWN.items()):
            if stage not in shown:
                continue
            height, estimate = row + 0.16 * (number - 1.5), shown[stage]
            axis.plot([estimate["low"], estimate["high"]], [height] * 2, color=colour, linewidth=1)
            axis.plot(estimate["value"], height, color=colour, marker=marker, markersize=5,
                      linestyle="none", label=None if row else title)  # fmt: skip
    axis.set_ylim(len(fitted) - 0.5, -0.5)


def _curves(axis: Any, learned: dict[str, Any]) -> None:
    axis.axhline(0.5, color=INK, linewidth=1)
    numbers: set[int] = set()
    looks = zip(learned.items(), COLOURS * 2, MARKERS * 2, strict=False)
    for (name, by_number), colour, marker in looks:
        fitted = {int(number): one for number, one in by_number.items() if one["fitted"]}
        numbers.update(fitted)
        axis.plot(
            [one["verdicts"] for one in fitted.values()],
            [one["model_auc"]["value"] for one in fitted.values()],
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1,
            label=name,
        )
    axis.set_xscale("log")
    axis.minorticks_off()
    told = sorted(numbers)
    axis.set_xticks(told, [str(number) for number in told])
    axis.set_xlabel("verdicts")
    axis.set_ylabel("the model's AUC")
