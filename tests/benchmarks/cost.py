"""What a handler costs the agent: CPU of runs, and memory.

`overhead`, `growth_kb` and `open_runs_kb` are each called in a process that knows no other handler.

The agent is a real `create_agent` agent whose model is a script. A run is 10 model calls and 9 tool
calls, 78 events of LangChain's. The model and the tool answer at once, so that what is left is
LangChain's own work, against which a handler shows most. No two runs have a text in common, so that
nothing is faster for having come before.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from kp_langchain import DomainPolicy, KPCallbackHandler, Scorer
from tests.agents import ASK, agent, call, say
from tests.benchmarks.harness import quartiles, used_bytes

HANDLERS = {
    "none": "no handler",
    "inline": "no-op, inline",
    "recording": "kp-langchain, recording only",
    "everything": "kp-langchain, everything on",
}
"""The handlers that are measured, and their titles in the tables."""
WAYS = ("invoke", "ainvoke")
TURNS = 9
_WORDS = """
account after agrees amount answer approved balance before billed branch buyer carrier changed
charge checked clerk closed compare contract corrected customer damaged delivered delivery
difference discount due early entry expected figures found freight goods held invoice issued ledger
line list matched missing month noted office open order original packing paid part payment period
""".split()
_LOST = ("dropped", "failed", "not_stored", "callback_errors", "redaction_errors", "dropped_steps")
_FLUSHED_EVERY = 50
_OPEN_TEXT_CHARS = 1000


class Inline(BaseCallbackHandler):
    """Does nothing, where the event happens."""

    run_inline = True

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        """Without it LangChain would write all messages out for `on_llm_start`."""


def _make_handler(name: str, folder: Path) -> BaseCallbackHandler | None:
    scorer = Scorer(embedder=None)
    if name == "none":
        return None
    if name == "inline":
        return Inline()
    if name == "recording":
        handler = KPCallbackHandler(store=None, scorer=scorer)
        # There is no switch for this: without scoring, recording would have no purpose.
        handler._recorder._receive = handler._recorder._prepare = lambda *_: None
        return handler
    # Every run passes, so that it is stored whole.
    policy = DomainPolicy(threshold=0.0, twin_similarity=1.0)
    return KPCallbackHandler(store=folder / "traces.db", scorer=scorer, policy=policy)


@contextmanager
def _handler(name: str) -> Iterator[BaseCallbackHandler | None]:
    """Make a handler; afterwards raise if it lost something, because losing runs is cheap."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        handler = _make_handler(name, Path(folder))
        yield handler
        if isinstance(handler, KPCallbackHandler):
            stats = handler.stats()
            if lost := {count: stats[count] for count in _LOST if stats[count]}:
                raise RuntimeError(f"{HANDLERS[name]} counts {lost}")


def _flush(handler: BaseCallbackHandler | None) -> None:
    if isinstance(handler, KPCallbackHandler):
        handler.flush()


