"""Send scores to Langfuse, beside the trace that its callback handler makes of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.integrations.current_handlers import current_handlers
from kp_langchain.integrations.packages import import_package
from kp_langchain.integrations.run_scores import run_scores

if TYPE_CHECKING:
    from langfuse import Langfuse

    from kp_langchain.gate import ScoredTrace

__all__ = ["LangfuseScores"]


class LangfuseScores:
    """Sends the score of each run to the trace that `langfuse.langchain.CallbackHandler` made.

    Args:
        client: Langfuse's client; by default the one that `langfuse.get_client` returns, which the
            environment configures (`LANGFUSE_PUBLIC_KEY`, `LANGFUSE_SECRET_KEY`, `LANGFUSE_HOST`).

    Raises:
        MissingExtraError: The package langfuse is not installed.
    """

    name: ClassVar[str] = "langfuse"

    def __init__(self, client: Langfuse | None = None) -> None:
        self._langfuse = import_package("langfuse", extra="langfuse")
        self._client = client

    def find_trace(self, root_id: UUID, parent_id: UUID) -> ExternalTrace | None:
        """Return the trace of a run; its id is private to the handler, and random."""
        del parent_id
        for handler in current_handlers("langfuse.langchain", "CallbackHandler"):
            observation = handler._runs.get(root_id)  # noqa: SLF001 - there is no public way
            if observation is not None:
                return ExternalTrace(observation.trace_id, observation.id)
        return None

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        """Send the scores in one request, or replace those of the same ids.

        Raises:
            Exception: Langfuse cannot be reached or refuses them, with its client's error.
        """
        client: Any = self._client or self._langfuse.get_client()
        scores = run_scores(scored)
        if not hasattr(client.api.scores, "create"):  # before version 5, sent in the background
            for score in scores:
                client.create_score(
                    name=score.name,
                    value=score.value,
                    trace_id=external.trace_id,
                    data_type="NUMERIC",
                    comment=score.comment,
                    score_id=str(score.id),
                )
            return
        from langfuse.api import CreateScoreRequest

        client.api.scores.create(
            request=[
                CreateScoreRequest(
                    id=str(score.id),
                    trace_id=external.trace_id,
                    name=score.name,
                    value=score.value,
                    comment=score.comment,
                )
                for score in scores
            ]
        )
