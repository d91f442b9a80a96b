"""Worlds of the live benchmark: tools, kinds of tasks, right runs, and what a right answer is.

A world has conventions that its tools do not tell. Whoever does not know them, from an example, has
to guess. A kind of task has several wordings and values; the tasks that runs were kept of and those
that are asked later have none in common.
"""

from __future__ import annotations

import json
import re
import sqlite3
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, NamedTuple, Protocol

from langchain_core.tools import BaseTool, StructuredTool, ToolException

ANSWER = "answer"
"""The tool by which a run ends; its only argument is `value`."""

MOST_ROWS = 20

_NUMBER = r"-?\d+(?:\.\d+)?"


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any]


class Task(NamedTuple):
    """A task of a world.

    Attributes:
        kind: What it asks for, whatever its wording and its values.
        text: The task in words.
        calls: The calls of a run that solves it, without the answer.
        truth: The value of the right answer; "" where what the run changed counts, not its answer.
    """

    kind: str
    text: str
    calls: Sequence[Call]
    truth: str


class Room(Protocol):
    """The world of one run: what it changes, no other run sees."""

    tools: Sequence[BaseTool]

    def is_solved(self, task: Task, answer: str | None) -> bool:
        """Return whether the run solved the task; its answer is None if it gave none."""
        ...


class World(Protocol):
    """A world.

    Attributes:
        name: Its name, which is the domain of its runs.
        instructions: The system prompt of its agent.
        kinds: The names of its kinds of tasks.
    """

    @property
    def name(self) -> str: ...

    @property
    def instructions(self) -> str: ...

    @property
    def kinds(self) -> Sequence[str]: ...

    def task(self, kind: str, number: int, *, is_kept: bool) -> Task:
        """Return a task, always the same for the same arguments.

        Args:
            kind: Its kind.
            number: Which of them, from 0. They have different values, as far as there are some.
            is_kept: Whether a right run of it is kept, or it is asked later. These have no value
                and no wording in common.
        """
        ...

    def open(self) -> Room:
        """Return the world as a run finds it."""
        ...


def answer_tool() -> BaseTool:
    """Return the tool by which a run ends."""

    def answer(value: str) -> str:
        """Give the final answer: only the value that was asked for."""
        return value

    return StructuredTool.from_function(answer, return_direct=True)


def is_same_value(answer: str, truth: str) -> bool:
    """Return whether an answer has the number that is right, or if that is none the same words."""
    if re.fullmatch(_NUMBER, truth):
        numbers = re.findall(_NUMBER, answer.replace(",", ""))
        return [round(float(number), 2) for number in numbers] == [round(float(truth), 2)]
    words = [set(re.findall(r"\w+", text.casefold())) for text in (answer, truth)]
    return words[0] == words[1]


def choose(pools: Mapping[str, Sequence[str]], number: int, *, is_kept: bool) -> Mapping[str, str]:
    """Return the values of a task.

    Args:
        pools: By name, what a value may be; the first half is of tasks that runs are kept of.
        number: Which task, from 0.
        is_kept: Whether a right run of it is kept, or it is asked later.
    """
    values, at = {}, number
    for name, pool in pools.items():
        half = len(pool) // 2
        own = pool[:half] if is_kept else pool[half:]
        values[name] = own[at % len(own)]
        at += at // len(own) + 1  # other pairs of values, once the first have been used up
    return values


# ------------------------------------------------------------------ worlds of one database


@dataclass(frozen=True)
class Question:
    """A kind of question of a database.

    Attributes:
        kept: Wordings of those that runs were kept of; `{name}` stands for a value.
        asked: Wordings of those that are asked later.
        sql: The statement that answers it, with the same names.
        values: By name, what it may be, as it stands in the wording. The first half is of questions
            that runs were kept of.
        as_sql: By name, how a value of the wording is written in SQL, if otherwise.
    """

    kept: Sequence[str]
    asked: Sequence[str]
    sql: str
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    as_sql: Mapping[str, Callable[[str], str]] = field(default_factory=dict)


@dataclass(frozen=True)
class DatabaseWorld:
    """A world of one SQLite database, which runs may only read.

    Attributes:
        name: Its name.
        instructions: The system prompt.
        schema: The statements that make its tables.
        fill: Fills them, always in the same way.
        questions: The kinds of questions, by name.
    """

    name: str
    instructions: str
    schema: str
    fill: Callable[[sqlite3.Connection, Random], None]
    questions: Mapping[str, Question]

    @property
    def kinds(self) -> Sequence[str]:
        """The names of its kinds of questions."""
        return tuple(self.questions)

    def task(self, kind: str, number: int, *, is_kept: bool) -> Task:
        """Return a question; see `World`."""
        question = self.questions[kind]
        wordings = question.kept if is_kept else question.asked
        values = choose(question.values, number, is_kept=is_kept)
        text = wordings[number % len(wordings)].format(**values)
        written = {
            name: question.as_sql[name](value) if name in question.as_sql else value
            for name, value in values.items()
        }
        sql = question.sql.format(**written)
        tables = [name for name in self._room.table_names() if re.search(rf"\b{name}\b", sql)]
        calls = [Call("list_tables", {})]
        calls += [Call("describe_table", {"table": name}) for name in tables]
        calls.append(Call("run_sql", {"query": sql}))
        return Task(kind, text, calls, self._room.value_of(sql))

    @cached_property
    def _room(self) -> DatabaseRoom:
        return self.open()

    def open(self) -> DatabaseRoom:
        """Return the database as a run finds it."""
        return DatabaseRoom(self)


class DatabaseRoom:
    """A database that one run reads.

    Args:
        world: The world.
    """

    def __init__(self, world: DatabaseWorld) -> None:
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        weakref.finalize(self, self._connection.close)
        self._connection.executescript(world.schema)
        world.fill(self._connection, Random(world.name))
        self._connection.commit()
        self._connection.execute("PRAGMA query_only = 1")
        self.tools: Sequence[BaseTool] = [
            StructuredTool.from_function(one, handle_tool_error=True)
            for one in (self.list_tables, self.describe_table, self.run_sql)
        ] + [answer_tool()]

    def is_solved(self, task: Task, answer: str | None) -> bool:
        """Return whether an answer is the right one."""
        return answer is not None and is_same_value(answer, task.truth)

    def value_of(self, sql: str) -> str:
        """Return the single value that a statement selects."""
        ((value,),) = self._connection.execute(sql).fetchall()
        return str(value)

    def table_names(self) -> list[str]:
        """Return the names of the tables."""
        select = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
        return [name for (name,) in self._connection.execute(select)]

    # The docstrings of these are what the model is told of them.

    def list_tables(self) -> str:
        """List the tables of the database."""
        return ", ".join(self.table_names())

    def describe_table(self, table: str) -> str:
        """Show the columns of a table."""
        columns = self._connection.execute("SELECT name, type FROM pragma_table_info(?)", [table])
        text = ", ".join(f"{name} {kind}" for name, kind in columns)
        if not text:
            raise ToolException(f"there is no table {table!r}; call list_tables")
        return f"{table}({text})"

    def run_sql(self, query: str) -> str:
        """Run one SQL SELECT statement of SQLite."""
        try:
            rows = self._connection.execute(query).fetchmany(MOST_ROWS + 1)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise ToolException(f"{type(error).__name__}: {error}") from None
        more = " (and more)" if len(rows) > MOST_ROWS else ""
        return json.dumps(rows[:MOST_ROWS]) + more
