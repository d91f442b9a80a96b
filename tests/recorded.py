"""Recorded agent runs in a folder beside the checkout, and the program that replays them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "trajectories"
MODES = ("conversation", "turns", "wrapped")
ERRORS = ("raise", "tool_exception", "return")
DOMAINS = {"other": "default"}


def present() -> bool:
    return (FOLDER / "replay.py").exists() and (FOLDER / "runs.jsonl.gz").exists()


def replayer() -> Any:
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return import_module("replay")


def load(name: str = "runs.jsonl.gz") -> Iterator[dict[str, Any]]:
    yield from replayer().load(FOLDER / name)
