"""The log records of scored runs: one INFO record each on the logger `kp_langchain`."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kp_langchain._logging import log_event
from kp_langchain.config import Settings
from kp_langchain.printable import printable
from kp_langchain.redaction import redact

if TYPE_CHECKING:
    from kp_langchain.gate import Rescored, ScoredTrace

log = logging.getLogger("kp_langchain")

_OBJECTIVE_CHARS = 60


def log_scored(scored: ScoredTrace) -> None:
    """Write the record `kp.trace_scored` of a new run: a line to read, and each figure as a field.

    Args:
        scored: The run.
    """
    if not log.isEnabledFor(logging.INFO):
        return
    trace, breakdown, objective = scored.trace, scored.breakdown, _objective(scored)
    log_event(
        "kp.trace_scored %s %s (threshold %.2f%s) %s | %s%s%s",
        trace.metadata.task_domain,
        scored.decision,
        scored.threshold,
        "" if scored.gate == "score" else " of worth",
        breakdown.line(),
        trace.id,
        " | " if objective else "",
        objective,
        fields=_fields(scored) | {"objective": objective},
    )


def _objective(scored: ScoredTrace) -> str:
    """Return the beginning of the task as the log may have it: redacted at the strictest level."""
    text = scored.trace.task.objective
    if scored.trace.metadata.privacy_level == "private":
        text = redact(text, level="aggregated", rules=Settings.current().redaction).value
    return printable(text.strip()[:_OBJECTIVE_CHARS]).strip()


def _fields(scored: ScoredTrace) -> dict[str, Any]:
    trace, breakdown = scored.trace, scored.breakdown
    fields: dict[str, Any] = {
        "event": "kp.trace_scored",
        "trace_id": trace.id,
        "run_id": str(scored.run_id),
        "domain": trace.metadata.task_domain,
        "framework": trace.metadata.framework,
        "agent_id": trace.metadata.agent_id,
        "decision": scored.decision,
        "score": breakdown.total,
        "threshold": scored.threshold,
        "gate": scored.gate,
        "worth": scored.worth,
        "twin_of": scored.twin_of,
        "similarity_to_twin": scored.similarity_to_twin,
        "replaces": list(scored.replaces),
        "weighted_sum": breakdown.weighted_sum,
        "success": trace.metadata.success,
        "confidence": trace.outcome.confidence,
        "confidence_source": breakdown.confidence_source,
        "profile": breakdown.profile,
        "rules": [rule.name for rule in breakdown.rules],
        "novelty_source": breakdown.novelty_source,
        "unreadable_share": breakdown.unreadable_share,
        "nearest_id": breakdown.nearest.trace_id if breakdown.nearest else None,
        "nearest_similarity": breakdown.nearest.similarity if breakdown.nearest else None,
        "steps": len(trace.steps),
        "elapsed_ms": breakdown.elapsed_ms,
        "over_budget": breakdown.over_budget,
    }
    if (keys := scored.keys) is not None:
        # `thread` and `name` are the log record's own.
        fields |= {"session": keys.session, "thread_id": keys.thread, "user": keys.user}
        fields |= {"namespace": keys.namespace, "run_name": keys.name, "tags": list(keys.tags)}
    for name, dimension in breakdown.dimensions.items():
        fields[name] = dimension.value
        fields[f"{name}_weight"] = dimension.weight
        fields[f"{name}_contribution"] = dimension.contribution
    return fields


def log_rescored(change: Rescored, source: str) -> None:
    """Write the record `kp.trace_rescored` of a run if a verdict changed it.

    Args:
        change: What changed.
        source: Who gave the verdict.
    """
    if not change.changed:
        return
    log_event(
        "kp.trace_rescored %s %s -> %s, %s %.3f -> %.3f (threshold %.2f; %s) | %s",
        change.domain,
        change.decision_before,
        change.decision,
        change.gate,
        change.gated_value_before,
        change.gated_value,
        change.threshold,
        source,
        change.trace_id,
        fields=asdict(change) | {"event": "kp.trace_rescored", "source": source},
    )
