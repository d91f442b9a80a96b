"""The results as one SVG that reads well on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INK = "#6e7781"  # at least 4 : 1 against GitHub's white and against its dark grey
FAINT = "#6e778140"
_OURS = "#2da44e"
_OTHERS = "#8c7ae6"
COLOURS = ("#0b84d8", "#d9730d", "#2da44e", "#c74ea0", "#b59500")
MARKERS = "osD^v"
_ROW_INCHES = 0.36


def draw(report: dict[str, Any], path: Path) -> Path | None:
    """Draw what the report has of overhead, memory and imports.

    Returns:
        The path; None when the report has none of it.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    parts = [part for part in _PARTS if part in report]
    if not parts:
        return None
    with styled() as plt:
        handlers = [name for name, about in report["handlers"].items() if about["installed"]]
        figure, axes = plt.subplots(
            1,
            len(parts),
            figsize=(3.2 + 2.9 * len(parts), 1.3 + _ROW_INCHES * len(handlers)),
            width_ratios=[_PARTS[part][0] for part in parts],
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        first = axes[0][0]
        first.set_yticks(range(len(handlers)), [report["handlers"][n]["title"] for n in handlers])
        first.set_ylim(len(handlers) - 0.5, -0.5)
        for label, name in zip(first.get_yticklabels(), handlers, strict=True):
            label.set_fontweight("bold" if name in ("recording", "everything") else "normal")
        for axis, part in zip(axes[0], parts, strict=True):
            axis.grid(axis="x")
            axis.set_axisbelow(True)
            _PARTS[part][1](axis, report[part], handlers)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
    return path


@contextmanager
def styled() -> Iterator[Any]:
    """Matplotlib's pyplot, set up for figures that read well on light and dark pages.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "kp-langchain",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "ytick.left": False,
        "grid.color": FAINT,
    }
    with mpl.rc_context(style):
        yield plt


def _overhead(axis: Any, cases: dict[str, Any], handlers: list[str]) -> None:
    axis.axvline(1, color=INK, linewidth=1)
    looks = zip(cases.items(), COLOURS, MARKERS, strict=False)
    for number, ((name_of_case, case), colour, marker) in enumerate(looks):
        for row, name in enumerate(handlers):
            if name not in case["handlers"]:
                continue
            ratio = case["handlers"][name]["cpu_ratio"]
            height = row + 0.15 * (number - (len(cases) - 1) / 2)
            axis.plot([ratio["q1"], ratio["q3"]], [height] * 2, color=colour, linewidth=1)
            axis.plot(
                ratio["median"],
                height,
                color=colour,
                marker=marker,
                markersize=4,
                linestyle="none",
                label=None if row else name_of_case,
            )
    axis.set_xlabel("CPU of a run, times that without a handler\n(median and quartiles)")
    axis.legend(
        frameon=False,
        loc="lower center",
        bbox_to_anchor=(0.5, 1),
        ncols=len(cases),
        handletextpad=0.1,
        columnspacing=1.0,
    )


def _growth(axis: Any, memory: dict[str, Any], handlers: list[str]) -> None:
    figures = {name: figure["kb_per_run"] for name, figure in memory["growth"].items()}
    _bars(axis, figures, handlers, "z.2f")
    axis.set_xlabel("memory kept per run, KB")


def _imports(axis: Any, imports: dict[str, Any], handlers: list[str]) -> None:
    figures = {name: figure["cpu_ms"]["median"] for name, figure in imports.items()}
    _bars(axis, figures, handlers, "z.0f")
    axis.set_xlabel("CPU of the import, ms")


def _bars(axis: Any, figures: dict[str, float], handlers: list[str], form: str) -> None:
    for row, name in enumerate(handlers):
        if name in figures:
            ours = name in ("recording", "everything")
            axis.barh(row, max(figures[name], 0), height=0.6, color=_OURS if ours else _OTHERS)
            axis.annotate(
                format(figures[name], form),
                (max(figures[name], 0), row),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
            )
    axis.margins(x=0.2)


_PARTS: dict[str, tuple[float, Callable[[Any, Any, list[str]], None]]] = {
    "overhead": (2.2, _overhead),
    "memory": (1.0, _growth),
    "import": (1.0, _imports),
}
