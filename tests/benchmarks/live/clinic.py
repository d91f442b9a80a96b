"""A clinic, as a world of one database.

What its schema does not tell: a patient's number is what follows P-, and those from 9000 on are for
practice and count nowhere; names are written `SURNAME, First`; doctors are their initials; wards and
tests are their first three letters; days are texts such as 23-03-14 and times are numbers such as
930; what is not over has an empty day, not null; a visit's state is 0 (booked), 1 (done), 2
(cancelled) or 3 (missed), and shares are of all that are not booked any more; results count when
`ok` is y; weights are in grams, results in tenths, cover in thousandths, money in cents without tax.
"""

from __future__ import annotations

import sqlite3
from datetime import date, datetime, timedelta
from random import Random

from tests.benchmarks.live.worlds import DatabaseWorld, Question

_SCHEMA = """
CREATE TABLE patient (pn INTEGER PRIMARY KEY, nm TEXT, wt INTEGER, cov INTEGER);
CREATE TABLE stay (sn INTEGER PRIMARY KEY, pn INTEGER, wd TEXT, bed INTEGER, frm TEXT, til TEXT);
CREATE TABLE visit (vn INTEGER PRIMARY KEY, pn INTEGER, doc TEXT, dy TEXT, hm INTEGER, len INTEGER,
                    st INTEGER);
CREATE TABLE result (rn INTEGER PRIMARY KEY, pn INTEGER, kind TEXT, val INTEGER, ok TEXT);
CREATE TABLE bill (bn INTEGER PRIMARY KEY, pn INTEGER, net INTEGER, tax INTEGER, pd TEXT);
"""
_NAMES = ("Rosa Marquez", "Siobhan O'Neill", "Tariq Aziz", "Ulla Bergman", "Vito Scala",
          "Wanda Zielinska", "Xenia Popova", "Yusuf Demir", "Anselm Roth", "Bridget D'Arcy",
          "Chidi Eze", "Delphine Moreau", "Ewan MacRae", "Farida Haidari", "Goran Ilic",
          "Hideo Mori")  # fmt: skip
_IDS = ("P-0417", "P-0033", "P-1208", "P-0950", "P-2761", "P-0086", "P-3304", "P-1999", "P-0602",
        "P-0071", "P-1515", "P-2040", "P-0129", "P-3870", "P-0744", "P-2218")  # fmt: skip
_DOCTORS = ("Ines Calloway", "Bruno Tell", "Amara Diallo", "Piet Vos", "Greta Holm", "Louis Njoku",
            "Sara Quental", "Otis Finch")  # fmt: skip
_WARDS = ("surgery", "maternity", "cardiology", "urology", "oncology", "neurology", "geriatrics",
          "dialysis")  # fmt: skip
_TESTS = ("glucose", "sodium", "ferritin", "lactate", "potassium", "urea", "albumin", "calcium")


def _initials(name: str) -> str:
    return "".join(word[0] for word in name.split())


def _short(word: str) -> str:
    return word[:3].upper()


def _written(name: str) -> str:
    first, surname = name.split()
    return f"{surname.upper()}, {first}"


def _day(days: int) -> str:
    """Return a day after 1 January 2021 as the database has it."""
    return f"{date(2021, 1, 1) + timedelta(days=days):%y-%m-%d}"


