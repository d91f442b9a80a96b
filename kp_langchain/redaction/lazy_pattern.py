"""Regular expressions that are compiled when they are first used.

There are several hundred, most of which a process never needs, and compiling all of them takes
longer than everything else that redaction loads.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

Text = TypeVar("Text", str, bytes)


class _LazyPattern:
    """Has the attributes of the compiled pattern, each from its first use on."""

    def __init__(self, expression: Any, flags: int) -> None:
        self._arguments = (expression, flags)

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(*self._arguments), name)
        setattr(self, name, value)
        return value


def lazy_pattern(expression: Text, flags: int = 0) -> re.Pattern[Text]:
    """Return a regular expression of this package, not compiled yet.

    Args:
        expression: The expression; it must be valid, for an error comes only with its first use.
        flags: As `re.compile` has them.
    """
    return cast("re.Pattern[Text]", _LazyPattern(expression, flags))
