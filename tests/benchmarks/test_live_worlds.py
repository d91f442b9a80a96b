"""The live benchmark's worlds: right runs solve their tasks, and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.tools import BaseTool, ToolException

from tests.benchmarks.live.clinic import CLINIC
from tests.benchmarks.live.hotel import HOTEL
from tests.benchmarks.live.hotel_tools import HotelRoom
from tests.benchmarks.live.library import LIBRARY
from tests.benchmarks.live.worlds import ANSWER, Call, Room, Task, World, choose, is_same_value

WORLDS: Sequence[World] = (LIBRARY, CLINIC, HOTEL)
KINDS = [
    pytest.param(world, kind, id=f"{world.name}: {kind}")
    for world in WORLDS
    for kind in world.kinds
]
any_kind = pytest.mark.parametrize(("world", "kind"), KINDS)
DONE = "done"


ROOMS: dict[str, Any] = {}


def fresh(world: Any) -> Any:
    """Return a world as a run finds it; runs only read databases, so that one room does for all."""
    if world is HOTEL:
        return world.open()
    if world.name not in ROOMS:
        ROOMS[world.name] = world.open()
    return ROOMS[world.name]


def tools_of(room: Room) -> Mapping[str, BaseTool]:
    """Return a room's tools, which raise their errors here."""
    for tool in room.tools:
        tool.handle_tool_error = False
    return {tool.name: tool for tool in room.tools}


def solves(room: Room, calls: Sequence[Call], task: Task, answer: str = "") -> bool:
    tools = tools_of(room)
    for call in calls:
        tools[call.name].invoke(dict(call.arguments))
    value = tools[ANSWER].invoke({"value": answer or task.truth or DONE})
    return room.is_solved(task, value)


@any_kind
def test_a_right_run_solves_its_task(world: Any, kind: str) -> None:
    for number, is_kept in ((0, True), (1, False)):
        task = world.task(kind, number, is_kept=is_kept)
        room = fresh(world)

        assert solves(room, task.calls, task), task
        assert not room.is_solved(task, None)
        assert task.truth not in {"None", "0", "0.0"}, "nothing to find"


OTHERS = ((1, False), (0, True))


@any_kind
def test_another_task_of_the_kind_does_not(world: Any, kind: str) -> None:
    task = world.task(kind, 0, is_kept=False)
    others = [world.task(kind, number, is_kept=is_kept) for number, is_kept in OTHERS]
    others = [other for other in others if not task.truth or other.truth != task.truth]

    assert others, "an answer that was remembered is always right"
    for other in others:
        assert not solves(fresh(world), other.calls, task, other.truth), (task, other)


@any_kind
def test_kept_and_asked_tasks_have_nothing_in_common(world: Any, kind: str) -> None:
    question = world.questions[kind]
    for one, other in (("kept", "asked"), ("asked", "kept")):
        own = {wording.casefold() for wording in getattr(question, one)}
        assert len(own) == len(getattr(question, one)) > 1
        assert own.isdisjoint(wording.casefold() for wording in getattr(question, other))
    values = [
        [choose(question.values, number, is_kept=is_kept) for number in range(20)]
        for is_kept in (True, False)
    ]
    assert question.values
    for name in question.values:
        kept, asked = ({each[name] for each in half} for half in values)
        assert kept.isdisjoint(asked)
        assert len(kept) > 1
        assert len(asked) > 1
    texts = [
        {world.task(kind, number, is_kept=is_kept).text for number in range(4)}
        for is_kept in (True, False)
    ]
    assert texts[0].isdisjoint(texts[1])
    assert not any("{" in text for text in texts[0] | texts[1])


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_tasks_are_the_same_each_time(world: Any) -> None:
    again = replace(world)
    for kind in world.kinds:
        task = world.task(kind, 3, is_kept=False)
        assert again.task(kind, 3, is_kept=False) == task


