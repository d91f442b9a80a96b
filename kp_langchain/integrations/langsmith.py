"""Send scores to LangSmith as feedback, and read feedback from it as verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain._logging import quiet_loggers
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.tools import (
    RunScore,
    ToolFeedback,
    TracingTool,
    run_scores,
    several_at_once,
)
from kp_langchain.recording.langchain_context import current_handlers

if TYPE_CHECKING:
    from langsmith import Client
    from langsmith.schemas import RunKey

    from kp_langchain.gate import ScoredTrace

__all__ = ["LangSmithScores"]

_MODELS = ("model", "auto_eval")
_MOST_PER_QUERY = 100
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
    has_run_ids: ClassVar[bool] = True

    def __init__(self, client: Client | None = None, *, extend_retention: bool = True) -> None:
        super().__init__(client)
        self._extend_retention = extend_retention
        self._tracer_clients: dict[str | None, Client] = {}  # by project
        self._project_ids: dict[tuple[str, str], UUID] = {}

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run, if LangSmith's tracer records it."""
        del parent_id
        for tracer in current_handlers("langchain_core.tracers.langchain", "LangChainTracer"):
            run = tracer.run_map.get(str(root_id))
            # Otherwise nothing is sent: the trace is not in the sample.
            if run is not None and _is_sampled(tracer.client, run.trace_id):
                self._tracer_clients[run.session_name] = tracer.client
                is_part = run.trace_id != root_id
                return ExternalTrace(str(run.trace_id), str(root_id), run.session_name, is_part)
        return None

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send the scores, or replace those of the same ids.

        Raises:
            Exception: LangSmith cannot be reached or refuses them, with its client's error.
        """
        client = self._connect(external.project)
        extends_retention = self._extend_retention and scored.decision == "kept"
        with _quiet():
            project_id = self._project_id(client, external.project)

        def send_one(score: RunScore) -> None:
            with _quiet():
                client.create_feedback(
                    external.span_id,
                    trace_id=external.trace_id,
                    session_id=project_id,
                    key=score.name,
                    score=score.value,
                    comment=score.comment,
                    feedback_id=score.id,
                    extend_trace_retention=extends_retention,
                    stop_after_attempt=1,
                )

        list(several_at_once(send_one, run_scores(scored)))

    def _read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        client = self._connect()
        run_ids = list(dict.fromkeys(external.trace_id for external in traces))
        for start in range(0, len(run_ids), _BATCH):
            some = run_ids[start : start + _BATCH]
            for one in client.list_feedback(
                run_ids=some, feedback_key=None if key is None else [key]
            ):
                if str(one.run_id) not in some or (one.score, one.value) == (None, None):
                    continue
                at = one.modified_at or one.created_at
                yield ToolFeedback(
                    trace_id=str(one.run_id),
                    span_id=None,
                    key=one.key,
                    value=one.value if one.score is None else one.score,
                    comment=one.comment,
                    at=at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC),
                    by_model=one.feedback_source is not None
                    and one.feedback_source.type in _MODELS,
                )

    def _ask_for_verdicts(self, traces: Sequence[ExternalTrace], queue: str) -> int:
        """Put root runs into an annotation queue, which is created if there is none of that name.

        LangSmith itself leaves out runs that are in the queue already.
        """
        client = self._connect()
        ids = [external.trace_id for external in traces]
        own = next(iter(client.list_annotation_queues(name=queue, limit=1)), None)
        queue_id = (own or client.create_annotation_queue(name=queue)).id
        # What identifies a run there: its id alone is accepted for some months only.
        # `list_runs` asks this too, but is to be removed; its successor must know more.
        keys: list[RunKey] = []
        fields = ["id", "session_id", "start_time"]
        for start in range(0, len(ids), _MOST_PER_QUERY):
            some = ids[start : start + _MOST_PER_QUERY]
            query = {"id": some, "select": fields, "limit": len(some)}
            answer = client.request_with_retries("POST", "/runs/query", json=query)
            keys += [
                {
                    "run_id": run["id"],
                    "session_id": run["session_id"],
                    "start_time": run["start_time"],
                }
                for run in answer.json()["runs"]
            ]
        if keys:
            client.add_runs_to_annotation_queue(queue_id, runs=keys)
        return len(keys)

    def _project_id(self, client: Client, project: str | None) -> UUID | None:
        if project is None:
            return None
        key = (client.api_url, project)
        if key not in self._project_ids:
            self._project_ids[key] = client.read_project(project_name=project).id
        return self._project_ids[key]

    def _connect(self, project: str | None = None) -> Any:
        """Return a client that sends at once, and so tells of failures, to where a project is."""
        source = self._client or self._tracer_clients.get(project)
        place = ("", None) if source is None else (source.api_url, source.api_key)
        return self._own_client(lambda: _client(source), *place)


def _quiet() -> Any:
    return quiet_loggers("langsmith.client")  # it logs each error, with what the server says


def _is_sampled(client: Any, trace_id: UUID) -> bool:
    is_sampled = getattr(client, "_should_sample", None)  # there is no public way
    return is_sampled is None or bool(is_sampled(trace_id))


def _client(source: Client | None) -> Client:
    """Return a client for the place and key of another one, by default of the environment."""
    from langsmith import Client
    from urllib3.util import Retry

    return Client(
        api_url=None if source is None else source.api_url,
        api_key=None if source is None else source.api_key,
        workspace_id=getattr(source, "_workspace_id", None),
        tracing_sampling_rate=1.0,
        auto_batch_tracing=False,
        timeout_ms=(_CONNECT_MS, _READ_MS),
        # The default policy would wait as long as the server asks.
        retry_config=Retry(
            total=2,
            backoff_factor=0.5,
            status_forcelist=(429, 500, 502, 503, 504),
            raise_on_status=False,
            respect_retry_after_header=False,
        ),
    )
