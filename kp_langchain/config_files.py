"""The configuration files: which there are, what they say, and what of it counts.

A file that merely lies in the working folder may be somebody else's: of what it says, nothing
counts that can send, redirect, un-redact or load code, until the user has trusted it.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from io import BufferedReader
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kp_langchain import config_trust
from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.folders import config_dir
from kp_langchain.printable import printable
from kp_langchain.redaction.custom_rules import KEY_CHARS_MIN, Rules

FILE_VARIABLE = "KP_CONFIG"
FILE_NAME = "kp.toml"
_LONGEST_BYTES = 1 << 20
# What the rows of `restricted` say in full.
_TOP = ("registry_url", "database_url", "api_key", "embedding_model", "agent_id")
_SENT = ("org", "network")
_SHOWN_KEYS = 12
_BOOLEAN = TypeAdapter(bool)


class Standing(Enum):
    """How a configuration file came to be read."""

    NAMED = f"named by {FILE_VARIABLE}"
    TRUSTED = "in the working folder, trusted"
    UNTRUSTED = "in the working folder, not trusted"
    CHANGED = "in the working folder, changed since it was trusted"
    OWN = "your own"
    FOREIGN = "your own, but others may write it"

    @property
    def counts_whole(self) -> bool:
        """Whether all that the file says counts."""
        return self in (Standing.NAMED, Standing.TRUSTED, Standing.OWN)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A configuration file that was read.

    Attributes:
        path: Where it is, absolute.
        name: What it is called in messages.
        standing: How it came to be read.
        values: What it says and what counts of that.
        refused: The keys that do not count, dotted.
    """

    path: Path
    name: str
    standing: Standing
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    refused: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """What to do so that all of it counts."""
        if self.standing is Standing.FOREIGN:
            return f"make it yours alone: chmod go-w {quote(str(self.path))}"
        return f"if you have read it and want that: kp-langchain trust {quote(str(self.path))}"


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a configuration file, with what could be read there.

    Equal to another one if the file would be read in the same way.
    """

    path: Path
    name: str
    standing: Standing
    content: bytes | None = field(default=None, repr=False)
    error: str | None = None


def config_file() -> Path:
    """Return the path of the file that `KP_CONFIG` names, or else of `kp.toml` in this folder.

    It need not exist.
    """
    return Path(os.environ.get(FILE_VARIABLE) or FILE_NAME)


def own_file() -> Path | None:
    """Return the path of the user's own file, which need not exist; None without a home folder."""
    path = config_dir() / FILE_NAME
    # Without a home folder it would lie wherever this process stands.
    return path if path.is_absolute() else None


def places() -> tuple[_Place, ...]:
    """Return where configuration files are looked for, first one first, with what they hold."""
    path = own_file()
    own = None if path is None else _place(path, Standing.OWN)
    if os.environ.get(FILE_VARIABLE):
        first: _Place | None = _place(config_file(), Standing.NAMED)
    else:
        first = _working_place(own)
    return tuple(place for place in (first, own) if place is not None)


def read_files(text: str | None = None) -> tuple[ConfigFile, ...]:
    """Read the configuration files that are there, first one first, and tell what does not count.

    Args:
        text: What the first one is supposed to hold instead of what it does.

    Raises:
        ConfigError: One cannot be read, or is no TOML.
    """
    files = []
    found = places()
    if text is not None:
        first = _Place(config_file().absolute(), FILE_NAME, Standing.UNTRUSTED)
        first, *others = found or (first,)
        found = (replace(first, content=text.encode(), error=None), *others)
    for place in found:
        if place.content is None and place.error is None:
            continue
        file = _read(place)
        if file.refused:
            _warn(file)
        files.append(file)
    if len(files) > 1 and not files[0].standing.counts_whole:
        _add_redaction(files[0].values, files[1].values)
    return tuple(files)


