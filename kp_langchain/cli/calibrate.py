"""The commands `calibrate`, `calibrate show` and `calibrate remove`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.text import Text

from kp_langchain.cli.output import say_json, visible
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.errors import KPError
from kp_langchain.near_names import near_name
from kp_langchain.printable import printable

if TYPE_CHECKING:
    from kp_langchain.cli.domain_calibration import Calibration, Wish
    from kp_langchain.cli.policy_file import Written

calibrate = typer.Typer(
    help="Learn each domain's confidence from verdicts, and propose thresholds and weights; "
    "`show` explains the models in force, `remove` takes one out of force."
)

_REFUSED = 1
_PASS_RATE = 0.1
_HOW_TO_LABEL = "give some: kp-langchain label ID --success, or --failure"

Domain = Annotated[Optional[str], typer.Option(help="Only this domain.")]  # noqa: UP045
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]


@calibrate.callback(invoke_without_command=True)
def _calibrate(
    context: typer.Context,
    domain: Domain = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would come of it, and change nothing.")
    ] = False,
    pass_rate: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help=f"Share of the runs that is to pass; {_PASS_RATE} by default."),
    ] = None,
    precision: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Instead: share of successes wished among those that pass."),
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Write what is proposed into kp.toml.")
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Learn from the verdicts on each domain's runs.

    Exit status: 0; 1, the model of --domain was refused, or something cannot be read or written
    and was named; 2, wrong usage.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        context.obj = database
        return
    wish = _wish(pass_rate, precision)
    if dry_run and write:
        raise typer.BadParameter("--dry-run writes nothing; leave it or --write out")
    from kp_langchain.cli.domain_calibration import calibrate as calibrated
    from kp_langchain.config import Settings

    settings = Settings()
    with open_store(database) as store:
        domains = list(store.models.verdict_counts())
        if domain is not None and domain not in domains:
            meant = near_name(domain, domains)
            todo = f"did you mean {meant}?" if meant else _HOW_TO_LABEL
            raise KPError(f"no run of domain {domain!r} in {store.location} has a verdict; {todo}")
        if not domains and not as_json:
            _tell(f"No run in {store.location} has a verdict; {_HOW_TO_LABEL}")
        refused = False
        for name in domains if domain is None else [domain]:
            found = calibrated(store, name, settings=settings, wish=wish, install=not dry_run)
            refused = found.fit.refusal is not None
            if as_json:
                written = _written(found) if write else None
                told = found.to_dict() | {"written": _as_json(written)}
                say_json(told)
                continue
            _print(found, trial=dry_run)
            _tell("")
            if write:
                _tell(*_what_was_written(found, _written(found)))
            elif found.to_write is not None:
                _tell(f"  --write puts {_in_words(found)} into kp.toml.")
            _tell("")
    if domain is not None and refused:
        raise typer.Exit(_REFUSED)


@calibrate.command()
def show(
    context: typer.Context,
    domain: Domain = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show the models in force and before, how good they are, and what they go by."""
    from kp_langchain.cli.calibration_report import models_report
    from kp_langchain.cli.run_tables import make_console

    console = make_console()
    with open_store(database or context.obj) as store:
        entries = store.models.entries(domain)
        if as_json:
            for one in entries:
                told = {
                    "version": one.version,
                    "active": one.active,
                    "installed_at": one.installed_at.isoformat(),
                    "model": one.model.to_dict(),
                }
                say_json(told)
            return
        if not entries:
            of = "" if domain is None else f" of domain {domain!r}"
            _tell(f"No model{of} in {store.location}; fit one: kp-langchain calibrate")
        for name in dict.fromkeys(one.domain for one in entries):
            for part in models_report([one for one in entries if one.domain == name]):
                console.print(part, soft_wrap=isinstance(part, Text))
            _tell("")


@calibrate.command()
def remove(
    context: typer.Context,
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain's name.")],
    database: Database = None,
) -> None:
    """Take a domain's model out of force; its runs get the default confidence again."""
    with open_store(database or context.obj) as store:
        if not store.models.remove(domain):
            raise KPError(
                f"no model of domain {domain!r} is in force in {store.location}; "
                "list them: kp-langchain calibrate show"
            )
        _tell(
            f"The model of {printable(domain)} is out of force; its runs get the default "
            "confidence, in running processes within a minute."
        )


def _refuse_options(context: typer.Context) -> None:
    """Refuse options of `calibrate` before `show` or `remove`, which would not heed them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name != "database" and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"--{name.replace('_', '-').removeprefix('as-')} before "
                f"{context.invoked_subcommand} has no meaning; put options after it"
            )


def _wish(pass_rate: float | None, precision: float | None) -> Wish:
    from kp_langchain.cli.domain_calibration import Wish

    if pass_rate is not None and precision is not None:
        raise typer.BadParameter("give either --pass-rate or --precision")
    if pass_rate is not None and not 0 < pass_rate <= 1:
        raise typer.BadParameter(f"--pass-rate is {pass_rate}; give a number above 0, at most 1")
    if precision is not None and not 0 < precision < 1:
        raise typer.BadParameter(f"--precision is {precision}; give a number above 0, below 1")
    if precision is not None:
        return Wish(precision=precision)
    return Wish(pass_rate=_PASS_RATE if pass_rate is None else pass_rate)


def _print(found: Calibration, *, trial: bool) -> None:
    from kp_langchain.cli.calibration_report import calibration_report
    from kp_langchain.cli.run_tables import make_console

    console = make_console()
    for part in calibration_report(found, trial=trial):
        console.print(part, soft_wrap=isinstance(part, Text))


def _tell(*lines: str) -> None:
    from kp_langchain.cli.run_tables import make_console

    for line in lines:
        make_console().print(Text(visible(line)), soft_wrap=True)


def _written(found: Calibration) -> Written | None:
    """Write what is proposed; None if nothing is."""
    from kp_langchain.cli.policy_file import write_policy

    chosen = found.to_write
    if chosen is None or chosen.proposal.point is None:
        return None
    return write_policy(
        found.fit.domain,
        threshold=chosen.proposal.point.threshold,
        weights=chosen.weights if chosen.are_proposed else None,
    )


def _in_words(found: Calibration) -> str:
    """What there is to write."""
    chosen = found.to_write
    if chosen is None or chosen.proposal.point is None:
        return "nothing"
    threshold = f"threshold {chosen.proposal.point.threshold:g}"
    return f"{threshold} and the proposed weights" if chosen.are_proposed else threshold


def _what_was_written(found: Calibration, written: Written | None) -> list[str]:
    if written is None:
        return ["  Nothing was written, because no threshold is proposed."]
    file = f"{written.path}, a new file" if written.created else str(written.path)
    lines = [f"  Wrote {_in_words(found)} of {printable(found.fit.domain)} into {visible(file)}."]
    for field, names in written.overridden_by.items():
        lines.append(
            f"  It has no effect here: {visible(', '.join(names))} in the environment says another "
            f"{field} and comes first; unset it."
        )
    if written.ignored:
        lines.append(
            "  It has no effect yet: runs of this domain may be sent, and the file is not trusted; "
            f"if you have read it: kp-langchain trust {visible(str(written.path))}"
        )
    return lines


def _as_json(written: Written | None) -> dict[str, Any] | None:
    if written is None:
        return None
    return {
        "path": str(written.path),
        "created": written.created,
        "overridden_by": dict(written.overridden_by),
    }
