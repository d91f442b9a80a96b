"""The keys of a run, read from its config: session, thread, user, namespace, tags, name.

They stay in the store and the log of this machine, and never enter a trace. A value is stored as it
is only if redaction would not change it; otherwise, and always for a user, as a hash under a secret
key.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID, uuid4

from kp_langchain._logging import warn_once
from kp_langchain.errors import ConfigError
from kp_langchain.files import secret_key
from kp_langchain.redaction import redact

if TYPE_CHECKING:
    from kp_langchain.redaction.custom_rules import Rules

Kind = Literal["session", "thread", "user", "namespace", "tag", "name"]
KINDS: tuple[Kind, ...] = ("session", "thread", "user", "namespace", "tag", "name")

SESSION_NAMES = ("session_id", "conversation_id", "langfuse_session_id")
USER_NAMES = ("user_id", "langfuse_user_id")
THREAD_NAME = "thread_id"
NAMESPACE_NAME = "kp_namespace"
"""The names in a run's metadata under which its keys are; the first one present counts.

What is kept of a run with a namespace is shown only to runs in the same one.
"""

KEY_CHARS = 200
MOST_TAGS = 20
_LONGEST_CHARS = 100_000  # a longer value counts as none
_DIGEST_CHARS = 32  # 128 bits
_HASH = re.compile(r"hash:[0-9a-f]{32}")
_UNKNOWN = re.compile(r"unknown:[0-9a-f]{32}")  # the namespace of a single run
# Perhaps a customer number, or a telephone number as messengers write it; redaction cannot tell.
_NUMBER = re.compile(r"[+(]?[0-9](?:[-+. ()/]*[0-9]){6,}")
# Tags that LangChain and LangGraph add.
_FRAMEWORK_TAG = re.compile(
    r"(?:graph|seq):step:[0-9]+|map:key:.*|(?:branch|condition):(?:[0-9]+|default)"
    r"|retry:attempt:[0-9]+|langsmith:.*",
    re.DOTALL,
)


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
        """Return these keys, with those from before the pause for the ones that are missing."""
        if earlier is None:
            return self
        values = {
            name: getattr(self, name) or getattr(earlier, name)
            for name in ("session", "thread", "user", "namespace", "name")
        }
        namespaces = {self.namespace, earlier.namespace} - {None}
        if len(namespaces) > 1:  # its texts may come from both tenants
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
    metadata: Mapping[str, Any],
    tags: object,
    name: str,
    to_stored_form: Callable[[Kind, str], str | None],
) -> RunKeys:
    """Return the keys of a run.

    Args:
        metadata: The root run's metadata.
        tags: Its tags; anything but a list of texts counts as none.
        name: Its name.
        to_stored_form: Returns the form in which a value is stored; None to store nothing.
    """

    def first(kind: Kind, keys: Iterable[str]) -> str | None:
        text = next(filter(None, (id_text(metadata.get(key)) for key in keys)), "")
        return to_stored_form(kind, text) if text else None

    all_tags: Any = tags if type(tags) in (list, tuple) else ()
    user_tags = (
        tag
        for tag in map(id_text, islice(all_tags, 10 * MOST_TAGS))
        if tag and not _FRAMEWORK_TAG.fullmatch(tag)
    )
    stored_tags = (to_stored_form("tag", tag) for tag in islice(user_tags, MOST_TAGS))
    return RunKeys(
        session=first("session", SESSION_NAMES),
        thread=first("thread", (THREAD_NAME,)),
        user=first("user", USER_NAMES),
        namespace=stored_namespace(namespace_text(metadata), to_stored_form),
        name=to_stored_form("name", name) if name else None,
        tags=tuple(dict.fromkeys(tag for tag in stored_tags if tag)),
    )


def stored_namespace(
    text: str | None, to_stored_form: Callable[[Kind, str], str | None]
) -> str | None:
    """Return the namespace of a run in its stored form.

    Where it is unusable or cannot be hashed, the run has a namespace of its own, so that no other
    is shown it.

    Args:
        text: The namespace in plain text, as `namespace_text` returns it.
        to_stored_form: As for `collect`.
    """
    if text is None:
        return None
    form = to_stored_form("namespace", text) if text else None
    return form or _own_namespace()


def _own_namespace() -> str:
    """Return a namespace that no other run has."""
    return f"unknown:{uuid4().hex}"


def namespace_text(metadata: Mapping[str, Any]) -> str | None:
    """Return the namespace of a run in plain text.

    Args:
        metadata: The run's metadata.

    Returns:
        None if the metadata name none; "" if theirs is unusable, which a warning says once.
    """
    value = metadata.get(NAMESPACE_NAME)
    if value is None:
        return None
    text = id_text(value)
    if not text:
        warn_once(
            "namespace",
            "the metadata of a run have a %s that is empty, or neither text, an integer nor a "
            "UUID; such runs are shown only traces without a namespace, and theirs are shown to "
            "no other run",
            NAMESPACE_NAME,
        )
    return text


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


def id_text(value: object) -> str:
    """Return a string, integer or UUID as text; "" for anything else, or what is very long."""
    try:
        if isinstance(value, str):
            text = str.__str__(value).strip()
        elif isinstance(value, int) and not isinstance(value, bool):
            text = int.__repr__(value)
        else:
            text = UUID.__str__(value) if isinstance(value, UUID) else ""
    except Exception:  # noqa: BLE001 - raised by a foreign subclass, or for a very large number
        return ""
    return text if len(text) <= _LONGEST_CHARS else ""


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
    return hashed if is_stored_form else [text, *hashed]


def _unchanged_by(rules: Rules | None) -> Callable[[str], bool]:
    return lambda text: bool(redact(text, level="aggregated", rules=rules).value == text)


def _is_harmless(kind: Kind, text: str, is_unchanged: Callable[[str], bool]) -> bool:
    if kind == "user" or len(text) > KEY_CHARS or not text.isprintable() or _HASH.fullmatch(text):
        return False
    if kind == "namespace" and _UNKNOWN.fullmatch(text):  # the form of another one
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


# ------------------------------------------------------------------ the id of an agent

AGENT_PREFIX = "kp:agent:"
_AGENT_EXAMPLE = "kp:agent:desk"
_LONGEST_AGENT_CHARS = 200


def normalise_agent_id(agent_id: str) -> str:
    """Return an agent's id in its canonical form, `kp:agent:<id>`."""
    text = agent_id.strip()
    return text if text.startswith(AGENT_PREFIX) else f"{AGENT_PREFIX}{text}"


