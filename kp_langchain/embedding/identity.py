"""`EmbedderIdentity`: the model, revision and baseline that make two embeddings comparable."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from kp_langchain.errors import ConfigError

_NAMES = ("model", "model_name", "model_id", "deployment")


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
        ConfigError: The baseline is not a number from 0 to below 1, or cannot be read; the message
            has its value.
    """
    identity = _attribute(embedder, "identity")
    if isinstance(identity, EmbedderIdentity):
        baseline = check_baseline(identity.baseline, type(embedder).__name__)
        return EmbedderIdentity(str(identity.model), str(identity.revision), baseline)
    names = (_attribute(embedder, name) for name in _NAMES)
    kind = f"{type(embedder).__module__}.{type(embedder).__qualname__}"
    model = next((name for name in names if isinstance(name, str) and name), kind)
    revision = _attribute(embedder, "revision")
    return EmbedderIdentity(
        model,
        revision if isinstance(revision, str) else "",
        check_baseline(_attribute(embedder, "baseline"), type(embedder).__name__),
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
    text = ascii(value)[:40] if isinstance(value, bool | str) else type(value).__name__
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if 0 <= number < 1:  # false of NaN as well
            return number
        text = f"{number:g}"
    raise ConfigError(
        f"baseline of {source} is {text}; it must be a number from 0 to below 1: the cosine "
        "similarity of unrelated texts, such as 0.84 for multilingual-e5-small"
    )


def _attribute(embedder: object, name: str) -> object:
    try:
        return getattr(embedder, name, None)
    except Exception as error:
        if name == "baseline":
            raise ConfigError(
                f"baseline of {type(embedder).__name__} cannot be read ({type(error).__name__})"
            ) from error
        return None
