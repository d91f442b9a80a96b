"""The registry: what answers mean, the HTTP client, its pace, and the sender of the outbox."""

from kp_langchain.registry.client import Registry

__all__ = ["Registry"]
