"""The configuration files: where they are, what they set, and which of that applies.

A file in the working folder may be another person's, so only the keys in `HARMLESS_KEYS` count
there: nothing that merely lies in that folder may send, redirect, un-redact or load code.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.files import config_dir
from kp_langchain.policy import DomainPolicy
from kp_langchain.redaction.custom_rules import Rules
from kp_langchain.text import printable

FILE_VARIABLE = "KP_CONFIG"
FILE_NAME = "kp.toml"
_MEND = "make it a readable file, or remove it"

_SENDING_KEYS = {"visibility", "privacy_level"}
_HARMLESS_POLICY_KEYS = tuple(key for key in DomainPolicy.model_fields if key not in _SENDING_KEYS)
HARMLESS_KEYS: Mapping[str, tuple[str, ...]] = {
    "defaults": _HARMLESS_POLICY_KEYS,
    "domains": _HARMLESS_POLICY_KEYS,  # of each domain's table
    "redaction": ("names", "patterns"),
    "prices": (),
}
"""The keys that count in the file of a working folder, by table; all others are ignored there.

Of the prices, which say nothing but numbers, all count."""


class FileOrigin(Enum):
    """How a configuration file came to be read."""

    NAMED = f"named by {FILE_VARIABLE}"
    WORKING = "in the working folder"
    OWN = "your own"
    FOREIGN = "your own, but another user owns it or may write it"

    @property
    def counts_whole(self) -> bool:
        """Whether everything in the file applies."""
        return self in (FileOrigin.NAMED, FileOrigin.OWN)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file, or the place for one; two are equal if they are read in the same way.

    Attributes:
        path: Its absolute path.
        name: Its name in messages.
        origin: How it comes to be read.
        content: Its content; None if there is no file, or it cannot be read.
        error: Why it cannot be read; None if it can be, or need not exist.
        values: The settings in it that apply, once it is parsed.
        ignored_keys: The keys that are ignored, dotted.
    """

    path: Path
    name: str
    origin: FileOrigin
    content: bytes | None = field(default=None, repr=False)
    error: str | None = None
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    ignored_keys: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """What the user can do so that everything in it applies."""
        path = quote(str(self.path))
        if self.origin is FileOrigin.FOREIGN:
            return f"own it, and let only yourself write it: chown $USER {path}; chmod go-w {path}"
        own = own_file()
        move = "" if own is None else f"put them into {quote(str(own))}, or "
        return f"if you want them, {move}name the file: {FILE_VARIABLE}={path}"


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


def candidate_files() -> tuple[ConfigFile, ...]:
    """Return the possible configuration files with their content, by descending precedence."""
    own = own_file()
    if os.environ.get(FILE_VARIABLE):
        first: ConfigFile | None = _read(config_file(), FileOrigin.NAMED)
    else:
        first = _working_file(own)
    second = None if own is None else _read(own, FileOrigin.OWN)
    return tuple(file for file in (first, second) if file is not None)


def read_files(
    known_keys: Container[str], supposed: tuple[Path, str] | None = None
) -> tuple[ConfigFile, ...]:
    """Read the configuration files, by descending precedence; warn of what is ignored.

    Args:
        known_keys: The names of all settings.
        supposed: One of the files, and the content to suppose for it in place of its own.

    Raises:
        ConfigError: One cannot be read, or is not TOML.
    """
    files = []
    for file in candidate_files():
        if supposed is not None and file.path == supposed[0].expanduser().absolute():
            file = replace(file, content=supposed[1].encode(), error=None)
        if file.content is not None or file.error is not None:
            files.append(_parse(file, known_keys))
    if len(files) > 1 and not files[0].origin.counts_whole:
        _add_redaction(files[0].values, files[1].values)
    return tuple(files)


def _add_redaction(values: dict[str, Any], own_values: dict[str, Any]) -> None:
    """Move the redaction rules of a folder's file into the user's, without replacing any.

    Rules that are wrong stay where they are, and are reported as a fault of their file.
    """
    if "redaction" not in values or "redaction" not in own_values:
        return
    with suppress(ValidationError):
        more = Rules.model_validate(values["redaction"])
        del values["redaction"]
        own = Rules.model_validate(own_values["redaction"])
        own_values["redaction"] |= {
            "names": [*own.names, *more.names],
            "patterns": {**more.patterns, **own.patterns},
        }


