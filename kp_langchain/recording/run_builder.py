"""From the record of a run to its redacted `Run`, or to what is kept of it while it is paused.

Redaction comes before all else: no text is embedded, logged or written before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.calibration.agreement import task_hash
from kp_langchain.config import warn_of_domain
from kp_langchain.errors import VerdictError
from kp_langchain.gate.judge import choose_outcome
from kp_langchain.gate.run import Run
from kp_langchain.recording.bounds import default_on_error
from kp_langchain.recording.outcome import FinishedRun, read_verdict
from kp_langchain.recording.redactor import (
    KNOWN_SECRETS,
    Redactor,
    clean_texts,
)
from kp_langchain.recording.run_record import CALL_FIELDS, join_paused
from kp_langchain.recording.run_usage import model_calls_of, tokens_of, usage_of
from kp_langchain.recording.steps import StepList, build_steps
from kp_langchain.recording.values import as_input
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
    from kp_langchain.recording.calls import Call
    from kp_langchain.recording.context import HandlerContext
    from kp_langchain.recording.run_record import RunRecord

Result = TypeVar("Result")
AskOutcome = Callable[[], object]
"""The user's outcome function, with the run that it is to judge."""

OUTCOME_EVENT = "kp.outcome event"
_NAMES = ("name", "mcp_server", "model", "provider")  # fields of a call


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


