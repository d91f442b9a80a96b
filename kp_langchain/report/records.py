"""What the page has of one run: its record, its trace, and their texts, cut and made visible."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from kp_langchain.calibration.basis import basis_of_run
from kp_langchain.gate.check import waits
from kp_langchain.review.recall_facts import planted_text
from kp_langchain.review.run_facts import (
    agreement_text,
    claims_of,
    flag_texts,
    outcome_text,
    replaced_text,
    twin_text,
)
from kp_langchain.review.usage_facts import usage_facts, usage_figures
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.dimensions import REASONS
from kp_langchain.text import one_line, printable

if TYPE_CHECKING:
    from kp_langchain.gate.run import ShownTrace
    from kp_langchain.prices import Prices
    from kp_langchain.schema import TraceStep
    from kp_langchain.store import StoredRun
    from kp_langchain.verdict import Verdict

STEP_CHARS = 2000
"""How many characters of each text of a step the page has at most."""

# Joiners stay: words of several scripts, and many pictographs, need them.
_KEPT_AS_THEY_ARE = "\t\u200c\u200d"
_HEAD_SHARE = 0.75
_BLANK_LINES = re.compile(r"\n\s*\n")
_OBJECTIVE_CHARS = 600
_NOTE_CHARS = 1000
_NAME_CHARS = 100
_CLAIMS_SHOWN = 12
_STEPS_SHOWN = 500
_TOOLS_SHOWN = 50
_EXAMPLES_SHOWN = 20
_DIGITS = 6  # so that a rounded value stays on its side of a threshold


# ------------------------------------------------------------------ texts


def _visible(text: str) -> str:
    """Return a text with U+FFFD for what cannot be seen, and line feeds for all line breaks."""
    return "\n".join(printable(line, keep=_KEPT_AS_THEY_ARE) for line in text.splitlines())


class Excerpt(NamedTuple):
    """A text as the page has it, whole or without its middle.

    Attributes:
        head: Its beginning, or all of it.
        left_out: How many characters are left out after that.
        tail: Its end; empty if nothing is left out.
    """

    head: str
    left_out: int = 0
    tail: str = ""

    def shortened(self, limit_chars: int) -> Excerpt:
        """Return it without its middle if it has more than `limit_chars` characters."""
        length = len(self.head) + len(self.tail)
        if length <= limit_chars:
            return self
        head = round(limit_chars * _HEAD_SHARE)
        end = (self.tail or self.head)[head - limit_chars :]
        return Excerpt(self.head[:head], self.left_out + length - head - len(end), end)

    def to_json(self) -> str | list[Any]:
        """Return the text if it is whole; else head, number of characters left out, and tail."""
        return [self.head, self.left_out, self.tail] if self.left_out else self.head


def _excerpt(value: object, limit_chars: int = STEP_CHARS) -> Excerpt:
    """Return any JSON-like value as an excerpt; what is not text as indented JSON."""
    if value is None:
        return Excerpt("")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1)
    excerpt = Excerpt(text).shortened(limit_chars)
    return excerpt._replace(head=_visible(excerpt.head), tail=_visible(excerpt.tail))


def domain_name(domain: str) -> str:
    """Return what a domain is called on the page; domains that differ only beyond that are one."""
    return one_line(domain, _NAME_CHARS).strip() or "(blank)"


# ------------------------------------------------------------------ traces


Body = dict[str, Any]
"""The trace of a run as the page has it: its `steps`, how many more are `left_out`, its `result`
and the `claims` of that. Texts in it are excerpts. A step is a list of its type, its tool, its
text, its input (None for none), the milliseconds it took (None if unknown), and how often it was
tried.
"""


def to_json(value: Any, limit_chars: int) -> Any:
    """Return a body, or a part of it, as JSON-like values with no text over `limit_chars`."""
    if isinstance(value, Excerpt):
        return value.shortened(limit_chars).to_json()
    if isinstance(value, dict):
        return {name: to_json(item, limit_chars) for name, item in value.items()}
    return [to_json(item, limit_chars) for item in value] if isinstance(value, list) else value


def body_of(text: str) -> Body:
    """Return the trace that the text of a stored body holds.

    Raises:
        ValidationError: It holds no trace.
    """
    trace = ReasoningTrace.model_validate_json(text)
    claims = claims_of(trace)
    by_place = {"tone": claims.tone, "seen": claims.seen, "unseen": claims.unseen}
    return {
        "steps": [_step(step) for step in trace.steps[:_STEPS_SHOWN]],
        "left_out": max(0, len(trace.steps) - _STEPS_SHOWN),
        "result": _excerpt(trace.outcome.result_summary),
        "claims": {
            place: [one_line(item, _NAME_CHARS) for item in items[:_CLAIMS_SHOWN]]
            for place, items in by_place.items()
        },
    }


def _step(step: TraceStep) -> list[Any]:
    return [
        step.type,
        one_line(step.tool.name if step.tool else "", _NAME_CHARS),
        _excerpt(step.content),
        None if step.input is None else _excerpt(step.input),
        figure(step.latency_ms),
        step.tries,
    ]


def figure(value: object) -> float | None:
    """Return a number rounded for the page; None for what is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return round(float(value), _DIGITS) if math.isfinite(value) else None
    except OverflowError:
        return None


