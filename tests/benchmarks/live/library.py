"""A public library, as a world of one database.

What its schema does not tell: media, branches and levels are letters; prices and fines are in cents;
days are numbers such as 20240131; a loan is open while `back` is null; items with `gone` = 1 are no
longer there; members of level X are staff, who count in no statistics; only fines of state 0 are
owed.
"""

from __future__ import annotations

import sqlite3
from datetime import date, timedelta
from random import Random

from tests.benchmarks.live.worlds import DatabaseWorld, Question

_SCHEMA = """
CREATE TABLE item (id INTEGER PRIMARY KEY, title TEXT, medium TEXT, br TEXT, price INTEGER,
                   acq INTEGER, gone INTEGER);
CREATE TABLE member (id INTEGER PRIMARY KEY, name TEXT, lvl TEXT, br TEXT, since INTEGER);
CREATE TABLE loan (id INTEGER PRIMARY KEY, item INTEGER, member INTEGER, out INTEGER, due INTEGER,
                   back INTEGER, ren INTEGER);
CREATE TABLE fine (id INTEGER PRIMARY KEY, loan INTEGER, amt INTEGER, state INTEGER);
"""
_NAMES = ("Ada Brandt", "Boris Keller", "Cleo Marsh", "Dora Lind", "Emil Voss", "Fay Okoro",
          "Gus Petrov", "Hana Sato", "Ivo Moretti", "June Abel", "Kai Winter", "Lea Dubois",
          "Max Tran", "Nora Quist", "Otto Reyes", "Pia Lang")  # fmt: skip
_TITLES = ("Red Harbour", "The Long Field", "Night Train", "Glass Rivers", "Salt", "Winter Bees",
           "Paper Moons", "A Quiet Hill", "Iron Gardens", "Low Tide", "The Ninth Door", "Ember",
           "Blue Orchard", "Far Lanterns", "Stone Letters", "Warm Rain")  # fmt: skip
_MEDIA = {"books": "'B'", "films": "'F'", "games": "'G'", "maps": "'M'"}
_BRANCHES = {"north": "'N'", "south": "'S'", "east": "'E'", "harbour": "'H'"}
_LEVELS = {"adult": "'A'", "junior": "'J'", "senior": "'S'", "guest": "'G'"}


def _date(days: int) -> int:
    """Return a day after 1 January 2020 as the database has it."""
    return int(f"{date(2020, 1, 1) + timedelta(days=days):%Y%m%d}")


def _fill(db: sqlite3.Connection, chance: Random) -> None:
    branches, levels = "NSEH", "AAJSGX"
    items = [
        (n, _TITLES[n % 16] + (f" {n // 16 + 1}" if n >= 16 else ""), chance.choice("BFGM"),
         chance.choice(branches), chance.randint(400, 6000), _date(chance.randint(0, 2100)),
         int(chance.random() < 0.2))
        for n in range(160)
    ]  # fmt: skip
    members = [
        (n, _NAMES[n % 16] + (f" {n // 16 + 1}" if n >= 16 else ""), chance.choice(levels),
         chance.choice(branches), _date(chance.randint(0, 2100)))
        for n in range(64)
    ]  # fmt: skip
    loans = []
    for n in range(600):
        out = chance.randint(0, 2150)
        back = out + chance.randint(1, 50) if chance.random() < 0.75 else None
        loans.append((n, chance.randrange(160), chance.randrange(64) if n % 3 else n // 3 % 16,
                      _date(out), _date(out + 28), None if back is None else _date(back), chance.randint(0, 3)))  # fmt: skip
    fines = [(n, n * 4, chance.randint(50, 900), chance.randint(0, 2)) for n in range(150)]
    for name, rows in (("item", items), ("member", members), ("loan", loans), ("fine", fines)):
        marks = ", ".join("?" * len(rows[0]))
        db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)


def _quoted(text: str) -> str:
    return f"'{text}'"


def _day(text: str) -> str:
    return text.replace("-", "")


_MEDIUM = {"medium": tuple(_MEDIA)}
_BRANCH = {"branch": tuple(_BRANCHES)}
_LEVEL = {"level": tuple(_LEVELS)}
_NAME = {"name": _NAMES}
_TITLE = {"title": _TITLES}
_DATE = {"day": ("2021-03-01", "2022-07-15", "2023-01-10", "2024-02-20", "2021-09-30", "2022-11-11",
                 "2023-06-05", "2024-10-01")}  # fmt: skip