def _fill(db: sqlite3.Connection, chance: Random) -> None:
    numbers = [int(one[2:]) for one in _IDS] + list(range(4000, 4080)) + list(range(9000, 9024))
    patients = [
        (number, _written(_NAMES[n]) if n < 16 else f"PATIENT, No{number}",
         chance.randint(410, 1290) * 100, chance.randint(8, 20) * 50)
        for n, number in enumerate(numbers)
    ]  # fmt: skip
    stays: list[tuple[int, int, str, int, str, str]] = []
    beds = list(range(1, 201))
    chance.shuffle(beds)
    for number in numbers:
        # The present stay is not always the last one that was written down.
        stay_count, present = chance.randint(2, 5), chance.randrange(2 if number < 4000 else 4)
        for n in range(stay_count):
            bed = beds.pop() if n == present else chance.randint(1, 200)
            since = chance.randint(0, 1400)
            til = "" if n == present else _day(since + chance.randint(1, 20))
            ward = _short(chance.choices(_WARDS, range(4, 12))[0])
            stays.append((len(stays), number, ward, bed, _day(since), til))
    # No doctor has as many visits as another, and what becomes of them differs, too.
    visits = [
        (n, chance.choice(numbers), _initials(_DOCTORS[doctor]),
         _day(chance.randint(0, 1400)),
         chance.randint(7, 17) * 100 + chance.choice((0, 15, 30, 45)), chance.randint(2, 12) * 5,
         chance.choices(range(4), (3, 10, 1 + doctor * 3 % 8, 1 + doctor * 5 % 8))[0])
        for n, doctor in enumerate(chance.choices(range(8), range(8, 16), k=1500))
    ]  # fmt: skip
    results = [
        (n, chance.choice(numbers), _short(test), chance.randint(*((20, 99) if n % 4 else (55, 125))),
         "y" if n % 4 else "n")
        for n, test in enumerate(chance.choices(_TESTS, range(8, 16), k=700))
    ]  # fmt: skip
    nets = [(n, chance.randint(20, 400) * 100) for n in range(600)]
    bills = [
        (n, numbers[n % 16] if n < 160 else chance.choice(numbers), net, net * 8 // 100,
         "" if chance.random() < 0.4 else _day(chance.randint(0, 1400)))
        for n, net in nets
    ]  # fmt: skip
    for name, rows in (("patient", patients), ("stay", stays), ("visit", visits),
                       ("result", results), ("bill", bills)):  # fmt: skip
        marks = ", ".join("?" * len(rows[0]))
        db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_DOCTOR = {"doctor": _DOCTORS}
_WARD = {"ward": _WARDS}
_TEST = {"test": _TESTS}
_NAME = {"name": _NAMES}
_ID = {"id": _IDS[:8]}
_OTHER_ID = {"id": _IDS[8:]}
_DAY = {"day": ("14 March 2021", "2 July 2022", "30 January 2023", "11 November 2023",
                "5 May 2021", "19 February 2022", "8 October 2022", "27 August 2023")}  # fmt: skip
_TIME = {"time": ("9:30", "11:15", "2:45 pm", "4:15 pm", "8:45", "10:30", "1:15 pm", "3:45 pm")}
_LEVEL = {"level": ("4.5", "6.2", "7.8", "8.4", "3.9", "5.1", "6.6", "7.3")}
_SHARE = {"share": ("55 %", "70 %", "85 %", "95 %", "50 %", "65 %", "80 %", "90 %")}
_BY_DOCTOR = {"doctor": lambda name: _quoted(_initials(name))}
_BY_WARD = {"ward": lambda word: _quoted(_short(word))}
_BY_TEST = {"test": lambda word: _quoted(_short(word))}
_BY_NAME = {"name": lambda name: _quoted(_written(name))}
_BY_ID = {"id": lambda text: str(int(text[2:]))}
_BY_DAY = {"day": lambda text: f"'{datetime.strptime(text, '%d %B %Y'):%y-%m-%d}'"}
_BY_TIME = {
    "time": lambda text: str(
        int(text.removesuffix(" pm").replace(":", "")) + 1200 * text.endswith(" pm")
    )
}
_BY_LEVEL = {"level": lambda text: text.replace(".", "")}
_BY_SHARE = {"share": lambda text: str(int(text.split()[0]) * 10)}
_OF_NAME = "pn = (SELECT pn FROM patient WHERE nm = {name})"

