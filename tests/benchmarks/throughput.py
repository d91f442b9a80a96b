"""How many finished runs the worker takes through redaction, scoring and SQLite, on one core.

The runs come from a real agent and have 30 steps each. They pile up while the thread that takes
them in stands still; the clock runs from the moment when it goes on until `flush` returns. Every
run passes its threshold, so that every one is stored whole; the embedder is off.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.tools import StructuredTool

from kp_langchain import DomainPolicy, KPCallbackHandler, ScoredTrace, Scorer
from kp_langchain.recording.worker import intake
from tests.benchmarks import texts
from tests.benchmarks.candidates import FaultyError, lost
from tests.benchmarks.figures import quartiles
from tests.benchmarks.workload import TURNS, Player, ScriptedModel, config_of, make_agent


class Talker(ScriptedModel):
    """Says as much as a real model; asks for two tools at once in its first turn."""

    texts: Any

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        answer = super()._answer(messages)
        answer.content = self.texts.said()
        for call in answer.tool_calls:
            call["args"] = {"query": self.texts.said()[:200], "limit": 5}
        if len(messages) == 1:
            first = answer.tool_calls[0]
            answer.tool_calls.append({**first, "id": f"{first['id']}b"})
        return answer


def _player(kind: str) -> Player:
    said = texts.make(kind, seed=1)

    def search(query: str, limit: int) -> str:
        """Search the ledger."""
        return said.returned()

    tool = StructuredTool.from_function(search)
    return Player(make_agent(tools=[tool], model=Talker(turns=TURNS, texts=said)))


class _Held:
    """A handler whose worker stands still until it is let go."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.steps: Counter[int] = Counter()
        self.characters = 0
        self._go = Event()
        self.handler = KPCallbackHandler(
            store=folder / "traces.db",
            scorer=Scorer(embedder=None),
            policy=DomainPolicy(threshold=0.0),
            on_scored=self._scored,
            **options,
        )

    def _scored(self, scored: ScoredTrace) -> None:
        self.steps[len(scored.trace.steps)] += 1
        self.characters += sum(len(step.content or "") for step in scored.trace.steps)

    def pile_up(self, player: Player, runs: int) -> list[float]:
        """Have so many runs wait for the worker; return each one's wall seconds."""
        self._go.clear()
        intake.submit(lambda: self._go.wait() and None)
        config = config_of([self.handler])
        taken = []
        for _ in range(runs):
            began_s = time.perf_counter()
            player.invoke(config)
            taken.append(time.perf_counter() - began_s)
        return taken

    def let_go(self) -> tuple[float, float]:
        """Have the worker do them; return CPU and wall seconds."""
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        self._go.set()
        self.handler.flush()
        return time.process_time() - cpu_s, time.perf_counter() - wall_s


def measure(kind: str, runs: int, rounds: int) -> dict[str, Any]:
    """Process `runs` finished runs, several times; called in a fresh process.

    Args:
        kind: Of the texts.
        runs: Runs of a round. The setting `max_queue` must be as large.
        rounds: How often; one more, of a tenth, comes first and is not counted.
    """
    logging.disable(logging.CRITICAL)
    player = _player(kind)
    if pinned := hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    taken = []
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        held = _Held(Path(folder))
        for count in [runs // 10 + 1, *[runs] * rounds]:
            held.pile_up(player, count)
            taken.append(held.let_go())
        stats = held.handler.stats()
        held.handler.close()
    player.close()
    if lost(stats) or stats["contributed"] != stats["runs"]:
        raise FaultyError(f"not every run was stored: {stats}")
    return {
        "runs": runs,
        "one_core": pinned,
        "steps_per_run": held.steps.most_common(1)[0][0],
        "characters_per_run": round(held.characters / held.steps.total()),
        "runs_per_s": quartiles([runs / wall_s for _, wall_s in taken[1:]]),
        "runs_per_cpu_s": quartiles([runs / cpu_s for cpu_s, _ in taken[1:]]),
    }


def overrun(runs: int) -> dict[str, Any]:
    """Let more finished runs pile up than may wait, behind a worker that stands still.

    Called in a fresh process whose setting `max_queue` is smaller than `runs`. That it returns
    shows that the agent did not wait for the worker.
    """
    logging.disable(logging.CRITICAL)
    player = _player("written")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        held = _Held(Path(folder))
        taken = held.pile_up(player, runs)
        held.let_go()
        stats = held.handler.stats()
        held.handler.close()
    player.close()
    return {
        "runs": stats["runs"],
        "scored": stats["scored"],
        "dropped": stats["dropped"],
        "run_ms": quartiles([one_s * 1000 for one_s in taken]),
    }
