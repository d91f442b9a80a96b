"""Terminal tables of confidence models, and of proposed weights and thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kp_langchain.calibration.calibrate_domain import Calibration, WeighedThreshold
from kp_langchain.calibration.feature_meanings import meaning_of
from kp_langchain.calibration.fitting import Fit
from kp_langchain.calibration.measures import Estimate
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.calibration.proposals import Ranking, WeightsProposal, point_at
from kp_langchain.cli.model_lines import leaning_lines
from kp_langchain.cli.output import visible
from kp_langchain.printable import printable
from kp_langchain.store.confidence_models import InstalledModel

_PASS_RATES_SHOWN = (0.5, 0.3, 0.2, 0.1, 0.05)
_TERMS_SHOWN = 20
_INDENT = "  "
_IN_FORCE = {
    "in_force": "in force",
    "in_force_novelty_not_measured": "in force, novelty not measured",
}


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
    installation = _INDENT + _installation(result, dry_run=dry_run)
    yield Text(installation, style="" if result.version is None else "green")
    if fit.model is not None and fit.refusal is None:
        yield from _leanings(fit.model)
    if result.weights is not None:
        yield Text("")
        yield from _weights(result.weights, is_proposal=result.proposes_weights)
    elif fit.model is not None:
        yield Text(
            f"{_INDENT}No weights or threshold are proposed: the model in force has learned from "
            "some of these runs, and would look too good on them."
        )
    for threshold in reversed(result.thresholds):  # those in force first
        yield Text("")
        yield from _threshold(result, threshold)


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
    table = _table("version", "installed", "verdicts", "tasks", "AUC", "Brier", "default's", "")
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
    yield _indent(table)
    yield Text("")
    yield from _leanings(latest.model)
    yield Text(
        f"{_INDENT}The strongest features of version {latest.version}; odds of success for each "
        "standard deviation more of:"
    )
    yield from _terms(latest.model)


def _leanings(model: ConfidenceModel) -> Iterator[RenderableType]:
    for line in leaning_lines(model):
        yield Text(_INDENT + line, style="yellow" if line.startswith("Warning") else "")


def _terms(model: ConfidenceModel) -> Iterator[RenderableType]:
    terms = sorted(model.terms, key=lambda term: -abs(term.weight))
    strongest = sorted(terms[:_TERMS_SHOWN], key=lambda term: -term.weight)
    table = _table("odds", "typically", "of what")
    for term in strongest:
        table.add_row(
            Text(f"x {math.exp(term.weight):.2f}", style="green" if term.weight > 0 else "red"),
            f"{math.expm1(term.mean):.3g}",
            Text(visible(meaning_of(term.feature))),
        )
    yield _indent(table)
    if len(terms) > len(strongest):
        yield Text(f"{_INDENT}and {len(terms) - len(strongest)} weaker ones; --json has them all.")


def _table(*headings: str) -> Table:
    """Return a table that folds only its last column if there is no room."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    return table


def _indent(table: Table) -> RenderableType:
    return Padding(table, (0, 0, 0, len(_INDENT)))


def _headline(domain: str, summary: str) -> Text:
    return Text.assemble((printable(domain), "bold"), f": {summary}")


def _evaluation(result: Calibration) -> Iterator[RenderableType]:
    fit = result.fit
    table = _table(
        "on tasks it never saw", "model", "default", f"always {fit.successes / fit.runs:.2f}"
    )
    table.add_row("AUC", str(fit.auc), str(fit.default_auc), "0.50")
    briers = (fit.brier, fit.default_brier, fit.base_brier)
    table.add_row("Brier score", *(f"{value:.3f}" for value in briers))
    table.add_row("the score's AUC", str(fit.score_auc_after), str(fit.score_auc_before), "")
    if result.weights is not None and result.proposes_weights:
        table.add_row("  at proposed weights", str(result.weights.proposed.auc), "", "")
    yield _indent(table)
    yield Text("")
    yield _indent(_reliability(fit))
    yield Text("")


def _reliability(fit: Fit) -> Table:
    table = _table("runs", "predicted", "succeeded")
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


def _weights(proposal: WeightsProposal, *, is_proposal: bool) -> Iterator[RenderableType]:
    before, after = proposal.in_force, proposal.proposed
    table = _table("weights", "in force", "proposed" if is_proposal else "others")
    old, new = asdict(before.weights), asdict(after.weights)
    for name, value in old.items():
        table.add_row(name.replace("_", " "), f"{value:.2f}", f"{new[name]:.2f}")
    table.add_section()
    for label, *values in zip(_RANKING, _figures(before), _figures(after), strict=True):
        table.add_row(label.format(runs=before.top_runs), *values)
    yield _indent(table)
    if not is_proposal:
        yield Text(
            f"{_INDENT}No weights are proposed: {proposal.refusal or 'no others do better'}."
        )


_RANKING = (
    "the score's AUC",
    "successes of the best {runs} runs",
    "different tasks of those",
    "tasks that they solve",
    "tasks solved per run kept",
)


def _figures(ranking: Ranking) -> tuple[str, ...]:
    return (
        str(ranking.auc),
        str(ranking.top_success),
        str(ranking.top_tasks),
        str(ranking.top_solved),
        f"{ranking.harvest:.3f}",
    )


def _threshold(result: Calibration, one: WeighedThreshold) -> Iterator[RenderableType]:
    proposal, curve = one.proposal, one.proposal.curve
    weights = "proposed weights" if one.are_proposed else "weights in force"
    yield Text(
        f"{_INDENT}Threshold for {proposal.wish}, with {result.confidence} confidence and the "
        f"{weights}:"
    )
    table = _table("threshold", "passes", "tasks", "successes among them", "")
    for threshold, mark in sorted(_marks(result, one).items()):
        point = point_at(curve, threshold)
        table.add_row(
            f"{threshold:.3f}",
            f"{point.pass_rate:.0%}" if point else "0%",
            str(point.tasks) if point else "0",
            str(point.precision) if point else "",
            Text(mark, style="bold" if mark.startswith("proposed") else ""),
        )
    yield _indent(table)
    if one.are_proposed and result.weights is not None:
        # Explains why this table looks better than the held-out one of the weights.
        top = result.weights.proposed
        yield Text(
            f"{_INDENT}The weights were chosen on these runs; on tasks that they never saw, "
            f"{top.top_success.value:.2f} of the best {top.top_runs} runs succeeded."
        )
    too_high = [
        f"{threshold:g}"
        for threshold in result.thresholds_in_force.values()
        if not one.are_proposed and point_at(curve, threshold) is None
    ]
    if too_high:
        message = f"None of these runs reaches {' or '.join(too_high)}, which is in force."
        yield Text(_INDENT + message, style="yellow")
    if proposal.refusal:
        yield Text(f"{_INDENT}No threshold is proposed: {proposal.refusal}.")


def _marks(result: Calibration, one: WeighedThreshold) -> dict[float, str]:
    """Return the thresholds to show, each with the remark beside it."""
    proposal = one.proposal
    marks = {
        min(proposal.curve, key=lambda point: abs(point.pass_rate - rate)).threshold: ""
        for rate in _PASS_RATES_SHOWN
    }
    if not one.are_proposed:
        marks |= {
            result.thresholds_in_force[name]: remark
            for name, remark in _IN_FORCE.items()
            if name in result.thresholds_in_force
        }
    if proposal.point is not None:
        threshold = proposal.point.threshold
        mark = "proposed" if one is result.to_write else "if the weights stay"
        marks[threshold] = f"{mark}; {marks[threshold]}" if marks.get(threshold) else mark
    return marks
