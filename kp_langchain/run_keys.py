"""The keys of a run, read from its config: session, thread, user, namespace, tags, name.

They stay in the store and the log of this machine, and never enter a trace. A value is stored as it
is only if redaction would not change it; otherwise, and always for a user, as a hash under a secret
key.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict, Field

from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.redaction import redact
from kp_langchain.secret_key import secret_key

if TYPE_CHECKING:
    from kp_langchain.redaction.custom_rules import Rules

Kind = Literal["session", "thread", "user", "namespace", "tag", "name"]
KINDS: tuple[Kind, ...] = ("session", "thread", "user", "namespace", "tag", "name")

KEY_CHARS = 200
MOST_TAGS = 20
_LONGEST_CHARS = 100_000
_LARGE_BITS = 512
_DIGEST_CHARS = 32  # 128 bits
_HASH = re.compile(r"hash:[0-9a-f]{32}")
_UNKNOWN = re.compile(r"unknown:[0-9a-f]{32}")  # the namespace of a single run
_PAIRS_START = '[["'  # of a namespace that several keys give together
# Perhaps a customer number, or a telephone number as messengers write it; redaction cannot tell.
_NUMBER = re.compile(r"[+(]?[0-9](?:[-+. ()/]*[0-9]){6,}")
# Tags that LangChain and LangGraph add.
_FRAMEWORK_TAG = re.compile(
    r"(?:graph|seq):step:[0-9]+|map:key:.*|(?:branch|condition):(?:[0-9]+|default)"
    r"|retry:attempt:[0-9]+|langsmith:.*",
    re.DOTALL,
)

_Names = tuple[str, ...]


class RunKeySources(BaseModel):
    """Which keys of a run are kept, and where in its metadata they are: an allow-list.

    Attributes:
        session: Names in the run's metadata; the first one present gives the session. An empty list
            keeps none.
        thread: The same for the thread.
        user: The same for the user; only a hash is kept.
        namespace: Names in the run's metadata; all that are present give the namespace together.
            What is kept of a run with one is shown only to runs in the same namespace. Name
            `user_id` here as well to keep users apart.
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
    namespace: _Names = Field(default=("kp_namespace",), description="a list of metadata keys")
    tags: bool = Field(default=True, description="true or false")
    name: bool = Field(default=True, description="true or false")


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run: texts that redaction does not change, or `hash:` and 32 digits.

    Attributes:
        session: The session it belongs to.
        thread: The LangGraph thread it ran in.
        user: The user it ran for, hashed.
        name: Its name in the config.
        tags: Its tags in the config.
        namespace: Whose it is, such as a tenant's; None if all may be shown it.
    """

    session: str | None = None
    thread: str | None = None
    user: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    namespace: str | None = None

    def after(self, earlier: RunKeys | None) -> RunKeys:
        """Return these keys, with those of the run's earlier part for the ones that are missing."""
        if earlier is None:
            return self
        values = {
            name: getattr(self, name) or getattr(earlier, name)
            for name in ("session", "thread", "user", "namespace", "name")
        }
        namespaces = {self.namespace, earlier.namespace} - {None}
        if len(namespaces) > 1:  # what it says is of both, so it is nobody else's
            values["namespace"] = _own_namespace()
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
    to_stored_form: Callable[[Kind, str], str | None],
) -> RunKeys:
    """Return the keys of a run.

    Args:
        sources: Which keys to keep.
        metadata: The root run's metadata.
        tags: Its tags; anything but a list of texts counts as none.
        name: Its name.
        to_stored_form: Returns the form in which a value is stored; None to store nothing.
    """

    def first(kind: Kind, keys: Iterable[str]) -> str | None:
        for key in keys:
            text = id_text(metadata.get(key))
            if text:
                return to_stored_form(kind, text)
        return None

    all_tags: Any = tags if sources.tags and type(tags) in (list, tuple) else ()
    user_tags = (
        tag
        for tag in map(id_text, islice(all_tags, 10 * MOST_TAGS))
        if tag and not _FRAMEWORK_TAG.fullmatch(tag)
    )
    stored_tags = (to_stored_form("tag", tag) for tag in islice(user_tags, MOST_TAGS))
    return RunKeys(
        session=first("session", sources.session),
        thread=first("thread", sources.thread),
        user=first("user", sources.user),
        namespace=namespace_in(sources, metadata, to_stored_form),
        name=(to_stored_form("name", name) if sources.name and name else None),
        tags=tuple(dict.fromkeys(tag for tag in stored_tags if tag)),
    )


