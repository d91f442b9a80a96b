"""Send scores to Langfuse, onto its callback handler's trace of a run, and read scores there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain.errors import KPError
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.packages import import_package
from kp_langchain.integrations.run_scores import run_scores
from kp_langchain.integrations.tool_feedback import ToolFeedback, tool_errors
from kp_langchain.recording.langchain_context import current_handlers

if TYPE_CHECKING:
    from langfuse import Langfuse

    from kp_langchain.gate import ScoredTrace

__all__ = ["LangfuseScores"]

_KEYS = "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"
_READABLE = ("NUMERIC", "BOOLEAN", "CATEGORICAL")
_MADE_UP_PARENT = "langfuse.internal.as_root"
_TRACES_AT_ONCE = 50  # their ids are part of the URL, whose length is limited
_MOST_PER_PAGE = 100
_ONCE: Any = {"max_retries": 0}  # who calls `send` tries again itself


class LangfuseScores:
    """Sends the score of each run to the trace that `langfuse.langchain.CallbackHandler` made.

    Args:
        client: Langfuse's client; by default that of the callback handler which made the trace.
            For a run of an earlier process it is the one that `langfuse.get_client` returns, which
            the environment configures (`LANGFUSE_PUBLIC_KEY`, `LANGFUSE_SECRET_KEY`,
            `LANGFUSE_BASE_URL`).

    Raises:
        MissingExtraError: The package langfuse is not installed.
    """

    name: ClassVar[str] = "langfuse"
    title: ClassVar[str] = "Langfuse"
    has_run_ids: ClassVar[bool] = False
    asks_by: ClassVar[str] = "put into the annotation queue {queue!r}"

    def __init__(self, client: Langfuse | None = None) -> None:
        self._langfuse = import_package("langfuse", extra="langfuse")
        self._client = client
        self._clients: dict[str | None, Any] = {}

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run; its id is private to the handler, and random."""
        del parent_id
        for handler in current_handlers("langfuse.langchain", "CallbackHandler"):
            observation = handler._runs.get(root_id)  # noqa: SLF001 - there is no public way
            if observation is None:
                continue
            span = observation._otel_span.get_span_context()  # noqa: SLF001
            # Otherwise nothing is exported: tracing is off, or the trace is not in the sample.
            if span.is_valid and span.trace_flags.sampled:
                # In a process with several clients, `get_client` returns one of no project.
                client = handler._langfuse_client  # noqa: SLF001 - there is no public way
                project = _project_of(client)
                self._clients[project] = client
                is_part = _is_inside_a_span(observation._otel_span)  # noqa: SLF001
                return ExternalTrace(observation.trace_id, observation.id, project, is_part)
        return None

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send the scores, or replace those of the same ids.

        Raises:
            KPError: Langfuse has no keys, or rejects some of the scores; the others are there.
            Exception: Langfuse cannot be reached or refuses them, with its client's error.
        """
        client = self._connected(external.project)
        # As of its spans, which the environment of its client is part of.
        environment = getattr(client, "_environment", None) or "default"
        scores: list[dict[str, Any]] = [
            {
                "id": str(score.id),
                "trace_id": external.trace_id,
                "name": score.name,
                "value": score.value,
                "comment": score.comment,
                "environment": environment,
                **({"observation_id": external.span_id} if external.is_part else {}),
            }
            for score in run_scores(scored)
        ]
        if not self._takes_batches():
            # Not `create_score`, which sends in the background and tells of no failure.
            scores_v1 = client.api.legacy.score_v1
            for score in scores:
                scores_v1.create(**score, request_options=_ONCE)
            return
        from langfuse.api import CreateScoreRequest

        # A score replaces another only if both have the same id and the same time.
        at = scored.trace.metadata.created_at
        response = client.api.scores.create(
            request=[CreateScoreRequest(timestamp=at, **score) for score in scores],
            request_options=_ONCE,
        )
        if rejected := getattr(response, "rejected", 0):
            raise KPError(f"Langfuse rejected {rejected} of {len(scores)} scores of a run")

    def _takes_batches(self) -> bool:
        """Return whether this is version 5 or later of the package."""
        return hasattr(self._langfuse.api, "CreateScoresResponse")

    def read_feedback(
        self, traces: Sequence[ExternalTrace], key: str | None
    ) -> Iterator[ToolFeedback]:
        """Yield the scores of some traces and of the spans in them.

        Raises:
            KPError: Langfuse cannot be reached, refuses the keys, or cannot be understood.
        """
        for start in range(0, len(traces), _TRACES_AT_ONCE):
            some = {one.trace_id for one in traces[start : start + _TRACES_AT_ONCE]}
            cursor: str | None = None
            while True:
                with _errors():
                    page = self._get_scores()(
                        trace_id=",".join(some),
                        name=key,
                        fields="details,subject",
                        limit=_MOST_PER_PAGE,
                        cursor=cursor,
                    )
                for score in page.data:
                    place = _place_of(score.subject)
                    if place is not None and score.data_type in _READABLE:
                        yield ToolFeedback(
                            trace_id=place[0],
                            span_id=place[1],
                            key=score.name,
                            value=score.value,
                            comment=score.comment,
                            at=score.updated_at,
                            by_model=score.source == "EVAL",
                        )
                if page.meta.cursor in (None, cursor):
                    break
                cursor = page.meta.cursor

    def ask_for_verdicts(self, traces: Sequence[ExternalTrace], queue: str) -> int:
        """Put traces into an annotation queue, or the spans of runs that are a part of theirs.

        Those that are in it, done or not, are left out, and so are those of other projects.

        Raises:
            KPError: Langfuse cannot be reached, refuses the keys, or has no queue of that name.
        """
        with _errors():
            client = self._connected()
            api = client.api.annotation_queues
            queues = list(_pages(api.list_queues))
            queue_id = next((one.id for one in queues if one.name == queue), None)
            if queue_id is None:
                names = ", ".join(repr(one.name) for one in queues) or "none"
                # Creating one needs the scores that people are to choose from.
                raise KPError(
                    f"Langfuse has no annotation queue {queue!r}, only {names}; create it there, "
                    "or name one with --queue"
                )
            present = {item.object_id for item in _pages(api.list_queue_items, queue_id)}
            new = 0
            for one in traces:
                kind, id_ = ("OBSERVATION", one.span_id) if one.is_part else ("TRACE", one.trace_id)
                if id_ not in present and one.project in (None, _project_of(client)):
                    api.create_queue_item(queue_id, object_id=id_, object_type=kind)
                    present.add(id_)
                    new += 1
        return new

    def _get_scores(self) -> Callable[..., Any]:
        """Return what reads scores: each major version of the package names it differently."""
        api = self._connected().api
        if hasattr(api, "scores_v3"):
            read: Callable[..., Any] = api.scores_v3.get_many_v3
        elif self._takes_batches():
            read = api.scores.get_many
        else:
            raise KPError(
                f"langfuse {version('langfuse')} cannot read scores by trace; "
                "pip install -U langfuse"
            )
        return read

    def _connected(self, project: str | None = None) -> Any:
        """Return a client, that of a project if it is given.

        Raises:
            KPError: There are no keys, or those of another project.
        """
        client: Any = self._client or self._clients.get(project)
        if client is not None:
            return client
        client = self._langfuse.get_client()  # where there are several, it is one of no project
        if project is not None and _project_of(client) not in (None, project):
            client = self._langfuse.get_client(public_key=project)
        if not hasattr(client, "api"):
            raise KPError(f"Langfuse has no keys; set {_KEYS}")
        if project is not None and _project_of(client) != project:
            raise KPError(
                f"the run is in the Langfuse project of the public key {project}; set {_KEYS} to "
                "the keys of that project"
            )
        return client


def _project_of(client: Any) -> str | None:
    """Return the public key of a client, which stands for its project."""
    key: str | None = getattr(getattr(client, "_resources", None), "public_key", None)
    return key


def _is_inside_a_span(span: Any) -> bool:
    """Return whether a span has a parent of the program; a trace context makes up a parent."""
    return span.parent is not None and _MADE_UP_PARENT not in (span.attributes or ())


def _place_of(subject: Any) -> tuple[str, str | None] | None:
    """Return the trace and, if it is about one, the span that a score is about."""
    kind = getattr(subject, "kind", None)
    if kind == "observation":
        return subject.trace_id, subject.id
    return (subject.id, None) if kind == "trace" else None


def _pages(read: Callable[..., Any], *words: str) -> Iterator[Any]:
    """Yield what all pages of a list have."""
    number = 1
    while True:
        page = read(*words, page=number, limit=_MOST_PER_PAGE)
        yield from page.data
        if number >= page.meta.total_pages:
            return
        number += 1


def _errors() -> AbstractContextManager[None]:
    return tool_errors("Langfuse", address="LANGFUSE_BASE_URL", credentials=_KEYS)
