"""What happens to a finished run, on the worker: build, redact, score, decide, store, log, tell.

Redaction stands before everything that looks at the text: nothing that it would remove is
embedded, logged or written.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kp_langchain.gate import ScoredTrace, decide, default_threshold
from kp_langchain.recording.messages import clean
from kp_langchain.recording.outcome import (
    FinishedRun,
    Judgement,
    OutcomeFunction,
    Reported,
    judge,
    looks_successful,
)
from kp_langchain.recording.steps import Story, tell
from kp_langchain.recording.worker import say_once
from kp_langchain.redaction import redact
from kp_langchain.schema import ReasoningTrace, TraceStep

if TYPE_CHECKING:
    from uuid import UUID

    from kp_langchain.config import DomainPolicy
    from kp_langchain.recording.record import RunRecord
    from kp_langchain.recording.tally import Tally
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore

log = logging.getLogger("kp_langchain")
T = TypeVar("T")

DIMENSIONS = ("complexity", "novelty", "tool_diversity", "outcome_confidence")
UNREDACTABLE = "[REDACTED:failed]"

# Traces of one run, as several handlers recorded it: they are one experience, so none of them is
# a precedent for the others. Only the worker touches this.
_siblings: OrderedDict[UUID, set[str]] = OrderedDict()
_SIBLINGS_KEPT = 256


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stations of a finished run and what one handler brings to them."""

    domain: str
    policy_for: Callable[[str], DomainPolicy]
    scorer: Scorer
    store: TraceStore | None
    outcome: OutcomeFunction | None
    agent_id: str | None
    on_scored: Callable[[ScoredTrace], object] | None
    tally: Tally

    def process(self, record: RunRecord) -> ScoredTrace | None:
        """Take a run through all stations; None if it failed on the way (and was counted)."""
        try:
            story = tell(record.timeline())
            if not story.steps:
                self.tally.add("empty")
                return None
            scored = self._score(record, story)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next run must go on
            self._failed("scoring", error)
            return None
        if not self._keep(scored):
            return None
        self.tally.add("scored")
        self.tally.add(scored.decision)
        log_scored(scored)
        if self.on_scored is not None:
            try:
                self.on_scored(scored)
            except Exception as error:  # noqa: BLE001 - the caller's function
                self.tally.add("on_scored_errors")
                say_once(
                    f"on_scored:{type(error).__name__}",
                    "on_scored raised %s; the run is scored and stored all the same",
                    type(error).__name__,
                )
        return scored

    def _failed(self, station: str, error: Exception) -> None:
        # The error's own text may quote the run, so only its type is told.
        self.tally.add("failed")
        say_once(
            f"{station}:{type(error).__name__}",
            "%s a finished run failed with %s; such runs are counted under 'failed'",
            station,
            type(error).__name__,
        )

    def _keep(self, scored: ScoredTrace) -> bool:
        if self.store is None:
            return True
        try:
            self.store.add(scored)
        except Exception as error:  # noqa: BLE001 - a full disk, a dead server
            self._failed(f"storing ({self.store.location})", error)
            return False
        return True

    def _score(self, record: RunRecord, story: Story) -> ScoredTrace:
        # The run's own metadata named it, so it is as little to be trusted as the run's text.
        domain = _redacted(record.domain, "aggregated") or self.domain
        policy = self.policy_for(domain)
        verdict, answer = self._judge(record, domain, story)
        trace = build_trace(
            record,
            story,
            domain=domain,
            agent_id=self.agent_id,
            policy=policy,
            verdict=verdict,
            answer=answer,
        )
        siblings = _siblings.setdefault(record.run_id, set())
        breakdown = self.scorer.evaluate(trace, weights=policy.weights, ignore=frozenset(siblings))
        siblings.add(trace.id)
        while len(_siblings) > _SIBLINGS_KEPT:
            _siblings.popitem(last=False)
        breakdown = replace(breakdown, confidence_source=verdict.source)
        trace.metadata.quality_score = breakdown.total
        threshold = policy.threshold
        if threshold is None:
            threshold = default_threshold(domain, novelty_measured=breakdown.nearest is not None)
        decision = decide(breakdown.total, threshold)
        return ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision=decision,
            threshold=threshold,
            run_id=record.run_id,
            keep_body=policy.keep == "all" or decision == "contributed",
        )

    def _judge(self, record: RunRecord, domain: str, story: Story) -> tuple[Judgement, str]:
        answer = story.last_thought if record.answer is None else record.answer
        success = looks_successful(
            answer,
            ended_well=record.ending == "finished" and not record.limit_reached,
            unresolved_error=story.unresolved_error,
        )
        said: Reported = None
        if self.outcome is not None:
            run = FinishedRun(
                run_id=record.run_id,
                domain=domain,
                objective=record.objective or record.fallback_objective,
                steps=tuple(TraceStep.model_validate(cleaned(step)) for step in story.steps),
                answer=answer,
                output=record.output,
                error=record.error,
                success=success,
                metadata=record.metadata,
            )
            said = self._ask(lambda: self.outcome(run) if self.outcome else None)
        verdict = self._ask(
            lambda: judge(
                success,
                by_function=said,
                by_event=record.reported,
                structured=record.claimed_confidence,
                logprobs=record.logprobs,
            )
        )
        # A report that cannot be used is told of and passed over.
        return verdict or judge(success, structured=record.claimed_confidence), answer

    def _ask(self, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - the caller's function, or what it reported
            self.tally.add("outcome_errors")
            say_once(
                f"outcome:{type(error).__name__}",
                "a reported outcome cannot be used (%s); such runs get the next best evidence",
                f"{type(error).__name__}: {error}"
                if isinstance(error, ValueError)
                else type(error).__name__,
            )
            return None


def build_trace(
    record: RunRecord,
    story: Story,
    *,
    domain: str,
    agent_id: str | None,
    policy: DomainPolicy,
    verdict: Judgement,
    answer: str,
) -> ReasoningTrace:
    """Put a run's redacted steps and outcome into wire form."""
    level = policy.privacy_level
    objective = record.objective or record.fallback_objective or record.name or "(not stated)"
    return ReasoningTrace.model_validate(
        {
            "metadata": {
                "created_at": record.started_at,
                "agent_id": _agent(agent_id),
                "framework": "langgraph" if record.langgraph else "langchain",
                "task_domain": domain,
                "success": verdict.success,
                "visibility": policy.visibility,
                "privacy_level": level,
            },
            "task": {"objective": _redacted(objective, level)},
            "steps": [_redacted_step(step, level) for step in story.steps],
            "outcome": {
                "result_summary": _redacted(record.error or answer, level),
                "confidence": verdict.confidence,
            },
        }
    )


def _agent(agent_id: str | None) -> str | None:
    if not agent_id or agent_id.startswith("kp:agent:"):
        return agent_id or None
    return f"kp:agent:{agent_id}"


def cleaned(value: Any) -> Any:
    """A copy of JSON-like `value` without text that UTF-8 or a database cannot hold."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return value


def _redacted(value: Any, level: str) -> Any:
    try:
        return redact(cleaned(value), level=level).value
    except Exception:  # noqa: BLE001 - what cannot be redacted is not kept
        return UNREDACTABLE


def _redacted_step(step: Mapping[str, Any], level: str) -> dict[str, Any]:
    out = dict(step)
    for name in ("content", "input", "tool"):
        if name not in out:
            continue
        out[name] = _redacted(out[name], level)
        if out[name] == UNREDACTABLE and name != "content":
            out[name] = {"name": UNREDACTABLE} if name == "tool" else {"input": UNREDACTABLE}
    return out


def log_scored(scored: ScoredTrace) -> None:
    """Write the one INFO record of a scored run: a line to read, and every figure as a field."""
    if not log.isEnabledFor(logging.INFO):
        return
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
        "weighted_sum": breakdown.weighted_sum,
        "success": trace.metadata.success,
        "confidence": trace.outcome.confidence,
        "confidence_source": breakdown.confidence_source,
        "profile": breakdown.profile,
        "rules": [rule.name for rule in breakdown.rules],
        "novelty_source": breakdown.novelty_source,
        "nearest_id": breakdown.nearest.trace_id if breakdown.nearest else None,
        "nearest_similarity": breakdown.nearest.similarity if breakdown.nearest else None,
        "steps": len(trace.steps),
        "elapsed_ms": breakdown.elapsed_ms,
    }
    for name in DIMENSIONS:
        dimension = getattr(breakdown, name)
        fields[name] = dimension.value
        fields[f"{name}_weight"] = dimension.weight
        fields[f"{name}_contribution"] = dimension.contribution
    log.info(
        "kp.trace_scored %s %s (threshold %.2f) %s | %s",
        trace.metadata.task_domain,
        scored.decision,
        scored.threshold,
        breakdown.line(),
        trace.id,
        extra=fields,
    )
