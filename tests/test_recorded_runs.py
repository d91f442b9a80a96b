"""Real recorded agent runs through real loops, in every mode and error style."""

from __future__ import annotations

import itertools
import os

import pytest

from tests import recorded

# RECORDED_EVERY=1 plays all of them: some 7 minutes.
EVERY = int(os.environ.get("RECORDED_EVERY", "50"))


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
@pytest.mark.parametrize(
    ("mode", "errors", "use_async"),
    [
        pytest.param(mode, errors, use_async, id=f"{mode}-{errors}-{'a' * use_async}sync")
        for mode, errors, use_async in itertools.product(
            recorded.MODES, recorded.ERRORS, (False, True)
        )
        if not (mode == "wrapped" and use_async)  # the replayer has no asynchronous wrapped mode
    ],
)
def test_recorded_runs(mode: str, errors: str, use_async: bool) -> None:
    runs = list(itertools.islice(recorded.load(), 0, None, EVERY))
    seen = recorded.play(runs, mode, errors, use_async=use_async)
    assert seen.agent_errors == []
    assert seen.mismatches == []
    assert seen.traces == seen.roots
    assert seen.empty == 0
    assert sum(seen.other_fates.values()) == 0
    assert seen.tool_call_steps == seen.tool_calls > 0
    assert seen.error_steps == seen.tool_errors
    assert (seen.tool_errors == 0) == (errors == "return")
