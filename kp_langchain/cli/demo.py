"""The command `demo`."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Annotated

import typer
from rich.text import Text

from kp_langchain.cli.options import new_app
from kp_langchain.cli.output import make_console
from kp_langchain.cli.run_view import list_of_runs
from kp_langchain.config import Settings, data_dir
from kp_langchain.demo.tasks import run_tasks
from kp_langchain.errors import KPError
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore
from kp_langchain.text import short_id

app = new_app()


@app.command()
def demo(
    database: Annotated[
        str | None,
        typer.Option(help="Database URL or SQLite file for the runs; by default the demo's own."),
    ] = None,
) -> None:
    """Run a few agents, score each run, and show what was kept and why."""
    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED switches recording off, so there would be nothing to show")
    location = database or str(data_dir() / "demo.db")
    console = make_console()
    titles, runs = [], []
    with TraceStore(location) as store:
        with console.status("Running agents and scoring their runs ..."):
            scorer = Scorer(step_cap=settings.step_cap, max_remembered=settings.novelty_memory)
            with suppress(KPError):  # the breakdowns say what is wrong with the embedding model
                scorer.load()
            for task, result in run_tasks(store, scorer):
                run = store.get(result.trace.id) if result else None
                if run is not None:
                    titles.append(task.title)
                    runs.append(run)
        location_text = store.location
    console.print(list_of_runs(runs, console, titles=titles))
    decisions = Counter(run.decision for run in runs)
    twins = decisions["twin"]
    repeats = f"; {twins} repeat kept runs of an earlier demo" if twins else ""
    best = max(runs, key=lambda run: run.score)
    title = titles[runs.index(best)]
    console.print(Text(f"Why “{title}” scored highest", style="bold"))
    console.print(Text(best.breakdown.text() + "\n"))
    console.print(
        Text(
            f"Kept: {decisions['kept']} of {len(runs)} runs{repeats}. Their traces, "
            f"and the breakdowns of all runs, are in\n  {location_text}\n\n"
            "What to try next\n"
            f"  kp-langchain review --database {location}\n"
            f"  kp-langchain review {short_id(best.trace_id)} --database {location}"
        ),
        soft_wrap=True,
    )
