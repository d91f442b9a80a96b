"""The commands `registry quarantine list`, `show`, `admit`, `reject` and `forget`."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kp_langchain.cli.options import AsJson, AsJsonLines, Database, Limit, group_app, open_store
from kp_langchain.cli.output import Column, counted, list_table, make_console, say, say_json
from kp_langchain.errors import KPError
from kp_langchain.text import printable_json, short_id

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore
    from kp_langchain.store.registry_units import PulledUnit

UnitIds = Annotated[
    list[str], typer.Argument(metavar="ID", help="Trace ids, or the beginning of each.")
]
By = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who decides; by default your user name.")
]
_OBJECTIVE_CHARS = 200
_STYLES = {"quarantined": "yellow", "admitted": "green", "rejected": "red"}

app = group_app(default="list", help="List traces pulled from a registry; decide on them.")


@app.command("list")
def list_units(
    state: Annotated[
        Literal["quarantined", "admitted", "rejected", "all"],
        typer.Option(help="Only traces in this state."),
    ] = "quarantined",
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    limit: Limit = 30,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """List what was pulled from a registry and waits to be admitted."""
    with open_store(database) as store:
        wanted = None if state == "all" else state
        units = store.pulled.units(state=wanted, domain=domain, limit=limit)
        if as_json:
            for unit in units:
                say_json(unit)
            return
        if units:
            console = make_console()
            console.print(list_table(_COLUMNS, units, width=console.width))
        counts = ", ".join(f"{number} {name}" for name, number in store.pulled.counts().items())
        say(f"{counts} in {store.location}.")


@app.command()
def show(
    unit_id: Annotated[str, typer.Argument(metavar="ID", help="Trace id or its beginning.")],
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    r"""Show one trace in full, with what was found in it.

    Characters that cannot be seen, or would control the terminal, are written as \u001b.
    """
    with open_store(database) as store:
        unit = _find(store, unit_id)
        trace = store.pulled.trace(unit.trace_id)
    if as_json:
        say_json(unit, {"trace": trace and trace.model_dump(mode="json")})
        return
    for line in (*_unit_lines(unit), *(_trace_lines(trace) if trace else ())):
        # Indented, so that no line of the trace looks like one of ours.
        for part in line.replace("\n", "\n    ").split("\n"):
            print(printable_json(part))  # noqa: T201 - `say` would replace what this writes out


@app.command()
def admit(
    unit_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Trace ids, or the beginning of each."),
    ] = None,
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
    kept_back = 0
    with open_store(database) as store:
        if clean:
            admitted = store.pulled.admit_clean(
                min_quality=min_quality or 0.0, domain=domain, by=by
            )
        else:
            ids = _ids(store, unit_ids or ())
            admitted = store.pulled.admit(*ids, by=by or _user(), digest=digest)
            kept_back = sum(bool(_find(store, id_).findings) for id_ in admitted)
    _report("admitted", admitted, "Admitted {}; runs may be shown {}.", as_json=as_json)
    if kept_back and not as_json:
        say(f"{kept_back} of them may hold planted instructions: no run is shown these, either.")


@app.command()
def reject(
    unit_ids: UnitIds, by: By = None, database: Database = None, as_json: AsJson = False
) -> None:
    """Never show traces to runs, also ones that were admitted, and delete their text.

    Their ids stay, so that a later pull does not bring them back.
    """
    with open_store(database) as store:
        rejected = store.pulled.reject(*_ids(store, unit_ids), by=by or _user())
    line = "Rejected {}; no run is shown {}, and the text is deleted. To give back its room in the "
    _report("rejected", rejected, f"{line}file: kp-langchain store prune", as_json=as_json)


@app.command()
def forget(unit_ids: UnitIds, database: Database = None, as_json: AsJson = False) -> None:
    """Delete traces with their ids and the decision on them; a later pull may bring them back."""
    with open_store(database) as store:
        forgotten = store.pulled.forget(*_ids(store, unit_ids))
    _report("forgotten", forgotten, "Forgot {}; a later pull may bring {} back.", as_json=as_json)


def _report(decision: str, ids: Sequence[str], line: str, *, as_json: bool) -> None:
    """Print what a decision changed; `line` has places for how many, and for the pronoun."""
    if as_json:
        say_json({decision: list(ids)})
        return
    text = line.format(counted(len(ids), "trace"), "it" if len(ids) == 1 else "them")
    say(text if ids else "Nothing changed.")
    for id_ in ids:
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
            "list all: kp-langchain registry quarantine --state all"
        )
    return unit


def _user() -> str:
    with suppress(Exception):  # the system may know no name for this process
        return f"person: {getpass.getuser()}"
    return "person"


def _state_text(unit: PulledUnit) -> str:
    return "changed" if unit.state == "quarantined" and unit.changed_at else unit.state


_COLUMNS: tuple[Column[PulledUnit], ...] = (
    Column(title="trace", text=lambda unit: short_id(unit.trace_id)),
    Column(title="domain", text=lambda unit: printable_json(unit.domain[:16])),
    Column(
        title="state",
        text=lambda unit: _state_text(unit),
        style=lambda unit: _STYLES[unit.state],
    ),
    Column(title="claims>", text=lambda unit: f"{unit.quality_score:.2f}"),
    Column(title="found>", text=lambda unit: str(len(unit.findings) or ""), style=lambda _: "red"),
    Column(title="pulled", text=lambda unit: f"{unit.pulled_at:%Y-%m-%d %H:%M}"),
    Column(title="objective", text=lambda unit: printable_json(unit.objective[:_OBJECTIVE_CHARS])),
)


def _unit_lines(unit: PulledUnit) -> Iterator[str]:
    """Yield what is known of a unit beside its trace."""
    yield f"{unit.trace_id}  {unit.state}"
    yield f"digest {unit.digest}"
    yield f"of {unit.domain}, from {unit.registry}, pulled {unit.pulled_at:%Y-%m-%d %H:%M:%S} UTC"
    ending = "succeeded" if unit.success else "failed"
    figures = f"confidence {unit.confidence:.2f} and quality {unit.quality_score:.2f}"
    yield f"claims that it {ending}, with {figures}"
    if unit.decided_at is not None:
        yield f"decided {unit.decided_at:%Y-%m-%d %H:%M:%S} UTC by {unit.decided_by}"
    if unit.changed_at is not None:
        is_void = unit.decided_at is not None and unit.state == "quarantined"
        after = " after that decision" if is_void else ""
        noticed = f"noticed {unit.changed_at:%Y-%m-%d %H:%M:%S} UTC"
        yield f"changed, or more found in it{after}: {noticed}"
    if unit.state == "rejected":
        yield "its text was deleted when it was rejected"
    else:
        yield f"found in it: {len(unit.findings) or 'nothing'}"
    for finding in unit.findings:
        yield "  " + "; ".join(f"{name}: {text}" for name, text in finding.items())


def _trace_lines(trace: ReasoningTrace) -> Iterator[str]:
    """Yield the trace in full."""
    yield f"task: {trace.task.objective}"
    if trace.task.input_schema is not None:
        yield f"input schema: {_json(trace.task.input_schema)}"
    for step in trace.steps:
        name = f" {step.tool.name}" if step.tool else ""
        server = f" of {step.tool.mcp_server}" if step.tool and step.tool.mcp_server else ""
        yield f"{step.step_id} {step.type}{name}{server}"
        if step.input is not None:
            yield f"  input: {_json(step.input)}"
        for text in (step.content, step.output_summary):
            if text is not None:
                yield f"  {text}"
    yield f"result: {trace.outcome.result_summary}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
