"""Run the demo's tasks through real LangChain loops with the handler attached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from kp_langchain.demo.scripted import ScriptedChatModel
from kp_langchain.demo.tasks import TASKS, DemoTask
from kp_langchain.errors import ConfigError, KPError, MissingExtraError
from kp_langchain.gate import ScoredTrace
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.scoring.scorer import Scorer
from kp_langchain.store import TraceStore


def chat_model(name: str) -> BaseChatModel:
    """Return the chat model `provider:name`.

    Raises:
        MissingExtraError: langchain is not installed.
        ConfigError: There is no such model, or the package or key of its provider is missing.
    """
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise _missing_langchain() from error
    try:
        model: BaseChatModel = init_chat_model(name)
    except Exception as error:
        raise ConfigError(f"the chat model {name!r} cannot be used: {error}") from error
    return model


def run_tasks(
    store: TraceStore, scorer: Scorer, model: BaseChatModel | None = None
) -> Iterator[tuple[DemoTask, ScoredTrace | None]]:
    """Run each task, and yield it with its scored trace; None if the run was not scored.

    Args:
        store: The store for the runs.
        scorer: Scores all of them, so that a repeated task is compared with the first one.
        model: A chat model in place of the script.

    Raises:
        MissingExtraError: langchain is not installed.
        KPError: The chat model failed.
    """
    for task in TASKS:
        handler = KPCallbackHandler(task.domain, store=store, scorer=scorer, agent_id="demo")
        chat = model if model is not None else ScriptedChatModel(task.answers)
        try:
            _invoke(task, chat, handler)
        except ConnectionError:
            pass  # one task's tool fails on purpose: a failed run is scored too
        except Exception as error:
            if model is None:
                raise
            raise KPError(f"the chat model failed: {type(error).__name__}: {error}") from error
        yield task, handler.last()


def _invoke(task: DemoTask, model: BaseChatModel, handler: KPCallbackHandler) -> None:
    config: Any = {"callbacks": [handler]}
    if not task.tools:
        chain = ChatPromptTemplate.from_template("{question}") | model | StrOutputParser()
        chain.invoke({"question": task.question}, config)
        return
    try:
        from langchain.agents import create_agent
    except ImportError as error:
        raise _missing_langchain() from error
    question: Any = {"messages": [("user", task.question)]}
    create_agent(model, list(task.tools)).invoke(question, config)


def _missing_langchain() -> MissingExtraError:
    return MissingExtraError(
        "the demo runs agents of langchain, which is not installed: "
        "pip install 'kp-langchain[demo]'"
    )
