"""Record every run of the process, switched on by the environment variable `KP_CAPTURE`.

LangChain makes a new handler of a hook's class each time it configures a run. This class hands out
the same one each time, and none to runs that have a `KPCallbackHandler` already.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.capture import captured_handler
from kp_langchain.recording.handler import KPCallbackHandler

if TYPE_CHECKING:
    from contextvars import ContextVar

_CAPTURE: Final = "KP_CAPTURE"
_DOMAIN: Final = "KP_DOMAIN"
_lock = ForkSafeLock()
_handler: BaseCallbackHandler | None = None


class _OnePerProcess(type):
    """A class that is called like a handler's, and returns the one of the process."""

    def __call__(cls) -> BaseCallbackHandler:
        return process_handler()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, KPCallbackHandler) or instance is _handler


class _ProcessHandler(metaclass=_OnePerProcess):
    """What LangChain takes for the handler's class."""


def process_handler() -> BaseCallbackHandler:
    """Return the handler of all runs of the process; one that records nothing if none can be made.

    Its domain is that of `KP_DOMAIN`, all else is in the settings.
    """
    global _handler
    with _lock:
        if _handler is None:
            try:
                _handler = KPCallbackHandler(os.environ.get(_DOMAIN) or "default")
            except Exception as error:  # noqa: BLE001 - the agent must run all the same
                warn_once(
                    "process capture",
                    "%s is set, and nothing is recorded: %s",
                    _CAPTURE,
                    describe_error(error),
                )
                _handler = BaseCallbackHandler()
        return _handler


def register() -> None:
    """Have LangChain attach the process's handler to every run while `KP_CAPTURE` is set."""
    variable: ContextVar[Any] = captured_handler
    kind: Any = _ProcessHandler
    register_configure_hook(variable, inheritable=True, handle_class=kind, env_var=_CAPTURE)
