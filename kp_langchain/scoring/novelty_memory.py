"""`NoveltyMemory`: the protocol of the memory that a scorer measures novelty against."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from kp_langchain._logging import describe_error, warn_once
from kp_langchain.embedding.embedding_result import Embedding
from kp_langchain.embedding.identity import NO_IDENTITY, EmbedderIdentity
from kp_langchain.novelty_sources import MEMORY_FAILED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.scoring.breakdown import Nearest


class MemoryEntry(NamedTuple):
    """What a memory compares and keeps of one trace.

    Attributes:
        trace_id: The trace's id.
        fingerprint: Hash of the trace's text, see `repeats.fingerprint`; None for an entry that
            only adds a vector to one that the memory already has.
        vector: Embedding of the text, float32, shape (dimensions,); None if it has none.
        identity: The embedder that the vector comes from. Only vectors of one identity can be
            compared.
        domain: Domain of the trace; empty if not known.
    """

    trace_id: str
    fingerprint: bytes | None
    vector: NDArray[np.float32] | None = None
    identity: EmbedderIdentity = NO_IDENTITY
    domain: str = ""


class Match(NamedTuple):
    """What a memory has that is similar to an entry.

    Attributes:
        nearest: The trace with the most similar vector; None if no vector was compared.
        repeat: The newest trace with the same fingerprint; None if there is none.
    """

    nearest: Nearest | None
    repeat: Nearest | None


@runtime_checkable
class NoveltyMemory(Protocol):
    """Remembers traces, so that a scorer can measure how new another one is.

    All methods may be called from any thread. A method that raises has remembered nothing.
    `VectorError` reaches the scorer's caller: the memory does not fit the scorer's embedder. After
    any other error the scorer calls again without the vector. If that also fails, novelty is 0.5,
    and one warning per kind of error says so.
    """

    @property
    def max_elements(self) -> int:
        """How many traces it remembers at most."""
        ...

    def compare(self, entry: MemoryEntry, *, ignore: Set[str] = frozenset()) -> Match:
        """Compare an entry with the remembered ones.

        Args:
            entry: The entry.
            ignore: Ids of remembered traces that do not count.
        """
        ...

    def compare_then_add(
        self, entries: Sequence[MemoryEntry], *, ignore: Set[str] = frozenset()
    ) -> list[Match]:
        """Compare entries with the remembered ones and with those before them, and remember them.

        Comparing an entry and remembering it is one atomic act: of two equal entries that are added
        at the same time, one finds the other. Other callers may come between two entries.

        Args:
            entries: The entries; their vectors come from the same embedder.
            ignore: Ids of remembered traces that do not count.

        Returns:
            One match per entry, in order.
        """
        ...

    def add(self, entry: MemoryEntry) -> None:
        """Remember an entry."""
        ...


def report_memory_failure(error: Exception) -> Embedding:
    """Return the embedding of a trace that no memory compares, and warn once per kind of error."""
    problem = f"{MEMORY_FAILED}: {type(error).__name__}"
    warn_once(
        problem,
        "novelty is 0.5 while the novelty memory fails (%s); not logged again",
        describe_error(error),
    )
    return Embedding(None, problem)
