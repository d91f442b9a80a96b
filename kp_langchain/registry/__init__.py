"""The registry: HTTP client, answers, pace of requests, stored keys, sender of the outbox."""

from kp_langchain.registry.client import Registry

__all__ = ["Registry"]
