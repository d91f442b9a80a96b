"""`Usage`: what a run took, in tokens by model, calls, and time. It never enters a score.

Tokens are counted as LangChain's `usage_metadata` counts them: cached tokens are a part of the
input, and reasoning a part of the output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

_MOST_TOKENS = 1 << 50  # what a database takes even if it is summed over many runs
_MOST_MODELS = 20
_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of one or more calls of a model.

    Attributes:
        input_tokens: Of all that the model read, cached or not.
        output_tokens: Of all that it wrote, its reasoning included.
        cached_tokens: Those of the input that came from the provider's cache.
        cache_write_tokens: Those of the input that were written into that cache.
        reasoning_tokens: Those of the output that were reasoning.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


TOKEN_FIELDS = tuple(one.name for one in fields(Tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUsage(Tokens):
    """What the calls of one model took. It also has the fields of `Tokens`.

    Attributes:
        model: The model's name, as its provider or LangChain gives it; "" if neither does.
        is_inner: Whether these are LangChain's own calls, such as those that summarise messages.
        calls: How often the model was asked, failed attempts included.
        reported_calls: How many of these calls reported their tokens.
    """

    model: str
    is_inner: bool = False
    calls: int = 0
    reported_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall(Tokens):
    """One answer of a model, without LangChain's own calls. It has the fields of `Tokens`.

    Attributes:
        step: How many steps the run had before the answer.
        model: As in `ModelUsage`.
        latency_ms: The milliseconds that it took; None if that is not known.
        is_reported: Whether its tokens are known.
    """

    step: int
    model: str = ""
    latency_ms: float | None = None
    is_reported: bool = False

    def to_list(self) -> list[Any]:
        """Return it as a short list for JSON."""
        return [getattr(self, name) for name in _CALL_FIELDS]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> Self:
        """Return the call that `to_list` wrote."""
        return cls(**dict(zip(_CALL_FIELDS, values, strict=True)))


_CALL_FIELDS = tuple(one.name for one in fields(ModelCall))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a run took.

    Attributes:
        models: The tokens by model; LangChain's own calls of a model stand apart.
        duration_ms: How long the run took, without the time that it waited for a human. None if
            that is not known, as for a list of messages.
        model_ms: In how much of that time a model was working; calls side by side count once.
        tool_ms: In how much of it a tool or retriever was, models that it asks included.
        model_calls: How often a model was asked, LangChain's own calls included.
        tool_calls: How often a tool or retriever was called.
        retries: How many of these calls repeated one that had failed.
    """

    models: tuple[ModelUsage, ...] = ()
    duration_ms: float | None = None
    model_ms: float | None = None
    tool_ms: float | None = None
    model_calls: int = 0
    tool_calls: int = 0
    retries: int = 0

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of all models; None if no call reported any."""
        if not any(one.reported_calls for one in self.models):
            return None
        return Tokens(
            **{name: sum(getattr(one, name) for one in self.models) for name in TOKEN_FIELDS}
        )

    @property
    def inner_tokens(self) -> int:
        """The tokens of LangChain's own calls, input and output together."""
        return sum(one.total_tokens for one in self.models if one.is_inner)

    @property
    def unreported_calls(self) -> int:
        """How many calls of models did not report their tokens."""
        return sum(one.calls - one.reported_calls for one in self.models)

    def __add__(self, other: Usage) -> Usage:
        """Return the usage of two parts of a run."""
        return Usage(
            models=merge([*self.models, *other.models]),
            **{name: _plus(getattr(self, name), getattr(other, name)) for name in _SUMS},
        )

    def to_row(self) -> dict[str, Any]:
        """Return it flat, such as for a row of a DataFrame.

        The columns are `models` (names, joined by commas), those of `Tokens`, which are None if no
        call reported any, `inner_tokens`, and the other fields.
        """
        tokens = self.tokens
        names = dict.fromkeys(one.model for one in self.models if one.model)
        return {
            "models": ",".join(names),
            **{name: None if tokens is None else getattr(tokens, name) for name in TOKEN_FIELDS},
            "inner_tokens": None if tokens is None else self.inner_tokens,
            **{name: getattr(self, name) for name in _SUMS},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values for JSON, with the sum of all tokens."""
        tokens = self.tokens
        return {
            **{name: getattr(self, name) for name in _SUMS},
            "total_tokens": None if tokens is None else tokens.total_tokens,
            "models": [asdict(one) for one in self.models],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the usage that `to_dict` wrote.

        Raises:
            TypeError, LookupError: The values are not those of a usage.
        """
        models = tuple(ModelUsage(**one) for one in data["models"])
        return cls(models=models, **{name: data[name] for name in _SUMS})


_SUMS = tuple(one.name for one in fields(Usage) if one.name != "models")


def _plus(one: float | None, other: float | None) -> Any:
    return other if one is None else one if other is None else one + other


def merge(models: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """Return usages with those of one model added up; beyond 20 models, those of the last."""
    sums: dict[tuple[str, bool], dict[str, int]] = {}
    for one in models:
        key = (one.model[:_NAME_CHARS], one.is_inner)
        if key not in sums and len(sums) >= _MOST_MODELS:
            key = next(reversed(sums))
        numbers = sums.setdefault(key, defaultdict(int))
        for name in ("calls", "reported_calls", *TOKEN_FIELDS):
            numbers[name] += getattr(one, name)
    return tuple(
        ModelUsage(model=model, is_inner=is_inner, **numbers)
        for (model, is_inner), numbers in sums.items()
    )


def read_tokens(value: object) -> Tokens | None:
    """Return the tokens that a model's answer reports; None if it reports none.

    Args:
        value: LangChain's `usage_metadata`, or a mapping as providers send it, with
            `prompt_tokens` and `completion_tokens`.
    """
    if not isinstance(value, Mapping):
        return None
    of_input = _mapping(value, "input_token_details", "prompt_tokens_details")
    of_output = _mapping(value, "output_token_details", "completion_tokens_details")
    numbers = {
        "input_tokens": _number(value, "input_tokens", "prompt_tokens"),
        "output_tokens": _number(value, "output_tokens", "completion_tokens"),
    }
    if all(number is None for number in numbers.values()):
        return None
    numbers |= {
        "cached_tokens": _number(of_input, "cache_read", "cached_tokens"),
        "cache_write_tokens": _number(of_input, "cache_creation", "cache_write_tokens"),
        "reasoning_tokens": _number(of_output, "reasoning", "reasoning_tokens"),
    }
    tokens = {name: number or 0 for name, number in numbers.items()}
    of_cache = tokens["cached_tokens"] + tokens["cache_write_tokens"]
    if of_cache > tokens["input_tokens"]:  # of a provider that counts them apart
        tokens["input_tokens"] += of_cache
    return Tokens(**tokens)


def _mapping(value: Mapping[Any, Any], *names: str) -> Mapping[Any, Any]:
    found = (value.get(name) for name in names)
    return next((one for one in found if isinstance(one, Mapping)), {})


def _number(value: Mapping[Any, Any], *names: str) -> int | None:
    for name in names:
        number = value.get(name)
        if type(number) is int and 0 <= number <= _MOST_TOKENS:
            return number
    return None
