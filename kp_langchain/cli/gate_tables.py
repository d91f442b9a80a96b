"""Terminal tables of the gate that is proposed for a domain, beside the one in force."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from kp_langchain.calibration.gate_proposal import GateFigures, GateProposal
from kp_langchain.cli.plain_tables import INDENT, indent, plain_table
from kp_langchain.gate.check import pass_rate_of

if TYPE_CHECKING:
    from kp_langchain.domain_policy import DomainPolicy
    from kp_langchain.gate.recent_values import JudgedRun

_PASS_RATES_SHOWN = (0.5, 0.3, 0.2, 0.1, 0.05)


def gate_report(proposal: GateProposal) -> Iterator[RenderableType]:
    """Yield the parts of a report on a proposed gate.

    Args:
        proposal: The gate.
    """
    table = plain_table("gate, on held-out tasks", "keeps", "of them right", "tasks per run", "AUC")
    table.add_row("none", "100%", f"{proposal.base_rate:.2f}", "", "0.50")
    if proposal.in_force is not None:
        table.add_row(*_cells("in force: ", proposal.in_force))
    if proposal.with_model is not None and proposal.with_model != proposal.proposed:
        table.add_row(*_cells("with this model: ", proposal.with_model))
    if proposal.proposed is not None:
        table.add_row(*_cells("", proposal.proposed), style="bold")
    yield indent(table)
    yield Text("")
    if proposal.curve:
        yield Text(f"{INDENT}What the worth keeps at other thresholds:")
        yield indent(_curve(proposal))
    if proposal.refusal is None:
        return
    yield Text(f"{INDENT}No gate is proposed: {proposal.refusal}.")
    stays = proposal.with_model or proposal.in_force
    if stays is not None and stays.right is not None and stays.right.value < proposal.base_rate:
        yield Text(
            f"{INDENT}What stays in force keeps fewer successes than no gate would; raise "
            "pass_rate, or lower the threshold.",
            style="yellow",
        )


def kept_line(policy: DomainPolicy, recent: Sequence[JudgedRun]) -> Text:
    """Return what the gate of a domain promises and what it has kept since its model is in force.

    Args:
        policy: The domain's policy.
        recent: The runs since then, as `TraceStore.recent_values` returns them.
    """
    rate = pass_rate_of(policy, policy.gate, has_model=True)
    promise = f"keeps what reaches a fixed {policy.gate}"
    if rate is not None:
        promise = f"keeps the best {rate:.0%} by {policy.gate}"
    kept = "no run has come since"
    if recent:
        share = sum(run.passes for run in recent) / len(recent)
        kept = f"of the last {len(recent)} runs it kept {share:.0%}"
    return Text(f"{INDENT}The gate {promise}; {kept}.")


def gate_text(gate: GateFigures) -> str:
    """Return a gate in a few words."""
    if gate.pass_rate is not None:
        return f"the best {gate.pass_rate:.0%} by {gate.gate}"
    return f"{gate.gate} from " + " or ".join(f"{one:g}" for one in gate.thresholds)


def _cells(prefix: str, gate: GateFigures) -> tuple[str, ...]:
    return (
        prefix + gate_text(gate),
        f"{gate.kept:.0%}",
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
                f"{point.pass_rate:.0%}",
                str(point.tasks),
                str(point.precision),
            )
    return table
