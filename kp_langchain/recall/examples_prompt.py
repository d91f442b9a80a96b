"""`ExamplesPrompt`: examples as a message before the one that states the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import AnyMessage, HumanMessage


@dataclass(frozen=True, slots=True)
class ExamplesPrompt:
    """What the runs of one graph are shown.

    Attributes:
        text: The examples; "" for none.
        before_id: The id of the message that states the task.
        before: Its place among the messages when it was first seen.
    """

    text: str
    before_id: str | None
    before: int

    def added_to(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """Return the messages with the examples before the one that states the task."""
        at = min(self.before, len(messages))
        if self.before_id is not None:
            places = (at for at, one in enumerate(messages) if one.id == self.before_id)
            at = next(places, at)
        return [*messages[:at], HumanMessage(self.text), *messages[at:]]
