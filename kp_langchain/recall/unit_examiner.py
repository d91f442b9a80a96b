"""`UnitExaminer`: validates, bounds, redacts and searches what a registry sent.

A registry and its contributors are strangers. So a unit is taken apart and built anew from what the
protocol defines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kp_langchain._logging import describe_error
from kp_langchain.recording.bounds import Bounds, Counters, short_name
from kp_langchain.recording.redactor import Redactor, clean_texts
from kp_langchain.recording.user_calls import JUDGING, Lane
from kp_langchain.schema import (
    CONTEXT,
    TRACE_ID_PREFIX,
    Metadata,
    Outcome,
    ReasoningTrace,
    Task,
    TraceStep,
)
from kp_langchain.store.registry_units import ExaminedUnit
from kp_langchain.values import clip

if TYPE_CHECKING:
    from kp_langchain.config import Settings
    from kp_langchain.store import TraceStore

MOST_STEPS = Bounds().steps
"""A unit with more steps is not taken."""

MOST_CHARS = 2 * Bounds().run_chars
"""A unit with more characters in all its texts is not taken."""

Scan = Callable[[ReasoningTrace], Iterable[object]]
"""Returns what looks like planted instructions in a trace; nothing for a clean one."""

_MOST_VALUES = 50_000
_DEEPEST = 50
_LEVEL = "aggregated"
_REMOVED = "(removed)"  # in place of an empty text if the wire form requires a text
_ID = re.compile(r"kp:trace:[!-~]{1,140}")
_UUID_ID = re.compile(r"kp:trace:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_LONGEST_NUMBER_BITS = 4096  # Python writes no numbers that are much longer
_BETWEEN_WORDS = re.compile("[_.-]")
_MOST_FINDINGS = 50
_FINDING_CHARS = 1000
_FINDING_NAME_CHARS = 50


class RefusedUnitError(Exception):
    """A unit is not taken; the message gives the reason without its texts."""


class UnitExaminer:
    """Validates, bounds and redacts what a registry sent, and searches it for instructions.

    Args:
        domain: The domain that was asked for.
        settings: The settings, whose rules redact and whose bounds cut.
        redactor: The user's function that redacts further, if any.
        min_quality: Units that claim less are not taken.
        scan: What looks for planted instructions; by default `scan_for_instructions`.
    """

    def __init__(
        self,
        domain: str,
        settings: Settings,
        *,
        redactor: Callable[[str], str] | None = None,
        min_quality: float | None = None,
        scan: Scan | None = None,
    ) -> None:
        self._domain, self._settings, self._redactor = domain, settings, redactor
        self._min_quality = min_quality or 0.0
        self._scan = scan or scan_for_instructions
        self._caller = Lane(JUDGING)

    @classmethod
    def of_store(
        cls,
        store: TraceStore,
        domain: str,
        *,
        min_quality: float | None = None,
        scan: Scan | None = None,
    ) -> UnitExaminer:
        """Return the examiner with the settings of now, and the redactors of what records there.

        Raises:
            ConfigError: The settings or the redactor cannot be used.
        """
        from kp_langchain.config import Settings
        from kp_langchain.store.verdicts import redactor_of

        redactor = redactor_of(store.location)
        return cls(
            domain, Settings.current(), redactor=redactor, min_quality=min_quality, scan=scan
        )

    def examine(self, unit: Mapping[str, Any]) -> ExaminedUnit:
        """Return a unit as it may be written.

        Args:
            unit: The unit as the registry sent it.

        Raises:
            RefusedUnitError: It is no trace of the domain, or exceeds a bound, or cannot be
                redacted.
        """
        if not isinstance(unit, Mapping):
            raise RefusedUnitError("not a valid trace: the whole")
        _check_size(unit)
        id_ = unit.get("id")
        if not isinstance(id_, str) or not _ID.fullmatch(id_):
            raise RefusedUnitError("its id is not kp:trace: with up to 140 characters of ASCII")
        trace = _validated(unit)
        self._check_claims(trace)
        fields = _known_fields(trace)
        redacted = self._redacted(fields)
        if redacted.id != id_:
            raise RefusedUnitError("its id would have to be redacted")
        return ExaminedUnit(redacted, _digest(fields), self._findings(redacted))

    def _check_claims(self, trace: ReasoningTrace) -> None:
        if trace.metadata.task_domain.casefold() != self._domain.casefold():
            raise RefusedUnitError("it claims another domain")
        if trace.metadata.quality_score < self._min_quality:
            raise RefusedUnitError("it claims less quality than was asked for")
        if len(trace.steps) > MOST_STEPS:
            raise RefusedUnitError(f"more than {MOST_STEPS} steps")

    def _redacted(self, fields: Mapping[str, Any]) -> ReasoningTrace:
        """Return the trace of these fields, redacted at the strictest level, private and local.

        Raises:
            RefusedUnitError: Something in it cannot be redacted.
        """
        redaction = Redactor(
            Counters(),
            self._settings.max_text_chars,
            rules=self._settings.redaction,
            hook=self._redactor,
        )
        make = partial(_redact_fields, fields, redaction, self._domain)
        with suppress(Exception):  # of the user's function; it may quote the unit
            if self._redactor is None:
                wire = make()
            else:
                wire = self._caller.call(make, self._settings.function_timeout_s)
            if not redaction.has_failed:
                return ReasoningTrace.model_validate(wire)
        raise RefusedUnitError("it could not be redacted")

    def _findings(self, trace: ReasoningTrace) -> list[dict[str, str]]:
        try:
            rows = [_finding_row(finding) for finding in self._scan(trace)]
            rows += [
                {name: text for name, text in _finding_row(finding).items() if name != "step_id"}
                | {"part": "name"}
                for finding in self._scan(_names_as_outputs(trace))
            ]
        except Exception as error:  # noqa: BLE001 - what cannot be searched is not clean
            return [{"kind": "not searched", "words": describe_error(error)}]
        left_out = len(rows) - _MOST_FINDINGS
        rest = [{"kind": "more", "words": f"{left_out} more findings"}] if left_out > 0 else []
        return rows[:_MOST_FINDINGS] + rest


def scan_for_instructions(trace: ReasoningTrace) -> Iterable[object]:
    """Return what looks like planted instructions in a trace; nothing for a clean one."""
    from kp_langchain.recall.planted_instructions import find_planted

    return find_planted(trace, is_foreign=True)


def _finding_row(finding: object) -> dict[str, str]:
    """Return a finding as texts by name, without those that are empty."""
    if isinstance(finding, Mapping):
        values = dict(finding)
    elif is_dataclass(finding):
        values = {one.name: getattr(finding, one.name) for one in fields(finding)}
    else:
        values = {"words": finding}
    texts = {
        str(name): ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
        if value is not None
    }
    return {
        clip(name, _FINDING_NAME_CHARS): clip(text, _FINDING_CHARS)
        for name, text in texts.items()
        if text
    }


def _names_as_outputs(trace: ReasoningTrace) -> ReasoningTrace:
    """Return a trace whose outputs are the names in another one, and the schema of its task.

    A scan reads what a run said and saw. But the name of a tool may be a sentence.
    """
    tools = [tool for step in trace.steps if (tool := step.tool)]
    names = [
        trace.source_skill,
        trace.metadata.agent_id,
        trace.metadata.framework,
        *(tool.name for tool in tools),
        *(tool.mcp_server for tool in tools),
        None if trace.task.input_schema is None else json.dumps(trace.task.input_schema),
    ]
    names += [_BETWEEN_WORDS.sub(" ", name) for name in names if name]
    distinct = list(dict.fromkeys(name for name in names if name))
    steps = [
        TraceStep(step_id=number, type="observation", content=name)
        for number, name in enumerate(distinct or ["-"])
    ]
    return ReasoningTrace(
        metadata=Metadata(task_domain="names", success=False),
        task=Task(objective="-"),
        steps=steps,
        outcome=Outcome(result_summary="", confidence=0.0),
    )


def _check_size(unit: object) -> None:
    """Refuse what is nested too deep or has too much text, before anything recurses into it.

    Raises:
        RefusedUnitError: It exceeds a bound.
    """
    chars, values = 0, 0
    level: list[object] = [unit]
    for _ in range(_DEEPEST):
        below: list[object] = []
        for value in level:
            values += 1
            if isinstance(value, str):
                chars += len(value)
            elif isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER_BITS:
                raise RefusedUnitError("a number that is too long")
            elif isinstance(value, Mapping):
                if not all(isinstance(name, str) for name in value):
                    raise RefusedUnitError("a name that is no text")
                chars += sum(map(len, value))
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif value is not None and not isinstance(value, int | float):
                raise RefusedUnitError("a value that JSON does not have")
            if chars > MOST_CHARS:
                raise RefusedUnitError(f"more than {MOST_CHARS:,} characters")
            if values + len(below) > _MOST_VALUES:
                raise RefusedUnitError(f"more than {_MOST_VALUES:,} values")
        if not below:
            return
        level = below
    raise RefusedUnitError(f"nested deeper than {_DEEPEST}")


def _validated(unit: Mapping[str, Any]) -> ReasoningTrace:
    """Return a unit as a trace, without characters that no database takes.

    Raises:
        RefusedUnitError: It is none.
    """
    try:
        return ReasoningTrace.model_validate(clean_texts(dict(unit)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # The place has our own names and numbers alone: what the registry names is not validated.
        place = ".".join("N" if isinstance(part, int) else str(part) for part in first["loc"])
        raise RefusedUnitError(f"not a valid trace: {place or 'the whole'}") from None


def _known_fields(trace: ReasoningTrace) -> dict[str, Any]:
    """Return what the protocol defines of a trace and recall has a use for; the rest is dropped.

    That is: unknown fields, `validated_by` and `knowledge_graph_delta`.
    """
    metadata, task, outcome = trace.metadata, trace.task, trace.outcome
    return {
        "id": trace.id,
        "source_skill": trace.source_skill and short_name(trace.source_skill),
        "created_at": metadata.created_at,
        "agent_id": metadata.agent_id and short_name(metadata.agent_id),
        "framework": metadata.framework and short_name(metadata.framework),
        "success": metadata.success,
        "quality_score": metadata.quality_score,
        "objective": task.objective,
        "input_schema": task.input_schema,
        "steps": [_known_of_step(step) for step in trace.steps],
        "result_summary": outcome.result_summary,
        "confidence": outcome.confidence,
    }


def _known_of_step(step: TraceStep) -> dict[str, Any]:
    tool = None
    if step.tool is not None:
        tool = {"name": short_name(step.tool.name)}
        if step.tool.mcp_server is not None:
            tool["mcp_server"] = short_name(step.tool.mcp_server)
    values = {
        "step_id": step.step_id,
        "type": step.type,
        "content": step.content,
        "tool": tool,
        "input": step.input,
        "output_summary": step.output_summary,
        "latency_ms": step.latency_ms,
        "attempts": step.tries if step.tries > 1 else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _digest(fields: Mapping[str, Any]) -> str:
    """Return the hash of what a unit says and claims, whoever sent it under whichever id."""
    sender = ("id", "source_skill", "created_at", "agent_id", "framework")
    content = {name: value for name, value in fields.items() if name not in sender}
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def _redact_fields(fields: Mapping[str, Any], redaction: Redactor, domain: str) -> dict[str, Any]:
    """Return a trace on the wire with every text redacted.

    Args:
        fields: As `_known_fields` returns it.
        redaction: Redacts its texts.
        domain: The domain that was asked for.
    """

    def text(name: str) -> str | None:
        value = fields[name]
        return None if value is None else redaction.text(value, _LEVEL)

    schema = fields["input_schema"]
    return {
        "@context": CONTEXT,
        "@type": "ReasoningTrace",
        "id": fields["id"] if _UUID_ID.fullmatch(fields["id"]) else _redacted_id(fields, redaction),
        "source_skill": text("source_skill"),
        "metadata": {
            "created_at": fields["created_at"],
            "agent_id": text("agent_id"),
            "framework": text("framework"),
            "task_domain": domain,
            "success": fields["success"],
            "quality_score": fields["quality_score"],
            "visibility": "private",  # so that it is never contributed from here
            "privacy_level": _LEVEL,
        },
        "task": {
            "objective": text("objective") or _REMOVED,
            "input_schema": None if schema is None else redaction.mapping(schema, _LEVEL),
        },
        "steps": [_redact_step(step, redaction) for step in fields["steps"]],
        "outcome": {
            "result_summary": text("result_summary"),
            "confidence": fields["confidence"],
        },
    }


def _redacted_id(fields: Mapping[str, Any], redaction: Redactor) -> str:
    """Return an id that is no UUID, redacted: others choose it, and may choose an address."""
    name = str(fields["id"]).removeprefix(TRACE_ID_PREFIX)
    return f"{TRACE_ID_PREFIX}{redaction.text(name, _LEVEL)}"


def _redact_step(step: Mapping[str, Any], redaction: Redactor) -> dict[str, Any]:
    wire = redaction.step(step, _LEVEL)
    if "output_summary" in wire:
        wire["output_summary"] = redaction.text(wire["output_summary"], _LEVEL)
    return wire
