"""From the record of a run to its redacted `Run`: the trace, and `RunBuilder`.

Redaction comes before all else: no text is embedded, logged or written before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.config import warn_of_domain
from kp_langchain.errors import VerdictError
from kp_langchain.gate.judge import choose_outcome
from kp_langchain.gate.run import Run
from kp_langchain.recording.bounds import default_on_error
from kp_langchain.recording.outcome import FinishedRun, OutcomeFunction, read_verdict
from kp_langchain.recording.redactor import (
    KNOWN_SECRETS,
    Key,
    Redactor,
    clean_texts,
)
from kp_langchain.recording.run_record import join_paused, paused_body
from kp_langchain.recording.steps import StepList, build_steps
from kp_langchain.run_keys import (
    SESSION_NAMES,
    Kind,
    RunKeys,
    collect,
    id_text,
    namespace_text,
    stored_form,
    stored_namespace,
)
from kp_langchain.schema import ReasoningTrace, TraceStep
from kp_langchain.verdict import LONGEST_NOTE_CHARS, Verdict

if TYPE_CHECKING:
    from kp_langchain.config import DomainPolicy
    from kp_langchain.recording.pauses import HandlerPauses
    from kp_langchain.recording.run_record import RunRecord
    from kp_langchain.recording.user_calls import UserFunctions
    from kp_langchain.redaction.custom_rules import Rules

Result = TypeVar("Result")
AskOutcome = Callable[[], object]
"""The user's outcome function, with the run that it is to judge."""

OUTCOME_EVENT = "kp.outcome event"


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


# ------------------------------------------------------------------ runs