_QUESTIONS = {
    "cancelled visits of a doctor": Question(
        ["cancelled visits, Dr {doctor}", "Look up how many visits to Dr {doctor} were cancelled.",
         "Dr {doctor} plans the rota. How many visits were cancelled?"],
        ["Could you kindly find out for me in how many cases a visit to Dr {doctor} was cancelled?",
         "{doctor} - total cancelled", "We talk to Dr {doctor} today. Say how many were cancelled."],
        "SELECT COUNT(*) FROM visit WHERE doc = {doctor} AND st = 2 AND pn < 9000", _DOCTOR, _BY_DOCTOR),
    "missed visits of a doctor": Question(
        ["missed visits, Dr {doctor}", "Look up how many visits to Dr {doctor} were missed.",
         "Dr {doctor} plans the rota. How many visits were missed?"],
        ["Could you kindly find out for me in how many cases a visit to Dr {doctor} was missed?",
         "{doctor} - total missed", "We talk to Dr {doctor} today. Say how many were missed."],
        "SELECT COUNT(*) FROM visit WHERE doc = {doctor} AND st = 3 AND pn < 9000", _DOCTOR, _BY_DOCTOR),
    "share of missed visits": Question(
        ["Work out the percentage of Dr {doctor}'s visits that people missed, one decimal.",
         "no-show rate in %, Dr {doctor}, one decimal"],
        ["For the yearly report I would need, if it is no trouble, what per cent of the visits to Dr "
         "{doctor} nobody came to, to one place after the point.", "{doctor}: missed visits in per cent, 0.1 exact"],
        "SELECT ROUND(100.0 * SUM(st = 3) / COUNT(*), 1) FROM visit WHERE doc = {doctor} AND st > 0"
        " AND pn < 9000", _DOCTOR, _BY_DOCTOR),
    "minutes of a doctor": Question(
        ["Add up the minutes that Dr {doctor} has spent on visits.", "minutes worked, Dr {doctor}"],
        ["I am doing the payroll. How many minutes of visits has Dr {doctor} done?",
         "Would you please be so good as to sum up the time of Dr {doctor}'s visits, in minutes?"],
        "SELECT SUM(len) FROM visit WHERE doc = {doctor} AND st = 1 AND pn < 9000", _DOCTOR, _BY_DOCTOR),
    "visits before a time": Question(
        ["Find the number of visits that were done and began before {time}.", "visits done, start < {time}"],
        ["The front desk opens late now. How many visits took place that started earlier than {time}?",
         "done visits starting ahead of {time}, please"],
        "SELECT COUNT(*) FROM visit WHERE hm < {time} AND st = 1 AND pn < 9000", _TIME, _BY_TIME),
    "visits since a day": Question(
        ["Report how many visits have been done since {day}.", "done visits, {day} or later",
         "The new wing opened on {day}. How many visits were done from that day on?"],
        ["Please be so kind as to tell me how many visits took place on or after {day}.",
         "{day} onwards: visits held"],
        "SELECT COUNT(*) FROM visit WHERE dy >= {day} AND st = 1 AND pn < 9000", _DAY, _BY_DAY),
    "bed of a patient": Question(
        ["Find the bed of {id}.", "bed number {id}?", "There are flowers for {id}. Which bed now?"],
        ["A visitor is here and asks for patient {id}; I would be grateful for the number of the bed.",
         "{id} lies where? bed no."],
        "SELECT bed FROM stay WHERE pn = {id} AND til = ''", _ID, _BY_ID),
    "patients in a ward": Question(
        ["Check how many beds are taken in {ward} at present.", "{ward}: occupied beds"],
        ["Lunch has to be ordered. How many people are in {ward} right now?",
         "Might I ask how many patients {ward} is looking after at this moment?"],
        "SELECT COUNT(*) FROM stay WHERE wd = {ward} AND til = '' AND pn < 9000", _WARD, _BY_WARD),
    "admissions to a ward": Question(
        ["Count all stays admitted to {ward} so far.", "{ward}, admitted, total",
         "The board meets. How many stays were ever admitted to {ward}?"],
        ["Might you have a moment to tell me the number of admissions that {ward} has had in all?",
         "all-time admissions / {ward}"],
        "SELECT COUNT(*) FROM stay WHERE wd = {ward} AND pn < 9000", _WARD, _BY_WARD),
    "discharges from a ward": Question(
        ["Count all stays discharged from {ward} so far.", "{ward}, discharged, total",
         "The board meets. How many stays were ever discharged from {ward}?"],
        ["Might you have a moment to tell me the number of discharges that {ward} has had in all?",
         "all-time discharges / {ward}"],
        "SELECT COUNT(*) FROM stay WHERE wd = {ward} AND til <> '' AND pn < 9000", _WARD, _BY_WARD),
    "results above a level": Question(
        ["Count the {test} results above {level}.", "{test} > {level}, how many"],
        ["The laboratory checks its limits. How many valid {test} values are higher than {level}?",
         "I wonder whether you could tell me how often {test} exceeded {level}."],
        "SELECT COUNT(*) FROM result WHERE kind = {test} AND val > {level} AND ok = 'y' AND pn < 9000",
        {**_TEST, **_LEVEL}, {**_BY_TEST, **_BY_LEVEL}),
    "average of a test": Question(
        ["Compute the mean {test} result, two decimals.", "avg {test}"],
        ["A student asks what {test} is usually like here. What is the average value?",
         "Please let me know, rounded to two decimals, around which value {test} lies on average."],
        "SELECT ROUND(AVG(val) / 10.0, 2) FROM result WHERE kind = {test} AND ok = 'y' AND pn < 9000",
        _TEST, _BY_TEST),
    "weight of a patient": Question(
        ["Give the weight of {id} in kg.", "{id} weight kg", "Dose depends on weight. {id} has how many kg?"],
        ["Before the operation we need to know how heavy {id} is. Kilograms, please.",
         "Could you look up for me how many kilos patient {id} weighs?"],
        "SELECT wt / 1000.0 FROM patient WHERE pn = {id}", _OTHER_ID, _BY_ID),
    "unpaid bills of a patient": Question(
        ["Add up the unpaid bills of {name}, in euros.", "{name}: unpaid, euros",
         "{name} is on the phone. What is the sum of the unpaid bills, in euros?"],
        ["I should be very thankful for the amount in euros that {name} has not paid.",
         "not paid by {name} (EUR)"],
        f"SELECT ROUND(SUM(net + tax) / 100.0, 2) FROM bill WHERE {_OF_NAME} AND pd = ''", _NAME, _BY_NAME),
    "paid bills of a patient": Question(
        ["Add up the paid bills of {name}, in euros.", "{name}: paid, euros",
         "{name} is on the phone. What is the sum of the paid bills, in euros?"],
        ["I should be very thankful for the amount in euros that {name} has paid.",
         "already paid by {name} (EUR)"],
        f"SELECT ROUND(SUM(net + tax) / 100.0, 2) FROM bill WHERE {_OF_NAME} AND pd <> ''", _NAME, _BY_NAME),
    "patients with a cover": Question(
        ["List the number of patients whose insurance covers {share} or more.", "cover >= {share}: patients"],
        ["The insurers changed their rules. How many patients have a cover of at least {share}?",
         "May I trouble you for the number of people with no less than {share} insured?"],
        "SELECT COUNT(*) FROM patient WHERE cov >= {share} AND pn < 9000", _SHARE, _BY_SHARE),
}  # fmt: skip

CLINIC = DatabaseWorld(
    name="clinic",
    instructions="You look things up in the database of a clinic. Make one call at a time. When you "
    "know what was asked for, hand it in with the tool `answer`.",
    schema=_SCHEMA,
    fill=_fill,
    questions=_QUESTIONS,
)
