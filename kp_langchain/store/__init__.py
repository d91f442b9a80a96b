"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL."""

from kp_langchain.gate import Rescored
from kp_langchain.store.confidence_models import ConfidenceModels, InstalledModel
from kp_langchain.store.novelty import StoredMemory
from kp_langchain.store.outbox import Outbox
from kp_langchain.store.registry_units import Contribution, Standing
from kp_langchain.store.run_columns import Deletion, Pruning, RunFilters, StoredRun
from kp_langchain.store.trace_store import TraceStore, default_store
from kp_langchain.verdict import Verdict

__all__ = [
    "ConfidenceModels",
    "Contribution",
    "Deletion",
    "InstalledModel",
    "Outbox",
    "Pruning",
    "Rescored",
    "RunFilters",
    "Standing",
    "StoredMemory",
    "StoredRun",
    "TraceStore",
    "Verdict",
    "default_store",
]
