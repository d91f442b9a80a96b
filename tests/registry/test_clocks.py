"""However the clock is set, what waits is sent in time, and no registry asked too often."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import TraceStore
from kp_langchain.registry import Registry
from kp_langchain.registry.responses import Allowance, Answer
from kp_langchain.registry.sender import Sender
from tests.registry.test_sender import KEY, Clock, passed

WINDOW_S = 60.0
LIMIT = 5


class Counting(Registry):
    """A registry that counts by the steady clock, and is out of order at times."""

    def __init__(self, clock: Clock, outages: set[int]) -> None:
        super().__init__("https://registry.example.org", api_key=KEY)
        self.clock, self.outages = clock, outages
        self.ids: set[str] = set()
        self.asked = 0
        self.throttled = 0
        self._window = (0.0, 0)

    def contribute(self, body: bytes, idempotency_key: str) -> Answer:
        self.asked += 1
        if self.asked in self.outages:
            return Answer("later", "503", 503, retry_after_s=20.0)
        began, used = self._window
        if self.clock.passed_s - began >= WINDOW_S:
            began, used = self.clock.passed_s, 0
        left_s = began + WINDOW_S - self.clock.passed_s
        self._window = (began, used + 1)
        if used >= LIMIT:
            self.throttled += 1
            return Answer("later", "429", 429, retry_after_s=left_s)
        self.ids.add(idempotency_key)
        allowance = Allowance(LIMIT, LIMIT - used - 1, left_s)
        return Answer("done", "201", 201, registry_id=idempotency_key, allowance=allowance)

    def find(self, registry_id: str) -> Answer:
        allowance = Allowance(300, 299, WINDOW_S)
        return Answer("refused", "404", 404, allowance=allowance)


@given(
    jumps=st.lists(st.floats(-3000, 3000) | st.just(0.0), max_size=12),
    outages=st.sets(st.integers(1, 20), max_size=4),
)
def test_no_setting_of_the_clock_delays_or_hurries(jumps, outages):
    number = 12
    clock = Clock()
    registry = Counting(clock, outages)
    with tempfile.TemporaryDirectory() as folder, TraceStore(Path(folder, "t.db")) as store:
        store.add_many([passed(n) for n in range(number)], registry=registry.url)
        # They entered by this clock, not by that of the machine.
        entered = clock.now - timedelta(seconds=1)
        for one in store.outbox.entries():
            whole = store.outbox.get(one.trace_id)
            store.outbox.save(replace(whole, queued_at=entered, changed_at=entered, due_at=entered))
        sender = Sender(store, registry, clock=clock, steady=clock.steady)
        settings_of_the_clock = iter(jumps)
        for _ in range(200):
            wait_s = sender._send_one()
            if wait_s is None:
                break
            clock.skip(sender, wait_s)
            clock.set_by(next(settings_of_the_clock, 0.0))
        assert store.outbox.counts()["sent"] == number
        assert registry.throttled == 0
        # Four a window, as one is kept in reserve; each outage rests 20 s, and its unit as long.
        windows = number / (LIMIT - 1) + 1
        assert clock.passed_s <= windows * (WINDOW_S + 1) + len(outages) * 80
