"""`Usage`: what a run took, in tokens by model, calls, and time. It never enters a score.

Tokens are counted as LangChain's `usage_metadata` counts them: cached tokens are a part of the
input, and reasoning a part of the output.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Annotated, Any, Self

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

MOST_TOKENS = 1 << 50
"""Beyond that, tokens are not counted: a float holds as many exactly."""

_MOST_MODELS = 20
_NAME_CHARS = 100

Count = Annotated[int, Field(ge=0, le=MOST_TOKENS, strict=True)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(strict=True)]


@checked(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Tokens of one or more calls of a model.

    Attributes:
        input_tokens: Of all that the model read, cached or not.
        output_tokens: Of all that it wrote, its reasoning included.
        cached_tokens: Those of the input that came from the provider's cache.
        cache_write_tokens: Those of the input that were written into that cache.
        reasoning_tokens: Those of the output that were reasoning.

    Raises:
        pydantic.ValidationError: A value is no number of tokens. The same holds for the classes
            below.
    """

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
    cache_write_tokens: Count = 0
    reasoning_tokens: Count = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


TOKEN_FIELDS = tuple(one.name for one in fields(Tokens))


@checked(frozen=True, slots=True, kw_only=True)
class ModelUsage(Tokens):
    """What the calls of one model took. It also has the fields of `Tokens`.

    Attributes:
        model: The model's name, as it answered or was asked; the name of its class in LangChain if
            neither says it; "" if nothing does.
        provider: Who serves it, as LangChain or the spans name that; "" if unknown.
        is_inner: Whether these are LangChain's own calls, such as those that summarise messages.
        calls: How often the model was asked, failed attempts included.
        reported_calls: How many of these calls reported their tokens.
    """

    model: Name
    provider: Name = ""
    is_inner: bool = False
    calls: Count = 0
    reported_calls: Count = 0


@checked(frozen=True, slots=True, kw_only=True)
class ModelCall(Tokens):
    """One answer of a model, without LangChain's own calls. It has the fields of `Tokens`.

    Attributes:
        step: How many steps the run had before the answer.
        model: As in `ModelUsage`.
        provider: As in `ModelUsage`.
        latency_ms: The milliseconds that it took; None if that is not known.
        is_reported: Whether its tokens are known.
    """

    step: Count
    model: Name = ""
    provider: Name = ""
    latency_ms: Milliseconds | None = None
    is_reported: bool = False

    def to_list(self) -> list[Any]:
        """Return it as a short list for JSON."""
        return [getattr(self, name) for name in _CALL_FIELDS]

    @classmethod
    def from_list(cls, values: Iterable[Any]) -> Self:
        """Return the call that `to_list` wrote.

        Raises:
            ValueError, TypeError: The values are not those of a call.
        """
        return cls(**dict(zip(_CALL_FIELDS, values, strict=True)))


_CALL_FIELDS = tuple(one.name for one in fields(ModelCall))


