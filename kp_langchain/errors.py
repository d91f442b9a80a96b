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


class ModelLoadError(EmbedderError):
    """The embedding model cannot be found, downloaded or loaded."""


class ModelProcessEndedError(EmbedderError):
    """The process that runs the embedding model has ended, is frozen, or cannot be started."""


class BadEmbeddingError(EmbedderError):
    """An embedder returned something other than one finite vector per text."""


class MissingExtraError(KPError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class StoreError(KPError, RuntimeError):
    """The trace store cannot be opened, read or written."""


class UnknownRunError(StoreError, LookupError):
    """The trace store holds no run with the given id, or more than one that it may mean."""


class RegistryError(KPError, RuntimeError):
    """The registry cannot be reached, or refused what was asked."""


class VerdictError(KPError, ValueError):
    """A stated verdict cannot be used; the message names types, never values."""


class ScorerError(KPError, TypeError):
    """The caller's scorer returned something other than a breakdown."""