def _add_redaction(values: dict[str, Any], own: dict[str, Any]) -> None:
    """Let what a folder's file has redacted be added to what the user has, and replace none."""
    theirs, users = values.get("redaction"), own.get("redaction")
    if not (isinstance(theirs, dict) and isinstance(users, dict)):
        return
    try:
        more = Rules.model_validate(theirs)
    except ValidationError:  # refused as a mistake of that file
        return
    # Into the user's, so that a mistake is told to be where it stands.
    if isinstance(names := users.get("names", []), list):
        users["names"] = [*names, *more.names]
    if isinstance(patterns := users.get("patterns", {}), dict):
        users["patterns"] = {**more.patterns, **patterns}
    del values["redaction"]


def content_of(path: Path) -> bytes:
    """Return what a configuration file of a working folder holds.

    Raises:
        ConfigError: There is none, or it cannot be read.
    """
    place = _place(path, Standing.UNTRUSTED)
    if place.content is None:
        raise ConfigError(f"{path} {place.error or 'does not exist'}")
    return place.content


def restricted_keys(path: Path, content: bytes) -> list[str]:
    """Return the keys in a file that count only if it is trusted, dotted.

    Args:
        path: Where it is.
        content: What it holds.

    Raises:
        ConfigError: That is no TOML.
    """
    return list(_read(_Place(path, str(path), Standing.UNTRUSTED, content)).refused)


