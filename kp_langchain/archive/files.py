"""Files of this machine and behind URLs: sources are found and opened, results are written."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit
from uuid import uuid4

from kp_langchain.errors import KPError
from kp_langchain.importing.json_lines import STDIO
from kp_langchain.parquet import load_extra
from kp_langchain.text import printable

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
"""The files of a folder that are read, as they are or with `.gz` appended."""

_GZIP = b"\x1f\x8b"
_PIPED_BYTES = 1 << 20
_WILDCARDS = frozenset("*?[")
# What file systems of fsspec call it.
_MARKS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")
_PART = ".kp-part"


@contextmanager
def access_errors(file: str, action: str) -> Iterator[None]:
    """Raise what goes wrong with a file as a `KPError` that names it.

    Args:
        file: The file, folder or URL.
        action: What could not be done: `read`, `opened` or `written`.

    Raises:
        KPError: The block raised any error.
    """
    try:
        yield
    except KPError:
        raise
    except Exception as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        name = name_of(file)
        raise KPError(f"{name} cannot be {action}: {why.replace(file, name)}") from error


# ------------------------------------------------------------------ sources


def find_files(sources: Sequence[str]) -> list[str]:
    """Return the files that sources stand for: files, folders, and patterns such as `runs/*.jsonl`.

    Of a folder, those are all files in it and below with one of `SUFFIXES`, in order, without those
    whose path has a name that begins with `_` or a dot.

    Args:
        sources: Paths or URLs, or `-` for standard input.

    Raises:
        KPError: There is no such file, one is named twice, or its name is no text.
    """
    files: list[str] = []
    for source in sources:
        has_wildcard = not _WILDCARDS.isdisjoint(source) and not Path(source).exists()
        if source == STDIO or ("://" not in source and not has_wildcard and is_file(source)):
            files.append(source)
        else:
            files += _files_below(source, has_wildcard=has_wildcard)
    known: set[str] = set()
    for file in files:
        place = file if _is_elsewhere(file) else os.path.realpath(file)
        if place in known:
            raise KPError(f"{name_of(file)} is given more than once")
        known.add(place)
        try:
            file.encode()
        except UnicodeEncodeError:
            raise KPError(f"{printable(file)}: the name is no UTF-8; rename it") from None
    return files


def _is_elsewhere(file: str) -> bool:
    """Return whether a file is behind a URL, or a pipe."""
    return file == STDIO or "://" in file


def is_pipe(file: str) -> bool:
    """Return whether a file can be read only once, as standard input can, and a named pipe."""
    return file == STDIO or not (_is_elsewhere(file) or Path(file).is_file())


def is_below(file: str, folder: str) -> bool:
    """Return whether a file is in a folder, or in one below it; or behind URLs likewise."""
    if _is_elsewhere(file) or "://" in folder:
        return file.startswith(f"{folder.rstrip('/')}/")
    return Path(os.path.realpath(file)).is_relative_to(os.path.realpath(folder))


def name_of(file: str) -> str:
    """Return the name of a file as it may be kept: of a URL without user, password and query."""
    if "://" not in file:
        return file
    parts = urlsplit(file)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="", fragment="").geturl()


class Version(NamedTuple):
    """What tells versions of a file apart.

    Attributes:
        name: Its name, as `name_of` has it.
        size: Its size in bytes.
        mark: Changes with its content, such as the time of its last change; empty if not known.
    """

    name: str
    size: int
    mark: str


def version_of(file: str) -> Version:
    """Return the version of a file.

    Raises:
        KPError: It cannot be read.
    """
    with access_errors(file, "read"):
        if "://" not in file:
            stat = Path(file).stat()
            return Version(file, stat.st_size, str(stat.st_mtime_ns))
        (fsspec,) = load_extra("fsspec")
        system, path = fsspec.url_to_fs(file)
        info = system.info(path)
        mark = next((str(info[name]) for name in _MARKS if info.get(name)), "")
        return Version(name_of(file), int(info.get("size") or 0), mark)


def is_file(source: str) -> bool:
    """Return whether a path of this machine is a file, and not a folder.

    Raises:
        KPError: There is nothing at it.
    """
    try:
        Path(source).stat()
    except (OSError, ValueError) as error:
        raise KPError(f"{source}: {getattr(error, 'strerror', None) or error}") from error
    return not Path(source).is_dir()


def _files_below(source: str, *, has_wildcard: bool) -> list[str]:
    (fsspec,) = load_extra("fsspec")
    with access_errors(source, "read"):
        if "://" in source:
            system, path = fsspec.url_to_fs(source)
        else:  # where `a::b` is one name
            system, path = fsspec.filesystem("file"), str(Path(source).absolute())
        if has_wildcard:
            names = [name for name in system.glob(path) if not system.isdir(name)]
        elif system.isdir(path):
            names = [name for name in system.find(path) if _is_read(name, path)]
        else:
            return [source]
    if not names:
        suffixes = "" if has_wildcard else f" that ends in {', '.join(SUFFIXES)}"
        raise KPError(f"{name_of(source)}: there is no file{suffixes}")
    if "://" in source:
        return [system.unstrip_protocol(name) for name in sorted(names)]
    here = str(Path.cwd()) + "/"  # as the user named them
    return [name if source.startswith("/") else name.removeprefix(here) for name in sorted(names)]


def _is_read(name: str, folder: str) -> bool:
    parts = PurePosixPath(name.removeprefix(folder)).parts
    return name.removesuffix(".gz").endswith(SUFFIXES) and not any(
        part.startswith(("_", ".")) for part in parts
    )


@contextmanager
def opened(file: str, folder: str = "") -> Iterator[io.BufferedReader]:
    """Open a file, a URL, a named pipe or standard input (`-`) to read bytes.

    What gzip compressed is read as it was before, but not from a pipe.

    Args:
        file: A path, a URL, or `-`.
        folder: What a path is relative to; by default the working folder.

    Raises:
        KPError: It cannot be read.
    """
    if file == STDIO:
        yield cast(io.BufferedReader, Piped(sys.stdin.buffer))
        return
    with access_errors(file, "read"):
        if "://" in file:
            (fsspec,) = load_extra("fsspec")
            stream = io.BufferedReader(fsspec.open(file, "rb").open())
        else:
            stream = Path(folder, file).open("rb")  # noqa: SIM115 - closed below
    with access_errors(file, "read"), stream:
        if is_pipe(str(Path(folder, file)) if "://" not in file else file):
            yield cast(io.BufferedReader, Piped(stream))
        elif stream.peek(len(_GZIP)).startswith(_GZIP):
            yield io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=stream)))
        else:
            yield stream


def check_unpacked(file: str, beginning: bytes) -> None:
    """Check that what comes from a pipe is not compressed.

    Args:
        file: The pipe.
        beginning: Its first two bytes or more.

    Raises:
        KPError: It is.
    """
    if beginning.startswith(_GZIP):
        raise KPError(f"{file} is compressed; unpack it: zcat | kp-langchain ... {STDIO}")


class Piped:
    """A pipe, of which a line is read without waiting for what comes after it."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._is_over = stream, False
        self._rest, self._searched = bytearray(), 0

    @property
    def has_line(self) -> bool:
        """Whether the next line is here already."""
        return self._line_bytes() > 0

    def _line_bytes(self) -> int:
        """Return the length of the next line; 0 if its end is not here."""
        end = self._rest.find(b"\n", self._searched) + 1
        self._searched = max(end - 1, 0) if end else len(self._rest)
        return end

    def _fill(self) -> bool:
        part = b"" if self._is_over else self._stream.read1(_PIPED_BYTES)
        self._is_over = not part
        self._rest += part
        return bool(part)

    def _take(self, size: int) -> bytes:
        part = bytes(self._rest[:size])
        del self._rest[:size]
        self._searched = max(self._searched - size, 0)
        return part

    def peek(self, size: int) -> bytes:
        """Return what is next, without reading it: a line, or so many bytes."""
        while not self.has_line and len(self._rest) < size and self._fill():
            pass
        return bytes(self._rest)

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, or fewer at the end; all of them if the size is negative."""
        while (size < 0 or len(self._rest) < size) and self._fill():
            pass
        return self._take(len(self._rest) if size < 0 else size)

    def readline(self, size: int) -> bytes:
        """Return a line, or so many bytes of it."""
        while not self.has_line and len(self._rest) < size and self._fill():
            pass
        return self._take(min(self._line_bytes() or size, size))


# ------------------------------------------------------------------ results


class Storage:
    """Files below one folder or URL, each of which is whole as soon as it has its name.

    Args:
        url: The folder or URL.
    """

    def __init__(self, url: str) -> None:
        self.url = name = url.rstrip("/") or url
        if "::" in name or ("://" in name and not _WILDCARDS.isdisjoint(name)):
            raise KPError(f"{name} cannot be written: it holds ::, or one of {' '.join('*?[')}")
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
        """Return whether nothing is there yet, but what a killed process had begun to write."""
        system, root = self._opened
        with access_errors(self.url, "opened"):
            return not system.exists(root) or (
                bool(system.isdir(root)) and all(name.endswith(_PART) for name in self.names())
            )

    def names(self) -> list[str]:
        """Return the names of all files, in order."""
        system, root = self._opened
        with access_errors(self.url, "read"):
            return sorted(path.removeprefix(f"{root}/") for path in system.find(root))

    def dataset(self, names: Sequence[str]) -> Any:
        """Return Parquet files, one after the other, as a dataset of pyarrow."""
        (dataset,) = load_extra("pyarrow.dataset")
        with access_errors(self.url, "read"):
            return dataset.dataset([*map(self._place, names)], filesystem=self._opened[0])

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

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to write bytes; it takes the place of one of its name when it is whole.

        Raises:
            KPError: It cannot be written.
        """
        system, place = self._opened[0], self._place(name)
        with access_errors(f"{self.url}/{name}", "written"):
            if not self._is_local:  # an object that is closed early would pass as whole
                with NamedTemporaryFile() as copy:
                    yield cast(BinaryIO, copy)
                    copy.flush()
                    system.put_file(copy.name, place)
                return
            with self._part_of(place) as part:
                with part.open("wb") as stream:
                    yield stream
                    os.fsync(stream.fileno())
                part.replace(place)

    @contextmanager
    def _part_of(self, place: str) -> Iterator[Path]:
        """Yield an empty file beside a place, which only its owner may read; remove it."""
        path = Path(place)
        Path(self._opened[1]).mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{uuid4().hex[:12]}{_PART}")
        try:
            part.touch(mode=0o600)
            yield part
        finally:
            part.unlink(missing_ok=True)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, which takes the place of one of its name.

        Raises:
            KPError: It cannot be written.
        """
        with self.writing(name) as stream:
            stream.write(content)

    def create(self, name: str, content: bytes) -> None:
        """Write a file unless there is one of its name.

        Raises:
            KPError: It cannot be written.
        """
        system, place = self._opened[0], self._place(name)
        with access_errors(f"{self.url}/{name}", "written"), suppress(FileExistsError):
            if not self._is_local:
                system.pipe_file(place, content, mode="create")
                return
            with self._part_of(place) as part:
                part.write_bytes(content)
                os.link(part, place)

    def remove_folders(self, names: Sequence[str]) -> None:
        """Remove folders with all that is in them, if they are there."""
        for name in names:
            with access_errors(f"{self.url}/{name}", "removed"), suppress(FileNotFoundError):
                if self._is_local:
                    shutil.rmtree(self._place(name))
                else:
                    self._opened[0].rm(self._place(name), recursive=True)

    def remove_parts(self) -> None:
        """Remove what processes that were killed had begun to write."""
        if self._is_local:
            for path in Path(self._opened[1]).rglob(f"*{_PART}"):
                path.unlink(missing_ok=True)
