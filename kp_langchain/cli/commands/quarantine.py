"""The commands `quarantine` and `quarantine show`, `admit`, `reject` and `forget`."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from kp_langchain.cli.json_option import AsJson, AsJsonLines
from kp_langchain.cli.output import json_fields, say, say_json
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.errors import KPError
from kp_langchain.printable import printable_json, short_id

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kp_langchain.schema import ReasoningTrace, TraceStep
    from kp_langchain.store import TraceStore
    from kp_langchain.store.registry_units import PulledUnit

quarantine = typer.Typer(
    help="List traces pulled from a registry; `show`, `admit`, `reject` and `forget` act on them."
)

UnitId = Annotated[str, typer.Argument(metavar="ID", help="Trace id or its beginning.")]
UnitIds = Annotated[
    list[str] | None, typer.Argument(metavar="ID", help="Trace ids, or the beginning of each.")
]
By = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who decides; by default your user name.")
]
_OBJECTIVE_CHARS = 200
_STYLES = {"quarantined": "yellow", "admitted": "green", "rejected": "red"}


@quarantine.callback(invoke_without_command=True)
def list_units(
    context: typer.Context,
    state: Annotated[
        Literal["quarantined", "admitted", "rejected", "all"],
        typer.Option(help="Only traces in this state."),
    ] = "quarantined",
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many.")] = 30,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List what was pulled from a registry and waits to be admitted."""
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    from kp_langchain.cli.console import make_console

    with open_store(database) as store:
        units = store.pulled.entries(
            state=None if state == "all" else state, domain=domain, limit=limit
        )
        if as_json:
            for unit in units:
                say_json(json_fields(unit))
            return
        console = make_console()
        if units:
            console.print(_table(units))
        counts = ", ".join(f"{number} {name}" for name, number in store.pulled.counts().items())
        console.print(f"{counts} in {store.location}.", soft_wrap=True)


@quarantine.command()
def show(
    context: typer.Context, unit_id: UnitId, database: Database = None, as_json: AsJson = False
) -> None:
    r"""Show one trace in full, with what was found in it.

    Characters that cannot be seen, or would control the terminal, are written as \u001b.
    """
    with open_store(database or context.obj) as store:
        unit = _find(store, unit_id)
        trace = store.pulled.trace(unit.trace_id)
        if as_json:
            body = None if trace is None else trace.model_dump()
            say_json(json_fields(unit) | {"trace": body})
            return
        for line in (*_unit_lines(unit), *(_trace_lines(trace) if trace else ())):
            # Indented, so that no line of the trace looks like one of ours.
            for part in line.replace("\n", "\n    ").split("\n"):
                print(printable_json(part))  # noqa: T201 - `say` would replace what this writes out


@quarantine.command()
def admit(
    context: typer.Context,
    unit_ids: UnitIds = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="Admit all in which nothing was found.")
    ] = False,
    min_quality: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="With --clean: only those that claim at least this."),
    ] = None,
    domain: Annotated[str | None, typer.Option(help="With --clean: only this domain.")] = None,
    digest: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST",
            help="What `show` printed: admit the one ID only if it is still that. Needed for a "
            "trace that changed at the registry.",
        ),
    ] = None,
    by: By = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Let runs be shown traces: those that you name, or by --clean those with no findings.

    --clean leaves traces that changed at the registry to you. Read with `show` what you admit.
    """
    if bool(unit_ids) == clean:
        raise typer.BadParameter("give either IDs or --clean")
    if not clean and (min_quality is not None or domain is not None):
        raise typer.BadParameter("--min-quality and --domain belong to --clean")
    if digest is not None and len(unit_ids or ()) != 1:
        raise typer.BadParameter("--digest belongs to one ID")
    kept_back: list[str] = []
    with open_store(database or context.obj) as store:
        if clean:
            admitted = store.pulled.admit_clean(
                min_quality=min_quality or 0.0, domain=domain, by=by
            )
        else:
            ids = _ids(store, unit_ids or ())
            admitted = store.pulled.admit(*ids, by=by or _user(), digest=digest)
            kept_back = [id_ for id_ in admitted if _find(store, id_).findings]
    _report({"admitted": admitted}, "Admitted {}; runs may be shown {}.", as_json=as_json)
    if kept_back and not as_json:
        one = len(kept_back) == 1
        say(
            f"{len(kept_back)} of them {'looks' if one else 'look'} like planted instructions: "
            f"{'it is' if one else 'they are'} shown to no run all the same."
        )


@quarantine.command()
def reject(
    context: typer.Context,
    unit_ids: UnitIds = None,
    by: By = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Never show traces to runs, also ones that were admitted, and delete their text.

    Their ids stay, so that a later pull does not bring them back.
    """
    if not unit_ids:
        raise typer.BadParameter("give IDs")
    with open_store(database or context.obj) as store:
        rejected = store.pulled.reject(*_ids(store, unit_ids), by=by or _user())
    _report(
        {"rejected": rejected},
        "Rejected {}; no run is shown {}, and the text is deleted. "
        "To give back its room in the file: kp-langchain prune",
        as_json=as_json,
    )


