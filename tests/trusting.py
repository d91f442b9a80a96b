"""Lay down a kp.toml in the working folder that counts wholly."""

from __future__ import annotations

from pathlib import Path

from kp_langchain import config_trust


def write_trusted(text: str) -> None:
    """Write kp.toml in the working folder, and trust it."""
    path = Path("kp.toml").absolute()
    path.write_text(text, encoding="utf-8")
    config_trust.trust(config_trust.canonical_path(path), path.read_bytes())
