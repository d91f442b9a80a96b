"""Send scores to LangSmith as feedback, and read feedback from it as verdicts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit
from uuid import UUID

from kp_langchain._quiet_loggers import quiet_loggers
from kp_langchain.errors import KPError, status_of
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.run_scores import RunScore, run_scores, send_each
from kp_langchain.integrations.tool_feedback import (
    ToolFeedback,
    check_pass_at,
    run_verdict,
)
from kp_langchain.recording.langchain_context import current_handlers
from kp_langchain.verdict import RunVerdict

if TYPE_CHECKING:
    from langsmith import Client
    from langsmith.schemas import RunKey

    from kp_langchain.gate import ScoredTrace

__all__ = ["LangSmithScores", "RunVerdict", "feedback"]

SOURCE = "langsmith"
_MODELS = ("model", "auto_eval")
_MOST_PER_QUERY = 100
_BATCH = 50  # run ids per request; they are part of the URL, whose length is limited
_CONNECT_MS, _READ_MS = 10_000, 30_000


class LangSmithScores:
    """Sends the score of each run as feedback on the run that LangSmith's tracer recorded.

    Args:
        client: LangSmith's client; by default that of the tracer which recorded the run. For a run
            of an earlier process it is configured by the environment (`LANGSMITH_API_KEY`,
            `LANGSMITH_ENDPOINT`).
        extend_retention: Whether LangSmith shall keep kept runs for longer, as it does with every
            run that has feedback unless told otherwise. The others keep their normal retention.
    """

    name: ClassVar[str] = SOURCE
    title: ClassVar[str] = "LangSmith"
    has_run_ids: ClassVar[bool] = True
    asks_by: ClassVar[str] = "put into the annotation queue {queue!r}"

    def __init__(self, client: Client | None = None, *, extend_retention: bool = True) -> None:
        self._client = client
        self._extend_retention = extend_retention
        self._tracer_clients: dict[str, Client] = {}  # by project
        self._unbatched: dict[tuple[int, str, str | None], Client] = {}
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
        client = self._sending_client(external.project)
        is_kept = scored.decision == "kept"

        def send_one(score: RunScore) -> None:
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

        with quiet_loggers("langsmith.client"):  # it logs each error, with what the server says
            project_id = self._project_id(client, external.project)
            send_each(send_one, run_scores(scored))

    def read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Return the feedback on some root runs.

        Raises:
            KPError: LangSmith cannot be reached, refuses the key, or returns an unreadable answer.
        """
        self._client = client = self._client or _client()
        ids = [external.trace_id for external in traces]
        return _read_feedback(client, ids, () if key is None else (key,))

    def ask_for_verdicts(self, traces: Sequence[ExternalTrace], queue: str) -> int:
        """Put root runs into an annotation queue, which is created if there is none of that name.

        LangSmith itself leaves out runs that are in the queue already.

        Raises:
            KPError: LangSmith cannot be reached, or refuses the key.
        """
        self._client = client = self._client or _client()
        ids = [external.trace_id for external in traces]
        with _errors(client):
            found = next(iter(client.list_annotation_queues(name=queue, limit=1)), None)
            queue_id = (found or client.create_annotation_queue(name=queue)).id
            # What identifies a run there: its id alone is accepted for some months only.
            # `list_runs` asks this too, but is to be removed; its successor must know more.
            keys: list[RunKey] = []
            for start in range(0, len(ids), _MOST_PER_QUERY):
                some = ids[start : start + _MOST_PER_QUERY]
                fields = ["id", "session_id", "start_time"]
                query = {"id": some, "select": fields, "limit": len(some)}
                answer = client.request_with_retries("POST", "/runs/query", json=query)
                keys += [
                    {
                        "run_id": one["id"],
                        "session_id": one["session_id"],
                        "start_time": one["start_time"],
                    }
                    for one in answer.json()["runs"]
                ]
            if keys:
                client.add_runs_to_annotation_queue(queue_id, runs=keys)
        return len(keys)

    def _sending_client(self, project: str | None) -> Client:
        """Return a client that sends at once, and so tells of failures, to where a project is."""
        if self._client is not None and self._client.tracing_queue is None:
            return self._client
        source = self._client or self._tracer_clients.get(project or "")
        place = ("", None) if source is None else (source.api_url, source.api_key)
        key = (os.getpid(), *place)  # a forked child must not use its parent's connections
        if key not in self._unbatched:
            self._unbatched[key] = _client(source)
        return self._unbatched[key]

    def _project_id(self, client: Client, project: str | None) -> UUID | None:
        if project is None:
            return None
        key = (client.api_url, project)
        if key not in self._project_ids:
            self._project_ids[key] = client.read_project(project_name=project).id
        return self._project_ids[key]