def _working_file(own: Path | None) -> ConfigFile | None:
    """Return `kp.toml` in the working folder, unless that is the user's configuration folder."""
    try:
        path = Path(os.getcwd(), FILE_NAME)  # noqa: PTH109 - Path.cwd() is slower, and each handler calls this
        is_own = own is not None and path == own.parent.resolve() / FILE_NAME
    except (OSError, RuntimeError):  # the folder is gone
        return None
    return None if is_own else _read(path, FileOrigin.WORKING)


def _read(path: Path, origin: FileOrigin) -> ConfigFile:
    """Return a file with its content, or why it cannot be read."""
    file = ConfigFile(path, FILE_NAME if origin is FileOrigin.WORKING else str(path), origin)
    try:
        path = path if path.is_absolute() else path.expanduser().absolute()
        file = replace(file, path=path)
        status = path.stat()
        if origin is FileOrigin.OWN and _is_foreign(status):
            file = replace(file, origin=FileOrigin.FOREIGN)
        if str(path) == os.devnull:
            return replace(file, content=b"")
        if not stat.S_ISREG(status.st_mode):  # a pipe would keep the program waiting
            return replace(file, error=f"cannot be read: it is not a regular file; {_MEND}")
        return replace(file, content=path.read_bytes())
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        if origin is not FileOrigin.NAMED and not os.path.lexists(path):
            return file  # also in a folder that a service may not enter
        if isinstance(error, FileNotFoundError):
            return replace(file, error=f"does not exist; create it or unset {FILE_VARIABLE}")
        cause = getattr(error, "strerror", None) or str(error)
        return replace(file, error=f"cannot be read: {cause}; {_MEND}")


def _is_foreign(status: os.stat_result) -> bool:
    """Return whether another user owns a file or may write it."""
    return os.name == "posix" and (
        status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & stat.S_IWOTH)
    )


def _parse(file: ConfigFile, known_keys: Container[str]) -> ConfigFile:
    """Return a file with the settings in it that apply; warn of those that are ignored."""
    error_text, values = file.error, dict[str, Any]()
    try:
        # Some editors write a byte order mark before UTF-8.
        values = tomllib.loads((file.content or b"").decode("utf-8-sig"))
    except UnicodeDecodeError:
        error_text = "is not UTF-8 text; save it as UTF-8"
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        error_text = f"is not valid TOML: {error}"
    if error_text is not None:
        named = f" ({file.origin.value})" if file.origin is FileOrigin.NAMED else ""
        raise ConfigError(printable(f"{file.name}{named} {error_text}"))
    ignored_keys = () if file.origin.counts_whole else tuple(_drop_ignored(values, known_keys))
    if ignored_keys:
        warn_once(
            f"refused:{file.path}:{ignored_keys}",
            "%s is %s, so these settings in it are ignored: %s; %s",
            file.path,
            file.origin.value,
            ", ".join(ignored_keys),
            file.remedy,
        )
    _resolve(values, file.path.parent)
    return replace(file, values=values, ignored_keys=ignored_keys)


def _drop_ignored(values: dict[str, Any], known_keys: Container[str]) -> list[str]:
    """Drop the settings that do not count in the file of a working folder.

    Unknown keys stay, and so does what should be a table: validation reports them.

    Returns:
        The keys of what was dropped, dotted.
    """
    ignored_keys = _drop_keys(values, known_keys, HARMLESS_KEYS)
    tables = {name: values.get(name) for name in ("defaults", "redaction")}
    domains = values.get("domains")
    if isinstance(domains, dict):
        tables |= {f"domains.{name}": policy for name, policy in domains.items()}
    for path, table in tables.items():
        if isinstance(table, dict):
            name = path.partition(".")[0]
            model = Rules if name == "redaction" else DomainPolicy
            keys = _drop_keys(table, model.model_fields, HARMLESS_KEYS[name])
            ignored_keys += [f"{path}.{key}" for key in keys]
    return ignored_keys


def _drop_keys(
    table: dict[str, Any], known_keys: Container[str], harmless_keys: Container[str]
) -> list[str]:
    """Drop the known keys of a table that are not harmless, and return them."""
    keys = [key for key in table if key in known_keys and key not in harmless_keys]
    for key in keys:
        del table[key]
    return keys


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
    return str(folder / os.path.expanduser(path))  # noqa: PTH111 - leaves "~" where there is no home
