"""A hotel, as a world whose tools look up and change what is in memory.

What its tools do not tell: of a guest's stays, the one in state H (in the house) is meant, not those
in P (past) or F (future); codes of extras are three capital letters, departments, means and states
one; amounts are in cents, a refund is a negative charge, and what a guest owes is a negative balance;
times are such as 0630, and 0000 is no wake-up call; a room that a guest leaves, by a move or for
good, gets dirty (D), and one that was repaired is dirty, too; a guest pays before the check-out; late
departure costs LAT 2000; notes to the kitchen are about stays, others about rooms; a room is ready
when it is inspected (I) and empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.benchmarks.live.hotel_tools import (
    BROKEN,
    CLEAN,
    DIRTY,
    EXTRAS,
    FREE,
    FULL,
    MEANS,
    NAMES,
    Hotel,
    HotelRoom,
    code_of,
)
from tests.benchmarks.live.worlds import Call, Task, choose


@dataclass(frozen=True)
class Case:
    """What the calls of a right run are made from.

    Attributes:
        values: By name, the values of the wording.
        stay: The number of the guest's present stay; 0 if the task names no guest.
        room: The guest's room, else that of the wording; 0 if it names none.
        owed: What the guest owes, in cents.
    """

    values: Mapping[str, str]
    stay: int = 0
    room: int = 0
    owed: int = 0

    @property
    def cents(self) -> int:
        """The price of the wording, in cents."""
        return round(float(self.values["price"]) * 100)

    @property
    def time(self) -> str:
        """The time of the wording, as the tools have it."""
        text = self.values["time"]
        return f"{datetime.strptime(text, '%I:%M %p' if ':' in text else '%I %p'):%H%M}"


@dataclass(frozen=True)
class Errand:
    """A kind of task of the hotel.

    Attributes:
        kept: Wordings of those that runs were kept of; `{name}` stands for a value.
        asked: Wordings of those that are asked later.
        calls: Returns the calls of the right run, after the guest has been looked up.
        values: By name, what it may be. The first half is of tasks that runs were kept of.
        truth: Returns the value of the right answer, if one counts.
    """

    kept: Sequence[str]
    asked: Sequence[str]
    calls: Callable[[Case], Sequence[Call]]
    values: Mapping[str, Sequence[str]]
    truth: Callable[[Case], str] = lambda _: ""


@dataclass(frozen=True)
class HotelWorld:
    """A world of one hotel.

    Attributes:
        name: Its name.
        instructions: The system prompt.
        questions: The kinds of tasks, by name.
    """

    name: str
    instructions: str
    questions: Mapping[str, Errand]

    @property
    def kinds(self) -> Sequence[str]:
        """The names of its kinds of tasks."""
        return tuple(self.questions)

    def task(self, kind: str, number: int, *, is_kept: bool) -> Task:
        """Return a task; see `World`."""
        errand = self.questions[kind]
        wordings = errand.kept if is_kept else errand.asked
        values = choose(errand.values, number, is_kept=is_kept)
        calls, case = [], Case(values, room=int(values.get("room", 0)))
        if "name" in values:
            hotel = Hotel()
            stay, room = hotel.present_stay(values["name"])
            case = Case(values, stay, room, -int(hotel.balance(stay)))
            calls.append(Call("find_guest", {"name": values["name"]}))
        calls += errand.calls(case)
        text = wordings[number % len(wordings)].format(**values)
        return Task(kind, text, calls, errand.truth(case))

    def open(self) -> HotelRoom:
        """Return the hotel as a run finds it."""
        return HotelRoom()


def _charge(case: Case, code: str, cents: int) -> Call:
    return Call("charge", {"stay": case.stay, "code": code, "amount": cents})


def _status(room: int, status: str) -> Call:
    return Call("set_status", {"room": room, "status": status})


def _wake_up(case: Case, time: str) -> Call:
    return Call("set_wake_up", {"room": case.room, "time": time})


def _note(about: int, department: str, text: str) -> Call:
    return Call("add_note", {"about": about, "department": department, "text": text})


def _move(case: Case) -> Call:
    return Call("move_guest", {"stay": case.stay, "room": int(case.values["to"])})


def _balance(case: Case) -> Call:
    return Call("balance", {"stay": case.stay})


def _leave(case: Case) -> list[Call]:
    means = case.values["means"][0].upper()
    paid = Call("pay", {"stay": case.stay, "means": means, "amount": case.owed})
    gone = Call("check_out", {"stay": case.stay})
    return [_balance(case), paid, gone, _status(case.room, "D")]


def _stay_until(case: Case) -> list[Call]:
    until = Call("set_departure", {"stay": case.stay, "time": case.time})
    return [until, _charge(case, "LAT", 2000)]


def _floor(case: Case) -> int:
    return _FLOORS.index(case.values["floor"]) + 1


_FLOORS = ("first", "second", "third", "fourth", "fifth", "sixth")
_NAME = {"name": NAMES[:16]}
_EXTRA = {"extra": EXTRAS}
_PRICE = {"price": ("12.50", "9.80", "31.00", "7.25", "18.40", "5.60", "22.90", "44.00")}
_THING = {"thing": ("shower", "lamp", "heating", "window", "lock", "telephone", "sink", "blind")}
_MORNING = {"time": ("6:30 am", "7:15 am", "5:45 am", "8:20 am", "6:45 am", "7:40 am", "5:10 am",
                     "8:35 am")}  # fmt: skip
_LATE = {"time": ("1 pm", "2:30 pm", "4 pm", "3:15 pm", "1:45 pm", "2 pm", "3 pm", "5:30 pm")}
_FOOD = {"food": ("nuts", "milk", "eggs", "fish", "wheat", "soy", "celery", "sesame")}
_NEED = {"need": ("two more pillows", "a cot", "fresh towels", "an iron", "a kettle", "slippers",
                  "a hair dryer", "a second blanket")}  # fmt: skip


def _rooms(rooms: Sequence[int]) -> Sequence[str]:
    return [str(room) for room in rooms]


_ERRANDS = {
    "charge an extra": Errand(
        ["Charge {name} {price} euros for {extra}.", "{name} had {extra}: charge {price} EUR, please."],
        ["Would you mind charging {price} euros to {name}? It is for {extra}.", "{extra}, {name}, charge, EUR {price}"],
        lambda c: [_charge(c, code_of(c.values["extra"]), c.cents)], {**_NAME, **_EXTRA, **_PRICE}),
    "refund an extra": Errand(
        ["Refund {name} {price} euros for {extra}.", "{name} had {extra}: refund {price} EUR, please."],
        ["Would you mind refunding {price} euros to {name}? It is for {extra}.", "{extra}, {name}, refund, EUR {price}"],
        lambda c: [_charge(c, code_of(c.values["extra"]), -c.cents)], {**_NAME, **_EXTRA, **_PRICE}),
    "move a guest": Errand(
        ["Move {name} to room {to}.", "The neighbours are loud. Give {name} room {to} instead."],
        ["Could {name} please have another room, namely {to}?", "new room for {name}: {to}"],
        lambda c: [_move(c), _status(c.room, "D")], {**_NAME, "to": _rooms(FREE)}),
    "room cleaned": Errand(
        ["Room {room} has been cleaned.", "cleaned: {room}"],
        ["The staff is done upstairs; {room} is cleaned now.", "Kindly put down that they cleaned {room}."],
        lambda c: [_status(c.room, "C")], {"room": _rooms(DIRTY)}),
    "room inspected": Errand(
        ["Room {room} has been inspected.", "inspected: {room}"],
        ["The staff is done upstairs; {room} is inspected now.", "Kindly put down that they inspected {room}."],
        lambda c: [_status(c.room, "I")], {"room": _rooms(CLEAN)}),
    "something broken": Errand(
        ["The {thing} in {room} is broken.", "{room}: {thing} broken"],
        ["Someone rang about room {room}. Its {thing} does not work any more.", "Please see to the {thing} of {room}, which is out of order."],
        lambda c: [_status(c.room, "O"), _note(c.room, "M", f"{c.values['thing']} broken")],
        {**_THING, "room": _rooms(FULL[1:17:2])}),
    "something repaired": Errand(
        ["The {thing} in {room} is repaired.", "{room}: {thing} repaired"],
        ["The electrician has left room {room}. Its {thing} works again.", "Please note that the {thing} of {room} is in order once more."],
        lambda c: [_status(c.room, "D")], {**_THING, "room": _rooms(BROKEN)}),
    "wake a guest": Errand(
        ["Wake {name} at {time}.", "wake-up call, {name}, {time}"],
        ["{name} has an early train. Ring at {time}, please.", "I would be glad if you had {name} called at {time}."],
        lambda c: [_wake_up(c, c.time)], {**_NAME, **_MORNING}),
    "wake a guest no more": Errand(
        ["Do not wake {name}.", "no wake-up call, {name}"],
        ["{name} wants to sleep in. Take the morning call off.", "I would be glad if you had {name} not called."],
        lambda c: [_wake_up(c, "0000")], _NAME),
    "late departure": Errand(
        ["Let {name} stay until {time} on the last day.", "late departure {time} for {name}"],
        ["The flight is in the evening. {name} may leave as late as {time}.", "Might {name} possibly keep the room till {time} on the day of departure?"],
        _stay_until, {**_NAME, **_LATE}),
    "check out": Errand(
        ["Check out {name}, who pays by {means}.", "{name} leaves. Settle by {means} and check out."],
        ["The taxi waits for {name}: everything by {means}, then good-bye.", "departure now, {name}, {means}"],
        _leave, {**_NAME, "means": MEANS}),
    "tell the kitchen": Errand(
        ["{name} must not eat {food}. Tell the kitchen.", "kitchen: no {food} for {name}"],
        ["Those who cook should please be aware that {food} makes {name} ill.", "allergy, {name}, {food}, inform cooks"],
        lambda c: [_note(c.stay, "K", f"no {c.values['food']}")], {**_NAME, **_FOOD}),
    "tell housekeeping": Errand(
        ["{name} needs {need}. Tell housekeeping.", "housekeeping: {need} for {name}"],
        ["Those who do the rooms should please bring {name} {need}.", "request, {name}, {need}, inform maids"],
        lambda c: [_note(c.room, "H", c.values["need"])], {**_NAME, **_NEED}),
    "what a guest owes": Errand(
        ["How much does {name} owe, in euros?", "open amount of {name}, EUR"],
        ["{name} asks what there is to pay in the end. Euros, please.", "Would you tell me the euros on the bill of {name}?"],
        lambda c: [_balance(c)], _NAME, lambda c: f"{c.owed / 100:.2f}"),
    "number of a stay": Errand(
        ["Give the number of the stay of {name}.", "stay no. of {name}"],
        ["A parcel came for {name}. Under which number is this guest with us?", "Under what number do we have {name}, please?"],
        lambda c: [], _NAME, lambda c: str(c.stay)),
    "ready rooms of a floor": Errand(
        ["How many rooms are ready on the {floor} floor?", "ready rooms, {floor} floor"],
        ["A group comes without a booking. How many could move in right now on the {floor} floor?",
         "Please count for me what we can let at once, {floor} floor."],
        lambda c: [Call("list_rooms", {"floor": _floor(c)})], {"floor": _FLOORS},
        lambda c: str(Hotel().ready_rooms(_floor(c)))),
}  # fmt: skip

HOTEL = HotelWorld(
    name="hotel",
    instructions="You work at the front desk of a hotel. Do what you are told with the tools, one call "
    "at a time, nothing else. When it is done, or you know what was asked for, call `answer`.",
    questions=_ERRANDS,
)
