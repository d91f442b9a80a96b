"""What every scenario stands on: real agents, a shortened clock, and the accounts at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from langchain.agents import create_agent

from kp_langchain import DomainPolicy, KPCallbackHandler, Registry, ScoredTrace, TraceStore
from kp_langchain.registry import pace, sender
from kp_langchain.store import backoff, sqlite
from tests.agents import ASK, ScriptedChatModel, call, handler, say, search
from tests.loopback_registry import LoopbackRegistry

KEY = "kp_0123456789abcdef0123456789abcdef"
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
        note: What else there is to say.
    """

    runs: int = 0
    agent_errors: int = 0
    passed: int = 0
    arrived: int = 0
    lost: int = 0
    doubled: int = 0
    strangers: int = 0
    miscounted: int = 0
    note: str = ""

    @property
    def clean(self) -> bool:
        wrong = (self.agent_errors, self.lost, self.doubled, self.strangers, self.miscounted)
        return not any(wrong) and self.passed > 0


@contextmanager
def shortened_clock() -> Iterator[None]:
    """Rests and pauses in hundredths of what they are, so that a scenario takes seconds."""
    short = {
        (pace, "_FIRST_BACKOFF_S"): 0.002,
        (pace, "LONGEST_BACKOFF_S"): 0.2,
        (pace, "_HOUR_S"): 0.5,
        (pace, "_MARGIN_S"): 0.01,
        (pace, "_DEFAULT_INTERVAL_S"): 0.0,
        (pace, "_THROTTLE_WAIT_S"): 0.05,
        (sender, "_RETRY_TURN_S"): 0.01,
        (sender, "_OTHERS_TURN_S"): 0.001,
        (sender, "_STORE_TROUBLE_S"): 0.05,
        (backoff, "_FIRST_PAUSE_S"): 0.01,
        (backoff, "_LONGEST_PAUSE_S"): 0.05,
        (sqlite, "_BUSY_TIMEOUT_S"): 0.05,
    }
    before = {(module, name): getattr(module, name) for module, name in short}
    for (module, name), value in short.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(module, name, value)


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


@dataclass
class Players:
    """Plays agent runs under one handler and takes note of what the gate let pass."""

    store: TraceStore | Path
    registry: Registry
    passed: list[str] = field(default_factory=list)
    errors: int = 0
    played: int = 0

    def __post_init__(self) -> None:
        self.handler: KPCallbackHandler = handler(
            "finance",
            store=self.store,
            registry=self.registry,
            policy=POLICY,
            on_scored=self._scored,
        )

    def _scored(self, scored: ScoredTrace) -> None:
        if scored.decision == "contributed":
            self.passed.append(scored.trace.id)

    def play(self, runs: int) -> None:
        for _ in range(runs):
            self.played += 1
            try:
                answer = invoke(self.handler, searches=self.played % 3 != 0)
            except BaseException:
                answer = ""
            self.errors += answer != "42"

    def account(self, server: LoopbackRegistry, **more: Any) -> Account:
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
            **more,
        )


def at_random(seed: int, share: float, *faults: str) -> Any:
    """Misbehave in a share of the contributions, each time with one of `faults`."""
    drawn = random.Random(seed)

    def misbehave(number: int, method: str, path: str) -> str | None:
        hit = method == "POST" and drawn.random() < share
        return drawn.choice(faults) if hit else None

    return misbehave
