"""Send the scores of runs that a command judged again to the tools of `send_scores_to`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kp_langchain._logging import describe_error

if TYPE_CHECKING:
    from kp_langchain.recording.score_receivers import ScoreReceiver
    from kp_langchain.store import TraceStore

# It sends through the telemetry of the agent's process, which a command does not have.
_NEEDS_THE_AGENT = "opentelemetry"


def retry_less() -> None:
    """Have clients give up in seconds where nothing answers; MLflow's tries for four minutes."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")


def send_scores(
    store: TraceStore, trace_ids: Collection[str], timeout_s: float, report: Callable[[str], object]
) -> None:
    """Send the scores of runs to the tools that the settings name, and report how far that got.

    A tool that fails once is not asked again; the others are.

    Args:
        store: The store with the runs.
        trace_ids: The ids of their traces.
        timeout_s: Start nothing after so many seconds.
        report: Given each line to print.

    Raises:
        KPError: The store cannot be read, or the settings cannot be used.
    """
    from kp_langchain.config import Settings
    from kp_langchain.recording.score_receivers import receivers_of

    settings = Settings()
    names = [name for name in settings.send_scores_to if name != _NEEDS_THE_AGENT]
    if not names or not trace_ids or settings.disabled:
        return
    retry_less()
    until = time.monotonic() + timeout_s
    for receiver in receivers_of(names):
        line = _send(store, receiver, trace_ids, until)
        if line:
            report(line)


def _send(
    store: TraceStore, receiver: ScoreReceiver, trace_ids: Collection[str], until: float
) -> str:
    """Send to one tool; return what to print, "" if it has none of the runs."""
    with_trace = [id_ for id_ in trace_ids if receiver.name in store.external_traces.of_run(id_)]
    if not with_trace:
        return ""
    sent, why = 0, ""
    for id_ in with_trace:
        if time.monotonic() > until:
            why = "; no time was left"
            break
        scored = store.scored(id_)
        if scored is None:  # deleted meanwhile
            continue
        try:
            receiver.send(scored, scored.external_traces[receiver.name])
        except Exception as error:  # noqa: BLE001 - whatever the tool's package raises
            why = f" ({describe_error(error)})"
            break
        sent += 1
    return f"Scores sent to {receiver.name}: {sent} of {len(with_trace)}{why}."
