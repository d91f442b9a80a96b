"""What happens to a finished run: build, redact, judge, score, decide, store, log, hand over.

In two halves. The first makes a redacted draft, which is on disk within milliseconds. The second
scores it, and may wait: for the embedding model, for verifiers, for functions of the caller's.

Redaction stands before everything that looks at the text: nothing that it would remove is
embedded, logged or written.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kp_langchain._forksafe import ForkSafeLock, only_waiting
from kp_langchain._logging import describe_error, log_event, warn_once
from kp_langchain.calibration.features import features_of
from kp_langchain.errors import KPError
from kp_langchain.gate import ScoredTrace, decide, decision_word, default_threshold
from kp_langchain.near_names import warn_of_domain
from kp_langchain.recording import paused_in_memory
from kp_langchain.recording.draft import Draft, Reported
from kp_langchain.recording.first_half import first_half_body
from kp_langchain.recording.outcome import (
    NOTE_CHARS,
    FinishedRun,
    Judgement,
    OutcomeFunction,
    Report,
    ReportError,
    judge,
    looks_successful,
    mean_probability,
    read_report,
)
from kp_langchain.recording.paused_in_store import join
from kp_langchain.recording.redactor import Redactor, clean_json
from kp_langchain.recording.run_record import EarlierPart
from kp_langchain.recording.steps import StepList, build_steps
from kp_langchain.recording.time_limit import name_of
from kp_langchain.recording.user_values import default_on_error
from kp_langchain.run_keys import Kind, RunKeys, collect, stored_form
from kp_langchain.schema import ReasoningTrace, TraceStep
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy
    from kp_langchain.recording.counters import Counters
    from kp_langchain.recording.paused_in_store import PausedRunStore
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.store_writer import StoreWriter
    from kp_langchain.recording.verifiers import Verifiers
    from kp_langchain.recording.worker import Worker
    from kp_langchain.redaction.custom_rules import Rules
    from kp_langchain.registry.sender import Sender
    from kp_langchain.run_keys import RunKeySources

log = logging.getLogger("kp_langchain")

Result = TypeVar("Result")
Judge = Callable[[], object]
"""The caller's outcome function, with the run that it is to judge."""

DIMENSIONS = ("complexity", "novelty", "tool_diversity", "outcome_confidence")
OUTCOME_EVENT = "kp.outcome event"
OUTCOME_FUNCTION = "outcome function"
_LONGEST_WAIT_FOR_MODEL_S = 30.0

# Traces of one run, as several handlers recorded it: they are one experience, so none of them is
# a precedent for the others.
_siblings: OrderedDict[UUID, frozenset[str]] = OrderedDict()
_siblings_lock = ForkSafeLock()
_SIBLINGS_KEPT = 256

_SCORERS_KEPT = 16
_model_awaited_until: dict[tuple[int, int], float] = {}
_LARGE_TASK_BITS = 2048


