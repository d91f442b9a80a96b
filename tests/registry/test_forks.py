"""A fork in the middle of a request."""

from __future__ import annotations

import threading

from kp_langchain import Registry, TraceStore
from kp_langchain.registry.sender import Sender
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY
from tests.store.conftest import fork


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
