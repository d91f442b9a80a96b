"""A confidence model in a few lines of text: what it is based on, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator

from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.printable import printable
from kp_langchain.store.confidence_models import InstalledModel


def leaning_lines(model: ConfidenceModel) -> Iterator[str]:
    """Yield what a model leans on, and a warning if it may have learned one size or count only."""
    if model.leans_on:
        yield f"It leans on: {printable(', '.join(model.leans_on))}."
    if model.warning is not None:
        yield f"Warning: {printable(model.warning)}."


def model_lines(entry: InstalledModel) -> Iterator[str]:
    """Yield a summary of a model in force, and what speaks against it."""
    yield f"{printable(entry.domain)}: version {entry.version}, {entry.model.source}"
    if not entry.model.is_current:
        yield f"outdated and not used; {how_to_refit(entry.domain)}"
    if entry.model.warning is not None:
        yield f"warning: {printable(entry.model.warning)}"


def how_to_refit(domain: str) -> str:
    """Return what to do about a model that should be replaced."""
    return f"fit it again: kp-langchain calibrate --domain {printable(domain)}"
