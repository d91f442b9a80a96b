"""The arguments of `KPCallbackHandler`, and what can be used as each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kp_langchain.config import DomainPolicy
from kp_langchain.errors import ConfigError
from kp_langchain.store import TraceStore
from kp_langchain.values import clean_text

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace
    from kp_langchain.recording.outcome import OutcomeFunction, Verifier
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.registry import Registry
    from kp_langchain.scoring.scorer import Scorer

_FUNCTIONS = ("outcome", "on_scored", "objective", "redactor")


class Default(Enum):
    """Stands for "as the settings say" in arguments for which None has a meaning."""

    STORE = "the store of the settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The arguments of `KPCallbackHandler`, unresolved; its docstring explains them.

    Raises:
        ConfigError: One cannot be used; the message names it, its value, and what would be right.
    """

    domain: str = "default"
    policy: DomainPolicy | Mapping[str, DomainPolicy] | None = None
    scorer: Scorer | None = None
    store: TraceStore | str | Path | Default | None = Default.STORE
    registry: Registry | str | None = None
    outcome: OutcomeFunction | None = None
    verifiers: Sequence[Verifier] = ()
    agent_id: str | None = None
    on_scored: Callable[[ScoredTrace], object] | None = None
    objective: Callable[[Any], str | None] | None = None
    redactor: Callable[[str], str] | None = None
    send_scores_to: Sequence[str | ScoreReceiver] | None = None

    def __post_init__(self) -> None:
        for name, (is_usable, advice) in _CHECKS.items():
            value = getattr(self, name)
            is_left_out = value is None and name not in _NEVER_NONE
            if not is_left_out and not is_usable(value):
                raise ConfigError(f"{name} is {value!r}; {advice}")


def _is_domain(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != "" and clean_text(value) == value


def _is_function(value: Any) -> bool:
    return callable(value) and not iscoroutinefunction(value)


def _are_verifiers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        callable(one) and not isinstance(one, type) for one in value
    )


def _is_scorer(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "evaluate", None))


def _is_policy(value: Any) -> bool:
    values = value.values() if isinstance(value, Mapping) else [value]
    return all(isinstance(one, DomainPolicy) for one in values)


def _is_store(value: Any) -> bool:
    return value is Default.STORE or isinstance(value, (TraceStore, str, Path))


_NEVER_NONE = ("domain", "verifiers")
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "domain": (_is_domain, "give a non-empty text such as 'finance'"),
    "policy": (_is_policy, "give a DomainPolicy or a mapping from domain to DomainPolicy"),
    "store": (_is_store, "give a TraceStore, a database URL or file, or None to keep nothing"),
    "registry": (
        lambda value: isinstance(value, str) or hasattr(value, "contribute"),
        "give a Registry, its URL, or leave it out for the one of the settings",
    ),
    "verifiers": (_are_verifiers, "give a list of functions, each of one FinishedRun"),
    "scorer": (_is_scorer, "give a Scorer or leave it out"),
    "agent_id": (lambda value: isinstance(value, str), "give a text such as 'kp:agent:me'"),
    "send_scores_to": (
        lambda value: isinstance(value, (list, tuple)),
        "give a list such as ['langsmith'], or leave it out",
    ),
    **dict.fromkeys(
        _FUNCTIONS,
        (
            _is_function,
            "give a function (not an async one, it is called on a worker thread) or leave it out",
        ),
    ),
}
