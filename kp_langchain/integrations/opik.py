"""Send scores to Opik, onto its tracer's trace of a run, and read feedback scores there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.tools import (
    RunScore,
    ToolFeedback,
    TracingTool,
    read_each,
    score_or_label,
)

if TYPE_CHECKING:
    from opik import Opik

__all__ = ["OpikScores"]


class OpikScores(TracingTool):
    """Sends the score of each run to the trace that `opik.integrations.langchain.OpikTracer` made.

    Args:
        client: Opik's client; by default the one that its tracer uses.

    Raises:
        MissingExtraError: The package opik is not installed.
    """

    name: ClassVar[str] = "opik"
    title: ClassVar[str] = "Opik"
    package: ClassVar[str] = "opik"
    address: ClassVar[str] = "OPIK_URL_OVERRIDE"
    credentials: ClassVar[str] = "OPIK_API_KEY"
    tracer: ClassVar[tuple[str, str]] = ("opik.integrations.langchain", "OpikTracer")

    def __init__(self, client: Opik | None = None) -> None:
        super().__init__(client)

    def _trace_of(self, tracer: Any, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run, as the tracer knows it of the run's root or of one inside.

        The tracer makes a trace and no span of a root run, unless it is inside a span already.
        """
        if (root := tracer.get_current_span_data_for_run(root_id)) is not None:
            return ExternalTrace(root.trace_id, root.id, root.project_name, is_part=True)
        if (inner := tracer.get_current_span_data_for_run(parent_id)) is not None:
            return ExternalTrace(inner.trace_id, project=inner.project_name)
        return None

    def write_scores(self, scores: Sequence[RunScore], external: ExternalTrace) -> None:
        """Write the scores in one request; Opik replaces those of the same name.

        Raises:
            Exception: Opik cannot be reached or refuses them, with its client's error.
        """
        from opik.rest_api import FeedbackScoreBatchItem

        items = [
            FeedbackScoreBatchItem(
                id=(external.span_id if external.is_part else None) or external.trace_id,
                project_name=external.project,
                name=score.name,
                value=score.value,
                category_name=score.label,
                reason=score.comment,
                source="sdk",
            )
            for score in scores
        ]
        # Not `log_traces_feedback_scores`, which sends in the background and tells of no failure;
        # nor without `with_raw_response`, since Opik then tries for up to a minute, and the caller
        # tries again itself.
        api = self._connect().rest_client
        if external.is_part:
            api.spans.with_raw_response.score_batch_of_spans(scores=items)
        else:
            api.traces.with_raw_response.score_batch_of_traces(scores=items)

    def _feedback_on(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the feedback scores of traces and of the runs' own spans, by each author."""
        del key  # a trace comes with all of them
        api = self._connect().rest_client

        def read(place: tuple[str, str | None]) -> Any:
            trace_id, span_id = place
            if span_id is not None:
                return api.spans.get_span_by_id(span_id, strip_attachments=True)
            return api.traces.get_trace_by_id(trace_id, strip_attachments=True)

        places: list[tuple[str, str | None]] = [(one.trace_id, None) for one in traces]
        places += [(one.trace_id, one.span_id) for one in traces if one.is_part]
        for (trace_id, span_id), subject in read_each(read, dict.fromkeys(places)):
            for score in subject.feedback_scores or ():
                for one in (score.value_by_author or {"": score}).values():
                    yield ToolFeedback(
                        trace_id=trace_id,
                        span_id=span_id,
                        key=score.name,
                        value=score_or_label(one.value, one.category_name),
                        comment=one.reason,
                        at=one.last_updated_at or score.last_updated_at or subject.last_updated_at,
                        by_model=(one.source or score.source) == "online_scoring",
                    )

    def _connect(self) -> Any:
        return self._client or self._package.get_global_client()
