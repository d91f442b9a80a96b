"""The commands `calibrate`, which fits and proposes, `calibrate show` and `calibrate remove`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.calibration.agreement import AGREEMENT
from kp_langchain.calibration.calibrate_domain import calibrate
from kp_langchain.calibration.later_verdicts import later_verdicts
from kp_langchain.calibration.model import PRIOR_WEIGHT, PRIOR_WEIGHT_SD, PROVISIONAL_RUNS
from kp_langchain.cli.options import AsJsonLines, Database, group_app, open_store
from kp_langchain.cli.output import (
    indent,
    make_console,
    make_table,
    percent,
    say,
    say_json,
)
from kp_langchain.cli.policy_file import write_policy
from kp_langchain.config import Settings
from kp_langchain.errors import KPError, MissingExtraError, OutdatedModelError
from kp_langchain.gate.check import DEFAULT_PASS_RATE, pass_rate_of
from kp_langchain.text import near_name, printable

if TYPE_CHECKING:
    from kp_langchain.calibration.calibrate_domain import (
        Calibration,
        GateFigures,
        GateProposal,
    )
    from kp_langchain.calibration.later_verdicts import LaterVerdicts
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.cli.policy_file import WrittenPolicy
    from kp_langchain.store import TraceStore

_REFUSED = 1
_HOW_TO_LABEL = "give some: kp-langchain label ID --success, or --failure"
_Domain = Annotated[str | None, typer.Option(help="Only this domain.")]

app = group_app(
    default="fit",
    help="""Learn each domain's confidence from verdicts, and propose a gate.

    Exit status: 0; 1, the model of --domain was refused, --write had no gate to write, or an error
    ended the command; 2, wrong usage.""",
)


@app.command("fit", hidden=True)
def fit(
    domain: _Domain = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the result, and change nothing.")
    ] = False,
    pass_rate: Annotated[
        float, typer.Option(metavar="0-1", help="Share of the runs that is to pass.")
    ] = DEFAULT_PASS_RATE,
    write: Annotated[
        bool, typer.Option("--write", help="Write what is proposed into kp.toml.")
    ] = False,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Learn from the verdicts on each domain's runs."""
    if not 0 < pass_rate <= 1:
        raise typer.BadParameter(f"--pass-rate is {pass_rate}; give a number above 0, at most 1")
    if dry_run and write:
        raise typer.BadParameter("--dry-run writes nothing; omit it or --write")
    settings = Settings()
    is_refused = is_as_proposed = False
    with open_store(database) as store:
        domains = _domains(store, domain)
        if not domains and not as_json:
            say(f"No run in {store.location} has a verdict; {_HOW_TO_LABEL}")
        for name in domains:
            before, policy = store.models.in_force(name), settings.policy_for(name)
            result = calibrate(
                name,
                store.models.labelled(name),
                policy,
                before=before,
                pass_rate=pass_rate,
            )
            is_refused = domain is not None and result.fit.refusal is not None
            is_installed = None
            if result.fit.model is not None and result.fit.refusal is None and not dry_run:
                is_installed = store.models.install(result.fit.model)
            if not as_json:  # before the file is written, which may fail
                _print_result(result, before, is_installed=is_installed)
                rate = pass_rate_of(policy, policy.gate, has_model=True)
                if is_installed and before is None and policy.pass_rate is None and rate:
                    say(
                        f"  The model changes the scores, so {printable(name)} now keeps its best "
                        f"{percent(rate)}; a threshold in kp.toml would replace that."
                    )
            fields, written = result.policy_fields, None
            is_new = any(getattr(policy, field) != value for field, value in fields.items())
            if write and fields:
                written = write_policy(name, **fields) if is_new else None
                is_as_proposed = True
            if as_json:
                replaced = before and {"created_at": before.created_at, "auc": before.auc}
                installation = {"is_installed": bool(is_installed), "before": replaced}
                say_json(result.to_dict() | installation | {"written": written})
            elif write:
                _say_written(result, written)
            elif is_new:
                say(f"\n  --write puts {_fields_text(fields)} into kp.toml.\n")
    if is_refused or (write and not is_as_proposed):
        raise typer.Exit(_REFUSED)


