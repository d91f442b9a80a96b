"""What runs are listed, searched and counted by: one narrow row for each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.scoring.dimensions import TraceShape
from kp_langchain.store.rows import body_of, clean_name, clean_text, json_text

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.scoring.breakdown import ScoreBreakdown

SEARCHED_CHARS = 1000
"""So many characters at the beginning of an objective are searched."""

_MOST_TOOLS = 100
_COPIED = ("decision", "score", "worth", "success")


def summary_of(scored: ScoredTrace, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of the table `run_summaries` for a run.

    Args:
        scored: The run.
        row: Its row of the table `runs`, as `row_of` returns it.
    """
    trace = scored.trace
    tools = dict.fromkeys(clean_name(step.tool.name) for step in trace.steps if step.tool)
    body = row["body"] or body_of(trace) or ""
    return changed_by_verdict(row, scored.breakdown) | {
        "trace_id": row["trace_id"],
        "created_at": row["created_at"],
        "domain": row["domain"],
        "threshold": row["threshold"],
        "recovered_errors": TraceShape.of(trace).error_recoveries,
        "is_withheld": row["withheld"] is not None,
        "tools": json_text(list(tools)[:_MOST_TOOLS]),
        "redactions": json_text(Counter(PLACEHOLDER.findall(body))),
        "dropped": json_text(dict(scored.dropped)),
        "search_text": folded(row["objective"])[:SEARCHED_CHARS],
    }


def changed_by_verdict(row: Mapping[str, Any], breakdown: ScoreBreakdown) -> dict[str, Any]:
    """Return the columns of `run_summaries` that a verdict may change, with their values.

    Args:
        row: The row of the table `runs`, with the verdict's changes.
        breakdown: The breakdown that belongs to it.
    """
    dimensions = {name: [one.value, one.weight] for name, one in breakdown.dimensions.items()}
    rules = {rule.name: rule.after - rule.before for rule in breakdown.rules}
    return {name: row[name] for name in _COPIED} | {
        "gate": row["gate"] or "score",
        "novelty": breakdown.novelty.value,
        "novelty_source": clean_name(breakdown.novelty_source),
        "is_near_duplicate": row["twin_of"] is not None or row.get("replaced_by") is not None,
        "dimensions": json_text(dimensions),
        "rules": json_text(rules),
    }


def folded(text: str) -> str:
    """Return a text as it is searched: case folded, white space as single blanks."""
    return clean_text(" ".join(text.casefold().split()))
