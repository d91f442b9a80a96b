"""Write fields of a domain's policy into the configuration file, and change nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kp_langchain.config import Settings, config_file
from kp_langchain.config_files import FILE_VARIABLE, own_file
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.weights import ScoringWeights

_BYTE_ORDER_MARK = "\ufeff"


@dataclasses.dataclass(frozen=True, slots=True)
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


def write_policy(domain: str, **values: Any) -> WrittenPolicy:
    """Write fields of a domain's policy into the configuration file.

    That is the file that `KP_CONFIG` names, else `kp.toml` in the working directory, or the user's
    own for a domain whose runs may be sent, because there a working folder's file does not count.
    It is replaced as a whole or not at all; a link stays a link, and a missing file is created.

    Args:
        domain: The domain's exact name.
        values: The fields by name: text, numbers, `ScoringWeights`; None removes one from the
            domain's table.

    Raises:
        ConfigError: The file cannot be used, changed or written; it is unchanged.
        MissingExtraError: tomlkit is not installed.
    """
    path = _file_for(domain)
    target, old = _read(path)
    plain = {
        name: dataclasses.asdict(value) if isinstance(value, ScoringWeights) else value
        for name, value in values.items()
    }
    new = with_policy(old or "", domain, plain)
    try:
        settings = Settings.supposing(new.removeprefix(_BYTE_ORDER_MARK), path)
    except ConfigError as error:
        raise ConfigError(f"{path} is unchanged, because with the change {error}") from None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, new.encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} is unchanged, because it cannot be written: {reason}") from None
    without_effect = _differences(settings, domain, values)
    overridden_by = {
        field: variables for field in without_effect if (variables := _variables(domain, field))
    }
    return WrittenPolicy(path, old is None, overridden_by)


def _file_for(domain: str) -> Path:
    """Return the file in which a policy of the domain counts."""
    own = own_file()
    if own is not None and not os.environ.get(FILE_VARIABLE):
        with suppress(ConfigError):  # the change may mend it; otherwise it is reported then
            if Settings().policy_for(domain).visibility != "private":
                return own
    return config_file()


def _read(path: Path) -> tuple[Path, str | None]:
    """Return the file behind a path, following links, and its text; None if there is none.

    Raises:
        ConfigError: The file cannot be read, is not a regular file, or holds settings that
            cannot be used.
    """
    try:
        target = path.expanduser().resolve()
        if not target.exists():
            return target, None
        if not target.is_file():  # such as /dev/null, which would become a file
            raise ConfigError(f"{path} is not a file that can be written; name one in KP_CONFIG")
        Settings()  # reports what is wrong with the file in more detail than tomllib
        return target, target.read_bytes().decode()
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _differences(settings: Settings, domain: str, values: Mapping[str, Any]) -> list[str]:
    """Return the fields whose values the settings do not give for a domain."""
    policy = settings.policy_for(domain)
    return [field for field, value in values.items() if getattr(policy, field) != value]


def with_policy(text: str, domain: str, values: Mapping[str, Any]) -> str:
    """Return a TOML text with values of `[domains.<domain>]` set, and nothing else changed.

    Args:
        text: Valid TOML; a byte order mark and Windows line endings are kept.
        domain: The domain's name.
        values: Text or numbers by key; for `weights`, a mapping of numbers; None removes a key.

    Raises:
        ConfigError: tomlkit cannot make the change; the message shows what to write by hand.
        MissingExtraError: tomlkit is not installed.
    """
    try:
        import tomlkit
    except ImportError as error:
        raise MissingExtraError(
            "writing the configuration file needs tomlkit: pip install 'kp-langchain[calibrate]'"
        ) from error
    if not values:
        return text
    mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
    plain = text.removeprefix(_BYTE_ORDER_MARK)
    has_crlf = "\n" in plain and plain.count("\n") == plain.count("\r\n")
    if has_crlf:
        plain = plain.replace("\r\n", "\n")
    target = tomllib.loads(plain)
    policy = target.setdefault("domains", {}).setdefault(domain, {})
    for key, value in values.items():
        if value is None:
            policy.pop(key, None)
        else:
            policy[key] = policy.get(key, {}) | value if isinstance(value, Mapping) else value
    addition = f"[domains.{_key(domain)}]\n{tomlkit.dumps(_inline(values))}"
    try:
        new = _edit(plain, domain, values, addition)
        is_correct = tomllib.loads(new) == target
    except Exception:  # noqa: BLE001 - tomlkit raises errors of many kinds on unusual files
        is_correct, new = False, plain
    if not is_correct:
        raise ConfigError(
            f"{config_file()} has a layout that this program cannot change; "
            f"add this by hand:\n{addition}"
        )
    return mark + (new.replace("\n", "\r\n") if has_crlf else new)


def _edit(text: str, domain: str, values: Mapping[str, Any], addition: str) -> str:
    import tomlkit
    from tomlkit.items import InlineTable

    document = tomlkit.parse(text)
    domains: Any = document.get("domains", {})
    if domain in domains:
        for key, value in _inline(values).items():
            _set(domains[domain], key, value)
        for key in [key for key, value in values.items() if value is None]:
            domains[domain].pop(key, None)
    elif isinstance(domains, InlineTable):
        table = tomlkit.inline_table()
        table.update(_inline(values))
        domains[domain] = table
    else:
        # At the end, so that every comment stays above the table that it is about.
        head = text if text.endswith("\n") or not text else text + "\n"
        return f"{head}\n{addition}" if head.strip() else head + addition
    return tomlkit.dumps(document)


def _set(table: Any, key: str, value: Any) -> None:
    """Set a key of a table; a new key is inserted before comments at the table's end."""
    from tomlkit.items import Table

    if key in table and isinstance(value, Mapping):
        for name, part in value.items():
            _set(table[key], name, part)
        return
    tail: list[Any] = []
    if key not in table and isinstance(table, Table):
        body = table.value.body
        while body and body[-1][0] is None:  # a comment or an empty line
            tail.insert(0, body.pop())
    table[key] = value
    if tail:
        table.value.body.extend(tail)


def _inline(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values to write, for tomlkit to write a mapping as an inline table."""
    import tomlkit

    items: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            items[key] = tomlkit.inline_table()
            items[key].update(value)
        else:
            items[key] = value
    return items


def _key(name: str) -> str:
    """Return a name as a TOML key; quoted for TOML 1.0, which has fewer escapes than tomlkit."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")


def _replace(target: Path, content: bytes) -> None:
    """Replace the content of a file in one step: a crash leaves the old or the new one."""
    try:
        status = target.stat()
    except FileNotFoundError:
        status = None
    if status is not None and not os.access(target, os.W_OK):
        raise PermissionError(None, "it is read-only")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    # Others may read a new file if the umask allows it; the replaced file may be secret.
    mode = 0o666 if status is None else 0o600
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if status is not None:
                with suppress(OSError):  # only root can give a file to another user
                    os.chown(temporary, status.st_uid, status.st_gid)
                temporary.chmod(stat.S_IMODE(status.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _variables(domain: str, field: str) -> tuple[str, ...]:
    """Return the environment variables that can set a field of a domain's policy."""
    whole = f"KP_DOMAINS__{domain}__{field}".upper()
    return tuple(
        name
        for name, value in sorted(os.environ.items())
        if value
        and (
            whole.startswith(name.upper() + "__")
            or name.upper() == whole
            or name.upper().startswith(whole + "__")
        )
        and name.upper().startswith("KP_DOMAINS")
    )
