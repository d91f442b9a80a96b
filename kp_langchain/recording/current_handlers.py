"""The callback handlers of the LangChain run that is under way, to find other tracers by."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def current_handlers(module: str, class_name: str) -> Iterator[Any]:
    """Yield the handlers of a class that the run around this code has.

    Args:
        module: The module of the class. One that nobody has imported has no handlers.
        class_name: The name of the class.
    """
    kind = getattr(sys.modules.get(module), class_name, None)
    if not isinstance(kind, type):
        return
    # Imported here because it takes 0.3 s; once something runs, it is imported anyway.
    from langchain_core.runnables.config import var_child_runnable_config

    config = var_child_runnable_config.get()
    manager = config.get("callbacks") if config else None
    for handler in getattr(manager, "handlers", ()):
        if isinstance(handler, kind):
            yield handler
