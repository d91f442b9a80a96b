"""Terminal tables of confidence models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kp_langchain.calibration.calibrate_domain import Calibration
from kp_langchain.calibration.feature_meanings import meaning_of
from kp_langchain.calibration.fitting import Fit
from kp_langchain.calibration.measures import Estimate
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.cli.gate_tables import gate_report
from kp_langchain.cli.model_lines import leaning_lines
from kp_langchain.cli.output import visible
from kp_langchain.cli.plain_tables import INDENT, indent, plain_table
from kp_langchain.printable import printable

if TYPE_CHECKING:
    from kp_langchain.store import InstalledModel

_TERMS_SHOWN = 20


def calibration_report(result: Calibration, *, dry_run: bool) -> Iterator[RenderableType]:
    """Yield the parts of a report on a calibration, from the verdicts to the proposals.

    Args:
        result: The result of calibrating a domain.
        dry_run: Whether the model was not to be installed in any case.
    """
    fit = result.fit
    yield _headline(
        fit.domain,
        f"{fit.runs} verdicts on {fit.tasks} different tasks, {fit.successes} successes",
    )
    if fit.model is not None:
        yield from _evaluation(result)
    installation = INDENT + _installation(result, dry_run=dry_run)
    yield Text(installation, style="" if result.version is None else "green")
    if result.before is not None and result.later is not None and result.later.is_broken:
        yield Text(
            f"{INDENT}Version {result.before.version}, which stays: {result.later}; take it out of "
            f"force: kp-langchain calibrate remove {printable(fit.domain)}.",
            style="yellow",
        )
    if fit.model is not None and fit.refusal is None:
        yield from _leanings(fit.model)
    if result.proposal is not None:
        yield Text("")
        yield from gate_report(result.proposal, is_installed=result.version is not None)


def models_report(versions: Sequence[InstalledModel]) -> Iterator[RenderableType]:
    """Yield the parts of a report on a domain's models: the versions, and the terms of one.

    Args:
        versions: The models of one domain, oldest first. The terms are those of the one in force,
            or else of the newest.
    """
    latest = next((one for one in versions if one.active), versions[-1])
    provisional = ", provisional" if latest.model.provisional else ""
    status = (
        f"version {latest.version} is in force{provisional}"
        if latest.active
        else "no model is in force"
    )
    if latest.active and not latest.model.is_current:
        status = f"version {latest.version} is outdated and not used; fit again"
    yield _headline(latest.domain, status)
    table = plain_table(
        "version", "installed", "verdicts", "tasks", "AUC", "Brier", "default's", ""
    )
    for one in reversed(versions):
        model = one.model
        table.add_row(
            str(one.version),
            f"{one.installed_at:%Y-%m-%d}",
            str(model.runs),
            str(model.tasks),
            str(Estimate(model.auc, model.auc_low, model.auc_high)),
            f"{model.brier:.3f}",
            f"{model.default_brier:.3f}",
            "provisional" if model.provisional else "",
            style="bold" if one.active else "",
        )
    yield indent(table)
    yield Text("")
    yield from _leanings(latest.model)
    yield Text(
        f"{INDENT}The strongest features of version {latest.version}; odds of success for each "
        "standard deviation more of:"
    )
    yield from _terms(latest.model)


def _leanings(model: ConfidenceModel) -> Iterator[RenderableType]:
    for line in leaning_lines(model):
        yield Text(INDENT + line, style="yellow" if line.startswith("Warning") else "")


def _terms(model: ConfidenceModel) -> Iterator[RenderableType]:
    terms = sorted(model.terms, key=lambda term: -abs(term.weight))
    strongest = sorted(terms[:_TERMS_SHOWN], key=lambda term: -term.weight)
    table = plain_table("odds", "typically", "of what")
    for term in strongest:
        table.add_row(
            Text(f"x {math.exp(term.weight):.2f}", style="green" if term.weight > 0 else "red"),
            f"{math.expm1(term.mean):.3g}",
            Text(visible(meaning_of(term.feature))),
        )
    yield indent(table)
    if len(terms) > len(strongest):
        yield Text(f"{INDENT}and {len(terms) - len(strongest)} weaker ones; --json has them all.")


def _headline(domain: str, summary: str) -> Text:
    return Text.assemble((printable(domain), "bold"), f": {summary}")


def _evaluation(result: Calibration) -> Iterator[RenderableType]:
    fit = result.fit
    table = plain_table(
        "on tasks it never saw", "model", "default", f"always {fit.successes / fit.runs:.2f}"
    )
    table.add_row("AUC", str(fit.auc), str(fit.default_auc), "0.50")
    briers = (fit.brier, fit.default_brier, fit.base_brier)
    table.add_row("Brier score", *(f"{value:.3f}" for value in briers))
    table.add_row("the score's AUC", str(fit.score_auc_after), str(fit.score_auc_before), "")
    yield indent(table)
    yield Text("")
    yield indent(_reliability(fit))
    yield Text("")


def _reliability(fit: Fit) -> Table:
    table = plain_table("runs", "predicted", "succeeded")
    for row in fit.reliability:
        table.add_row(str(row.runs), f"{row.confidence:.2f}", str(row.success_rate))
    return table


def _installation(result: Calibration, *, dry_run: bool) -> str:
    before, model = result.before, result.fit.model
    stays = f"version {before.version}" if before else "the default confidence"
    if result.fit.refusal is not None or model is None:
        return f"Not installed, {stays} stays in force: {result.fit.refusal}."
    if dry_run:
        return f"Not installed, because this is only a trial; {stays} stays in force."
    if before is None:
        return (
            f"Installed as version {result.version}{_provisionally(result.fit)}; running processes "
            "use it within a minute."
        )
    if result.version == before.version:
        return f"Version {before.version} stays in force: nothing has changed since."
    return (
        f"Installed as version {result.version} (AUC {model.auc:.2f}) in place of version "
        f"{before.version} (AUC {before.model.auc:.2f}){_provisionally(result.fit)}; running "
        "processes use it within a minute."
    )


def _provisionally(fit: Fit) -> str:
    """Return what to add about a model that may still be chance."""
    if not fit.provisional or fit.chance is None:
        return ""
    return (
        f", provisional (shuffled verdicts are followed as closely in {fit.chance:.1%} of trials; "
        "more verdicts will tell)"
    )
