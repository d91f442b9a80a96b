"""The agent that handlers are measured on: a real `create_agent` agent whose model is a script.

A run is 10 model calls and 9 tool calls, 78 events of LangChain's. The model and the tool answer at
once, in sync and in async, so that what is left is LangChain's own work, against which a handler
shows most. No two runs have a text in common, so that nothing is faster for having come before.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

TURNS = 9
CONCURRENT = 16
_WORDS = """
account after agrees amount answer approved balance before billed branch buyer carrier changed
charge checked clerk closed compare contract corrected customer damaged delivered delivery
difference discount due early entry expected figures found freight goods held invoice issued ledger
line list matched missing month noted office open order original packing paid part payment period
""".split()


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

    def _stream(
        self, messages: list[BaseMessage], *_: Any, run_manager: Any = None, **__: Any
    ) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages)
        for word in str(answer.content).split():
            chunk = ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
            if run_manager:
                run_manager.on_llm_new_token(word, chunk=chunk)
            yield chunk
        last = AIMessageChunk("", tool_calls=answer.tool_calls, chunk_position="last")
        yield ChatGenerationChunk(message=last)


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


_numbers = count(100_000)


def question() -> dict[str, Any]:
    """Return inputs of a run that nothing has seen before."""
    return {"messages": [("user", f"What happened to order {next(_numbers)}")]}


class Player:
    """Plays runs of one agent in every way; keeps one event loop for the async ones."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

    def invoke(self, config: Any) -> None:
        self._agent.invoke(question(), config)

    def ainvoke(self, config: Any) -> None:
        self._runner.run(self._agent.ainvoke(question(), config))

    def batch(self, config: Any) -> None:
        self._agent.batch([question() for _ in range(CONCURRENT)], config)

    def gather(self, config: Any) -> None:
        async def together() -> None:
            await asyncio.gather(
                *(self._agent.ainvoke(question(), config) for _ in range(CONCURRENT))
            )

        self._runner.run(together())

    def stream(self, config: Any) -> None:
        for _ in self._agent.stream(question(), config, stream_mode="messages"):
            pass


class Case(NamedTuple):
    """A way to run the agent.

    Attributes:
        runs: Runs of one call.
        play: Does that call, with LangChain's config.
    """

    runs: int
    play: Callable[[Player, Any], None]


CASES = {
    "invoke": Case(1, Player.invoke),
    "ainvoke": Case(1, Player.ainvoke),
    "batch": Case(CONCURRENT, Player.batch),
    "gather": Case(CONCURRENT, Player.gather),
    "stream": Case(1, Player.stream),
}


def config_of(callbacks: Sequence[Any]) -> dict[str, Any]:
    """Return LangChain's config of a run with these callbacks."""
    return {
        "callbacks": list(callbacks),
        "recursion_limit": 100,
        "max_concurrency": CONCURRENT,
    }


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


def events_of(player: Player, case: Case) -> int:
    """Return the number of events of one call of a case."""
    counter = Counter()
    case.play(player, config_of([counter]))
    return counter.events
