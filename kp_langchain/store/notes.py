"""Redacts the notes of verdicts that reach the store directly.

Handlers use `Drafter.redact_note`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.config import Settings
from kp_langchain.store.rows import clean_text
from kp_langchain.verdict import LONGEST_NOTE_CHARS, Verdict

Redactor: TypeAlias = Callable[[str], str]
"""A user's function that takes a text and returns the redacted text."""


def redact_note(
    verdict: Verdict, *, level: str = "aggregated", redactor: Redactor | None = None
) -> Verdict:
    """Return the verdict with a note that may be written, of at most 4,000 characters.

    Args:
        verdict: The verdict.
        level: The privacy level; by default the strictest one, whatever run it is for.
        redactor: What the note goes through after the rules of the settings.

    Raises:
        ConfigError: The settings cannot be read.
    """
    if verdict.note is None:
        return verdict
    # Here, because it takes 60 ms to import, and most stores are written without notes.
    from kp_langchain.redaction import redact

    rules = Settings.current().redaction
    note = redact(clean_text(verdict.note), level=level, rules=rules, redactor=redactor).value
    return replace(verdict, note=str(note)[:LONGEST_NOTE_CHARS])


class RedactsNotes(Protocol):
    """What records into a store, and may have a redactor of the user's."""

    @property
    def redactor(self) -> Redactor | None:
        """The user's redactor, if there is one."""


def use_redactor(location: str, owner: RedactsNotes) -> None:
    """Redact the notes of verdicts on a store's runs with its owner's redactor.

    Args:
        location: Where the store is.
        owner: What has the redactor. It is held weakly, so its redactor is used until it is freed.
    """
    # Not the redactor itself: it may refer to its owner, which would then never be freed.
    with _lock:
        for other in [known for known, owners in _owners.items() if not owners]:
            del _owners[other]
        _owners.setdefault(location, weakref.WeakSet()).add(owner)


def redactor_of(location: str) -> Redactor | None:
    """Return the redactor for notes in a store; None if there is none.

    It applies the one that the settings name, then those of the handlers in this process that
    record into the store, each once.

    Raises:
        ConfigError: The settings cannot be read, or the redactor that they name cannot be imported.
    """
    with _lock:
        owners = list(_owners.get(location, ()))
    redactors = [Settings.current().redaction.load_redactor(), *(one.redactor for one in owners)]
    distinct = list({id(one): one for one in redactors if one is not None}.values())
    if not distinct:
        return None

    def redact_further(text: str) -> str:
        for redactor in distinct:
            text = redactor(text)
        return text

    return redact_further


_owners: dict[str, weakref.WeakSet[RedactsNotes]] = {}
_lock = ForkSafeLock()