@pytest.mark.parametrize("world", [LIBRARY, CLINIC], ids=lambda world: world.name)
def test_a_run_cannot_change_a_database(world: Any) -> None:
    tools = tools_of(fresh(world))
    table = tools["list_tables"].invoke({}).split(", ")[0]

    with pytest.raises(ToolException, match="readonly"):
        tools["run_sql"].invoke({"query": f"DELETE FROM {table}"})  # noqa: S608 - a name of its own


@pytest.mark.parametrize(
    ("answer", "truth", "is_same"),
    [
        ("12.50 euros", "12.5", True),
        ("1,208.76", "1208.76", True),
        ("-12.5", "12.5", False),
        ("12 of 13", "12", False),
        ("", "12", False),
        ("salt 6", "Salt 6", True),
        ("Red Harbour 6", "Salt 6", False),
        ("Salt", "Salt 6", False),
    ],
)
def test_an_answer_is_a_number_or_words(answer: str, truth: str, is_same: bool) -> None:
    assert is_same_value(answer, truth) == is_same


# ------------------------------------------------------------------ the conventions matter

NAIVE = {
    "cancelled visits of a doctor": "SELECT COUNT(*) FROM visit WHERE doc = {doctor} AND st = 3",
    "missed visits of a doctor": "SELECT COUNT(*) FROM visit WHERE doc = {doctor} AND st = 2",
    "share of missed visits": "SELECT ROUND(100.0 * SUM(st = 3) / COUNT(*), 1) FROM visit"
                              " WHERE doc = {doctor}",
    "minutes of a doctor": "SELECT SUM(len) FROM visit WHERE doc = {doctor}",
    "visits before a time": "SELECT COUNT(*) FROM visit WHERE hm < {time}",
    "visits since a day": "SELECT COUNT(*) FROM visit WHERE dy >= {day}",
    "bed of a patient": "SELECT bed FROM stay WHERE pn = {id} AND til IS NULL",
    "patients in a ward": "SELECT COUNT(*) FROM stay WHERE wd = {ward} AND til IS NULL",
    "admissions to a ward": "SELECT COUNT(*) FROM stay WHERE wd = {ward}",
    "discharges from a ward": "SELECT COUNT(*) FROM stay WHERE wd = {ward} AND til IS NOT NULL",
    "results above a level": "SELECT COUNT(*) FROM result WHERE kind = {test} AND val > {level}",
    "average of a test": "SELECT ROUND(AVG(val) / 10.0, 2) FROM result WHERE kind = {test}",
    "weight of a patient": "SELECT wt FROM patient WHERE pn = {id}",
    "unpaid bills of a patient": "SELECT SUM(net) / 100.0 FROM bill JOIN patient USING (pn)"
                                 " WHERE nm = {name} AND pd = ''",
    "paid bills of a patient": "SELECT SUM(net) / 100.0 FROM bill JOIN patient USING (pn)"
                               " WHERE nm = {name} AND pd <> ''",
    "patients with a cover": "SELECT COUNT(*) FROM patient WHERE cov >= {share}",
}  # fmt: skip
"""Obvious statements, with values already written as the clinic does."""


@pytest.mark.parametrize("kind", CLINIC.kinds)
def test_whoever_knows_the_codes_but_no_other_convention_of_the_clinic_is_wrong(kind: str) -> None:
    question, room = CLINIC.questions[kind], fresh(CLINIC)
    for number in range(4):
        task = CLINIC.task(kind, number, is_kept=False)
        query = NAIVE[kind].format(**{
            name: question.as_sql[name](value)
            for name, value in choose(question.values, number, is_kept=False).items()
        })  # fmt: skip
        assert not room.is_solved(task, tools_of(room)["run_sql"].invoke({"query": query}))


@pytest.mark.parametrize("kind", HOTEL.kinds)
def test_whoever_leaves_a_change_of_the_hotel_out_has_not_solved_its_task(kind: str) -> None:
    task = HOTEL.task(kind, 0, is_kept=False)
    for at, call in enumerate(task.calls):
        if call.name not in {"find_guest", "list_rooms", "balance"}:
            calls = [*task.calls[:at], *task.calls[at + 1 :]]
            assert not solves(HOTEL.open(), calls, task), call