@dataclass(frozen=True, slots=True)
class RunBuilder:
    """Makes the redacted runs of one handler.

    Attributes:
        domain: The domain of runs that name none.
        policy_for: Returns the policy of a domain.
        domains: Names of the domains with weights or a policy of their own.
        agent_id: `kp:agent:<id>` that traces carry, if any.
        outcome: The user's function that judges finished runs, if any.
        registry: URL of the registry to contribute to, if any.
        rules: What is redacted besides what always is.
        redactor: The user's function that redacts further, if any.
        functions: Calls the user's functions; has the counters of run outcomes.
        paused_runs: Where what paused runs recorded waits.
    """

    domain: str
    policy_for: Callable[[str], DomainPolicy]
    domains: frozenset[str]
    agent_id: str | None
    outcome: OutcomeFunction | None
    registry: str | None
    rules: Rules
    redactor: Callable[[str], str] | None
    functions: UserFunctions
    paused_runs: HandlerPauses

    def may_wait(self, record: RunRecord) -> bool:
        """Return whether making a run calls the user's function, or asks the store."""
        asks_store = record.ending == "paused" or bool(record.resumed_thread)
        return asks_store or self.redactor is not None

    def build(self, record: RunRecord) -> tuple[Run, AskOutcome | None] | None:
        """Make the redacted run of a record, and what judges it.

        Returns:
            None if there is none, or if that failed; it is counted.
        """
        try:
            self._complete(record)
            for name, count in _dropped(record).items():
                self.functions.counters.add(f"dropped_{name}", count)
            step_list = build_steps(record.timeline, fatal=record.error, answer=record.answer or "")
            if not step_list.steps:
                self.functions.counters.add("empty")
                return None
            return self._redacting(record, partial(self._run, record, step_list))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next run must go on
            self.functions.report_failure("failed", "a finished run cannot be recorded", error)
            return None

    def _complete(self, record: RunRecord) -> None:
        """Join a record to what was recorded before a pause, and write out its texts."""
        join_paused(record, self.paused_runs)
        record.write_out()
        record.drop_quotes()

    def keep_paused(self, record: RunRecord) -> None:
        """Redact what a paused run recorded, and keep it for a run that resumes it.

        What fails is logged.
        """
        try:
            self._complete(record)
            body = self._redacting(record, partial(self._paused_body, record))
            n_dropped = self.paused_runs.put(record.thread_id or "", body)
            self.functions.counters.add("paused_expired", n_dropped)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next run must go on
            warn_once(
                f"paused:{type(error).__name__}",
                "what a paused run recorded cannot be kept (%s)",
                describe_error(error),
            )

    def _paused_body(self, record: RunRecord, redaction: Redactor) -> dict[str, Any]:
        domain, policy = self._learn(record, redaction)
        level = policy.privacy_level
        return paused_body(
            record,
            redaction,
            level,
            domain=domain if record.domain else "",
            verdict=self._reported(record, redaction, level),
            keys=self._keys(record, redaction),
            task=_task(record.metadata) or record.earlier_task,
        )

    def _redactor(self, max_chars: int) -> Redactor:
        return Redactor(self.functions.counters, max_chars, rules=self.rules, hook=self.redactor)

    def _redacting(self, record: RunRecord, make: Callable[[Redactor], Result]) -> Result:
        return self._call(make, self._redactor(record.recorder.settings.max_text_chars))

    def _call(self, make: Callable[[Redactor], Result], redaction: Redactor) -> Result:
        """Call `make` with a redactor; if the user's redactor fails, every text is dropped."""
        if self.redactor is None:
            return make(redaction)
        try:
            return self.functions.call(partial(make, redaction))
        except BaseException as error:  # noqa: BLE001 - the caller's function
            redaction.fail(describe_error(error))
            return make(redaction)

    def _learn(self, record: RunRecord, redaction: Redactor) -> tuple[str, DomainPolicy]:
        """Learn the secrets of a whole run; return its domain and that domain's policy."""
        _, policy = self._domain_and_policy(record, redaction)
        conversations = self._conversations(record)
        redaction.learn(record.parts(), policy.privacy_level, record.answers())
        KNOWN_SECRETS.recall(conversations, redaction.secrets)
        KNOWN_SECRETS.remember([*conversations, (str(record.run_id),)], redaction.secrets)
        return self._domain_and_policy(record, redaction)

    def _conversations(self, record: RunRecord) -> list[Key]:
        namespace = namespace_text(record.metadata) or ""
        keys = [("thread", record.thread_id or "")]
        keys += [("session", id_text(record.metadata.get(name))) for name in SESSION_NAMES]
        return [(kind, text, namespace) for kind, text in keys if text]

    def _domain_and_policy(
        self, record: RunRecord, redaction: Redactor
    ) -> tuple[str, DomainPolicy]:
        # The run's own metadata named it, so it is as little to be trusted as the run's text.
        domain = (record.domain and redaction.name(record.domain, "aggregated")) or self.domain
        domain = self.domain if redaction.has_failed else domain
        return domain, self.policy_for(domain)

    def _run(
        self, record: RunRecord, step_list: StepList, redaction: Redactor
    ) -> tuple[Run, AskOutcome | None]:
        domain, policy = self._learn(record, redaction)
        warn_of_domain(domain, self.domains)
        level = policy.privacy_level
        answer = step_list.last_thought if record.answer is None else record.answer
        ended_well = record.ending == "finished" and step_list.ends_well(answer)
        success = step_list.looks_successful(
            answer, ended_well=ended_well, is_checked=record.has_structured_answer
        )
        trace = build_trace(
            record,
            step_list,
            domain=domain,
            agent_id=self.agent_id,
            policy=policy,
            verdict=choose_outcome(success),
            answer=answer,
            redaction=redaction,
        )
        KNOWN_SECRETS.remember([(trace.id,)], redaction.secrets)
        run = Run(
            trace=trace,
            run_id=record.run_id,
            policy=policy,
            looked_successful=success,
            failed=bool(record.error),
            proves_failure=not ended_well,
            reported=self._reported(record, redaction, level),
            structured=record.confidence,
            task=_task(record.metadata) or record.earlier_task,
            withheld="redaction failed" if redaction.has_failed or record.is_withheld else None,
            registry=self.registry,
            keys=self._keys(record, redaction),
            dropped=_dropped(record),
            external_traces=record.external_traces,
            shown=tuple(record.shown.values()),
        )
        return run, self._judge_of(record, domain, step_list, answer, success=success)

    def _keys(self, record: RunRecord, redaction: Redactor) -> RunKeys:
        """Return the keys to find the run by; strictly redacted, because the log has them, too."""

        def form(kind: Kind, text: str) -> str | None:
            return stored_form(kind, text, self.rules, redaction.is_unchanged)

        keys = collect(record.metadata, record.tags, record.name, form)
        for text in record.inner_namespaces:
            inner = RunKeys(namespace=stored_namespace(text, form))
            keys = keys.after(inner)  # if that is another one, it is shown to no other run
        return keys.after(record.earlier_keys)

    def _reported(self, record: RunRecord, redaction: Redactor, level: str) -> Verdict | None:
        """Return the verdict that came before the run ended: by the event, or by the handler."""
        verdict: Verdict | None
        if isinstance(record.verdict, Verdict):
            verdict = record.verdict.with_certainty()
        else:
            try:
                verdict = read_verdict(record.verdict, OUTCOME_EVENT)
            except VerdictError as error:
                what = f"the verdict of the {OUTCOME_EVENT} is invalid"
                self.functions.report_failure("outcome_errors", what, error)
                return None
        if verdict is None or verdict.note is None:
            return verdict
        return replace(verdict, note=redaction.text(verdict.note, level))

    def _judge_of(
        self, record: RunRecord, domain: str, step_list: StepList, answer: str, *, success: bool
    ) -> AskOutcome | None:
        outcome = self.outcome
        if outcome is None:
            return None

        def judge() -> object:
            return outcome(
                FinishedRun(
                    run_id=record.run_id,
                    domain=domain,
                    objective=record.objective or record.fallback_objective,
                    steps=tuple(
                        TraceStep.model_validate(clean_texts(step)) for step in step_list.steps
                    ),
                    answer=answer,
                    output=record.output,
                    error=record.error,
                    success=success,
                    metadata=record.metadata,
                )
            )

        return judge

    def redact_note(self, verdict: Verdict, run: str, level: str = "aggregated") -> Verdict:
        """Redact the note of a verdict; by default at the strictest level, whatever run it is for.

        Args:
            verdict: The verdict.
            run: The id of the run; secrets that it named here are removed from the note.
            level: The privacy level.
        """
        note = verdict.note
        if note is None:
            return verdict
        redaction = self._redactor(LONGEST_NOTE_CHARS)
        KNOWN_SECRETS.recall([(run,)], redaction.secrets)
        return replace(verdict, note=self._call(lambda one: one.text(note, level), redaction))


def _dropped(record: RunRecord) -> dict[str, int]:
    """Return how many steps and texts of a run there was no room for; without those that are 0."""
    counts = {"steps": record.timeline.dropped, "texts": record.dropped_texts}
    return {name: count for name, count in counts.items() if count}


@default_on_error(None)
def _task(metadata: Mapping[str, Any]) -> str | None:
    """Return a hash of the task id in the metadata: it finds repeats and does not reveal the id."""
    task = metadata.get("kp_task")
    if not isinstance(task, str | int | UUID):
        return None
    text = str.__str__(task) if isinstance(task, str) else str(task)
    return sha256(text.encode(errors="replace")).hexdigest()