def namespace_in(
    sources: RunKeySources,
    metadata: Mapping[str, Any],
    to_stored_form: Callable[[Kind, str], str | None],
) -> str | None:
    """Return the namespace of a run in its stored form; the arguments are those of `collect`.

    Where it is unusable or cannot be hashed, the run has a namespace of its own, so that no other
    is shown it.
    """
    text = namespace_text(sources, metadata)
    if text is None:
        return None
    form = to_stored_form("namespace", text) if text else None
    return form or _own_namespace()


def _own_namespace() -> str:
    """Return a namespace that no other run has."""
    return f"unknown:{uuid4().hex}"


def namespace_text(sources: RunKeySources, metadata: Mapping[str, Any]) -> str | None:
    """Return the namespace of a run in plain text.

    Args:
        sources: Under which names in the metadata it is.
        metadata: The run's metadata.

    Returns:
        None if the metadata name none. The value, if they have one; if they have several, the JSON
        list of pairs of name and value. "" if one is unusable, which a warning says once.
    """
    values = {key: metadata.get(key) for key in sources.namespace}
    pairs = [(key, id_text(value)) for key, value in values.items() if value is not None]
    unusable = [key for key, text in pairs if not text]
    if unusable:
        _warn_of_unusable(unusable[0])
        return ""
    if len(pairs) == 1 and pairs[0][0] in sources.user:
        return _pairs_text(pairs)  # a user is kept only as a hash, as lists are
    return _joined(pairs) if pairs else None


def argument_text(sources: RunKeySources, namespace: str) -> str:
    """Return the namespace that a program names itself, as `namespace_text` returns it.

    Args:
        sources: Under which names in the metadata namespaces are.
        namespace: The single value, as `check_namespace` returns it.
    """
    return _joined([(next(iter(sources.namespace), "kp_namespace"), namespace)])


def check_namespace(value: object) -> str | None:
    """Return a namespace that is the argument of a program as text; None if it is None.

    Raises:
        ConfigError: It is empty, or neither text, an integer nor a UUID.
    """
    if value is None:
        return None
    text = id_text(value)
    if text:
        return text
    if isinstance(value, str):
        raise ConfigError(
            f"namespace={value[:KEY_CHARS]!r} is empty; pass None for the one that the metadata of "
            "the run name"
        )
    raise ConfigError(
        f"namespace of type {type(value).__name__} is unusable; pass text, an integer or a UUID"
    )


def _joined(pairs: Sequence[tuple[str, str]]) -> str:
    """Return the namespace that keys and their values give together: never that of others."""
    if len(pairs) == 1 and not pairs[0][1].startswith(_PAIRS_START):
        return pairs[0][1]
    return _pairs_text(pairs)


def _pairs_text(pairs: Sequence[tuple[str, str]]) -> str:
    return _bounded(json.dumps(pairs, ensure_ascii=False))


def _warn_of_unusable(key: str) -> None:
    warn_once(
        f"namespace:{key}",
        "the metadata of a run have a namespace in %r that is empty, or neither text, an integer "
        "nor a UUID; such runs are shown only traces without a namespace, and theirs are shown to "
        "no other run",
        key,
    )


def id_text(value: object) -> str:
    """Return a string, integer or UUID as text, and "" for anything else.

    A very long text is cut and ends in its hash, so that different texts stay different.
    """
    try:
        if isinstance(value, str):
            return _bounded(str.__str__(value).strip())
        if isinstance(value, bool):
            return ""
        if isinstance(value, int):
            is_large = int.bit_length(value) > _LARGE_BITS  # Python may refuse to write decimals
            return _bounded(f"{int.__index__(value):x}") if is_large else int.__repr__(value)
        if isinstance(value, UUID):
            return UUID.__str__(value)
    except Exception:  # noqa: BLE001 - raised by a foreign subclass
        return ""
    return ""


