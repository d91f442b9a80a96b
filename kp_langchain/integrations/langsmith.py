"""Send scores to LangSmith as feedback, and read feedback from it as verdicts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain._logging import quiet_loggers
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.tools import RunScore, ToolFeedback, TracingTool

if TYPE_CHECKING:
    from langsmith import Client

__all__ = ["LangSmithScores"]

_MODELS = ("model", "auto_eval")
_BATCH = 50  # run ids per request; they are part of the URL, whose length is limited
_CONNECT_MS, _READ_MS = 10_000, 30_000


class LangSmithScores(TracingTool):
    """Sends the score of each run as feedback on the run that LangSmith's tracer recorded.

    Args:
        client: LangSmith's client, whose address, key and workspace are used; by default that of
            the tracer which recorded the run. For a run of an earlier process, the environment
            configures it (`LANGSMITH_API_KEY`, `LANGSMITH_ENDPOINT`).
        extend_retention: Whether LangSmith shall keep kept runs for longer, as it does with every
            run that has feedback unless told otherwise. The others keep their normal retention.
    """

    name: ClassVar[str] = "langsmith"
    title: ClassVar[str] = "LangSmith"
    package: ClassVar[str] = "langsmith"
    address: ClassVar[str] = "LANGSMITH_ENDPOINT"
    credentials: ClassVar[str] = "LANGSMITH_API_KEY"
    tracer: ClassVar[tuple[str, str]] = ("langchain_core.tracers.langchain", "LangChainTracer")

    def __init__(self, client: Client | None = None, *, extend_retention: bool = True) -> None:
        super().__init__(client)
        self._extend_retention = extend_retention
        self._tracer_clients: dict[str | None, Client] = {}  # by project
        self._own_clients: dict[tuple[object, ...], Client] = {}  # by process, address and key
        self._project_ids: dict[tuple[str, str], UUID] = {}

    def _trace_of(self, tracer: Any, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        del parent_id
        run = tracer.run_map.get(str(root_id))
        if run is None:
            return None
        is_sampled = getattr(tracer.client, "_should_sample", None)  # there is no public way
        # Otherwise nothing is sent: the trace is not in the sample.
        if is_sampled is not None and not is_sampled(run.trace_id):
            return None
        self._tracer_clients[run.session_name] = tracer.client
        is_part = run.trace_id != root_id
        return ExternalTrace(str(run.trace_id), str(root_id), run.session_name, is_part)

    def write_scores(self, scores: Sequence[RunScore], external: ExternalTrace) -> None:
        """Write scores as feedback, or replace those of the same ids.

        Raises:
            Exception: LangSmith cannot be reached or refuses them, with its client's error.
        """
        client = self._connect(external.project)
        is_kept = any(score.label == "kept" for score in scores)
        with quiet_loggers("langsmith.client"):  # it logs errors with what the server says
            project_id = self._project_id(client, external.project)
            for score in scores:
                client.create_feedback(
                    external.span_id,
                    trace_id=external.trace_id,
                    session_id=project_id,
                    key=score.name,
                    score=score.value,
                    comment=score.comment,
                    feedback_id=score.id,
                    extend_trace_retention=self._extend_retention and is_kept,
                    stop_after_attempt=1,
                )

    def _feedback_on(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the feedback on the runs, which may be parts of a trace."""
        client = self._connect()
        by_run = {one.span_id or one.trace_id: one for one in traces}
        run_ids = list(by_run)
        for start in range(0, len(run_ids), _BATCH):
            for one in client.list_feedback(
                run_ids=run_ids[start : start + _BATCH],
                feedback_key=None if key is None else [key],
            ):
                run_id, source = str(one.run_id), one.feedback_source
                if run_id not in by_run or (one.score, one.value) == (None, None):
                    continue
                at = one.modified_at or one.created_at
                yield ToolFeedback(
                    trace_id=by_run[run_id].trace_id,
                    span_id=by_run[run_id].span_id,
                    key=one.key,
                    value=one.value if one.score is None else one.score,
                    comment=one.comment,
                    at=at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC),
                    by_model=source is not None and source.type in _MODELS,
                )

    def _project_id(self, client: Client, project: str | None) -> UUID | None:
        if project is None:
            return None
        key = (client.api_url, project)
        if key not in self._project_ids:
            self._project_ids[key] = client.read_project(project_name=project).id
        return self._project_ids[key]

    def _connect(self, project: str | None = None) -> Any:
        """Return a client for a project that sends at once and raises failures.

        A forked child must not use its parent's connections.
        """
        source = self._client or self._tracer_clients.get(project)
        key = (os.getpid(), getattr(source, "api_url", None), getattr(source, "api_key", None))
        if key not in self._own_clients:
            self._own_clients[key] = _client(source)
        return self._own_clients[key]


def _client(source: Client | None) -> Client:
    """Return a client for the place and key of another one, by default of the environment."""
    from langsmith import Client
    from urllib3.util import Retry

    return Client(
        api_url=getattr(source, "api_url", None),
        api_key=getattr(source, "api_key", None),
        workspace_id=getattr(source, "_workspace_id", None),
        tracing_sampling_rate=1.0,
        auto_batch_tracing=False,
        timeout_ms=(_CONNECT_MS, _READ_MS),
        retry_config=Retry(0),
    )
