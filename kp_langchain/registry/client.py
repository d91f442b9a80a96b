"""`Registry`, a client for the HTTP API of a registry; imports httpx on first use."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pydantic import SecretStr

from kp_langchain._logging import quiet_loggers
from kp_langchain._version import __version__
from kp_langchain.errors import ConfigError, RegistryError
from kp_langchain.registry.answers import Answer, read_answer, safe_text

if TYPE_CHECKING:
    import httpx

ANONYMOUS = "anonymous"
"""The `Registry.key_id` of a registry without a key."""

ANONYMOUS_READS = 60
"""The requests per minute that a registry allows without a known key; with a key it allows more."""

_MISSING_UNIT = "kp:trace:00000000-0000-0000-0000-000000000000"

_MAX_ANSWER_BYTES = 2**20
_STEPS_PER_REQUEST = 3.0  # the time of a whole request, in multiples of that of a step
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
# They log the status phrase and the headers of a server unchanged. A server that echoes the key or
# a unit there would have it logged.
_LOGGERS = ("httpx", *(f"httpcore.{part}" for part in ("connection", "http11", "proxy", "socks")))
# Stricter than the standard, so that no two programs can parse a URL differently.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~%+-]*)*)",
    re.IGNORECASE,
)
_DEFAULT_PORTS = {"https": 443, "http": 80}


class Registry:
    """A client for a registry.

    Nothing is sent before a method is called. Certificates are verified. Proxies and certificate
    files from the environment (`HTTPS_PROXY`, `SSL_CERT_FILE`) are used.

    Args:
        url: The URL of the registry: `https://`, or `http://` on this machine.
        api_key: Your key. It is sent to this URL only and never shown.
        agent_id: The agent that the key belongs to. The key can withdraw traces with this id.
        timeout_s: The time limit of each step of a request (connect, send, receive), in seconds.
            After three times as long, the body of an answer is cut off at its next piece. The
            operating system limits the time of a name lookup.

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
        """Seconds after which a request is expected to have ended.

        A name lookup is included; headers that drip may take longer.
        """
        return self._timeout_s * _STEPS_PER_REQUEST + _LONGEST_LOOKUP_S

    def __repr__(self) -> str:
        return f"Registry({self.url!r}, api_key={'***' if self._key else None})"

    def contribute(self, body: bytes, idempotency_key: str) -> Answer:
        """Send one unit. Never raises: the answer says what went wrong.

        Args:
            body: The unit as JSON in UTF-8.
            idempotency_key: The SHA-256 of `body` in hexadecimal. A repeated request with the same
                key gets the same answer.
        """
        return self._send(
            "POST", "/v1/knowledge", body, idempotency_key=idempotency_key, expects_id=True
        )

    def find(self, registry_id: str) -> Answer:
        """Ask whether the registry has a unit: `done`, or `refused` with status 404. Never raises.

        Args:
            registry_id: The registry's id of the unit.
        """
        answer = self._send("GET", _unit_path(registry_id), expects_id=True)
        # An answer without JSON comes from a proxy or another server, not from the registry.
        if answer.status in _MISSING and answer.is_json:
            return replace(answer, kind="refused", reason=f"{answer.status}: no such unit")
        return answer

    def withdraw(self, registry_id: str) -> Answer:
        """Delete a unit of yours. A unit that the registry does not have is `done`. Never raises.

        Args:
            registry_id: The registry's id of the unit.
        """
        answer = self._send("DELETE", _unit_path(registry_id))
        if answer.status in _MISSING and answer.is_json:
            return replace(answer, kind="done", reason=f"{answer.status}: already deleted")
        if answer.status in _DELETION_REFUSED:
            detail = f": {answer.message}" if answer.message else ""
            reason = f"{answer.status}: may not be deleted{detail}"
            return replace(answer, kind="refused", reason=reason)
        return answer

    def read(self, path: str, max_bytes: int) -> Answer:
        """Read a document. Never raises: the answer has its content, or says what went wrong.

        Args:
            path: Its path, and perhaps a query.
            max_bytes: Its size at most. An answer that is `done` without content is larger, or
                cannot be parsed.
        """
        return self._send("GET", path, max_bytes=max_bytes)

    def check(self) -> Answer:
        """Make one cheap request to check the registry and the key. Never raises.

        Returns:
            `done` if the registry answers and, as far as its rate limit shows, knows the key;
            otherwise the answer says what is wrong.
        """
        answer = self._send("GET", _unit_path(_MISSING_UNIT))
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
            response = _exchange(
                method, self.url + path, headers, body, timeout_s=self._timeout_s, most=max_bytes
            )
        except Exception as error:  # noqa: BLE001 - httpx, TLS, the environment, the server
            return _failure_of(error)
        return read_answer(*response, expects_id=expects_id, key=key)


