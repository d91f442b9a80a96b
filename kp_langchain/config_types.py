"""The types of settings. A description continues the sentence "it must be ..."."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

_YEAR_S = 365 * 24 * 3600.0
_DAY_MS = 24 * 3600 * 1000.0
# A million vectors take 1.7 GB.
_MOST_REMEMBERED = 1_000_000


def _refuse_bool(value: object) -> object:
    # Pydantic would read `threshold = true` as 1.0.
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")  # noqa: TRY004  (pydantic wants ValueError)
    return value


UNIT_INTERVAL = "a number from 0 to 1"
SECONDS = f"seconds above 0, at most {_YEAR_S:.0f} (a year)"
COUNT = "a whole number above 0"

UnitInterval = Annotated[
    float,
    BeforeValidator(_refuse_bool),
    Field(ge=0, le=1, allow_inf_nan=False, description=UNIT_INTERVAL),
]
PassRate = Annotated[
    float,
    BeforeValidator(_refuse_bool),
    Field(gt=0, le=1, allow_inf_nan=False, description="a share above 0, at most 1"),
]
Baseline = Annotated[
    float,
    BeforeValidator(_refuse_bool),
    Field(ge=0, lt=1, allow_inf_nan=False, description="a number from 0 to below 1"),
]
Count = Annotated[int, BeforeValidator(_refuse_bool), Field(gt=0, description=COUNT)]
Remembered = Annotated[
    int,
    BeforeValidator(_refuse_bool),
    Field(gt=0, le=_MOST_REMEMBERED, description=f"{COUNT}, at most {_MOST_REMEMBERED}"),
]
# The maximum keeps a timeout within what the operating system's timers accept.
Seconds = Annotated[
    float,
    BeforeValidator(_refuse_bool),
    Field(gt=0, le=_YEAR_S, allow_inf_nan=False, description=SECONDS),
]
Days = Annotated[
    float,
    BeforeValidator(_refuse_bool),
    Field(ge=0, le=36_500, allow_inf_nan=False, description="days from 0 to 36500"),
]
Milliseconds = Annotated[
    float,
    BeforeValidator(_refuse_bool),
    Field(
        gt=0,
        le=_DAY_MS,
        allow_inf_nan=False,
        description=f"milliseconds above 0, at most {_DAY_MS:.0f} (a day)",
    ),
]


def _split(value: object) -> object:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


# In the environment separated by commas, because a list there would have to be JSON.
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
