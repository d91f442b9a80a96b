"""The commands `calibrate`, `calibrate show` and `calibrate remove`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from kp_langchain.cli.json_option import AsJsonLines
from kp_langchain.cli.output import say, say_json, visible
from kp_langchain.cli.store_option import Database, open_store
from kp_langchain.errors import KPError
from kp_langchain.gate.check import DEFAULT_PASS_RATE
from kp_langchain.near_names import near_name
from kp_langchain.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from kp_langchain.calibration.calibrate_domain import Calibration
    from kp_langchain.calibration.gate_proposal import ThresholdTarget
    from kp_langchain.cli.policy_file import WrittenPolicy
    from kp_langchain.domain_policy import DomainPolicy
    from kp_langchain.store import TraceStore
    from kp_langchain.store.confidence_models import InstalledModel

calibrate = typer.Typer(
    help="Learn each domain's confidence from verdicts, and propose a gate; "
    "`show` explains the models in force, `remove` takes one out of force."
)

_REFUSED = 1
_HOW_TO_LABEL = "give some: kp-langchain label ID --success, or --failure"

Domain = Annotated[str | None, typer.Option(help="Only this domain.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the result, and change nothing.")]
PassRate = Annotated[
    float | None,
    typer.Option(help=f"Share of the runs that is to pass; {DEFAULT_PASS_RATE} by default."),
]
Precision = Annotated[
    float | None, typer.Option(help="Instead: share of successes among the runs that pass.")
]
Write = Annotated[bool, typer.Option("--write", help="Write what is proposed into kp.toml.")]


@calibrate.callback(invoke_without_command=True)
def calibrate_domains(
    context: typer.Context,
    domain: Domain = None,
    dry_run: DryRun = False,
    pass_rate: PassRate = None,
    precision: Precision = None,
    write: Write = False,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Learn from the verdicts on each domain's runs.

    Exit status: 0; 1, the model of --domain was refused, --write wrote nothing, or an error ended
    the command; 2, wrong usage.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        context.obj = database
        return
    target = _target(pass_rate, precision)
    if dry_run and write:
        raise typer.BadParameter("--dry-run writes nothing; omit it or --write")
    from kp_langchain.calibration import calibrate_domain
    from kp_langchain.config import Settings

    settings = Settings()
    result = None
    has_written = False
    with open_store(database) as store:
        domains = _domains(store, domain)
        if not domains and not as_json:
            say(f"No run in {store.location} has a verdict; {_HOW_TO_LABEL}")
        for name in domains:
            result = calibrate_domain.calibrate(
                store.models, name, settings=settings, target=target, install=not dry_run
            )
            if not as_json:  # before the file is written, which may fail
                _print_result(result, dry_run=dry_run, write=write)
            policy = _write(result) if write else None
            has_written = has_written or policy is not None
            if as_json:
                _print_json(result, policy)
            elif write:
                _print_written(result, policy)
    is_refused = domain is not None and result is not None and result.fit.refusal is not None
    if is_refused or (write and not has_written):
        raise typer.Exit(_REFUSED)


@calibrate.command()
def show(
    context: typer.Context,
    domain: Domain = None,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Show the models in force and earlier ones, their figures, and what they are based on."""
    from kp_langchain.cli.model_lines import model_json
    from kp_langchain.cli.model_tables import models_report
    from kp_langchain.config import Settings

    settings = Settings()
    with open_store(database or context.obj) as store:
        entries = store.models.entries(domain)
        if as_json:
            for entry in entries:
                say_json(model_json(store, entry, settings.policy_for(entry.domain)))
            return
        if not entries:
            which = "" if domain is None else f" of domain {domain!r}"
            say(f"No model{which} in {store.location}; fit one: kp-langchain calibrate")
        for name in dict.fromkeys(entry.domain for entry in entries):
            of_domain = [entry for entry in entries if entry.domain == name]
            _print(models_report(of_domain))
            in_force = next((one for one in of_domain if one.active), None)
            if in_force is not None:
                _print(_later_line(store, in_force))
            _print(_gate_line(store, settings.policy_for(name), in_force))
            say("")


def _later_line(store: TraceStore, in_force: InstalledModel) -> Iterator[RenderableType]:
    from kp_langchain.cli.model_lines import later_line, later_verdicts_of

    later = later_verdicts_of(store, in_force)
    if later is not None:
        style = "yellow" if later.is_broken else ""
        yield Text(f"  {later_line(in_force.domain, later)}", style=style)