@checked(frozen=True, slots=True, kw_only=True)
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
    duration_ms: Milliseconds | None = None
    model_ms: Milliseconds | None = None
    tool_ms: Milliseconds | None = None
    model_calls: Count = 0
    tool_calls: Count = 0
    retries: Count = 0

    @property
    def tokens(self) -> Tokens | None:
        """The tokens of all models; None if no call reported any."""
        if not any(one.reported_calls for one in self.models):
            return None
        return Tokens(
            **{
                name: min(sum(getattr(one, name) for one in self.models), MOST_TOKENS)
                for name in TOKEN_FIELDS
            }
        )

    @property
    def total_tokens(self) -> int | None:
        """Input and output together; None if no call reported any."""
        if not any(one.reported_calls for one in self.models):
            return None
        return min(sum(one.total_tokens for one in self.models), MOST_TOKENS)

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
        """Return it flat, such as for a row of a DataFrame; see `usage_row`."""
        return usage_row(self)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values for JSON, with the sum of all tokens."""
        return {
            **{name: getattr(self, name) for name in _SUMS},
            "total_tokens": self.total_tokens,
            "models": [{name: getattr(one, name) for name in _MODEL_FIELDS} for one in self.models],
        }

    @classmethod
    def from_dict(cls, data: object) -> Usage:
        """Return the usage that `to_dict` wrote.

        Raises:
            pydantic.ValidationError: The values are not those of a usage.
        """
        return _ADAPTER.validate_python(data)

    @classmethod
    def from_json(cls, text: str | None) -> Usage | None:
        """Return the usage that a stored text holds; None if it holds none."""
        try:
            return None if text is None else _ADAPTER.validate_json(text)
        except ValidationError:  # another program changed it
            return None


_MODEL_FIELDS = tuple(one.name for one in fields(ModelUsage))
_SUMS = tuple(one.name for one in fields(Usage) if one.name != "models")
# Made at import: made on first use in a forked child, it may wait for ever for a lock of Python's.
_ADAPTER = TypeAdapter(Usage)


def usage_row(usage: Usage | None, cost: float | None = None) -> dict[str, Any]:
    """Return a usage flat, such as for a row of a DataFrame; every value is None if it is unknown.

    The columns are `models` (names, joined by commas), those of `Tokens`, which are None if no call
    reported any, `inner_tokens`, the other fields of `Usage`, and `cost`.

    Args:
        usage: The usage; None if it is not known.
        cost: What it cost, in US dollars; None if that is not known.
    """
    tokens = None if usage is None else usage.tokens
    names = () if usage is None else dict.fromkeys(one.model for one in usage.models if one.model)
    return {
        "models": None if usage is None else ",".join(names),
        **{name: None if tokens is None else getattr(tokens, name) for name in TOKEN_FIELDS},
        "inner_tokens": None if usage is None or tokens is None else usage.inner_tokens,
        **{name: None if usage is None else getattr(usage, name) for name in _SUMS},
        "cost": cost,
    }


def _plus(one: float | None, other: float | None) -> Any:
    return other if one is None else one if other is None else one + other


def merge(models: Iterable[ModelUsage]) -> tuple[ModelUsage, ...]:
    """Return usages with those of one model added up.

    Beyond 20 models the rest are one without a name, so that nobody computes a wrong cost.
    """
    sums: dict[tuple[str, str, bool], dict[str, int]] = {}
    for one in models:
        key = (one.model[:_NAME_CHARS], one.provider[:_NAME_CHARS], one.is_inner)
        if key not in sums and len(sums) >= _MOST_MODELS:
            key = ("", "", one.is_inner)
        numbers = sums.setdefault(key, defaultdict(int))
        for name in ("calls", "reported_calls", *TOKEN_FIELDS):
            numbers[name] = min(numbers[name] + getattr(one, name), MOST_TOKENS)
    return tuple(
        ModelUsage(model=model, provider=provider, is_inner=is_inner, **numbers)
        for (model, provider, is_inner), numbers in sums.items()
    )


# ------------------------------------------------------------------ as providers report it

# Anthropic says by how long the cache keeps it, in place of `cache_creation`.
_CACHE_WRITES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")


def read_tokens(value: object) -> Tokens | None:
    """Return the tokens that a model's answer reports; None if it reports none.

    Args:
        value: LangChain's `usage_metadata`, or a mapping as OpenAI or Anthropic send it.
    """
    if isinstance(value, Tokens) or not isinstance(value, Mapping):
        return value if isinstance(value, Tokens) else None
    read = _number(value, "input_tokens", "prompt_tokens")
    written = _number(value, "output_tokens", "completion_tokens")
    if read is None and written is None:
        return None
    read, written = read or 0, written or 0
    of_input = _details(value, "input_token_details", "prompt_tokens_details")
    of_output = _details(value, "output_token_details", "completion_tokens_details")
    cached = into_cache = reasoning = 0
    if of_input:
        cached = _number(of_input, "cache_read", "cached_tokens") or 0
        into_cache = _number(of_input, "cache_creation", "cache_write_tokens") or 0
        into_cache = max(into_cache, sum(_number(of_input, name) or 0 for name in _CACHE_WRITES))
    if of_output:
        reasoning = _number(of_output, "reasoning", "reasoning_tokens") or 0
    # Anthropic's own form counts both apart from the input, and so do some others.
    read_apart = _number(value, "cache_read_input_tokens") or 0
    written_apart = _number(value, "cache_creation_input_tokens") or 0
    if read_apart or written_apart:
        cached, into_cache = read_apart, written_apart
        read += cached + into_cache
    elif cached + into_cache > read:
        read += cached + into_cache
    return Tokens(
        input_tokens=min(read, MOST_TOKENS),
        output_tokens=max(written, reasoning),
        cached_tokens=cached,
        cache_write_tokens=into_cache,
        reasoning_tokens=reasoning,
    )


def _details(value: Mapping[Any, Any], *names: str) -> Mapping[Any, Any] | None:
    for name in names:
        if isinstance(details := value.get(name), Mapping):
            return details
    return None


def _number(value: Mapping[Any, Any], *names: str) -> int | None:
    for name in names:
        number = value.get(name)
        if type(number) is int and 0 <= number <= MOST_TOKENS:
            return number
    return None
