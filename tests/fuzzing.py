"""Coverage-guided fuzzing, where atheris installs: `pip install atheris`, then

    python -m tests.fuzzing redaction -max_total_time=60

Targets: `schema`, `redaction`, `recorder`, `answers`. A finding ends the run with the input that
made it. The options after the target are libFuzzer's.
"""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Callable
from typing import Any

import atheris

with atheris.instrument_imports(include=["kp_langchain"]):
    from pydantic import ValidationError

    from kp_langchain import KPCallbackHandler, ReasoningTrace, Scorer
    from kp_langchain.redaction import redact
    from kp_langchain.registry.responses import read_answer

VALID = """{"@context": "https://openknowledgepulse.org/schema/v1", "@type": "ReasoningTrace",
"id": "kp:trace:00000000-0000-4000-8000-000000000000",
"metadata": {"created_at": "2026-02-01T12:00:00.000Z", "task_domain": "code", "success": true,
"quality_score": 0.5, "visibility": "network", "privacy_level": "aggregated"},
"task": {"objective": "x"}, "steps": [{"step_id": 0, "type": "thought", "content": "y"}],
"outcome": {"result_summary": "z", "confidence": 0.5}}"""

EVENTS = (
    "chain_start", "chain_end", "chain_error", "tool_start", "tool_end", "tool_error",
    "llm_start", "llm_error", "retriever_start", "retriever_end", "retriever_error",
    "custom_event",
)  # fmt: skip


def schema(data: Any) -> None:
    """Reads anything or says why not; what it read, it writes and reads again as the same."""
    unit = json.loads(VALID)
    for _ in range(data.ConsumeIntInRange(0, 4)):
        at: Any = unit
        for _ in range(data.ConsumeIntInRange(0, 3)):
            inner = [key for key in at if isinstance(at[key], dict)] if at else []
            if not inner:
                break
            at = at[inner[data.ConsumeIntInRange(0, len(inner) - 1)]]
        key = data.PickValueInList([*at, "steps", "@context", "extra"])
        text = data.ConsumeUnicodeNoSurrogates(60)
        try:
            at[key] = json.loads(text)
        except (ValueError, RecursionError):
            at[key] = text
    try:
        trace = ReasoningTrace.model_validate(unit)
    except ValidationError:
        return
    written = trace.model_dump_json()
    assert ReasoningTrace.model_validate_json(written).model_dump_json() == written


def redaction(data: Any) -> None:
    """Never raises, never fails on a leaf, changes nothing the second time."""
    value: Any = data.ConsumeUnicode(3000)
    if data.ConsumeBool():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = {value[:20]: value[20:]}
    done = redact(value)
    assert "failed" not in done.counts
    again = redact(done.value)
    assert again.counts == {}, (value, done.value, again.value)


def recorder(data: Any) -> None:
    """Events in any order: nothing is raised into the agent, each run has one fate."""
    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    ids = [uuid.UUID(int=number) for number in range(6)]
    for _ in range(data.ConsumeIntInRange(0, 40)):
        event = EVENTS[data.ConsumeIntInRange(0, len(EVENTS) - 1)]
        run, parent = ids[data.ConsumeIntInRange(0, 5)], ids[data.ConsumeIntInRange(0, 5)]
        text = data.ConsumeUnicode(40)
        more = {"run_id": run, "parent_run_id": None if data.ConsumeBool() else parent}
        call = getattr(handler, f"on_{event}")
        if event.endswith("error"):
            call(ValueError(text), **more)
        elif event == "custom_event":
            call("kp.outcome", {"success": text}, run_id=run)
        elif event.endswith("start"):
            call({"name": text}, [text] if event == "llm_start" else text, **more)
        else:
            call(text, **more)
    handler.close()
    counts = handler.stats()
    fates = ("scored", "cancelled", "abandoned", "handed_over", "empty", "dropped", "failed")
    assert counts["callback_errors"] == 0, counts
    assert counts["runs"] == sum(counts[fate] for fate in (*fates, "open", "paused")), counts


def answers(data: Any) -> None:
    """Any answer means something, and success only with an id."""
    status = data.ConsumeIntInRange(100, 599)
    names = (
        "retry-after",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "date",
    )
    headers = {name: data.ConsumeUnicode(30) for name in names if data.ConsumeBool()}
    answer = read_answer(status, headers, data.ConsumeBytes(3000), expects_id=True)
    assert answer.kind != "done" or answer.registry_id
    assert answer.retry_after_s is None or 0 <= answer.retry_after_s <= 86_400
    assert len(answer.reason) <= 320


TARGETS: dict[str, Callable[[Any], None]] = {
    target.__name__: target for target in (schema, redaction, recorder, answers)
}


def main() -> None:
    logging.disable(logging.CRITICAL)
    target = TARGETS.get(sys.argv[1] if len(sys.argv) > 1 else "")
    if target is None:
        sys.exit(f"give one of {', '.join(TARGETS)}")
    options = [sys.argv[0], *sys.argv[2:]]
    atheris.Setup(options, lambda raw: target(atheris.FuzzedDataProvider(raw)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
