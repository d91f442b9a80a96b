"""What a human decided on a paused run, as far as the value tells that it is resumed with.

LangGraph leaves the form of that value to the graph. Read here are truth values, single words, and
the types that langchain's middleware and the agent inbox send, at any depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal

from kp_langchain.recording.messages import MAPPING, MAX_ITEMS, attribute, contained

Decision = Literal["approved", "rejected", "unclear"]

_APPROVED = frozenset(
    "accept accepted allow allowed approve approved confirm confirmed continue edit edited ok okay "
    "proceed true y yes".split()
)
_REJECTED = frozenset(
    "abort aborted cancel cancelled decline declined denied deny disallow false ignore n no refuse "
    "refused reject rejected stop".split()
)
# Where a mapping says what was decided, among whatever else it tells.
_TELLING = {"type", "action", "decision", "decisions", "choice", "answer", "status"} | (
    _APPROVED | _REJECTED
)
_MAX_DEPTH = 4


@contained("unclear")
def decision_in(command: object) -> Decision:
    """Tell what a human decided.

    Args:
        command: LangGraph's `Command` with which a run is resumed.

    Returns:
        "unclear" where nothing is known, or calls were approved and others rejected.
    """
    said = set(_answers(attribute(command, "resume"), 0))
    if len(said) == 1:
        return "approved" if said.pop() else "rejected"
    return "unclear"


def _answers(value: object, depth: int) -> Iterator[bool]:
    """Yield each yes and each no in a value."""
    if isinstance(value, bool):
        yield value
    elif isinstance(value, str):
        word = value[:20].strip().lower().rstrip(".!")
        if word in _APPROVED or word in _REJECTED:
            yield word in _APPROVED
    elif depth >= _MAX_DEPTH:
        return
    elif isinstance(value, MAPPING):
        items = list(islice(value.items(), MAX_ITEMS))
        for key, item in [one for one in items if one[0] in _TELLING] or items:
            if isinstance(item, bool) and key in _REJECTED:
                yield not item
            else:
                yield from _answers(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value[:MAX_ITEMS]:
            yield from _answers(item, depth + 1)
