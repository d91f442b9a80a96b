"""`Registry`: the HTTP API of a KnowledgePulse registry. Loads httpx with the first request."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import SecretStr

from kp_langchain._forksafe import ForkSafeLock
from kp_langchain.errors import ConfigError, RegistryError
from kp_langchain.registry.answers import Answer, read_answer, tellable
from kp_langchain.registry.quiet_http import quiet_loggers

if TYPE_CHECKING:
    import httpx

ANONYMOUS = "anonymous"
"""The `Registry.key_id` of one without a key."""

ANONYMOUS_READS = 60
"""Requests a minute that a registry allows whom it does not know; with a key it allows more."""

_NO_UNIT = "kp:trace:00000000-0000-0000-0000-000000000000"

_SCHEMA_VERSION = "v1"
_MAX_ANSWER_BYTES = 2**20
_MAX_REDIRECTS = 3
# The two that keep the method and the body.
_REDIRECTS_OF_POST = (307, 308)
_NOT_THERE = (404, 410)
# To a deletion: of this unit, whatever the key may do otherwise.
_MAY_NOT_DELETE = (403, 405)
# The whole of a request may take this many times what one step of it may.
_STEPS = 3.0
_PIECE_BYTES = 2**14
# Narrower than the standard, so that no two programs can read one differently.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~%+-]*)*)",
    re.IGNORECASE,
)
_DEFAULT_PORTS = {"https": 443, "http": 80}
# It goes into a header, where a line break would begin another one.
_KEY = re.compile(r"[!-~]{1,500}")


class Registry:
    """A registry, reached by HTTP.

    Nothing is sent before a method is called. Certificates are verified; the environment's proxies
    and certificate files (`HTTPS_PROXY`, `SSL_CERT_FILE`) count.

    Args:
        url: Its address. `https://`, or `http://` on this very machine.
        api_key: Your key. It is sent to this address alone and never shown.
        agent_id: Whose key it is: traces that carry this id can be withdrawn with it.
        timeout_s: Seconds that each step of a request (connecting, sending, receiving) may take.
            From the connection on, the whole may take three times as long, redirects included. How
            long a name server takes is up to the system.

    Raises:
        ConfigError: The URL, the key or the time-out cannot be used.
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
        self._key = None if api_key is None else _checked_key(api_key)
        if not 0.0 < timeout_s < math.inf:
            raise ConfigError(f"timeout_s={timeout_s} must be seconds above 0")
        self._timeout_s = timeout_s
        self._lock = ForkSafeLock()
        self._client: httpx.Client | None = None
        self._client_of_pid = 0

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return self._url

    @property
    def key_id(self) -> str:
        """Which key is used, without telling it: the beginning of its SHA-256, or `anonymous`."""
        if self._key is None:
            return ANONYMOUS
        return sha256(self._key.get_secret_value().encode()).hexdigest()[:16]

    @property
    def agent_id(self) -> str | None:
        """Whose key it is, as the registry knows the agent; None if that is not known here."""
        return self._agent_id

    def __repr__(self) -> str:
        return f"Registry({self._url!r}, api_key={'***' if self._key else None})"

    def __reduce__(self) -> tuple[partial[Registry], tuple[str]]:
        # To another process it travels as its arguments, the key among them, as a SecretStr.
        again = partial(
            type(self), api_key=self._key, agent_id=self._agent_id, timeout_s=self._timeout_s
        )
        return (again, (self._url,))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Registry):
            return NotImplemented
        return (self._url, self.key_id) == (other._url, other.key_id)

    def __hash__(self) -> int:
        return hash((self._url, self.key_id))

    def contribute(self, body: bytes, idempotency_key: str) -> Answer:
        """Give the registry one unit. Whatever goes wrong is told in the answer, never raised.

        Args:
            body: The unit as JSON in UTF-8.
            idempotency_key: SHA-256 of `body` in hexadecimal: with it, a repeated request is
                answered as the first one was.
        """
        headers = {"Idempotency-Key": idempotency_key}
        return self._ask(
            "POST", "/v1/knowledge", body, headers, expects_id=True, own_id=_id_in(body)
        )

    def find(self, registry_id: str) -> Answer:
        """Ask whether the registry has a unit: `done`, or `refused` with status 404."""
        answer = self._ask("GET", _path_of(registry_id), expects_id=True, own_id=registry_id)
        # Without JSON it is not the registry that does not have it: a proxy, or another server.
        if answer.status in _NOT_THERE and answer.is_json:
            return replace(answer, verdict="refused", reason=f"{answer.status}: no such unit")
        return answer

    def withdraw(self, registry_id: str) -> Answer:
        """Have the registry delete a unit of yours. One that is not there counts as deleted."""
        answer = self._ask("DELETE", _path_of(registry_id))
        if answer.status in _NOT_THERE and answer.is_json:
            return replace(answer, verdict="done", reason=f"{answer.status}: already gone")
        if answer.status in _MAY_NOT_DELETE:
            said = f": {answer.words}" if answer.words else ""
            reason = f"{answer.status}: may not be deleted{said}"
            return replace(answer, verdict="refused", reason=reason)
        return answer

    def check(self) -> Answer:
        """Make one cheap request that tells whether the registry is there and knows the key.

        Returns:
            `done`: it is there, and knows the key as far as one can tell; else as for any request.
        """
        answer = self._ask("GET", _path_of(_NO_UNIT))
        if answer.status not in _NOT_THERE or not answer.is_json:
            return answer
        allowed = None if answer.allowance is None else answer.allowance.limit
        if self._key is None or allowed is None or allowed > ANONYMOUS_READS:
            return replace(answer, verdict="done", reason=f"{answer.status}: no such unit")
        told = f"it does not know the key: it allows {allowed} requests a minute, as to anybody"
        return replace(answer, verdict="stopped", reason=told)

    def register(self, agent_id: str) -> SecretStr:
        """Obtain a key for `agent_id`, which may read and write on the free tier.

        Raises:
            RegistryError: None was given; the message says why.
        """
        asked = {"agent_id": agent_id, "scopes": ["read", "write"], "tier": "free"}
        body = json.dumps(asked).encode()
        reply = self._exchange("POST", "/v1/auth/register", _headers(body), body)
        if not isinstance(reply, Answer):
            answer = read_answer(*reply, expects_id=False)
            key = _key_in(reply.body) if answer.verdict == "done" else None
            if key is not None:
                return key
            unusable = replace(answer, reason="its answer holds no key that can be used")
            reply = unusable if answer.verdict == "done" else answer
        raise RegistryError(f"{self._url} gave no key for {agent_id!r}: {reply.reason}")

    def open(self) -> None:
        """Load what requests need, without making one. Done by the first request otherwise.

        A fork in the middle of an import leaves its lock closed in the child for ever, so a thread
        that does not want to be disturbed by forks calls this beforehand.
        """
        self._connections()

    def close(self) -> None:
        """Close its connections. Using it again opens new ones."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self._client_of_pid == os.getpid():
                client.close()

    def _ask(
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
            return Answer("refused", "this is no id that a unit can have")
        everything = _headers(body) | dict(headers or {})
        if self._key is not None:
            everything["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        reply = self._exchange(method, path, everything, body)
        if isinstance(reply, Answer):
            return reply
        return read_answer(
            *reply, expects_id=expects_id, key=self._key, sent=body or b"", own_id=own_id
        )

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> _Reply | Answer:
        """One request, and redirects within the registry: its reply, or else what went wrong."""
        try:
            import httpx

            deadline = _Deadline(self._timeout_s * _STEPS)
            url = httpx.URL(self._url + path)
            for _ in range(_MAX_REDIRECTS):
                reply = self._request(method, url, headers, body, deadline)
                target = _followed(url, reply)
                if target is None:
                    return reply
                url = target
            return self._request(method, url, headers, body, deadline)
        except Exception as error:  # noqa: BLE001 - httpx, TLS, the environment, the server
            return _failure(error, self._url)

    def _request(
        self,
        method: str,
        url: httpx.URL,
        headers: Mapping[str, str],
        body: bytes | None,
        deadline: _Deadline,
    ) -> _Reply:
        client = self._connections()
        request = client.build_request(
            method, url, content=body, headers=headers, extensions={"trace": deadline.watch}
        )
        with quiet_loggers():
            response = client.send(request, stream=True)
            try:
                return _Reply(response.status_code, response.headers, _body_of(response))
            finally:
                response.close()

    def _connections(self) -> httpx.Client:
        import httpx

        with self._lock:
            # A fork in the middle of a request copies the pool's locks as they are: held for ever.
            if self._client is None or self._client_of_pid != os.getpid():
                self._client = httpx.Client(
                    timeout=self._timeout_s,
                    follow_redirects=False,
                    # What stays on this machine has no use for a proxy, which would see the key.
                    trust_env=self._url.startswith("https:"),
                    cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
                    # One connection a request: no stale ones, and the deadline sees each begin.
                    limits=httpx.Limits(max_keepalive_connections=0),
                )
                self._client_of_pid = os.getpid()
            return self._client


class _Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes | None


class _LateError(Exception):
    """A request took longer than all its steps may."""


class _Deadline:
    """Ends a request that drips: each byte comes in time, the whole never does.

    Works without a thread, because none can be started while the interpreter ends.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Bound what a new connection reads and writes; httpx calls this with all it does."""
        if not event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            return
        stream = info["return_value"]
        read, write = stream.read, stream.write

        def read_in_time(max_bytes: int, timeout: float | None = None) -> bytes:
            content: bytes = read(max_bytes, self._left_s(timeout))
            return content

        def write_in_time(buffer: bytes, timeout: float | None = None) -> None:
            for start in range(0, len(buffer), _PIECE_BYTES):
                write(buffer[start : start + _PIECE_BYTES], self._left_s(timeout))

        stream.read, stream.write = read_in_time, write_in_time

    def _left_s(self, step_s: float | None) -> float:
        left_s = self._at - time.monotonic()
        if left_s <= 0.0:
            raise _LateError
        return left_s if step_s is None else min(step_s, left_s)


def base_url(url: str) -> str:
    """Return a registry's URL in the one form that everything here knows it by.

    Raises:
        ConfigError: It is not an `https` URL of scheme, host, port and path alone (`http` is
            allowed on this very machine). Messages do not repeat what may be secret in it.
    """
    example = "give one such as https://registry.example.org"
    if not isinstance(url, str):
        raise ConfigError(f"the registry's URL is a {type(url).__name__}; {example}")
    text = url.strip()
    if "@" in text:
        raise ConfigError("the registry's URL holds a user or password; give the key as api_key")
    address, *more = re.split(r"[?#]", text, maxsplit=1)
    if more:
        raise ConfigError(f"{address[:80]!r}, the registry's URL, goes on after ? or #; {example}")
    parts = _URL.fullmatch(address)
    if parts is None:
        raise ConfigError(f"{address[:80]!r} is no URL of a registry; {example}")
    scheme, host, path = parts["scheme"].lower(), parts["host"].lower(), parts["path"].rstrip("/")
    port = int(parts["port"] or _DEFAULT_PORTS[scheme])
    if not 0 < port < 2**16:
        raise ConfigError(f"{address[:80]!r} is no URL of a registry: there is no port {port}")
    if scheme == "http" and not _is_loopback(host.strip("[]")):
        raise ConfigError(f"{address[:80]!r} would send your key in the clear; write https://")
    return f"{scheme}://{host}{'' if port == _DEFAULT_PORTS[scheme] else f':{port}'}{path}"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _checked_key(key: SecretStr | str) -> SecretStr:
    secret = key if isinstance(key, SecretStr) else SecretStr(key)
    value = secret.get_secret_value()
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise ConfigError(
            "the registry's key is empty, too long, or holds a blank or another character that "
            "keys do not have; check api_key, or KP_API_KEY"
        )
    return secret


def _path_of(registry_id: str) -> str | None:
    # Dots would lead elsewhere, however they are quoted; half of a surrogate pair cannot be.
    if registry_id in ("", ".", ".."):
        return None
    try:
        return f"/v1/knowledge/{quote(registry_id, safe=':')}"
    except UnicodeEncodeError:
        return None


def _headers(body: bytes | None) -> dict[str, str]:
    from kp_langchain import __version__

    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # so that what is counted is what arrives
        "Connection": "close",
        "KP-Schema-Version": _SCHEMA_VERSION,
        "User-Agent": f"kp-langchain/{__version__}",
    }
    if body is not None:
        headers["Content-Type"] = "application/json"
    return headers


def _body_of(response: httpx.Response) -> bytes | None:
    """The answer's body; None if it breaks off or is too large. Its head still counts then."""
    import httpx

    content = bytearray()
    try:
        for piece in response.iter_raw():
            content += piece
            if len(content) > _MAX_ANSWER_BYTES:
                return None
    except (httpx.TransportError, _LateError):
        return None
    return bytes(content)


