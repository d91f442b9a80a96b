"""`capture`: a handler for every run inside a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from kp_langchain.recording.handler import KPCallbackHandler

if TYPE_CHECKING:
    from pathlib import Path

    from kp_langchain.config import DomainPolicy
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.options import Default
    from kp_langchain.recording.outcome import OutcomeFunction
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.recording.verifiers import Verifier
    from kp_langchain.registry import Registry
    from kp_langchain.scoring.scorer import Scorer
    from kp_langchain.store import TraceStore


class CaptureOptions(TypedDict, total=False):
    """The arguments of `KPCallbackHandler` except the domain; its docstring explains them."""

    policy: DomainPolicy | Mapping[str, DomainPolicy] | None
    scorer: Scorer | None
    store: TraceStore | str | Path | Default | None
    registry: Registry | str | None
    outcome: OutcomeFunction | None
    verifiers: Sequence[Verifier]
    verifier_timeout_s: float
    agent_id: str | None
    on_scored: Callable[[ScoredTrace], object] | None
    objective: Callable[[Any], str | None] | None
    redactor: Callable[[str], str] | None
    send_scores_to: Sequence[str | ScoreReceiver] | None


captured_handler: ContextVar[KPCallbackHandler | None] = ContextVar(
    "kp_langchain_handler", default=None
)
"""The handler of the innermost block of `capture` around this code."""


@cache
def _register_hook() -> None:
    """Register `captured_handler` as a LangChain configure hook, once per process."""
    from langchain_core.tracers.context import register_configure_hook

    register_configure_hook(captured_handler, inheritable=True)


@contextmanager
def capture(
    domain: str = "default", **options: Unpack[CaptureOptions]
) -> Iterator[KPCallbackHandler]:
    """Record every run inside the block, without touching its code.

        with capture(domain="finance") as handler:
            agent.invoke(...)
        print(handler.last().breakdown)

    Args:
        domain: As for `KPCallbackHandler`.
        **options: Any other argument of `KPCallbackHandler`.

    Raises:
        ConfigError: As for `KPCallbackHandler`.

    Yields:
        The handler. It lives on after the block, which does not wait for the scoring.
    """
    handler = KPCallbackHandler(domain, **options)
    _register_hook()
    token = captured_handler.set(handler)
    try:
        yield handler
    finally:
        captured_handler.reset(token)
