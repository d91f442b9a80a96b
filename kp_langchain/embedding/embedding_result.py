"""`Embedding`: a text's vector, or the reason why it has none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain import novelty_sources
from kp_langchain._logging import warn_once
from kp_langchain.embedding.identity import NO_IDENTITY, EmbedderIdentity, identity_of
from kp_langchain.embedding.legibility import UNREADABLE_ABOVE, warn_unreadable
from kp_langchain.embedding.packages import INSTALL_HINT
from kp_langchain.errors import KPError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedder_protocol import Embedder


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text's embedding.

    Attributes:
        vector: float32, shape (dimensions,); None if there is none.
        problem: Why there is no vector, as `ScoreBreakdown.novelty_source` words it; empty if there
            is one.
        unreadable_share: Share of the text's tokens that the model cannot read, 0 to 1; None if
            the embedder does not report it.
        identity: The embedder that the vector comes from.
    """

    vector: NDArray[np.float32] | None
    problem: str = ""
    unreadable_share: float | None = None
    identity: EmbedderIdentity = NO_IDENTITY


class LastEmbedding(threading.local):
    """The last text that each thread had embedded, with its embedding."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._embedding: Embedding | None = None

    def set(self, text: str, embedding: Embedding) -> None:
        """Replace the calling thread's last text."""
        self._text, self._embedding = text, embedding

    def of(self, text: str) -> Embedding | None:
        """Return the embedding of a text; None if it is not the calling thread's last one."""
        return self._embedding if text == self._text else None


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> list[Embedding]:
    """Embed those of `texts` that the embedder can read.

    Returns:
        One embedding per text, in order.

    Raises:
        Exception: Whatever the embedder raises.
    """
    unreadable_share = getattr(embedder, "unreadable_share", None)
    embeddings: list[Embedding] = []
    readable: list[str] = []
    for text in texts:
        share: float | None = None if unreadable_share is None else unreadable_share(text)
        if share is not None and share > UNREADABLE_ABOVE:
            warn_unreadable(share)
            embeddings.append(Embedding(None, novelty_sources.UNREADABLE, share))
        else:
            readable.append(text)
            embeddings.append(Embedding(None, "", share))
    vectors = iter(embedder.embed(readable) if readable else ())
    identity = identity_of(embedder)
    return [
        one if one.problem else Embedding(next(vectors), "", one.unreadable_share, identity)
        for one in embeddings
    ]


def is_ready(embedder: Embedder) -> bool:
    """Return whether an embedder has nothing left to load."""
    return bool(getattr(embedder, "ready", True))


def origin(embedder: Embedder) -> object:
    """Return the object that does the work: several adapters may wrap the same one."""
    return getattr(embedder, "origin", embedder)


def report_failure(error: BaseException) -> Embedding:
    """Return the embedding of a text whose embedder raised, and warn once per kind of failure."""
    if isinstance(error, MissingExtraError):
        return report_not_installed()
    name = type(error).__name__
    # Only messages of this package are known not to quote the trace's text.
    detail = error if isinstance(error, KPError) else "message withheld"
    problem = f"{novelty_sources.EMBEDDER_FAILED}: {name}"
    warn_once(
        problem,
        "novelty is 0.5 while the embedder fails with %s (%s); not logged again",
        name,
        detail,
    )
    return Embedding(None, problem)


def report_not_installed() -> Embedding:
    """Return the embedding of a text when no package that runs models is installed; warn once."""
    warn_once(
        "embeddings extra",
        "novelty is 0.5 for every trace but exact repeats, because nothing that runs an embedding "
        "model is installed: %s (or pass embedder=None to say that this is meant)",
        INSTALL_HINT,
    )
    return Embedding(None, novelty_sources.NOT_INSTALLED)