@app.command()
def show(domain: _Domain = None, database: Database = None, as_json: AsJsonLines = False) -> None:
    """Show the models in force, their figures, and what they are based on."""
    with open_store(database) as store:
        models = store.models.installed(domain)
        if as_json:
            for one in models:
                later = later_verdicts_of(store, one)
                values = {"leans_on": one.leans_on, "later_verdicts": later and asdict(later)}
                say_json(values, {"model": one.to_dict()})
            return
        if not models:
            which = "" if domain is None else f" of domain {domain!r}"
            say(f"No model{which} in {store.location}; fit one: kp-langchain calibrate")
        for one in models:
            say("\n  ".join([*model_lines(store, one), _prior_text(one)]))


@app.command()
def remove(
    domain: Annotated[str, typer.Argument(metavar="DOMAIN", help="The domain's name.")],
    database: Database = None,
) -> None:
    """Take a domain's model out of force; its runs get the default confidence again."""
    with open_store(database) as store:
        if not store.models.remove(domain):
            raise KPError(
                f"no model of domain {domain!r} is in force in {store.location}; "
                "list them: kp-langchain calibrate show"
            )
        say(
            f"The model of {printable(domain)} is out of force; its runs get the default "
            "confidence, in running processes within a minute."
        )


def _domains(store: TraceStore, domain: str | None) -> list[str]:
    """Return the domains with verdicts, or only the one named.

    Raises:
        KPError: No run of the domain that was named has a verdict.
    """
    domains = store.models.labelled_domains()
    if domain is None:
        return domains
    if domain not in domains:
        near = near_name(domain, domains)
        hint = f"did you mean {near}?" if near else _HOW_TO_LABEL
        raise KPError(f"no run of domain {domain!r} in {store.location} has a verdict; {hint}")
    return [domain]


# ------------------------------------------------------------------ a fit


def _print_result(
    result: Calibration, before: ConfidenceModel | None, *, is_installed: bool | None
) -> None:
    fit_, model = result.fit, result.fit.model
    summary = f"{fit_.runs} verdicts on {fit_.tasks} different tasks, {fit_.successes} successes"
    say(f"{printable(fit_.domain)}: {summary}")
    if model is not None:
        table = make_table(
            ("on tasks it never saw", "model", "default", f"always {model.base_rate:.2f}")
        )
        table.add_row("AUC", str(fit_.auc), str(fit_.default_auc), "0.50")
        briers = (model.brier, model.default_brier, fit_.base_brier)
        table.add_row("Brier score", *(f"{value:.3f}" for value in briers))
        make_console().print(indent(table))
        say("")
    say(f"  {_installation(result, before, is_installed=is_installed)}")
    if before is not None and result.later is not None and result.later.is_broken:
        say(
            f"  The present model, which stays: {result.later}; take it out of "
            f"force: kp-langchain calibrate remove {printable(fit_.domain)}."
        )
    if model is not None and fit_.refusal is None and model.leans_on:
        say(f"  {_leanings(model)}.")
    if model is not None and fit_.refusal is None:
        say(f"  {_prior_text(model)}.")
        if model.runs < PROVISIONAL_RUNS:
            say(
                f"  It is provisional until there are {PROVISIONAL_RUNS} verdicts; give more: "
                "kp-langchain label next"
            )
    if result.proposal is not None:
        say("")
        _print_proposal(result.proposal)


def _leanings(model: ConfidenceModel) -> str:
    return f"It leans on: {printable(', '.join(model.leans_on))}"


def _prior_text(model: ConfidenceModel) -> str:
    """Return what the weights of a model were taken to be before any verdict."""
    if all(term.feature != AGREEMENT for term in model.terms):
        return "Before any verdict, all weights were taken to be near 0"
    agreement = f"{PRIOR_WEIGHT:g} ± {PRIOR_WEIGHT_SD:g}"
    return (
        f"Before any verdict, agreement with other runs of a task was taken to weigh {agreement} "
        "(log-odds for each standard deviation), and all else near 0"
    )


