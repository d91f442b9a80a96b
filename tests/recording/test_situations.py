"""Every situation of `situations.py`: steps, counts, success, objective, framework."""

from __future__ import annotations

import pytest

from tests.agents import shape
from tests.recording import (
    situations_of_inner_calls,
    situations_of_pauses,
    situations_of_requests,
    situations_of_timeouts,
)
from tests.recording.situations import SITUATIONS, Situation, as_expected, play

# Importing them adds their situations to the list.
assert situations_of_inner_calls
assert situations_of_pauses
assert situations_of_requests
assert situations_of_timeouts

FATES = (
    "runs", "open", "paused", "cancelled", "abandoned", "handed_over", "empty", "dropped",
    "failed", "callback_errors", "outcome_errors", "dropped_steps",
)  # fmt: skip


@pytest.mark.parametrize("one", SITUATIONS, ids=lambda one: one.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_situation(one: Situation) -> None:
    if one.needs:
        pytest.importorskip(one.needs, reason="this release of langgraph does not tell of it")
    result = play(one)
    assert [
        as_expected(shape(scored.trace), expected)
        for scored, expected in zip(result.scored, one.traces, strict=True)
    ] == one.traces
    expected = {name: one.fates.get(name, 0) for name in FATES}
    assert {name: result.stats[name] for name in FATES} == expected
    assert result.stats["scored"] == len(one.traces)
    for scored in result.scored:
        assert scored.trace.task.objective == one.objective
        assert scored.trace.metadata.framework == one.framework
        assert [step.step_id for step in scored.trace.steps] == list(range(len(scored.trace.steps)))
    if one.success is not None:
        assert [scored.trace.metadata.success for scored in result.scored] == one.success
