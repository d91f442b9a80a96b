"""Texts such as agents and tools produce, no two alike, in two kinds.

`Written` makes them up. `Recorded` takes them from recorded runs of real agents where such lie
beside the checkout (see tests/recorded.py). The written ones are made so that redaction takes as
long for a thousand characters of them (about 0.2 ms) and finds as much as in the recorded ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import count
from typing import Any, Protocol

from tests import recorded

_WORDS = """
account after agrees amount answer approved balance before billed branch buyer carrier changed
charge checked clerk closed compare contract corrected customer damaged delivered delivery
difference discount due early entry expected figures found freight goods held invoice issued ledger
line list matched missing month noted office open order original packing paid part payment period
posted price quantity quarter received record refund region rejected remains report returned review
sales sent settled shipment short signed stock supplier table terms total transfer unit until value
warehouse week which without
""".split()
_NAMES = ("maria", "chen", "olu", "priya", "tomas", "ingrid")
_LONGEST = 4000


class Texts(Protocol):
    """What a model says and what a tool returns."""

    def said(self) -> str: ...

    def returned(self) -> str: ...


class Written:
    """300 to 600 characters each, of prose or JSON; one in four names a person's address."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def said(self) -> str:
        some = self._random
        wanted = some.randint(240, 540)
        text = ""
        while len(text) < wanted:
            words = " ".join(some.choices(_WORDS, k=some.randint(6, 12))).capitalize()
            extra = some.choice(("", "", f" on {self._date()}", f" ({self._amount():,.2f} EUR)"))
            text += f"{words}{extra}. "
        return text + self._person()

    def returned(self) -> str:
        wanted = self._random.randint(210, 510)
        rows: list[dict[str, Any]] = []
        while True:
            text = json.dumps({"rows": rows, "note": self._person()})
            if len(text) >= wanted:
                return text
            rows.append(self._row())

    def _row(self) -> dict[str, Any]:
        some = self._random
        link = f"https://shop.example.com/o/{some.getrandbits(20)}"
        return {
            "id": f"ord_{some.getrandbits(32):08x}",
            "date": self._date(),
            "status": some.choice(_WORDS),
            "amount": self._amount(),
            "note": " ".join(some.choices(_WORDS, k=3)),
            **({"link": link} if some.random() < 0.3 else {}),
        }

    def _date(self) -> str:
        return f"2025-{self._random.randint(1, 12):02}-{self._random.randint(1, 28):02}"

    def _amount(self) -> float:
        return round(self._random.uniform(1, 9000), 2)

    def _person(self) -> str:
        if self._random.random() < 0.75:
            return "No further entry."
        name = self._random.choice(_NAMES)
        return f"Ask {name}{self._random.randint(1, 999)}@example.com about it."


class Recorded:
    """Texts of recorded runs in random order, each with a number in front, so that none repeats."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._numbers = count()
        by_role: dict[str, set[str]] = {"assistant": set(), "tool": set()}
        for run in recorded.load():
            for message in run["messages"]:
                text = message.get("content")
                if isinstance(text, str) and text.strip() and message["role"] in by_role:
                    by_role[message["role"]].add(text[:_LONGEST])
        self._said = sorted(by_role["assistant"])
        self._returned = sorted(by_role["tool"])

    def said(self) -> str:
        return f"{next(self._numbers)}. {self._random.choice(self._said)}"

    def returned(self) -> str:
        return f"{next(self._numbers)}. {self._random.choice(self._returned)}"


def kinds() -> list[str]:
    """Names of the kinds that are at hand."""
    return ["written", "recorded"] if recorded.present() else ["written"]


_KINDS: dict[str, Callable[[int], Texts]] = {"written": Written, "recorded": Recorded}


def make(kind: str, seed: int) -> Texts:
    """Texts of a kind."""
    return _KINDS[kind](seed)
