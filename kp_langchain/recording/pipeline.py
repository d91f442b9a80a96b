"""What happens to a finished run, on the worker: build, redact, score, decide, store, log, tell.

Redaction stands before everything that looks at the text: nothing that it would remove is
embedded, logged or written.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain._notices import tell_event, told, warn_once
from kp_langchain.calibration.features import features_of
from kp_langchain.gate import ScoredTrace, decide, default_threshold
from kp_langchain.recording.outcome import (
    NOTE_CHARS,
    FinishedRun,
    Judgement,
    OutcomeFunction,
    Report,
    ReportError,
    judge,
    looks_successful,
    read_report,
)
from kp_langchain.recording.redacting import Redactor, cleaned
from kp_langchain.recording.steps import Story, tell
from kp_langchain.schema import ReasoningTrace, TraceStep
from kp_langchain.store.verdicts import Verdict

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy
    from kp_langchain.recording.keeping import Keeper
    from kp_langchain.recording.record import RunRecord
    from kp_langchain.recording.tally import Tally
    from kp_langchain.recording.verifying import Verifiers
    from kp_langchain.redaction.rules import Rules
    from kp_langchain.registry.sender import Sender
    from kp_langchain.scoring.scorer import Scorer

log = logging.getLogger("kp_langchain")

DIMENSIONS = ("complexity", "novelty", "tool_diversity", "outcome_confidence")

# Traces of one run, as several handlers recorded it: they are one experience, so none of them is
# a precedent for the others. Only the worker touches this.
_siblings: OrderedDict[UUID, set[str]] = OrderedDict()
_SIBLINGS_KEPT = 256
_LARGE_TASK_BITS = 2048


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stations of a finished run and what one handler brings to them."""

    domain: str
    policy_for: Callable[[str], DomainPolicy]
    scorer: Scorer
    keeper: Keeper | None
    sender: Sender | None
    outcome: OutcomeFunction | None
    verifiers: Verifiers | None
    agent_id: str | None
    on_scored: Callable[[ScoredTrace], object] | None
    rules: Rules
    redactor: Callable[[str], str] | None
    tally: Tally

    def process(self, record: RunRecord) -> ScoredTrace | None:
        """Take a run through all stations; None if it failed on the way (and was counted)."""
        try:
            record.write_out()
            story = tell(record.timeline(), fatal=record.error, answer=record.answer or "")
            if not story.steps:
                self.tally.add("empty")
                return None
            scored = self._score(record, story)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            self._trouble("failed", "a finished run cannot be scored", error)
            return None
        self.tally.add("scored")
        self.tally.add(scored.decision)
        if scored.breakdown.over_budget:
            self.tally.add("over_budget")
        if self.keeper is not None:
            self.keeper.keep(scored, self.sender, self.tally)
        log_scored(scored)
        if self.on_scored is not None:
            if self.keeper is not None:
                self.keeper.catch_up()  # the caller's function may take its time, or read the store
            try:
                self.on_scored(scored)
            except BaseException as error:  # noqa: BLE001 - the caller's function
                self._trouble("on_scored_errors", "on_scored raised", error)
        return scored

    def redacted(self, verdict: Verdict) -> Verdict:
        """A verdict with as little in its note as in the strictest trace; for any run."""
        if verdict.note is None:
            return verdict
        redaction = Redactor(self.tally, NOTE_CHARS, rules=self.rules, hook=self.redactor)
        return replace(verdict, note=redaction.text(verdict.note, "aggregated"))

    def _trouble(self, count: str, what: str, error: BaseException) -> None:
        self.tally.add(count)
        warn_once(
            f"{count}:{type(error).__name__}",
            "%s (%s); counted under '%s'",
            what,
            told(error),
            count,
        )

    def _score(self, record: RunRecord, story: Story) -> ScoredTrace:
        redaction = Redactor(
            self.tally, record.recorder.bounds.text_chars, rules=self.rules, hook=self.redactor
        )
        # The run's own metadata named it, so it is as little to be trusted as the run's text.
        domain = (record.domain and redaction.text(record.domain, "aggregated")) or self.domain
        policy = self.policy_for(domain)
        answer = story.last_thought if record.answer is None else record.answer
        success = looks_successful(
            answer,
            ended_well=record.ending == "finished" and not record.limit_reached,
            unresolved_error=story.unresolved_error,
        )
        reports = self._reports(record, domain, story, answer, success=success)
        trace = build_trace(
            record,
            story,
            domain=domain,
            agent_id=self.agent_id,
            policy=policy,
            verdict=judge(success),
            answer=answer,
            redaction=redaction,
        )
        # Of a text that could not be redacted nothing is left to be judged.
        if not redaction.failed and all(report.success is None for _, report in reports):
            reports += self._verified(trace, record)
        features = features_of(trace, looked_successful=success)
        verdict = judge(
            success,
            reports=reports,
            structured=record.claimed_confidence,
            logprobs=record.logprobs,
            calibrated=None
            if self.keeper is None
            else self.keeper.calibrated.confidence(domain, features),
        )
        trace.metadata.success = verdict.success
        trace.outcome.confidence = verdict.confidence
        siblings = _siblings.setdefault(record.run_id, set())
        # What is left of a trace after failed redaction is nothing to remember or to contribute.
        assess = self.scorer.score if redaction.failed else self.scorer.evaluate
        breakdown = assess(trace, weights=policy.weights, ignore=frozenset(siblings))
        siblings.add(trace.id)
        while len(_siblings) > _SIBLINGS_KEPT:
            _siblings.popitem(last=False)
        breakdown = breakdown.with_confidence_from(
            verdict.source, trace.outcome.confidence, success=verdict.success
        )
        trace.metadata.quality_score = breakdown.total
        threshold = policy.threshold
        if threshold is None:
            threshold = default_threshold(domain, novelty_measured=breakdown.nearest is not None)
        decision = "below_threshold" if redaction.failed else decide(breakdown.total, threshold)
        return ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision=decision,
            threshold=threshold,
            run_id=record.run_id,
            # What redaction failed on, a verdict cannot contribute, so it is not kept for one.
            keep_body=policy.keep == "all"
            or decision == "contributed"
            or (policy.keep_days > 0 and not redaction.failed),
            keep_days=None if policy.keep == "all" else policy.keep_days,
            task=_task(record.metadata),
            features=features,
            verdict=_verdict(reports, lambda note: redaction.text(note, policy.privacy_level)),
            withheld="redaction failed" if redaction.failed else None,
        )

    def _reports(
        self, record: RunRecord, domain: str, story: Story, answer: str, *, success: bool
    ) -> list[tuple[str, Report]]:
        """What the outcome function and the `kp.outcome` event say, by source, best first."""
        said: object = None
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
            try:
                said = self.outcome(run)
            except BaseException as error:  # noqa: BLE001 - the caller's function
                self._trouble("outcome_errors", "the outcome function raised", error)
        told_by = [("outcome function", said), ("kp.outcome event", record.reported)]
        if isinstance(record.reported, Verdict):  # given through the handler, as it may be later
            told_by = [(record.reported.source, record.reported.as_report()), told_by[0]]
        reports: list[tuple[str, Report]] = []
        for source, what in told_by:
            try:
                reports.append((source, read_report(what)))
            except ReportError as error:
                self._trouble("outcome_errors", f"what the {source} says cannot be used", error)
        return reports

    def _verified(self, trace: ReasoningTrace, record: RunRecord) -> list[tuple[str, Report]]:
        if self.verifiers is None:
            return []
        if self.keeper is not None:
            self.keeper.catch_up()  # they may take their time
        opinions = self.verifiers.ask(trace, run_id=record.run_id, failed=bool(record.error))
        return [(opinion.source, opinion.report) for opinion in opinions]


