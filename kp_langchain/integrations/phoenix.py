"""Send scores to Phoenix, as annotations on the root span that OpenInference makes of a run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.integrations.packages import import_package
from kp_langchain.integrations.run_scores import run_scores

if TYPE_CHECKING:
    from opentelemetry.trace import Span
    from phoenix.client import Client

    from kp_langchain.gate import ScoredTrace

__all__ = ["PhoenixScores"]


def openinference_span(run_id: UUID) -> Span | None:
    """Return the span that OpenInference's instrumentor has for a run; None if it has none."""
    module: Any = sys.modules.get("openinference.instrumentation.langchain")
    if module is None:
        return None
    instrumentor = module.LangChainInstrumentor()
    # Otherwise it prints that it is not in use.
    if not instrumentor.is_instrumented_by_opentelemetry:
        return None
    span: Span | None = instrumentor.get_span(run_id)
    return span


class PhoenixScores:
    """Sends the score of each run as annotations of its root span.

    The spans come from `openinference.instrumentation.langchain.LangChainInstrumentor`.

    Args:
        client: Phoenix's client; by default configured by the environment
            (`PHOENIX_COLLECTOR_ENDPOINT`, `PHOENIX_API_KEY`).

    Raises:
        MissingExtraError: The package arize-phoenix-client is not installed.
    """

    name: ClassVar[str] = "phoenix"

    def __init__(self, client: Client | None = None) -> None:
        self._phoenix = import_package("phoenix.client", extra="phoenix")
        self._client = client

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the root span of a run."""
        del parent_id
        span = openinference_span(root_id)
        if span is None or not (context := span.get_span_context()).is_valid:
            return None
        return ExternalTrace(f"{context.trace_id:032x}", f"{context.span_id:016x}")

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send the annotations in one request; Phoenix replaces those of the same name.

        Raises:
            httpx.HTTPError: Phoenix cannot be reached or refuses them.
        """
        if self._client is None:
            self._client = self._phoenix.Client()
        self._client.spans.log_span_annotations(
            span_annotations=[
                {
                    "span_id": external.span_id or "",
                    "name": score.name,
                    "annotator_kind": "CODE",
                    "identifier": "kp_langchain",
                    "result": {
                        "score": score.value,
                        "explanation": score.comment,
                        **({} if score.label is None else {"label": score.label}),
                    },
                }
                for score in run_scores(scored)
            ]
        )
