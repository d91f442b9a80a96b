"""The command `demo`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from kp_langchain.cli.options import new_app
from kp_langchain.cli.output import make_console, make_table
from kp_langchain.config import Settings, data_dir
from kp_langchain.demo.tasks import DOMAIN, DemoRun, play
from kp_langchain.errors import KPError
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore
from kp_langchain.text import count_text, short_id

if TYPE_CHECKING:
    from kp_langchain.store import StoredRun

_BY_WORTH = """The gate was not told which are.
It keeps the best tenth by worth, and more of a domain's first runs. Worth is higher for
a run that agrees with others of its task. A run with a flag, such as a failed last call,
has a veto. Of a task the first run that passes is kept. Others are its twins, also one
that a later run raised above it."""
_BY_SCORE = """\
Runs without a worth were judged by their score, which does not tell right from wrong:
until 10 runs of the domain were compared with others of their task."""
_SETTINGS = '[defaults]\n  gate = "worth"\n  pass_rate = 0.1'

app = new_app()


@app.command()
def demo(
    database: Annotated[
        str | None,
        typer.Option(help="Database URL or SQLite file for the runs; by default the demo's own."),
    ] = None,
) -> None:
    """Run agents on a few tasks again and again, and show which runs are kept and why."""
    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED switches recording off, so there would be nothing to show")
    console = make_console()
    location = database or str(data_dir() / "demo.db")
    if not database and _delete_earlier(Path(location)):
        console.print(f"Deleted the runs of an earlier demo: {location}\n", soft_wrap=True)
    with TraceStore(location) as store:
        if n_runs := store.count():
            raise KPError(
                f"{store.location} has {count_text(n_runs, 'run')} already, and the demo needs a "
                "store without any; omit --database, or name a new file"
            )
        with console.status("Running agents and judging their runs ..."):
            scorer = Scorer(step_cap=settings.step_cap, max_remembered=settings.novelty_memory)
            with suppress(KPError):  # the breakdowns say what is wrong with the embedding model
                scorer.load()
            played = list(play(store, scorer))
            stored = [(run, store.get(trace_id)) for run, trace_id in played]
            runs = [(run, one) for run, one in stored if one is not None]
            n_verdicts = len(store.models.labelled(DOMAIN))
        location_text = store.location
    headings = ("task", "its agent", "right", "agrees with", "worth", "decision")
    console.print(make_table(headings, _rows(runs)))
    kept = [(run, one) for run, one in runs if one.decision == "kept"]
    right = sum(run.is_right for run, _ in kept)
    best_run, best = max(kept or runs, key=lambda pair: pair[1].worth or 0.0)
    console.print(Text(f"\n“{best_run.title}” is {best.decision}: {best.reason}", style="bold"))
    console.print(Text(best.breakdown.text() + "\n"))
    judged = count_text(n_verdicts, "run has a", "runs have a") if n_verdicts else "No run has a"
    paragraphs = [
        f"Kept: {len(kept)} of {len(runs)} runs, {right} of them right. {_BY_WORTH}",
        _BY_SCORE if any(one.worth is None for _, one in runs) else "",
        f"{judged} verdict. From 10 on, a model learns from them which runs are right.\n"
        f"  kp-langchain label next --database {location}\n"
        f"  kp-langchain calibrate --database {location}\n"
        "The latter needs scikit-learn: pip install 'kp-langchain[calibrate]'",
        f"All runs, and why each was kept or not, are in {location_text}\n"
        f"  kp-langchain review --database {location}\n"
        f"  kp-langchain review {short_id(best.trace_id)} --database {location}",
        f"The same gate for agents of yours, in kp.toml:\n  {_SETTINGS}",
    ]
    console.print(Text("\n\n".join(filter(None, paragraphs))), soft_wrap=True)


def _delete_earlier(path: Path) -> bool:
    """Delete a SQLite file; return whether there was one.

    Raises:
        KPError: It cannot be deleted.
    """
    is_there = path.exists()
    try:
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
    except OSError as error:
        raise KPError(
            f"the earlier demo in {path} cannot be deleted ({error.strerror}); "
            "name another file: --database FILE"
        ) from error
    return is_there


def _rows(runs: Sequence[tuple[DemoRun, StoredRun]]) -> Iterator[tuple[str, ...]]:
    by_title = sorted(runs, key=lambda pair: pair[0].title)
    for title, pairs in groupby(by_title, key=lambda pair: pair[0].title):
        for at, (run, one) in enumerate(pairs):
            agreement = one.breakdown.agreement
            yield (
                "" if at else title,
                run.way,
                "yes" if run.is_right else "no",
                "" if agreement is None else f"{agreement.agreeing} of {agreement.runs}",
                "" if one.worth is None else f"{one.worth:.3f}",
                f"veto:{one.veto}" if one.veto else one.decision,
            )
