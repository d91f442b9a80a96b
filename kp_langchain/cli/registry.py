"""The command `registry`: its key, and what is read from it into quarantine; see also `outbox`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kp_langchain.cli import outbox
from kp_langchain.cli.options import (
    INTERRUPTED,
    AsJson,
    AsJsonLines,
    Database,
    Limit,
    group_app,
    new_app,
    open_store,
    person,
)
from kp_langchain.cli.output import (
    Column,
    fact_table,
    field_facts,
    make_console,
    print_list,
    say,
    say_json,
    warn,
)
from kp_langchain.config import Settings
from kp_langchain.errors import KPError
from kp_langchain.registry.credentials import key_file, save_key, stored_key
from kp_langchain.run_keys import check_agent_id, normalise_agent_id, redact_agent_id
from kp_langchain.text import count_text, printable_json, short_id

if TYPE_CHECKING:
    from kp_langchain.recall.quarantine import Pull
    from kp_langchain.store import TraceStore
    from kp_langchain.store.registry_units import Fate, PulledUnit

_NOT_READ = 1
_SOON_S = 2.0  # a wait that is not worth a line
_OBJECTIVE_CHARS = 200
_STYLES = {"quarantined": "yellow", "admitted": "green", "rejected": "red"}
_FATES: dict[Fate, str] = {
    "new": "new",
    "changed": "changed, and quarantined again",
    "unchanged": "unchanged",
    "rejected": "not taken: rejected before",
    "own run": "not taken: a run of this store",
    "other registry": "not taken: here from elsewhere before",
}
_RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry", metavar="URL", help="The registry; by default that of the settings."
    ),
]
_UnitIds = Annotated[
    list[str], typer.Argument(metavar="ID", help="Trace ids, or the beginning of each.")
]

app = new_app(help="Exchange traces with a registry: register, pull, send, withdraw.")
quarantine_app = group_app(
    default="list", help="List traces and patterns pulled from a registry; decide on them."
)
app.add_typer(quarantine_app, name="quarantine")
app.add_typer(outbox.app, name="outbox")


@app.command()
def register(
    agent_id: Annotated[str, typer.Option(help="The contributing agent, such as kp:agent:me.")],
    registry: _RegistryUrl = None,
    replace_key: Annotated[
        bool, typer.Option("--replace", help="Replace the stored key of another agent.")
    ] = False,
) -> None:
    """Obtain a key for a registry and store it in a file that only you can read.

    Traces carry the key's agent id from then on, and only this key can withdraw them.
    """
    settings = Settings()
    agent_id = check_agent_id(agent_id, settings.redaction)
    client = outbox.require_registry(settings, registry)
    # The registry shows the key once, so the file has to be usable before.
    present = stored_key(client.url)
    if present is not None and normalise_agent_id(present.agent_id) != agent_id and not replace_key:
        owner = redact_agent_id(present.agent_id)
        raise KPError(
            f"{key_file()} holds a key for {client.url} already, of {owner}; --replace would lose "
            "it, and what was sent with it could no longer be withdrawn"
        )
    path = save_key(client.url, agent_id, client.register(agent_id))
    if settings.api_key is not None or settings.agent_id is not None:
        say("api_key and agent_id of the settings take precedence: kp-langchain doctor")
    say(f"{client.url} gave a key for {agent_id}; it is in {path}")


# ------------------------------------------------------------------ pull


@app.command()
def pull(
    domain: Annotated[str, typer.Option(help="The domain whose traces to read.")],
    min_quality: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="0-1", help="Only traces whose contributor claims at least this."
        ),
    ] = None,
    query: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only traces with these words.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=5000, metavar="N", help="Read at most this many.")
    ] = 200,
    offset: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave out this many, those that claim most.")
    ] = 0,
    admit_clean: Annotated[
        bool, typer.Option("--admit-clean", help="Admit those in which nothing was found.")
    ] = False,
    registry: _RegistryUrl = None,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Take at most this long.")
    ] = 60.0,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Read traces and patterns of a registry into quarantine, where they wait to be admitted.

    Each is redacted by your rules and searched for planted instructions. No run is shown one before
    it is admitted, by `quarantine admit` or here by --admit-clean. That admits neither those in
    which something was found nor those that changed at the registry. What a trace says of its own
    quality and success is only a claim.

    Exit status: 0, all that was asked for was read, usable or not; 1, the registry kept some back,
    or an error ended the command; 2, wrong usage; 130, interrupted.
    """
    from kp_langchain.recall.quarantine import pull as pull_units

    settings = Settings()
    if settings.disabled:
        raise KPError("KP_DISABLED is set, so nothing is pulled; unset it")
    client = outbox.require_registry(settings, registry)
    with open_store(database, creates=True) as store:
        try:
            result = pull_units(
                store,
                client,
                domain=domain,
                q=query,
                min_quality=min_quality,
                limit=limit,
                offset=offset,
                timeout_s=timeout,
                admit_clean=admit_clean,
                sleep=_wait,
            )
        except KeyboardInterrupt:
            warn("interrupted; what is in quarantine already stays there")
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        answer = {"kind": result.answer.kind, "reason": result.answer.reason}
        say_json(result, {"answer": answer})
    else:
        _say_result(result)
    if result.answer.kind != "done":
        raise typer.Exit(_NOT_READ)


