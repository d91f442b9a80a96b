"""`Location`: the SQLite file or PostgreSQL URL of a database, parsed from the user's text."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from kp_langchain.config import Settings, data_dir, mask_password
from kp_langchain.errors import ConfigError, MissingExtraError

_FILE_NAME = "traces.db"
_EXAMPLES = "give a file's path, sqlite:///path, or postgresql://user:password@host/database"


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
        MissingExtraError: `url` names a PostgreSQL database, and its driver cannot be loaded.
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
    try:
        import_module("psycopg")  # now, so that no finished run waits for it
    except ImportError as error:
        raise MissingExtraError(
            f"PostgreSQL needs the psycopg driver, which cannot be loaded ({error}): "
            "pip install 'kp-langchain[postgres]'"
        ) from error
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
