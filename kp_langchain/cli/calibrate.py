"""The commands `calibrate`, which fits and proposes, `calibrate show` and `calibrate remove`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kp_langchain.cli.options import AsJsonLines, Database, group_app, open_store
from kp_langchain.cli.output import (
    indent,
    make_console,
    make_table,
    percent,
    say,
    say_json,
    visible,
)
from kp_langchain.errors import KPError, MissingExtraError, OutdatedModelError
from kp_langchain.gate.check import DEFAULT_PASS_RATE, pass_rate_of
from kp_langchain.text import near_name, printable

if TYPE_CHECKING:
    from kp_langchain.calibration.calibrate_domain import (
        Calibration,
        GateFigures,
        GateProposal,
        LaterVerdicts,
    )
    from kp_langchain.calibration.model import ConfidenceModel
    from kp_langchain.cli.policy_file import WrittenPolicy
    from kp_langchain.policy import DomainPolicy
    from kp_langchain.store import TraceStore
    from kp_langchain.store.confidence_models import InstalledModel

_REFUSED = 1
_HOW_TO_LABEL = "give some: kp-langchain label ID --success, or --failure"
_TERMS_SHOWN = 20
Domain = Annotated[str | None, typer.Option(help="Only this domain.")]

app = group_app(
    default="fit",
    help="""Learn each domain's confidence from verdicts, and propose a gate.

    Exit status: 0; 1, the model of --domain was refused, --write wrote nothing, or an error ended
    the command; 2, wrong usage.""",
)


@app.command("fit", hidden=True)
def fit(
    domain: Domain = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the result, and change nothing.")
    ] = False,
    pass_rate: Annotated[
        float, typer.Option(help="Share of the runs that is to pass.")
    ] = DEFAULT_PASS_RATE,
    write: Annotated[
        bool, typer.Option("--write", help="Write what is proposed into kp.toml.")
    ] = False,
    database: Database = None,
    as_json: AsJsonLines = False,
) -> None:
    """Learn from the verdicts on each domain's runs."""
    from kp_langchain.calibration.calibrate_domain import calibrate
    from kp_langchain.cli.policy_file import write_policy
    from kp_langchain.config import Settings

    if not 0 < pass_rate <= 1:
        raise typer.BadParameter(f"--pass-rate is {pass_rate}; give a number above 0, at most 1")
    if dry_run and write:
        raise typer.BadParameter("--dry-run writes nothing; omit it or --write")
    settings = Settings()
    is_refused = has_written = False
    with open_store(database) as store:
        domains = _domains(store, domain)
        if not domains and not as_json:
            say(f"No run in {store.location} has a verdict; {_HOW_TO_LABEL}")
        for name in domains:
            before = next(iter(store.models.installed(name, only_active=True)), None)
            result = calibrate(
                name,
                store.models.labelled(name),
                settings.policy_for(name),
                before=None if before is None else before.model,
                pass_rate=pass_rate,
            )
            is_refused = domain is not None and result.fit.refusal is not None
            version = None
            if result.fit.model is not None and result.fit.refusal is None and not dry_run:
                version = store.models.install(result.fit.model)
            if not as_json:  # before the file is written, which may fail
                _print_result(result, before, version)
            fields, policy = result.policy_fields, None
            if write and fields:
                policy = write_policy(name, **fields)
                has_written = True
            if as_json:
                replaced = before and {"version": before.version, "auc": before.model.auc}
                installation = {"version": version, "before": replaced, "written": policy}
                say_json(result.to_dict() | installation)
            elif write:
                _say_written(result, policy)
            elif fields:
                say(f"\n  --write puts {_fields_text(fields)} into kp.toml.\n")
    if is_refused or (write and not has_written):
        raise typer.Exit(_REFUSED)


@app.command()
def show(domain: Domain = None, database: Database = None, as_json: AsJsonLines = False) -> None:
    """Show the models in force and earlier ones, their figures, and what they are based on."""
    from kp_langchain.config import Settings

    settings = Settings()
    with open_store(database) as store:
        models = store.models.installed(domain)
        if as_json:
            for one in models:
                values = _model_json(store, one, settings.policy_for(one.domain))
                say_json(values, {"model": one.model.to_dict()})
            return
        if not models:
            which = "" if domain is None else f" of domain {domain!r}"
            say(f"No model{which} in {store.location}; fit one: kp-langchain calibrate")
        for name in dict.fromkeys(one.domain for one in models):
            versions = [one for one in models if one.domain == name]
            _print_models(versions)
            in_force = next((one for one in versions if one.active), None)
            policy = settings.policy_for(name)
            if in_force is not None and (later := later_verdicts_of(store, in_force)) is not None:
                refit = f"; {how_to_refit(name)}" if later.is_broken else ""
                text = f"{later}{refit}."
                say(f"  {text[:1].upper()}{text[1:]}")
            if in_force is not None and in_force.model.is_current:
                say(f"  {_gate_line(_kept_by_gate(store, in_force, policy))}")
            elif policy.gate == "worth":
                say("  The policy gates by worth, which takes a model; now the score decides.")
            say("")


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
    domains = list(store.models.verdict_counts())
    if domain is None:
        return domains
    if domain not in domains:
        near = near_name(domain, domains)
        hint = f"did you mean {near}?" if near else _HOW_TO_LABEL
        raise KPError(f"no run of domain {domain!r} in {store.location} has a verdict; {hint}")
    return [domain]


