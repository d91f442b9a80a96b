"""Annotate the root span that OpenInference makes of a run, and read annotations of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
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
    from opentelemetry.trace import Span
    from phoenix.client import Client

__all__ = ["PhoenixScores"]

_PROJECT_ATTRIBUTE = "openinference.project.name"
_READ_S = 30


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


def exported_trace(span: Any) -> ExternalTrace | None:
    """Return the ids of a span; None if it is not exported, because its trace is not sampled."""
    context = span.get_span_context()
    if not (context.is_valid and context.trace_flags.sampled):
        return None
    return ExternalTrace(f"{context.trace_id:032x}", f"{context.span_id:016x}")


class PhoenixScores(TracingTool):
    """Sends the score of each run as annotations of its root span.

    The spans come from `openinference.instrumentation.langchain.LangChainInstrumentor`.

    Args:
        client: Phoenix's client; by default configured by the environment
            (`PHOENIX_COLLECTOR_ENDPOINT`, `PHOENIX_API_KEY`).

    Raises:
        MissingExtraError: The package arize-phoenix-client is not installed.
    """

    name: ClassVar[str] = "phoenix"
    title: ClassVar[str] = "Phoenix"
    package: ClassVar[str] = "phoenix.client"
    address: ClassVar[str] = "PHOENIX_COLLECTOR_ENDPOINT"
    credentials: ClassVar[str] = "PHOENIX_API_KEY"

    def __init__(self, client: Client | None = None) -> None:
        super().__init__(client)
        self._own_clients: dict[int, Client] = {}  # by process

    def _tracers(self, root_id: UUID) -> Iterable[Span]:
        """Return the root span of a run; no callback handler on the run has it."""
        span = openinference_span(root_id)
        return () if span is None else (span,)

    def _trace_of(self, tracer: Any, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        del root_id, parent_id
        external = exported_trace(tracer)
        if external is None:
            return None
        resource = getattr(tracer, "resource", None)
        project = None if resource is None else resource.attributes.get(_PROJECT_ATTRIBUTE)
        is_part = getattr(tracer, "parent", None) is not None
        return replace(external, project=project, is_part=is_part)

    def write_scores(self, scores: Sequence[RunScore], external: ExternalTrace) -> None:
        """Write the annotations in one request; Phoenix replaces those of the same name.

        Raises:
            httpx.HTTPError: Phoenix cannot be reached or refuses them.
        """
        annotations: list[Any] = []
        for score in scores:
            result: dict[str, Any] = {"score": score.value, "explanation": score.comment}
            if score.label is not None:
                result["label"] = score.label
            annotations.append(
                {
                    "span_id": external.span_id or "",
                    "name": score.name,
                    "annotator_kind": "CODE",
                    "identifier": "kp_langchain",
                    "result": result,
                }
            )
        self._connect().spans.log_span_annotations(span_annotations=annotations)

    def _feedback_on(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        by_project: dict[str, dict[str, ExternalTrace]] = {}
        for one in traces:
            project = one.project or os.environ.get("PHOENIX_PROJECT_NAME", "default")
            by_project.setdefault(project, {})[one.span_id or ""] = one

        def read(project: str) -> Any:
            return self._connect().spans.get_span_annotations(
                span_ids=list(by_project[project]),
                project_identifier=project,
                include_annotation_names=None if key is None else [key],
                timeout=_READ_S,
            )

        for project, of_project in read_each(read, by_project):
            for one in of_project:
                result = one.get("result") or {}
                value = score_or_label(result.get("score"), result.get("label"))
                if value is None:
                    continue
                yield ToolFeedback(
                    trace_id=by_project[project][one["span_id"]].trace_id,
                    span_id=one["span_id"],
                    key=one["name"],
                    value=value,
                    comment=result.get("explanation"),
                    at=datetime.fromisoformat(one["updated_at"]),
                    by_model=one["annotator_kind"] == "LLM",
                )

    def _connect(self) -> Any:
        """Return a client; a forked child must not use its parent's connections."""
        if self._client is not None:
            return self._client
        process_id = os.getpid()
        if process_id not in self._own_clients:
            self._own_clients[process_id] = self._package.Client()
        return self._own_clients[process_id]
