"""Files and folders that nobody but their owner may read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_private(path: Path) -> None:
    """Make an empty file at `path` with mode 0600, and the folders to it with 0700.

    What is there already keeps its contents and its mode.

    Raises:
        OSError: It cannot be made.
    """
    for folder in reversed(path.parents):
        folder.mkdir(mode=0o700, exist_ok=True)
    # Made here, because whoever writes it would go by the umask. One that is there is not opened:
    # closing any descriptor of a file drops all the locks that this process has on it, and then
    # another process takes SQLite's log of it away.
    with suppress(FileExistsError):
        os.close(os.open(path.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