@pytest.mark.parametrize("kind", ["move a guest", "what a guest owes"])
def test_nothing_else_of_the_hotel_may_change(kind: str) -> None:
    task = HOTEL.task(kind, 0, is_kept=False)
    unasked = Call("set_status", {"room": 101, "status": "O"})
    assert not solves(HOTEL.open(), [*task.calls, unasked], task)


def changed(kind: str, name: str, **arguments: Any) -> tuple[Task, list[Call]]:
    """Return a task of the hotel and its right run, where a call has some other arguments."""
    task = HOTEL.task(kind, 0, is_kept=False)
    assert any(call.name == name for call in task.calls)
    return task, [
        Call(name, {**call.arguments, **arguments}) if call.name == name else call
        for call in task.calls
    ]


def stay_in(state: str, task: Task) -> int:
    """Return another stay of the guest of a task."""
    stays = tools_of(HOTEL.open())["find_guest"].invoke(dict(task.calls[0].arguments)).split("; ")
    ((number, _),) = (stay[5:].split(":") for stay in stays if stay.endswith(state))
    return int(number)


def test_a_note_may_be_worded_freely_but_is_about_one_thing() -> None:
    task, calls = changed("tell the kitchen", "add_note", text="Please leave the soy away!")
    assert solves(HOTEL.open(), calls, task)
    past = stay_in("P", task)
    assert not solves(HOTEL.open(), changed("tell the kitchen", "add_note", about=past)[1], task)


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("charge an extra", "charge", {"amount": 23}),
        ("refund an extra", "charge", {"amount": 2290}),
        ("something broken", "add_note", {"department": "H"}),
        ("something repaired", "set_status", {"status": "I"}),
        ("wake a guest", "set_wake_up", {"time": "1940"}),
        ("late departure", "charge", {"amount": 20}),
        ("check out", "set_status", {"status": "C"}),
        ("check out", "pay", {"amount": 322}),
    ],
)
def test_whoever_guesses_is_wrong(kind: str, name: str, arguments: Mapping[str, Any]) -> None:
    task, calls = changed(kind, name, **arguments)
    assert not solves(HOTEL.open(), calls, task)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("find_guest", {"name": "Carla"}, "no guest 'Carla'"),
        ("list_rooms", {"floor": 9}, "no floor 9"),
        ("balance", {"stay": 1}, "no stay 1"),
        ("charge", {"code": "laundry", "amount": 1}, "no code 'laundry'"),
        ("pay", {"means": "card", "amount": 1}, "no means of payment 'card'"),
        ("pay", {"means": "C", "amount": -5}, "payment of -5"),
        ("move_guest", {"room": 113}, "no room 113"),
        ("move_guest", {"room": 101}, "taken by stay"),
        ("set_departure", {"time": "2 pm"}, "'2 pm' is no time"),
        ("set_wake_up", {"room": 101, "time": "2630"}, "'2630' is no time"),
        ("set_status", {"room": 101, "status": "dirty"}, "no status 'dirty'"),
        ("add_note", {"about": 1, "department": "K", "text": ""}, "no stay and no room 1"),
        ("add_note", {"about": 101, "department": "kitchen", "text": ""}, "no department"),
    ],
)
def test_the_hotel_says_what_was_wrong_and_changes_nothing(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    task = HOTEL.task("number of a stay", 0, is_kept=False)
    room = HotelRoom()
    tool = tools_of(room)[name]
    if "stay" in tool.args:
        arguments = {"stay": int(task.truth), **arguments}

    with pytest.raises(ToolException, match=message):
        tool.invoke(arguments)

    assert room.is_solved(task, task.truth)


def test_only_who_is_in_the_house_moves_or_leaves() -> None:
    task = HOTEL.task("check out", 0, is_kept=False)
    tools = tools_of(HOTEL.open())
    for name, more in (("check_out", {}), ("move_guest", {"room": 101})):
        with pytest.raises(ToolException, match="not in the house"):
            tools[name].invoke({"stay": stay_in("P", task), **more})
