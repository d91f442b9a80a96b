"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL."""

from kp_langchain.gate import Rescored
from kp_langchain.store.confidence_models import ConfidenceModels, InstalledModel
from kp_langchain.store.contribution import Contribution, Standing
from kp_langchain.store.outbox import Outbox
from kp_langchain.store.run_filters import RunFilters
from kp_langchain.store.run_summary import RunSummary
from kp_langchain.store.shared_stores import default_store
from kp_langchain.store.stored_memory import StoredMemory
from kp_langchain.store.stored_run import StoredRun
from kp_langchain.store.trace_store import TraceStore
from kp_langchain.verdict import Verdict

Models = ConfidenceModels  # its earlier name

__all__ = [
    "ConfidenceModels",
    "Contribution",
    "InstalledModel",
    "Outbox",
    "Rescored",
    "RunFilters",
    "RunSummary",
    "Standing",
    "StoredMemory",
    "StoredRun",
    "TraceStore",
    "Verdict",
    "default_store",
]
