"""From the record of a run to its redacted `Run`: the steps, the trace, and `RunBuilder`.

A model's answer is a thought and stands where the model was asked. A tool or retriever is a
`tool_call` where it starts and an `observation` where it ends. A failure is an `error_recovery` if
the run did something afterwards, else an `observation`, because nothing recovered. The attempts of
one call are one step with their number.

Redaction comes before all else: no text is embedded, logged or written before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.calibration.wording import output_failed
from kp_langchain.config import warn_of_domain
from kp_langchain.errors import VerdictError
from kp_langchain.gate.judge import choose_outcome
from kp_langchain.gate.run import Run
from kp_langchain.recording.bounds import default_on_error
from kp_langchain.recording.calls import Call, Mark, Timeline
from kp_langchain.recording.outcome import FinishedRun, OutcomeFunction, read_verdict
from kp_langchain.recording.redactor import (
    KNOWN_SECRETS,
    Key,
    Redactor,
    clean_texts,
)
from kp_langchain.recording.run_record import BeforePause, join_paused, paused_body
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


# ------------------------------------------------------------------ steps

Step = dict[str, Any]
"""A step in wire form, before redaction."""

# What the frameworks answer in the agent's place when its steps run out.
_OUT_OF_STEPS = re.compile(
    r"Agent stopped due to (?:iteration limit or time limit|max iterations)\.$"
    r"|Sorry, need more steps to process this request\.$"
    r"|Model call limits exceeded: |(?:Tool|'[^']*' tool) call limit reached: "
)


@dataclass
class StepList:
    """The steps of one run, and what they show of its end.

    Attributes:
        steps: The steps in wire form, before redaction, numbered from 0.
        unresolved_error: Whether the run did nothing after its last error or a human's rejection.
        last_call_failed: Whether all tool calls failed that the model asked for last: an answer
            after that seldom is right.
        is_incomplete: Whether the model's last answer was refused, withheld or cut off, or waits
            for an approval, and nothing followed.
        last_thought: What the model said last.
        ends_on_action: Whether the last call was a tool call, neither rejected nor cancelled.
    """

    steps: list[Step] = field(default_factory=list)
    unresolved_error: bool = False
    last_call_failed: bool = False
    is_incomplete: bool = False
    last_thought: str = ""
    ends_on_action: bool = False

    def ends_well(self, answer: str) -> bool:
        """Return whether no step limit wrote the answer, and it was neither refused nor cut off."""
        return not (self.is_incomplete or _OUT_OF_STEPS.match(answer.strip()))

    def looks_successful(self, answer: str, *, ended_well: bool, is_checked: bool = False) -> bool:
        """Return whether the run counts as a success if nobody judged it.

        Args:
            answer: The final answer. A run that ends on an action needs none: an agent that buys,
                sends or submits something is done with that.
            ended_well: No error ended the run, and `ends_well`.
            is_checked: The answer is a structure that was checked after the last tool call.
        """
        complete = bool(answer.strip()) or self.ends_on_action
        failed = self.unresolved_error or (self.last_call_failed and not is_checked)
        return ended_well and complete and not failed


def build_steps(timeline: Timeline, *, fatal: str, answer: str) -> StepList:
    """Turn a run's timeline into steps.

    Args:
        timeline: Starts, ends and errors of calls in the order in which they came.
        fatal: The error that ended the run; "" if none did. Nothing recovers from it, although
            calls that ran beside it may have gone on.
        answer: The run's answer, for a run that shows no other step.
    """
    builder = _Builder(fatal)
    marks = _marks_in_order(timeline)
    for at, mark, call in marks:
        builder.add(at, mark, call)
    step_list = builder.step_list
    models = [call for _, _, call in marks if call.kind == "model"]
    if not step_list.steps and models:
        builder.add_step("thought", content=answer)
    builder.close_failures(max((at for at, mark, _ in marks if mark == "start"), default=-1))
    answers = [call for call in models if answer.strip() and answer in call.text]
    if answers:  # a log, a title or the like may follow the answer
        step_list.is_incomplete = answers[-1].is_incomplete
    last = builder.last_call
    if last is not None and last.kind == "tool":
        step_list.ends_on_action = not (last.is_rejected or last.is_cancelled)
        step_list.unresolved_error = step_list.unresolved_error or last.is_rejected
    failed = [
        output_failed(step["type"], step.get("tool"), step["content"]) for step in builder.last_ends
    ]
    step_list.last_call_failed = bool(failed) and all(failed)
    return step_list


def _marks_in_order(timeline: Timeline) -> list[tuple[int, Mark, Call]]:
    """Return the marks that leave steps, with their positions in the timeline.

    A call in which the run paused is made again when it is resumed. It stands where it was first
    made, before what had happened inside it.
    """
    marks: list[tuple[int, Mark, Call]] = []
    repeated_at: dict[str, int] = {}  # positions in `marks` of calls that are to be made again
    for at, (mark, call) in enumerate(timeline):
        call_id, position = call.tool_call_id or "", len(marks)
        if mark == "start":
            position = repeated_at.pop(call_id, position)
            if call.is_void and call_id:
                repeated_at[call_id] = position
        marks[position : position + 1] = [(at, mark, call)]
    return [(at, mark, call) for at, mark, call in marks if not call.is_void]


@dataclass
class _Failure:
    """The failed attempts of one call.

    Attributes:
        step: Their step.
        position: The last attempt's position in the timeline.
    """

    step: Step
    position: int


class _Builder:
    """Builds the steps of one run, one mark of its timeline after another.

    Args:
        fatal: The error that ended the run; "" if none did.
    """

    def __init__(self, fatal: str) -> None:
        self.step_list = StepList()
        self.last_call: Call | None = None
        self.last_ends: list[Step] = []  # of the tool calls that the model asked for last
        self._has_asked_anew = False
        self._fatal = fatal
        self._tool_calls: dict[object, Step] = {}  # by the calls' keys
        self._failing: dict[object, _Failure] = {}  # calls that may be tried again, by their keys
        self._failures: list[_Failure] = []

    def add(self, at: int, mark: Mark, call: Call) -> None:
        """Add the mark at position `at` of the timeline."""
        if call.kind == "chain":
            if mark == "error":
                self._add_failure(call, at)
            return  # a start only says that the run continued
        self.last_call = call
        if call.is_incomplete or call.kind == "model" or mark == "end":
            # A tool that only starts does not make up for an answer that was cut off.
            self.step_list.is_incomplete = call.is_incomplete
        if call.kind == "model":
            self._add_model(call, at)
        elif mark == "start":
            self._add_tool_call(call)
        else:
            self._add_tool_end(call, at)

    def _add_model(self, call: Call, at: int) -> None:
        # The model decides anew, so whatever a tool does from here on is another call.
        self._has_asked_anew = True
        self._failing = {key: one for key, one in self._failing.items() if key == call.key}
        if call.has_failed:
            self._add_failure(call, at)
            return
        self._failing.pop(call.key, None)
        if call.text.strip():
            self.add_step("thought", content=call.text)
            self.step_list.last_thought = call.text

    def _add_tool_call(self, call: Call) -> None:
        if call.key in self._failing and call.key in self._tool_calls:
            step = self._tool_calls[call.key]
            step["attempts"] = step.get("attempts", 1) + 1
        else:
            tool_call = self.add_step("tool_call", tool=_tool(call), input=call.input or {})
            self._tool_calls[call.key] = tool_call

    def _add_tool_end(self, call: Call, at: int) -> None:
        if call.is_cancelled and self._fatal:
            return  # because of another call's error
        if call.has_failed:
            self._add_failure(call, at)
            return
        self._failing.pop(call.key, None)
        step = self.add_step("observation", content=call.text, tool=_tool(call))
        self._add_end(call, step)
        _set_latency(step, call)

    def _add_end(self, call: Call, step: Step) -> None:
        if self._has_asked_anew or call.tool_call_id is None:
            self.last_ends = []
        self._has_asked_anew = False
        if not call.is_rejected:  # it did not run
            self.last_ends.append(step)

    def _add_failure(self, call: Call, at: int) -> None:
        failure = self._failing.get(call.key)
        if failure is None:
            failure = _Failure(self.add_step("error_recovery", content=call.error), at)
            if call.kind in ("tool", "retriever") and call.name:
                failure.step["tool"] = _tool(call)
                self._add_end(call, failure.step)
            self._failures.append(failure)
        else:
            failure.step["attempts"] = 1 + failure.step.get("attempts", 1)
            failure.step["content"] = call.error
            failure.position = at
        self._failing[call.key] = failure
        _set_latency(failure.step, call)

    def add_step(self, kind: str, **fields: Any) -> Step:
        """Add a step of a kind, and return it."""
        step = {"step_id": len(self.step_list.steps), "type": kind, **fields}
        self.step_list.steps.append(step)
        return step

    def close_failures(self, last_start: int) -> None:
        """Turn the failures that nothing recovered from into observations.

        Args:
            last_start: The position of the last start in the timeline.
        """
        for failure in self._failures:
            is_fatal = self._fatal and failure.step["content"] == self._fatal
            if failure.position >= last_start or is_fatal:
                failure.step["type"] = "observation"
                self.step_list.unresolved_error = True


def _set_latency(step: Step, call: Call) -> None:
    if call.latency_ms is not None:
        step["latency_ms"] = round(call.latency_ms, 3)


def _tool(call: Call) -> Step:
    tool = {"name": call.name or call.kind}
    if call.mcp_server:
        tool["mcp_server"] = call.mcp_server
    return tool


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
        level, earlier = policy.privacy_level, record.before_pause or BeforePause()
        record.before_pause = BeforePause(
            keys=self._keys(record, redaction),
            task=_task(record.metadata) or earlier.task,
            withheld=earlier.withheld,
        )
        return paused_body(
            record,
            redaction,
            level,
            domain=domain if record.domain else "",
            verdict=self._reported(record, redaction, level),
        )

    def _redactor(self, max_chars: int) -> Redactor:
        return Redactor(self.functions.counters, max_chars, rules=self.rules, hook=self.redactor)

    def _redacting(self, record: RunRecord, make: Callable[[Redactor], Result]) -> Result:
        return self._call(make, self._redactor(record.owner.bounds.text_chars))

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
        """Have a run redacted as a whole, and return its domain with the policy of that."""
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
        earlier = record.before_pause or BeforePause()
        answer = step_list.last_thought if record.answer is None else record.answer
        ended_well = record.ending == "finished" and step_list.ends_well(answer)
        success = step_list.looks_successful(
            answer, ended_well=ended_well, is_checked=record.claims.has_structured_answer
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
            structured=record.claims.confidence,
            task=_task(record.metadata) or earlier.task,
            withheld="redaction failed" if redaction.has_failed or earlier.withheld else None,
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
        return keys.after(None if record.before_pause is None else record.before_pause.keys)

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
                    output=record.claims.output,
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
            run: The id of the run; what a run of this process has named goes from its note.
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
