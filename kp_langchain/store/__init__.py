"""The durable side: every scored run with its breakdown, in SQLite or PostgreSQL."""

from importlib import import_module
from typing import TYPE_CHECKING

from kp_langchain.gate import Rescored
from kp_langchain.store.registry_units import Contribution, Standing
from kp_langchain.store.run_columns import Deletion, Pruning, RunFilters, RunSummary, StoredRun
from kp_langchain.store.trace_store import TraceStore, default_store
from kp_langchain.store.vectors import StoredMemory
from kp_langchain.verdict import Verdict

if TYPE_CHECKING:
    from kp_langchain.store.confidence_models import ConfidenceModels, InstalledModel
    from kp_langchain.store.outbox import Outbox
else:  # these load SQLAlchemy
    _HOME_OF = {
        "ConfidenceModels": "confidence_models",
        "InstalledModel": "confidence_models",
        "Outbox": "outbox",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"kp_langchain.store.{_HOME_OF[name]}"), name)


__all__ = [
    "ConfidenceModels",
    "Contribution",
    "Deletion",
    "InstalledModel",
    "Outbox",
    "Pruning",
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
