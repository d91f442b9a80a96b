"""How many finished runs the worker takes through redaction, scoring and SQLite, on one core.

The runs come from a real agent and are held back when they end; the clock runs from the moment when
they are handed to the worker until `flush` returns. A run has 30 steps: 10 thoughts, 10 tool calls
and 10 observations, less the last answer's, with 300 to 600 characters of prose or JSON each; every
fourth text names a person with an email address. No two runs have a text in common.
"""

from __future__ import annotations

import json
import logging
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import StructuredTool

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer
from tests.benchmarks.workload import Player, ScriptedModel, config_of, make_agent

STEPS = 30
TURNS = 9
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


class Writer:
    """Writes texts as agents and tools do, each another one, by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def prose(self) -> str:
        """300 to 600 characters of sentences."""
        wanted = self._random.randint(300, 600)
        said = ""
        while len(said) < wanted - 60:
            words = self._random.choices(_WORDS, k=self._random.randint(6, 12))
            said += f"{' '.join(words).capitalize()}. "
        return said + self._person()

    def rows(self) -> str:
        """300 to 600 characters of JSON, as a tool returns them."""
        wanted = self._random.randint(300, 600)
        rows: list[dict[str, Any]] = []
        while len(text := json.dumps({"rows": rows, "note": self._person()})) < wanted - 90:
            row = {
                "entry": self._random.randint(1, 9999),
                "status": self._random.choice(_WORDS),
                "amount": round(self._random.uniform(1, 9000), 2),
                "note": " ".join(self._random.choices(_WORDS, k=3)),
            }
            rows.append(row)
        return text

    def _person(self) -> str:
        if self._random.random() < 0.75:
            return "No further entry."
        name = self._random.choice(_NAMES)
        return f"Ask {name}{self._random.randint(1, 999)}@example.com about it."


class Talker(ScriptedModel):
    """Says as much as a real model; asks for two tools at once in its first turn."""

    writer: Any

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        answer = super()._answer(messages)
        answer.content = self.writer.prose()
        for call in answer.tool_calls:
            call["args"] = {"query": self.writer.prose(), "limit": 5}
        if len(messages) == 1:
            first = answer.tool_calls[0]
            answer.tool_calls.append({**first, "id": f"{first['id']}b"})
        return answer


class Holding(KPCallbackHandler):
    """Holds finished runs back until they are released."""

    def __init__(self, **options: Any) -> None:
        self.held: list[Any] = []
        super().__init__(**options)

    def _deliver(self, record: Any) -> None:
        self.held.append(record)

    def release(self) -> float:
        """Hand the runs to the worker; return the seconds that the slowest took to hand over."""
        held, self.held = self.held, []
        slowest_s = 0.0
        for record in held:
            began_s = time.perf_counter()
            super()._deliver(record)
            slowest_s = max(slowest_s, time.perf_counter() - began_s)
        return slowest_s


def _player(seed: int) -> Player:
    writer = Writer(seed)

    def search(query: str, limit: int) -> str:
        """Search the ledger."""
        return writer.rows()

    tool = StructuredTool.from_function(search)
    return Player(make_agent(tools=[tool], model=Talker(turns=TURNS, writer=writer)))


def measure(runs: int, rounds: int, pinned: bool) -> dict[str, Any]:
    """Process `runs` finished runs, several times; called in a fresh process.

    Args:
        runs: Runs of a round. The setting `max_queue` must be as large.
        rounds: How often; one more, of a tenth, comes first and is not counted.
        pinned: Whether to hold the process to one core, where the system can.

    Returns:
        Seconds of each round, wall and CPU; steps and characters of a run; the handler's counts.
    """
    logging.disable(logging.CRITICAL)
    if pinned and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    player = _player(1)
    shapes: set[tuple[int, int]] = set()

    def look(scored: ScoredTrace) -> None:
        steps = scored.trace.steps
        shapes.add((len(steps), sum(len(step.content or "") for step in steps)))

    with tempfile.TemporaryDirectory() as folder:
        handler = Holding(
            store=Path(folder) / "traces.db", scorer=Scorer(embedder=None), on_scored=look
        )
        config = config_of([handler])
        taken = []
        for count in [runs // 10 + 1, *[runs] * rounds]:
            for _ in range(count):
                player.invoke(config)
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            handler.release()
            handler.flush()
            taken.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
        counts = {name: count for name, count in handler.stats().items() if count}
        handler.close()
    return {
        "runs": runs,
        "steps": sorted({steps for steps, _ in shapes}),
        "characters": sum(characters for _, characters in shapes) / len(shapes),
        "seconds": taken[1:],
        "counts": counts,
    }


def overrun(runs: int) -> dict[str, Any]:
    """Hand over more finished runs than may wait: who waits, and what is counted.

    Called in a fresh process whose setting `max_queue` is smaller than `runs`.
    """
    logging.disable(logging.CRITICAL)
    player = _player(2)
    with tempfile.TemporaryDirectory() as folder:
        handler = Holding(store=Path(folder) / "traces.db", scorer=Scorer(embedder=None))
        config = config_of([handler])
        for _ in range(runs):
            player.invoke(config)
        began_s = time.perf_counter()
        slowest_s = handler.release()
        took_s = time.perf_counter() - began_s
        handler.flush()
        counts = {name: count for name, count in handler.stats().items() if count}
        handler.close()
    return {"runs": runs, "slowest_s": slowest_s, "all_s": took_s, "counts": counts}