# ------------------------------------------------------------------ a fit


def _print_result(result: Calibration, before: InstalledModel | None, version: int | None) -> None:
    fit_, model, console = result.fit, result.fit.model, make_console()
    summary = f"{fit_.runs} verdicts on {fit_.tasks} different tasks, {fit_.successes} successes"
    say(f"{printable(fit_.domain)}: {summary}")
    if model is not None:
        table = make_table(
            ("on tasks it never saw", "model", "default", f"always {model.base_rate:.2f}")
        )
        table.add_row("AUC", str(fit_.auc), str(fit_.default_auc), "0.50")
        briers = (model.brier, model.default_brier, fit_.base_brier)
        table.add_row("Brier score", *(f"{value:.3f}" for value in briers))
        scores = str(fit_.score_auc_after), str(fit_.score_auc_before)
        table.add_row("the score's AUC", *scores, "")
        console.print(indent(table))
        console.print()
    say(f"  {_installation(result, before, version)}")
    if before is not None and result.later is not None and result.later.is_broken:
        say(
            f"  Version {before.version}, which stays: {result.later}; take it out of "
            f"force: kp-langchain calibrate remove {printable(fit_.domain)}."
        )
    if model is not None and fit_.refusal is None:
        _say_leanings(model)
    if result.proposal is not None:
        say("")
        _print_proposal(result.proposal, is_installed=version is not None)


def _say_leanings(model: ConfidenceModel) -> None:
    if model.leans_on:
        say(f"  It leans on: {printable(', '.join(model.leans_on))}.")


def _installation(result: Calibration, before: InstalledModel | None, version: int | None) -> str:
    """Return in words which model is in force now."""
    model = result.fit.model
    stays = f"version {before.version}" if before else "the default confidence"
    if result.fit.refusal is not None or model is None:
        return f"Not installed, {stays} stays in force: {result.fit.refusal}."
    if version is None:
        return f"Not installed, because this is only a trial; {stays} stays in force."
    if before is not None and version == before.version:
        return f"Version {version} stays in force: nothing has changed since."
    text = f"Installed as version {version}"
    if before is not None:
        text += f" (AUC {model.auc:.2f}) in place of version {before.version} "
        text += f"(AUC {before.model.auc:.2f})"
    return f"{text}; running processes use it within a minute."


def _print_proposal(proposal: GateProposal, *, is_installed: bool) -> None:
    console = make_console()
    table = make_table(
        ("gate, on held-out tasks", "keeps", "of them right", "tasks per run", "AUC")
    )
    table.add_row("none", "100%", f"{proposal.base_rate:.2f}", "", "0.50")
    is_refused = proposal.refusal is not None
    with_model = "in force, with this model" if proposal.in_force is None else "with this model"
    rows = [("in force", proposal.in_force), (with_model, proposal.with_model)]
    rows.append(("not proposed" if is_refused else "proposed", proposal.proposed))
    rows += [("instead", gate) for gate in proposal.other_rates if gate != proposal.proposed]
    for name, gate in rows:
        if gate is not None:
            right = "none kept" if gate.right is None else str(gate.right)
            tasks = f"{gate.tasks_per_run:.2f}" if gate.runs else ""
            cells = percent(gate.kept), right, tasks, str(gate.auc)
            table.add_row(f"{name}: {_gate_text(gate)}", *cells)
    console.print(indent(table))
    if not is_refused:
        return
    say(f"  No gate is proposed: {proposal.refusal}.")
    stays = proposal.with_model if is_installed else proposal.in_force
    if stays is not None and stays.right is not None and stays.right.value < proposal.base_rate:
        say(
            "  What stays in force keeps a smaller share of successes than no gate would; "
            "raise pass_rate, or lower the threshold."
        )


def _gate_text(gate: GateFigures) -> str:
    if gate.pass_rate is not None:
        return f"the best {percent(gate.pass_rate)} by {gate.gate}"
    return f"{gate.gate} from " + " or ".join(f"{one:g}" for one in gate.thresholds)


def _fields_text(fields: dict[str, Any]) -> str:
    """Return what there is to write, in words."""
    return " and ".join(f"{name} = {value!r}" for name, value in fields.items()).replace("'", '"')


def _say_written(result: Calibration, policy: WrittenPolicy | None) -> None:
    if policy is None:
        why = "the model was refused" if result.fit.refusal else "no gate is proposed"
        say(f"  Nothing was written, because {why}.\n")
        return
    file = f"{policy.path}, a new file" if policy.created else policy.path
    domain = printable(result.fit.domain)
    say(f"  Wrote {_fields_text(result.policy_fields)} of {domain} into {file}.")
    if policy.overridden:
        names = " and ".join(policy.overridden)
        say(f"  It has no effect here: a variable of the environment sets another {names}.")
    say("")