_NUMBER = {"n": ("5", "8", "12", "15", "3", "7", "9", "11")}
_EUROS = {"n": ("10", "25", "40", "15", "20", "30", "35", "50")}
_BY_MEDIUM = {"medium": _MEDIA.__getitem__}
_BY_BRANCH = {"branch": _BRANCHES.__getitem__}
_BY_LEVEL = {"level": _LEVELS.__getitem__}
_BY_NAME = {"name": _quoted}
_BY_TITLE = {"title": _quoted}
_BY_DAY = {"day": _day}

_QUESTIONS = {
    "items of a medium": Question(
        ["How many {medium} do we have?", "Give me the number of {medium}."],
        ["Count our {medium}.", "What is the size of our collection of {medium}?"],
        "SELECT COUNT(*) FROM item WHERE medium = {medium} AND gone = 0", _MEDIUM, _BY_MEDIUM),
    "items of a branch": Question(
        ["How many items stand in the {branch} branch?", "Number of items at {branch}?"],
        ["What does the {branch} branch hold, in items?", "Count what is on the shelves at {branch}."],
        "SELECT COUNT(*) FROM item WHERE br = {branch} AND gone = 0", _BRANCH, _BY_BRANCH),
    "value of a medium": Question(
        ["What are our {medium} worth, in euros?", "Total price of the {medium} in euros?"],
        ["How much money is in our {medium} (euros)?", "Sum up the value of all {medium} in euros."],
        "SELECT ROUND(SUM(price) / 100.0, 2) FROM item WHERE medium = {medium} AND gone = 0",
        _MEDIUM, _BY_MEDIUM),
    "items above a price": Question(
        ["How many items cost more than {n} euros?", "Number of items above {n} euros?"],
        ["Count everything dearer than {n} euros.", "How much of our stock is priced over {n} euros, in items?"],
        "SELECT COUNT(*) FROM item WHERE price > {n} * 100 AND gone = 0", _EUROS),
    "dearest of a branch": Question(
        ["Which title at the {branch} branch is the most expensive?", "Most expensive title in {branch}?"],
        ["Name the dearest title that {branch} has.", "What costs the most at the {branch} branch? Give its title."],
        "SELECT title FROM item WHERE br = {branch} AND gone = 0 ORDER BY price DESC LIMIT 1",
        _BRANCH, _BY_BRANCH),
    "items bought since": Question(
        ["How many items were bought since {day}?", "Number of items acquired from {day} on?"],
        ["Count the acquisitions after and including {day}.", "What did we purchase since {day}, in items?"],
        "SELECT COUNT(*) FROM item WHERE acq >= {day} AND gone = 0", _DATE, _BY_DAY),
    "members of a level": Question(
        ["How many {level} members do we have?", "Number of {level} members?"],
        ["Count the members that are {level}.", "How large is the group of {level} members?"],
        "SELECT COUNT(*) FROM member WHERE lvl = {level}", _LEVEL, _BY_LEVEL),
    "members of a branch": Question(
        ["How many members has the {branch} branch?", "Number of members at {branch}?"],
        ["Count the people enrolled at {branch}.", "What is the membership of the {branch} branch?"],
        "SELECT COUNT(*) FROM member WHERE br = {branch} AND lvl <> 'X'", _BRANCH, _BY_BRANCH),
    "members since": Question(
        ["How many members joined since {day}?", "Number of members that signed up from {day} on?"],
        ["Count the sign-ups since {day}.", "How many people became members on {day} or later?"],
        "SELECT COUNT(*) FROM member WHERE since >= {day} AND lvl <> 'X'", _DATE, _BY_DAY),
    "open loans of a member": Question(
        ["How many loans has {name} open?", "How many items does {name} have at home?"],
        ["What has {name} not brought back yet, in items?", "Count {name}'s running loans."],
        "SELECT COUNT(*) FROM loan WHERE member = (SELECT id FROM member WHERE name = {name})"
        " AND back IS NULL", _NAME, _BY_NAME),
    "loans of a member": Question(
        ["How many loans did {name} ever make?", "Number of all loans of {name}?"],
        ["Count every loan by {name}.", "How often has {name} borrowed something?"],
        "SELECT COUNT(*) FROM loan WHERE member = (SELECT id FROM member WHERE name = {name})",
        _NAME, _BY_NAME),
    "fines of a member": Question(
        ["How much does {name} owe in fines, in euros?", "Open fines of {name} in euros?"],
        ["What must {name} still pay (euros)?", "Give the debt of {name} in euros."],
        "SELECT ROUND(COALESCE(SUM(amt), 0) / 100.0, 2) FROM fine WHERE state = 0 AND loan IN"
        " (SELECT id FROM loan WHERE member = (SELECT id FROM member WHERE name = {name}))",
        _NAME, _BY_NAME),
    "loans of a title": Question(
        ["How often was {title} lent?", "Number of loans of {title}?"],
        ["Count how many times {title} went out.", "How popular is {title}, in loans?"],
        "SELECT COUNT(*) FROM loan WHERE item = (SELECT id FROM item WHERE title = {title})",
        _TITLE, _BY_TITLE),
    "price of a title": Question(
        ["What does {title} cost, in euros?", "Price of {title} in euros?"],
        ["How much did we pay for {title} (euros)?", "Tell me the euros that {title} is worth."],
        "SELECT price / 100.0 FROM item WHERE title = {title}", _TITLE, _BY_TITLE),
    "branch of a title": Question(
        ["Which branch has {title}? Give its letter.", "Letter of the branch where {title} stands?"],
        ["Where do I find {title}? Answer with the branch's letter.", "At which branch (letter) is {title}?"],
        "SELECT br FROM item WHERE title = {title}", _TITLE, _BY_TITLE),
    "open loans of a medium": Question(
        ["How many {medium} are lent out now?", "Number of {medium} out at the moment?"],
        ["Count the {medium} that are not back yet.", "What number of {medium} is with members today?"],
        "SELECT COUNT(*) FROM loan JOIN item ON item.id = loan.item WHERE medium = {medium}"
        " AND back IS NULL", _MEDIUM, _BY_MEDIUM),
    "late returns of a branch": Question(
        ["How many loans of {branch} items came back late?", "Number of late returns of items of {branch}?"],
        ["Count loans of the {branch} branch's items that were returned after their due day.",
         "How often was something of {branch} brought back too late?"],
        "SELECT COUNT(*) FROM loan JOIN item ON item.id = loan.item WHERE br = {branch}"
        " AND back > due", _BRANCH, _BY_BRANCH),
    "loans since": Question(
        ["How many loans began since {day}?", "Number of loans from {day} on?"],
        ["Count what was lent on {day} or later.", "How much lending was there since {day}, in loans?"],
        "SELECT COUNT(*) FROM loan WHERE out >= {day}", _DATE, _BY_DAY),
    "renewals of a member": Question(
        ["How many renewals has {name} in all?", "Total renewals of {name}?"],
        ["Add up how often {name} extended loans.", "Sum of {name}'s extensions?"],
        "SELECT COALESCE(SUM(ren), 0) FROM loan WHERE member ="
        " (SELECT id FROM member WHERE name = {name})", _NAME, _BY_NAME),
    "members with many loans": Question(
        ["How many members have more than {n} loans?", "Number of members above {n} loans?"],
        ["Count members who borrowed over {n} times.", "How many people made more than {n} loans?"],
        "SELECT COUNT(*) FROM (SELECT member FROM loan JOIN member ON member.id = loan.member"
        " WHERE lvl <> 'X' GROUP BY member HAVING COUNT(*) > {n})", _NUMBER),
    "fines above": Question(
        ["How many unpaid fines are above {n} cents?", "Number of open fines over {n} cents?"],
        ["Count fines still owed of more than {n} cents.", "How many outstanding fines exceed {n} cents?"],
        "SELECT COUNT(*) FROM fine WHERE amt > {n} AND state = 0",
        {"n": ("100", "300", "450", "600", "200", "350", "500", "700")}),
    "gone of a medium": Question(
        ["How many {medium} have we lost or removed?", "Number of {medium} that are gone?"],
        ["Count {medium} that are no longer there.", "What number of {medium} was withdrawn?"],
        "SELECT COUNT(*) FROM item WHERE medium = {medium} AND gone = 1", _MEDIUM, _BY_MEDIUM),
    "level of a member": Question(
        ["What level is {name}? Give the letter.", "Letter of {name}'s level?"],
        ["Which letter does the membership of {name} have?", "Tell me {name}'s level letter."],
        "SELECT lvl FROM member WHERE name = {name}", _NAME, _BY_NAME),
    "average price of a branch": Question(
        ["What does an item of {branch} cost on average, in euros?", "Average price in euros at {branch}?"],
        ["Mean price of the {branch} branch's items (euros)?", "How dear is an average item at {branch}, in euros?"],
        "SELECT ROUND(AVG(price) / 100.0, 2) FROM item WHERE br = {branch} AND gone = 0",
        _BRANCH, _BY_BRANCH),
}  # fmt: skip

LIBRARY = DatabaseWorld(
    name="library",
    instructions="You answer questions about a public library from its SQLite database. Look at the "
    "tables and columns that you need before you query them. If a query fails, mend it and try "
    "again. Call one tool at a time, and give the final answer with the tool `answer`.",
    schema=_SCHEMA,
    fill=_fill,
    questions=_QUESTIONS,
)
