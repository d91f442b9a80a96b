"""Renders the runs of a store as one HTML page that loads nothing else, and says what it replaces.

The texts of runs are packed as data. The page's own script shows them as text nodes alone, so none
of them can become markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from kp_langchain.errors import KPError
from kp_langchain.report.collect import ReportData
from kp_langchain.report.records import STEP_CHARS, Body, milliseconds, to_json

MARK = "<!doctype html>\n<!-- kp-langchain report -->\n"
"""How every page begins, so that a file can be recognised as one."""

_STYLES = ("base.css", "domains.css", "runs.css", "drawer.css")
# In this order: the last one begins.
_SCRIPTS = (
    "base.js", "verdicts.js", "domains.js", "failures.js", "runs.js", "drawer.js", "compare.js",
    "page.js",
)  # fmt: skip
_MOST_BYTES = 5_600_000
# If the page would be larger, the texts of steps are cut to the next of these lengths.
_STEP_CHARS = (STEP_CHARS, 1000, 500, 250, 120, 60)
# Steps are unpacked when a run is opened, with those of so many runs.
_RUNS_PER_BLOCK = 100


def render(data: ReportData, *, stores_verdicts: bool = False) -> str:
    """Return the page.

    Args:
        data: The runs.
        stores_verdicts: Whether the page is served, and sends verdicts to its server. Otherwise it
            offers them as a file.
    """
    css, script = _joined(_STYLES), _joined(_SCRIPTS)
    packed = _pack(
        {
            "store": data.store,
            "total": data.total,
            "made_at": milliseconds(datetime.now(UTC)),
            "stores_verdicts": stores_verdicts,
            "damaged_traces": data.damaged_traces,
            "private_runs": data.private_runs,
            "runs_per_block": _RUNS_PER_BLOCK,
            "domains": data.domains,
            "runs": data.runs,
        }
    )
    blocks = _blocks(data.bodies, _MOST_BYTES - len(packed))
    return MARK + Template(_template("page.html")).substitute(
        policy=content_policy(css, script, stores_verdicts=stores_verdicts),
        css=css,
        script=script,
        data=_data_element("runs", packed)
        + "".join(_data_element(f"traces-{at}", block) for at, block in enumerate(blocks)),
    )


def content_policy(css: str, script: str, *, stores_verdicts: bool) -> str:
    """Return a Content-Security-Policy that allows this style, this script, and nothing else."""
    connect = "; connect-src 'self'" if stores_verdicts else ""
    return (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(css)}"
        f"{connect}; base-uri 'none'; form-action 'none'"
    )


def check_target(path: Path) -> None:
    """Check that a page may be written to `path`: nothing is there, or an earlier page.

    Raises:
        KPError: Something else is there, or its folder does not exist.
    """
    if not path.parent.is_dir():
        raise KPError(f"there is no folder {path.parent}; make it, or choose another FILE")
    try:
        if path.is_file():
            with path.open("rb") as file:
                is_replaceable = file.read(len(MARK)) in (b"", MARK.encode())
        else:
            is_replaceable = not os.path.lexists(path)
    except OSError as error:
        raise KPError(f"{path} cannot be read: {error.strerror}") from error
    if not is_replaceable:
        raise KPError(f"{path} exists and is no report; choose another FILE, or delete it first")


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _blocks(bodies: Sequence[Body | None], room_bytes: int) -> list[str]:
    """Return the traces as packed blocks, their texts cut so far that they fit the room."""
    for limit_chars in _STEP_CHARS[:-1]:
        blocks, left_bytes = [], room_bytes
        for block in _pack_blocks(bodies, limit_chars):
            blocks.append(block)
            left_bytes -= len(block)
            if left_bytes < 0:
                break
        else:
            return blocks
    return list(_pack_blocks(bodies, _STEP_CHARS[-1]))


def _pack_blocks(bodies: Sequence[Body | None], limit_chars: int) -> Iterator[str]:
    for start in range(0, len(bodies), _RUNS_PER_BLOCK):
        some = bodies[start : start + _RUNS_PER_BLOCK]
        yield _pack([to_json(body, limit_chars) for body in some])


def _pack(value: Any) -> str:
    """Return a value as JSON, compressed, in base64."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    packed = gzip.compress(text.encode(errors="replace"), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()


def _data_element(name: str, packed: str) -> str:
    return f'<script type="application/json" id="{name}">"{packed}"</script>\n'


def _joined(names: Sequence[str]) -> str:
    return "\n".join(_template(name) for name in names)


def _template(name: str) -> str:
    folder = resources.files("kp_langchain.report").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")
