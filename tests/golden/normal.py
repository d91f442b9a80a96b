"""What differs between two runs of one program is written alike: ids, times, folders, digits."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from tempfile import gettempdir
from typing import Any

DIGITS = 6  # of floats, after the point
_VOLATILE = re.compile(
    r"(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\bcall_\d+\b)"
    r"|(?P<short_id>\A[0-9a-f]{8}(?=  ))"
    r"|(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)"
    r"|(?P<address>\b0x[0-9a-f]{6,16}\b)"
    r"|(?P<elapsed>(?<=elapsed: )\d+\.\d+s|(?<=scored       in )\d+ ms)"
    rf"|(?P<folder>(?:/tmp|{re.escape(gettempdir())})/[\w./-]*?(?=[\w-]+\.\w+\b|[^\w./-]|\Z))"
)
# What releases of LangChain, pydantic and typer say differently.
_BY_RELEASE = re.compile(
    r"\n\s*For (?:troubleshooting,|further information) visit:? \S+ ?"
    r"|User rejected the tool call for `\w+` with reason: "
    r"|\. The tool was not executed\. Do not retry this tool call unless .*? requests it\."
    r"| tool_calls=\[\] invalid_tool_calls=\[\](?=\Z)"
    r"|\AUsage: .*"
    r"|(?<=\ATry ')python -m [\w.]+(?=kp-langchain )"
)
_TIMED = re.compile(r"_ms\Z|_seconds\Z|\A(?:created|updated|judged|began|ended|expires)_at\Z")
_LEFT_OUT = frozenset(("over_budget", "kp_version"))  # of the machine, of the release


def normal(value: Any) -> Any:
    """Return JSON in which ids are numbered, and times, durations and folders have one form.

    Args:
        value: Anything that JSON can hold. Other objects are written as text.
    """
    return _normal(value, {})


def _normal(value: Any, ids: dict[str, int]) -> Any:
    if isinstance(value, Mapping):
        members = (
            (str(key), item)
            for key, item in value.items()
            # The version of a model is a number, that of a package text.
            if key not in _LEFT_OUT and not (key == "version" and isinstance(item, str))
        )
        return {
            _text(key, ids): "TIMED" if _is_timed(key, item) else _normal(item, ids)
            for key, item in members
        }
    if isinstance(value, list | tuple | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return [_normal(item, ids) for item in items]
    if isinstance(value, float):
        # First to more digits, so that half of the last one is rounded alike, whatever is summed in
        # which order: since Python 3.12 `sum` is more exact.
        return round(round(value, DIGITS + 4), DIGITS) + 0.0 if value == value else "nan"
    if value is None or isinstance(value, bool | int):
        return value
    return _text(str(value), ids)


def _is_timed(key: str, item: Any) -> bool:
    return item is not None and not isinstance(item, dict) and _TIMED.search(key) is not None


def _text(text: str, ids: dict[str, int]) -> str:
    return _VOLATILE.sub(partial(_placed, ids=ids), _BY_RELEASE.sub("", text))


def _placed(match: re.Match[str], ids: dict[str, int]) -> str:
    if match.lastgroup == "id":
        return f"id{ids.setdefault(match[0], len(ids) + 1)}"
    return str(match.lastgroup).upper()


def canonical(value: Any) -> str:
    """Return normal JSON as one line, the same for equal values."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def short_hash(value: Any) -> str:
    """Return 10 hexadecimal digits for normal JSON."""
    return sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()[:10]
