"""`Location`: the SQLite file or PostgreSQL URL of a database, parsed from the user's text.

`StorePart` is what the parts of a store have in common: the database that lies there.
"""

from __future__ import annotations

import importlib.util
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kp_langchain.config import Settings, data_dir, mask_password
from kp_langchain.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    import sqlalchemy as sa

_FILE_NAME = "traces.db"
_EXAMPLES = "give a file's path, sqlite:///path, or postgresql://user:password@host/database"


# ------------------------------------------------------------------ where it is


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a database; exactly one of the two is set.

    Attributes:
        path: The absolute path of a SQLite file.
        url: A PostgreSQL URL, password included.
    """

    path: Path | None = None
    url: str | None = None

    def __str__(self) -> str:
        """Return the path or URL with the password masked, for messages."""
        return mask_password(self.url) if self.url else str(self.path)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"


def locate(url: object) -> Location:
    """Return the location that a database URL or path names.

    Args:
        url: A URL or path; None for `Settings.database_url`, or else a file in the data folder.

    Raises:
        ConfigError: `url` is neither a path nor a URL of a supported kind.
        MissingExtraError: `url` names a PostgreSQL database and the driver is not installed.
    """
    if url is None:
        url = Settings.current().database_url or data_dir() / _FILE_NAME
    if isinstance(url, Path):
        return _file(url)
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"{url!r:.80} is not a database; {_EXAMPLES}")
    scheme, separator, rest = url.strip().partition("://")
    kind = scheme.lower().partition("+")[0]
    if kind == "sqlite" or not separator:
        return _file(_path_of(url, rest) if separator else url)
    if kind not in ("postgresql", "postgres"):
        raise ConfigError(f"databases of kind {scheme[:40]!r} are not supported; {_EXAMPLES}")
    if importlib.util.find_spec("psycopg") is None:
        raise MissingExtraError(
            "PostgreSQL needs the psycopg driver: pip install 'kp-langchain[postgres]'"
        )
    return Location(url=f"postgresql://{rest}")


def _path_of(url: str, rest: str) -> str:
    path = rest.removeprefix("/")
    if not path or path == rest or path.startswith("file:") or "?" in path:
        raise ConfigError(
            f"{url[:200]!r} does not name a file; write sqlite:///relative/path or "
            "sqlite:////absolute/path, without options"
        )
    return path


def _file(path: str | Path) -> Location:
    if str(path) == ":memory:":
        raise ConfigError("a store needs a file; to keep nothing, give the handler store=None")
    return Location(path=Path(path).expanduser().absolute())


# ------------------------------------------------------------------ what lies there


class Transactions(Protocol):
    """What opens transactions on a store: a `Database`."""

    @property
    def location(self) -> Location:
        """Where the database is."""

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection to read with."""

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection in a write transaction."""


class StorePart:
    """A part of a store. Got from `TraceStore`.

    Every method raises `StoreError` when the database cannot be opened, read or written.

    Args:
        database: The database of the store.
    """

    def __init__(self, database: Transactions) -> None:
        self._database = database

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._database.location)!r})"
