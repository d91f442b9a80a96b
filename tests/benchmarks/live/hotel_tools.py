"""The hotel of the world `hotel`: its guests, its rooms, and the tools that change them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from tests.benchmarks.live.worlds import Task, answer_tool, is_same_value

NAMES = ("Mira Kovac", "Noémie Fabre", "Sean O'Hara", "Ravi Menon", "Astrid Lund", "Tomas Reyna",
          "Keiko Arai", "Femi Adeyemi", "Carla Ricci", "Joost de Wit", "Leila Haddad", "Pavel Novak",
          "Agnes Toth", "Duncan Reid", "Imani Otieno", "Luz Ortega", "Birgit Haas", "Marc Petit",
          "Olga Sorokina", "Hugo Blanc", "Ana Prado", "Erik Dahl", "Rina Cohen", "Jan Maly")  # fmt: skip
FULL = [100 * floor + door for floor in range(1, 7) for door in range(1, 5)]
_EMPTY = [100 * floor + door for floor in range(1, 7) for door in range(5, 13)]
# Shuffled so that no floor that is asked for later has as many ready rooms as one of a kept run.
Random(46).shuffle(_EMPTY)
DIRTY, CLEAN, BROKEN, FREE = (_EMPTY[n : n + 8] for n in range(0, 32, 8))
EXTRAS = ("minibar", "laundry", "parking", "massage", "breakfast", "telephone", "sauna", "bicycle")
MEANS = ("card", "transfer", "voucher", "invoice")


def code_of(word: str) -> str:
    """Return the code of an extra."""
    return word[:3].upper()


@dataclass
class _Stay:
    name: str
    room: int
    state: str
    until: str = "1100"


class Hotel:
    """A hotel. The docstrings of the methods that are tools are what the model is told of them."""

    def __init__(self) -> None:
        chance = Random("hotel")
        numbers = chance.sample(range(2000, 9999), 3 * len(NAMES))
        full = chance.sample(FULL, len(FULL))
        self._stays: dict[int, _Stay] = {}
        self._entries: list[tuple[int, str, int]] = []
        self._notes: list[tuple[int, str]] = []
        for n, name in enumerate(NAMES):
            present, past, future = numbers[3 * n : 3 * n + 3]
            self._stays[present] = _Stay(name, full[n], "H")
            self._stays[past] = _Stay(name, chance.choice(FULL), "P")
            if n % 3:
                self._stays[future] = _Stay(name, chance.choice(FULL), "F")
            for _ in range(3):
                extra = code_of(chance.choice(EXTRAS))
                self._entries.append((present, extra, chance.randint(900, 16000)))
        self._wake_ups = {room: f"0{chance.randint(5, 9)}00" for room in full}
        self._status = dict.fromkeys(FULL + _EMPTY, "I")
        self._status |= dict.fromkeys(DIRTY, "D") | dict.fromkeys(CLEAN, "C")
        self._status |= dict.fromkeys(BROKEN, "O")

    def state(self) -> tuple[object, ...]:
        """Return all that tools change; of notes, not what they say."""
        stays = {
            number: (stay.room, stay.state, stay.until) for number, stay in self._stays.items()
        }
        return stays, sorted(self._entries), sorted(self._notes), self._wake_ups, self._status

    def present_stay(self, name: str) -> tuple[int, int]:
        """Return the number of the stay by which a guest is in the house, and its room."""
        ((number, room),) = [
            (number, stay.room)
            for number, stay in self._stays.items()
            if stay.name == name and stay.state == "H"
        ]
        return number, room

    def ready_rooms(self, floor: int) -> int:
        """Return how many rooms of a floor are inspected and empty."""
        return sum(
            status == "I" and room // 100 == floor and room not in self._occupied()
            for room, status in self._status.items()
        )

    def find_guest(self, name: str) -> str:
        """Find the stays of a guest by the full name."""
        stays = [
            f"stay {number}: room {stay.room}, {stay.state}"
            for number, stay in sorted(self._stays.items())
            if stay.name.casefold() == name.strip().casefold()
        ]
        if not stays:
            raise ToolException(f"there is no guest {name!r}; give first name and surname")
        return "; ".join(stays)

    def list_rooms(self, floor: int) -> str:
        """List the rooms of a floor."""
        full = self._occupied()
        rooms = [
            f"{room} {status}" + (f" stay {full[room]}" if room in full else "")
            for room, status in sorted(self._status.items())
            if room // 100 == floor
        ]
        if not rooms:
            raise ToolException(f"there is no floor {floor}; floors are 1 to 6")
        return "; ".join(rooms)

    def balance(self, stay: int) -> str:
        """Show the balance of a stay."""
        self._stay(stay)
        return str(-sum(cents for number, _, cents in self._entries if number == stay))

    def charge(self, stay: int, code: str, amount: int) -> str:
        """Charge an amount to a stay."""
        self._stay(stay)
        _check("code", code, {*map(code_of, EXTRAS), "LAT"}, "three capital letters")
        self._entries.append((stay, code, amount))
        return "done"

    def pay(self, stay: int, means: str, amount: int) -> str:
        """Record a payment for a stay."""
        self._stay(stay)
        _check("means of payment", means, {word[0].upper() for word in MEANS}, "a capital letter")
        if amount <= 0:
            raise ToolException(f"a payment of {amount} is none; give what is paid")
        self._entries.append((stay, f"pay {means}", -amount))
        return "done"

    def move_guest(self, stay: int, room: int) -> str:
        """Move a stay to another room."""
        guest = self._stay(stay, "H")
        self._room(room)
        if room in self._occupied():
            raise ToolException(f"room {room} is taken by stay {self._occupied()[room]}")
        guest.room = room
        return "done"

    def check_out(self, stay: int) -> str:
        """Check out a stay."""
        self._stay(stay, "H").state = "P"
        return "done"

    def set_departure(self, stay: int, time: str) -> str:
        """Set the time of departure of a stay."""
        self._stay(stay).until = _checked_time(time)
        return "done"

    def set_status(self, room: int, status: str) -> str:
        """Set the status of a room."""
        self._room(room)
        _check("status", status, set("CDIO"), "a capital letter")
        self._status[room] = status
        return "done"

    def set_wake_up(self, room: int, time: str) -> str:
        """Set the wake-up call of a room."""
        self._room(room)
        self._wake_ups[room] = _checked_time(time)
        return "done"

    def add_note(self, about: int, department: str, text: str) -> str:
        """Leave a note about something for a department."""
        if about not in self._stays and about not in self._status:
            raise ToolException(f"there is no stay and no room {about}; call find_guest")
        _check("department", department, set("KHMR"), "a capital letter")
        self._notes.append((about, department))
        return "done"

    def _occupied(self) -> dict[int, int]:
        return {stay.room: number for number, stay in self._stays.items() if stay.state == "H"}

    def _stay(self, number: int, state: str = "PHF") -> _Stay:
        if number not in self._stays:
            raise ToolException(f"there is no stay {number}; call find_guest")
        if self._stays[number].state not in state:
            raise ToolException(f"stay {number} is not in the house; call find_guest")
        return self._stays[number]

    def _room(self, number: int) -> None:
        if number not in self._status:
            raise ToolException(
                f"there is no room {number}; rooms are such as 101; call list_rooms"
            )


def _check(what: str, value: str, known: set[str], form: str) -> None:
    if value not in known:
        raise ToolException(f"there is no {what} {value!r}; it is {form}")


def _checked_time(time: str) -> str:
    if not re.fullmatch(r"([01]\d|2[0-3])[0-5]\d", time):
        raise ToolException(f"{time!r} is no time; it is four digits")
    return time


# Making tools takes longer than a whole run of a test; those of a run are copies for its own hotel.
_TOOLS = [
    StructuredTool.from_function(getattr(Hotel(), name), handle_tool_error=True)
    for name in ("find_guest", "list_rooms", "balance", "charge", "pay", "move_guest", "check_out",
                 "set_departure", "set_status", "set_wake_up", "add_note")
]  # fmt: skip


class HotelRoom:
    """A hotel of one run."""

    def __init__(self) -> None:
        self._hotel = Hotel()
        self.tools: Sequence[BaseTool] = [
            tool.model_copy(update={"func": getattr(self._hotel, tool.name)}) for tool in _TOOLS
        ] + [answer_tool()]

    def is_solved(self, task: Task, answer: str | None) -> bool:
        """Return whether all is as the right run leaves it, and the answer right if one counts."""
        right = Hotel()
        for call in task.calls:
            getattr(right, call.name)(**call.arguments)
        is_right = answer is not None and (not task.truth or is_same_value(answer, task.truth))
        return is_right and self._hotel.state() == right.state()
