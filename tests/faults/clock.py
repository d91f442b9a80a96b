"""The waits of today's inside, in hundredths, so that a scenario takes seconds.

This table alone knows the inside. A wait that moves is moved here; what the scenarios hold does not
change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_SHORT_S = {
    "kp_langchain.registry.client._LONGEST_LOOKUP_S": 1.0,
    "kp_langchain.registry.answers._FIRST_BACKOFF_S": 0.002,
    "kp_langchain.registry.answers.LONGEST_BACKOFF_S": 0.2,
    "kp_langchain.registry.sender.LONGEST_BACKOFF_S": 0.2,
    "kp_langchain.registry.answers._HOUR_S": 0.5,
    "kp_langchain.registry.answers._MARGIN_S": 0.01,
    "kp_langchain.registry.answers._DEFAULT_INTERVAL_S": 0.0,
    "kp_langchain.registry.answers._THROTTLE_WAIT_S": 0.05,
    "kp_langchain.registry.sender._RETRY_TURN_S": 0.01,
    "kp_langchain.registry.sender._OTHERS_TURN_S": 0.001,
    "kp_langchain.store.jobs.LEASE_S": 3.0,
    "kp_langchain.recording.engine.LEASE_S": 3.0,
    "kp_langchain.recording.store_writer.LEASE_S": 3.0,
    "kp_langchain.store.jobs._FIRST_PAUSE_S": 0.01,
    "kp_langchain.store.jobs._LONGEST_PAUSE_S": 0.05,
    "kp_langchain.store.connections._BUSY_TIMEOUT_S": 0.05,
}

# Runs that are taken over are scored by the bundled scorer, whose model would take seconds to load.
WITHOUT_MODEL = {"KP_EMBEDDING_MODEL": "no-such-model", "HF_HUB_OFFLINE": "1"}


@contextmanager
def shortened_clock() -> Iterator[None]:
    """Shorten rests, pauses and leases, and load no model; an error if a wait is not there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WITHOUT_MODEL.items():
            patch.setenv(name, value)
        for name, seconds in _SHORT_S.items():
            patch.setattr(name, seconds)
        yield
