"""The errors of this package.

Errors that a caller can meet form one tree:

    KPError
    ├── ConfigError (also a ValueError)
    │   └── OutdatedModelError
    ├── WeightsError (also a ValueError)
    ├── VectorError (also a ValueError)
    ├── EmbedderError (also a RuntimeError)
    │   ├── ModelLoadError
    │   ├── ModelProcessEndedError
    │   └── BadEmbeddingError
    ├── MissingExtraError (also an ImportError)
    ├── StoreError (also a RuntimeError)
    │   └── UnknownRunError (also a LookupError)
    ├── RegistryError (also a RuntimeError)
    ├── VerdictError (also a ValueError)
    ├── ScorerError (also a TypeError)
    ├── LateError (also a TimeoutError)
    └── BusyError (also a RuntimeError)

Errors that this package raises and catches itself:

    SlowPatternError     redaction: a user's pattern exceeds its time limit
    UnstableTextError    redaction: a text changes with every pass
"""

from __future__ import annotations

from typing import Final

NOT_FOUND: Final = 404
_SERVER_ERROR: Final = 500


class KPError(Exception):
    """Base of every error that a caller of kp_langchain can meet."""


class ConfigError(KPError, ValueError):
    """A setting, argument, environment variable or configuration file is invalid."""


class WeightsError(KPError, ValueError):
    """Scoring weights are out of range or do not sum to one."""


class VectorError(KPError, ValueError):
    """A vector has the wrong length or contains values that are not finite."""


class EmbedderError(KPError, RuntimeError):
    """An embedding model cannot be loaded, or returns unusable vectors."""


class ModelLoadError(EmbedderError):
    """The embedding model cannot be found, downloaded or loaded."""


class ModelProcessEndedError(EmbedderError):
    """The process that runs the embedding model has ended, is frozen, or cannot be started."""


class BadEmbeddingError(EmbedderError):
    """An embedder returned something other than one finite vector per text."""


class MissingExtraError(KPError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class StoreError(KPError, RuntimeError):
    """The trace store cannot be opened, read or written."""


class UnknownRunError(StoreError, LookupError):
    """The trace store has no run with this id, or several that the id could mean."""


class LateError(KPError, TimeoutError):
    """A call took longer than its time limit, or a store did not answer in time."""


class BusyError(KPError, RuntimeError):
    """A call was not made, because late ones still run or no thread can be started."""


class RegistryError(KPError, RuntimeError):
    """The registry cannot be reached, or rejects the request."""


class VerdictError(KPError, ValueError):
    """A stated verdict cannot be used; the message names types, never values."""


class ScorerError(KPError, TypeError):
    """The user's scorer returned something other than a breakdown."""


class OutdatedModelError(ConfigError):
    """A confidence model was fitted on features that this version no longer computes."""


class SlowPatternError(Exception):
    """A user's pattern takes too long on a text, or did so less than a minute ago."""


class UnstableTextError(Exception):
    """A text still changes after the last redaction pass."""


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of an HTTP client's error or its cause; None without one."""
    while error is not None:
        response = getattr(error, "response", None)
        mlflow_status = getattr(error, "get_http_status_code", lambda: None)()
        for status in (
            getattr(error, "status_code", None),
            getattr(response, "status_code", None),
            # It is 500 also where nothing answers.
            None if mlflow_status == _SERVER_ERROR else mlflow_status,
        ):
            if isinstance(status, int):
                return status
        error = error.__cause__ or error.__context__
    return None