class ScorerError(KPError, TypeError):
    """The caller's scorer returned something other than a breakdown."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The processing steps of one handler's finished runs, and what they need.

    Args:
        domains: Names of the domains with weights or a policy of their own.
        lane: The worker that scores.
        time_limit_s: Longest wait for one function of the caller's, in seconds.
        paused_runs: What paused runs recorded, in the store; None where it is not kept.
        foreign_scorer: Whether the scorer, or its embedder, is the caller's own.
    """

    domain: str
    policy_for: Callable[[str], DomainPolicy]
    domains: frozenset[str]
    scorer: Scorer
    foreign_scorer: bool
    lane: Worker
    time_limit_s: float
    writer: StoreWriter | None
    sender: Sender | None
    outcome: OutcomeFunction | None
    verifiers: Verifiers | None
    agent_id: str | None
    on_scored: Callable[[ScoredTrace], object] | None
    rules: Rules
    run_keys: RunKeySources
    redactor: Callable[[str], str] | None
    counters: Counters
    paused_runs: PausedRunStore | None

    # ---------------------------------------------------------------- first half

    def draft(self, record: RunRecord) -> tuple[Draft, Judge | None] | None:
        """Make the redacted draft of a run and have it written; None if there is none (counted)."""
        try:
            join(record, None if self.paused_runs is None else self.paused_runs.claim)
            record.write_out()
            self._count_dropped(record)
            step_list = build_steps(
                record.timeline(), fatal=record.error, answer=record.answer or ""
            )
            if not step_list.steps:
                self.counters.add("empty")
                return None
            draft, judge_it = self._draft(record, step_list)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            self._trouble("failed", "a finished run cannot be recorded", error)
            return None
        _add_sibling(draft.run_id, draft.trace.id)
        if self.writer is not None:
            self.writer.write_draft(draft)
        return draft, judge_it

    def _count_dropped(self, record: RunRecord) -> None:
        for name in ("dropped_steps", "dropped_texts"):
            if dropped := getattr(record, name):
                self.counters.add(name, dropped)

    def shelve(self, record: RunRecord) -> None:
        """Have what a paused run recorded written, redacted, for whoever resumes it."""
        if self.paused_runs is None or not paused_in_memory.holds(record):
            return
        try:
            join(record, self.paused_runs.claim)
            record.write_out()
            half = self._redacted(record, partial(self._half, record))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            warn_once(
                f"half:{type(error).__name__}",
                "a paused run cannot be kept in the store (%s); it waits in memory only",
                describe_error(error),
            )
        else:
            self.paused_runs.add(record, half)

    def _half(self, record: RunRecord, redaction: Redactor) -> dict[str, Any]:
        domain, policy = self._domain_and_policy(record, redaction)
        level = policy.privacy_level
        earlier = record.earlier_part or EarlierPart()
        return first_half_body(
            record,
            redaction,
            level,
            domain=domain if record.domain else "",
            earlier_part=EarlierPart(
                keys=self._keys(record, redaction),
                task=_task(record.metadata) or earlier.task,
                withheld=earlier.withheld,
            ),
            report=self._reported(record, lambda note: redaction.text(note, level)),
        )

    def _draft(self, record: RunRecord, step_list: StepList) -> tuple[Draft, Judge | None]:
        return self._redacted(record, partial(self._redacted_draft, record, step_list))

    def _redacted(self, record: RunRecord, make: Callable[[Redactor], Result]) -> Result:
        """Return what is made of a run with a redactor, also where the caller's part fails."""
        redaction = Redactor(
            self.counters, record.owner.bounds.text_chars, rules=self.rules, hook=self.redactor
        )
        if self.redactor is None:
            return make(redaction)
        try:
            return self._call(partial(make, redaction))
        except BaseException as error:  # noqa: BLE001 - the caller's function
            redaction.fail(describe_error(error))
            return make(redaction)

    def _domain_and_policy(
        self, record: RunRecord, redaction: Redactor
    ) -> tuple[str, DomainPolicy]:
        # The run's own metadata named it, so it is as little to be trusted as the run's text.
        domain = (record.domain and redaction.text(record.domain, "aggregated")) or self.domain
        domain = self.domain if redaction.has_failed else domain
        return domain, self.policy_for(domain)

    def _redacted_draft(
        self, record: RunRecord, step_list: StepList, redaction: Redactor
    ) -> tuple[Draft, Judge | None]:
        domain, policy = self._domain_and_policy(record, redaction)
        warn_of_domain(domain, self.domains)
        level = policy.privacy_level
        earlier = record.earlier_part or EarlierPart()
        answer = step_list.last_thought if record.answer is None else record.answer
        success = looks_successful(
            answer,
            ended_well=record.ending == "finished"
            and not record.has_reached_limit
            and not step_list.is_incomplete,
            unresolved_error=step_list.unresolved_error,
            ends_on_action=step_list.ends_on_action,
        )
        trace = build_trace(
            record,
            step_list,
            domain=domain,
            agent_id=self.agent_id,
            policy=policy,
            verdict=judge(success),
            answer=answer,
            redaction=redaction,
        )
        draft = Draft(
            trace=trace,
            run_id=record.run_id,
            policy=policy,
            looked_successful=success,
            failed=bool(record.error),
            reported=self._reported(record, lambda note: redaction.text(note, level)),
            structured=record.claimed_confidence,
            token_probability=mean_probability(record.logprobs),
            task=_task(record.metadata) or earlier.task,
            withheld="redaction failed" if redaction.has_failed or earlier.withheld else None,
            registry=self.sender.registry.url if self.sender else None,
            keys=self._keys(record, redaction),
        )
        return draft, self._judge_of(record, domain, step_list, answer, success=success)

    def _keys(self, record: RunRecord, redaction: Redactor) -> RunKeys:
        """What the run is found by; strictly redacted, because it goes into the log, too."""

        def stored(kind: Kind, text: str) -> str | None:
            return stored_form(kind, text, self.rules, redaction.leaves)

        keys = collect(self.run_keys, record.metadata, record.tags, record.name, stored)
        return keys.after(None if record.earlier_part is None else record.earlier_part.keys)

    def _reported(self, record: RunRecord, redacted: Callable[[str], str]) -> Reported | None:
        """What was reported of a run before it ended: by the event, or through the handler."""
        source, what = OUTCOME_EVENT, record.report
        if isinstance(what, Verdict):
            source, what = what.source, what.as_report()
        report = self._read_report(source, what)
        if report is None or report == Report():
            return None
        return Reported(source, report._replace(note=report.note and redacted(report.note)))

    def _judge_of(
        self, record: RunRecord, domain: str, step_list: StepList, answer: str, *, success: bool
    ) -> Judge | None:
        outcome = self.outcome
        if outcome is None:
            return None

        def judge_it() -> object:
            return outcome(
                FinishedRun(
                    run_id=record.run_id,
                    domain=domain,
                    objective=record.objective or record.fallback_objective,
                    steps=tuple(
                        TraceStep.model_validate(clean_json(step)) for step in step_list.steps
                    ),
                    answer=answer,
                    output=record.output,
                    error=record.error,
                    success=success,
                    metadata=record.metadata,
                )
            )

        return judge_it

    # ---------------------------------------------------------------- second half

    def score(
        self, draft: Draft, judge_it: Judge | None = None, *, is_adopted: bool = False
    ) -> ScoredTrace | None:
        """Score a draft and have it written; None if that failed (and was counted).

        Args:
            draft: The run.
            judge_it: The outcome function's part.
            is_adopted: Whether it is a run of an earlier process, which counted it as its own.
        """
        try:
            scored = self._score(draft, judge_it)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the next run must go on
            self._trouble("failed", "a finished run cannot be scored", error)
            return None
        if not is_adopted:
            self.counters.add("scored")
            self.counters.add(scored.decision)
        if scored.breakdown.over_budget:
            self.counters.add("over_budget")
        if self.writer is not None:
            self.writer.write_run(scored, draft.registry, self.sender, self.counters)
        log_scored(scored, has_registry=self.sender is not None)
        return scored

    def announce(self, scored: ScoredTrace) -> None:
        """Call `on_scored`, if there is one."""
        if self.on_scored is None:
            return
        if self.writer is not None:
            with only_waiting():
                self.writer.settle()  # it may read the store, or take its time
        try:
            self._call(partial(self.on_scored, scored))
        except BaseException as error:  # noqa: BLE001 - the caller's function
            name = name_of(self.on_scored)
            self._trouble("on_scored_errors", f"on_scored ({name}) failed", error)

    def redacted(self, verdict: Verdict) -> Verdict:
        """Redact the note of a verdict at the strictest level, whatever run it is for."""
        if verdict.note is None:
            return verdict
        return replace(verdict, note=self._redacted_note(verdict.note, "aggregated"))

    def _redacted_note(self, note: str, level: str) -> str:
        redaction = Redactor(self.counters, NOTE_CHARS // 2, rules=self.rules, hook=self.redactor)
        if self.redactor is None:
            return redaction.text(note, level)
        try:
            return self._call(partial(redaction.text, note, level))
        except BaseException as error:  # noqa: BLE001 - the caller's function
            redaction.fail(describe_error(error))
            return redaction.text(note, level)

    def _call(self, function: Callable[[], Result]) -> Result:
        return self.lane.call(function, self.time_limit_s)

    def _trouble(self, count: str, what: str, error: BaseException) -> None:
        self.counters.add(count)
        warn_once(
            f"{count}:{what}:{type(error).__name__}",
            "%s (%s); counted under '%s'",
            what,
            describe_error(error),
            count,
        )

    def _score(self, draft: Draft, judge_it: Judge | None) -> ScoredTrace:
        policy = draft.policy
        trace = _unscored_copy(draft.trace)  # the draft may be written meanwhile
        domain = trace.metadata.task_domain
        reports = self._reports(draft, judge_it)
        # Of a text that could not be redacted nothing is left to be judged.
        if not draft.withheld and all(report.success is None for _, report in reports):
            reports += self._verified(draft)
        features = features_of(trace, looked_successful=draft.looked_successful)
        outcome = judge(
            draft.looked_successful,
            reports=reports,
            structured=draft.structured,
            token_probability=draft.token_probability,
            calibrated=self._calibrated(domain, features),
        )
        trace.metadata.success = outcome.success
        trace.outcome.confidence = outcome.confidence
        breakdown, failed = self._breakdown(draft, trace)
        breakdown = breakdown.with_confidence_from(
            outcome.source, trace.outcome.confidence, success=outcome.success
        )
        trace.metadata.quality_score = breakdown.total
        threshold = policy.threshold
        if threshold is None:
            threshold = default_threshold(domain, novelty_measured=breakdown.nearest is not None)
        decision = decide(breakdown.total, threshold)
        if draft.withheld or failed:
            decision = "below_threshold"
        return ScoredTrace(
            trace=trace,
            breakdown=breakdown,
            decision=decision,
            threshold=threshold,
            run_id=draft.run_id,
            # What redaction failed on, a verdict cannot contribute, so it is not kept for one.
            keep_body=policy.keep == "all"
            or decision == "contributed"
            or (policy.keep_days > 0 and not draft.withheld),
            keep_days=None if policy.keep == "all" else policy.keep_days,
            task=draft.task,
            features=features,
            verdict=self._verdict(reports, policy.privacy_level),
            withheld=draft.withheld,
            keys=draft.keys,
        )

    def _breakdown(self, draft: Draft, trace: ReasoningTrace) -> tuple[ScoreBreakdown, bool]:
        """Score the trace; return, too, whether the caller's scorer failed on it."""
        # What is left of a trace after failed redaction is nothing to remember or to contribute.
        assess = self.scorer.score if draft.withheld else self.scorer.evaluate
        ignore = _siblings.get(draft.run_id, frozenset())
        assess = partial(assess, trace, weights=draft.policy.weights, ignore=ignore)
        self._await_model()
        if not self.foreign_scorer:
            return assess(), False
        try:
            return self._call(partial(_checked_breakdown, assess)), False
        except BaseException as error:  # noqa: BLE001 - the caller's scorer or embedder
            name = name_of(self.scorer)
            self._trouble("scorer_errors", f"the scorer ({name}) failed", error)
            breakdown = Scorer(embedder=None).score(trace, weights=draft.policy.weights)
            source = f"scorer failed: {type(error).__name__}"
            return replace(breakdown, novelty_source=source), True

    def _await_model(self) -> None:
        """Give a model that is loading its time: the run is on disk, and nobody waits for it."""
        scorer: object = self.scorer
        if not isinstance(scorer, Scorer):  # the caller's own takes what time it needs
            return
        # Counted from the first run: a download that hangs must not hold up each of them so long.
        process = os.getpid(), id(scorer)
        now = time.monotonic()
        if len(_model_awaited_until) >= _SCORERS_KEPT:
            _model_awaited_until.clear()
        until = _model_awaited_until.setdefault(process, now + _LONGEST_WAIT_FOR_MODEL_S)
        if until > now:
            Scorer.wait_until_ready(scorer, until - now)

    def _calibrated(self, domain: str, features: Mapping[str, float]) -> tuple[str, float] | None:
        if self.writer is None:
            return None
        with only_waiting():
            return self.writer.confidence(domain, features)

    def _reports(self, draft: Draft, judge_it: Judge | None) -> list[tuple[str, Report]]:
        """What the outcome function says, and what was reported before; by source, best first."""
        reports: list[tuple[str, Report]] = [draft.reported] if draft.reported else []
        if judge_it is None:
            return reports
        try:
            # What it returns may be a mapping of its own kind, which takes its time, too.
            report = self._call(lambda: read_report(judge_it()))
        except ReportError as error:
            self._unusable_report(OUTCOME_FUNCTION, error)
            return reports
        except BaseException as error:  # noqa: BLE001 - the caller's function
            name = name_of(self.outcome)
            self._trouble("outcome_errors", f"the outcome function ({name}) failed", error)
            return reports
        if report is not None:
            # Reported through the handler, as it may be later: that comes before the function.
            at = 1 if draft.reported and draft.reported.source != OUTCOME_EVENT else 0
            reports.insert(at, (OUTCOME_FUNCTION, report))
        return reports

    def _read_report(self, source: str, what: object) -> Report | None:
        try:
            return read_report(what)
        except ReportError as error:
            self._unusable_report(source, error)
            return None

    def _unusable_report(self, source: str, error: ReportError) -> None:
        self._trouble("outcome_errors", f"what the {source} says cannot be used", error)

    def _verified(self, draft: Draft) -> list[tuple[str, Report]]:
        if self.verifiers is None:
            return []
        opinions = self.verifiers.ask(draft, self.lane)
        return [(opinion.source, opinion.report) for opinion in opinions]

    def _verdict(self, reports: list[tuple[str, Report]], level: str) -> Verdict | None:
        """What the first that called the run a success or a failure said."""
        for source, report in reports:
            if report.success is not None:
                note = report.note and self._redacted_note(report.note, level)
                return Verdict(report.success, report.confidence, note, source)
        return None


def _checked_breakdown(assess: Callable[[], object]) -> ScoreBreakdown:
    breakdown = assess()
    if not isinstance(breakdown, ScoreBreakdown):
        raise ScorerError(
            f"it returned a {type(breakdown).__name__}; return a ScoreBreakdown, as "
            "Scorer.evaluate does"
        )
    return breakdown


def _unscored_copy(trace: ReasoningTrace) -> ReasoningTrace:
    """Return a copy in which success, confidence and score can be set."""
    parts = {"metadata": trace.metadata.model_copy(), "outcome": trace.outcome.model_copy()}
    return trace.model_copy(update=parts)


def _add_sibling(run_id: UUID, trace_id: str) -> None:
    with _siblings_lock:
        _siblings[run_id] = _siblings.get(run_id, frozenset()) | {trace_id}
        while len(_siblings) > _SIBLINGS_KEPT:
            _siblings.popitem(last=False)


@default_on_error(None)
def _task(metadata: Mapping[str, Any]) -> str | None:
    """The hash of what the run's metadata call its task: repeats are told, and nothing is read."""
    task = metadata.get("kp_task")
    if not isinstance(task, str | int | UUID):
        return None
    if isinstance(task, str):
        text = str.__str__(task)
    elif isinstance(task, int) and task.bit_length() > _LARGE_TASK_BITS:
        text = hex(task)  # Python refuses to write a large integer in decimals
    else:
        text = str(task)
    return sha256(text.encode(errors="replace")).hexdigest()


def build_trace(
    record: RunRecord,
    step_list: StepList,
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
                "agent_id": agent_id,  # checked with the handler's arguments
                "framework": "langgraph" if record.is_langgraph else "langchain",
                "task_domain": domain,
                "success": verdict.success,
                "visibility": policy.visibility,
                "privacy_level": level,
            },
            "task": {"objective": redaction.text(objective, level) or "(removed)"},
            "steps": [redaction.step(step, level) for step in step_list.steps],
            "outcome": {
                "result_summary": redaction.text(record.error or answer, level),
                "confidence": verdict.confidence,
            },
        }
    )


def log_scored(scored: ScoredTrace, *, has_registry: bool) -> None:
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
    if (keys := scored.keys) is not None:
        # `thread` and `name` are the log record's own.
        fields |= {"session": keys.session, "thread_id": keys.thread, "user": keys.user}
        fields |= {"run_name": keys.name, "tags": list(keys.tags)}
    for name in DIMENSIONS:
        dimension = getattr(breakdown, name)
        fields[name] = dimension.value
        fields[f"{name}_weight"] = dimension.weight
        fields[f"{name}_contribution"] = dimension.contribution
    log_event(
        "kp.trace_scored %s %s (threshold %.2f) %s | %s",
        trace.metadata.task_domain,
        decision_word(scored.decision, has_registry=has_registry),
        scored.threshold,
        breakdown.line(),
        trace.id,
        fields=fields,
    )
