"""The settings that hold for the whole process, and not for one handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kp_langchain.embedding.background import background
from kp_langchain.recording import exit_hooks, pauses

if TYPE_CHECKING:
    from kp_langchain.config import Settings


def apply(settings: Settings) -> None:
    """Apply the settings that are process-wide: the exit timeout and the limit on paused runs.

    Only settings can change these; no handler argument does.

    Args:
        settings: As they were just read.
    """
    exit_hooks.exit_timeout_s = background.exit_timeout_s = settings.exit_timeout_s
    pauses.set_limit(settings.max_paused_runs)
