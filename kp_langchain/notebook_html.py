"""Pieces of HTML for notebooks: escaped text, tables, bars. None has a script or loads anything."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from kp_langchain.text import printable

_LONGEST_TEXT_CHARS = 2000
_MUTED = "opacity:.65"


class Html(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as escaped text of at most 2,000 characters, without control characters."""
    whole = value if isinstance(value, str) else str(value)
    cut = whole[:_LONGEST_TEXT_CHARS]
    if len(whole) > len(cut):
        cut += f" ... [{len(whole) - len(cut):,} more characters]"
    return Html(html.escape(printable(cut, keep="\n")))


def heading(title: object, note: object = "") -> Html:
    """Return a title with a note beside it."""
    return Html(f"<div><b>{_piece(title)}</b> <span style='{_MUTED}'>{_piece(note)}</span></div>")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Return a table; what looks like a number is aligned on the right."""
    head = "".join(f"<th style='text-align:left'>{text(name)}</th>" for name in headings)
    lines = ("".join(map(_cell, row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    head = f"<thead><tr>{head}</tr></thead>" if headings else ""
    return Html(
        f"<table style='font-variant-numeric:tabular-nums'>{head}<tbody>{body}</tbody></table>"
    )


def bar(start: float, end: float, *, mark: float | None = None) -> Html:
    """Return a bar from `start` to `end` on a line from 0 to 1, and perhaps a mark on it."""
    low, high = sorted((min(max(start, 0.0), 1.0), min(max(end, 0.0), 1.0)))
    opacity = ".35" if end < start else ".75"
    parts = [
        f"<rect x='{low * 100:.1f}' y='3' width='{max(high - low, 0.01) * 100:.1f}' height='8' "
        f"fill='currentColor' opacity='{opacity}'/>"
    ]
    if mark is not None:
        parts.append(
            f"<line x1='{mark * 100:.1f}' x2='{mark * 100:.1f}' y1='0' y2='14' "
            "stroke='currentColor' stroke-width='1.5'/>"
        )
    return Html(
        "<svg role='img' aria-label='"
        f"from {start:.3f} to {end:.3f}' width='160' height='14' viewBox='0 0 100 14' "
        "preserveAspectRatio='none' style='background:rgba(128,128,128,.15)'>"
        f"{''.join(parts)}</svg>"
    )


def folded(summary: object, content: Html) -> Html:
    """Return content that is shown when a person opens it."""
    return Html(f"<details><summary>{_piece(summary)}</summary>{content}</details>")


def joined(*parts: Html) -> Html:
    """Return parts one below the other."""
    return Html(f"<div>{''.join(parts)}</div>")


def _cell(value: object) -> str:
    is_number = isinstance(value, int | float) or _looks_like_number(value)
    align = "right" if is_number else "left"
    return (
        f"<td style='text-align:{align};vertical-align:top;white-space:pre-wrap'>"
        f"{_piece(value)}</td>"
    )


def _looks_like_number(value: object) -> bool:
    if isinstance(value, Html) or not isinstance(value, str):
        return False
    return bool(value) and value.lstrip("+-").replace(".", "", 1).isdigit()


def _piece(value: object) -> Html:
    return value if isinstance(value, Html) else text(value)
