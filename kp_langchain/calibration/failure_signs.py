"""Reads the signs of a run off its trace: what failures that are alike have in common.

A sign is a short text of one kind, equal for runs that show the same. Signs are kept when the trace
has expired, so they hold no more than names of tools and the beginning of an error. What differs
between two runs with the same fault is blanked in that: numbers, ids, quoted values, addresses, and
what was redacted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Literal

from kp_langchain.calibration.flags import ANSWER_CHARS, MOST_EQUAL_CALLS, signature_of
from kp_langchain.calibration.tool_calls import calls_of
from kp_langchain.calibration.wording import UNABLE, Text
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.text import one_line

if TYPE_CHECKING:
    from kp_langchain.calibration.tool_calls import TracedCall
    from kp_langchain.schema import ReasoningTrace

Kind = Literal["unable", "error", "unanswered", "repeated", "path"]
"""The kinds of signs: the answer says that it was unable; the last error; a tool that gave no
answer; a tool that was called again with equal arguments; and the order of tools."""

Signs = Mapping[str, str]
"""The signs of a run, at most one of each kind, by the kind."""

_STEP = " > "
_MORE = "..."
_PATH_TOOLS = 12
_NAME_CHARS = 60
_ERROR_CHARS = 80
_ERROR_CHARS_READ = 400
_TOOLS_IN_WORDS = 4
# A status code, which tells faults apart, or what differs between runs.
_VARIABLE = re.compile(
    r"""
    (?P<kept> \b(?:HTTP\w*|[Ss]tatus|[Cc]ode)\W{1,2}[1-5]\d\d\b )
    | https?://\S+
    | (?<!\w)'[^'\n]*'(?!\w) | "[^"\n]*" | `[^`\n]*`
    | \b(?=\w*\d)\w+(?:[-.:,/@]\w+)*
    """,
    re.VERBOSE,
)
_LINE = re.compile(r"([^\w\s])\1{2,}")  # of dashes, as in a traceback
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
    """

    trace_id: str
    domain: str
    task: str
    at: datetime
    signs: Signs
    ended_well: bool
    success: bool | None = None
    can_be_judged: bool = True


def signs_of(trace: ReasoningTrace) -> dict[str, str]:
    """Return the signs of a redacted trace."""
    calls = calls_of(trace.steps)
    signs = {"path": _path(calls)}
    failed = next((one for one in reversed(calls) if one.has_failed), None)
    if failed is not None and failed.output is not None:
        signs["error"] = f"{_tool(failed)}: {_fault(failed.output.content)}"
    unanswered = next((one for one in calls if one.output is None), None)
    if unanswered is not None:
        signs["unanswered"] = _tool(unanswered)
    repeated = _repeated(calls)
    if repeated is not None:
        signs["repeated"] = _tool(repeated)
    if UNABLE.count(Text(trace.outcome.result_summary, ANSWER_CHARS)):
        signs["unable"] = ""
    return signs


def tools_of(signs: Signs) -> frozenset[str]:
    """Return the names of the tools on the path of a run."""
    return frozenset(signs.get("path", "").split(_STEP)) - {"", _MORE}


def title_of(kind: str, text: str) -> str:
    """Return a sign in words, as what a run does."""
    match kind:
        case "unable":
            return "says that it was unable"
        case "error":
            return f"has its last error in {text}"
        case "unanswered":
            return f"gets no answer from {text}"
        case "repeated":
            return f"repeats {text} with the same arguments"
    tools = text.split(_STEP) if text else []
    if not tools:
        return "calls no tool"
    if len(tools) > _TOOLS_IN_WORDS:
        between = len(tools) - _TOOLS_IN_WORDS + 1
        tools = [*tools[: _TOOLS_IN_WORDS - 2], f"{between} more", tools[-1]]
    return f"calls {', then '.join(tools)}"


def _path(calls: Sequence[TracedCall]) -> str:
    """Return the order of tools; calls of one tool after the other count as one."""
    tools = [name for name, _ in groupby(_tool(one) for one in calls if one.call is not None)]
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


def _fault(content: str | None) -> str:
    """Return the beginning of an error without what differs between runs."""
    text = PLACEHOLDER.sub(_BLANK, (content or "")[:_ERROR_CHARS_READ])
    text = _VARIABLE.sub(lambda match: match["kept"] or _BLANK, _LINE.sub(" ", text))
    return one_line(" ".join(text.split()), _ERROR_CHARS) or "(no text)"


def _tool(call: TracedCall) -> str:
    return one_line(" ".join(call.tool_name.split()), _NAME_CHARS) or "(no name)"


def failures_in(signs: Signs | None) -> frozenset[tuple[str, str]]:
    """Return the signs that speak of a failure by themselves, each as its kind and its text."""
    return frozenset((kind, text) for kind, text in (signs or {}).items() if kind != "path")
