"""The process's default scorer, its memories, and the documents' `evaluateValue` on it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.novelty_memory import (
    InProcessMemory,
    Match,
    MemoryEntry,
    NoveltyMemory,
)
from kp_langchain.scoring.scorer import Scorer, TraceLike

if TYPE_CHECKING:
    from kp_langchain.config import Settings


class MemoryOf(Protocol):
    """Makes the memory of a scope: of a domain, or of all if the scope is empty."""

    def __call__(self, scope: str, /, max_remembered: int, ttl_ms: float | None) -> NoveltyMemory:
        """Return the memory; `ttl_ms` is None if it forgets a trace only for newer ones."""
        ...


# Runs name their domains themselves, and a memory of 1,000 vectors takes 1.7 MB.
_MOST_DOMAINS = 64

_default_scorer: Scorer | None = None
_default_lock = ForkSafeLock()


def evaluate_value(trace: TraceLike) -> float:
    """Score a trace with the process's default scorer, remember it, return the score, 0 to 1.

    The first call waits until the embedding model is loaded.

    Args:
        trace: The trace, or a mapping in wire form.

    Raises:
        pydantic.ValidationError: The mapping is not a valid trace; the message names the field.
        ConfigError: A setting cannot be read or used.
    """
    trace = ReasoningTrace.model_validate(trace)
    scorer = default_scorer()
    scorer.wait_until_ready()
    return scorer.evaluate(trace).total


async def aevaluate_value(trace: TraceLike) -> float:
    """Do what `evaluate_value` does, in a thread, so that the event loop is never blocked."""
    return await asyncio.to_thread(evaluate_value, trace)


def default_scorer() -> Scorer:
    """Return the one scorer behind `evaluate_value`, `aevaluate_value`, and handlers without store.

    Its latency budget, memory and step cap are the settings `latency_budget_ms`, `novelty_memory`,
    `novelty_ttl_s`, `novelty_scope` and `step_cap` at the time of the first call. The budget limits
    how long `evaluate` waits for a model, and so the scoring of runs; `evaluate_value` waits for
    the model before it calls `evaluate`.

    Handlers with a store have this scorer with another memory, which is in the store.

    Raises:
        ConfigError: A setting cannot be read or used.
    """
    global _default_scorer
    with _default_lock:
        if _default_scorer is None:
            settings = _settings()
            _default_scorer = Scorer(
                step_cap=settings.step_cap, latency_budget_ms=settings.latency_budget_ms
            ).with_memory(_memory(settings, _in_process))
        return _default_scorer


def default_scorer_with(memory_of: MemoryOf) -> Scorer:
    """Return a scorer that differs from the default one only in where it remembers.

    Args:
        memory_of: Makes the memory of a scope.

    Raises:
        ConfigError: A setting cannot be read or used.
    """
    return default_scorer().with_memory(_memory(_settings(), memory_of))


def _settings() -> Settings:
    from kp_langchain.config import Settings

    return Settings()


def _memory(settings: Settings, memory_of: MemoryOf) -> NoveltyMemory:
    """Return the memory that the settings ask for."""
    ttl_s, size = settings.novelty_ttl_s, settings.novelty_memory
    make = partial(memory_of, max_remembered=size, ttl_ms=None if ttl_s is None else ttl_s * 1000)
    return DomainMemories(make, size) if settings.novelty_scope == "domain" else make("")


def _in_process(_scope: str, max_remembered: int, ttl_ms: float | None) -> NoveltyMemory:
    return InProcessMemory(max_remembered, ttl_ms)


class DomainMemories:
    """A novelty memory in which a trace is compared only with those of its own domain.

    The memories of the 64 domains that were used last are held.

    Args:
        memory_of: Makes the memory of a domain.
        max_elements: How many traces each remembers at most.
    """

    def __init__(self, memory_of: Callable[[str], NoveltyMemory], max_elements: int) -> None:
        self._memory_of = memory_of
        self._max_elements = max_elements
        self._memories: OrderedDict[str, NoveltyMemory] = OrderedDict()
        self._lock = ForkSafeLock()

    def __reduce__(self) -> tuple[partial[DomainMemories], tuple[()]]:
        # As for a scorer: the entries stay in this process.
        return (partial(type(self), self._memory_of, self._max_elements), ())

    @property
    def max_elements(self) -> int:
        """How many traces of one domain it remembers at most."""
        return self._max_elements

    def compare(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones of its domain; see `NoveltyMemory`."""
        return self._of(entry.domain).compare(entry, ignore=ignore)

    def compare_then_add(
        self, entries: Sequence[MemoryEntry], *, ignore: Set[str] = frozenset()
    ) -> list[Match]:
        """Compare entries with those of their domains, and remember them; see `NoveltyMemory`."""
        of_domains: dict[str, list[int]] = {}
        for at, entry in enumerate(entries):
            of_domains.setdefault(entry.domain, []).append(at)
        matches: dict[int, Match] = {}
        for domain, places in of_domains.items():
            of_domain = [entries[at] for at in places]
            of_places = self._of(domain).compare_then_add(of_domain, ignore=ignore)
            matches.update(zip(places, of_places, strict=True))
        return [matches[at] for at in range(len(entries))]

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry."""
        self._of(entry.domain).add(entry)

    def _of(self, domain: str) -> NoveltyMemory:
        with self._lock:
            memory = self._memories.get(domain)
            if memory is None:
                memory = self._memories[domain] = self._memory_of(domain)
            self._memories.move_to_end(domain)
            if len(self._memories) > _MOST_DOMAINS:
                self._memories.popitem(last=False)
            return memory
