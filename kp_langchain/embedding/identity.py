"""What makes embeddings comparable: the model they are from, its revision, its baseline."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass

from kp_langchain.errors import ConfigError

_NAMES = ("model", "model_name", "model_id", "deployment")


@dataclass(frozen=True, slots=True)
class EmbedderIdentity:
    """Which embedder a vector is from. Vectors of two identities are never compared.

    Args:
        model: Name or path of the model; of an embedder that names none, its class.
        revision: Which version of it; empty if it has none.
        baseline: Cosine similarity of unrelated texts to it, 0 to below 1. Novelty is counted from
            there.
    """

    model: str = ""
    revision: str = ""
    baseline: float = 0.0


NO_IDENTITY = EmbedderIdentity()
"""Of what no embedder made."""


def identity_of(embedder: object) -> EmbedderIdentity:
    """Return what an embedder says of itself.

    That is its `identity`, or what its attributes `model` (or `model_name`, `model_id`,
    `deployment`), `revision` and `baseline` say.

    Raises:
        ConfigError: The baseline is none; the message has its value.
    """
    own = _attribute(embedder, "identity")
    if isinstance(own, EmbedderIdentity):
        return own
    names = (_attribute(embedder, name) for name in _NAMES)
    kind = f"{type(embedder).__module__}.{type(embedder).__qualname__}"
    model = next((name for name in names if isinstance(name, str) and name), kind)
    revision = _attribute(embedder, "revision")
    return EmbedderIdentity(
        model,
        revision if isinstance(revision, str) else "",
        checked_baseline(_attribute(embedder, "baseline"), type(embedder).__name__),
    )


def checked_baseline(value: object, source: str) -> float:
    """Return a baseline as a float, 0 for None.

    Raises:
        ConfigError: It is no number from 0 to below 1; the message names `source`.
    """
    if value is None:
        return 0.0
    shown = ascii(value)[:40] if isinstance(value, bool | str) else type(value).__name__
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if 0 <= number < 1:  # false of NaN as well
            return number
        shown = f"{number:g}"
    raise ConfigError(
        f"baseline of {source} is {shown}; it must be a number from 0 to below 1: the cosine "
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
