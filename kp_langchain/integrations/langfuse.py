"""Send scores to Langfuse, onto its callback handler's trace of a run, and read scores there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain.errors import KPError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.tools import RunScore, ToolFeedback, TracingTool

if TYPE_CHECKING:
    from langfuse import Langfuse

__all__ = ["LangfuseScores"]

_READABLE = ("NUMERIC", "BOOLEAN", "CATEGORICAL")
_MADE_UP_PARENT = "langfuse.internal.as_root"
_TRACES_AT_ONCE = 50  # their ids are part of the URL, whose length is limited
_MOST_PER_PAGE = 100
_ONCE: Any = {"max_retries": 0}  # who calls `send` tries again itself


class LangfuseScores(TracingTool):
    """Sends the score of each run to the trace that `langfuse.langchain.CallbackHandler` made.

    Args:
        client: Langfuse's client; by default the one that this process has for the project of the
            trace, or that the environment configures (`LANGFUSE_PUBLIC_KEY`,
            `LANGFUSE_SECRET_KEY`, `LANGFUSE_BASE_URL`).

    Raises:
        MissingExtraError: The package langfuse is not installed.
    """

    name: ClassVar[str] = "langfuse"
    title: ClassVar[str] = "Langfuse"
    package: ClassVar[str] = "langfuse"
    address: ClassVar[str] = "LANGFUSE_BASE_URL"
    credentials: ClassVar[str] = "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"
    tracer: ClassVar[tuple[str, str]] = ("langfuse.langchain", "CallbackHandler")

    def __init__(self, client: Langfuse | None = None) -> None:
        super().__init__(client)

    def _trace_of(self, tracer: Any, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run; its id is private to the handler, and random."""
        del parent_id
        observation = tracer._runs.get(root_id)  # noqa: SLF001 - there is no public way
        if observation is None:
            return None
        otel_span = observation._otel_span  # noqa: SLF001 - there is no public way
        span = otel_span.get_span_context()
        # Otherwise nothing is exported: tracing is off, or the trace is not in the sample.
        if not (span.is_valid and span.trace_flags.sampled):
            return None
        project = _project_of(tracer._langfuse_client)  # noqa: SLF001 - there is no public way
        # A trace context makes up a parent.
        is_part = otel_span.parent is not None and _MADE_UP_PARENT not in otel_span.attributes
        return ExternalTrace(observation.trace_id, observation.id, project, is_part)

    def write_scores(self, scores: Sequence[RunScore], external: ExternalTrace) -> None:
        """Write scores, or replace those of the same ids.

        Raises:
            KPError: Langfuse has no keys, or rejects some of the scores; the others are there.
            Exception: Langfuse cannot be reached or refuses them, with its client's error.
        """
        from langfuse.api import CreateScoreRequest

        client = self._connect(external.project)
        span: dict[str, Any] = {"observation_id": external.span_id} if external.is_part else {}
        # Not `create_score`, which sends in the background and tells of no failure.
        response = client.api.scores.create(
            request=[
                CreateScoreRequest(
                    id=str(score.id),
                    trace_id=external.trace_id,
                    name=score.name,
                    value=score.value,
                    comment=score.comment,
                    # As of its spans, which the environment of its client is part of.
                    environment=getattr(client, "_environment", None) or "default",
                    # A score replaces another only if both have the same id and the same time.
                    timestamp=score.at,
                    **span,
                )
                for score in scores
            ],
            request_options=_ONCE,
        )
        if rejections := getattr(response, "rejected", 0):
            raise KPError(f"Langfuse rejected {rejections} of {len(scores)} scores of a run")

    def _feedback_on(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the scores of traces and of the spans in them."""
        api = self._connect().api.scores
        trace_ids = list({one.trace_id for one in traces})
        for start in range(0, len(trace_ids), _TRACES_AT_ONCE):
            options = {
                "trace_id": ",".join(trace_ids[start : start + _TRACES_AT_ONCE]),
                "name": key,
                "fields": "details,subject",
                "limit": _MOST_PER_PAGE,
            }
            cursor: str | None = None
            while True:
                page = api.get_many(**options, cursor=cursor)
                for score in page.data:
                    kind = getattr(score.subject, "kind", None)
                    if kind not in ("trace", "observation") or score.data_type not in _READABLE:
                        continue
                    is_on_span = kind == "observation"
                    yield ToolFeedback(
                        trace_id=score.subject.trace_id if is_on_span else score.subject.id,
                        span_id=score.subject.id if is_on_span else None,
                        key=score.name,
                        value=score.value,
                        comment=score.comment,
                        at=score.updated_at,
                        by_model=score.source == "EVAL",
                    )
                cursor = page.meta.cursor
                if cursor is None:
                    break

    def _connect(self, project: str | None = None) -> Any:
        """Return the client of a project, or of any if none is given.

        Raises:
            KPError: There are no keys, or those of another project.
        """
        if self._client is not None:
            return self._client
        client = self._package.get_client()  # where there are several, it is one of no project
        if project not in (None, _project_of(client)):
            client = self._package.get_client(public_key=project)
        if not hasattr(client, "api") or project not in (None, _project_of(client)):
            of_project = "" if project is None else f" of the project with the public key {project}"
            raise KPError(f"there are no keys{of_project} for Langfuse; set {self.credentials}")
        return client


def _project_of(client: Any) -> str | None:
    """Return the public key of a client, which stands for its project."""
    key: str | None = getattr(getattr(client, "_resources", None), "public_key", None)
    return key
