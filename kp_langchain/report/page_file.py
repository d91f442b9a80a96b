"""Which files a page may replace."""

from __future__ import annotations

import os
from pathlib import Path

from kp_langchain.errors import KPError
from kp_langchain.report.page import MARK


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
