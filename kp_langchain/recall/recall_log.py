"""What recall knows of the run that is under way, and what it tells handlers and log of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kp_langchain._logging import log_event
from kp_langchain.config import Settings
from kp_langchain.recall.agent_runs import followers_of
from kp_langchain.recording.langchain_context import ambient_run_id, current_handlers
from kp_langchain.redaction import redact
from kp_langchain.run_keys import argument_text, namespace_text

if TYPE_CHECKING:
    from kp_langchain.recall.example import Example
    from kp_langchain.recording.handler import KPCallbackHandler


def ambient_handlers() -> list[KPCallbackHandler]:
    """Return the handlers of the run around this code, each once."""
    handlers = [
        *current_handlers("kp_langchain.recording.handler", "KPCallbackHandler"),
        *followers_of(ambient_run_id()),
    ]
    return list({id(handler): handler for handler in handlers}.values())


def note_shown(
    examples: Sequence[Example],
    text: str,
    *,
    held_out: bool = False,
    run_id: UUID | None = None,
    handlers: Iterable[KPCallbackHandler] | None = None,
) -> None:
    """Have handlers note what a run is shown, or held out from.

    Args:
        examples: The examples.
        text: The text by which the run is shown them; "" if it is held out.
        held_out: Whether it is held out.
        run_id: The id of the run, or of one inside it; by default the one around this code.
        handlers: The handlers; by default those of the run around this code.
    """
    run_id = run_id or ambient_run_id()
    if run_id is None or not examples:
        return
    shown = [example.as_shown(held_out=held_out) for example in examples]
    for handler in ambient_handlers() if handlers is None else handlers:
        handler.note_shown(run_id, shown, text)


def ambient_metadata() -> Mapping[str, Any]:
    """Return the metadata of the run around this code; empty outside of runs."""
    # Imported here because it takes 0.3 s; once something runs, it is imported anyway.
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get()
    return (config.get("metadata") if config else None) or {}


def namespace_in(metadata: Mapping[str, Any], argument: str | None = None) -> str | None:
    """Return the namespace whose traces a run may be shown, in plain text.

    Args:
        metadata: The metadata of the run.
        argument: The namespace that the program names itself, in place of the one in the metadata.

    Returns:
        None if there is none, or the metadata name an unusable one: such a run is shown only traces
        without a namespace.
    """
    sources = Settings.current().run_keys
    if argument is not None:
        return argument_text(sources, argument)
    return namespace_text(sources, metadata) or None


def recorded_domain(domain: str) -> str:
    """Return a domain that a run's metadata name as it is recorded: redacted.

    Args:
        domain: The domain in plain text.
    """
    rules = Settings.current().redaction
    return str(redact(domain, level="aggregated", rules=rules).value)


def whose_keys() -> tuple[str, ...]:
    """Return the names in a run's metadata that say whose it is, and what it is about."""
    sources = Settings.current().run_keys
    names = (*sources.namespace, *sources.user, *sources.session, *sources.thread)
    return tuple(dict.fromkeys((*names, "kp_domain", "kp_task")))


def log_recall(
    run_id: UUID | None,
    domain: str,
    found: Sequence[Example],
    text: str,
    floor: float,
    reason: str,
) -> None:
    """Write the record `kp.recall` of what a run is shown, or why it is shown nothing."""
    shown = ", ".join(f"{one.trace_id} (similarity {one.similarity:.2f})" for one in found)
    log_event(
        "kp.recall %s %s",
        domain,
        f"shown {shown}" if text else f"nothing shown: {reason}",
        fields={
            "event": "kp.recall",
            "run_id": None if run_id is None else str(run_id),
            "domain": domain,
            "shown": [one.trace_id for one in found] if text else [],
            "similarities": [one.similarity for one in found],
            "trust": [one.trust for one in found],
            "credit": [one.credit for one in found],
            "floor": floor,
            "characters": len(text),
            "reason": reason,
        },
    )
