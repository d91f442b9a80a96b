"""One run recorded in several ways, and how the imported traces differ from the handler's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kp_langchain import ScoredTrace, Scorer, Settings, TraceStore
from kp_langchain.importing.formats import FileReader
from kp_langchain.importing.importer import Imported, Importer
from kp_langchain.importing.recorded_run import RecordedRun


def import_values(
    values: Iterable[Any], folder: Path, *, domain: str = "default"
) -> list[Imported]:
    """Import what the lines of one file hold, into a new store without an embedder."""
    reader = FileReader()
    parts: list[Any] = []
    for number, value in enumerate(values, 1):
        parts += reader.add(json.loads(json.dumps(value)), f"file:{number}")
    parts += reader.conclude()
    runs = [part for part in parts if isinstance(part, RecordedRun)]
    assert len(runs) == len(parts), [part for part in parts if part not in runs]
    with TraceStore(folder / "imported.db") as store:
        importer = Importer(store, Settings(), domain=domain, scorer=Scorer(embedder=None))
        result = list(importer.run(runs))
        importer.close()
    return result


def comparable(scored: ScoredTrace) -> dict[str, Any]:
    """What must be equal: everything except ids and the last digits of times."""
    trace = scored.trace
    return {
        "steps": [
            step.model_dump(exclude_none=True, exclude={"latency_ms"}) for step in trace.steps
        ],
        "has_latency": [step.latency_ms is not None for step in trace.steps],
        "task": trace.task.model_dump(),
        "outcome": trace.outcome.model_dump(),
        "success": trace.metadata.success,
        "framework": trace.metadata.framework,
        "domain": trace.metadata.task_domain,
        "score": round(scored.breakdown.total, 6),
        "decision": scored.decision,
    }


def differences(
    recorded: list[ScoredTrace], imported: list[ScoredTrace], *, any_order: bool = False
) -> list[str]:
    """In words, what differs; empty if nothing does.

    Args:
        recorded: What the handler scored.
        imported: What the import scored.
        any_order: Whether tools between two thoughts may come in another order.
    """
    ours, theirs = (
        [comparable(one) for one in sorted(runs, key=lambda one: one.trace.metadata.created_at)]
        for runs in (recorded, imported)
    )
    if len(ours) != len(theirs):
        return [f"{len(ours)} traces, imported {len(theirs)}"]
    if any_order:
        for one in (*ours, *theirs):
            one["steps"] = _without_order(one["steps"])
            one["has_latency"] = sorted(one["has_latency"])
    # Which of several runs at once is the first of its kind is not stated.
    for one in (ours, theirs):
        scores = sorted(each["score"] for each in one)
        for each, score in zip(one, scores, strict=True):
            each["score"] = score
    return [
        f"{name}: {a[name]!r}, imported {b[name]!r}"
        for a, b in zip(ours, theirs, strict=True)
        for name in a
        if a[name] != b[name]
    ]


def _without_order(steps: list[dict[str, Any]]) -> list[list[str]]:
    """Steps without their numbers, sorted between each two thoughts."""
    groups: list[list[str]] = [[]]
    for step in steps:
        if step["type"] == "thought":
            groups.append([])
        groups[-1].append(json.dumps({**step, "step_id": 0}, sort_keys=True))
    return [sorted(group) for group in groups]
