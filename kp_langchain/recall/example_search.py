"""`ExampleSearch`: finds the kept traces of a store that may help with a task."""

from __future__ import annotations

import json
import os
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING

from pydantic import ValidationError

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.config import Settings
from kp_langchain.embedding.embedder_protocol import resolve_embedder
from kp_langchain.embedding.embedding_result import embed_texts, is_ready
from kp_langchain.embedding.packages import INSTALL_HINT
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.recall.example import Example, Examples
from kp_langchain.recall.planted_instructions import find_planted
from kp_langchain.recall.ranking import rank
from kp_langchain.recall.task_index import TaskIndex
from kp_langchain.run_keys import namespace_forms
from kp_langchain.schema import ReasoningTrace
from kp_langchain.store.rows import clean_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from collections.abc import Set as AbstractSet
    from typing import Any

    from kp_langchain.embedding.embedding_result import Embedding
    from kp_langchain.embedding.identity import EmbedderIdentity
    from kp_langchain.recall.ranking import Candidate
    from kp_langchain.recall.task_snapshot import Found
    from kp_langchain.redaction.custom_rules import Rules
    from kp_langchain.store import TraceStore

# In memory, of all domains: 10,000 take 30 MB. Runs name their domains themselves, so an index
# counts for some, however few it has.
_MOST_TASKS = 100_000
_LEAST_TASKS = 100
_MOST_READS = 4


class ExampleSearch:
    """Finds the kept traces of a store that may help with a task.

    Traces are compared by their tasks. Only successes are found, none that runs ended worse with,
    and none in which something looks like planted instructions. Among traces of about the same
    similarity, a success that a verdict states comes before one that only looks so. Units of a
    registry come after all others. Of the runs of one task, one is found.

    Args:
        store: The store.
        embedder: As for `Scorer`: `"auto"`, a LangChain `Embeddings`, or anything with `embed`.

    Raises:
        ConfigError: The embedder is unusable.
        MissingExtraError: Nothing that runs an embedding model is installed.
    """

    def __init__(self, store: TraceStore, embedder: object = "auto") -> None:
        resolved = resolve_embedder(embedder)
        if resolved is None:
            if embedder is None:
                raise ConfigError(
                    "embedder is None, but recall compares tasks by their embeddings; pass 'auto', "
                    "a LangChain Embeddings, or an object with embed(texts)"
                )
            raise MissingExtraError(
                f"recall compares tasks by their embeddings, and no model can run: {INSTALL_HINT}"
            )
        self._store = store
        self._embedder = resolved
        self._embedder_argument = embedder
        self._lock = ForkSafeLock()
        self._indexes: OrderedDict[tuple[str, EmbedderIdentity], TaskIndex] = OrderedDict()
        self._answered_in = 0  # the process in which the embedder answered last, or failed

    @property
    def store(self) -> TraceStore:
        """The store of the traces."""
        return self._store

    @property
    def is_ready(self) -> bool:
        """Whether the embedder has its model loaded, or cannot load it."""
        return self._answered_in == os.getpid() or is_ready(self._embedder)

    def embed(self, tasks: Sequence[str]) -> list[Embedding]:
        """Return the embeddings of tasks, in order.

        Args:
            tasks: The tasks in words.

        Raises:
            EmbedderError, MissingExtraError: As for `find`.
        """
        try:
            return embed_texts(self._embedder, tasks)
        finally:
            self._answered_in = os.getpid()

    def __reduce__(self) -> tuple[Callable[..., ExampleSearch], tuple[TraceStore, object]]:
        return search_of, (self._store, self._embedder_argument)

    def __copy__(self) -> ExampleSearch:
        return self

    def __deepcopy__(self, _memo: dict[int, Any]) -> ExampleSearch:
        return self

    def update(self, domain: str, *, most_new: int | None = None) -> bool:
        """Read what is kept in a domain, so that the next search need not.

        Args:
            domain: The domain's exact name.
            most_new: Embed at most so many traces that no process has embedded yet; None for all.

        Returns:
            Whether all are ready to be searched.

        Raises:
            StoreError, EmbedderError, MissingExtraError: As for `find`.
        """
        identity = self.embed(["ready?"])[0].identity
        return self._index(clean_name(domain), identity).update(most_new=most_new)

    def find(
        self,
        task: str,
        *,
        domain: str,
        namespace: str | None = None,
        limit: int = 1,
        floor: float | None = None,
        tools: Collection[str] = (),
        most_new: int | None = None,
        embedding: Embedding | None = None,
    ) -> Examples:
        """Return the most useful kept traces for a task.

        The first call for a domain reads its kept traces, and embeds those that no process has
        embedded yet; later calls read what changed.

        Args:
            task: The task in words.
            domain: The domain's exact name.
            namespace: The namespace of the run, in plain text as `run_keys.namespace_text` returns
                it. Traces of that namespace are found, and those without one; never any others.
            limit: At most so many.
            floor: The similarity (0 to 1) that the tasks must have; by default it is calibrated on
                the domain's own traces.
            tools: The names of the tools that the agent has; empty if unknown. The similarity of a
                trace that calls others counts less: half of it if it calls none of these.
            most_new: Embed at most so many traces that no process has embedded yet; None for all.
            embedding: The embedding of the task as `embed` returned it; None to embed it now.

        Raises:
            ConfigError: The floor or the limit is unusable.
            StoreError: The store cannot be read.
            EmbedderError: The embedder fails.
            MissingExtraError: No package that runs the model is installed.
        """
        check_options(limit, floor)
        if not task.strip():
            return Examples(reason="the run states no task")
        if embedding is None:
            embedding = self.embed([task])[0]
        if embedding.vector is None:
            return Examples(reason=f"the task cannot be embedded: {embedding.problem}")
        index = self._index(clean_name(domain), embedding.identity)
        is_complete = index.update(most_new=most_new)
        forms = [] if namespace is None else namespace_forms(namespace, _rules())
        nearest = index.snapshot.nearest(
            embedding.vector, forms, tools=frozenset(tools), tasks=limit
        )
        least = nearest.floor if floor is None else floor
        found = self._read(rank(nearest.candidates, floor=least), limit)
        reason = "" if found else _reason(nearest, least)
        return Examples(found, least, reason, is_complete)

    def _index(self, domain: str, identity: EmbedderIdentity) -> TaskIndex:
        with self._lock:
            key = (domain, identity)
            index = self._indexes.get(key)
            if index is None:
                index = TaskIndex(self._store, domain, self._embedder, identity)
                self._indexes[key] = index
            self._indexes.move_to_end(key)
            sizes = [max(len(one), _LEAST_TASKS) for one in self._indexes.values()]
            excess = sum(sizes) - _MOST_TASKS
            for size in sizes[:-1]:  # the least recently used first
                if excess <= 0:
                    break
                self._indexes.popitem(last=False)
                excess -= size
            return index

    def _read(self, ranked: Sequence[Candidate], limit: int) -> tuple[Example, ...]:
        """Return the first traces of different tasks, read now.

        One that was deleted or damaged meanwhile makes room for the next one, as far as a few reads
        find one.
        """
        traces: dict[int, tuple[Candidate, ReasoningTrace]] = {}  # by the place among the ranked
        remaining = list(enumerate(ranked))
        for _ in range(_MOST_READS):
            batch = _of_different_tasks(remaining, {one.task for one, _ in traces.values()})
            batch = batch[: limit - len(traces)]
            if not batch:
                break
            bodies = self._store.recall_entries.bodies([one.trace_id for _, one in batch])
            for place, one in batch:
                trace = _trace(bodies.get(one.trace_id))
                # Searched once more, because a unit may have changed since the index was read.
                if trace and not find_planted(trace, is_foreign=one.trust == "registry"):
                    traces[place] = one, trace
            remaining = [pair for pair in remaining if pair not in batch]
        return tuple(
            Example(trace, one.trace_id, number, one.similarity, one.trust, one.credit)
            for number, (_, (one, trace)) in enumerate(sorted(traces.items()), start=1)
        )


