"""The configuration files: where they are, what they set, and which of that applies.

A file in the working folder may be another person's. Until the user has trusted it, its settings
that can send, redirect, un-redact or load code are ignored.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass, field, replace
from enum import Enum
from io import BufferedReader
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from kp_langchain import config_trust
from kp_langchain._logging import warn_once
from kp_langchain.config_restricted_keys import restricted_paths
from kp_langchain.errors import ConfigError
from kp_langchain.folders import config_dir
from kp_langchain.printable import printable
from kp_langchain.redaction.custom_rules import Rules

FILE_VARIABLE = "KP_CONFIG"
FILE_NAME = "kp.toml"
_LONGEST_BYTES = 1 << 20
_SHOWN_KEYS = 12


class FileTrust(Enum):
    """How a configuration file came to be read."""

    NAMED = f"named by {FILE_VARIABLE}"
    TRUSTED = "in the working folder, trusted"
    UNTRUSTED = "in the working folder, not trusted"
    CHANGED = "in the working folder, changed since it was trusted"
    OWN = "your own"
    FOREIGN = "your own, but another user owns it or may write it"

    @property
    def counts_whole(self) -> bool:
        """Whether everything in the file applies."""
        return self in (FileTrust.NAMED, FileTrust.TRUSTED, FileTrust.OWN)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that was read.

    Attributes:
        path: Its absolute path.
        name: Its name in messages.
        origin: How it came to be read.
        values: The settings in it that apply.
        ignored_keys: The keys that are ignored, dotted.
    """

    path: Path
    name: str
    origin: FileTrust
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    ignored_keys: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """What the user can do so that everything in it applies."""
        if self.origin is FileTrust.FOREIGN:
            path = quote(str(self.path))
            return f"own it, and let only yourself write it: chown $USER {path}; chmod go-w {path}"
        return f"if you have read it and want that: kp-langchain trust {quote(str(self.path))}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a configuration file, and what is there.

    Two are equal if they would be read in the same way.

    Attributes:
        path: The absolute path.
        name: The file's name in messages.
        origin: How it comes to be read.
        content: The file's content; None if there is no file, or it cannot be read.
        error: Why it cannot be read; None if it can be, or need not exist.
    """

    path: Path
    name: str
    origin: FileTrust
    content: bytes | None = field(default=None, repr=False)
    error: str | None = None


def config_file() -> Path:
    """Return the path of the file that `KP_CONFIG` names, or else `kp.toml`.

    It need not exist.
    """
    return Path(os.environ.get(FILE_VARIABLE) or FILE_NAME)


def own_file() -> Path | None:
    """Return the path of the user's own file, which need not exist; None without a home folder."""
    path = config_dir() / FILE_NAME
    # Without a home folder the path would be relative to the working folder.
    return path if path.is_absolute() else None


def places() -> tuple[_Place, ...]:
    """Return the places of configuration files with their content, by descending precedence."""
    path = own_file()
    own_place = None if path is None else _place(path, FileTrust.OWN)
    if os.environ.get(FILE_VARIABLE):
        first: _Place | None = _place(config_file(), FileTrust.NAMED)
    else:
        first = _working_place(own_place)
    return tuple(place for place in (first, own_place) if place is not None)


def read_files(text: str | None = None) -> tuple[ConfigFile, ...]:
    """Read the configuration files, by descending precedence; warn of what is ignored.

    Args:
        text: Content to assume for the first one in place of its own.

    Raises:
        ConfigError: One cannot be read, or is not TOML.
    """
    files = []
    candidates = places()
    if text is not None:
        first = _Place(config_file().absolute(), FILE_NAME, FileTrust.UNTRUSTED)
        first, *others = candidates or (first,)
        candidates = (replace(first, content=text.encode(), error=None), *others)
    for place in candidates:
        if place.content is None and place.error is None:
            continue
        file = _read(place)
        if file.ignored_keys:
            _warn(file)
        files.append(file)
    if len(files) > 1 and not files[0].origin.counts_whole:
        _add_redaction(files[0].values, files[1].values)
    return tuple(files)


def _add_redaction(values: dict[str, Any], own_values: dict[str, Any]) -> None:
    """Move the redaction rules of a folder's file into the user's, without replacing any."""
    theirs, users = values.get("redaction"), own_values.get("redaction")
    if not (isinstance(theirs, dict) and isinstance(users, dict)):
        return
    try:
        more = Rules.model_validate(theirs)
    except ValidationError:  # reported later as a fault of that file
        return
    # Into the user's, so that a fault there is still reported for the user's file.
    if isinstance(names := users.get("names", []), list):
        users["names"] = [*names, *more.names]
    if isinstance(patterns := users.get("patterns", {}), dict):
        users["patterns"] = {**more.patterns, **patterns}
    del values["redaction"]


def content_of(path: Path) -> bytes:
    """Return the content of a configuration file in a working folder.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    place = _place(path, FileTrust.UNTRUSTED)
    if place.content is None:
        raise ConfigError(f"{path} {place.error or 'does not exist'}")
    return place.content


def restricted_keys(path: Path, content: bytes) -> list[str]:
    """Return the keys in a file, dotted, that apply only if it is trusted.

    Args:
        path: The file's path.
        content: Its content.

    Raises:
        ConfigError: The content is not TOML.
    """
    return list(_read(_Place(path, str(path), FileTrust.UNTRUSTED, content)).ignored_keys)


def _working_place(own_place: _Place | None) -> _Place | None:
    """Return `kp.toml` in the working folder, unless that is the user's configuration folder."""
    try:
        path = Path(os.getcwd(), FILE_NAME)  # noqa: PTH109 - Path.cwd() is slower, and each handler calls this
    except OSError:  # the folder is gone
        return None
    place = _place(path, FileTrust.UNTRUSTED, name=FILE_NAME)
    if place.content is None:
        return place
    if (
        own_place is not None
        and own_place.content is not None
        and path == config_trust.canonical_path(own_place.path)
    ):
        return None
    if config_trust.is_trusted(path, place.content):
        return replace(place, origin=FileTrust.TRUSTED)
    return place


