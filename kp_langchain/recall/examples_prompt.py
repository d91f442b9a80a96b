"""`ExamplesPrompt`: examples as a message before the one that states the task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage

from kp_langchain.recording.values import role_and_content


@dataclass(frozen=True, slots=True)
class ExamplesPrompt:
    """What the model calls of one agent's run are shown.

    Attributes:
        text: The examples; "" for none.
        task_id: The id of the message that states the task; None if it has none.
    """

    text: str
    task_id: str | None = None

    def added_to(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        """Return the messages with the examples before the one that states the task.

        If that was summarised or trimmed away, they stand before the last message of a human, or
        at the beginning, after system messages.
        """
        by_id = [at for at, one in enumerate(messages) if self.task_id and one.id == self.task_id]
        at = by_id[-1] if by_id else task_position(messages)
        if at is None:
            at = sum(1 for _ in takewhile(lambda one: isinstance(one, SystemMessage), messages))
        return [*messages[:at], HumanMessage(self.text), *messages[at:]]


def task_position(messages: Sequence[AnyMessage]) -> int | None:
    """Return the place of the last message of a human; None if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        if role_and_content(messages[at])[0] in ("human", "user"):
            return at
    return None
