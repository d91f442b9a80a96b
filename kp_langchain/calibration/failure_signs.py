"""Reads the signs of a run off its trace: what failures that are alike have in common.

A sign is a short text of one kind, equal for runs that show the same. Signs are kept when the trace
has expired, so they hold no more than names of tools and the beginning of an error, which is text
of a tool. That is redacted at the strictest level, whatever the policy, and blanked in it is what
differs between two runs with the same fault: numbers, ids, quoted values, addresses, paths, and the
value of `key=value`. Other words stay, such as a name that no rule of redaction finds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal, get_args

from kp_langchain.calibration.flags import (
    ANSWER_CHARS,
    MOST_EQUAL_CALLS,
    last_at_once,
    signature_of,
)
from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.calibration.wording import UNABLE, Text
from kp_langchain.errors import ConfigError
from kp_langchain.redaction import redact
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.text import one_line

if TYPE_CHECKING:
    from kp_langchain.calibration.tool_calls import TracedCall
    from kp_langchain.schema import ReasoningTrace

Kind = Literal["unable", "error", "recovered", "unanswered", "no_output", "repeated", "path"]
"""The kinds of signs: the answer says that it was unable; the error that the run ends on, or the
last one after which it went on; the tool of its last call, if that has no answer, or of an earlier
one without; a tool that was called again with equal arguments; and the order of tools."""

Signs = Mapping[str, str]
"""The signs of a run, at most one of each kind, by the kind."""

Sign = tuple[str, str]
"""A sign as its kind and its text."""

_KINDS = frozenset(get_args(Kind))
_STEP = " > "
_MORE = "..."
_PATH_TOOLS = 12
_NAME_CHARS = 60
_ERROR_CHARS = 120
_CLAUSE_CHARS = 40  # an error that is cut ends with a clause, if it is as long as this
_ERROR_CHARS_READ = 400
_TOOLS_IN_WORDS = 4
# A status code, which tells faults apart, or what differs between runs.
_VARIABLE = re.compile(
    r"""
    (?P<kept> \b(?:HTTP\w*|[Ss]tatus|[Cc]ode)\W{1,2}[1-5]\d\d\b )
    | https?://\S+
    | (?<![\w.-]) (?P<key>[\w.-]+[ ]?=[ ]?)(?!=) (?:'[^'\n]*'|"[^"\n]*"|[^\s,;&)]+)
    | (?<![\w.%+-])[\w.%+-]+@\w[\w.-]*
    | (?<![\w.~@%+-])(?!\w/\w\b)(?:[A-Za-z]:)?[\w.~@%+-]*[/\\][^\s'"`<>()\[\],;]+
    | (?<!\w)'[^'\n]*'(?!\w) | "[^"\n]*" | `[^`\n]*`
    | (?<![\w-])\w+(?:-\w+){2,}
    | \b(?=\w*\d)\w+(?:[-.:,/@]\w+)*
    """,
    re.VERBOSE,
)
_LINE = re.compile(r"([^\w\s])\1{2,}")  # of dashes, as in a traceback
_CLAUSE_END = re.compile(r"[;.!?](?=\s)")
_BLANK = "*"


@dataclass(frozen=True, slots=True)
class SignedRun:
    """A run as failures are grouped.

    Attributes:
        trace_id: The id of its trace.
        domain: Its domain.
        task: Its task; runs with an equal task are repeats of it.
        at: When it began.
        signs: Its signs, as `signs_of` returns them.
        ended_well: Whether it counts as a success now.
        success: The success that a verdict states; None without one.
        can_be_judged: Whether a person can still look at its trace.
        tools: The names of the tools that it used.
    """

    trace_id: str
    domain: str
    task: str
    at: datetime
    signs: Signs
    ended_well: bool
    success: bool | None = None
    can_be_judged: bool = True
    tools: frozenset[str] = frozenset()


def signs_of(trace: ReasoningTrace) -> dict[str, str]:
    """Return the signs of a redacted trace."""
    calls = calls_of(trace.steps)
    signs = {"path": _path(calls)}
    failed = next((one for one in reversed(calls) if one.has_failed), None)
    if failed is not None and failed.output is not None:
        ends_on_it = all(one.has_failed for one in last_at_once(calls))
        text = _fault(failed.output.content, trace.metadata.privacy_level)
        signs["error" if ends_on_it else "recovered"] = f"{_tool(failed)}: {text}"
    unanswered = next((one for one in calls if one.output is None), None)
    if unanswered is not None:
        ends_on_it = calls[-1].output is None
        kind = "unanswered" if ends_on_it else "no_output"
        signs[kind] = _tool(calls[-1] if ends_on_it else unanswered)
    repeated = _repeated(calls)
    if repeated is not None:
        signs["repeated"] = _tool(repeated)
    if _has_answer(trace) and UNABLE.count(Text(trace.outcome.result_summary, ANSWER_CHARS)):
        signs["unable"] = ""
    return signs


def parse_signs(value: object) -> dict[str, str]:
    """Return the signs in a value of unknown origin, without what is none."""
    if not isinstance(value, dict):
        return {}
    return {kind: text for kind, text in value.items() if kind in _KINDS and isinstance(text, str)}


def title_of(kind: str, text: str) -> str:
    """Return a sign in words, as what a run does."""
    match kind:
        case "unable":
            return "apologises, or says that it was unable"
        case "error":
            return f"ends on an error of {text}"
        case "recovered":
            return f"goes on after an error of {text}"
        case "unanswered":
            return f"ends on a call of {text}, without an answer"
        case "no_output":
            return f"gets no answer from {text}"
        case "repeated":
            return f"repeats {text} with the same arguments"
    tools = text.split(_STEP) if text else []
    if not tools:
        return "calls no tool"
    if len(tools) > _TOOLS_IN_WORDS:
        between = str(len(tools) - _TOOLS_IN_WORDS + 1)
        if _MORE in tools:
            between = "many"
        tools = [*tools[: _TOOLS_IN_WORDS - 2], f"{between} more", tools[-1]]
    return f"calls {', then '.join(tools)}{',' if len(tools) > 1 else ''} and nothing else"


def tools_in(kind: str, text: str) -> frozenset[str]:
    """Return the tools that a sign names; of a path that was cut, those that are left."""
    if kind == "path":
        return frozenset(text.split(_STEP)) - {"", _MORE}
    return frozenset((text.partition(": ")[0],)) - {""}


def _path(calls: Sequence[TracedCall]) -> str:
    """Return the order of tools; calls of one tool after the other count as one."""
    names = (_tool(one).replace(_STEP, "/") for one in calls if one.call is not None)
    tools = [name for name, _ in groupby(names)]
    if len(tools) > _PATH_TOOLS:
        tools = [*tools[: _PATH_TOOLS - 2], _MORE, tools[-1]]
    return _STEP.join(tools)


def _repeated(calls: Sequence[TracedCall]) -> TracedCall | None:
    """Return a call that was made again twice running, or too often, without an error."""
    made = [(signature_of(one), one) for one in calls]
    for (signature, call), (next_signature, _) in pairwise(made):
        if signature is not None and signature == next_signature and not call.is_error:
            return call
    counts = Counter(signature for signature, call in made if signature and not call.is_error)
    often = {signature for signature, number in counts.items() if number > MOST_EQUAL_CALLS}
    return next((call for signature, call in made if signature in often), None)


def _has_answer(trace: ReasoningTrace) -> bool:
    """Return whether the result is an answer of its own, not the output of the last tool."""
    last = trace.steps[-1] if trace.steps else None
    if last is None or last.type not in ("observation", "error_recovery"):
        return True
    return trace.outcome.result_summary.strip() != (last.content or "").strip()


def _fault(content: str | None, level: str) -> str:
    """Return the beginning of an error without what differs between runs.

    Args:
        content: The error.
        level: The privacy level that it was redacted at.
    """
    text = (content or "")[: _ERROR_CHARS_READ + 1]
    if len(text) > _ERROR_CHARS_READ:  # what is cut looks like nothing that is redacted
        text = text[:_ERROR_CHARS_READ].rpartition(" ")[0]
    if level == "private":
        text = _redacted(text)
    text = PLACEHOLDER.sub(_BLANK, text)
    text = _VARIABLE.sub(_blanked, _LINE.sub(" ", text))
    text = " ".join(text.split())
    if len(text) > _ERROR_CHARS:
        clauses = _CLAUSE_END.finditer(text, _CLAUSE_CHARS, _ERROR_CHARS)
        text = text[: max((match.start() for match in clauses), default=None)]
    return one_line(text, _ERROR_CHARS) or "(no text)"


def _redacted(text: str) -> str:
    """Return a text redacted at the strictest level."""
    from kp_langchain.config import Settings

    try:
        rules = Settings.current().redaction
    except ConfigError:  # what the user's rules would find is not known
        return ""
    return str(redact(text, rules=rules).value)


def _blanked(match: re.Match[str]) -> str:
    return match["kept"] or (match["key"] or "") + _BLANK


def _tool(call: TracedCall) -> str:
    return one_line(" ".join(call.tool_name.split()), _NAME_CHARS) or "(no name)"
