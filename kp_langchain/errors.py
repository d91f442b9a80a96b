"""The errors this package raises, one tree under `KPError`."""

from __future__ import annotations


class KPError(Exception):
    """Base of every error that kp_langchain raises on its own account."""


class ConfigError(KPError, ValueError):
    """A setting, argument, environment variable or configuration file cannot be used."""


class WeightsError(KPError, ValueError):
    """Scoring weights are out of range or do not sum to one."""


class VectorError(KPError, ValueError):
    """A vector has the wrong length or holds values that are not finite."""


class EmbedderError(KPError, RuntimeError):
    """An embedding model cannot be loaded, or what it returned cannot be used."""


class MissingExtraError(KPError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class StoreError(KPError, RuntimeError):
    """The trace store cannot be opened, read or written."""


class UnknownRunError(StoreError, LookupError):
    """The trace store holds no run with the given id, or more than one that it may mean."""


class LateError(KPError, TimeoutError):
    """A call took longer than its time limit, or a store did not answer in time."""


class BusyError(KPError, RuntimeError):
    """A call was not made, because late ones still run or no thread can be started."""


class RegistryError(KPError, RuntimeError):
    """The registry cannot be reached, or refused what was asked."""


class VerdictError(KPError, ValueError):
    """A stated verdict cannot be used; the message names types, never values."""


class ScorerError(KPError, TypeError):
    """The caller's scorer returned something other than a breakdown."""