def build_run(context: HandlerContext, record: RunRecord) -> tuple[Run, AskOutcome | None] | None:
    """Make the redacted run of a record, and what judges it.

    Returns:
        None if there is none, or if that failed; it is counted.
    """
    try:
        _complete(context, record)
        for name, count in _dropped(record).items():
            context.counters.add(f"dropped_{name}", count)
        step_list = build_steps(record.timeline, fatal=record.error, answer=record.answer or "")
        if not step_list.steps:
            context.counters.add("empty")
            return None
        max_chars = record.settings.max_text_chars
        return _redact(
            context, max_chars, lambda one: _Builder(context, record, one).run(step_list)
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the next run must go on
        context.counters.report_failure("failed", "a finished run cannot be recorded", error)
        return None


def keep_paused(context: HandlerContext, record: RunRecord) -> None:
    """Redact what a paused run recorded, and keep it for a run that resumes it.

    What fails is logged.
    """
    try:
        _complete(context, record)
        max_chars = record.settings.max_text_chars
        body = _redact(context, max_chars, lambda one: _Builder(context, record, one).paused_body())
        n_dropped = context.paused_runs.put(record.thread_id or "", body)
        context.counters.add("paused_expired", n_dropped)
    except Exception as error:  # noqa: BLE001 - whatever it is, the next run must go on
        warn_once(
            f"paused:{type(error).__name__}",
            "what a paused run recorded cannot be kept (%s)",
            describe_error(error),
        )


def redact_note(
    context: HandlerContext, verdict: Verdict, run: str, level: str = "aggregated"
) -> Verdict:
    """Redact note and source of a verdict, by default at the strictest level for any run.

    Args:
        context: The handler.
        verdict: The verdict.
        run: The id of the run; secrets that it named here are removed from the note.
        level: The privacy level.
    """

    def redact(redaction: Redactor) -> Verdict:
        KNOWN_SECRETS.recall([(run,)], redaction.secrets)
        note = None if verdict.note is None else redaction.text(verdict.note, level)
        return replace(verdict, note=note, source=redaction.text(verdict.source, "aggregated"))

    return _redact(context, LONGEST_NOTE_CHARS, redact)


def _complete(context: HandlerContext, record: RunRecord) -> None:
    """Join a record to what was recorded before a pause, and write out its texts."""
    join_paused(record, context.paused_runs)
    record.write_out()
    record.drop_quotes()


def _redact(context: HandlerContext, max_chars: int, make: Callable[[Redactor], Result]) -> Result:
    """Call `make` with a redactor; if the user's redactor fails, every text is dropped."""
    rules, hook = context.settings.redaction, context.redactor
    redaction = Redactor(context.counters, max_chars, rules=rules, hook=hook)
    if hook is None:
        return make(redaction)
    try:
        return context.call(partial(make, redaction))
    except BaseException as error:  # noqa: BLE001 - the caller's function
        redaction.fail(describe_error(error))
        return make(redaction)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Makes the redacted form of one record."""

    context: HandlerContext
    record: RunRecord
    redaction: Redactor

    def run(self, step_list: StepList) -> tuple[Run, AskOutcome | None]:
        """Return the run, and what judges it."""
        context, record, redaction = self.context, self.record, self.redaction
        domain, policy = self._learn()
        warn_of_domain(domain, context.domains)
        answer = step_list.last_thought if record.answer is None else record.answer
        ended_well = record.ending == "finished" and step_list.ends_well(answer)
        success = step_list.looks_successful(
            answer, ended_well=ended_well, is_checked=record.has_structured_answer
        )
        trace = build_trace(
            record,
            step_list,
            domain=domain,
            agent_id=context.agent_id,
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
            reported=self._reported(policy.privacy_level),
            structured=record.confidence,
            task=_task(record.metadata) or record.earlier_task or task_hash(trace.task.objective),
            withheld="redaction failed" if redaction.has_failed or record.is_withheld else None,
            registry=context.registry_url,
            keys=self._keys(),
            dropped=_dropped(record),
            usage=usage_of(record, redaction.model_name),
            model_calls=model_calls_of(step_list, redaction.model_name),
            tools=redaction.definitions(record.tools.values()),
            external_traces=record.external_traces,
            shown=tuple(record.shown.values()),
        )
        outcome = context.options.outcome
        if outcome is None:
            return run, None

        def judge() -> object:
            finished = FinishedRun(
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
            return outcome(finished)

        return run, judge

    def _learn(self) -> tuple[str, DomainPolicy]:
        """Learn the secrets of a whole run; return its domain and that domain's policy."""
        record, redaction = self.record, self.redaction
        _, policy = self._domain_and_policy()
        namespace = namespace_text(record.metadata) or ""
        keys = [("thread", record.thread_id or "")]
        keys += [("session", id_text(record.metadata.get(name))) for name in SESSION_NAMES]
        conversations = [(kind, text, namespace) for kind, text in keys if text]
        redaction.learn(record.parts(), policy.privacy_level, record.answers())
        KNOWN_SECRETS.recall(conversations, redaction.secrets)
        KNOWN_SECRETS.remember([*conversations, (str(record.run_id),)], redaction.secrets)
        return self._domain_and_policy()

    def _domain_and_policy(self) -> tuple[str, DomainPolicy]:
        # The run's own metadata named it, so it is as little to be trusted as the run's text.
        own = self.record.domain and self.redaction.name(self.record.domain, "aggregated")
        domain = self.context.options.domain if self.redaction.has_failed or not own else own
        return domain, self.context.policy_for(domain)

    def _keys(self) -> RunKeys:
        """Return the keys to find the run by; strictly redacted, because the log has them, too."""
        record, rules = self.record, self.context.settings.redaction

        def form(kind: Kind, text: str) -> str | None:
            return stored_form(kind, text, rules, self.redaction.is_unchanged)

        keys = collect(record.metadata, record.tags, record.name, form)
        for text in record.inner_namespaces:
            inner = RunKeys(namespace=stored_namespace(text, form))
            keys = keys.after(inner)  # if that is another one, it is shown to no other run
        return keys.after(record.earlier_keys)

    def _reported(self, level: str) -> Verdict | None:
        """Return the verdict that came before the run ended: by the event, or by the handler."""
        verdict: Verdict | None
        if isinstance(self.record.verdict, Verdict):
            verdict = self.record.verdict.with_certainty()
        else:
            try:
                verdict = read_verdict(self.record.verdict, OUTCOME_EVENT)
            except VerdictError as error:
                what = f"the verdict of the {OUTCOME_EVENT} is invalid"
                self.context.counters.report_failure("outcome_errors", what, error)
                return None
        if verdict is None:
            return verdict
        note = None if verdict.note is None else self.redaction.text(verdict.note, level)
        source = self.redaction.text(verdict.source, "aggregated")
        return replace(verdict, note=note, source=source)

    # ---------------------------------------------------------------- while it is paused

    def paused_body(self) -> dict[str, Any]:
        """Return what a paused run recorded as JSON-like values; see `paused_record`."""
        record, redaction = self.record, self.redaction
        domain, policy = self._learn()
        level = policy.privacy_level
        calls: dict[Call, int] = {}  # those that are stored, numbered in order
        for call in record.timeline.calls():
            # A void call with an id is made again, in its place.
            if not call.is_void or call.tool_call_id is not None:
                calls[call] = len(calls)
        key_numbers: dict[object, int] = {}
        verdict = self._reported(level)
        body = {
            "run_id": str(record.run_id),
            "name": redaction.name(record.name, level),
            "started_at": record.started_at.isoformat(),
            "domain": domain if record.domain else "",
            "objective": redaction.task(record.objective, level),
            "fallback_objective": redaction.task(record.fallback_objective, level),
            "question": redaction.text(record.human.question, level),
            "dropped_steps": record.timeline.dropped,
            "dropped_texts": record.dropped_texts,
            "requested": self._requests_body(calls, level),
            "calls": [
                self._call_body(call, key_numbers.setdefault(call.key, len(key_numbers)), level)
                for call in calls
            ],
            "marks": [(mark, calls[call]) for mark, call in record.timeline if call in calls],
            "reported": verdict and verdict.to_list(),
            "keys": self._keys().to_dict(),
            "task": _task(record.metadata) or record.earlier_task,
            "usage": usage_of(record, redaction.model_name).to_dict(),
            "uncounted_calls": record.uncounted_calls,
            "tools": redaction.definitions(record.tools.values()),
            "shown": [asdict(one) for one in record.shown.values()],
        }
        # Last, because only now everything has been redacted, or has failed to be.
        return body | {"withheld": record.is_withheld or redaction.has_failed}

    def _requests_body(self, calls: Mapping[Call, int], level: str) -> list[list[Any]]:
        redaction, limit = self.redaction, self.record.settings.max_text_chars
        return [
            [
                request.call_id,
                redaction.name(request.name, level),
                redaction.mapping(as_input(request.arguments, limit), level),
                None if request.model is None else calls.get(request.model),
            ]
            for request in self.record.requested_calls.decisions
            if redaction.text(request.call_id, level) == request.call_id
        ]

    def _call_body(self, call: Call, key_number: int, level: str) -> dict[str, Any]:
        redaction = self.redaction
        tokens = tokens_of(call)
        body: dict[str, Any] = {
            "kind": call.kind,
            "key": key_number,
            "tool_call_id": None,
            "tokens": tokens and asdict(tokens),
        }
        for name in CALL_FIELDS:
            value = getattr(call, name)
            if isinstance(value, Mapping):
                value = redaction.mapping(value, level)
            elif isinstance(value, str) and name in _NAMES:
                value = redaction.name(value, level)
            elif isinstance(value, str):
                value = redaction.text(redaction.secrets.clean_answer(value, is_step=True), level)
            body[name] = value
        call_id = call.tool_call_id
        if call_id is not None and redaction.text(call_id, level) == call_id:
            body["tool_call_id"] = call_id
        return body


def _dropped(record: RunRecord) -> dict[str, int]:
    """Return how many steps, texts, and calls' usages had no room; without those that are 0."""
    counts = {
        "steps": record.timeline.dropped,
        "texts": record.dropped_texts,
        "usage": record.uncounted_calls,
    }
    return {name: count for name, count in counts.items() if count}


@default_on_error(None)
def _task(metadata: Mapping[str, Any]) -> str | None:
    """Return a hash of the task id in the metadata: it finds repeats and does not reveal the id.

    A blank text and a bool are no id.
    """
    task = metadata.get("kp_task")
    if isinstance(task, bool) or not isinstance(task, str | int | UUID):
        return None
    text = str.__str__(task) if isinstance(task, str) else str(task)
    if not text.strip():
        return None
    return sha256(text.encode(errors="replace")).hexdigest()
