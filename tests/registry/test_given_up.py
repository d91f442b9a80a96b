"""What sending does today and will not do once its inside is rebuilt; see the design.

Clocks that are set, and forks in the middle of a request. Each part goes with its mechanism.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from kp_langchain import Registry, TraceStore
from kp_langchain.registry import pace
from kp_langchain.registry.responses import Answer
from kp_langchain.registry.sender import Sender
from kp_langchain.store import Contribution
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import FRESH, KEY, START, ask, first, sending
from tests.store.conftest import fork


@pytest.mark.parametrize("seconds", [-3000, 600, 315e6])
def test_no_setting_of_the_clock_changes_the_silence(tmp_path, seconds):
    with TraceStore(tmp_path / "x.db") as store, sending(store, first("503_retry_after")) as here:
        here.fill()
        assert here.sender._send_one() == 0.0
        quiet_s = here.sender._send_one()
        assert quiet_s > 0.0
        here.clock.set_by(seconds)
        assert here.sender._send_due() == pytest.approx(quiet_s, abs=1.1)
        assert len(here.server.requests) == 1
        here.clock.skip(quiet_s + 1.1)
        assert here.turn() is None
        assert len(here.server.units) == 1


def test_a_clock_set_back_does_not_hold_up_what_waits(tmp_path):
    """Neither what was never tried, nor what is to be tried again, before it or behind it."""
    with TraceStore(tmp_path / "x.db") as store, sending(store, first("500")) as here:
        here.fill()
        here.clock.skip(1.0)
        here.sender._send_one()
        here.fill(3)
        here.clock.set_by(-3000)
        here.drive(20)
        assert len(here.server.units) == 4
        assert here.clock.passed_s < 10
    standing = ask(FRESH, Answer("later", "503", 503, retry_after_s=120.0), START)
    back = START - timedelta(days=365)
    assert pace.wait_s(pace.restart_quiet_period(standing, back), back) == 120.0
    waits = Contribution("t", "r", "pending", START, START, due_at=START + timedelta(minutes=10))
    assert (pace.due_in_s(waits, START), pace.due_in_s(waits, back)) == (600.0, 0.0)
    assert pace.restart_quiet_period(replace(standing), START) == standing


def test_both_sides_of_a_fork_go_on(tmp_path):
    with LoopbackRegistry() as there, TraceStore(tmp_path / "x.db") as store:
        here = Registry(there.url, api_key=KEY)
        sender = Sender(store, here)
        assert sender.drain(600.0)
        threads = [threading.Thread(target=here.find, args=("y",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert fork(lambda: here.find("x").status == 404 and sender.drain(600.0)) == 0
        for thread in threads:
            thread.join(600)
        assert here.find("x").status == 404
        assert len(there.requests) == 6
        assert sender.drain(600.0)
