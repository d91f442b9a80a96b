"""What a task is like whatever its values.

"Count Rita's customers of tier 3" should find a run that counted Omar's of tier 7, rather than one
that looked up Rita's address. So a task is compared twice: as it reads, and with typical values in
the place of its own: numbers, dates, ids, names, quoted texts. Which these are, the text alone
says: if it depended on other runs, a task would be less similar to itself for what they did.
"""

from __future__ import annotations

import re

from kp_langchain.recall.deciding_calls import NAME, VALUE
from kp_langchain.recall.task_wordings import GAP

_READ_CHARS = 2_000
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
_NUMBER = re.compile(r"[\d.,]+")
# A name stands for what is known to be a value but reads like none.
_TYPICAL_DATE, _TYPICAL_NUMBER, _TYPICAL_NAME = "2020-01-01", "7", "Alex"


def masked(task: str) -> str:
    """Return a task with typical values in the place of its own.

    Args:
        task: The task in words.
    """
    without_names = NAME.sub(_TYPICAL_NAME, task[:_READ_CHARS])
    return VALUE.sub(lambda match: _typical(match[0]), without_names) + task[_READ_CHARS:]


def _typical(value: str) -> str:
    if _DATE.fullmatch(value):
        return _TYPICAL_DATE
    return _TYPICAL_NUMBER if _NUMBER.fullmatch(value) else _TYPICAL_NAME


def as_task(kind: str) -> str:
    """Return what tasks have in common as one of them: with a typical value where they differ."""
    return kind.replace(GAP, _TYPICAL_NAME)
