"""`DomainMemories`: one novelty memory for each domain."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import partial

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.scoring.novelty_memory import Match, MemoryEntry, NoveltyMemory

# Runs name their domains themselves, and a memory of 1,000 vectors takes 1.7 MB.
_MOST_DOMAINS = 64


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
            found = self._of(domain).compare_then_add(of_domain, ignore=ignore)
            matches.update(zip(places, found, strict=True))
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
