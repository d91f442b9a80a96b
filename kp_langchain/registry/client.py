"""`Registry`, a client for the HTTP API of a registry; imports httpx on first use."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, Unpack

from pydantic import SecretStr

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import ConfigError, RegistryError
from kp_langchain.registry.deadline import Deadline
from kp_langchain.registry.failed_requests import answer_for
from kp_langchain.registry.http_response import (
    Response,
    read_body,
    redirect_target,
    request_headers,
)
from kp_langchain.registry.quiet_http import quiet_http_loggers
from kp_langchain.registry.responses import Answer, read_answer
from kp_langchain.registry.safe_text import parse_json
from kp_langchain.registry.urls import base_url, unit_path

if TYPE_CHECKING:
    import httpx

    from kp_langchain.registry.search import SearchOptions, SearchPage

ANONYMOUS = "anonymous"
"""The `Registry.key_id` of a registry without a key."""

ANONYMOUS_READS = 60
"""The requests per minute that a registry allows without a known key; with a key it allows more."""

_MISSING_UNIT = "kp:trace:00000000-0000-0000-0000-000000000000"

_MAX_ANSWER_BYTES = 2**20
_MAX_REDIRECTS = 3
_MISSING = (404, 410)
# In answer to a deletion they concern this unit only; the key may be valid for others.
_DELETION_REFUSED = (403, 405)
# The time limit of a whole request, in multiples of the time limit of a step.
_STEPS_PER_REQUEST = 3.0
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
        self._url = base_url(url)
        self._agent_id = agent_id
        self._key = None if api_key is None else _check_key(api_key)
        if not 0.0 < timeout_s < math.inf:
            raise ConfigError(f"timeout_s={timeout_s} must be seconds above 0")
        self._timeout_s = timeout_s
        self._lock = ForkSafeLock()
        self._client: httpx.Client | None = None
        self._client_of_pid = 0

    @property
    def url(self) -> str:
        """The URL, without a slash at the end."""
        return self._url

    @property
    def key_id(self) -> str:
        """An id of the key that does not reveal it: the start of its SHA-256, or `anonymous`."""
        if self._key is None:
            return ANONYMOUS
        return sha256(self._key.get_secret_value().encode()).hexdigest()[:16]

    @property
    def agent_id(self) -> str | None:
        """The agent that the key belongs to, as the registry spells it; None if unknown."""
        return self._agent_id

    def __repr__(self) -> str:
        return f"Registry({self._url!r}, api_key={'***' if self._key else None})"

    def __reduce__(self) -> tuple[partial[Registry], tuple[str]]:
        # Pickled as its arguments, with the key as a SecretStr.
        rebuild = partial(
            type(self), api_key=self._key, agent_id=self._agent_id, timeout_s=self._timeout_s
        )
        return (rebuild, (self._url,))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Registry):
            return NotImplemented
        return (self._url, self.key_id) == (other._url, other.key_id)

    def __hash__(self) -> int:
        return hash((self._url, self.key_id))

    def contribute(self, body: bytes, idempotency_key: str) -> Answer:
        """Send one unit. Never raises: the answer says what went wrong.

        Args:
            body: The unit as JSON in UTF-8.
            idempotency_key: The SHA-256 of `body` in hexadecimal. A repeated request with the same
                key gets the same answer.
        """
        headers = {"Idempotency-Key": idempotency_key}
        return self._send(
            "POST", "/v1/knowledge", body, headers, expects_id=True, own_id=_id_in(body)
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

        return search(self, **options)

    def read_json(self, path: str, max_bytes: int) -> tuple[Answer, Any]:
        """Read a document. Never raises: the answer says what went wrong.

        Args:
            path: Its path, and perhaps a query.
            max_bytes: Its size at most.

        Returns:
            The answer, and the document; None if there is none. If the answer is `done` without a
            document, that is too large or cannot be parsed.
        """
        response = self._exchange(
            "GET", path, self._with_key(request_headers(None)), None, max_bytes
        )
        if isinstance(response, Answer):
            return response, None
        body = b"" if response.is_oversized else response.body
        document = parse_json(body)
        if document is not None:
            body = b"{}"  # it may be large, and is not parsed again
        answer = read_answer(
            response.status, response.headers, body, expects_id=False, key=self._key
        )
        return answer, document if answer.kind == "done" else None

    def check(self) -> Answer:
        """Make one cheap request to check the registry and the key. Never raises.

        Returns:
            `done` if the registry answers and, as far as its rate limit shows, knows the key;
            otherwise the answer says what is wrong.
        """
        answer = self._send("GET", unit_path(_MISSING_UNIT))
        if answer.status not in _MISSING or not answer.is_json:
            return answer
        limit = None if answer.allowance is None else answer.allowance.limit
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
        response = self._exchange("POST", "/v1/auth/register", request_headers(body), body)
        if not isinstance(response, Answer):
            answer = read_answer(*response[:3], expects_id=False)
            key = _key_in(response.body) if answer.kind == "done" else None
            if key is not None:
                return key
            unusable = replace(answer, reason="its answer contains no valid key")
            response = unusable if answer.kind == "done" else answer
        raise RegistryError(f"{self._url} gave no key for {agent_id!r}: {response.reason}")

    def open(self) -> None:
        """Import httpx and create the HTTP client; otherwise the first request does so.

        A fork during an import leaves the import lock locked in the child for ever. So a thread
        calls this inside a section that forks wait for.
        """
        self._http_client()

    def close(self) -> None:
        """Close the connections. The next request opens new ones."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self._client_of_pid == os.getpid():
                client.close()

    def _send(
        self,
        method: str,
        path: str | None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        expects_id: bool = False,
        own_id: str | None = None,
    ) -> Answer:
        if path is None:
            return Answer("refused", "no unit can have this id")
        all_headers = self._with_key(request_headers(body) | dict(headers or {}))
        response = self._exchange(method, path, all_headers, body)
        if isinstance(response, Answer):
            return response
        return read_answer(
            *response[:3],
            expects_id=expects_id,
            key=self._key,
            request_body=body or b"",
            own_id=own_id,
        )

    def _with_key(self, headers: dict[str, str]) -> dict[str, str]:
        if self._key is None:
            return headers
        return headers | {"Authorization": f"Bearer {self._key.get_secret_value()}"}

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int = _MAX_ANSWER_BYTES,
    ) -> Response | Answer:
        """Send a request and follow redirects within the registry; on failure return an answer."""
        try:
            import httpx

            deadline = Deadline(self._timeout_s * _STEPS_PER_REQUEST)
            url = httpx.URL(self._url + path)
            for _ in range(_MAX_REDIRECTS):
                response = self._request(method, url, headers, body, deadline, max_bytes)
                target = redirect_target(url, response)
                if target is None:
                    return response
                url = target
            return self._request(method, url, headers, body, deadline, max_bytes)
        except Exception as error:  # noqa: BLE001 - httpx, TLS, the environment, the server
            return answer_for(error, self._url)

    def _request(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        body: bytes | None,
        deadline: Deadline,
        max_bytes: int,
    ) -> Response:
        client = self._http_client()
        request = client.build_request(
            method, url, content=body, headers=headers, extensions={"trace": deadline.watch}
        )
        with quiet_http_loggers():
            response = client.send(request, stream=True)
            try:
                content, is_oversized = read_body(response, max_bytes)
                return Response(response.status_code, response.headers, content, is_oversized)
            finally:
                response.close()

    def _http_client(self) -> httpx.Client:
        import httpx

        with self._lock:
            # A fork during a request copies the locked locks of the connection pool.
            if self._client is None or self._client_of_pid != os.getpid():
                self._client = httpx.Client(
                    timeout=self._timeout_s,
                    follow_redirects=False,
                    # Requests to this machine need no proxy, which would see the key.
                    trust_env=self._url.startswith("https:"),
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                    # One connection per request: none is stale, and the deadline sees each one.
                    limits=httpx.Limits(max_keepalive_connections=0),
                )
                self._client_of_pid = os.getpid()
            return self._client


def _check_key(key: SecretStr | str) -> SecretStr:
    secret = key if isinstance(key, SecretStr) else SecretStr(key)
    value = secret.get_secret_value()
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ConfigError(
            "the registry's key is empty, longer than 500 characters, or contains a space, a "
            "control character or a character outside ASCII; check api_key or KP_API_KEY"
        )
    return secret


def _id_in(unit: bytes) -> str | None:
    try:
        value = json.loads(unit)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _key_in(body: bytes | None) -> SecretStr | None:
    try:
        value = json.loads(body or b"")["data"]["api_key"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return SecretStr(value) if isinstance(value, str) and _KEY.fullmatch(value) else None
