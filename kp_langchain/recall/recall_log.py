"""Tells the handlers of the run that is under way which kept traces it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from kp_langchain.recording.callbacks import ambient_run_id
from kp_langchain.recording.current_handlers import current_handlers

if TYPE_CHECKING:
    from kp_langchain.recall.example import Example
    from kp_langchain.recording.handler import KPCallbackHandler


def ambient_handlers() -> list[KPCallbackHandler]:
    """Return the handlers of the run around this code, each once."""
    handlers = current_handlers("kp_langchain.recording.handler", "KPCallbackHandler")
    return list({id(handler): handler for handler in handlers}.values())


def note_shown(
    examples: Sequence[Example],
    text: str,
    *,
    held_out: bool = False,
    run_id: UUID | None = None,
    handlers: Iterable[KPCallbackHandler] | None = None,
) -> None:
    """Have handlers note what a run is shown, or held out from.

    Args:
        examples: The examples.
        text: The text by which the run is shown them; "" if it is held out.
        held_out: Whether it is held out.
        run_id: The id of the run, or of one inside it; by default the one around this code.
        handlers: The handlers; by default those of the run around this code.
    """
    run_id = run_id or ambient_run_id()
    if run_id is None or not examples:
        return
    shown = [example.as_shown(held_out=held_out) for example in examples]
    for handler in ambient_handlers() if handlers is None else handlers:
        handler.note_shown(run_id, shown, text)
