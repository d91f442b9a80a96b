"""The command `demo`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.text import Text

from kp_langchain.errors import KPError
from kp_langchain.printable import short_id

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.config import Settings
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.store import StoredRun, TraceStore


class _DemoRun(NamedTuple):
    """A run of the demo.

    Attributes:
        title: The title of its task.
        stored: The run as the store has it.
        scored: The run as the handler returned it.
    """

    title: str
    stored: StoredRun
    scored: ScoredTrace


def demo(
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER:NAME", help="A real chat model instead of the script."),
    ] = None,
    database: Annotated[
        str | None,
        typer.Option(help="Database URL or SQLite file for the runs; by default the demo's own."),
    ] = None,
) -> None:
    """Run a few agents, score each run, and show what was kept and why."""
    from kp_langchain.cli.console import make_console
    from kp_langchain.config import Settings, data_dir
    from kp_langchain.store import TraceStore

    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED switches recording off, so there would be nothing to show")
    location = database or str(data_dir() / "demo.db")
    console = make_console()
    with TraceStore(location) as store:
        with console.status("Running agents and scoring their runs ..."):
            runs = _run_agents(store, settings, model)
        _print_runs(console, store, location, runs)


def _run_agents(store: TraceStore, settings: Settings, model: str | None) -> list[_DemoRun]:
    from kp_langchain.demo.run import chat_model, run_tasks
    from kp_langchain.scoring.scorer import Scorer

    real_model = chat_model(model) if model else None
    scorer = Scorer(step_cap=settings.step_cap, max_remembered=settings.novelty_memory)
    with suppress(KPError):  # the breakdowns say what is wrong with the embedding model
        scorer.load()
    runs = []
    for task, scored in run_tasks(store, scorer, real_model):
        stored = store.get(scored.trace.id) if scored else None
        if stored is not None and scored is not None:
            runs.append(_DemoRun(task.title, stored, scored))
    return runs


def _print_runs(console: Console, store: TraceStore, location: str, runs: list[_DemoRun]) -> None:
    from kp_langchain.cli.run_tables import titled_table

    console.print(titled_table([run.title for run in runs], [run.stored for run in runs], console))
    decisions = Counter(run.scored.decision for run in runs)
    twins = decisions["twin"]
    repeats = f"; {twins} repeat kept runs of an earlier demo" if twins else ""
    best = max(runs, key=lambda run: run.stored.score)
    console.print(Text(f"Why “{best.title}” scored highest", style="bold"))
    console.print(Text(best.scored.breakdown.text() + "\n"))
    console.print(
        Text(
            f"Kept: {decisions['kept']} of {len(runs)} runs{repeats}. Their traces, "
            f"and the breakdowns of all runs, are in\n  {store.location}\n\n"
            "What to try next\n"
            f"  kp-langchain review --database {location}\n"
            f"  kp-langchain review show {short_id(best.stored.trace_id)}"
            f" --database {location}\n"
            "  kp-langchain demo --model PROVIDER:NAME     the same tasks, a real model"
        ),
        soft_wrap=True,
    )
