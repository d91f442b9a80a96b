"""Calibrations and confidence models as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kp_langchain.calibration.fitting import Fit
from kp_langchain.calibration.meanings import meaning_of
from kp_langchain.calibration.proposals import Ranking, WeightsProposal
from kp_langchain.review.calibration import Calibration, WeighedThreshold, at_threshold
from kp_langchain.review.tables import visible
from kp_langchain.store.models import InstalledModel

_PASS_RATES_SHOWN = (0.5, 0.3, 0.2, 0.1, 0.05)
_TERMS_SHOWN = 20
_INDENTED = (0, 1, 0, 2)


def calibration_report(found: Calibration, *, tried: bool) -> Iterator[RenderableType]:
    """Tell what came of calibrating a domain, from the verdicts to the proposals.

    Args:
        found: What came of it.
        tried: Whether the model was not to be installed in any case.
    """
    fit = found.fit
    yield _headline(
        fit.domain,
        f"{fit.runs} verdicts on {fit.tasks} different tasks, {fit.successes} successes",
    )
    if fit.model is not None:
        yield from _judged(found)
    yield Text(f"  {_installation(found, tried=tried)}", style="" if fit.refusal else "green")
    if found.weights is not None:
        yield Text("")
        yield from _weights(found.weights)
    for threshold in found.thresholds:
        yield Text("")
        yield from _threshold(found, threshold)


def installed_report(versions: Sequence[InstalledModel]) -> Iterator[RenderableType]:
    """Tell which models a domain has had, and what the one in force, or else the last, goes by."""
    shown = next((one for one in versions if one.active), versions[-1])
    yield _headline(
        shown.domain,
        f"version {shown.version} is in force" if shown.active else "no model is in force",
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=_INDENTED)
    for heading in ("version", "installed", "verdicts", "tasks", "AUC", "Brier", "by default", ""):
        table.add_column(heading, no_wrap=True, justify="left" if heading else "right")
    for one in reversed(versions):
        model = one.model
        table.add_row(
            str(one.version),
            f"{one.installed_at:%Y-%m-%d %H:%M}",
            str(model.runs),
            str(model.tasks),
            f"{model.auc:.2f} ({model.auc_low:.2f} to {model.auc_high:.2f})",
            f"{model.brier:.3f}",
            f"{model.default_brier:.3f}",
            ("in force" if model.is_current else "outdated: fit again") if one.active else "",
        )
    yield table
    terms = sorted(shown.model.terms, key=lambda term: -abs(term.weight))
    strongest = sorted(terms[:_TERMS_SHOWN], key=lambda term: -term.weight)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=_INDENTED)
    table.add_column("speaks", no_wrap=True)
    table.add_column("odds", justify="right", no_wrap=True)
    table.add_column("typically", justify="right", no_wrap=True)
    table.add_column("how much there is of", overflow="fold")
    for term in strongest:
        good = term.weight > 0
        table.add_row(
            Text("for success" if good else "against it", style="green" if good else "red"),
            f"x {math.exp(term.weight):.2f}",
            f"{math.expm1(term.mean):.3g}",
            Text(visible(meaning_of(term.feature))),
        )
    yield Text(f"  What version {shown.version} goes by, for each standard deviation more:")
    yield table
    if len(terms) > len(strongest):
        yield Text(f"  and {len(terms) - len(strongest)} weaker ones; --json has them all.")


def _headline(domain: str, told: str) -> Text:
    return Text.assemble((visible(domain), "bold"), f": {told}")


def _judged(found: Calibration) -> Iterator[RenderableType]:
    fit = found.fit
    base_rate = fit.successes / fit.runs
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=_INDENTED)
    for heading in ("on tasks it never saw", "model", "default", f"always {base_rate:.2f}"):
        table.add_column(heading, no_wrap=True)
    table.add_row("AUC of the confidence", str(fit.auc), str(fit.default_auc), "0.50")
    table.add_row(
        "Brier score, lower is better",
        *(f"{value:.3f}" for value in (fit.brier, fit.default_brier, fit.base_brier)),
    )
    table.add_row("AUC of the score", str(fit.score_auc_after), str(fit.score_auc_before), "")
    if found.weights is not None and found.weights.refusal is None:
        table.add_row("  and with the proposed weights", str(found.weights.proposed.auc), "", "")
    yield table
    yield _reliability(fit)


def _reliability(fit: Fit) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=_INDENTED)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("said", justify="right", no_wrap=True)
    table.add_column("came true", no_wrap=True)
    for row in fit.reliability:
        table.add_row(str(row.runs), f"{row.confidence:.2f}", str(row.success_rate))
    return table


def _installation(found: Calibration, *, tried: bool) -> str:
    before, model = found.before, found.fit.model
    stays = f"version {before.version}" if before else "the default confidence"
    if found.fit.refusal is not None or model is None:
        return f"Not installed; {stays} stays in force: {found.fit.refusal}."
    if tried:
        return f"Not installed, for this is only a trial; {stays} stays in force."
    if before is None:
        return f"Installed as version {found.version}; running processes use it within a minute."
    if found.version == before.version:
        return f"Version {before.version} stays in force: nothing has changed since."
    return (
        f"Installed as version {found.version} (AUC {model.auc:.2f}) in place of version "
        f"{before.version} (AUC {before.model.auc:.2f}); running processes use it within a minute."
    )


def _weights(proposal: WeightsProposal) -> Iterator[RenderableType]:
    now, then = proposal.in_force, proposal.proposed
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=_INDENTED)
    for heading in ("weights", "in force", "others" if proposal.refusal else "proposed"):
        table.add_column(heading, no_wrap=True)
    old, new = asdict(now.weights), asdict(then.weights)
    for name, value in old.items():
        table.add_row(name.replace("_", " "), f"{value:.2f}", f"{new[name]:.2f}")
    table.add_section()
    for told, *values in zip(_RANKING, _ranked(now), _ranked(then), strict=True):
        table.add_row(told.format(runs=now.top_runs), *values)
    yield table
    if proposal.refusal:
        yield Text(f"  No weights are proposed; {proposal.refusal}.")


_RANKING = (
    "AUC of the score",
    "successes in the top tenth ({runs} runs)",
    "different tasks there",
    "of these solved",
    "different tasks solved per run kept",
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
    proposal = one.proposal
    weights = "proposed weights" if one.are_proposed else "weights in force"
    yield Text(f"  Threshold for a {proposal.wish}, with the {weights}:")
    curve = proposal.curve
    marks = {}
    for rate in _PASS_RATES_SHOWN:
        marks[min(curve, key=lambda point: abs(point.pass_rate - rate)).threshold] = ""
    if not one.are_proposed:
        marks |= {threshold: name for name, threshold in found.thresholds_in_force.items()}
    if proposal.point is not None:
        at = proposal.point.threshold
        marks[at] = f"proposed, and {marks[at]}" if marks.get(at) else "proposed"
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=_INDENTED)
    for heading in ("threshold", "passes", "tasks", "successes among them", ""):
        table.add_column(heading, no_wrap=True)
    for threshold, mark in sorted(marks.items()):
        point = at_threshold(curve, threshold)
        table.add_row(
            f"{threshold:.3f}",
            f"{point.pass_rate:.0%}" if point else "0%",
            str(point.tasks) if point else "0",
            str(point.precision) if point else "",
            Text(mark, style="bold" if mark.startswith("proposed") else ""),
        )
    yield table
    if proposal.refusal:
        yield Text(f"  No threshold is proposed: {proposal.refusal}.")
