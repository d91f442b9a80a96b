"""`Embedder`: what turns texts into vectors, its identity, and the embeddings that it gives."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from kp_langchain import novelty_sources
from kp_langchain._logging import warn_once
from kp_langchain.embedding.model_files import INSTALL_HINT, MODEL_VARIABLE, MULTILINGUAL_MODEL
from kp_langchain.embedding.texts import UNREADABLE_ABOVE
from kp_langchain.errors import ConfigError, KPError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAMES = ("model", "model_name", "model_id", "deployment")


@runtime_checkable
class Embedder(Protocol):
    """Anything that turns texts into vectors.

    To some embedders unrelated texts are alike: E5, BGE, and many providers' models. Such an
    embedder states their cosine similarity, 0 to below 1, in an attribute `baseline`; novelty is
    counted from there. Its vectors belong to its `model`, `revision` and `baseline`, if it has
    these attributes.
    """

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector per text, shape (n, dimensions)."""
        ...


# ------------------------------------------------------------------ identity


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """The embedder that a vector comes from. Vectors of two identities are never compared.

    Attributes:
        model: Name or path of the model; for an embedder that names none, its class.
        revision: Version of the model; empty if it has none.
        baseline: Cosine similarity of unrelated texts to the embedder, 0 to below 1. Novelty is
            counted from there.
    """

    model: str = ""
    revision: str = ""
    baseline: float = 0.0


NO_IDENTITY = EmbedderIdentity()
"""The identity if no embedder was used."""


def identity_of(embedder: object) -> EmbedderIdentity:
    """Return an embedder's identity.

    That is its attribute `identity`, or else what its attributes `model` (or `model_name`,
    `model_id`, `deployment`), `revision` and `baseline` say.

    Raises:
        ConfigError: The baseline is not a number from 0 to below 1; the message has its value.
    """
    identity = getattr(embedder, "identity", None)
    if isinstance(identity, EmbedderIdentity):
        baseline = check_baseline(identity.baseline, type(embedder).__name__)
        return EmbedderIdentity(str(identity.model), str(identity.revision), baseline)
    names = (getattr(embedder, name, None) for name in _NAMES)
    kind = f"{type(embedder).__module__}.{type(embedder).__qualname__}"
    model = next((name for name in names if isinstance(name, str) and name), kind)
    revision = getattr(embedder, "revision", None)
    return EmbedderIdentity(
        model,
        revision if isinstance(revision, str) else "",
        check_baseline(getattr(embedder, "baseline", None), type(embedder).__name__),
    )


def check_baseline(value: object, source: str) -> float:
    """Return a baseline as a float, 0 for None.

    Args:
        value: The baseline.
        source: What it belongs to, for the message.

    Raises:
        ConfigError: It is not a number from 0 to below 1.
    """
    if value is None:
        return 0.0
    text = type(value).__name__
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        if value < 1 and not value < 0:  # the first is false of NaN as well
            return float(value)
        text = f"{value!r:.40}"
    raise ConfigError(
        f"baseline of {source} is {text}; it must be a number from 0 to below 1: the cosine "
        "similarity of unrelated texts, such as 0.84 for multilingual-e5-small"
    )


# ------------------------------------------------------------------ embeddings


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text's vector, or the reason why it has none.

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


class EmbeddedColumns(NamedTuple):
    """The embeddings of many texts; see `Embedding`.

    Attributes:
        vectors: float32, shape (m, dimensions), of the texts that have one, in order; None if none
            has.
        problems: Why a text has no vector, of each text; empty if it has one.
        unreadable_shares: Share of the tokens that the model cannot read, of each text.
        identity: The embedder that the vectors come from.
    """

    vectors: NDArray[np.float32] | None
    problems: list[str]
    unreadable_shares: list[float | None]
    identity: EmbedderIdentity = NO_IDENTITY

    @classmethod
    def none(cls, problem: str, count: int) -> EmbeddedColumns:
        """Return what texts have if none of them has a vector, for one reason."""
        return cls(None, [problem] * count, [None] * count)


def embed_columns(embedder: Embedder, texts: Sequence[str]) -> EmbeddedColumns:
    """Embed those of `texts` that the embedder can read.

    Raises:
        Exception: Whatever the embedder raises.
    """
    unreadable_share = getattr(embedder, "unreadable_share", None)
    shares: list[float | None] = [None] * len(texts)
    problems = [""] * len(texts)
    if unreadable_share is not None:
        for at, text in enumerate(texts):
            shares[at] = share = unreadable_share(text)
            if share is not None and share > UNREADABLE_ABOVE:
                _warn_unreadable(share)
                problems[at] = novelty_sources.UNREADABLE
    readable = [text for text, problem in zip(texts, problems, strict=True) if not problem]
    vectors = embedder.embed(readable) if readable else None
    return EmbeddedColumns(vectors, problems, shares, identity_of(embedder))


def embed_texts(embedder: Embedder, texts: Sequence[str]) -> list[Embedding]:
    """Embed those of `texts` that the embedder can read.

    Returns:
        One embedding per text, in order.

    Raises:
        Exception: Whatever the embedder raises.
    """
    columns = embed_columns(embedder, texts)
    vectors = iter(() if columns.vectors is None else columns.vectors)
    return [
        Embedding(None, problem, share)
        if problem
        else Embedding(next(vectors), "", share, columns.identity)
        for problem, share in zip(columns.problems, columns.unreadable_shares, strict=True)
    ]


def _warn_unreadable(share: float) -> None:
    warn_once(
        "unreadable",
        "novelty is 0.5 for runs whose language the embedding model cannot read (%.0f %% of the "
        "tokens of this one); for Chinese, Russian, Arabic, Hindi and others set %s=%s, a "
        "multilingual model that also has 384 dimensions",
        100 * share,
        MODEL_VARIABLE,
        MULTILINGUAL_MODEL,
    )


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
