"""`ExampleSearch`: finds the kept traces of a store that may help with a task."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.calibration.planted_instructions import find_planted
from kp_langchain.config import Settings
from kp_langchain.embedding.embedder import Embedding, embed_texts
from kp_langchain.embedding.local_models import resolve_embedder
from kp_langchain.embedding.model_files import INSTALL_HINT
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.gate.run import ShownTrace
from kp_langchain.recall.few_shot import FewShot, compose_few_shot
from kp_langchain.recall.ranking import (
    KINDS,
    Candidate,
    Kind,
    Trust,
    check_kinds,
    rank,
    same_task_cosine,
)
from kp_langchain.recall.task_index import TaskIndex, both_vectors, read_body
from kp_langchain.recall.task_shape import masked
from kp_langchain.run_keys import namespace_forms
from kp_langchain.store.rows import clean_name

if TYPE_CHECKING:
    from kp_langchain.embedding.embedder import EmbedderIdentity
    from kp_langchain.pattern_schema import KnowledgeUnit
    from kp_langchain.recall.few_shot import Calls
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore

AS_GOOD = 0.9
"""Agents are shown other examples beside the first one if they are at least so similar, of it.

Where the first is clearly the nearest, others would distract; where it is not, the right one is
often among them (`python -m tests.benchmarks.live`).
"""

# Runs name their domains themselves. 10,000 tasks of one take 30 MB.
_MOST_DOMAINS = 32


@dataclass(frozen=True, slots=True)
class Example:
    """A kept trace, or a pattern, that was found for a task.

    Attributes:
        unit: The trace or the pattern.
        trace_id: Its id, as `StoredRun` has it.
        rank: Its place among the matches, from 1.
        similarity: The similarity of the two tasks, 0 to 1.
        trust: Where its success comes from: a `verdict`, an `own` run, a `registry`.
        credit: By how much more runs succeeded that were shown it, -1 to 1; 0 if none were.
    """

    unit: KnowledgeUnit
    trace_id: str
    rank: int
    similarity: float
    trust: Trust
    credit: float

    @property
    def trace(self) -> ReasoningTrace:
        """The trace; of a pattern, its steps as one."""
        return self.unit.as_trace()

    def as_text(self, *, max_tokens: int, with_outputs: bool, calls: Calls = "deciding") -> str:
        """Return it as an example for a prompt, with its rank for its number.

        Args:
            max_tokens: As for `to_few_shot`.
            with_outputs: As for `to_few_shot`.
            calls: As for `to_few_shot`.
        """
        return compose_few_shot(
            self.unit,
            trust=self.trust,
            max_tokens=max_tokens,
            with_outputs=with_outputs,
            calls=calls,
            first_number=self.rank,
        ).text

    def as_shown(self, *, held_out: bool = False, is_drawn: bool = False) -> ShownTrace:
        """Return what the recall log has of it.

        Args:
            held_out: Whether the run is not shown it.
            is_drawn: Whether a lot decided that.
        """
        return ShownTrace(self.trace_id, self.rank, self.similarity, held_out, is_drawn)


@dataclass(frozen=True, slots=True)
class Examples:
    """What a search found for a task.

    Attributes:
        matches: The examples, the best first; empty if none is good enough.
        floor: The similarity that was asked for, 0 to 1.
        reason: Why there are none, in words; empty if there are some.
    """

    matches: tuple[Example, ...] = ()
    floor: float = 0.0
    reason: str = ""

    def compose(
        self, *, max_tokens: int = 800, with_outputs: bool = False, calls: Calls = "deciding"
    ) -> FewShot:
        """Return the examples as the text of a prompt, and which of them are shown.

        Args:
            max_tokens: As for `to_few_shot`.
            with_outputs: As for `to_few_shot`.
            calls: As for `to_few_shot`.
        """
        return compose_few_shot(
            [one.unit for one in self.matches],
            trust=[one.trust for one in self.matches],
            max_tokens=max_tokens,
            with_outputs=with_outputs,
            calls=calls,
        )


class ExampleSearch:
    """Finds the kept traces of a store that may help with a task.

    Traces are compared by their tasks. Only successes are found, none that runs ended worse with,
    and none in which something looks like planted instructions. Among traces of about the same
    similarity, a success that a verdict states comes before one that only looks so. Units of a
    registry come after all others. Of the runs of one task, one is found; of a pattern and the
    traces with its plan, too.

    Args:
        store: The store.
        embedder: As for `Scorer`: `"auto"`, a LangChain `Embeddings`, or anything with `embed`.

    Raises:
        ConfigError: The embedder is unusable.
        MissingExtraError: Nothing that runs an embedding model is installed.
    """

    def __init__(self, store: TraceStore, embedder: object = "auto") -> None:
        model = resolve_embedder(embedder)
        if model is None:
            if embedder is None:
                raise ConfigError(
                    "embedder is None, but recall compares tasks by their embeddings; pass 'auto', "
                    "a LangChain Embeddings, or an object with embed(texts)"
                )
            raise MissingExtraError(
                f"recall compares tasks by their embeddings, and no model can run: {INSTALL_HINT}"
            )
        self._store = store
        self._embedder = model
        self._lock = ForkSafeLock()
        self._ready: Embedding | None = None  # any embedding, which says the embedder's identity
        self._indexes: OrderedDict[tuple[str, EmbedderIdentity, int], TaskIndex] = OrderedDict()

    def update(self, domain: str) -> None:
        """Read what is kept in a domain, so that the next search need not.

        Args:
            domain: The domain's exact name.

        Raises:
            StoreError, EmbedderError, MissingExtraError: As for `find`.
        """
        if self._ready is None:
            self._ready = embed_texts(self._embedder, ["ready?"])[0]
        index = self._index(domain, self._ready)
        index.count_outcomes()
        index.update()

    def find(
        self,
        task: str,
        *,
        domain: str,
        namespace: str | None = None,
        limit: int = 1,
        floor: float | None = None,
        tools: Collection[str] = (),
        of_first: float = 0.0,
        kinds: Sequence[Kind] = KINDS,
        counts: bool = True,
    ) -> Examples:
        """Return the most useful kept traces for a task, and admitted patterns.

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
            of_first: The share of the similarity of the first (0 to 1) that the others must have.
            kinds: What to find: `trace`, `pattern` or both, the preferred first.
            counts: Whether it is first counted how runs with examples ended, if that is due. If
                not, `update` counts it.

        Raises:
            ConfigError: The floor, the limit or the kinds are unusable.
            StoreError: The store cannot be read.
            EmbedderError: The embedder fails.
            MissingExtraError: No package that runs the model is installed.
        """
        check_options(limit, floor)
        check_kinds(kinds)
        if not task.strip():
            return Examples(reason="the run states no task")
        embedding = embed_texts(self._embedder, [task])[0]
        if embedding.vector is None:
            return Examples(reason=f"the task cannot be embedded: {embedding.problem}")
        index = self._index(domain, embedding)
        if counts or not index.is_counted:
            index.count_outcomes()
        index.update()
        if index.stop_reason:
            return Examples(reason=index.stop_reason)
        rules = Settings.current().redaction
        forms = [] if namespace is None else namespace_forms(namespace, rules)
        without_values = masked(task)
        other = embedding
        if without_values != task:
            other = embed_texts(self._embedder, [without_values])[0]
        vector = both_vectors(embedding.vector, other.vector)
        candidates, domain_floor = index.nearest(vector, forms, frozenset(tools), kinds)
        least = domain_floor if floor is None else floor
        best = rank(candidates, floor=least, preferred=kinds[0])
        if best:
            near = of_first * best[0].similarity
            best = [one for one in best if one.similarity >= near]
        examples = self._read(best, limit, embedding.identity.baseline)
        reason = "" if examples else _reason(candidates, least)
        return Examples(examples, least, reason)

    def _index(self, domain: str, embedding: Embedding) -> TaskIndex:
        dimensions = 0 if embedding.vector is None else len(embedding.vector)
        key = (clean_name(domain), embedding.identity, dimensions)
        with self._lock:
            index = self._indexes.pop(key, None)
            if index is None:
                index = TaskIndex(self._store, key[0], self._embedder, *key[1:])
            self._indexes[key] = index
            if len(self._indexes) > _MOST_DOMAINS:
                self._indexes.popitem(last=False)  # the least recently used one
            return index

    def _read(
        self, candidates: Sequence[Candidate], limit: int, baseline: float
    ) -> tuple[Example, ...]:
        """Return the first traces of different tasks, and patterns of other plans, read now.

        One that was deleted or damaged meanwhile makes room for the next one.

        Args:
            candidates: The traces, the most helpful first.
            limit: Return at most so many.
            baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1.
        """
        examples: list[Example] = []
        chosen: list[Candidate] = []
        for start in range(0, len(candidates), limit):
            batch = candidates[start : start + limit]
            bodies = self._store.recall_tasks.bodies([one.trace_id for one in batch])
            for one in batch:
                if any(_shows_the_same(one, other, baseline) for other in chosen):
                    continue
                unit = read_body(bodies.get(one.trace_id))
                if unit is None:
                    continue
                # Searched once more, because a unit may have changed since the index was read.
                if find_planted(unit.as_trace(), is_foreign=one.trust == "registry"):
                    continue
                place = len(examples) + 1
                examples.append(
                    Example(unit, one.trace_id, place, one.similarity, one.trust, one.credit)
                )
                chosen.append(one)
                if len(examples) == limit:
                    return tuple(examples)
        return tuple(examples)


def _shows_the_same(one: Candidate, other: Candidate, baseline: float) -> bool:
    """Return whether two are of the same task; or one is a pattern, and the other has its plan.

    A trace has the plan of a pattern if it calls all its tools, and its task is about as similar to
    what the pattern is for as the task that is searched.
    """
    if one.vector is None or other.vector is None:
        return False
    cosine = float(one.vector @ other.vector)
    if one.kind == other.kind:
        return cosine >= same_task_cosine(baseline)
    pattern, trace = (one, other) if one.kind == "pattern" else (other, one)
    similarity = (cosine - baseline) / (1.0 - baseline)
    return set(pattern.plan) <= set(trace.plan) and similarity >= AS_GOOD * pattern.similarity


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
        search = _searches.get(store)
        if search is None:
            search = _searches[store] = ExampleSearch(store)
        return search


def _reason(candidates: Sequence[Candidate], floor: float) -> str:
    if not candidates:
        return "the domain has no kept success that may be shown"
    best = max(one.similarity for one in candidates)
    if best < floor:
        return f"the nearest task has similarity {best:.2f}, and {floor:.2f} is asked for"
    if max(one.counted_similarity for one in candidates) < floor:
        return "what is similar enough calls tools that the agent lacks"
    return "what is similar enough cannot be read, or was deleted just now"


_searches: weakref.WeakValueDictionary[TraceStore, ExampleSearch] = weakref.WeakValueDictionary()
_lock = ForkSafeLock()
