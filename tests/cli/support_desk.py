"""Made-up agents of a support desk, for a real agent loop.

Runs that end in doubt are wrong, mostly. Every fourth run repeats the one before it, but for a
word.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from zlib import crc32

import numpy as np
from langchain_core.messages import AIMessage
from langchain_core.tools import BaseTool, tool
from numpy.typing import NDArray

from tests.agents import call, say

_DIMENSIONS = 256
_SYLLABLES = ("ba", "do", "fi", "ga", "ku", "lo", "me", "nu", "ri", "sa", "to", "vu")


@tool
def ledger(customer: str) -> str:
    """Look into the ledger."""
    return f"{customer} has paid."


@tool
def calendar(customer: str) -> str:
    """Look into the calendar."""
    return f"{customer} has an appointment."


@tool
def mail(customer: str) -> str:
    """Read the letters."""
    return f"{customer} has written."


TOOLS: tuple[BaseTool, ...] = (ledger, calendar, mail)


@dataclass(frozen=True)
class Run:
    """A made-up run: what its agent does, and whether that was right.

    Args:
        number: All else follows from it.
    """

    number: int

    @property
    def task(self) -> str:
        return f"case {self._original}"

    @property
    def is_right(self) -> bool:
        draw = random.Random(f"truth {self._original}").random()
        return draw < (0.1 if self._is_in_doubt else 0.9)

    @property
    def objective(self) -> str:
        return f"Answer {' '.join(self._words[:6])}"

    def answers(self) -> list[AIMessage]:
        """What the model says: a call of each tool that it needs, and the answer."""
        draw = random.Random(f"tools {self._original}")
        tools = draw.sample(TOOLS, draw.randint(1, len(TOOLS)))
        words = self._words
        calls = [
            say(f"I look at {' '.join(words[6 * at : 6 * at + 6])}.",
                call(one.name, customer=" ".join(words[18 + 4 * at : 22 + 4 * at])))
            for at, one in enumerate(tools)
        ]  # fmt: skip
        end = "Perhaps; I am not certain, it may be" if self._is_in_doubt else "Done, this is"
        return [*calls, say(f"{end} {' '.join(words[30:])}.")]

    @property
    def _original(self) -> int:
        return self.number - (self.number % 4 == 3)

    @property
    def _is_in_doubt(self) -> bool:
        return random.Random(f"doubt {self._original}").random() < 0.5

    @cached_property
    def _words(self) -> list[str]:
        draw = random.Random(f"words {self._original}")
        words = ["".join(draw.choices(_SYLLABLES, k=4)) for _ in range(36)]
        if self._original != self.number:
            words[35] = f"again{self.number}"
        return words


class Words:
    """Embeds a text as the words that it has."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.zeros((len(texts), _DIMENSIONS), np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                vectors[row, crc32(word.encode()) % _DIMENSIONS] += 1
        return vectors
