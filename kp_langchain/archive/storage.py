"""Where the results of an archive are: a folder, or a URL that fsspec opens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from kp_langchain.archive.sources import access_errors, load_extra
from kp_langchain.errors import KPError

_PART = ".part"


class Storage:
    """Files below one folder or URL, each of which is whole as soon as it has its name.

    Args:
        url: The folder or URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or url
        # Another process may have another working folder.
        self._root = self.url if "://" in self.url else str(Path(self.url).absolute())

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return type(self), (self._root,)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        (fsspec,) = load_extra("fsspec")
        with access_errors(self.url, "opened"):
            system, root = fsspec.url_to_fs(self._root)
        return system, root.rstrip("/")

    @property
    def _is_local(self) -> bool:
        from fsspec.implementations.local import LocalFileSystem

        return isinstance(self._opened[0], LocalFileSystem)

    def _place(self, name: str) -> str:
        return f"{self._opened[1]}/{name}"

    def is_empty(self) -> bool:
        """Return whether nothing is there yet."""
        system, root = self._opened
        with access_errors(self.url, "opened"):
            return not system.exists(root) or (
                bool(system.isdir(root)) and not system.ls(root, detail=False)
            )

    def size_of(self, file: str) -> int:
        """Return the size in bytes of any file, which need not be below the folder.

        Raises:
            KPError: It cannot be read.
        """
        with access_errors(file, "read"):
            if "://" not in file:
                return Path(file).stat().st_size
            (fsspec,) = load_extra("fsspec")
            system, path = fsspec.url_to_fs(file)
            return int(system.size(path) or 0)

    def exists(self, name: str) -> bool:
        """Return whether a file is there."""
        with access_errors(f"{self.url}/{name}", "read"):
            return bool(self._opened[0].exists(self._place(name)))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with access_errors(f"{self.url}/{name}", "read"):
            try:
                content: bytes = self._opened[0].cat_file(self._place(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
            return content

    def open(self, name: str) -> Any:
        """Open a file to read bytes at any place.

        Raises:
            KPError: It is not there.
        """
        with access_errors(f"{self.url}/{name}", "read"):
            try:
                return self._opened[0].open(self._place(name), "rb")
            except FileNotFoundError:
                raise KPError(
                    f"{self.url}/{name} is gone; the same command makes it again"
                ) from None

    def write(self, name: str, content: bytes) -> None:
        """Write a file, which takes the place of one of its name.

        Raises:
            KPError: It cannot be written.
        """
        system, place = self._opened[0], self._place(name)
        with access_errors(f"{self.url}/{name}", "written"):
            if not self._is_local:  # an object appears when it is whole
                system.pipe_file(place, content)
                return
            path = Path(place)
            # What is in an archive is for its owner, unless that says otherwise.
            Path(self._opened[1]).mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.{os.getpid()}{_PART}")
            try:
                part.write_bytes(content)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)

    def remove_folders(self, names: Sequence[str]) -> None:
        """Remove folders with all that is in them, if they are there."""
        for name in names:
            with suppress(FileNotFoundError):
                self._opened[0].rm(self._place(name), recursive=True)

    def remove_parts(self) -> None:
        """Remove what processes that were killed had begun to write."""
        if self._is_local:
            for path in Path(self._opened[1]).rglob(f"*{_PART}"):
                path.unlink(missing_ok=True)