def _bounded(text: str) -> str:
    if len(text) <= _LONGEST_CHARS:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return text[: _LONGEST_CHARS - len(digest)] + digest


def have_same_keys(names: Iterable[str], one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two metadata name the same keys of a run. Values are compared as `id_text`.

    Args:
        names: The names of the keys.
        one: The metadata of one run.
        other: The metadata of the other.
    """
    for name in names:
        mine, its = one.get(name), other.get(name)
        if mine is not its and (mine is None or its is None or id_text(mine) != id_text(its)):
            return False
    return True


def stored_form(
    kind: Kind, text: str, rules: Rules | None, is_unchanged: Callable[[str], bool] | None = None
) -> str | None:
    """Return the form in which a value is stored: itself, or a hash.

    Args:
        kind: The kind of key.
        text: The value.
        rules: The user's redaction rules. Their `pseudonym_key`, if set, is the key of the hash;
            otherwise it is the key of the installation.
        is_unchanged: Returns whether redaction leaves a text unchanged; by default redaction with
            `rules` at the strictest level.

    Returns:
        None if there is no key for the hash; a warning says why, once.
    """
    if _is_harmless(kind, text, is_unchanged or _unchanged_by(rules)):
        return text
    key = _key(rules)
    return None if key is None else _hash(kind, text, key)


def paused_run_key(thread: str, domain: str, agent_id: str | None) -> str:
    """Return the key under which a paused run waits: a hash, which reveals nothing of the thread.

    Args:
        thread: The thread as `stored_form` returns it.
        domain: The handler's domain.
        agent_id: The handler's agent id, if it has one.
    """
    return sha256(json.dumps([thread, domain, agent_id]).encode()).hexdigest()


def forms_of(kind: Kind, value: str, rules: Rules | None) -> list[str]:
    """Return the forms in which a store may have a value, to search for it."""
    text = id_text(value)
    key = _key(rules)
    clear = [text] if kind != "user" or _HASH.fullmatch(text) else []
    return clear if key is None else [*clear, _hash(kind, text, key)]


def namespace_forms(text: str, rules: Rules | None) -> list[str]:
    """Return the forms in which recording may have stored this namespace, and no other one.

    Both are needed, because what redaction changes is up to each handler, and to its settings at
    the time. Unlike `forms_of`, the stored form of a namespace does not stand for that namespace:
    a run may name whatever it likes.

    Args:
        text: The namespace in plain text, as `namespace_text` returns it.
        rules: The user's redaction rules, as for `stored_form`.
    """
    text, key = id_text(text), _key(rules)
    if not text:
        return []
    hashed = [] if key is None else [_hash("namespace", text, key)]
    is_stored_form = _HASH.fullmatch(text) or _UNKNOWN.fullmatch(text)
    return hashed if is_stored_form or text.startswith(_PAIRS_START) else [text, *hashed]


def _unchanged_by(rules: Rules | None) -> Callable[[str], bool]:
    return lambda text: bool(redact(text, level="aggregated", rules=rules).value == text)


def _is_harmless(kind: Kind, text: str, is_unchanged: Callable[[str], bool]) -> bool:
    if kind == "user" or len(text) > KEY_CHARS or not text.isprintable() or _HASH.fullmatch(text):
        return False
    # Several keys may be those of a user, and a name must not be taken for another one's form.
    if kind == "namespace" and (text.startswith(_PAIRS_START) or _UNKNOWN.fullmatch(text)):
        return False
    if kind in ("session", "thread") and _NUMBER.fullmatch(text):
        return False
    try:
        return is_unchanged(text)
    except Exception:  # noqa: BLE001 - a value that cannot be redacted is hashed
        return False


def _hash(kind: Kind, text: str, key: bytes) -> str:
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
            "users, and keys of runs that redaction would change, cannot be hashed, so they are "
            "not kept: %s",
            error,
        )
        return None
