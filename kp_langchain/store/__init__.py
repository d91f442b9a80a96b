"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL."""

from kp_langchain.store.outbox import Contribution, Outbox, Standing
from kp_langchain.store.traces import StoredRun, TraceStore, default_store

__all__ = ["Contribution", "Outbox", "Standing", "StoredRun", "TraceStore", "default_store"]