def _followed(url: httpx.URL, reply: _Reply) -> httpx.URL | None:
    """Where a redirect leads, if it is one to be followed: to the very same server."""
    import httpx

    if reply.status not in _REDIRECTS_OF_POST or "location" not in reply.headers:
        return None
    try:
        target = url.join(reply.headers["location"])
    except (httpx.InvalidURL, ValueError):
        return None
    is_same = (target.scheme, target.host, target.port) == (url.scheme, url.host, url.port)
    return target if is_same and not target.userinfo else None


def _id_in(unit: bytes) -> str | None:
    try:
        found = json.loads(unit)["id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _key_in(body: bytes | None) -> SecretStr | None:
    try:
        found = json.loads(body or b"")["data"]["api_key"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return SecretStr(found) if isinstance(found, str) and _KEY.fullmatch(found) else None


def _failure(error: Exception, url: str) -> Answer:
    """Say what kept an answer from coming. A foreign error's text may quote a header: left out."""
    import httpx

    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, ssl.SSLCertVerificationError):
            told = tellable([chain.verify_message])[0]
            return Answer("stopped", f"its certificate is not trusted: {told}")
        chain = chain.__cause__ or chain.__context__
    proxy = proxy_of(url)
    through = f" through the proxy {proxy}" if proxy else ""
    if isinstance(error, (httpx.TimeoutException, _LateError)):
        return Answer("later", f"no answer in time{through}")
    if isinstance(error, httpx.ConnectError):  # the system's words
        return Answer("later", f"no connection{through}: {tellable([str(error)])[0]}")
    if isinstance(error, httpx.ProxyError):  # the proxy's own status and phrase
        return Answer("later", f"the proxy {proxy} refused: {tellable([str(error)])[0]}")
    if isinstance(error, httpx.TransportError):
        return Answer("later", f"the connection{through} broke ({type(error).__name__})")
    return Answer(
        "later",
        f"no request could be made{through} ({type(error).__name__}); "
        "check HTTPS_PROXY, SSL_CERT_FILE",
    )


def proxy_of(url: str) -> str | None:
    """Return the proxy of the environment that requests to `url` go through, or None.

    Args:
        url: A registry's URL in the form of `base_url`.

    Returns:
        Scheme, host and port alone: the rest may be secret.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or proxy_bypass(parts.netloc):
        return None
    proxies = getproxies()
    proxy = proxies.get("https") or proxies.get("all")
    if not proxy:
        return None
    scheme, _, rest = proxy.rpartition("://")
    host = re.split(r"[/?#]", rest.rpartition("@")[2], maxsplit=1)[0]
    return tellable([f"{scheme or 'http'}://{host}"])[0]
