"""Redactors that settings can name."""

from __future__ import annotations


def without_names(text: str) -> str:
    return text.replace("Ada", "[name]")


def failing(text: str) -> str:
    raise LookupError(text)