def _check_key(key: SecretStr | str) -> SecretStr:
    secret = key if isinstance(key, SecretStr) else SecretStr(key)
    value = secret.get_secret_value()
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ConfigError(
            "the registry's key is empty, longer than 500 characters, or contains a space, a "
            "control character or a character outside ASCII; check api_key or KP_API_KEY"
        )
    return secret


# ------------------------------------------------------------------ one request


def _exchange(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    timeout_s: float,
    most: int,
) -> tuple[int, httpx.Headers, bytes | None]:
    """Send a request; return status and headers of the answer, and its body as `_read` does.

    Args:
        method: The HTTP method.
        url: The URL.
        headers: The headers.
        body: The body.
        timeout_s: The time limit of each step, in seconds; after three times as long, the body is
            cut off at its next piece.
        most: The size of the largest body of an answer that is read, in bytes.

    Raises:
        Exception: No answer arrived; see `_failure_of`.
    """
    import httpx

    until = time.monotonic() + timeout_s * _STEPS_PER_REQUEST
    # A client of its own has no cookies and no connection that another thread or a fork uses.
    client = httpx.Client(
        timeout=timeout_s,
        verify=_tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
        # Requests to this machine need no proxy, which would see the key.
        trust_env=url.startswith("https:"),
    )
    with (
        quiet_loggers(*_LOGGERS),
        client,
        client.stream(method, url, content=body, headers=headers) as response,
    ):
        return response.status_code, response.headers, _read(response, most, until)


@lru_cache(maxsize=1)
def _tls_context(*_environment: str | None) -> ssl.SSLContext:
    """Return httpx's trust in certificates, which takes 20 ms to load, for this environment."""
    import httpx

    return httpx.create_ssl_context()


def _read(response: httpx.Response, most: int, until: float) -> bytes | None:
    """Return the body of an answer; None if it is cut off, empty if it is too large.

    Args:
        response: The answer; its status and headers count also without a body.
        most: The largest size, in bytes.
        until: When it must be there, by the monotonic clock.
    """
    import httpx

    content = bytearray()
    try:
        for piece in response.iter_raw():
            content += piece
            if len(content) > most:
                return b""
            if time.monotonic() > until:
                return None
    except httpx.TransportError:
        return None
    return bytes(content)


def _failure_of(error: Exception) -> Answer:
    """Return an answer that says why none arrived.

    The text of an unknown error may quote a header, so only its type is used.

    Args:
        error: The error of the request.
    """
    import httpx

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = safe_text(cause.verify_message)
            return Answer("stopped", f"its certificate is not trusted: {reason}")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return Answer("later", "no answer in time")
    if isinstance(error, (httpx.ConnectError, httpx.ProxyError)):  # the system's, or the proxy's
        return Answer("later", f"no connection: {safe_text(str(error))}")
    name = type(error).__name__
    return Answer("later", f"the connection broke ({name}); check HTTPS_PROXY, SSL_CERT_FILE")


def base_url(url: str) -> str:
    """Return the URL of a registry in its normal form.

    Args:
        url: Scheme, host, port and path.

    Raises:
        ConfigError: It is not an `https` URL of these parts alone (`http` is allowed on this
            machine). The message does not repeat parts that may be secret.
    """
    example = "give one such as https://registry.example.org"
    if not isinstance(url, str):
        raise ConfigError(f"the registry's URL is a {type(url).__name__}; {example}")
    text = url.strip()
    if "@" in text:
        raise ConfigError("the registry's URL contains a user or password; give the key as api_key")
    address, *more = re.split(r"[?#]", text, maxsplit=1)
    if more:
        raise ConfigError(f"the registry's URL {address[:80]!r} has a query or fragment; {example}")
    parts = _URL.fullmatch(address)
    if parts is None or not 0 < int(parts["port"] or 1) < 2**16:
        raise ConfigError(f"{address[:80]!r} is not the URL of a registry; {example}")
    scheme, host, path = parts["scheme"].lower(), parts["host"].lower(), parts["path"].rstrip("/")
    port = int(parts["port"] or _DEFAULT_PORTS[scheme])
    if scheme == "http" and not _is_loopback(host.strip("[]")):
        raise ConfigError(f"{address[:80]!r} would send your key unencrypted; write https://")
    return f"{scheme}://{host}{'' if port == _DEFAULT_PORTS[scheme] else f':{port}'}{path}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unit_path(registry_id: str) -> str | None:
    """Return the path of a unit, or None if no unit can have this id."""
    # Dots would name another path even if quoted; a lone surrogate cannot be encoded.
    if registry_id in ("", ".", ".."):
        return None
    try:
        return f"/v1/knowledge/{quote(registry_id, safe=':')}"
    except UnicodeEncodeError:
        return None
