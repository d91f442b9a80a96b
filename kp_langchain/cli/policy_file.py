"""Write fields of a domain's policy into the configuration file, and change nothing else."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kp_langchain.config import Settings, config_file
from kp_langchain.config_files import FILE_VARIABLE, own_file
from kp_langchain.errors import ConfigError

_BYTE_ORDER_MARK = "\ufeff"
_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^\s#"'\[{][^\s#]*)"""


@dataclass(frozen=True, slots=True)
class WrittenPolicy:
    """The result of writing a policy.

    Attributes:
        path: The file that it was written to.
        is_new_file: Whether the file was created.
        overridden_by: For each field that has no effect, the environment variables that override
            it.
    """

    path: Path
    is_new_file: bool
    overridden_by: Mapping[str, tuple[str, ...]]


def write_policy(domain: str, **values: str | float | None) -> WrittenPolicy:
    """Write fields of a domain's policy into the configuration file.

    That is the file that `KP_CONFIG` names, else `kp.toml` in the working directory, or the user's
    own for a domain whose runs may be sent, because there a working folder's file does not count.
    It is replaced as a whole or not at all; a link stays a link, and a missing file is created.

    Args:
        domain: The domain's exact name.
        values: The fields by name: text or numbers; None removes one from the domain's table.

    Raises:
        ConfigError: The file cannot be used, changed or written; it is unchanged.
    """
    path = _file_for(domain)
    try:
        target = path.expanduser().resolve()
        is_new_file = not target.exists()
        if not is_new_file and not target.is_file():  # such as /dev/null, which would become a file
            raise ConfigError(f"{path} is not a file that can be written; name one in KP_CONFIG")
        Settings()  # reports what is wrong with the file in more detail than tomllib
        old = "" if is_new_file else target.read_bytes().decode()
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        raise ConfigError(f"{path} cannot be read: {error}") from None
    new = with_policy(old, domain, values)
    try:
        settings = Settings.supposing(new.removeprefix(_BYTE_ORDER_MARK), path)
    except ConfigError as error:
        raise ConfigError(f"{path} is unchanged, because with the change {error}") from None
    try:
        _replace(target, new.encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} is unchanged, because it cannot be written: {reason}") from None
    policy = settings.policy_for(domain)
    overridden_by = {
        field: variables
        for field, value in values.items()
        if getattr(policy, field) != value and (variables := _variables(domain, field))
    }
    return WrittenPolicy(path, is_new_file, overridden_by)


def _file_for(domain: str) -> Path:
    """Return the file in which a policy of the domain counts."""
    own = own_file()
    if own is not None and not os.environ.get(FILE_VARIABLE):
        with suppress(ConfigError):  # the change may mend it; otherwise it is reported then
            if Settings().policy_for(domain).visibility != "private":
                return own
    return config_file()


def with_policy(text: str, domain: str, values: Mapping[str, str | float | None]) -> str:
    """Return a TOML text with values of the table `[domains.<domain>]` set, nothing else changed.

    Args:
        text: Valid TOML; a byte order mark and Windows line endings are kept.
        domain: The domain's name.
        values: Text or numbers by key; None removes a key.

    Raises:
        ConfigError: The domain is not laid out as a table with a line for each of these keys; the
            message shows what to write by hand.
    """
    name = domain if re.fullmatch(r"[A-Za-z0-9_-]+", domain) else _toml(domain)
    ending = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    header = re.compile(rf"\s*\[\s*domains\s*\.\s*({re.escape(name)}|\"{re.escape(domain)}\")\s*\]")
    start = next((at for at, line in enumerate(lines, start=1) if header.match(line)), None)
    new_lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    addition = "\n".join([f"[domains.{name}]", *new_lines])
    if start is None:
        head = text if text.endswith("\n") or not text else text + ending
        new = head + (ending if head.strip(_BYTE_ORDER_MARK) else "")
        new += addition.replace("\n", ending) + ending
    else:
        rest = enumerate(lines[start:], start)
        end = next((at for at, line in rest if line.lstrip().startswith("[")), len(lines))
        table, missing = lines[start:end], []
        for key, value in values.items():
            pattern = re.compile(rf"(\s*{key}\s*=\s*){_VALUE}")
            at = next((at for at, line in enumerate(table) if pattern.match(line)), None)
            if at is None and value is not None:
                missing.append(f"{key} = {_toml(value)}{ending}")
            elif at is not None and value is None:
                del table[at]
            elif at is not None:
                table[at] = pattern.sub(lambda match: match[1] + _toml(value), table[at], count=1)  # noqa: B023
        if not lines[start - 1].endswith("\n"):
            lines[start - 1] += ending
        new = "".join([*lines[:start], *missing, *table, *lines[end:]])
    if not _says(new, text, domain, values):
        raise ConfigError(
            f"{config_file()} has a layout that this program cannot change; "
            f"write this by hand:\n{addition}"
        )
    return new


def _says(new: str, old: str, domain: str, values: Mapping[str, Any]) -> bool:
    """Return whether a text says what an old one does, and the values of the domain."""
    expected = tomllib.loads(old.removeprefix(_BYTE_ORDER_MARK))
    policy = expected.setdefault("domains", {}).setdefault(domain, {})
    for key, value in values.items():
        policy.pop(key, None)
        if value is not None:
            policy[key] = value
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(new.removeprefix(_BYTE_ORDER_MARK)) == expected
    return False


def _toml(value: str | float | None) -> str:
    """Return a text or a number as TOML writes it: as JSON does, but for one more escape."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _replace(target: Path, content: bytes) -> None:
    """Replace the content of a file in one step: a crash leaves the old or the new one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(None, "it is read-only")
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _variables(domain: str, field: str) -> tuple[str, ...]:
    """Return the environment variables that set a field of a domain's policy, or all of it."""
    whole = f"KP_DOMAINS__{domain}__{field}".upper()
    return tuple(
        name
        for name, value in sorted(os.environ.items())
        if value
        and name.upper().startswith("KP_DOMAINS")
        and f"{whole}__".startswith(f"{name.upper()}__")
    )
