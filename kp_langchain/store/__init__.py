"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL."""

from kp_langchain.store.models import InstalledModel, Models
from kp_langchain.store.outbox import Contribution, Outbox, Standing
from kp_langchain.store.stored_run import StoredRun
from kp_langchain.store.traces import TraceStore, default_store
from kp_langchain.store.verdicts import Rescored, Verdict

__all__ = [
    "Contribution",
    "InstalledModel",
    "Models",
    "Outbox",
    "Rescored",
    "Standing",
    "StoredRun",
    "TraceStore",
    "Verdict",
    "default_store",
]
