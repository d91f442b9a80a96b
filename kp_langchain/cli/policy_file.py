"""Writes what was learned of a domain into the configuration file, and leaves the rest alone."""

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

from kp_langchain import config_trust
from kp_langchain.config import Settings, config_file
from kp_langchain.errors import ConfigError, MissingExtraError
from kp_langchain.weights import ScoringWeights

_BYTE_ORDER_MARK = "\ufeff"


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """What became of a policy that was written.

    Args:
        path: The file it stands in now.
        created: Whether the file is new.
        overridden_by: Environment variables that say otherwise and come first, for each field.
        ignored: Whether it does not count, because the file is not trusted and the domain's runs
            may be sent.
    """

    path: Path
    created: bool
    overridden_by: Mapping[str, tuple[str, ...]]
    ignored: bool = False


def write_policy(
    domain: str, *, threshold: float | None = None, weights: ScoringWeights | None = None
) -> Written:
    """Write a domain's threshold, weights or both into the configuration file.

    That is the file that `KP_CONFIG` names, else `kp.toml` in the working directory. It is replaced
    as a whole or not at all; a link stays a link, and a new file is made if there is none. A file
    that was trusted stays so, and a new one, which holds nothing else, becomes so if need be.

    Args:
        domain: The domain's exact name.
        threshold: 0 to 1; None leaves what the file says of it.
        weights: None leaves what the file says of them.

    Raises:
        ConfigError: The file cannot be used, changed or written; it is as it was.
        MissingExtraError: tomlkit is not installed.
    """
    path = config_file()
    values: dict[str, Any] = {}
    if threshold is not None:
        values["threshold"] = threshold
    if weights is not None:
        values["weights"] = dataclasses.asdict(weights)
    try:
        target = path.expanduser().resolve()
        created = not target.exists()
        if created:
            old = ""
        elif not target.is_file():  # such as /dev/null, which would be a file from then on
            raise ConfigError(f"{path} is no file that can be written; name one in KP_CONFIG")
        else:
            Settings()  # says what is wrong with a file that cannot be read, better than we could
            old = target.read_bytes().decode()
    except (OSError, RuntimeError) as error:  # RuntimeError: "~" without a home folder
        raise ConfigError(f"{path} cannot be read: {error}") from None
    new = with_policy(old, domain, values)
    try:
        settings = Settings.supposing(new.removeprefix(_BYTE_ORDER_MARK))
    except ConfigError as error:
        raise ConfigError(f"{path} is left as it was, because with the change {error}") from None
    try:
        _replace(target, new.encode())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"{path} is left as it was: it cannot be written: {reason}") from None
    wanted = {"threshold": threshold, "weights": weights}
    overridden = {
        field: variables
        for field in _differing(settings, domain, wanted)
        if (variables := _variables(domain, field))
    }
    ignored = not overridden and bool(_differing(settings, domain, wanted))
    place = config_trust.place_of(path)
    if config_trust.is_trusted(place, old.encode()) or (created and ignored):
        config_trust.trust(place, new.encode())
        ignored = False
    return Written(path, created, overridden, ignored)


def _differing(settings: Settings, domain: str, wanted: Mapping[str, Any]) -> list[str]:
    policy = settings.policy_for(domain)
    return [
        field
        for field, value in wanted.items()
        if value is not None and getattr(policy, field) != value
    ]


def with_policy(text: str, domain: str, values: Mapping[str, Any]) -> str:
    """Return a TOML text with values of `[domains.<domain>]` put in, and nothing else changed.

    Args:
        text: Valid TOML; a byte order mark and line ends of Windows stay.
        domain: The domain's name.
        values: Numbers by key, or for `weights` a mapping of such.

    Raises:
        ConfigError: tomlkit does not get it right; the message has what to write by hand.
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
    ends_as_on_windows = "\n" in plain and plain.count("\n") == plain.count("\r\n")
    if ends_as_on_windows:
        plain = plain.replace("\r\n", "\n")
    wanted = tomllib.loads(plain)
    policy = wanted.setdefault("domains", {}).setdefault(domain, {})
    for key, value in values.items():
        policy[key] = policy.get(key, {}) | value if isinstance(value, Mapping) else value
    addition = f"[domains.{_key(domain)}]\n{tomlkit.dumps(_laid_out(values))}"
    try:
        new = _edited(plain, domain, values, addition)
        right = tomllib.loads(new) == wanted
    except Exception:  # noqa: BLE001 - of an intricate file tomlkit raises what it likes
        right, new = False, plain
    if not right:
        raise ConfigError(
            f"{config_file()} is laid out in a way that this program cannot change; "
            f"write it by hand:\n{addition}"
        )
    return mark + (new.replace("\n", "\r\n") if ends_as_on_windows else new)


def _edited(text: str, domain: str, values: Mapping[str, Any], addition: str) -> str:
    import tomlkit
    from tomlkit.items import InlineTable

    document = tomlkit.parse(text)
    domains: Any = document.get("domains", {})
    if domain in domains:
        for key, value in _laid_out(values).items():
            _put(domains[domain], key, value)
    elif isinstance(domains, InlineTable):
        table = tomlkit.inline_table()
        table.update(_laid_out(values))
        domains[domain] = table
    else:
        # At the end, so that no comment comes to stand over another table than it is about.
        head = text if text.endswith("\n") or not text else text + "\n"
        return f"{head}\n{addition}" if head.strip() else head + addition
    return tomlkit.dumps(document)


def _put(table: Any, key: str, value: Any) -> None:
    """Set a key of a table; a new one comes after its last key and before comments that follow."""
    from tomlkit.items import Table

    if key in table and isinstance(value, Mapping):
        for name, part in value.items():
            _put(table[key], name, part)
        return
    tail: list[Any] = []
    if key not in table and isinstance(table, Table):
        body = table.value.body
        while body and body[-1][0] is None:  # a comment or an empty line
            tail.insert(0, body.pop())
    table[key] = value
    if tail:
        table.value.body.extend(tail)


def _laid_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as tomlkit is to write them: a mapping in one line."""
    import tomlkit

    laid_out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            laid_out[key] = tomlkit.inline_table()
            laid_out[key].update(value)
        else:
            laid_out[key] = value
    return laid_out


def _key(name: str) -> str:
    """A name as a key; quoted for TOML 1.0, which knows fewer escapes than tomlkit writes."""
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return name
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")


def _replace(target: Path, content: bytes) -> None:
    """Put `content` in place of a file in one step, so that a crash leaves the old or the new."""
    try:
        before = target.stat()
    except FileNotFoundError:
        before = None
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(None, "it is read-only")
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    # What the umask lets a new file be, others may read; what replaces a file may be as secret.
    mode = 0o666 if before is None else 0o600
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if before is not None:
                with suppress(OSError):  # only root can keep a file another's
                    os.chown(beside, before.st_uid, before.st_gid)
                beside.chmod(stat.S_IMODE(before.st_mode))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _variables(domain: str, field: str) -> tuple[str, ...]:
    """The environment variables that can say something of a field of a domain's policy."""
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
