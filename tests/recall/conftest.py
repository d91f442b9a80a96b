"""A store for the tests of recall that do not depend on the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kp_langchain import TraceStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TraceStore]:
    with TraceStore(tmp_path / "kp.db") as store:
        yield store
