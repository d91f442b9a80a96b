"""OpenTelemetry: scores as log records, metrics, and the traces of runs that are worth exporting.

Needs the extra `opentelemetry`, which is imported with this package.
"""

from __future__ import annotations

from kp_langchain.errors import MissingExtraError

try:
    import opentelemetry.sdk.trace  # noqa: F401 - for the message
except ImportError as error:
    raise MissingExtraError(
        "the OpenTelemetry SDK cannot be loaded; install it: "
        "pip install 'kp-langchain[opentelemetry]'"
    ) from error

from kp_langchain.integrations.opentelemetry.keep_worthy import KeepWorthy
from kp_langchain.integrations.opentelemetry.telemetry import OpenTelemetryScores, observe

__all__ = ["KeepWorthy", "OpenTelemetryScores", "observe"]