def _wait(seconds: float) -> None:
    if seconds > _SOON_S:
        warn(f"Waiting {seconds:.0f} s for the registry's limit of requests.")
    time.sleep(seconds)


def _say_result(result: Pull) -> None:
    of = "" if result.total is None else f" of {result.total}"
    counts = Counter({_FATES[fate]: number for fate, number in result.fates.items()})
    counts.update({f"not taken: {reason}": number for reason, number in result.skipped.items()})
    parts = [f"{number} {what}" for what, number in counts.most_common()]
    what = f": {'; '.join(parts)}" if parts else ""
    say(f"Read {result.read}{of} units of {result.domain} from {result.registry}{what}.")
    if result.with_findings:
        hint = "kp-langchain registry quarantine"
        say(f"{result.with_findings} may hold planted instructions: {hint}")
    if result.admitted:
        say(f"Admitted {result.admitted} in which nothing was found.")
    if result.answer.kind != "done":
        say(f"Not all was read: {result.answer.reason}.")
    if result.next_offset is not None:
        say(f"There may be more: --offset {result.next_offset}")


app.command()(outbox.withdraw)


# ------------------------------------------------------------------ quarantine


@quarantine_app.command("list")
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
        state_filter = None if state == "all" else state
        units = store.pulled.units(state=state_filter, domain=domain, limit=limit)
        print_list(_COLUMNS, units, as_json=as_json)
        if not as_json:
            counts = ", ".join(f"{number} {name}" for name, number in store.pulled.counts().items())
            say(f"{counts} in {store.location}.")


@quarantine_app.command()
def show(
    unit_id: Annotated[str, typer.Argument(metavar="ID", help="Trace id or its beginning.")],
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    r"""Show one trace in full, with what was found in it.

    Characters that cannot be seen, or would control the terminal, are written as \u001b.
    """
    from kp_langchain.cli.run_view import print_whole

    with open_store(database) as store:
        unit = _find(store, unit_id)
        body = store.pulled.unit(unit.trace_id)
    if as_json:
        say_json(unit, {"unit": body and body.model_dump(mode="json")})
        return
    console = make_console()
    facts = [(label, printable_json(text)) for label, text in field_facts(asdict(unit))]
    console.print(fact_table(facts))
    if body is not None:
        print_whole(body.as_trace(), console, spell=printable_json)


@quarantine_app.command()
def admit(
    unit_ids: _UnitIds,
    digest: Annotated[
        str | None,
        typer.Option(
            metavar="DIGEST",
            help="What `show` printed: admit the one ID only if it is still that. Needed for a "
            "trace that changed at the registry.",
        ),
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Let runs be shown traces. Read them first, with `show`."""
    if digest is not None and len(unit_ids) != 1:
        raise typer.BadParameter("--digest belongs to one ID")
    with open_store(database) as store:
        ids = _ids(store, unit_ids)
        new_ids = store.pulled.admit(*ids, by=person(), digest=digest)
        with_findings = sum(bool(_find(store, id_).findings) for id_ in new_ids)
    _report("admitted", new_ids, "Admitted {}; runs may be shown {}.", as_json=as_json)
    if with_findings and not as_json:
        say(f"{with_findings} of them may hold planted instructions: no run is shown these.")


@quarantine_app.command()
def reject(unit_ids: _UnitIds, database: Database = None, as_json: AsJson = False) -> None:
    """Never show traces to runs, also ones that were admitted, and delete their text.

    Their ids stay, so that a later pull does not bring them back.
    """
    with open_store(database) as store:
        new_ids = store.pulled.reject(*_ids(store, unit_ids), by=person())
    line = "Rejected {}; no run is shown {}, and the text is deleted. To give back its room in the "
    _report("rejected", new_ids, f"{line}file: kp-langchain store prune", as_json=as_json)


@quarantine_app.command()
def forget(unit_ids: _UnitIds, database: Database = None, as_json: AsJson = False) -> None:
    """Delete traces with their ids and the decision on them; a later pull may bring them back."""
    with open_store(database) as store:
        old_ids = store.pulled.forget(*_ids(store, unit_ids))
    _report("forgotten", old_ids, "Forgot {}; a later pull may bring {} back.", as_json=as_json)


def _report(decision: str, ids: Sequence[str], line: str, *, as_json: bool) -> None:
    """Print what a decision changed; `line` has places for how many, and for the pronoun."""
    if as_json:
        say_json({decision: list(ids)})
        return
    text = line.format(count_text(len(ids), "unit"), "it" if len(ids) == 1 else "them")
    say("\n  ".join([text, *ids]) if ids else "Nothing changed.")


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


_COLUMNS: tuple[Column[PulledUnit], ...] = (
    Column(title="trace", text=lambda unit: short_id(unit.trace_id)),
    Column(title="domain", text=lambda unit: printable_json(unit.domain[:16])),
    Column(
        title="state",
        text=lambda unit: (
            "changed" if unit.state == "quarantined" and unit.changed_at else unit.state
        ),
        style=lambda unit: _STYLES[unit.state],
    ),
    Column(title="claims>", text=lambda unit: f"{unit.quality_score:.2f}"),
    Column(title="found>", text=lambda unit: str(len(unit.findings) or ""), style=lambda _: "red"),
    Column(title="pulled", text=lambda unit: f"{unit.pulled_at:%Y-%m-%d %H:%M}"),
    Column(title="objective", text=lambda unit: printable_json(unit.objective[:_OBJECTIVE_CHARS])),
)
