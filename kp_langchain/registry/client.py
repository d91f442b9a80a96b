"""`Registry`, a client for the HTTP API of a registry; imports httpx on first use."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Unpack

from pydantic import SecretStr

from kp_langchain._version import __version__
from kp_langchain.errors import ConfigError, RegistryError
from kp_langchain.registry.answers import Answer, json_object, parse_json, read_answer
from kp_langchain.registry.exchange import (
    STEPS_PER_REQUEST,
    base_url,
    exchange,
    failure_of,
    unit_path,
)

if TYPE_CHECKING:
    from kp_langchain.registry.search import SearchOptions, SearchPage

ANONYMOUS = "anonymous"
"""The `Registry.key_id` of a registry without a key."""

ANONYMOUS_READS = 60
"""The requests per minute that a registry allows without a known key; with a key it allows more."""

_MISSING_UNIT = "kp:trace:00000000-0000-0000-0000-000000000000"

_MAX_ANSWER_BYTES = 2**20
_LONGEST_LOOKUP_S = 30.0  # and whatever else is before the first step
_MISSING = (404, 410)
# In answer to a deletion they concern this unit only; the key may be valid for others.
_DELETION_REFUSED = (403, 405)
_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # so that the size limit counts the bytes that arrive
    "Connection": "close",
    "KP-Schema-Version": "v1",
    "User-Agent": f"kp-langchain/{__version__}",
}
# The key goes into a header, so it must not contain a line break.
_KEY = re.compile(r"[!-~]{1,500}")


class Registry:
    """A client for a registry.

    Nothing is sent before a method is called. Certificates are verified. Proxies and certificate
    files from the environment (`HTTPS_PROXY`, `SSL_CERT_FILE`) are used.

    Args:
        url: The URL of the registry: `https://`, or `http://` on this machine.
        api_key: Your key. It is sent to this URL only and never shown.
        agent_id: The agent that the key belongs to. The key can withdraw traces with this id.
        timeout_s: The time limit of each step of a request (connect, send, receive), in seconds. A
            whole request with its redirects may take three times as long from the connection on.
            The operating system limits the time of a name lookup.

    Attributes:
        url: The URL, without a slash at the end.
        agent_id: The agent that the key belongs to, as the registry spells it; None if unknown.

    Raises:
        ConfigError: The URL, the key or the time limit is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: SecretStr | str | None = None,
        agent_id: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.url: Final = base_url(url)
        self.agent_id: Final = agent_id
        self._key = None if api_key is None else _check_key(api_key)
        if not 0.0 < timeout_s < math.inf:
            raise ConfigError(f"timeout_s={timeout_s} must be seconds above 0")
        self._timeout_s = timeout_s

    @property
    def key_id(self) -> str:
        """An id of the key that does not reveal it: the start of its SHA-256, or `anonymous`."""
        if self._key is None:
            return ANONYMOUS
        return sha256(self._key.get_secret_value().encode()).hexdigest()[:16]

    @property
    def longest_request_s(self) -> float:
        """For how long a request may take at most, in seconds; a name lookup included."""
        return self._timeout_s * STEPS_PER_REQUEST + _LONGEST_LOOKUP_S

    def __repr__(self) -> str:
        return f"Registry({self.url!r}, api_key={'***' if self._key else None})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Registry):
            return NotImplemented
        return (self.url, self.key_id) == (other.url, other.key_id)

    def __hash__(self) -> int:
        return hash((self.url, self.key_id))

    def contribute(self, body: bytes, idempotency_key: str) -> Answer:
        """Send one unit. Never raises: the answer says what went wrong.

        Args:
            body: The unit as JSON in UTF-8.
            idempotency_key: The SHA-256 of `body` in hexadecimal. A repeated request with the same
                key gets the same answer.
        """
        return self._send(
            "POST",
            "/v1/knowledge",
            body,
            idempotency_key=idempotency_key,
            expects_id=True,
            own_id=json_object(parse_json(body)).get("id"),
        )

    def find(self, registry_id: str) -> Answer:
        """Ask whether the registry has a unit: `done`, or `refused` with status 404. Never raises.

        Args:
            registry_id: The registry's id of the unit.
        """
        answer = self._send("GET", unit_path(registry_id), expects_id=True, own_id=registry_id)
        # An answer without JSON comes from a proxy or another server, not from the registry.
        if answer.status in _MISSING and answer.is_json:
            return replace(answer, kind="refused", reason=f"{answer.status}: no such unit")
        return answer

    def withdraw(self, registry_id: str) -> Answer:
        """Delete a unit of yours. A unit that the registry does not have is `done`. Never raises.

        Args:
            registry_id: The registry's id of the unit.
        """
        answer = self._send("DELETE", unit_path(registry_id))
        if answer.status in _MISSING and answer.is_json:
            return replace(answer, kind="done", reason=f"{answer.status}: already deleted")
        if answer.status in _DELETION_REFUSED:
            detail = f": {answer.message}" if answer.message else ""
            reason = f"{answer.status}: may not be deleted{detail}"
            return replace(answer, kind="refused", reason=reason)
        return answer

    def search(self, **options: Unpack[SearchOptions]) -> Iterator[SearchPage]:
        """Yield the reasoning traces that the registry has, a page at a time.

        Never raises for what the registry does: the last page says what went wrong.

        Args:
            options: As `SearchOptions` explains them; `domain` is required.

        Raises:
            ConfigError: An option cannot be used.
        """
        from kp_langchain.registry.search import search
        from kp_langchain.store import Standing

        return search(self.read_json, Standing(self.url, self.key_id), **options)

    def read_json(self, path: str, max_bytes: int) -> tuple[Answer, Any]:
        """Read a document. Never raises: the answer says what went wrong.

        Args:
            path: Its path, and perhaps a query.
            max_bytes: Its size at most.

        Returns:
            The answer, and the document; None if there is none. If the answer is `done` without a
            document, that is too large or cannot be parsed.
        """
        answer = self._send("GET", path, max_bytes=max_bytes)
        document = answer.content if answer.kind == "done" else None
        return replace(answer, content=None), document

    def check(self) -> Answer:
        """Make one cheap request to check the registry and the key. Never raises.

        Returns:
            `done` if the registry answers and, as far as its rate limit shows, knows the key;
            otherwise the answer says what is wrong.
        """
        answer = self._send("GET", unit_path(_MISSING_UNIT))
        if answer.status not in _MISSING or not answer.is_json:
            return answer
        limit = answer.allowance.limit
        if self._key is None or limit is None or limit > ANONYMOUS_READS:
            return replace(answer, kind="done", reason=f"{answer.status}: no such unit")
        reason = f"it does not know the key: it allows {limit} requests a minute, as without one"
        return replace(answer, kind="stopped", reason=reason)

    def register(self, agent_id: str) -> SecretStr:
        """Register `agent_id` on the free tier and return its key, which may read and write.

        Args:
            agent_id: `kp:agent:<id>`.

        Raises:
            RegistryError: The registry gave no key; the message says why.
        """
        content = {"agent_id": agent_id, "scopes": ["read", "write"], "tier": "free"}
        body = json.dumps(content).encode()
        answer = self._send("POST", "/v1/auth/register", body, is_anonymous=True)
        key, reason = answer.data.get("api_key"), answer.reason
        if answer.kind == "done":
            if isinstance(key, str) and _KEY.fullmatch(key):
                return SecretStr(key)
            reason = "its answer contains no valid key"
        raise RegistryError(f"{self.url} gave no key for {agent_id!r}: {reason}")

    def _send(
        self,
        method: str,
        path: str | None,
        body: bytes | None = None,
        *,
        is_anonymous: bool = False,
        idempotency_key: str | None = None,
        expects_id: bool = False,
        own_id: object = None,
        max_bytes: int = _MAX_ANSWER_BYTES,
    ) -> Answer:
        if path is None:
            return Answer("refused", "no unit can have this id")
        key = None if is_anonymous else self._key
        headers = dict(_HEADERS)
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Authorization"] = f"Bearer {key.get_secret_value()}"
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        try:
            url, limit_s = self.url + path, self._timeout_s
            response = exchange(method, url, headers, body, timeout_s=limit_s, max_bytes=max_bytes)
        except Exception as error:  # noqa: BLE001 - httpx, TLS, the environment, the server
            return failure_of(error, self.url)
        return read_answer(
            *response, expects_id=expects_id, key=key, request_body=body or b"", own_id=own_id
        )


def _check_key(key: SecretStr | str) -> SecretStr:
    secret = key if isinstance(key, SecretStr) else SecretStr(key)
    value = secret.get_secret_value()
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ConfigError(
            "the registry's key is empty, longer than 500 characters, or contains a space, a "
            "control character or a character outside ASCII; check api_key or KP_API_KEY"
        )
    return secret
