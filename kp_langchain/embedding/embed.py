"""What an embedder makes of a text: a vector, or a reason why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain._logging import warn_once
from kp_langchain.embedding.identity import NO_IDENTITY, EmbedderIdentity, identity_of
from kp_langchain.embedding.legibility import UNREADABLE_ABOVE, warn_unreadable
from kp_langchain.embedding.local_models import INSTALL_HINT
from kp_langchain.errors import KPError, MissingExtraError
from kp_langchain.scoring import breakdown as parts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kp_langchain.embedding.embedders import Embedder


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text's embedding.

    Args:
        vector: float32, shape (dimensions,); None if there is none.
        problem: Why there is none, in the vocabulary of `ScoreBreakdown.novelty_source`.
        unreadable_share: Share of the text's tokens that the model cannot read, 0 to 1; None if
            the embedder does not tell.
        identity: Which embedder the vector is from.
    """

    vector: NDArray[np.float32] | None
    problem: str = ""
    unreadable_share: float | None = None
    identity: EmbedderIdentity = NO_IDENTITY


def embeddings(embedder: Embedder, texts: Sequence[str]) -> list[Embedding]:
    """Embed what the embedder can read of `texts`.

    Raises:
        Exception: What the embedder raises.
    """
    ask = getattr(embedder, "unreadable_share", None)
    found: list[Embedding] = []
    readable: list[str] = []
    for text in texts:
        share: float | None = None if ask is None else ask(text)
        if share is not None and share > UNREADABLE_ABOVE:
            warn_unreadable(share)
            found.append(Embedding(None, parts.UNREADABLE, share))
        else:
            readable.append(text)
            found.append(Embedding(None, "", share))
    vectors = iter(embedder.embed(readable) if readable else ())
    identity = identity_of(embedder)
    return [
        one if one.problem else Embedding(next(vectors), "", one.unreadable_share, identity)
        for one in found
    ]


def is_ready(embedder: Embedder) -> bool:
    """Tell whether an embedder has nothing to load any more."""
    return bool(getattr(embedder, "ready", True))


def origin(embedder: Embedder) -> object:
    """Return the object that does the work: several adapters may stand before one."""
    return getattr(embedder, "origin", embedder)


def failed(error: BaseException) -> Embedding:
    """Return what there is when an embedder raised, and warn once per kind of failure."""
    if isinstance(error, MissingExtraError):
        return not_installed()
    name = type(error).__name__
    # Only our own messages are known to hold none of the trace's text.
    detail = error if isinstance(error, KPError) else "message withheld"
    problem = f"{parts.EMBEDDER_FAILED}: {name}"
    warn_once(
        problem,
        "novelty is 0.5 while the embedder fails with %s (%s); not logged again",
        name,
        detail,
    )
    return Embedding(None, problem)


def not_installed() -> Embedding:
    """Return what there is when nothing that runs a model is installed, and warn once."""
    warn_once(
        "embeddings extra",
        "novelty is 0.5 for every trace but exact repeats, because nothing that runs an embedding "
        "model is installed: %s (or pass embedder=None to say that this is meant)",
        INSTALL_HINT,
    )
    return Embedding(None, parts.NOT_INSTALLED)
