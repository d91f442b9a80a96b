"""Renders the runs of a store as one HTML page that loads nothing else."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from kp_langchain.errors import MissingExtraError
from kp_langchain.report.data import ReportData
from kp_langchain.report.run_records import STEP_CHARS, Body, figure, milliseconds

MARK = "<!doctype html>\n<!-- kp-langchain report -->\n"
"""How every page begins, so that a file can be recognised as one."""

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

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    css, script = _template("page.css"), _template("page.js")
    template, now = _page_template(), datetime.now(UTC)
    packed = _pack(
        {
            "store": data.store,
            "made_at": milliseconds(now),
            "stores_verdicts": stores_verdicts,
            "runs_per_block": _RUNS_PER_BLOCK,
            "domains": [
                {
                    "domain": domain.name,
                    "gate": domain.stats.gate,
                    "threshold": figure(domain.stats.threshold),
                }
                for domain in data.domains or ()
            ],
            "runs": data.runs,
        }
    )
    page: str = template.render(
        css=css,
        script=script,
        policy=content_policy(css, script, stores_verdicts=stores_verdicts),
        data=data,
        made_at=now,
        stores_verdicts=stores_verdicts,
        runs=packed,
        blocks=_blocks(data.bodies, _MOST_BYTES - len(packed)),
    )
    return MARK + page


def content_policy(css: str, script: str, *, stores_verdicts: bool) -> str:
    """Return a Content-Security-Policy that allows this style, this script, and nothing else."""
    connect = "; connect-src 'self'" if stores_verdicts else ""
    return (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(css)}"
        f"{connect}; base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _blocks(bodies: Sequence[Body | None], room_bytes: int) -> list[str]:
    """Return the traces as packed blocks, their texts cut so far that they fit the room."""
    for limit_chars in _STEP_CHARS[:-1]:
        blocks = []
        for block in _pack_blocks(bodies, limit_chars):
            blocks.append(block)
            room_bytes -= len(block)
            if room_bytes < 0:
                break
        else:
            return blocks
        room_bytes += sum(map(len, blocks))
    return list(_pack_blocks(bodies, _STEP_CHARS[-1]))


def _pack_blocks(bodies: Sequence[Body | None], limit_chars: int) -> Iterator[str]:
    for start in range(0, len(bodies), _RUNS_PER_BLOCK):
        some = bodies[start : start + _RUNS_PER_BLOCK]
        yield _pack([None if body is None else body.to_json(limit_chars) for body in some])


def _pack(value: Any) -> str:
    """Return a value as JSON, compressed, in base64."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    packed = gzip.compress(text.encode(errors="replace"), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()


def _template(name: str) -> str:
    folder = resources.files("kp_langchain.report").joinpath("templates")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _page_template() -> Any:
    try:
        from jinja2 import Environment
    except ImportError as error:
        raise MissingExtraError(
            "the report needs jinja2; install it: pip install 'kp-langchain[report]'"
        ) from error
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"decimals": _decimals, "share": _share}
    return environment.from_string(_template("page.html.j2"))


def _decimals(number: float | None, digits: int = 2) -> str:
    if number is None:
        return "\N{EN DASH}"
    return f"{number:.{digits}f}".replace("-", "\N{MINUS SIGN}")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"