def check_agent_id(agent_id: str, rules: Rules | None = None) -> str:
    """Return an agent's id in its canonical form, after checking that traces can carry it.

    A registry deletes a unit only for the agent that the unit names, so the two must be equal.

    Args:
        agent_id: The id, with or without `kp:agent:`.
        rules: The user's redaction rules.

    Raises:
        ConfigError: The id is empty, too long or unprintable, or redaction would change it. The
            message shows it redacted.
    """
    text = normalise_agent_id(agent_id)
    instead = f"give another agent_id, such as {_AGENT_EXAMPLE}"
    if text == AGENT_PREFIX:
        raise ConfigError(f"agent_id is empty; {instead}")
    if len(text) > _LONGEST_AGENT_CHARS or not text.isprintable():
        raise ConfigError(
            f"agent_id has {len(text)} characters, or some that cannot be printed; {instead} with "
            f"at most {_LONGEST_AGENT_CHARS}"
        )
    without = redact_agent_id(text, rules)
    if without != text:
        raise ConfigError(
            f"agent_id would be redacted to {without!r}, so that nothing sent under it could be "
            f"withdrawn; {instead}"
        )
    return text


def redact_agent_id(agent_id: str, rules: Rules | None = None) -> str:
    """Return an agent's id as redaction at the strictest level leaves it."""
    return str(redact(agent_id, level="aggregated", rules=rules).value)