# ------------------------------------------------------------------ models in force


def later_verdicts_of(store: TraceStore, model: InstalledModel) -> LaterVerdicts | None:
    """Return what the verdicts given since say of a model; None if that cannot be computed.

    Raises:
        StoreError: The labelled runs cannot be read.
    """
    from kp_langchain.calibration.calibrate_domain import later_verdicts

    with suppress(MissingExtraError, OutdatedModelError):
        return later_verdicts(model.model, store.models.labelled(model.domain))
    return None


def model_lines(store: TraceStore, model: InstalledModel) -> Iterator[str]:
    """Yield a summary of a model in force, and what speaks against it."""
    yield f"{printable(model.domain)}: version {model.version}, {model.model.source}"
    if not model.model.is_current:
        yield f"outdated and not used; {how_to_refit(model.domain)}"
    later = later_verdicts_of(store, model)
    if later is not None and later.is_broken:
        yield f"{later}; {how_to_refit(model.domain)}"


def how_to_refit(domain: str) -> str:
    """Return what to do about a model that should be replaced."""
    return f"fit it again: kp-langchain calibrate --domain {printable(domain)}"


def _print_models(versions: Sequence[InstalledModel]) -> None:
    """Print the models of a domain, and the terms of the one in force, or of the newest."""
    from rich.text import Text

    latest = next((one for one in versions if one.active), versions[-1])
    status = "no model is in force"
    if latest.active:
        status = f"version {latest.version} is in force"
    if latest.active and not latest.model.is_current:
        status = f"version {latest.version} is outdated and not used; fit again"
    say(f"{printable(latest.domain)}: {status}")
    table = make_table(("version", "installed", "verdicts", "tasks", "AUC", "Brier", "default's"))
    for one in reversed(versions):
        model = one.model
        table.add_row(
            str(one.version),
            f"{one.installed_at:%Y-%m-%d}",
            str(model.runs),
            str(model.tasks),
            f"{model.auc:.2f} ({model.auc_low:.2f} to {model.auc_high:.2f})",
            f"{model.brier:.3f}",
            f"{model.default_brier:.3f}",
            style="bold" if one.active else "",
        )
    console = make_console()
    console.print(indent(table))
    say("")
    _say_leanings(latest.model)
    say(
        f"  The strongest features of version {latest.version}; odds of success for each "
        "standard deviation more of:"
    )
    from kp_langchain.calibration.features import meaning_of

    terms = sorted(latest.model.terms, key=lambda term: -abs(term.weight))
    features = make_table(("odds", "typically", "of what"))
    for term in sorted(terms[:_TERMS_SHOWN], key=lambda term: -term.weight):
        odds = Text(f"x {math.exp(term.weight):.2f}", style="green" if term.weight > 0 else "red")
        meaning = Text(visible(meaning_of(term.feature)))
        features.add_row(odds, f"{math.expm1(term.mean):.3g}", meaning)
    console.print(indent(features))
    if len(terms) > _TERMS_SHOWN:
        say(f"  and {len(terms) - _TERMS_SHOWN} weaker ones; --json has them all.")


def _kept_by_gate(store: TraceStore, model: InstalledModel, policy: DomainPolicy) -> dict[str, Any]:
    """Return what the gate of a model's domain promises, and what it kept of the runs since."""
    rate = pass_rate_of(policy, policy.gate, has_model=True)
    fixed = policy.worth_threshold if policy.gate == "worth" else policy.threshold
    recent = store.recent_values(model.domain, policy.gate, since=model.model.created_at)
    passes = [run.passes for run in recent if run.pass_rate == rate]
    return {
        "gate": policy.gate,
        "pass_rate": rate,
        "threshold": fixed if rate is None else None,
        "runs": len(passes),
        "kept": sum(passes) / len(passes) if passes else None,
    }


def _gate_line(share: dict[str, Any]) -> str:
    promise = f"what reaches {share['gate']} {share['threshold']}"
    if share["pass_rate"] is not None:
        promise = f"the best {percent(share['pass_rate'])} by {share['gate']}"
    kept = "no run was judged by it yet"
    if share["kept"] is not None:
        kept = f"of the last {share['runs']} runs it kept {percent(share['kept'])}"
    return f"The gate keeps {promise}; {kept}."


def _model_json(store: TraceStore, model: InstalledModel, policy: DomainPolicy) -> dict[str, Any]:
    later = later_verdicts_of(store, model) if model.active else None
    is_used = model.active and model.model.is_current
    return {
        "version": model.version,
        "active": model.active,
        "installed_at": model.installed_at,
        "leans_on": model.model.leans_on,
        "later_verdicts": later and asdict(later),
        "gate": _kept_by_gate(store, model, policy) if is_used else None,
    }
