"""What every scenario stands on: real agents, and the accounts at the end.

    python -m tests.faults.ground STORE REGISTRY RUNS

plays runs into a store in a process of its own, which then just ends.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from langchain.agents import create_agent

from kp_langchain import DomainPolicy, KPCallbackHandler, Registry, ScoredTrace, TraceStore
from kp_langchain.store import StoredRun
from tests.agents import ASK, ScriptedChatModel, call, handler, say, search
from tests.faults.processes import ENOUGH_S, shortened_clock
from tests.loopback_registry import LoopbackRegistry

KEY = "kp_0123456789abcdef0123456789abcdef"
TIMEOUT_S = 0.5
# Agents that search score above it, a bare answer scores 0.1.
# The runs are all alike, and each is to be sent.
POLICY = DomainPolicy(threshold=0.3, visibility="network", twin_similarity=1.0)
FATES = (
    "scored", "cancelled", "abandoned", "handed_over", "empty", "dropped", "failed", "open",
    "paused", "queued",
)  # fmt: skip


@dataclass
class Account:
    """What came of one scenario.

    Args:
        runs: Agent runs played.
        agent_errors: Runs whose result was not what it is without the handler.
        passed: Traces that the gate let pass and that were stored.
        arrived: Of these, units that the registry holds.
        lost: Passed, but neither in the registry nor, where that is its place, in the outbox.
        doubled: Units that the registry was given twice as two.
        strangers: Units in the registry that never passed.
        miscounted: How far the counters are from the number of runs.
    """

    runs: int = 0
    agent_errors: int = 0
    passed: int = 0
    arrived: int = 0
    lost: int = 0
    doubled: int = 0
    strangers: int = 0
    miscounted: int = 0

    @property
    def clean(self) -> bool:
        wrong = (self.agent_errors, self.lost, self.doubled, self.strangers, self.miscounted)
        return not any(wrong) and self.passed > 0


@cache
def _agent() -> tuple[ScriptedChatModel, Any]:
    model = ScriptedChatModel()
    return model, create_agent(model, [search])


def invoke(handler: KPCallbackHandler, *, searches: bool) -> str:
    """Run the agent once; its answer should be 42."""
    model, made = _agent()
    model.answers.clear()
    if searches:
        model.answers.append(say("I search.", call("search", q="a")))
    model.answers.append(say("42"))
    answer: str = made.invoke(ASK, {"callbacks": [handler]})["messages"][-1].content
    return answer


def has_passed(run: ScoredTrace | StoredRun) -> bool:
    return run.decision == "kept"


@dataclass
class Players:
    """Plays agent runs under one handler and takes note of what the gate let pass.

    Args:
        store: Where the runs are kept.
        registry: What those that passed are sent to.
        options: Further arguments of the handler.
        passed: Ids of the traces that passed.
        errors: Runs whose result was not what it is without the handler.
        played: Runs.
    """

    store: TraceStore | Path
    registry: Registry
    options: dict[str, Any] = field(default_factory=dict)
    passed: list[str] = field(default_factory=list)
    errors: int = 0
    played: int = 0

    def __post_init__(self) -> None:
        self.handler: KPCallbackHandler = handler(
            "finance",
            store=self.store,
            registry=self.registry,
            on_scored=self._scored,
            **{"policy": POLICY} | self.options,
        )

    def _scored(self, scored: ScoredTrace) -> None:
        if has_passed(scored):
            self.passed.append(scored.trace.id)

    def play(self, runs: int) -> None:
        for _ in range(runs):
            self.played += 1
            try:
                answer = invoke(self.handler, searches=self.played % 3 != 0)
            except BaseException:
                answer = ""
            self.errors += answer != "42"

    def write(self) -> None:
        """Give the store a few chances, as a process that goes on would."""
        for _ in range(200):
            if self.handler.flush(ENOUGH_S):
                break
            time.sleep(0.02)

    def settle(self) -> None:
        """Write what waits; then send."""
        self.write()
        self.handler.send(ENOUGH_S)

    def account(self, server: LoopbackRegistry) -> Account:
        """Draw up the account, after everything has been sent that can be."""
        counts = self.handler.stats()
        arrived = set(server.units)
        passed = set(self.passed)
        return Account(
            runs=self.played,
            agent_errors=self.errors,
            passed=len(passed),
            arrived=len(arrived & passed),
            lost=len(passed - arrived),
            doubled=len(server.doubled),
            strangers=len(arrived - passed),
            miscounted=abs(self.played - counts["runs"])
            + abs(counts["runs"] - sum(counts[fate] for fate in FATES)),
        )


def main() -> None:
    path, url, runs = sys.argv[1:]
    with shortened_clock():
        players = Players(Path(path), Registry(url, api_key=KEY, timeout_s=TIMEOUT_S))
        players.play(int(runs))
        players.write()  # what is to send may stay for the next process
    sys.exit(bool(players.errors))


if __name__ == "__main__":
    main()
