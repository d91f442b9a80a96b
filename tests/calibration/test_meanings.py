"""Every feature can be explained."""

from __future__ import annotations

from kp_langchain import trace_from_messages
from kp_langchain.calibration.feature_meanings import MEANINGS, meaning_of
from kp_langchain.calibration.features import features_of


def test_every_feature_has_a_meaning_of_its_own_and_no_other_has():
    trace = trace_from_messages([("user", "What is 6 x 7?"), ("ai", "42")], domain="code")
    names = set(features_of(trace, looked_successful=True, proves_failure=False)) - {
        "features_version"
    }
    assert set(MEANINGS) == names
    assert len(set(MEANINGS.values())) == len(MEANINGS)


def test_tools_are_named():
    assert meaning_of("called:ledger") == "calls of the tool ledger"
    assert meaning_of("steps") == "steps"
    assert meaning_of("of_a_later_version") == "of_a_later_version"
