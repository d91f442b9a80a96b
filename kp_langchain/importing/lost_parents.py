"""Spans that lost their parents: a tracer may not know inside which node a tool was called.

LangChain does not always name the parent of a tool that middleware calls. The metadata of both name
the execution of the node.
"""

from __future__ import annotations

from collections.abc import Sequence

from kp_langchain.importing.recorded_run import RecordedCall

_NODE, _EXECUTION = "langgraph_node", "langgraph_checkpoint_ns"


def join_lost(calls: Sequence[RecordedCall]) -> None:
    """Make calls without a parent part of the execution of a node that their metadata name.

    Args:
        calls: The calls of a file; changed.
    """
    ids = {call.id for call in calls}
    nodes: dict[str, list[RecordedCall]] = {}
    for call in calls:
        execution = call.metadata.get(_EXECUTION)
        # The node itself, and not what runs inside it.
        is_node = call.kind == "chain" and call.name == call.metadata.get(_NODE)
        if is_node and call.parent_id in ids and isinstance(execution, str):
            nodes.setdefault(execution, []).append(call)
    for call in calls:
        execution = call.metadata.get(_EXECUTION)
        if call.parent_id in ids or not isinstance(execution, str):
            continue
        # A node that paused is executed again under the same name.
        around = [node for node in nodes.get(execution, ()) if _contains(node, call)]
        if len(around) == 1 and around[0] is not call:
            call.parent_id = around[0].id


def _contains(node: RecordedCall, call: RecordedCall) -> bool:
    return node.started_ns <= call.started_ns and (
        node.ended_ns is None or call.started_ns <= node.ended_ns
    )
