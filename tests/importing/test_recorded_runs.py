"""Real recorded runs, replayed through a real loop, and imported from what tracers wrote of it."""

from __future__ import annotations

import itertools

import pytest

from tests import recorded

EVERY = 200


@pytest.mark.skipif(not recorded.present(), reason="no recorded runs beside this checkout")
@pytest.mark.parametrize(
    ("mode", "errors"), [("conversation", "raise"), ("wrapped", "tool_exception")]
)
@pytest.mark.filterwarnings("ignore")
def test_recorded_runs(mode: str, errors: str) -> None:
    from tests.benchmarks.imported import FORMATS, found_differences, play

    for run in itertools.islice(recorded.load(), 0, None, EVERY):
        scored, files = play(run, mode, errors)
        for name in FORMATS:
            found = found_differences(files[name], scored, any_order=True)
            assert found == [], (run["run_id"], name)
