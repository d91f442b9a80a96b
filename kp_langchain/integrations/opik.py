"""Send scores to Opik, beside the trace that its tracer makes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.integrations.current_handlers import current_handlers
from kp_langchain.integrations.packages import import_package
from kp_langchain.integrations.run_scores import run_scores

if TYPE_CHECKING:
    from opik import Opik

    from kp_langchain.gate import ScoredTrace

__all__ = ["OpikScores"]


class OpikScores:
    """Sends the score of each run to the trace that `opik.integrations.langchain.OpikTracer` made.

    Args:
        client: Opik's client; by default the one that its tracer uses.

    Raises:
        MissingExtraError: The package opik is not installed.
    """

    name: ClassVar[str] = "opik"

    def __init__(self, client: Opik | None = None) -> None:
        self._opik = import_package("opik", extra="opik")
        self._client = client

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run, as the tracer knows it of the run's root or of one inside.

        The tracer makes a trace and no span of a root run.
        """
        for handler in current_handlers("opik.integrations.langchain", "OpikTracer"):
            for run_id in (root_id, parent_id):
                span = handler.get_current_span_data_for_run(run_id)
                if span is not None:
                    return ExternalTrace(span.trace_id, project=span.project_name)
        return None

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send the scores in one request; Opik replaces those of the same name.

        Raises:
            Exception: Opik cannot be reached or refuses them, with its client's error.
        """
        client = self._client or self._opik.get_global_client()
        from opik.rest_api import FeedbackScoreBatchItem

        # Not `log_traces_feedback_scores`, which sends in the background and tells of no failure.
        client.rest_client.traces.score_batch_of_traces(
            scores=[
                FeedbackScoreBatchItem(
                    id=external.trace_id,
                    project_name=external.project,
                    name=score.name,
                    value=score.value,
                    category_name=score.label,
                    reason=score.comment,
                    source="sdk",
                )
                for score in run_scores(scored)
            ]
        )
