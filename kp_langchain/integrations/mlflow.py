"""Send scores to MLflow, onto its autologging's trace of a run, and read feedback there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.packages import import_package
from kp_langchain.integrations.run_scores import RunScore, run_scores, send_each
from kp_langchain.integrations.tool_feedback import (
    VERDICT_WANTED,
    ToolFeedback,
    one_by_one,
    tool_errors,
)
from kp_langchain.recording.langchain_context import current_handlers

if TYPE_CHECKING:
    from kp_langchain.gate import ScoredTrace

__all__ = ["MLflowScores"]

_MODELS = ("LLM_JUDGE", "AI_JUDGE")
_SOURCE_ID = "kp_langchain"


class MLflowScores:
    """Sends the score of each run as feedback on the trace that `mlflow.langchain.autolog` made.

    The environment or `mlflow.set_tracking_uri` says where MLflow is.

    Raises:
        MissingExtraError: Neither mlflow nor mlflow-tracing is installed.
    """

    name: ClassVar[str] = "mlflow"
    title: ClassVar[str] = "MLflow"
    has_run_ids: ClassVar[bool] = False
    asks_by: ClassVar[str] = f"tagged with {VERDICT_WANTED!r}"

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
                is_part = entry.span.parent_id is not None
                return ExternalTrace(entry.span.trace_id, entry.span.span_id, is_part=is_part)
        return None

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send each score as a feedback, or update the feedback that was sent before.

        Raises:
            MlflowException: MLflow cannot be reached or refuses it.
        """
        from mlflow.entities import AssessmentSource

        source = AssessmentSource(source_type="CODE", source_id=_SOURCE_ID)
        span_id = external.span_id if external.is_part else None
        sent_before = self._sent_before(external.trace_id, span_id)

        def send_one(score: RunScore) -> None:
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
                    span_id=span_id,
                )

        send_each(send_one, run_scores(scored))

    def _sent_before(self, trace_id: str, span_id: str | None) -> dict[str, Any]:
        """Return what was sent to a trace or span, by name; MLflow gives feedback its own ids."""
        from mlflow.tracing.client import TracingClient

        # Not `get_trace_info` of the client, which knows nothing of feedback as long as the trace
        # is in this process.
        info = TracingClient().store.get_trace_info(trace_id)
        return {
            one.name: one
            for one in info.assessments or ()
            if one.source is not None
            and one.source.source_id == _SOURCE_ID
            and (one.span_id or None) == span_id
        }

    def read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the valid feedback on some traces.

        Raises:
            KPError: MLflow cannot be reached, refuses the key, or cannot be understood.
        """
        del key  # a trace comes with all of it
        from mlflow.exceptions import MlflowException
        from mlflow.tracing.client import TracingClient

        client = TracingClient()

        def read(trace_id: str) -> Any:
            with _errors():
                try:
                    return client.get_trace_info(trace_id)
                except MlflowException as error:
                    if error.error_code == "RESOURCE_DOES_NOT_EXIST":  # deleted there
                        return None
                    raise

        for info in one_by_one(read, list({external.trace_id: None for external in traces})):
            for one in info.assessments or ():
                feedback = getattr(one, "feedback", None)  # an expectation has none
                if feedback is None or feedback.value is None or one.valid is False:
                    continue
                yield ToolFeedback(
                    trace_id=info.trace_id,
                    span_id=one.span_id or None,
                    key=one.name,
                    value=feedback.value,
                    comment=one.rationale,
                    at=datetime.fromtimestamp(one.last_update_time_ms / 1000, UTC),
                    by_model=one.source is not None and one.source.source_type in _MODELS,
                )

    def ask_for_verdicts(self, traces: Sequence[ExternalTrace], queue: str) -> int:
        """Tag traces, by which MLflow finds them; its server has no annotation queues.

        Raises:
            KPError: MLflow cannot be reached, or refuses the key.
        """
        del queue
        for trace_id in {external.trace_id: None for external in traces}:
            with _errors():
                self._mlflow.set_trace_tag(trace_id, VERDICT_WANTED, "true")
        return len(traces)


def _errors() -> AbstractContextManager[None]:
    return tool_errors(
        "MLflow",
        address="MLFLOW_TRACKING_URI",
        credentials="MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD",
    )
