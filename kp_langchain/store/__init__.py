"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL."""

from kp_langchain.store.traces import StoredRun, TraceStore, default_store

__all__ = ["StoredRun", "TraceStore", "default_store"]
