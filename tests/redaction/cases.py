"""Cases to measure the redactor with, drawn from seeded generators: nothing here is real.

`SECRETS`, `STRUCT` and `IDENTIFIERS` hold (family, a text or structure, what has to be gone from
it); `LOOKALIKES` and `BENIGN` hold (family, a text or structure that has to stay as it is).
"""

from __future__ import annotations

import json
from typing import Any, Final

from tests.redaction.benign_cases import BENIGN, LOOKALIKES
from tests.redaction.context_cases import CONTEXT
from tests.redaction.format_cases import FORMATS
from tests.redaction.identifier_cases import IDENTIFIERS
from tests.redaction.struct_cases import STRUCT

__all__ = ["BENIGN", "IDENTIFIERS", "LOOKALIKES", "SECRETS", "STRUCT", "left_over"]

SECRETS: Final = [*FORMATS, *CONTEXT]


def left_over(secret: str, value: Any) -> bool:
    """Tell whether a text or structure still holds a secret, or 60 % of it in one run."""
    text = "\0".join(_texts(value))
    escaped = json.dumps(secret)[1:-1]
    written = {secret, escaped, json.dumps(secret, ensure_ascii=False)[1:-1]}
    written |= {json.dumps(escaped)[1:-1], secret.replace("@", "%40")}
    if any(form in text for form in written):
        return True
    run = max(6, -(-len(secret) * 6 // 10))
    return len(secret) > run and any(
        secret[at : at + run] in text for at in range(len(secret) - run + 1)
    )


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [text for part in value for text in _texts(part)]
    if isinstance(value, bytes):
        return [value.decode(errors="replace")]
    return [value if isinstance(value, str) else repr(value)]
