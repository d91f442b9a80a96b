"""Puts a run's redacted steps and outcome into wire form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain.schema import ReasoningTrace

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy
    from kp_langchain.recording.redactor import Redactor
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.steps import StepList
    from kp_langchain.verdict import Verdict


def build_trace(
    record: RunRecord,
    step_list: StepList,
    *,
    domain: str,
    agent_id: str | None,
    policy: DomainPolicy,
    verdict: Verdict,
    answer: str,
    redaction: Redactor,
) -> ReasoningTrace:
    """Return the trace of a run; every text is redacted.

    Args:
        record: The run.
        step_list: Its steps.
        domain: Its domain, redacted.
        agent_id: `kp:agent:<id>`, checked with the handler's arguments.
        policy: The policy of the domain.
        verdict: Success and confidence, both stated.
        answer: The final answer.
        redaction: Redacts the texts.
    """
    level = policy.privacy_level
    objective = record.objective or record.fallback_objective or record.name or "(not stated)"
    return ReasoningTrace.model_validate(
        {
            "metadata": {
                "created_at": record.started_at,
                "agent_id": agent_id,
                "framework": "langgraph" if record.is_langgraph else "langchain",
                "task_domain": domain,
                "success": verdict.success,
                "visibility": policy.visibility,
                "privacy_level": level,
            },
            "task": {"objective": redaction.task(objective, level) or "(removed)"},
            "steps": [redaction.step(step, level) for step in step_list.steps],
            "outcome": {
                "result_summary": redaction.text(record.error or answer, level),
                "confidence": verdict.confidence,
            },
        }
    )
