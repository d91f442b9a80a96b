"""The agent that everything is measured on: a real `create_agent` agent whose model is a script.

A run is 10 model calls and 9 tool calls, 78 events of LangChain's. The model and the tool answer at
once, in sync and in async, so that what is left is LangChain's own work, against which a handler
shows most. No two runs have a text in common, so that nobody gains from having seen one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

TURNS = 9
CONCURRENT = 16


class ScriptedModel(BaseChatModel):
    """Asks for `turns` tool calls, one after the other, and then answers.

    It keeps no state, so that any number of runs may share it; the turn is read off the messages.
    """

    turns: int = TURNS

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        subject = str(messages[0].content).rpartition(" ")[2]
        turn = sum(message.type == "ai" for message in messages)
        if turn == self.turns:
            return AIMessage(f"Order {subject} was delivered late, and its invoice is correct.")
        asked = {"query": f"entry {turn} of order {subject}", "limit": 5}
        return AIMessage(
            f"Entry {turn} of order {subject} is still missing, so I look it up in the ledger.",
            tool_calls=[
                {"name": "search", "args": asked, "id": f"{subject}-{turn}", "type": "tool_call"}
            ],
        )

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


def search(query: str, limit: int) -> str:
    """Search the ledger."""
    return (
        f"The ledger holds {limit} lines on {query}: shipped on the 4th, received on the 9th, "
        "billed in full, with a note that the customer asked for a later date."
    )


async def asearch(query: str, limit: int) -> str:
    return search(query, limit)


def ledger() -> BaseTool:
    return StructuredTool.from_function(search, asearch)


def make_agent(
    turns: int = TURNS, *, tools: Sequence[BaseTool] = (), model: ScriptedModel | None = None
) -> Any:
    """The agent; with fewer turns where many runs are needed."""
    return create_agent(model or ScriptedModel(turns=turns), list(tools) or [ledger()])


_numbers = count(100_000)


def question() -> dict[str, Any]:
    """Inputs of a run that nobody has seen before."""
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


@dataclass(frozen=True)
class Case:
    """A way to run the agent.

    Args:
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
    """LangChain's config of a run with these callbacks."""
    return {
        "callbacks": list(callbacks),
        "recursion_limit": 100,
        "max_concurrency": CONCURRENT,
    }


class Counter(BaseCallbackHandler):
    """Counts every event that it is told."""

    run_inline = True

    def __init__(self) -> None:
        self.events = 0


def _counting(self: Counter, *_: Any, **__: Any) -> None:
    self.events += 1


for _name in dir(BaseCallbackHandler):
    if _name.startswith("on_"):
        setattr(Counter, _name, _counting)


def events_of(player: Player, case: Case) -> int:
    """Events of one call of `case`."""
    counter = Counter()
    case.play(player, config_of([counter]))
    return counter.events