def _installation(
    result: Calibration, before: ConfidenceModel | None, *, is_installed: bool | None
) -> str:
    """Return in words which model is in force now."""
    not_installed = "Not installed" + (", the present model stays in force" if before else "")
    if result.fit.refusal is not None:
        return f"{not_installed}: {result.fit.refusal}."
    if is_installed is None:
        return f"{not_installed}: this is only a trial."
    if not is_installed:
        return "The present model stays in force: nothing has changed since."
    replaced = f" in place of the present one (AUC {before.auc:.2f})" if before else ""
    return f"Installed{replaced}; running processes use it within a minute."


def _print_proposal(proposal: GateProposal) -> None:
    """Print what each gate keeps of the labelled runs, and why none is proposed."""
    table = make_table(
        ("gate, on held-out tasks", "keeps", "of them right", "tasks per run", "AUC")
    )
    table.add_row("none", "100%", f"{proposal.base_rate:.2f}", "", "0.50")
    with_model = "in force, with this model" if proposal.in_force is None else "with this model"
    proposed = "not proposed" if proposal.refusal is not None else "proposed"
    rows = [
        ("in force", proposal.in_force),
        (with_model, proposal.with_model),
        (proposed, proposal.proposed),
        *(("instead", gate) for gate in proposal.other_rates if gate != proposal.proposed),
    ]
    for name, gate in rows:
        if gate is not None:
            right = "none kept" if gate.right is None else str(gate.right)
            tasks = f"{gate.tasks_per_run:.2f}" if gate.runs else ""
            cells = percent(gate.kept), right, tasks, str(gate.auc)
            table.add_row(f"{name}: {_gate_text(gate)}", *cells)
    make_console().print(indent(table))
    if proposal.refusal is not None:
        say(f"  No gate is proposed: {proposal.refusal}.")


def _gate_text(gate: GateFigures) -> str:
    if gate.pass_rate is not None:
        return f"the best {percent(gate.pass_rate)} by {gate.gate}"
    return f"{gate.gate} from " + " or ".join(f"{one:g}" for one in gate.thresholds)


def _fields_text(fields: dict[str, Any]) -> str:
    """Return what there is to write, in words."""
    return " and ".join(f"{name} = {value!r}" for name, value in fields.items()).replace("'", '"')


def _say_written(result: Calibration, policy: WrittenPolicy | None) -> None:
    domain, fields = printable(result.fit.domain), _fields_text(result.policy_fields)
    if policy is None and fields:
        say(f"  Nothing changed: {fields} of {domain} was already in force.\n")
        return
    if policy is None:
        why = "the model was refused" if result.fit.refusal else "no gate is proposed"
        say(f"  Nothing was written, because {why}.\n")
        return
    say(f"  Wrote {fields} of {domain} into {Path(policy.path).absolute()}.")
    if policy.overridden:
        names = " and ".join(policy.overridden)
        say(f"  It has no effect here: a variable of the environment sets another {names}.")
    say("")


# ------------------------------------------------------------------ models in force


def later_verdicts_of(store: TraceStore, model: ConfidenceModel) -> LaterVerdicts | None:
    """Return what the verdicts given since say of a model; None if that cannot be computed.

    Raises:
        StoreError: The labelled runs cannot be read.
    """
    with suppress(MissingExtraError, OutdatedModelError):
        return later_verdicts(model, store.models.labelled(model.domain))
    return None


def model_lines(store: TraceStore, model: ConfidenceModel) -> Iterator[str]:
    """Yield a summary of a model in force: what it leans on and what is against it."""
    domain = printable(model.domain)
    yield f"{domain}: fitted on {model.created_at:%Y-%m-%d}, {model.source}; in force"
    how_to_refit = f"fit it again: kp-langchain calibrate --domain {domain}"
    if not model.is_current:
        yield f"outdated and not used; {how_to_refit}"
    if model.leans_on:
        yield _leanings(model)
    later = later_verdicts_of(store, model)
    if later is not None:
        yield f"{later}{f'; {how_to_refit}' if later.is_broken else ''}"