def _gate_line(
    store: TraceStore, policy: DomainPolicy, in_force: InstalledModel | None
) -> Iterator[RenderableType]:
    from kp_langchain.cli.model_lines import kept_share_of

    if in_force is not None and in_force.model.is_current:
        yield Text(f"  {kept_share_of(store, in_force, policy)}")
    elif policy.gate == "worth":
        yield Text(
            "  The policy gates by worth, which takes a model; without one the score decides.",
            style="yellow",
        )


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
        say(
            f"The model of {printable(domain)} is out of force; its runs get the default "
            "confidence, in running processes within a minute."
        )


def _refuse_options(context: typer.Context) -> None:
    """Refuse options of `calibrate` before `show` or `remove`, which would ignore them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name != "database" and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"--{name.replace('_', '-').removeprefix('as-')} has no effect before "
                f"{context.invoked_subcommand}; put options after it"
            )


def _target(pass_rate: float | None, precision: float | None) -> ThresholdTarget:
    from kp_langchain.calibration.gate_proposal import ThresholdTarget

    if pass_rate is not None and precision is not None:
        raise typer.BadParameter("give either --pass-rate or --precision")
    if pass_rate is not None and not 0 < pass_rate <= 1:
        raise typer.BadParameter(f"--pass-rate is {pass_rate}; give a number above 0, at most 1")
    if precision is not None and not 0 < precision < 1:
        raise typer.BadParameter(f"--precision is {precision}; give a number above 0, below 1")
    if precision is not None:
        return ThresholdTarget(precision=precision)
    return ThresholdTarget(pass_rate=DEFAULT_PASS_RATE if pass_rate is None else pass_rate)


def _domains(store: TraceStore, domain: str | None) -> list[str]:
    """Return the domains with verdicts, or only the one named.

    Raises:
        KPError: No run of the domain that was named has a verdict.
    """
    domains = list(store.models.verdict_counts())
    if domain is None:
        return domains
    if domain not in domains:
        near = near_name(domain, domains)
        hint = f"did you mean {near}?" if near else _HOW_TO_LABEL
        raise KPError(f"no run of domain {domain!r} in {store.location} has a verdict; {hint}")
    return [domain]


def _print_result(result: Calibration, *, dry_run: bool, write: bool) -> None:
    from kp_langchain.cli.model_tables import calibration_report

    _print(calibration_report(result, dry_run=dry_run))
    if not write and result.to_write:
        say(f"\n  --write puts {_fields_text(result)} into kp.toml.")
    say("")


def _print_written(result: Calibration, policy: WrittenPolicy | None) -> None:
    for line in _write_report(result, policy):
        say(line)
    say("")


def _print_json(result: Calibration, policy: WrittenPolicy | None) -> None:
    fields = policy and {
        "path": str(policy.path),
        "created": policy.is_new_file,
        "overridden_by": dict(policy.overridden_by),
    }
    say_json(result.to_dict() | {"written": fields})


def _print(parts: Iterable[RenderableType]) -> None:
    from kp_langchain.cli.console import make_console

    console = make_console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))


def _write(result: Calibration) -> WrittenPolicy | None:
    """Write what is proposed into the configuration file; return None if nothing is."""
    from kp_langchain.cli.policy_file import write_policy

    fields = result.to_write
    return write_policy(result.fit.domain, **fields) if fields else None


def _fields_text(result: Calibration) -> str:
    """Return what there is to write, in words."""
    return " and ".join(
        f"{name} = {value!r}".replace("'", '"')
        for name, value in result.to_write.items()
        if value is not None
    )


def _write_report(result: Calibration, policy: WrittenPolicy | None) -> list[str]:
    if policy is None:
        why = "the model was refused" if result.fit.refusal else "no gate is proposed"
        return [f"  Nothing was written, because {why}."]
    file = f"{policy.path}, a new file" if policy.is_new_file else str(policy.path)
    domain = printable(result.fit.domain)
    lines = [f"  Wrote {_fields_text(result)} of {domain} into {visible(file)}."]
    for field, variables in policy.overridden_by.items():
        lines.append(
            f"  It has no effect here: {', '.join(variables)} in the environment sets another "
            f"{field} and comes first; unset it."
        )
    return lines
