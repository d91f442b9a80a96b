"""Redacts the notes of verdicts that reach the store directly.

Handlers use `Drafter.redact_note`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

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


def use_redactor(location: str, redactor: Redactor, *, owner: object) -> None:
    """Have the notes of verdicts on a store's runs go through a redactor.

    Args:
        location: Where the store is.
        redactor: The redactor.
        owner: Whose it is. When its owner is gone, it is used no longer.
    """
    with _lock:
        _redactors.setdefault(location, weakref.WeakKeyDictionary())[owner] = redactor


def redactor_of(location: str) -> Redactor | None:
    """Return the redactor for notes in a store; None if there is none.

    It is the one that the settings name, and then those of the handlers in this process that
    record into the store, each once.

    Raises:
        ConfigError: The settings cannot be read, or the redactor that they name not be imported.
    """
    configured = Settings.current().redaction.load_redactor()
    with _lock:
        own = [*_redactors.get(location, {}).values()]
    redactors = [*([configured] if configured is not None else []), *own]
    distinct = [one for at, one in enumerate(redactors) if one not in redactors[:at]]
    if not distinct:
        return None

    def redact_further(text: str) -> str:
        for redactor in distinct:
            text = redactor(text)
        return text

    return redact_further


_redactors: dict[str, weakref.WeakKeyDictionary[object, Redactor]] = {}
_lock = ForkSafeLock()
