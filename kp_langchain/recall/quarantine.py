"""Pulls units from a registry into quarantine.

A registry and its contributors are strangers. So each unit is built anew from the fields that the
protocol defines. Its size is checked, it is redacted by this installation's rules, and it is
searched for planted instructions. No run is shown a unit before a person or a rule admits it, and
none is contributed from here.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from kp_langchain.calibration.planted_instructions import PlantedInstruction, find_planted
from kp_langchain.config import Settings
from kp_langchain.pattern_schema import PATTERN_ID_PREFIX, ToolCallPattern, read_unit
from kp_langchain.recording.bounds import Counters, short_name
from kp_langchain.recording.redactor import Redactor, clean_texts
from kp_langchain.registry.answers import Answer
from kp_langchain.registry.search import DEFAULT_LIMIT, search
from kp_langchain.schema import CONTEXT, TRACE_ID_PREFIX
from kp_langchain.store.registry_units import ExaminedUnit
from kp_langchain.values import text_size

if TYPE_CHECKING:
    from kp_langchain.pattern_schema import KnowledgeUnit, PatternTool
    from kp_langchain.registry.client import Registry
    from kp_langchain.schema import TraceStep
    from kp_langchain.store import TraceStore
    from kp_langchain.store.registry_units import Fate

_DEFAULTS = Settings.model_construct()
MOST_STEPS = _DEFAULTS.max_steps
"""A unit with more steps is not taken."""

MOST_CHARS = 2 * _DEFAULTS.max_run_chars
"""A unit with more characters is not taken; numbers count as several."""

_LEVEL = "aggregated"
_REMOVED = "(removed)"  # in place of an empty text if the wire form requires a text
_ID = "[!-~]{1,140}"  # behind its prefix
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# What a unit says and claims, whoever sent it under whichever id.
_CONTENT: dict[str, Any] = {
    "metadata": {"success", "quality_score"},
    "task": True,
    "steps": True,
    "outcome": {"result_summary", "confidence"},
}
_PATTERN_CONTENT: dict[str, Any] = {
    "metadata": {"quality_score"},
    "name": True,
    "description": True,
    "trigger_conditions": True,
    "tool_sequence": True,
    "performance": True,
}
_STEP_FIELDS = {"step_id", "type", "content", "tool", "input", "output_summary", "latency_ms"}


@dataclass(slots=True)
class Pull:
    """What a pull did.

    Attributes:
        domain: The domain that was asked for.
        registry: URL of the registry.
        answer: The registry's last answer; if it is not `done`, not all was read.
        read: How many units were read.
        total: How many units the registry says it has; None if it does not say.
        next_offset: Where to continue; None if the registry has no more.
        fates: What became of the units that could be examined, as a count for each `Fate`.
        skipped: How many were not taken, by the reason.
        with_findings: How many of the new and changed ones have findings.
        admitted: How many were admitted by the rule.
    """

    domain: str
    registry: str
    answer: Answer
    read: int = 0
    total: int | None = None
    next_offset: int | None = None
    fates: Counter[Fate] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    with_findings: int = 0
    admitted: int = 0


def pull(
    store: TraceStore,
    registry: Registry,
    *,
    domain: str,
    q: str | None = None,
    min_quality: float | None = None,
    limit: int = DEFAULT_LIMIT,
    offset: int = 0,
    timeout_s: float = 60.0,
    admit_clean: bool = False,
    sleep: Callable[[float], object] = time.sleep,
) -> Pull:
    """Read the traces and patterns that a registry has for a domain, and quarantine them.

    Each page is written before the next is read.

    Args:
        store: The store.
        registry: The registry.
        domain: The domain. Units of another one are not taken, whatever the registry sends.
        q: Only units with these words, as the registry understands them.
        min_quality: Only units whose claimed quality is at least this, 0 to 1.
        limit: Read at most so many.
        offset: Leave out so many at the beginning, which have the highest claimed quality.
        timeout_s: Seconds to take at most. A request under way is not interrupted.
        admit_clean: Whether to admit those without findings, unless they were decided on, or have
            changed at the registry.
        sleep: Waits some seconds, as the registry's limit demands.

    Returns:
        What it did. What the registry does wrong is in there, and never raised.

    Raises:
        ConfigError: An argument or the settings cannot be used.
        StoreError: The store cannot be read or written.
    """
    settings = Settings.current()
    redactor = settings.redaction.load_redactor()
    examine = partial(_examine, domain=domain, settings=settings, redactor=redactor)
    report = Pull(domain, registry.url, Answer("done", ""))
    ids_read: set[str] = set()
    pages = search(
        registry,
        store.outbox,
        domain=domain,
        q=q,
        min_quality=min_quality,
        limit=limit,
        offset=offset,
        timeout_s=timeout_s,
        sleep=sleep,
    )
    for page in pages:
        # The content, which may nest without end, is in the units.
        report.answer, report.next_offset = replace(page.answer, content=None), page.next_offset
        report.total = report.total if page.total is None else page.total
        report.read += page.read
        report.skipped.update(page.skipped)
        units = list(_examine_all(examine, page.units, ids_read, report.skipped))
        fates = store.pulled.write(units, registry=registry.url, domain=domain) if units else []
        report.fates.update(fates)
        with_fates = list(zip(units, fates, strict=True))
        report.with_findings += sum(
            bool(unit.findings) for unit, fate in with_fates if fate in ("new", "changed")
        )
        ids = [one.unit.id for one, fate in with_fates if fate in ("new", "unchanged")]
        if admit_clean and ids:
            admissions = store.pulled.admit_clean(ids, min_quality=min_quality or 0.0)
            report.admitted += len(admissions)
    return report


def _examine_all(
    examine: Callable[[Mapping[str, Any]], ExaminedUnit],
    units: Sequence[Mapping[str, Any]],
    ids_read: set[str],
    skipped: Counter[str],
) -> Iterator[ExaminedUnit]:
    """Yield the units that may be written, each id once; count the others by the reason."""
    for unit in units:
        try:
            new = examine(unit)
        except RefusedUnitError as error:
            skipped[str(error)] += 1
            continue
        except (RecursionError, PydanticSerializationError):
            skipped["nested too deeply"] += 1
            continue
        if new.unit.id in ids_read:
            skipped["read before"] += 1
        else:
            ids_read.add(new.unit.id)
            yield new


# ------------------------------------------------------------------ examining one unit


class RefusedUnitError(Exception):
    """A unit is not taken; the message gives the reason without its texts."""


def _examine(
    unit: Mapping[str, Any],
    *,
    domain: str,
    settings: Settings,
    redactor: Callable[[str], str] | None,
) -> ExaminedUnit:
    """Return a unit as it may be written: bounded, validated, redacted and searched.

    Args:
        unit: The unit as the registry sent it: values that JSON has.
        domain: The domain that was asked for.
        settings: The settings, whose rules redact and whose bounds cut.
        redactor: The user's function that redacts further, if any.

    Raises:
        RefusedUnitError: It is no unit of the domain, or exceeds a bound, or cannot be redacted.
        RecursionError, PydanticSerializationError: It is nested too deeply.
    """
    if text_size(unit) > MOST_CHARS:
        raise RefusedUnitError(f"more than {MOST_CHARS:,} characters")
    id_ = unit.get("id")
    is_pattern = unit.get("@type") == "ToolCallPattern"
    prefix = PATTERN_ID_PREFIX if is_pattern else TRACE_ID_PREFIX
    if not isinstance(id_, str) or not re.fullmatch(prefix + _ID, id_):
        raise RefusedUnitError(f"its id is not {prefix} with up to 140 characters of ASCII")
    new = _validate(unit)
    if new.metadata.task_domain.casefold() != domain.casefold():
        raise RefusedUnitError("it claims another domain")
    if len(new.as_trace().steps) > MOST_STEPS:
        raise RefusedUnitError(f"more than {MOST_STEPS} steps")
    if isinstance(new, ToolCallPattern) and not new.tools:
        raise RefusedUnitError("none of its steps calls a tool")
    what = _PATTERN_CONTENT if is_pattern else _CONTENT
    content = json.dumps(new.model_dump(include=what), sort_keys=True)
    redaction = Redactor(
        Counters(), settings.max_text_chars, rules=settings.redaction, hook=redactor
    )
    redaction.learn([new.model_dump(include=what)], _LEVEL)
    safe = None
    with suppress(Exception):  # of the user's function; it may quote the unit
        safe = read_unit(_redacted_wire(new, redaction, domain))
    if safe is None or redaction.has_failed:
        raise RefusedUnitError("it could not be redacted")
    if safe.id != id_:
        raise RefusedUnitError("its id would have to be redacted")
    findings = [_as_texts(finding) for finding in find_planted(safe.as_trace(), is_foreign=True)]
    return ExaminedUnit(safe, sha256(content.encode()).hexdigest(), findings)


def _validate(unit: Mapping[str, Any]) -> KnowledgeUnit:
    """Return a unit as a trace or a pattern, without characters that no database takes.

    Raises:
        RefusedUnitError: It is neither.
    """
    try:
        return read_unit(clean_texts(dict(unit)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # The place has our own names and numbers alone: what the registry names is not validated.
        place = ".".join("N" if isinstance(part, int) else str(part) for part in first["loc"])
        kind = "pattern" if unit.get("@type") == "ToolCallPattern" else "trace"
        raise RefusedUnitError(f"not a valid {kind}: {place or 'the whole'}") from None


def _redacted_wire(unit: KnowledgeUnit, redaction: Redactor, domain: str) -> dict[str, Any]:
    """Return a unit on the wire with every text redacted.

    It has what the protocol defines and recall has a use for. The rest is dropped: unknown fields,
    `validated_by` and `knowledge_graph_delta`.

    Args:
        unit: The trace or the pattern.
        redaction: Redacts its texts.
        domain: The domain that was asked for.
    """

    def name(value: str | None) -> str | None:
        return value and redaction.text(short_name(value), _LEVEL)

    metadata = unit.metadata
    prefix = PATTERN_ID_PREFIX if isinstance(unit, ToolCallPattern) else TRACE_ID_PREFIX
    own_id = unit.id.removeprefix(prefix)
    if not _UUID.fullmatch(own_id):  # others choose it, and may choose an address
        own_id = redaction.text(own_id, _LEVEL)
    values = {
        "@context": CONTEXT,
        "@type": unit.type,
        "id": prefix + own_id,
        "metadata": {
            "created_at": metadata.created_at,
            "agent_id": name(metadata.agent_id),
            "framework": name(metadata.framework),
            "task_domain": domain,
            "success": metadata.success,
            "quality_score": metadata.quality_score,
            "visibility": "private",  # so that it is never contributed from here
            "privacy_level": _LEVEL,
        },
    }
    if isinstance(unit, ToolCallPattern):
        return values | _redacted_pattern(unit, redaction)
    task, outcome = unit.task, unit.outcome
    schema = task.input_schema
    return values | {
        "source_skill": name(unit.source_skill),
        "task": {
            "objective": redaction.text(task.objective, _LEVEL) or _REMOVED,
            "input_schema": None if schema is None else redaction.mapping(schema, _LEVEL),
        },
        "steps": [_redacted_step(step, redaction) for step in unit.steps],
        "outcome": {
            "result_summary": redaction.text(outcome.result_summary, _LEVEL),
            "confidence": outcome.confidence,
        },
    }


def _redacted_pattern(pattern: ToolCallPattern, redaction: Redactor) -> dict[str, Any]:
    def text(value: str) -> str:
        return redaction.text(value, _LEVEL)

    def tool(one: PatternTool) -> dict[str, Any]:
        inputs = {} if one.input_template is None else {"input": one.input_template}
        step = redaction.step({"tool": {"name": short_name(one.name)}, **inputs}, _LEVEL)
        query = one.query_template
        return {
            **step["tool"],
            "input_template": step.get("input"),
            "query_template": None if query is None else text(query),
        }

    trigger, performance = pattern.trigger_conditions, pattern.performance
    return {
        "name": text(short_name(pattern.name)) or _REMOVED,
        "description": text(pattern.description),
        "trigger_conditions": {
            "task_types": [text(one) or _REMOVED for one in trigger.task_types],
            "required_tools": [
                redaction.name(short_name(one), _LEVEL) for one in trigger.required_tools or ()
            ],
        },
        "tool_sequence": [
            {
                "step": text(step.step),
                "execution": step.execution,
                "tools": [tool(one) for one in step.tools],
                "condition": None if step.condition is None else text(step.condition),
            }
            for step in pattern.tool_sequence
        ],
        "performance": {
            "avg_ms": performance.avg_ms,
            "success_rate": performance.success_rate,
            "uses": performance.uses,
        },
    }


def _redacted_step(step: TraceStep, redaction: Redactor) -> dict[str, Any]:
    values = step.model_dump(include=_STEP_FIELDS, exclude_none=True)
    if step.tool is not None:
        names = {"name": step.tool.name, "mcp_server": step.tool.mcp_server}
        values["tool"] = {key: short_name(name) for key, name in names.items() if name is not None}
    if step.output_summary is not None:
        values["output_summary"] = redaction.text(step.output_summary, _LEVEL)
    if step.tries > 1:
        values["attempts"] = step.tries
    return redaction.step(values, _LEVEL)


def _as_texts(finding: PlantedInstruction) -> dict[str, str]:
    """Return a finding as texts by name, without those that are empty."""
    values = asdict(finding) | {"words": ", ".join(finding.words)}
    return {name: str(value) for name, value in values.items() if value not in (None, "")}