def _place(path: Path, origin: FileTrust, name: str | None = None) -> _Place:
    name = str(path) if name is None else name
    try:
        path = path if path.is_absolute() else path.expanduser().absolute()
        content, is_foreign = _content(path, regular=origin is not FileTrust.NAMED)
    except FileNotFoundError:
        missing = f"does not exist; create it or unset {FILE_VARIABLE}"
        return _Place(path, name, origin, error=missing if origin is FileTrust.NAMED else None)
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        cause = getattr(error, "strerror", None) or str(error)
        if origin is not FileTrust.NAMED and not os.path.lexists(path):
            # Nobody's: a service may run without a home, or in a folder that it may not enter.
            if not isinstance(error, NotADirectoryError):
                warn_once(f"unseen:{path}", "no settings are read from %s: %s", path, cause)
            return _Place(path, name, origin)
        reason = f"cannot be read: {cause}; make it a readable file, or remove it"
        return _Place(path, name, origin, error=reason)
    if origin is FileTrust.OWN and is_foreign:
        origin = FileTrust.FOREIGN
    return _Place(path, name, origin, content)


def _content(path: Path, *, regular: bool) -> tuple[bytes, bool]:
    """Return a file's content, and whether another user owns it or may write it."""
    # O_NONBLOCK: opening a named pipe must not wait for its other end.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            if regular:
                raise OSError("it is not a regular file")
            if stat.S_ISFIFO(status.st_mode):  # the next handler would read nothing
                raise OSError("it is a pipe, which can be read only once")
            reader = BufferedReader(file)
            content = reader.read(_LONGEST_BYTES + 1) or b""
            reader.detach()
        else:
            content = file.read(min(status.st_size, _LONGEST_BYTES) + 1)
    if len(content) > _LONGEST_BYTES:
        raise OSError(f"it is larger than {_LONGEST_BYTES >> 20} MB")
    # From the open file, because another one may take its place meanwhile.
    is_foreign = os.name == "posix" and (
        status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & stat.S_IWOTH)
    )
    return content, is_foreign


def _read(place: _Place) -> ConfigFile:
    name = place.name
    if place.origin is FileTrust.NAMED:
        name += f" ({FileTrust.NAMED.value})"
    text = ""
    try:
        if place.error is not None:
            raise ConfigError(printable(f"{name} {place.error}"))
        # Some editors write a byte order mark before UTF-8.
        text = (place.content or b"").decode("utf-8-sig")
        values = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        reason = f"is not UTF-8 text at line {line}; save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        last = text.count("\n") + 1
        cause = str(error).replace("at end of document", f"at the end, line {last}")
        reason = f"is not valid TOML: {cause}"
    except RecursionError:
        reason = "is not valid TOML: it is nested too deeply"
    else:
        return _without_restricted(place, values)
    raise ConfigError(printable(f"{name} {reason}"))


def _without_restricted(place: _Place, values: dict[str, Any]) -> ConfigFile:
    """Return the file with the settings that apply, and the keys that do not."""
    origin, ignored_keys = place.origin, []
    if not origin.counts_whole:
        for path in list(restricted_paths(values)):
            *outer, last = path
            table = values
            for name in outer:
                table = table[name]
            del table[last]
            ignored_keys.append(".".join(path))
        if ignored_keys and origin is FileTrust.UNTRUSTED and config_trust.was_trusted(place.path):
            origin = FileTrust.CHANGED
    _resolve(values, place.path.parent)
    return ConfigFile(place.path, place.name, origin, values, tuple(ignored_keys))


def _resolve(values: dict[str, Any], folder: Path) -> None:
    """Make paths relative to the file that sets them rather than to the working folder."""
    database, model = values.get("database_url"), values.get("embedding_model")
    if isinstance(database, str) and database.strip():
        scheme, separator, rest = database.partition("://")
        if not separator and database != ":memory:":
            values["database_url"] = _path_in(folder, database)
        elif scheme.lower() == "sqlite" and rest[:1] == "/" and rest[1:] != ":memory:":
            values["database_url"] = f"sqlite:///{_path_in(folder, rest[1:])}"
    if isinstance(model, str) and model.strip():
        path = _path_in(folder, model)
        if model.startswith((".", "~")) or Path(path).exists():
            values["embedding_model"] = path


def _path_in(folder: Path, path: str) -> str:
    try:
        return str(folder / Path(path).expanduser())
    except RuntimeError:  # "~" without a home folder; opening the path reports it
        return path


def _warn(file: ConfigFile) -> None:
    """Warn once which settings of a file are ignored, and what to do."""
    keys = ", ".join(file.ignored_keys[:_SHOWN_KEYS])
    if len(file.ignored_keys) > _SHOWN_KEYS:
        keys += f" and {len(file.ignored_keys) - _SHOWN_KEYS} more"
    warn_once(
        f"refused:{file.path}:{keys}",
        "%s is %s, so these settings in it are ignored: %s; %s",
        file.path,
        file.origin.value,
        keys,
        file.remedy,
    )