def feedback(
    run_ids: Iterable[str],
    *,
    keys: Sequence[str] = (),
    pass_at: float = 0.5,
    client: Client | None = None,
) -> Iterator[RunVerdict]:
    """Read LangSmith's feedback on these runs; skip feedback that is only a comment.

    A score of 1 or 0, a boolean, or a value such as "correct" or "no" means success or failure. Any
    other score from 0 to 1 is the confidence, and the run succeeded if it is at least `pass_at`.

    Args:
        run_ids: LangChain's ids of root runs.
        keys: The keys to read; all keys by default.
        pass_at: The lowest score of a run that succeeded, 0 to 1.
        client: LangSmith's client; by default configured by the environment (`LANGSMITH_API_KEY`,
            `LANGSMITH_ENDPOINT`).

    Raises:
        ConfigError: `pass_at` is outside 0 to 1.
        KPError: LangSmith cannot be reached, refuses the key, or returns an unreadable answer.
    """
    check_pass_at(pass_at)
    ids = list(dict.fromkeys(run_ids))
    if not ids:
        return
    for one in _read_feedback(client or _client(), ids, keys):
        yield run_verdict(one, LangSmithScores, one.trace_id, pass_at)


def _read_feedback(
    client: Client, run_ids: Sequence[str], keys: Sequence[str]
) -> Iterator[ToolFeedback]:
    for start in range(0, len(run_ids), _BATCH):
        for one in _list_feedback(client, run_ids[start : start + _BATCH], keys):
            if one.run_id is None or (one.score, one.value) == (None, None):
                continue
            at = one.modified_at or one.created_at
            yield ToolFeedback(
                trace_id=str(one.run_id),
                span_id=None,
                key=one.key,
                value=one.value if one.score is None else one.score,
                comment=one.comment,
                at=at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC),
                by_model=one.feedback_source is not None and one.feedback_source.type in _MODELS,
            )


def _is_sampled(client: Any, trace_id: UUID) -> bool:
    is_sampled = getattr(client, "_should_sample", None)  # there is no public way
    return is_sampled is None or bool(is_sampled(trace_id))


def _client(source: Client | None = None) -> Client:
    """Return a client for the place and key of another one, by default of the environment."""
    from langsmith import Client
    from urllib3.util import Retry

    try:
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
    except Exception as error:
        raise KPError(
            f"LangSmith's client cannot be created ({type(error).__name__}); check "
            "LANGSMITH_API_KEY and LANGSMITH_ENDPOINT"
        ) from error


def _list_feedback(client: Client, run_ids: Sequence[str], keys: Sequence[str]) -> list[Any]:
    feedback_by_id: dict[object, Any] = {}
    wanted_ids = set(run_ids)
    with _errors(client):
        for one in client.list_feedback(run_ids=list(run_ids), feedback_key=list(keys) or None):
            if one.id in feedback_by_id:  # the server repeats a page
                break
            feedback_by_id[one.id] = one
    return [one for one in feedback_by_id.values() if str(one.run_id) in wanted_ids]


@contextmanager
def _errors(client: Client) -> Iterator[None]:
    """Raise what LangSmith's client raises as one clear error."""
    from langsmith.utils import LangSmithAuthError, LangSmithConnectionError

    try:
        yield
    except LangSmithAuthError as error:
        raise KPError(_refusal_message(client)) from error
    except LangSmithConnectionError as error:
        raise KPError(
            f"LangSmith cannot be reached at {_address(client)}; check LANGSMITH_ENDPOINT"
        ) from error
    except Exception as error:  # the client raises many types for an unexpected answer
        status = status_of(error)
        if status in (401, 403):
            raise KPError(_refusal_message(client)) from error
        what = type(error).__name__ if status is None else f"status {status}"
        raise KPError(
            f"LangSmith at {_address(client)} gave no readable answer ({what}); "
            "check LANGSMITH_ENDPOINT, or try again later"
        ) from error


def _refusal_message(client: Client) -> str:
    return (
        f"LangSmith at {_address(client)} refuses the key; set LANGSMITH_API_KEY to one that may "
        "read and write its feedback"
    )


def _address(client: Client) -> str:
    url = urlsplit(client.api_url)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
