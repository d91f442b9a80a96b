"""`KPExampleSelector`: kept traces as the examples of LangChain's few-shot prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.example_selectors import BaseExampleSelector

from kp_langchain.errors import ConfigError
from kp_langchain.recall.example_search import check_options, search_of
from kp_langchain.recall.recall_log import ambient_metadata, namespace_in, note_shown
from kp_langchain.recording.answers import objective_in
from kp_langchain.run_keys import check_namespace
from kp_langchain.store import TraceStore
from kp_langchain.store.trace_store import default_store

if TYPE_CHECKING:
    from uuid import UUID

    from kp_langchain.recall.example import Example

_LONGEST_TASK_CHARS = 100_000


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
        with_outputs: Whether the outputs of tools are shown, and not only how they ended.
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
        store: TraceStore | str | Path | None = None,
        limit: int = 3,
        floor: float | None = None,
        max_tokens: int = 800,
        with_outputs: bool = False,
        escape_braces: bool = True,
        embedder: object = "auto",
    ) -> None:
        check_options(limit, floor, max_tokens)
        self._domain = domain
        self._task_key = task_key
        self._namespace = check_namespace(namespace)
        self._limit = limit
        self._floor = floor
        self._max_tokens = max_tokens
        self._with_outputs = with_outputs
        self._escape_braces = escape_braces
        owned = store if isinstance(store, TraceStore) else default_store(store)
        self._search = search_of(owned, embedder)

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
        found = self._search.find(
            self._task(input_variables),
            domain=self._domain,
            namespace=namespace_in(ambient_metadata(), self._namespace),
            limit=self._limit,
            floor=self._floor,
        ).found
        pairs = [(one, self._text(one)) for one in found]
        pairs = [(one, text) for one, text in pairs if text]
        note_shown([one for one, _ in pairs], "\n".join(text for _, text in pairs))
        return [
            {
                "task": self._escaped(one.trace.task.objective),
                "answer": self._escaped(one.trace.outcome.result_summary),
                "example": self._escaped(text),
            }
            for one, text in pairs
        ]

    def _escaped(self, text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}") if self._escape_braces else text

    def _text(self, example: Example) -> str:
        return example.as_text(max_tokens=self._max_tokens, with_outputs=self._with_outputs)

    def _task(self, input_variables: dict[str, str]) -> str:
        if self._task_key is None:
            return objective_in(input_variables, _LONGEST_TASK_CHARS)
        task = input_variables.get(self._task_key)
        return task if isinstance(task, str) else objective_in(task, _LONGEST_TASK_CHARS)
