"""`KPRetriever`: kept traces as the documents of a LangChain retriever."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import PrivateAttr

from kp_langchain.recall.agent_runs import followers_of
from kp_langchain.recall.example import Example
from kp_langchain.recall.example_search import ExampleSearch, check_options, search_of
from kp_langchain.recall.recall_log import namespace_in, note_shown
from kp_langchain.recording.handler import KPCallbackHandler
from kp_langchain.run_keys import check_namespace
from kp_langchain.store import TraceStore
from kp_langchain.store.trace_store import default_store


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
        with_outputs: Whether the outputs of tools are shown, and not only how they ended.
        embedder: As for `Scorer`.
        **fields: Those of `BaseRetriever`, such as `tags`.

    Raises:
        ConfigError: An argument is unusable.
        MissingExtraError: Nothing that runs an embedding model is installed.
    """

    domain: str
    namespace: str | None
    limit: int
    floor: float | None
    max_tokens: int
    with_outputs: bool
    _search: ExampleSearch = PrivateAttr()

    def __init__(
        self,
        domain: str = "default",
        *,
        namespace: str | int | UUID | None = None,
        store: TraceStore | str | Path | None = None,
        limit: int = 3,
        floor: float | None = None,
        max_tokens: int = 800,
        with_outputs: bool = False,
        embedder: object = "auto",
        **fields: Any,
    ) -> None:
        check_options(limit, floor, max_tokens)
        own: dict[str, Any] = {
            "domain": domain,
            "namespace": check_namespace(namespace),
            "limit": limit,
            "floor": floor,
            "max_tokens": max_tokens,
            "with_outputs": with_outputs,
        }
        super().__init__(**own, **fields)
        searched = store if isinstance(store, TraceStore) else default_store(store)
        self._search = search_of(searched, embedder)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        found = self._search.find(
            query,
            domain=self.domain,
            namespace=namespace_in(run_manager.metadata, self.namespace),
            limit=self.limit,
            floor=self.floor,
        ).found
        pairs = [(one, self._document(one)) for one in found]
        pairs = [(one, document) for one, document in pairs if document.page_content]
        note_shown(
            [one for one, _ in pairs],
            "\n".join(document.page_content for _, document in pairs),
            run_id=run_manager.run_id,
            handlers=handlers_of(run_manager),
        )
        return [document for _, document in pairs]

    def _document(self, example: Example) -> Document:
        text = example.as_text(max_tokens=self.max_tokens, with_outputs=self.with_outputs)
        return Document(
            page_content=text,
            id=example.trace_id,
            metadata={
                "kp_trace_id": example.trace_id,
                "similarity": example.similarity,
                "trust": example.trust,
                "credit": example.credit,
                "domain": self.domain,
            },
        )


def handlers_of(run_manager: CallbackManagerForRetrieverRun) -> list[KPCallbackHandler]:
    """Return the handlers that record the run of a retriever."""
    handlers = [one for one in run_manager.handlers if isinstance(one, KPCallbackHandler)]
    return [*handlers, *followers_of(run_manager.run_id)]
