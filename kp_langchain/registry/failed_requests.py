"""The answer to a request that failed: time limits, connections, certificates, proxies."""

from __future__ import annotations

import ssl

from kp_langchain.errors import DeadlineError
from kp_langchain.registry.responses import Answer
from kp_langchain.registry.safe_text import safe_texts
from kp_langchain.registry.urls import proxy_of


def answer_for(error: Exception, url: str) -> Answer:
    """Return an answer that says why none arrived.

    The text of an unknown error may quote a header, so only its type is used.

    Args:
        error: The error of the request.
        url: The URL of the registry.
    """
    import httpx

    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, ssl.SSLCertVerificationError):
            reason = safe_texts([chain.verify_message])[0]
            return Answer("stopped", f"its certificate is not trusted: {reason}")
        chain = chain.__cause__ or chain.__context__
    proxy = proxy_of(url)
    through = f" through the proxy {proxy}" if proxy else ""
    if isinstance(error, (httpx.TimeoutException, DeadlineError)):
        return Answer("later", f"no answer in time{through}")
    if isinstance(error, httpx.ConnectError):  # the system's message
        return Answer("later", f"no connection{through}: {safe_texts([str(error)])[0]}")
    if isinstance(error, httpx.ProxyError):  # the proxy's own status and phrase
        return Answer("later", f"the proxy {proxy} refused: {safe_texts([str(error)])[0]}")
    if isinstance(error, httpx.TransportError):
        return Answer("later", f"the connection{through} broke ({type(error).__name__})")
    return Answer(
        "later",
        f"no request could be made{through} ({type(error).__name__}); "
        "check HTTPS_PROXY, SSL_CERT_FILE",
    )
