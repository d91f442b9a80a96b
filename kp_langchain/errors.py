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


class RegistryError(KPError, RuntimeError):
    """The registry cannot be reached, or refused what was asked."""


class OutdatedModelError(ConfigError):
    """A confidence model was fitted on features that this version no longer computes."""


class CannotResumeError(KPError):
    """A file cannot be resumed: this command did not write it, or its input has changed."""
