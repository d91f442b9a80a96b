"""`label pull TOOL`: verdicts from other tools; and `label next --ask-in`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from kp_langchain.cli.output import say, warn
from kp_langchain.cli.sending import retry_less
from kp_langchain.errors import KPError
from kp_langchain.integrations.tools import feedback_tool, verdicts_from

if TYPE_CHECKING:
    from kp_langchain.integrations.tools import TracingTool
    from kp_langchain.store import TraceStore
    from kp_langchain.verdict import RunVerdict

_KEYS_SHOWN = 10


def tool_verdicts(
    store: TraceStore, name: str, *, key: str | None, since: datetime | None, pass_at: float
) -> Iterator[RunVerdict]:
    """Yield the feedback of a tool on the store's runs, and report how much of it there is.

    Args:
        store: The store.
        name: The name of the tool.
        key: The key of the feedback that means success; None if all has one key.
        since: Only feedback that was given or changed at this time or later.
        pass_at: The lowest score of a run that succeeded, 0 to 1.

    Raises:
        KPError: The tool cannot be read, its package is not installed, it has none of the runs, or
            it has feedback under several keys and `key` is None.
    """
    retry_less()
    tool = feedback_tool(name)
    runs = len(store.external_traces.of_tool(name))
    if not runs:
        raise KPError(
            f"{store.location} has no run that {tool.title} is known to have; attach its tracer "
            f"and send_scores_to=[{name!r}]"
        )
    verdicts: Iterable[RunVerdict] = verdicts_from(
        tool, store, key=key, since=since, pass_at=pass_at
    )
    if key is None:  # nothing may be written before it is known that all has one key
        verdicts = list(verdicts)
        _check_one_key(verdicts, tool)
    keys: set[str] = set()
    number = 0
    for one in verdicts:
        keys.add(one.key)
        number += 1
        yield one
    under = "".join(f" under {name!r}" for name in keys)
    feedbacks = "feedback" if number == 1 else "feedbacks"
    warn(f"{tool.title} has {number} {feedbacks}{under} on {runs} {_runs(runs)}.")


def ask_in_tool(store: TraceStore, name: str, trace_ids: list[str]) -> None:
    """Mark runs as to be judged in a tool, and print how many.

    Args:
        store: The store with the runs.
        name: The name of the tool.
        trace_ids: The ids of the runs' traces.

    Raises:
        KPError: The tool cannot be reached, or its package is not installed.
    """
    retry_less()
    tool = feedback_tool(name)
    marked = 0
    for trace_id in trace_ids:
        scored = store.scored(trace_id)
        if scored is not None and name in scored.external_traces:
            tool.ask_for_verdict(scored, scored.external_traces[name])
            marked += 1
    say(
        f"{tool.title}: {marked} of {len(trace_ids)} {_runs(len(trace_ids))} marked by "
        "kp_verdict_wanted; of the others it has no trace that is known here."
    )


def _check_one_key(verdicts: Iterable[RunVerdict], tool: TracingTool) -> None:
    by_key = Counter(one.key for one in verdicts)
    if len(by_key) > 1:
        keys = ", ".join(f"{name} ({number})" for name, number in by_key.most_common(_KEYS_SHOWN))
        raise KPError(
            f"{tool.title} has feedback under several keys: {keys}; choose the one that means "
            "success: --key NAME"
        )


def _runs(number: int) -> str:
    return "run" if number == 1 else "runs"
