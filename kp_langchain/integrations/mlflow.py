"""Send scores to MLflow, onto its autologging's trace of a run, and read feedback there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.tools import RunScore, ToolFeedback, TracingTool, read_each

__all__ = ["MLflowScores"]

_MODELS = ("LLM_JUDGE", "AI_JUDGE")
_SOURCE_ID = "kp_langchain"


class MLflowScores(TracingTool):
    """Sends the score of each run as feedback on the trace that `mlflow.langchain.autolog` made.

    The environment or `mlflow.set_tracking_uri` says where MLflow is.

    Raises:
        MissingExtraError: Neither mlflow nor mlflow-tracing is installed.
    """

    name: ClassVar[str] = "mlflow"
    title: ClassVar[str] = "MLflow"
    package: ClassVar[str] = "mlflow"
    address: ClassVar[str] = "MLFLOW_TRACKING_URI"
    credentials: ClassVar[str] = "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD"

    tracer: ClassVar[tuple[str, str]] = (
        "mlflow.langchain.langchain_tracer",
        "MlflowLangchainTracer",
    )

    def __init__(self) -> None:
        super().__init__()

    def _trace_of(self, tracer: Any, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run; its id is private to the tracer."""
        del parent_id
        entry = tracer._run_span_mapping.get(str(root_id))  # noqa: SLF001 - no public way
        if entry is None or not entry.span.trace_id.startswith("tr-"):
            return None
        is_part = entry.span.parent_id is not None
        return ExternalTrace(entry.span.trace_id, entry.span.span_id, is_part=is_part)

    def write_scores(self, scores: Sequence[RunScore], external: ExternalTrace) -> None:
        """Write each score as a feedback, or update the feedback that was written before.

        Raises:
            MlflowException: MLflow cannot be reached or refuses it.
        """
        from mlflow.entities import AssessmentSource

        source = AssessmentSource(source_type="CODE", source_id=_SOURCE_ID)
        span_id = external.span_id if external.is_part else None
        # MLflow gives feedback its own ids.
        written_before = {
            one.name: one.assessment_id
            for one in _assessments(external.trace_id)
            if one.source is not None
            and one.source.source_id == _SOURCE_ID
            and (one.span_id or None) == span_id
        }
        for score in scores:
            content: dict[str, Any] = {
                "name": score.name,
                "value": score.value,
                "source": source,
                "rationale": score.comment,
            }
            if score.name in written_before:
                self._package.update_assessment(
                    trace_id=external.trace_id,
                    assessment_id=written_before[score.name],
                    assessment=self._package.entities.Feedback(**content),
                )
            else:
                self._package.log_feedback(trace_id=external.trace_id, span_id=span_id, **content)

    def _feedback_on(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the valid feedback on traces."""
        del key  # a trace comes with all of it
        trace_ids = dict.fromkeys(one.trace_id for one in traces)
        for trace_id, assessments in read_each(_assessments, trace_ids):
            for one in assessments:
                value = getattr(getattr(one, "feedback", None), "value", None)
                if value is None or one.valid is False:  # an expectation has no feedback
                    continue
                yield ToolFeedback(
                    trace_id=trace_id,
                    span_id=one.span_id or None,
                    key=one.name,
                    value=value,
                    comment=one.rationale,
                    at=datetime.fromtimestamp(one.last_update_time_ms / 1000, UTC),
                    by_model=one.source is not None and one.source.source_type in _MODELS,
                )


def _assessments(trace_id: str) -> Sequence[Any]:
    """Return the assessments of a trace.

    Not by `get_trace_info` of the client, which knows none as long as the trace is in this process.
    """
    from mlflow.tracing.client import TracingClient

    assessments: Sequence[Any] = TracingClient().store.get_trace_info(trace_id).assessments or ()
    return assessments
