"""A confidence model in a few lines of text: what it is based on, and what speaks against it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.cli.kept_share import KeptShare
from kp_langchain.errors import MissingExtraError
from kp_langchain.printable import printable

if TYPE_CHECKING:
    from kp_langchain.calibration.later_verdicts import LaterVerdicts
    from kp_langchain.domain_policy import DomainPolicy
    from kp_langchain.store import InstalledModel, TraceStore


def leaning_lines(model: ConfidenceModel) -> Iterator[str]:
    """Yield what a model leans on, and a warning if it may have learned one size or count only."""
    if model.leans_on:
        yield f"It leans on: {printable(', '.join(model.leans_on))}."
    if model.warning is not None:
        yield f"Warning: {printable(model.warning)}."


def model_lines(entry: InstalledModel, later: LaterVerdicts | None) -> Iterator[str]:
    """Yield a summary of a model in force, and what speaks against it.

    Args:
        entry: The model.
        later: What the verdicts given since say of it; None if that is not known.
    """
    yield f"{printable(entry.domain)}: version {entry.version}, {entry.model.source}"
    if not entry.model.is_current:
        yield f"outdated and not used; {how_to_refit(entry.domain)}"
    if entry.model.warning is not None:
        yield f"warning: {printable(entry.model.warning)}"
    if later is not None and later.is_broken:
        yield f"{later}; {how_to_refit(entry.domain)}"


def later_line(domain: str, later: LaterVerdicts) -> str:
    """Return what the verdicts given since a model was fitted say of it."""
    advice = f"; {how_to_refit(domain)}" if later.is_broken else ""
    text = f"{later}{advice}."
    return text[:1].upper() + text[1:]


def later_verdicts_of(store: TraceStore, entry: InstalledModel) -> LaterVerdicts | None:
    """Return what the verdicts given since say of a model; None if that is not known.

    Raises:
        StoreError: The labelled runs cannot be read.
    """
    from kp_langchain.calibration.later_verdicts import later_verdicts

    with suppress(MissingExtraError):
        return later_verdicts(entry.model, store.models.labelled(entry.domain))
    return None


def kept_share_of(store: TraceStore, entry: InstalledModel, policy: DomainPolicy) -> KeptShare:
    """Return what the gate of a model's domain promises, and what it kept since it is in force.

    Args:
        store: The store.
        entry: A model in force, of the version that this package uses.
        policy: The domain's policy.

    Raises:
        StoreError: The runs cannot be read.
    """
    since = entry.model.created_at
    return KeptShare.of(policy, list(store.recent_values(entry.domain, policy.gate, since=since)))


def model_json(store: TraceStore, entry: InstalledModel, policy: DomainPolicy) -> dict[str, Any]:
    """Return a model and what there is to say about it, ready for JSON.

    Args:
        store: The store.
        entry: The model.
        policy: The domain's policy.

    Raises:
        StoreError: The labelled runs cannot be read.
    """
    later = later_verdicts_of(store, entry) if entry.active else None
    is_used = entry.active and entry.model.is_current
    return {
        "version": entry.version,
        "active": entry.active,
        "installed_at": entry.installed_at.isoformat(),
        "leans_on": entry.model.leans_on,
        "warning": entry.model.warning,
        "later_verdicts": later and asdict(later),
        "gate": asdict(kept_share_of(store, entry, policy)) if is_used else None,
        "model": entry.model.to_dict(),
    }


def how_to_refit(domain: str) -> str:
    """Return what to do about a model that should be replaced."""
    return f"fit it again: kp-langchain calibrate --domain {printable(domain)}"
