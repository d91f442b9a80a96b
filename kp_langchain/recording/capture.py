"""`capture` attaches a handler to all runs of a block, `KP_CAPTURE` one to all of a process.

LangChain makes a new handler of a hook's class each time it configures a run. The class here hands
out the same one each time, and none to runs that have a `KPCallbackHandler` already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, ParamSpec

from langchain_core.callbacks import BaseCallbackHandler

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain._logging import describe_error, warn_once
from kp_langchain.recording.handler import KPCallbackHandler

Arguments = ParamSpec("Arguments")

_CAPTURE: Final = "KP_CAPTURE"
_DOMAIN: Final = "KP_DOMAIN"
_captured_handler: ContextVar[Any] = ContextVar("kp_langchain_handler", default=None)
_lock = ForkSafeLock()
_handler: BaseCallbackHandler | None = None


@cache
def _register_hook(**process: Any) -> None:
    """Have LangChain attach the handler of the innermost block, once per process.

    Args:
        **process: The class of a handler for the whole process, and the variable that asks for it.
    """
    from langchain_core.tracers.context import register_configure_hook  # imports 500 modules

    register_configure_hook(_captured_handler, inheritable=True, **process)


def _in_a_block(
    make: Callable[Arguments, KPCallbackHandler],
) -> Callable[Arguments, AbstractContextManager[KPCallbackHandler]]:
    @contextmanager
    def capture(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[KPCallbackHandler]:
        """Record every run inside the block, without touching its code.

            with capture(domain="finance") as handler:
                agent.invoke(...)
            print(handler.last().breakdown)

        Args:
            *args: As for `KPCallbackHandler`.
            **kwargs: As for `KPCallbackHandler`.

        Raises:
            ConfigError: As for `KPCallbackHandler`.

        Yields:
            The handler. It lives on after the block, which does not wait for the scoring.
        """
        handler = make(*args, **kwargs)
        _register_hook()
        token = _captured_handler.set(handler)
        try:
            yield handler
        finally:
            _captured_handler.reset(token)

    return capture


capture = _in_a_block(KPCallbackHandler)


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
    _register_hook(handle_class=_ProcessHandler, env_var=_CAPTURE)
