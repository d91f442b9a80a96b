"""Send scores to MLflow, as feedback on the trace that its autologging makes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.integrations.current_handlers import current_handlers
from kp_langchain.integrations.packages import import_package
from kp_langchain.integrations.run_scores import run_scores

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

__all__ = ["MLflowScores"]

_SOURCE_ID = "kp_langchain"


class MLflowScores:
    """Sends the score of each run as feedback on the trace that `mlflow.langchain.autolog` made.

    The environment or `mlflow.set_tracking_uri` says where MLflow is.

    Raises:
        MissingExtraError: Neither mlflow nor mlflow-tracing is installed.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(self) -> None:
        self._mlflow = import_package("mlflow", extra="mlflow")

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run; its id is private to the tracer."""
        del parent_id
        for tracer in current_handlers(
            "mlflow.langchain.langchain_tracer", "MlflowLangchainTracer"
        ):
            entry = tracer._run_span_mapping.get(str(root_id))  # noqa: SLF001 - no public way
            if entry is not None and entry.span.trace_id.startswith("tr-"):
                return ExternalTrace(entry.span.trace_id, entry.span.span_id)
        return None

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send each score as a feedback, or update the feedback that was sent before.

        Raises:
            MlflowException: MLflow cannot be reached or refuses it.
        """
        from mlflow.entities import AssessmentSource

        source = AssessmentSource(source_type="CODE", source_id=_SOURCE_ID)
        sent_before = self._sent_before(external.trace_id)
        for score in run_scores(scored):
            if (assessment := sent_before.get(score.name)) is not None:
                self._mlflow.update_assessment(
                    trace_id=external.trace_id,
                    assessment_id=assessment.assessment_id,
                    assessment=self._mlflow.entities.Feedback(
                        name=score.name, value=score.value, source=source, rationale=score.comment
                    ),
                )
            else:
                self._mlflow.log_feedback(
                    trace_id=external.trace_id,
                    name=score.name,
                    value=score.value,
                    source=source,
                    rationale=score.comment,
                )

    def _sent_before(self, trace_id: str) -> dict[str, Any]:
        """Return what was sent to a trace, by name; MLflow gives feedback ids of its own."""
        from mlflow.tracing.client import TracingClient

        info = TracingClient().get_trace_info(trace_id)
        return {
            one.name: one
            for one in info.assessments or ()
            if one.source is not None and one.source.source_id == _SOURCE_ID
        }
