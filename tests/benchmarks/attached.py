"""A handler as it sits on the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Attached:
    """A handler as it sits on the agent.

    Args:
        callbacks: What a run is given.
        settle: Waits until all is done that the handler does behind the agent's back, such as
            scoring or sending. It is part of what the handler costs.
        faults: What went wrong, by name and number; a handler that loses runs is cheap.
        switch_on: Called before a run, where the handler sits in LangChain itself.
        switch_off: Called after it, so that the next run is without.
    """

    callbacks: Sequence[Any]
    settle: Callable[[], object] = _nothing
    faults: Callable[[], Mapping[str, int]] = field(default=dict)
    switch_on: Callable[[], object] = _nothing
    switch_off: Callable[[], object] = _nothing
