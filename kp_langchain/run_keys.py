"""Keys that a run is found by, taken from its config: session, thread, user, tags, name.

They stay in the store and the log of this machine, and never enter a trace. A value stands there as
it is only if redaction leaves it alone; else, and always for a user, as a hash under a secret key.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from kp_langchain._host_exceptions import raised_by_host
from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.redaction import redact
from kp_langchain.secret_key import secret_key

if TYPE_CHECKING:
    from kp_langchain.redaction.custom_rules import Rules

Kind = Literal["session", "thread", "user", "tag", "name"]
KINDS: tuple[Kind, ...] = ("session", "thread", "user", "tag", "name")

KEY_CHARS = 200
MOST_TAGS = 20
_LONGEST_READ_CHARS = 100_000
_LARGE_BITS = 512
_DIGEST_CHARS = 32  # 128 bits
_HASH = re.compile(r"hash:[0-9a-f]{32}")
# A customer's number, or a telephone's as messengers write it, of which redaction cannot be sure.
_NUMBER = re.compile(r"[+(]?[0-9](?:[-+. ()/]*[0-9]){6,}")
# What LangChain and LangGraph add of their own.
_FRAMEWORK_TAG = re.compile(
    r"(?:graph|seq):step:[0-9]+|map:key:.*|(?:branch|condition):(?:[0-9]+|default)"
    r"|retry:attempt:[0-9]+|langsmith:.*",
    re.DOTALL,
)

_Names = tuple[str, ...]


class RunKeySources(BaseModel):
    """Which keys of a run are kept, and where they are read: an allow-list.

    Args:
        session: Keys of the run's metadata, of which the first that is there counts; none for not
            at all.
        thread: The same.
        user: The same. Only a hash of it is kept.
        tags: Whether the tags of the run's config are kept.
        name: Whether the run's name is kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    session: _Names = Field(
        default=("session_id", "conversation_id", "langfuse_session_id"),
        description="a list of metadata keys",
    )
    thread: _Names = Field(default=("thread_id",), description="a list of metadata keys")
    user: _Names = Field(
        default=("user_id", "langfuse_user_id"), description="a list of metadata keys"
    )
    tags: bool = Field(default=True, description="true or false")
    name: bool = Field(default=True, description="true or false")


@dataclass(frozen=True, slots=True)
class RunKeys:
    """What one run is found by: texts that redaction leaves alone, or `hash:` and 32 digits.

    Args:
        session: The session it belongs to.
        thread: The LangGraph thread it ran in.
        user: Whom it ran for, hashed.
        name: Its name in the config.
        tags: Its tags in the config.
    """

    session: str | None = None
    thread: str | None = None
    user: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()

    def after(self, earlier: RunKeys | None) -> RunKeys:
        """Return these keys, with those of the run's earlier part where these lack one."""
        if earlier is None:
            return self
        values = {
            name: getattr(self, name) or getattr(earlier, name)
            for name in ("session", "thread", "user", "name")
        }
        tags = tuple(dict.fromkeys((*earlier.tags, *self.tags)))[:MOST_TAGS]
        return RunKeys(**values, tags=tags)

    def to_dict(self) -> dict[str, Any]:
        """Return the keys as JSON-like values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the keys that `to_dict` wrote."""
        return cls(**{**values, "tags": tuple(values["tags"])})


def collect(
    sources: RunKeySources,
    metadata: Mapping[str, Any],
    tags: object,
    name: str,
    stored: Callable[[Kind, str], str | None],
) -> RunKeys:
    """Return the keys of a run.

    Args:
        sources: Which ones.
        metadata: The root run's metadata.
        tags: Its tags; anything that is no list of texts counts as none.
        name: Its name.
        stored: Gives the form in which a value is kept; None for not at all.
    """

    def first(kind: Kind, keys: Iterable[str]) -> str | None:
        for key in keys:
            text = id_text(metadata.get(key))
            if text:
                return stored(kind, text)
        return None

    all_tags: Any = tags if sources.tags and type(tags) in (list, tuple) else ()
    own = (
        tag
        for tag in map(id_text, islice(all_tags, 10 * MOST_TAGS))
        if tag and not _FRAMEWORK_TAG.fullmatch(tag)
    )
    kept = (stored("tag", tag) for tag in islice(own, MOST_TAGS))
    return RunKeys(
        session=first("session", sources.session),
        thread=first("thread", sources.thread),
        user=first("user", sources.user),
        name=(stored("name", name) if sources.name and name else None),
        tags=tuple(dict.fromkeys(tag for tag in kept if tag)),
    )


def id_text(value: object) -> str:
    """Return a text, whole number or UUID as text, and "" for anything else."""
    try:
        if isinstance(value, str):
            return str.__str__(value)[:_LONGEST_READ_CHARS].strip()
        if isinstance(value, bool):
            return ""
        if isinstance(value, int):
            large = int.bit_length(value) > _LARGE_BITS  # Python refuses to write it in decimals
            return f"{int.__index__(value):x}" if large else int.__repr__(value)
        if isinstance(value, UUID):
            return UUID.__str__(value)
    except BaseException as error:  # a class of somebody else's
        if raised_by_host(error):
            raise
    return ""


def stored_form(
    kind: Kind, text: str, rules: Rules | None, leaves: Callable[[str], bool] | None = None
) -> str | None:
    """Return the form in which a value is kept: itself, or a hash.

    Args:
        kind: What it is.
        text: The value.
        rules: What is redacted besides what always is; its `pseudonym_key`, if there is one, is
            the key of the hash, and else that of the installation.
        leaves: Tells whether redaction leaves a text alone; by default that by `rules`, at the
            strictest level.

    Returns:
        None where there is no key to hash it under; one warning says why.
    """
    if _is_harmless(kind, text, leaves or _leaves_by(rules)):
        return text
    key = _key(rules)
    return None if key is None else _hashed(kind, text, key)


def forms_of(kind: Kind, value: str, rules: Rules | None) -> list[str]:
    """Return the forms in which a value may stand in a store: to look for it."""
    text = id_text(value)
    key = _key(rules)
    clear = [text] if kind != "user" or _HASH.fullmatch(text) else []
    return clear if key is None else [*clear, _hashed(kind, text, key)]


def _leaves_by(rules: Rules | None) -> Callable[[str], bool]:
    return lambda text: bool(redact(text, level="aggregated", rules=rules).value == text)


def _is_harmless(kind: Kind, text: str, leaves: Callable[[str], bool]) -> bool:
    if kind == "user" or len(text) > KEY_CHARS or not text.isprintable() or _HASH.fullmatch(text):
        return False
    if kind in ("session", "thread") and _NUMBER.fullmatch(text):
        return False
    try:
        return leaves(text)
    except Exception:  # noqa: BLE001 - what cannot be redacted is not shown
        return False


def _hashed(kind: Kind, text: str, key: bytes) -> str:
    message = f"{kind}\0{text}".encode("utf-8", "surrogatepass")
    return f"hash:{hmac.digest(key, message, 'sha256').hex()[:_DIGEST_CHARS]}"


def _key(rules: Rules | None) -> bytes | None:
    if rules is not None and rules.pseudonym_key is not None:
        return rules.pseudonym_key.get_secret_value().encode("utf-8", "surrogatepass")
    try:
        return secret_key()
    except ConfigError as error:
        warn_once(
            f"secret key:{error}",
            "users, and what of a run's keys redaction would change, cannot be hashed, so they are "
            "not kept: %s",
            error,
        )
        return None
