"""Points in time on the command line: a date, a date and time, or an age such as `7d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from kp_langchain.errors import KPError
from kp_langchain.printable import printable

_AGE = re.compile(r"(\d{1,6})\s*([mhdw])", re.IGNORECASE)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_EXAMPLES = "write a date (2026-03-31), a time (2026-03-31T18:00), or an age (90m, 12h, 7d, 2w)"


def parse_age(text: str, option: str) -> timedelta:
    """Return the length of time that a text such as `7d` states.

    Args:
        text: A whole number and a unit: `m`, `h`, `d` or `w`.
        option: The option that it was given for, for messages.

    Raises:
        KPError: It is something else.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise KPError(f"{option} {printable(text)}: not an age; write 90m, 12h, 7d or 2w")
    return timedelta(**{_UNITS[match[2].lower()]: int(match[1])})


def parse_time(text: str, option: str) -> datetime:
    """Return the time that a text states, in UTC; a time without a zone is local.

    Args:
        text: A date, which means its beginning; a date and time in ISO 8601; or an age, which is
            counted back from now.
        option: The option that it was given for, for messages.

    Raises:
        KPError: It is none of these, or no time in the calendar.
    """
    try:
        if _AGE.fullmatch(text.strip()):
            return datetime.now(UTC) - parse_age(text, option)
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise KPError(f"{option} {printable(text)}: not a time; {_EXAMPLES}") from None