@quarantine.command()
def forget(
    context: typer.Context,
    unit_ids: UnitIds = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Delete traces with their ids and the decision on them; a later pull may bring them back."""
    if not unit_ids:
        raise typer.BadParameter("give IDs")
    with open_store(database or context.obj) as store:
        forgotten = store.pulled.forget(*_ids(store, unit_ids))
    _report({"forgotten": forgotten}, "Forgot {}; a later pull may bring {} back.", as_json=as_json)


def _report(ids: Mapping[str, Sequence[str]], line: str, *, as_json: bool) -> None:
    """Print what a decision changed.

    Args:
        ids: The ids, under what was decided.
        line: What to say of them, with two places: for how many, and for the pronoun.
        as_json: Print JSON.
    """
    if as_json:
        say_json({name: list(changed) for name, changed in ids.items()})
        return
    for changed in ids.values():
        one = len(changed) == 1
        text = line.format(f"{len(changed)} trace{'' if one else 's'}", "it" if one else "them")
        say(text if changed else "Nothing changed.")
        for id_ in changed:
            say(f"  {id_}")


def _ids(store: TraceStore, unit_ids: Sequence[str]) -> list[str]:
    """Return the whole ids, each once.

    Raises:
        KPError: One fits no trace, or several.
    """
    return list(dict.fromkeys(_find(store, unit_id).trace_id for unit_id in unit_ids))


def _find(store: TraceStore, unit_id: str) -> PulledUnit:
    unit = store.pulled.get(unit_id)
    if unit is None:
        raise KPError(
            f"nothing {unit_id!r:.200} was pulled into {store.location}; "
            "list all: kp-langchain quarantine --state all"
        )
    return unit


def _user() -> str:
    with suppress(Exception):  # the system may know no name for this process
        return f"person: {getpass.getuser()}"
    return "person"


def _table(units: Sequence[PulledUnit]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, padding=(0, 1, 0, 0))
    table.add_column("trace", no_wrap=True, max_width=20)
    table.add_column("domain", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("state", no_wrap=True)
    table.add_column("claims", justify="right", no_wrap=True)
    table.add_column("found", justify="right", no_wrap=True)
    table.add_column("pulled", no_wrap=True)
    table.add_column("objective", ratio=1, no_wrap=True, overflow="ellipsis", min_width=8)
    for unit in units:
        found = str(len(unit.findings) or "")
        table.add_row(
            Text(short_id(unit.trace_id)),
            Text(printable_json(unit.domain)),
            Text(_state(unit), style=_STYLES.get(unit.state, "")),
            f"{unit.quality_score:.2f}",
            Text(found, style="red"),
            f"{unit.pulled_at:%Y-%m-%d %H:%M}",
            Text(printable_json(unit.objective[:_OBJECTIVE_CHARS])),
        )
    return table


def _state(unit: PulledUnit) -> str:
    return "changed" if unit.state == "quarantined" and unit.changed_at else unit.state


def _unit_lines(unit: PulledUnit) -> Iterator[str]:
    """Yield what is known of a unit beside its trace."""
    yield f"{unit.trace_id}  {unit.state}"
    yield f"digest {unit.digest}"
    yield f"of {unit.domain}, from {unit.registry}, pulled {unit.pulled_at:%Y-%m-%d %H:%M:%S} UTC"
    ending = "succeeded" if unit.success else "failed"
    yield (
        f"claims that it {ending}, with confidence {unit.confidence:.2f} and quality "
        f"{unit.quality_score:.2f}"
    )
    if unit.decided_at is not None:
        yield f"decided {unit.decided_at:%Y-%m-%d %H:%M:%S} UTC by {unit.decided_by}"
    if unit.changed_at is not None:
        after = " after that decision" if unit.decided_at and _is_void(unit) else ""
        noticed = f"noticed {unit.changed_at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"changed, or more found in it{after}: {noticed}"
    if unit.state == "rejected":
        yield "its text was deleted when it was rejected"
    else:
        yield f"found in it: {len(unit.findings) or 'nothing'}"
    for finding in unit.findings:
        yield "  " + "; ".join(f"{name}: {text}" for name, text in finding.items())


def _is_void(unit: PulledUnit) -> bool:
    """Return whether a unit changed after the last decision on it."""
    times = (unit.decided_at, unit.changed_at)
    return None not in times and unit.state == "quarantined"


def _trace_lines(trace: ReasoningTrace) -> Iterator[str]:
    """Yield the trace in full."""
    yield f"task: {trace.task.objective}"
    if trace.task.input_schema is not None:
        yield f"input schema: {_json(trace.task.input_schema)}"
    for step in trace.steps:
        yield from _step_lines(step)
    yield f"result: {trace.outcome.result_summary}"


def _step_lines(step: TraceStep) -> Iterator[str]:
    name = f" {step.tool.name}" if step.tool else ""
    server = f" of {step.tool.mcp_server}" if step.tool and step.tool.mcp_server else ""
    yield f"{step.step_id} {step.type}{name}{server}"
    if step.input is not None:
        yield f"  input: {_json(step.input)}"
    for text in (step.content, step.output_summary):
        if text is not None:
            yield f"  {text}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
