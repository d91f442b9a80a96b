"""Calibrations and confidence models as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kp_langchain.calibration.feature_meanings import meaning_of
from kp_langchain.calibration.fitting import Fit
from kp_langchain.calibration.measures import Estimate
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.calibration.proposals import Ranking, WeightsProposal
from kp_langchain.cli.domain_calibration import Calibration, WeighedThreshold, at_threshold
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


def calibration_report(found: Calibration, *, trial: bool) -> Iterator[RenderableType]:
    """Tell what came of calibrating a domain, from the verdicts to the proposals.

    Args:
        found: What came of it.
        trial: Whether the model was not to be installed in any case.
    """
    fit = found.fit
    yield _headline(
        fit.domain,
        f"{fit.runs} verdicts on {fit.tasks} different tasks, {fit.successes} successes",
    )
    if fit.model is not None:
        yield from _judged(found)
    told = _INDENT + _installation(found, trial=trial)
    yield Text(told, style="" if found.version is None else "green")
    if found.weights is not None:
        yield Text("")
        yield from _weights(found.weights, proposed=found.proposes_weights)
    elif fit.model is not None:
        yield Text(
            f"{_INDENT}No weights or threshold are proposed: the model in force has learned from "
            "some of these runs, and would look too good on them."
        )
    for threshold in reversed(found.thresholds):  # those in force first
        yield Text("")
        yield from _threshold(found, threshold)


def models_report(versions: Sequence[InstalledModel]) -> Iterator[RenderableType]:
    """Tell which models a domain has had, and what the one in force, or else the last, goes by."""
    shown = next((one for one in versions if one.active), versions[-1])
    told = f"version {shown.version} is in force" if shown.active else "no model is in force"
    if shown.active and not shown.model.is_current:
        told = f"version {shown.version} is outdated and not used; fit again"
    yield _headline(shown.domain, told)
    table = _table("version", "installed", "verdicts", "tasks", "AUC", "Brier", "default's")
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
            style="bold" if one.active else "",
        )
    yield _indented(table)
    yield Text("")
    yield Text(
        f"{_INDENT}What version {shown.version} goes by; odds of success for each standard "
        "deviation more of:"
    )
    yield from _terms(shown.model)


def _terms(model: ConfidenceModel) -> Iterator[RenderableType]:
    terms = sorted(model.terms, key=lambda term: -abs(term.weight))
    shown = sorted(terms[:_TERMS_SHOWN], key=lambda term: -term.weight)
    table = _table("odds", "typically", "of what")
    for term in shown:
        table.add_row(
            Text(f"x {math.exp(term.weight):.2f}", style="green" if term.weight > 0 else "red"),
            f"{math.expm1(term.mean):.3g}",
            Text(visible(meaning_of(term.feature))),
        )
    yield _indented(table)
    if len(terms) > len(shown):
        yield Text(f"{_INDENT}and {len(terms) - len(shown)} weaker ones; --json has them all.")


def _table(*headings: str) -> Table:
    """A table that folds its last column, and no other, where there is no room."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    return table


def _indented(table: Table) -> RenderableType:
    return Padding(table, (0, 0, 0, len(_INDENT)))


def _headline(domain: str, told: str) -> Text:
    return Text.assemble((printable(domain), "bold"), f": {told}")


def _judged(found: Calibration) -> Iterator[RenderableType]:
    fit = found.fit
    table = _table(
        "on tasks it never saw", "model", "default", f"always {fit.successes / fit.runs:.2f}"
    )
    table.add_row("AUC", str(fit.auc), str(fit.default_auc), "0.50")
    briers = (fit.brier, fit.default_brier, fit.base_brier)
    table.add_row("Brier score", *(f"{value:.3f}" for value in briers))
    table.add_row("the score's AUC", str(fit.score_auc_after), str(fit.score_auc_before), "")
    if found.weights is not None and found.proposes_weights:
        table.add_row("  at proposed weights", str(found.weights.proposed.auc), "", "")
    yield _indented(table)
    yield Text("")
    yield _indented(_reliability(fit))
    yield Text("")