def _task(metadata: Mapping[str, Any]) -> str | None:
    """The hash of what the run's metadata call its task: repeats are told, and nothing is read."""
    task = metadata.get("kp_task")
    if not isinstance(task, str | int | UUID):
        return None
    # Python refuses to write a large integer in decimals.
    large = isinstance(task, int) and task.bit_length() > _LARGE_TASK_BITS
    text = hex(task) if large else str(task)  # type: ignore[arg-type]
    return sha256(text.encode(errors="replace")).hexdigest()


def _verdict(reports: list[tuple[str, Report]], redacted: Callable[[str], str]) -> Verdict | None:
    """What the first that called the run a success or a failure said."""
    for source, report in reports:
        if report.success is not None:
            note = report.note and redacted(report.note)
            return Verdict(report.success, report.confidence, note, source)
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
    redaction: Redactor,
) -> ReasoningTrace:
    """Put a run's redacted steps and outcome into wire form."""
    level = policy.privacy_level
    objective = record.objective or record.fallback_objective or record.name or "(not stated)"
    return ReasoningTrace.model_validate(
        {
            "metadata": {
                "created_at": record.started_at,
                "agent_id": _agent(agent_id and redaction.text(agent_id, level)),
                "framework": "langgraph" if record.langgraph else "langchain",
                "task_domain": domain,
                "success": verdict.success,
                "visibility": policy.visibility,
                "privacy_level": level,
            },
            "task": {"objective": redaction.text(objective, level) or "(removed)"},
            "steps": [redaction.step(step, level) for step in story.steps],
            "outcome": {
                "result_summary": redaction.text(record.error or answer, level),
                "confidence": verdict.confidence,
            },
        }
    )


def _agent(agent_id: str | None) -> str | None:
    if not agent_id or agent_id.startswith("kp:agent:"):
        return agent_id or None
    return f"kp:agent:{agent_id}"


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
        "unreadable_share": breakdown.unreadable_share,
        "nearest_id": breakdown.nearest.trace_id if breakdown.nearest else None,
        "nearest_similarity": breakdown.nearest.similarity if breakdown.nearest else None,
        "steps": len(trace.steps),
        "elapsed_ms": breakdown.elapsed_ms,
        "over_budget": breakdown.over_budget,
    }
    for name in DIMENSIONS:
        dimension = getattr(breakdown, name)
        fields[name] = dimension.value
        fields[f"{name}_weight"] = dimension.weight
        fields[f"{name}_contribution"] = dimension.contribution
    tell_event(
        "kp.trace_scored %s %s (threshold %.2f) %s | %s",
        trace.metadata.task_domain,
        scored.decision,
        scored.threshold,
        breakdown.line(),
        trace.id,
        fields=fields,
    )
