"""The results as tables on the screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from tests.benchmarks.figures import Quartiles


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """A table for each part of the report that was measured."""
    titles = {name: about["title"] for name, about in report["handlers"].items()}
    if "overhead" in report:
        yield _overhead(report, "cpu", "CPU of a run (flush and worker included)")
        yield _overhead(report, "wall", "Wall time of a run, until the agent returns")
    if "event" in report:
        yield _event(report["event"], titles)
    if "memory" in report:
        memory = report["memory"]
        yield _growth(memory["growth"], titles)
        yield _left_over(memory["left_over"], titles)
        for large in memory["large_output"].values():
            yield _large_output(large)
    if "import" in report:
        yield _imports(report["import"])
    if "worker" in report:
        yield _worker(report["worker"])


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _spread(figure: Quartiles, form: str = ".2f") -> str:
    low, middle, high = (format(figure[key], form) for key in ("q1", "median", "q3"))
    return f"{middle} [dim]({low}-{high})[/dim]"


def _overhead(report: dict[str, Any], what: str, title: str) -> Table:
    cases = report["overhead"]
    table = _table(
        f"{title}\ntimes that without a handler, and us added per event; median (quartiles)",
        "handler",
        *cases,
    )
    for name, about in report["handlers"].items():
        if not about["installed"]:
            table.add_row(about["title"], *["[dim]not installed[/dim]"] * len(cases))
            continue
        cells = []
        for case in cases.values():
            measured = case["handlers"].get(name)
            cells.append(
                f"{_spread(measured[f'{what}_ratio'])}\n"
                f"{measured[f'added_{what}_us_per_event']['median']:+.1f} us"
                if measured
                else "failed"
            )
        table.add_row(about["title"], *cells)
    bases = [case["handlers"]["none"] for case in cases.values() if "none" in case["handlers"]]
    if bases:
        table.add_section()
        table.add_row(
            "a run without a handler",
            *(f"{base[f'without_{what}_ms_per_run']['median']:.1f} ms" for base in bases),
        )
        table.add_row("its events", *(str(base["events"] // base["runs"]) for base in bases))
    return table


def _event(event: dict[str, Quartiles], titles: dict[str, str]) -> Table:
    table = _table("One event, played by hand: CPU without LangChain's own", "handler", "us")
    for name, figure in event.items():
        table.add_row(titles.get(name, name), _spread(figure))
    return table


def _growth(growth: dict[str, Any], titles: dict[str, str]) -> Table:
    table = _table("Memory that stays in use after a run", "handler", "runs", "KB per run")
    for name, figure in growth.items():
        table.add_row(titles[name], f"{figure['runs']:,}", f"{figure['kb_per_run']:.3f}")
    return table


def _left_over(left_over: dict[str, Any], titles: dict[str, str]) -> Table:
    table = _table(
        "What is left of runs that were given up",
        "handler",
        "way",
        "runs",
        "KB per run, right after",
        "when their time is over",
        "still alive",
    )
    for name, ways in left_over.items():
        for way, figure in ways.items():
            table.add_row(
                titles[name],
                way,
                f"{figure['runs']:,}",
                f"{figure['right_after']['kb_per_run']:.3f}",
                f"{figure['when_over']['kb_per_run']:.3f}",
                str(figure["when_over"]["alive"]),
            )
    return table


def _large_output(large: dict[str, Any]) -> Table:
    table = _table(
        f"A tool output of {large['output_bytes'] / 1e6:.0f} MB, where a text may have "
        f"{large['bound_chars']:,} characters",
        "form",
        "held, bytes",
        "peak, bytes",
        "its event, ms",
    )
    for form, figure in large["forms"].items():
        table.add_row(
            form,
            f"{figure['held_bytes']:,}",
            f"{figure['peak_bytes']:,}",
            f"{figure['event_ms']:.2f}",
        )
    return table


def _imports(imports: dict[str, Any]) -> Table:
    table = _table("CPU of an import in a fresh interpreter", "statement", "ms")
    for figure in imports.values():
        table.add_row(figure["statement"], _spread(figure["cpu_ms"], ".0f"))
    return table


def _worker(worker: dict[str, Any]) -> Table:
    table = _table(
        "Finished runs through redaction, scoring and SQLite, on one core",
        "texts",
        "steps",
        "characters",
        "runs per second",
        "per CPU second",
    )
    for kind, figure in worker["throughput"].items():
        table.add_row(
            kind,
            str(figure["steps_per_run"]),
            f"{figure['characters_per_run']:,}",
            _spread(figure["runs_per_s"], ".0f"),
            _spread(figure["runs_per_cpu_s"], ".0f"),
        )
    for figure in worker["overrun"].values():
        table.caption = (
            f"worker standing still: of {figure['runs']} runs {figure['dropped']} were dropped and "
            "counted, and no agent waited"
        )
    return table
