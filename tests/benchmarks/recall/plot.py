"""The figures as one SVG: what each way gains by source, and recall by the size of the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.plot import COLOURS, INK, MARKERS, styled
from tests.benchmarks.quality.resampling import Sampled, mean
from tests.benchmarks.recall.fills import FILLS
from tests.benchmarks.recall.measure import SizeFigures, SourceFigures
from tests.benchmarks.recall.ways import (
    NEAREST,
    NEAREST_FAILURE,
    NEAREST_SUCCESS,
    NOTHING,
    RANDOM,
    RECALL,
)

_WAYS = {
    NOTHING: (INK, "x"),
    RANDOM: (COLOURS[3], "v"),
    NEAREST_FAILURE: (COLOURS[4], "D"),
    NEAREST: (COLOURS[1], "s"),
    NEAREST_SUCCESS: (COLOURS[0], "^"),
    RECALL: (COLOURS[2], "o"),
}


def draw(by_source: Mapping[str, SourceFigures], sizes: Sequence[SizeFigures], path: Path) -> Path:
    """Draw what was measured.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    has_bits = all(one.bits for one in by_source.values())
    parts = ["f1", "bits"] if has_bits else ["f1"]
    with styled() as plt:
        figure, axes = plt.subplots(
            2, len(parts), figsize=(4.8 * len(parts), 5.4), layout="constrained", squeeze=False
        )
        for part, (above, below) in zip(parts, axes.T, strict=True):
            _ways(above, by_source, part)
            _sizes(below, sizes, part)
            for axis in (above, below):
                axis.set_axisbelow(True)
                axis.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3,
                            handletextpad=0.1, columnspacing=1.0)  # fmt: skip
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
    return path


def _ways(axis: Any, by_source: Mapping[str, SourceFigures], part: str) -> None:
    names = list(by_source)
    shown = [way for way in _WAYS if not (part == "f1" and way == NOTHING)]
    for place, way in enumerate(shown):
        colour, marker = _WAYS[way]
        offset = (place - (len(shown) - 1) / 2) * 0.13
        found = [getattr(by_source[name], part)[way] for name in names]
        rows = [row + offset for row in range(len(names))]
        _points(axis, [one.value for one in found], rows, found, colour, marker, way, across=True)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.set_xlabel("plan F1" if part == "f1" else "bits a token; less is better")
    axis.grid(axis="x")


def _sizes(axis: Any, sizes: Sequence[SizeFigures], part: str) -> None:
    for fill, colour, marker in zip(FILLS, COLOURS, MARKERS, strict=False):
        found = [mean(getattr(one, part)[fill].values()) for one in sizes]
        places = [one.size for one in sizes]
        _points(axis, places, [one.value for one in found], found, colour, marker, fill)
        axis.plot(places, [one.value for one in found], color=colour, linewidth=1)
        ends = [one.estimate or {"low": one.value, "high": one.value} for one in found]
        low, high = ([one[end] for one in ends] for end in ("low", "high"))
        axis.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
    axis.set_xscale("log")
    axis.set_xticks([one.size for one in sizes], [str(one.size) for one in sizes])
    axis.minorticks_off()
    axis.set_xlabel("runs in the store, of all sources")
    axis.set_ylabel("plan F1" if part == "f1" else "bits a token; less is better")
    axis.grid(axis="y")


def _points(
    axis: Any,
    xs: Sequence[float],
    ys: Sequence[float],
    found: Sequence[Sampled],
    colour: str,
    marker: str,
    label: str,
    *,
    across: bool = False,
) -> None:
    """Draw figures, those across the rows with their intervals."""
    axis.plot(xs, ys, marker, color=colour, markersize=4, label=label)
    if across:
        for row, one in zip(ys, found, strict=True):
            if (estimate := one.estimate) is not None:
                axis.plot(
                    [estimate["low"], estimate["high"]], [row, row], color=colour, linewidth=1
                )