def check_options(limit: int, floor: float | None, max_tokens: int = 1) -> None:
    """Check the options of a search, and of the text of what it finds.

    Raises:
        ConfigError: One is unusable; the message has its value.
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 20:
        raise ConfigError(f"limit={limit!r} must be a whole number from 1 to 20")
    if floor is not None and not 0 <= floor <= 1:  # true of NaN as well
        raise ConfigError(f"floor={floor!r} must be a similarity from 0 to 1")
    if max_tokens <= 0:
        raise ConfigError(f"max_tokens={max_tokens!r} must be above 0")


def search_of(store: TraceStore, embedder: object = "auto") -> ExampleSearch:
    """Return a search in a store: one for all that use the default embedder.

    Args:
        store: The store.
        embedder: As for `ExampleSearch`.

    Raises:
        ConfigError, MissingExtraError: As for `ExampleSearch`.
    """
    if embedder != "auto":
        return ExampleSearch(store, embedder)
    with _lock:
        reference = _searches.get(store)
        search = None if reference is None else reference()
        if search is None:
            search = ExampleSearch(store)
            _searches[store] = weakref.ref(search)
        return search


def _rules() -> Rules:
    return Settings.current().redaction


def _trace(body: str | None) -> ReasoningTrace | None:
    try:
        return None if body is None else ReasoningTrace.model_validate(json.loads(body))
    except (ValidationError, ValueError, RecursionError):  # damaged
        return None


def _of_different_tasks(
    ranked: Sequence[tuple[int, Candidate]], others: AbstractSet[int | None]
) -> list[tuple[int, Candidate]]:
    """Return the first of each task, with its place, except for some tasks."""
    tasks = set(others)
    firsts: list[tuple[int, Candidate]] = []
    for place, one in ranked:
        if one.task not in tasks:
            firsts.append((place, one))
            tasks.add(one.task)
    return firsts


def _reason(nearest: Found, floor: float) -> str:
    if not nearest.candidates:
        return "the domain has no kept success that may be shown"
    best = max(one.similarity for one in nearest.candidates)
    if best < floor:
        return f"the nearest task has similarity {best:.2f}, and {floor:.2f} is asked for"
    if max(one.counted_similarity for one in nearest.candidates) < floor:
        return "what is similar enough calls tools that the agent lacks"
    return "what is similar enough cannot be read, or was deleted just now"


# The search has the store, so a strong reference to it would keep the store for ever.
_searches: weakref.WeakKeyDictionary[TraceStore, weakref.ref[ExampleSearch]] = (
    weakref.WeakKeyDictionary()
)
_lock = ForkSafeLock()
