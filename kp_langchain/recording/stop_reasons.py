"""Why a model stopped: because its answer was complete, or before.

Each provider writes its reason into the answer's `response_metadata` under a name of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from kp_langchain.recording.content_blocks import unwrap
from kp_langchain.recording.safe_reads import MAPPING, MAX_ITEMS, attribute, default_on_error

_FIELDS = ("finish_reason", "stop_reason", "stopReason", "done_reason", "finishReason")

# In lower case. A streamed answer may hold the reasons of its chunks, one after the other.
_EARLY_REASONS = (
    # The answer was cut off.
    "length", "max_tokens", "max_output_tokens", "model_length", "error_limit",
    "token_limit", "time_limit", "timeout", "truncated",
    "context_window_exceeded", "model_context_window_exceeded", "pause_turn", "abort",
    "insufficient_system_resource", "cancelled", "user_cancel",
    # It was refused or withheld.
    "refusal", "content_filter", "content_filtered", "content-filter", "guardrail_intervened",
    "safety", "recitation", "language", "blocklist", "prohibited_content", "spii",
    "content_policy_violation", "sensitive",
    "image_recitation", "no_image", "image_other", "error_toxic",
    # It is malformed.
    "malformed_function_call", "malformed_tool_use", "malformed_model_output",
    "malformed_response", "unexpected_tool_call", "too_many_tool_calls", "error", "other",
)  # fmt: skip
_EARLY_STATUS = frozenset({"incomplete", "failed", "cancelled"})  # of OpenAI's Responses
_MAX_REASON_CHARS = 1000


@default_on_error(False)
def ended_early(metadata: object) -> bool:
    """Return whether an answer was cut off, refused, withheld or malformed.

    Args:
        metadata: The answer's `response_metadata`, or LangChain's `generation_info`.
    """
    if not isinstance(metadata, MAPPING) or not metadata:
        return False
    for field in _FIELDS:
        reason = metadata.get(field)
        if isinstance(reason, str) and _ends_badly(reason):
            return True
    details = metadata.get("incomplete_details")
    if isinstance(details, MAPPING) and details.get("reason"):
        return True
    status = metadata.get("status")
    if isinstance(status, str) and status in _EARLY_STATUS:
        return True
    return _is_blocked(metadata.get("prompt_feedback"))


def _ends_badly(reason: str) -> bool:
    if reason == "stop" or len(reason) > _MAX_REASON_CHARS:  # most are "stop"
        return False
    return reason.rpartition(".")[2].lower().endswith(_EARLY_REASONS)


def _is_blocked(feedback: Any) -> bool:
    """Return whether Google refused the question itself."""
    reason = feedback.get("block_reason") if isinstance(feedback, Mapping) else None
    return reason not in (None, "", 0) and "UNSPECIFIED" not in str(reason)


@default_on_error("")
def refusal_in(message: object) -> str:
    """Return the words in which a model of OpenAI's refused; "" if it did not."""
    extra = attribute(message, "additional_kwargs")
    refusal = extra.get("refusal") if extra and isinstance(extra, MAPPING) else None
    content = attribute(message, "content")
    if not refusal and isinstance(content, (list, tuple)):
        blocks = (
            one for one in map(unwrap, islice(content, MAX_ITEMS)) if isinstance(one, MAPPING)
        )
        refusals = (one.get("refusal") for one in blocks if one.get("type") == "refusal")
        refusal = next(refusals, None)
    return refusal if isinstance(refusal, str) else ""