def _reliability(fit: Fit) -> Table:
    table = _table("runs", "said", "came true")
    for row in fit.reliability:
        table.add_row(str(row.runs), f"{row.confidence:.2f}", str(row.success_rate))
    return table


def _installation(found: Calibration, *, trial: bool) -> str:
    before, model = found.before, found.fit.model
    stays = f"version {before.version}" if before else "the default confidence"
    if found.fit.refusal is not None or model is None:
        return f"Not installed, {stays} stays in force: {found.fit.refusal}."
    if trial:
        return f"Not installed, for this is only a trial; {stays} stays in force."
    if before is None:
        return f"Installed as version {found.version}; running processes use it within a minute."
    if found.version == before.version:
        return f"Version {before.version} stays in force: nothing has changed since."
    return (
        f"Installed as version {found.version} (AUC {model.auc:.2f}) in place of version "
        f"{before.version} (AUC {before.model.auc:.2f}); running processes use it within a minute."
    )


def _weights(proposal: WeightsProposal, *, proposed: bool) -> Iterator[RenderableType]:
    now, then = proposal.in_force, proposal.proposed
    table = _table("weights", "in force", "proposed" if proposed else "others")
    old, new = asdict(now.weights), asdict(then.weights)
    for name, value in old.items():
        table.add_row(name.replace("_", " "), f"{value:.2f}", f"{new[name]:.2f}")
    table.add_section()
    for told, *values in zip(_RANKING, _ranked(now), _ranked(then), strict=True):
        table.add_row(told.format(runs=now.top_runs), *values)
    yield _indented(table)
    if not proposed:
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


def _ranked(ranking: Ranking) -> tuple[str, ...]:
    return (
        str(ranking.auc),
        str(ranking.top_success),
        str(ranking.top_tasks),
        str(ranking.top_solved),
        f"{ranking.harvest:.3f}",
    )


def _threshold(found: Calibration, one: WeighedThreshold) -> Iterator[RenderableType]:
    proposal, curve = one.proposal, one.proposal.curve
    weights = "proposed weights" if one.are_proposed else "weights in force"
    yield Text(
        f"{_INDENT}Threshold for {proposal.wish}, with {found.confidence} confidence and the "
        f"{weights}:"
    )
    marks = {
        min(curve, key=lambda point: abs(point.pass_rate - rate)).threshold: ""
        for rate in _PASS_RATES_SHOWN
    }
    if not one.are_proposed:
        marks |= {
            found.thresholds_in_force[name]: told
            for name, told in _IN_FORCE.items()
            if name in found.thresholds_in_force
        }
    if proposal.point is not None:
        at = proposal.point.threshold
        mark = "proposed" if one is found.to_write else "if the weights stay"
        marks[at] = f"{mark}; {marks[at]}" if marks.get(at) else mark
    table = _table("threshold", "passes", "tasks", "successes among them", "")
    for threshold, mark in sorted(marks.items()):
        point = at_threshold(curve, threshold)
        table.add_row(
            f"{threshold:.3f}",
            f"{point.pass_rate:.0%}" if point else "0%",
            str(point.tasks) if point else "0",
            str(point.precision) if point else "",
            Text(mark, style="bold" if mark.startswith("proposed") else ""),
        )
    yield _indented(table)
    if one.are_proposed and found.weights is not None:
        # The table of weights is held out, and must not seem to contradict this one.
        top = found.weights.proposed
        yield Text(
            f"{_INDENT}The weights were chosen on these runs; on tasks that they never saw, "
            f"{top.top_success.value:.2f} of the best {top.top_runs} runs succeeded."
        )
    unreached = [
        f"{threshold:g}"
        for threshold in found.thresholds_in_force.values()
        if not one.are_proposed and at_threshold(curve, threshold) is None
    ]
    if unreached:
        told = f"None of these runs reaches {' or '.join(unreached)}, which is in force."
        yield Text(_INDENT + told, style="yellow")
    if proposal.refusal:
        yield Text(f"{_INDENT}No threshold is proposed: {proposal.refusal}.")