def record_of(
    run: StoredRun,
    verdicts: Sequence[Verdict],
    *,
    shown: Sequence[ShownTrace] = (),
    credit: str | None = None,
    planted: str | None = None,
    prices: Prices,
) -> dict[str, Any]:
    """Return what the page has of a run, apart from its steps, ready for JSON.

    Args:
        run: The run.
        verdicts: The verdicts on it, the oldest first.
        shown: The traces that it was shown as examples, or held out from, the best first.
        credit: What its trace did for the runs that were shown it, in words.
        planted: What looks like planted instructions in its trace, if recall found any.
        prices: What models cost.
    """
    breakdown = run.breakdown
    nearest, lost = breakdown.nearest, breakdown.largest_loss(run.gate)
    objective = _BLANK_LINES.sub("\n\n", run.objective)
    return {
        "id": run.trace_id,
        "at": milliseconds(run.created_at),
        "domain": domain_name(run.domain),
        "objective": _excerpt(objective, _OBJECTIVE_CHARS).to_json(),
        "decision": one_line(run.decision, _NAME_CHARS),
        "gate": "worth" if run.gate == "worth" and run.worth is not None else "score",
        "score": figure(run.score),
        "worth": figure(run.worth),
        "confidence_of_worth": None
        if breakdown.worth is None
        else figure(breakdown.worth.confidence),
        "threshold": figure(run.threshold),
        "outcome": one_line(outcome_text(run), 3 * _NAME_CHARS),
        "dimensions": [
            [
                figure(dimension.value),
                figure(dimension.weight),
                figure(dimension.contribution),
                one_line(dimension.why, 3 * _NAME_CHARS),
            ]
            for dimension in breakdown.dimensions.values()
        ],
        "lost": None if lost is None else [one_line(lost[0], _NAME_CHARS), figure(lost[1])],
        "rules": [
            [
                one_line(rule.name, _NAME_CHARS),
                figure(rule.before),
                figure(rule.after),
                REASONS.get(rule.name, ""),
            ]
            for rule in breakdown.rules
        ],
        "profile": one_line(breakdown.profile, _NAME_CHARS),
        "novelty_source": one_line(breakdown.novelty_source, _NAME_CHARS),
        "nearest": None if nearest is None else [nearest.trace_id, figure(nearest.similarity)],
        "twin": None if run.twin_of is None else [run.twin_of, twin_text(run)],
        "replaced_by": None if run.replaced_by is None else [run.replaced_by, replaced_text(run)],
        "agreement": agreement_text(run),
        "flags": list(flag_texts(run)),
        "veto": run.veto and one_line(run.veto, _NAME_CHARS),
        "waits": waits(run.gate, run.threshold),
        "basis": one_line(basis_of_run(breakdown, run.gate, run.threshold), _NAME_CHARS),
        "redactions": _counts(run.redactions),
        "dropped": _counts(run.dropped),
        "tools": [one_line(name, _NAME_CHARS) for name in (run.tools or ())[:_TOOLS_SHOWN]],
        "recoveries": run.recovered_errors or 0,
        "withheld": None if run.withheld is None else one_line(run.withheld, 3 * _NAME_CHARS),
        "kept_until": None if run.kept_until is None else milliseconds(run.kept_until),
        "keys": _keys(run),
        "usage": [
            [label, one_line(text, 5 * _NAME_CHARS)]
            for label, text in usage_facts(run.usage, prices, run.created_at)
        ],
        "took": [
            [label, figure(number), text]
            for label, (number, text) in usage_figures(
                run.usage, prices.cost(run.usage, run.created_at)
            ).items()
        ],
        "privacy": f"redacted at the level {run.privacy_level}; visibility {run.visibility}",
        "verdicts": [_verdict(verdict) for verdict in verdicts],
        "shown": _shown(shown),
        "credit": credit,
        "planted": None if planted is None else one_line(planted_text(planted), 3 * _NAME_CHARS),
    }


def milliseconds(moment: datetime) -> int:
    """Return a time as JavaScript counts it: milliseconds since 1970."""
    return round(moment.timestamp() * 1000)


def _verdict(verdict: Verdict) -> list[Any]:
    note = None if verdict.note is None else one_line(verdict.note, _NOTE_CHARS)
    at = None if verdict.at is None else milliseconds(verdict.at)
    source = one_line(verdict.source_text, _NAME_CHARS)
    return [at, verdict.success, figure(verdict.confidence), note, source]


def _shown(shown: Sequence[ShownTrace]) -> list[list[Any]] | None:
    """Return the traces that a run was shown, each as its id and what to say of it."""
    rows: list[list[Any]] = []
    for one in shown[:_EXAMPLES_SHOWN]:
        held_out = "held out, " if one.held_out else ""
        # An id from elsewhere may hold anything; one with invisible characters leads nowhere.
        name = one_line(one.trace_id, 2 * _NAME_CHARS)
        rows.append([name, f"{held_out}similarity {one.similarity:.2f}"])
    more = len(shown) - len(rows)
    if more:
        rows.append([None, f"and {more:,} more"])
    return rows or None


def _counts(counts: Mapping[str, int] | None) -> dict[str, int]:
    return {one_line(kind, _NAME_CHARS): int(number) for kind, number in (counts or {}).items()}


def _keys(run: StoredRun) -> dict[str, str]:
    keys = {
        "framework": run.framework,
        "agent": run.agent_id,
        "session": run.session,
        "thread": run.thread,
        "user": run.user_hash,
        "namespace": run.namespace,
        "name": run.run_name,
        "tags": ", ".join(run.tags),
    }
    return {name: one_line(value, _NAME_CHARS) for name, value in keys.items() if value}