class Texts:
    """Texts such as agents and tools produce, no two alike: prose and JSON of about 400 characters.

    Redaction takes as long for them as for those of recorded runs (0.2 ms for a thousand
    characters), and finds as much: one in four has a person's address.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def prose(self) -> str:
        """Return what a model answers."""
        some, text = self._random, ""
        while len(text) < 400:
            words = " ".join(some.choices(_WORDS, k=some.randint(6, 12))).capitalize()
            extra = some.choice(("", "", " on 2025-04-11", f" ({some.uniform(1, 9e3):,.2f} EUR)"))
            text += f"{words}{extra}. "
        return text + self._person()

    def rows(self) -> str:
        """Return what a tool returns."""
        rows: list[dict[str, Any]] = []
        while len(text := json.dumps({"rows": rows, "note": self._person()})) < 360:
            order = f"ord_{self._random.getrandbits(32):08x}"
            words = " ".join(self._random.choices(_WORDS, k=3))
            rows.append({"id": order, "date": "2025-04-11", "amount": 18.5, "note": words})
        return text

    def _person(self) -> str:
        if self._random.random() < 0.75:
            return "No further entry."
        return f"Ask maria{self._random.randint(1, 999)}@example.com about it."


class ScriptedModel(BaseChatModel):
    """Asks for `turns` tool calls, one after the other, and then answers.

    It keeps no state, so that any number of runs may share it; the turn is read off the messages.
    With `texts`, it says as much as a real model.
    """

    turns: int = TURNS
    texts: Any = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        subject = str(messages[0].content).rpartition(" ")[2]
        turn = sum(message.type == "ai" for message in messages)
        text = f"Entry {turn} of order {subject} is still missing, so I look it up in the ledger."
        if self.texts is not None:
            text = self.texts.prose()
        if turn == self.turns:
            return AIMessage(f"Order {subject} was delivered late. {text}")
        asked = {"query": f"entry {turn} of order {subject}", "limit": 5}
        call = {"name": "search", "args": asked, "id": f"{subject}-{turn}", "type": "tool_call"}
        return AIMessage(text, tool_calls=[call])

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


def make_agent(turns: int = TURNS, texts: Texts | None = None) -> Any:
    """Return the agent; with fewer turns where many runs are needed."""

    def search(query: str, limit: int) -> str:
        """Search the ledger."""
        return (
            f"The ledger holds {limit} lines on {query}: shipped on the 4th, received on the 9th, "
            "billed in full, with a note that the customer asked for a later date."
            if texts is None
            else texts.rows()
        )

    async def asearch(query: str, limit: int) -> str:
        return search(query, limit)

    tool = StructuredTool.from_function(search, asearch)
    return create_agent(ScriptedModel(turns=turns, texts=texts), [tool])


class Counter(BaseCallbackHandler):
    """Counts every event."""

    run_inline = True

    def __init__(self) -> None:
        self.events = 0


def _count(self: Counter, *_: Any, **__: Any) -> None:
    self.events += 1


for _name in dir(BaseCallbackHandler):
    if _name.startswith("on_"):
        setattr(Counter, _name, _count)


class Player:
    """Plays runs of one agent; keeps one event loop for the async ones.

    No two runs have the same question.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._runner = asyncio.Runner()
        self._numbers = count(100_000)

    def close(self) -> None:
        self._runner.close()

    def invoke(self, callbacks: Sequence[Any]) -> None:
        self._agent.invoke(*self._call(callbacks))

    def ainvoke(self, callbacks: Sequence[Any]) -> None:
        self._runner.run(self._agent.ainvoke(*self._call(callbacks)))

    def count_events(self, way: str) -> int:
        """Return the number of events of one run by `invoke` or `ainvoke`."""
        counter = Counter()
        getattr(self, way)([counter])
        return counter.events

    def _call(self, callbacks: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        question = ("user", f"What happened to order {next(self._numbers)}")
        return {"messages": [question]}, {"callbacks": list(callbacks), "recursion_limit": 100}


class _Pair(NamedTuple):
    """Seconds of CPU of two runs, each until the handler is done with it."""

    without_s: float
    with_s: float


def overhead(
    handler: str, ways: Sequence[str], turns: int, seconds: float, fewest: int, texts: bool = False
) -> dict[str, Any]:
    """Compare runs with a handler to runs without, in turn, as ratios of the two calls of a pair.

    Garbage is collected before each call, and what was there before the first pair is out of the
    collector's sight, as it is in a server that calls `gc.freeze`.

    Args:
        handler: Of `HANDLERS`.
        ways: Of `WAYS`: how the agent is run.
        turns: Tool calls of a run.
        seconds: How long pairs are taken for each way.
        fewest: How many pairs at least.
        texts: Whether the model and the tool say as much as real ones.
    """
    logging.disable(logging.CRITICAL)
    player = Player(make_agent(turns, Texts(seed=1) if texts else None))
    figures: dict[str, Any] = {}
    with _handler(handler) as candidate:
        for way in ways:
            play = getattr(player, way)

            def cpu_s(handler: BaseCallbackHandler | None, play: Any = play) -> float:
                gc.collect()
                began_s = time.process_time()
                play([handler] if handler else [])
                _flush(handler)
                return time.process_time() - began_s

            for _ in range(min(2, fewest - 1)):  # imports, caches, connections, threads
                cpu_s(None)
                cpu_s(candidate)
            gc.collect()
            gc.freeze()
            pairs: list[_Pair] = []
            until_s = time.monotonic() + seconds
            while len(pairs) < fewest or time.monotonic() < until_s:
                if len(pairs) % 2:  # every other pair the other way round
                    with_s = cpu_s(candidate)
                    pairs.append(_Pair(cpu_s(None), with_s))
                else:
                    pairs.append(_Pair(cpu_s(None), cpu_s(candidate)))
            added_s = [pair.with_s - pair.without_s for pair in pairs]
            events = player.count_events(way)
            figures[way] = {
                "cpu_ratio": quartiles([pair.with_s / pair.without_s for pair in pairs]),
                "added_us_per_event": quartiles([1e6 * one_s / events for one_s in added_s]),
                "added_ms_per_run": quartiles([1e3 * one_s for one_s in added_s]),
            }
    player.close()
    return figures


def growth_kb(handler: str, runs: int) -> float:
    """Return the KB in use that stay of each run, of one tool call each, after a warm-up."""
    logging.disable(logging.CRITICAL)
    player = Player(make_agent(turns=1))
    gc.freeze()  # what is there before the first run need not be looked through each time
    with _handler(handler) as candidate:
        callbacks = [candidate] if candidate else []

        def used_after(count: int) -> int:
            for number in range(count):
                player.invoke(callbacks)
                if number % _FLUSHED_EVERY == 0:
                    _flush(candidate)
            _flush(candidate)
            return used_bytes()

        before = used_after(runs // 2)
        grown = used_after(runs) - before
    player.close()
    return grown / runs / 1000


def open_runs_kb(runs: int, earlier_calls: Sequence[int]) -> dict[str, list[float]]:
    """Return the KB that a run under way takes without a handler, and what recording adds.

    All runs wait in their last tool call at the same time. The earlier calls of each have returned
    1,000 characters.
    """
    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    for callbacks in ([], [handler]):  # imports and caches what all runs share
        asyncio.run(_kb_per_open_run(1, 1, callbacks))
    figures = {}
    for number in earlier_calls:
        handler.flush()
        without = asyncio.run(_kb_per_open_run(runs, number, []))
        recorded = asyncio.run(_kb_per_open_run(runs, number, [handler]))
        figures[str(number)] = [without, recorded - without]
    handler.close()
    return figures


async def _kb_per_open_run(runs: int, earlier_calls: int, callbacks: list[Any]) -> float:
    arrived, go = asyncio.Semaphore(0), asyncio.Event()

    async def look(number: int) -> str:
        """Return a text; the last call of a run first waits for all runs."""
        if number == earlier_calls:
            arrived.release()
            await go.wait()
        return str(number).ljust(_OPEN_TEXT_CHARS)

    tools = (StructuredTool.from_function(coroutine=look, name="look"),)
    config: Any = {"callbacks": callbacks, "recursion_limit": 1000}

    def begin() -> asyncio.Task[Any]:
        calls = [call("look", f"c{number}", number=number) for number in range(earlier_calls + 1)]
        answers = [say("I look.", one) for one in calls]
        return asyncio.create_task(agent(*answers, say("42"), tools=tools).ainvoke(ASK, config))

    before = used_bytes()
    tasks = [begin() for _ in range(runs)]
    for _ in range(runs):
        await arrived.acquire()
    used = used_bytes() - before
    go.set()
    await asyncio.gather(*tasks)
    return used / runs / 1000
