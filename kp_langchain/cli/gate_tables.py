"""Terminal tables of the gate that is proposed for a domain, beside the one in force."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from kp_langchain.calibration.gate_proposal import GateFigures, GateProposal
from kp_langchain.cli.plain_tables import INDENT, indent, percent, plain_table

_PASS_RATES_SHOWN = (0.5, 0.3, 0.2, 0.1, 0.05)


def gate_report(proposal: GateProposal, *, is_installed: bool) -> Iterator[RenderableType]:
    """Yield the parts of a report on a proposed gate.

    Args:
        proposal: The gate.
        is_installed: Whether the model was installed.
    """
    table = plain_table("gate, on held-out tasks", "keeps", "of them right", "tasks per run", "AUC")
    table.add_row("none", "100%", f"{proposal.base_rate:.2f}", "", "0.50")
    if proposal.in_force is not None:
        table.add_row(*_cells("in force: ", proposal.in_force))
    if proposal.with_model is not None and proposal.with_model != proposal.proposed:
        table.add_row(*_cells("with this model: ", proposal.with_model))
    if proposal.proposed is not None:
        prefix = "proposed: " if proposal.refusal is None else "not proposed: "
        table.add_row(*_cells(prefix, proposal.proposed), style="bold")
    yield indent(table)
    yield Text("")
    if proposal.curve:
        yield Text(f"{INDENT}What a gate by worth keeps with a fixed threshold:")
        yield indent(_curve(proposal))
    if proposal.refusal is None:
        return
    yield Text(f"{INDENT}No gate is proposed: {proposal.refusal}.")
    stays = proposal.with_model if is_installed else proposal.in_force
    if stays is not None and stays.right is not None and stays.right.value < proposal.base_rate:
        yield Text(
            f"{INDENT}What stays in force keeps a smaller share of successes than no gate would; "
            "raise pass_rate, or lower the threshold.",
            style="yellow",
        )


def gate_text(gate: GateFigures) -> str:
    """Return a gate in a few words."""
    if gate.pass_rate is not None:
        return f"the best {percent(gate.pass_rate)} by {gate.gate}"
    return f"{gate.gate} from " + " or ".join(f"{one:g}" for one in gate.thresholds)


def _cells(prefix: str, gate: GateFigures) -> tuple[str, ...]:
    return (
        prefix + gate_text(gate),
        percent(gate.kept),
        "none kept" if gate.right is None else str(gate.right),
        f"{gate.tasks_per_run:.2f}" if gate.runs else "",
        str(gate.auc),
    )


def _curve(proposal: GateProposal) -> RenderableType:
    table = plain_table("worth from", "keeps", "tasks", "of them right")
    curve = proposal.curve
    shown = {
        min(curve, key=lambda point: abs(point.pass_rate - rate)).threshold
        for rate in _PASS_RATES_SHOWN
    }
    for point in curve:
        if point.threshold in shown:
            table.add_row(
                f"{point.threshold:.3f}",
                percent(point.pass_rate),
                str(point.tasks),
                str(point.precision),
            )
    return table
