"""URLs of registries: their normal form, the path of a unit, and the proxy in between."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from kp_langchain.errors import ConfigError
from kp_langchain.registry.safe_text import safe_texts

# Stricter than the standard, so that no two programs can parse a URL differently.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>(?:/[A-Za-z0-9._~%+-]*)*)",
    re.IGNORECASE,
)
_DEFAULT_PORTS = {"https": 443, "http": 80}


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
    if parts is None:
        raise ConfigError(f"{address[:80]!r} is not the URL of a registry; {example}")
    scheme, host, path = parts["scheme"].lower(), parts["host"].lower(), parts["path"].rstrip("/")
    port = int(parts["port"] or _DEFAULT_PORTS[scheme])
    if not 0 < port < 2**16:
        raise ConfigError(f"{address[:80]!r} is not the URL of a registry: port {port} is invalid")
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


def proxy_of(url: str) -> str | None:
    """Return the environment's proxy for requests to `url`, or None.

    Args:
        url: The URL of a registry in its normal form.

    Returns:
        Scheme, host and port; the rest may be secret.
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
    return safe_texts([f"{scheme or 'http'}://{host}"])[0]
