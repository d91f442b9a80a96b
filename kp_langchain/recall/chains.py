"""`KPRetriever` and `KPExampleSelector`: kept traces as documents, and as examples of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from kp_langchain.errors import ConfigError
from kp_langchain.recall.example_search import Example, check_options, search_of
from kp_langchain.recall.few_shot import Calls, check_calls
from kp_langchain.recall.ranking import KINDS, Kind, check_kinds
from kp_langchain.recording.answers import objective_in
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.recording.langchain_context import ambient_run_id, current_handlers
from kp_langchain.run_keys import check_namespace, namespace_text
from kp_langchain.store import TraceStore, default_store

_LONGEST_TASK_CHARS = 100_000
Location = TraceStore | str | Path | None


# ------------------------------------------------------------------ the run around this code


def ambient_handlers() -> list[KPCallbackHandler]:
    """Return the handlers of the run around this code, each once."""
    handlers = current_handlers("kp_langchain.recording.handler", "KPCallbackHandler")
    return list({id(handler): handler for handler in handlers}.values())


def ambient_metadata() -> Mapping[str, Any]:
    """Return the metadata of the run around this code; empty outside of runs."""
    # Imported here because it takes 0.3 s; once something runs, it is imported anyway.
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get()
    return (config.get("metadata") if config else None) or {}


def namespace_in(metadata: Mapping[str, Any], argument: str | None = None) -> str | None:
    """Return the namespace whose traces a run may be shown, in plain text.

    Args:
        metadata: The metadata of the run.
        argument: The namespace that the program names itself, in place of the one in the metadata.

    Returns:
        None if there is none, or the metadata name an unusable one: such a run is shown only traces
        without a namespace.
    """
    return argument or namespace_text(metadata) or None


def note_shown(
    examples: Sequence[Example],
    text: str,
    *,
    held_out: bool = False,
    is_drawn: bool = False,
    run_id: UUID | None = None,
    handlers: Iterable[KPCallbackHandler] | None = None,
) -> None:
    """Have handlers note what a run is shown, or held out from.

    Args:
        examples: The examples.
        text: The text by which the run is shown them; "" if it is held out.
        held_out: Whether it is held out.
        is_drawn: Whether a lot decided that.
        run_id: The id of the run, or of one inside it; by default the one around this code.
        handlers: The handlers; by default those of the run around this code.
    """
    run_id = run_id or ambient_run_id()
    if run_id is None or not examples:
        return
    shown = [example.as_shown(held_out=held_out, is_drawn=is_drawn) for example in examples]
    for handler in ambient_handlers() if handlers is None else handlers:
        handler.note_shown(run_id, shown, text)


# ------------------------------------------------------------------ retriever and selector


class _ExampleFinder:
    """What `KPRetriever` and `KPExampleSelector` have in common; see their arguments."""

    def __init__(
        self,
        domain: str,
        namespace: object,
        store: Location,
        limit: int,
        floor: float | None,
        max_tokens: int,
        with_outputs: bool,
        calls: Calls,
        kinds: Sequence[Kind],
        embedder: object,
    ) -> None:
        check_options(limit, floor, max_tokens)
        check_calls(calls)
        check_kinds(kinds)
        self.domain, self._namespace = domain, check_namespace(namespace)
        self._limit, self._floor, self._kinds = limit, floor, tuple(kinds)
        self._write = partial(
            Example.as_text, max_tokens=max_tokens, with_outputs=with_outputs, calls=calls
        )
        trace_store = store if isinstance(store, TraceStore) else default_store(store)
        self._search = search_of(trace_store, embedder)

    def examples(
        self,
        task: str,
        metadata: Mapping[str, Any] | None,
        run_id: UUID | None = None,
        handlers: list[KPCallbackHandler] | None = None,
    ) -> list[tuple[Example, str]]:
        """Return the examples for a task, each with its text, and have handlers note them.

        Args:
            task: The task in words.
            metadata: The metadata of the run.
            run_id: The id of the run; by default the one around this code.
            handlers: The handlers that record it; by default those of that run.
        """
        examples = self._search.find(
            task,
            domain=self.domain,
            namespace=namespace_in(metadata or {}, self._namespace),
            limit=self._limit,
            floor=self._floor,
            kinds=self._kinds,
        ).matches
        pairs = [(one, self._write(one)) for one in examples]
        shown = [(one, text) for one, text in pairs if text]
        text = "\n".join(text for _, text in shown)
        note_shown([one for one, _ in shown], text, run_id=run_id, handlers=handlers)
        return shown


class KPRetriever(BaseRetriever):
    """Returns the most useful kept traces for a task, the best first; none if none is good enough.

    Each document is a trace as an example, marked as untrusted reference; its metadata have
    `kp_trace_id`, `similarity`, `trust`, `credit` and `domain`. A `KPCallbackHandler` on the run
    notes what it was shown.

        KPRetriever("finance").invoke("Hedge the pound exposure")

    Args:
        domain: The domain whose traces are searched.
        namespace: A namespace, such as a tenant's id: text, an integer or a UUID. Traces of that
            namespace are found, and those without one. By default it is the one that the metadata
            of the run name.
        store: A `TraceStore`, or a database URL or file; by default that of the settings.
        limit: At most so many traces, 1 to 20.
        floor: The similarity (0 to 1) of tasks that is asked for; by default calibrated for the
            domain.
        max_tokens: The longest text of one trace, in estimated tokens.
        with_outputs: Whether whole outputs of tools are shown, and not only values of them.
        calls: Which calls of a trace are shown: `deciding`, those that its answer rests on, or
            `all`.
        kinds: What is found: `trace`, `pattern` (one that was admitted) or both, the preferred
            first.
        embedder: As for `Scorer`.
        **fields: Those of `BaseRetriever`, such as `tags`.

    Raises:
        ConfigError: An argument is unusable.
        MissingExtraError: Nothing that runs an embedding model is installed.
    """

    _finder: _ExampleFinder = PrivateAttr()

    def __init__(
        self,
        domain: str = "default",
        *,
        namespace: str | int | UUID | None = None,
        store: Location = None,
        limit: int = 3,
        floor: float | None = None,
        max_tokens: int = 800,
        with_outputs: bool = False,
        calls: Calls = "deciding",
        kinds: Sequence[Kind] = KINDS,
        embedder: object = "auto",
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        self._finder = _ExampleFinder(
            domain, namespace, store, limit, floor, max_tokens, with_outputs, calls, kinds, embedder
        )

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        handlers = [one for one in run_manager.handlers if isinstance(one, KPCallbackHandler)]
        examples = self._finder.examples(query, run_manager.metadata, run_manager.run_id, handlers)
        return [
            Document(
                page_content=text,
                id=one.trace_id,
                metadata={
                    "kp_trace_id": one.trace_id,
                    "similarity": one.similarity,
                    "trust": one.trust,
                    "credit": one.credit,
                    "domain": self._finder.domain,
                },
            )
            for one, text in examples
        ]


class KPExampleSelector(BaseExampleSelector):
    """Selects kept traces for `FewShotPromptTemplate` and `FewShotChatMessagePromptTemplate`.

    Each example has the keys `task` and `answer`, as they were recorded, and `example`: the whole
    trace as `to_few_shot` writes it, marked as untrusted reference.

    Args:
        domain: The domain whose traces are searched.
        task_key: The input variable that states the task; by default the usual places are
            searched, as for a run's objective.
        namespace: A namespace, such as a tenant's id: text, an integer or a UUID. Traces of that
            namespace are found, and those without one. By default it is the one that the metadata
            of the run name.
        store: A `TraceStore`, or a database URL or file; by default that of the settings.
        limit: At most so many examples, 1 to 20.
        floor: The similarity (0 to 1) of tasks that is asked for; by default calibrated for the
            domain.
        max_tokens: The longest text of one example, in estimated tokens.
        with_outputs: Whether whole outputs of tools are shown, and not only values of them.
        calls: Which calls of a trace are shown: `deciding`, those that its answer rests on, or
            `all`.
        escape_braces: Whether braces are doubled, because `FewShotPromptTemplate` reads examples as
            part of an f-string template. Set it to False for `FewShotChatMessagePromptTemplate`,
            which does not. Do not use the former with `jinja2` or `mustache` templates: what a
            stored trace says would be read as a template.
        embedder: As for `Scorer`.

    Raises:
        ConfigError: An argument is unusable.
        MissingExtraError: Nothing that runs an embedding model is installed.
    """

    def __init__(
        self,
        domain: str = "default",
        *,
        task_key: str | None = None,
        namespace: str | int | UUID | None = None,
        store: Location = None,
        limit: int = 3,
        floor: float | None = None,
        max_tokens: int = 800,
        with_outputs: bool = False,
        calls: Calls = "deciding",
        escape_braces: bool = True,
        embedder: object = "auto",
    ) -> None:
        kinds: Sequence[Kind] = ("trace",)  # a pattern has no answer that a run gave
        self._finder = _ExampleFinder(
            domain, namespace, store, limit, floor, max_tokens, with_outputs, calls, kinds, embedder
        )
        self._task_key = task_key
        self._escape_braces = escape_braces

    def add_example(self, example: dict[str, str]) -> Any:  # noqa: ARG002
        """Refuse: examples are runs that a handler recorded and the gate kept.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(
            "examples cannot be added by hand: they are runs that a KPCallbackHandler recorded and "
            "its gate kept; `kp-langchain import` reads runs of other tools"
        )

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, str]]:
        """Return the examples for the inputs of a prompt, the best first; perhaps none.

        Args:
            input_variables: The inputs.

        Raises:
            StoreError: The store cannot be read.
            EmbedderError: The embedder fails.
        """
        examples = self._finder.examples(self._task(input_variables), ambient_metadata())
        return [
            {
                "task": self._escape(one.trace.task.objective),
                "answer": self._escape(one.trace.outcome.result_summary),
                "example": self._escape(text),
            }
            for one, text in examples
        ]

    def _escape(self, text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}") if self._escape_braces else text

    def _task(self, input_variables: dict[str, str]) -> str:
        if self._task_key is None:
            return objective_in(input_variables, _LONGEST_TASK_CHARS)
        task = input_variables.get(self._task_key)
        return task if isinstance(task, str) else objective_in(task, _LONGEST_TASK_CHARS)
