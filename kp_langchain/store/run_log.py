"""The log records `kp.trace_scored`, `kp.trace_rescored`, and `kp.no_basis` of a domain."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import log_event
from kp_langchain.calibration.basis import NO_BASIS, NOTHING_YET, basis_of_run
from kp_langchain.config import Settings, current_prices
from kp_langchain.gate.check import waits
from kp_langchain.redaction import redact
from kp_langchain.store.run_columns import COLUMNS
from kp_langchain.text import printable
from kp_langchain.usage import usage_row

if TYPE_CHECKING:
    from kp_langchain.gate import Rescored, ScoredTrace

log = logging.getLogger("kp_langchain")

_OBJECTIVE_CHARS = 60


def log_scored(scored: ScoredTrace) -> None:
    """Write the record `kp.trace_scored` of a new run: a line to read, and each figure as a field.

    Where nothing is known of it but its score, a record `kp.no_basis` says so, once per process and
    domain.

    Args:
        scored: The run.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    trace, breakdown, objective = scored.trace, scored.breakdown, _objective(scored)
    does_wait = waits(scored.gate, scored.threshold)
    of_worth = "" if scored.gate == "score" else " of worth"
    log_event(
        "kp.trace_scored %s %s (%s) %s | %s%s%s",
        trace.metadata.task_domain,
        scored.decision,
        "waits" if does_wait else f"threshold {scored.threshold:.2f}{of_worth}",
        breakdown.line(),
        trace.id,
        " | " if objective else "",
        objective,
        fields=_fields(scored) | {"objective": objective},
    )
    if breakdown.worth is None:
        domain, basis = trace.metadata.task_domain, NOTHING_YET if does_wait else NO_BASIS
        fields = {"kp_event": "kp.no_basis", "domain": domain, "basis": basis}
        log_event("kp.no_basis %s: %s", domain, basis, fields=fields, once=domain)


def _objective(scored: ScoredTrace) -> str:
    """Return the beginning of the task as the log may have it: redacted at the strictest level."""
    text = scored.trace.task.objective
    if scored.trace.metadata.privacy_level == "private":
        text = redact(text, level="aggregated", rules=Settings.current().redaction).value
    return printable(text.strip()[:_OBJECTIVE_CHARS]).strip()


def _fields(scored: ScoredTrace) -> dict[str, Any]:
    breakdown = scored.breakdown
    columns = {
        name if column.log is True else column.log: column.of(scored)
        for name, column in COLUMNS.items()
        if column.log and column.of is not None
    }
    figures = breakdown.to_row()
    del figures["worth_confidence"]  # a part of the worth, as the log does not have them
    return {
        **{name: list(one) if isinstance(one, tuple) else one for name, one in columns.items()},
        "kp_event": "kp.trace_scored",
        "replaces": list(scored.replaces),
        **figures,
        **usage_row(scored.usage, current_prices(with_package=False).cost(scored.usage)),
        "rules": [rule.name for rule in breakdown.rules],
        "flags": list(breakdown.flags),
        "basis": basis_of_run(breakdown, scored.gate, scored.threshold),
        "unreadable_share": breakdown.unreadable_share,
        "over_budget": breakdown.over_budget,
    }


def log_rescored(change: Rescored, source: str) -> None:
    """Write the record `kp.trace_rescored` of a run if judging it again changed it.

    Args:
        change: What changed.
        source: Who gave the verdict, or `agreement`.
    """
    if not change.changed:
        return
    log_event(
        "kp.trace_rescored %s %s -> %s, %s %.3f -> %s%.3f (threshold %.2f; %s) | %s",
        change.domain,
        change.decision_before,
        change.decision,
        change.gate_before,
        change.gated_value_before,
        "" if change.gate == change.gate_before else f"{change.gate} ",
        change.gated_value,
        change.threshold,
        source,
        change.trace_id,
        fields=asdict(change) | {"kp_event": "kp.trace_rescored", "source": source},
    )
