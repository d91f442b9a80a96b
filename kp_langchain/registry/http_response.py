"""HTTP requests and responses: headers, a body within a bound, and where a redirect leads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kp_langchain._version import __version__
from kp_langchain.errors import DeadlineError

if TYPE_CHECKING:
    import httpx

_SCHEMA_VERSION = "v1"
# The redirects that keep the method and the body.
_REDIRECTS = (307, 308)


class Response(NamedTuple):
    """An HTTP response.

    Attributes:
        status: The HTTP status.
        headers: The headers.
        body: The body; None if it is cut off or too large.
        is_oversized: Whether it is too large.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes | None
    is_oversized: bool


def request_headers(body: bytes | None) -> dict[str, str]:
    """Return the headers of a request with this body, without a key."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # so that the size limit counts the bytes that arrive
        "Connection": "close",
        "KP-Schema-Version": _SCHEMA_VERSION,
        "User-Agent": f"kp-langchain/{__version__}",
    }
    if body is not None:
        headers["Content-Type"] = "application/json"
    return headers


def read_body(response: httpx.Response, max_bytes: int) -> tuple[bytes | None, bool]:
    """Return the body, and whether it is too large; None if it is that or cut off.

    Status and headers still count then.
    """
    import httpx

    content = bytearray()
    try:
        for piece in response.iter_raw():
            content += piece
            if len(content) > max_bytes:
                return None, True
    except (httpx.TransportError, DeadlineError):
        return None, False
    return bytes(content), False


def redirect_target(url: httpx.URL, response: Response) -> httpx.URL | None:
    """Return the target of a redirect within the same server; None if there is none to follow."""
    import httpx

    if response.status not in _REDIRECTS or "location" not in response.headers:
        return None
    try:
        target = url.join(response.headers["location"])
    except (httpx.InvalidURL, ValueError):
        return None
    is_same = (target.scheme, target.host, target.port) == (url.scheme, url.host, url.port)
    return target if is_same and not target.userinfo else None
