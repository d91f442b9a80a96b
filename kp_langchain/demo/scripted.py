"""A chat model with scripted answers, for runs in which everything else is real."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

Answer = AIMessage | BaseException

_ids = count(1)


def call(name: str, call_id: str = "", **args: Any) -> ToolCall:
    """Return a tool call as a model requests it; by default with an id of its own."""
    return ToolCall(name=name, args=args, id=call_id or f"call_{next(_ids)}", type="tool_call")


def say(text: str, *calls: ToolCall) -> AIMessage:
    """Return an answer with `text` that requests `calls`."""
    return AIMessage(text, tool_calls=list(calls))


class ScriptedChatModel(BaseChatModel):
    """Give the answers in order; raise an exception that is among them.

    Args:
        answers: The answers, one a call.

    Raises:
        LookupError: The model is called more often than it has answers.
        TypeError: An answer is neither an `AIMessage` nor an exception.
    """

    answers: deque[Any] = Field(default_factory=deque)

    def __init__(self, answers: Iterable[Answer] = (), **fields: Any) -> None:
        super().__init__(**{"answers": deque(answers), **fields})

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools, as agents require of a chat model; the script does not depend on them."""
        return self.bind(
            tools=[convert_to_openai_tool(tool) for tool in tools],
            tool_choice=tool_choice,
            **kwargs,
        )

    def _next(self) -> AIMessage:
        if not self.answers:
            raise LookupError("the script has no answer left for this call")
        answer = self.answers.popleft()
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, AIMessage):
            raise TypeError(f"the script holds {answer!r}; it may hold AIMessages and exceptions")
        return answer.model_copy()

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._next())])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        answer = self._next()
        words = answer.text.split(" ") if isinstance(answer.content, str) else []
        for index, word in enumerate(words):
            text = word if index == len(words) - 1 else f"{word} "
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        rest = AIMessageChunk(
            content="" if words else answer.content,
            tool_calls=answer.tool_calls,
            response_metadata=answer.response_metadata,
            usage_metadata=answer.usage_metadata,
            chunk_position="last",
        )
        yield ChatGenerationChunk(message=rest)
