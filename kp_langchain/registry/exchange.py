"""One HTTP exchange with a registry: URLs, time limits, redirects, the size of the answer."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from kp_langchain._quiet_loggers import quiet_loggers
from kp_langchain.errors import ConfigError
from kp_langchain.registry.answers import Answer, safe_texts

if TYPE_CHECKING:
    import httpx

STEPS_PER_REQUEST = 3.0
"""The time limit of a whole request, in multiples of the time limit of a step."""

# The redirects that keep the method and the body.
_REDIRECTS = (307, 308)
_MAX_REDIRECTS = 3
_PIECE_BYTES = 2**14
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


class Response(NamedTuple):
    """An HTTP response.

    Attributes:
        status: The HTTP status.
        headers: The headers.
        body: The body; None if it is cut off, empty if it is too large.
    """

    status: int
    headers: httpx.Headers
    body: bytes | None


def exchange(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    timeout_s: float,
    max_bytes: int,
) -> Response:
    """Send a request, follow redirects within the same server, and return the response.

    Args:
        method: The HTTP method.
        url: The URL.
        headers: The headers.
        body: The body.
        timeout_s: The time limit of each step, in seconds; the whole may take three times as long.
        max_bytes: The size of the largest body of a response that is read.

    Raises:
        Exception: No response arrived; see `failure_of`.
    """
    import httpx

    deadline = Deadline(timeout_s * STEPS_PER_REQUEST)
    # A client of its own has no cookies and no connection that another thread or a fork uses.
    client = httpx.Client(
        timeout=timeout_s,
        verify=_tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
        # Requests to this machine need no proxy, which would see the key.
        trust_env=url.startswith("https:"),
    )
    with quiet_loggers(*_LOGGERS), client:
        request = client.build_request(
            method, url, content=body, headers=headers, extensions={"trace": deadline.watch}
        )
        response, content = _receive(client, request, max_bytes)
        for _ in range(_MAX_REDIRECTS):
            next_request = _redirect_within_server(response)
            if next_request is None:
                break
            response, content = _receive(client, next_request, max_bytes)
    return Response(response.status_code, response.headers, content)


@lru_cache(maxsize=1)
def _tls_context(*_environment: str | None) -> ssl.SSLContext:
    """Return httpx's trust in certificates, which takes 20 ms to load, for this environment."""
    import httpx

    return httpx.create_ssl_context()


def _receive(
    client: httpx.Client, request: httpx.Request, max_bytes: int
) -> tuple[httpx.Response, bytes | None]:
    import httpx

    with closing(client.send(request, stream=True)) as response:
        content = bytearray()
        try:
            for piece in response.iter_raw():
                content += piece
                if len(content) > max_bytes:
                    return response, b""
        except httpx.TransportError:
            return response, None  # its status and headers still count
        return response, bytes(content)


def _redirect_within_server(response: httpx.Response) -> httpx.Request | None:
    """Return the request that a redirect within the same server asks for, if it is one."""
    target, url = response.next_request, response.url
    if target is None or response.status_code not in _REDIRECTS:
        return None
    # Scheme, user, host and port.
    is_same = target.url.join("/") == url.join("/")
    return target if is_same else None


class Deadline:
    """Ends a request that takes too long as a whole, although each of its steps is in time.

    It needs no thread, because none can be started while the interpreter shuts down.

    Args:
        seconds: The time limit of the request.
    """

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def watch(self, event: str, info: Mapping[str, Any]) -> None:
        """Limit the reads and writes of a new connection; httpx calls this for each of its events.

        Args:
            event: The name of the event.
            info: Its details.
        """
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
        import httpx

        left_s = self._at - time.monotonic()
        if left_s <= 0.0:
            raise httpx.ReadTimeout("the request takes too long as a whole")
        return left_s if step_s is None else min(step_s, left_s)


def failure_of(error: Exception, url: str) -> Answer:
    """Return an answer that says why none arrived.

    The text of an unknown error may quote a header, so only its type is used.

    Args:
        error: The error of the request.
        url: The URL of the registry.
    """
    import httpx

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = safe_texts([cause.verify_message])[0]
            return Answer("stopped", f"its certificate is not trusted: {reason}")
        cause = cause.__cause__ or cause.__context__
    proxy = _proxy_of(url)
    through = f" through the proxy {proxy}" if proxy else ""
    if isinstance(error, httpx.TimeoutException):
        return Answer("later", f"no answer in time{through}")
    if isinstance(error, httpx.ConnectError):  # the system's message
        return Answer("later", f"no connection{through}: {safe_texts([str(error)])[0]}")
    if isinstance(error, httpx.ProxyError):  # the proxy's own status and phrase
        return Answer("later", f"the proxy {proxy} refused: {safe_texts([str(error)])[0]}")
    name = type(error).__name__
    if isinstance(error, httpx.TransportError):
        return Answer("later", f"the connection{through} broke ({name})")
    advice = "check HTTPS_PROXY, SSL_CERT_FILE"
    return Answer("later", f"no request could be made{through} ({name}); {advice}")


def _proxy_of(url: str) -> str | None:
    """Return scheme, host and port of the environment's proxy for a URL; the rest may be secret."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get("https") or proxies.get("all")
    if not proxy or parts.scheme != "https" or proxy_bypass(parts.netloc):
        return None
    scheme, _, rest = proxy.rpartition("://")
    host = re.split(r"[/?#]", rest.rpartition("@")[2], maxsplit=1)[0]
    return safe_texts([f"{scheme or 'http'}://{host}"])[0]


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


def unit_path(registry_id: str) -> str | None:
    """Return the path of a unit, or None if no unit can have this id."""
    # Dots would name another path even if quoted; a lone surrogate cannot be encoded.
    if registry_id in ("", ".", ".."):
        return None
    try:
        return f"/v1/knowledge/{quote(registry_id, safe=':')}"
    except UnicodeEncodeError:
        return None