def restricted(values: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the keys that count only if their file does wholly, each as the names that lead to it.

    They are those that send, redirect, un-redact or load code. What is of a wrong type is left to
    be refused as a mistake.
    """
    for key in _TOP:
        if isinstance(values.get(key), str):
            yield (key,)
    with suppress(ValidationError):
        if not _BOOLEAN.validate_python(values.get("disabled", True)):
            yield ("disabled",)
    run_keys = values.get("run_keys")
    if isinstance(run_keys, dict):  # what they name is kept from then on
        yield from (("run_keys", key) for key in run_keys)
    redaction = values.get("redaction")
    if isinstance(redaction, dict):
        if isinstance(redaction.get("allow"), list):
            yield ("redaction", "allow")
        pseudonym_key = redaction.get("pseudonym_key")
        # Whoever has the key knows the people.
        if isinstance(pseudonym_key, str) and len(pseudonym_key) >= KEY_CHARS_MIN:
            yield ("redaction", "pseudonym_key")
        if isinstance(redaction.get("redactor"), str):  # it is imported
            yield ("redaction", "redactor")
    domains = values.get("domains")
    policies: list[tuple[tuple[str, ...], Any]] = [(("defaults",), values.get("defaults"))]
    if isinstance(domains, dict):
        policies += [(("domains", name), policy) for name, policy in domains.items()]
    for path, policy in policies:
        if isinstance(policy, dict):
            if policy.get("visibility") in _SENT:
                yield (*path, "visibility")
            if policy.get("privacy_level") == "private":
                yield (*path, "privacy_level")


def _working_place(own: _Place | None) -> _Place | None:
    """`kp.toml` in the working folder, unless that is the user's own folder."""
    try:
        path = Path(os.getcwd(), FILE_NAME)  # noqa: PTH109 - a handler for each request asks
    except OSError:  # the folder is gone
        return None
    place = _place(path, Standing.UNTRUSTED, name=FILE_NAME)
    if place.content is None:
        return place
    if own is not None and own.content is not None and path == config_trust.place_of(own.path):
        return None
    if config_trust.is_trusted(path, place.content):
        return replace(place, standing=Standing.TRUSTED)
    return place


def _place(path: Path, standing: Standing, name: str | None = None) -> _Place:
    name = str(path) if name is None else name
    try:
        path = path if path.is_absolute() else path.expanduser().absolute()
        content, others_may_write = _content(path, regular=standing is not Standing.NAMED)
    except FileNotFoundError:
        missing = f"does not exist; create it or unset {FILE_VARIABLE}"
        return _Place(path, name, standing, error=missing if standing is Standing.NAMED else None)
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        told = getattr(error, "strerror", None) or str(error)
        reason = f"cannot be read: {told}; make it a readable file, or remove it"
        return _Place(path, name, standing, error=reason)
    if standing is Standing.OWN and others_may_write:
        standing = Standing.FOREIGN
    return _Place(path, name, standing, content)


def _content(path: Path, *, regular: bool) -> tuple[bytes, bool]:
    """Return what a file holds, and whether others may write it; both of the one opened file."""
    # Does not wait for the other end of a pipe that somebody left there.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", buffering=0, opener=lambda name, _: os.open(name, flags)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            if regular:
                raise OSError("it is no regular file")
            if stat.S_ISFIFO(status.st_mode):  # the next handler would find it empty
                raise OSError("it is a pipe, which can be read only once")
            reader = BufferedReader(file)
            content = reader.read(_LONGEST_BYTES + 1) or b""
            reader.detach()
        else:
            content = file.read(min(status.st_size, _LONGEST_BYTES) + 1)
    if len(content) > _LONGEST_BYTES:
        raise OSError(f"it is larger than {_LONGEST_BYTES >> 20} MB")
    foreign = os.name == "posix" and (
        status.st_uid not in (0, os.geteuid()) or bool(status.st_mode & stat.S_IWOTH)
    )
    return content, foreign


def _read(place: _Place) -> ConfigFile:
    named = f" ({Standing.NAMED.value})" if place.standing is Standing.NAMED else ""
    text = ""
    try:
        if place.error is not None:
            raise ConfigError(printable(f"{place.name}{named} {place.error}"))
        # A byte order mark is what some editors put before UTF-8.
        text = (place.content or b"").decode("utf-8-sig")
        values = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        reason = f"is not UTF-8 text at line {line}; save it as UTF-8"
    except tomllib.TOMLDecodeError as error:
        last = text.count("\n") + 1
        told = str(error).replace("at end of document", f"at the end, line {last}")
        reason = f"is not valid TOML: {told}"
    except RecursionError:
        reason = "is not valid TOML: it is nested too deeply"
    else:
        return _what_counts(place, values)
    raise ConfigError(printable(f"{place.name}{named} {reason}"))


def _what_counts(place: _Place, values: dict[str, Any]) -> ConfigFile:
    standing, refused = place.standing, []
    if not standing.counts_whole:
        for path in list(restricted(values)):
            *outer, last = path
            table = values
            for name in outer:
                table = table[name]
            del table[last]
            refused.append(".".join(path))
        if refused and standing is Standing.UNTRUSTED and config_trust.was_trusted(place.path):
            standing = Standing.CHANGED
    _resolve(values, place.path.parent)
    return ConfigFile(place.path, place.name, standing, values, tuple(refused))


def _resolve(values: dict[str, Any], folder: Path) -> None:
    """Make paths relative to the file that says them, not to where this process stands."""
    database, model = values.get("database_url"), values.get("embedding_model")
    if isinstance(database, str) and database.strip():
        scheme, separator, rest = database.partition("://")
        if not separator and database != ":memory:":
            values["database_url"] = _beside(folder, database)
        elif scheme.lower() == "sqlite" and rest[:1] == "/" and rest[1:] != ":memory:":
            values["database_url"] = f"sqlite:///{_beside(folder, rest[1:])}"
    if isinstance(model, str) and model.strip():
        path = _beside(folder, model)
        if model.startswith((".", "~")) or Path(path).exists():
            values["embedding_model"] = path


def _beside(folder: Path, path: str) -> str:
    try:
        return str(folder / Path(path).expanduser())
    except RuntimeError:  # "~" without a home folder; whoever opens it says so
        return path


def _warn(file: ConfigFile) -> None:
    """Say once what of a file does not count, and what to do."""
    keys = ", ".join(file.refused[:_SHOWN_KEYS])
    if len(file.refused) > _SHOWN_KEYS:
        keys += f" and {len(file.refused) - _SHOWN_KEYS} more"
    warn_once(
        f"refused:{file.path}:{keys}",
        "%s is %s, so this in it does not count: %s; %s",
        file.path,
        file.standing.value,
        keys,
        file.remedy,
    )
