"""The outbox: in the transaction of the run, one sender at a time, free when its holder dies."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kp_langchain import ConfigError, StoreError, TraceStore
from kp_langchain.store import Standing

REGISTRY = "https://registry.example.org"
ROOT = Path(__file__).resolve().parents[2]


def test_what_passed_enters_with_its_run(url, scored):
    one = scored(visibility="network")
    with TraceStore(url) as store:
        store.add(one, registry=REGISTRY)
        found = store.outbox.get(one.trace.id)
        assert found is not None
        assert (found.state, found.registry, found.attempts) == ("pending", REGISTRY, 0)
        assert json.loads(found.body) == json.loads(one.trace.model_dump_json())
        assert found.idempotency_key == hashlib.sha256(found.body.encode()).hexdigest()


@pytest.mark.parametrize(
    ("options", "registry"),
    [
        ({"visibility": "private"}, REGISTRY),
        ({"visibility": "network", "score": 0.1}, REGISTRY),
        ({"visibility": "network"}, None),
    ],
    ids=["private", "below the threshold", "no registry"],
)
def test_what_must_stay_does_not_enter(url, scored, options, registry):
    with TraceStore(url) as store:
        store.add(scored(**options), registry=registry)
        assert store.count() == 1
        assert store.outbox.entries() == []


@pytest.mark.parametrize("visibility", ["org", "network"])
def test_what_only_has_its_secrets_redacted_never_enters(url, scored, visibility):
    with TraceStore(url) as store:
        one = scored(visibility=visibility)
        one.trace.metadata.privacy_level = "private"
        store.add(one, registry=REGISTRY)
        assert store.outbox.entries() == []
        for success in (False, True):
            store.report_outcome(one.trace.id, success=success, registry=REGISTRY)
            assert store.outbox.entries() == []


def test_a_write_that_fails_leaves_neither(url, scored):
    bad = scored(1, visibility="org")
    bad.trace.outcome.__dict__["confidence"] = None
    with TraceStore(url) as store:
        with pytest.raises(StoreError):
            store.add_many([scored(0, visibility="org"), bad], registry=REGISTRY)
        assert store.count() == 0
        assert sum(store.outbox.counts().values()) == 0


def test_adding_a_run_again_does_not_send_it_again(url, scored):
    one = scored(visibility="network")
    with TraceStore(url) as store:
        store.add(one, registry=REGISTRY)
        found = store.outbox.get(one.trace.id)
        store.outbox.save(replace(found, state="sent", registry_id="r1", body=None))
        store.add(one, registry=REGISTRY)
        assert store.outbox.counts()["sent"] == 1
        assert store.outbox.get("r1").trace_id == one.trace.id
        assert store.outbox.next_pending(REGISTRY) is None


def test_the_one_that_is_due_first_is_next(url, scored):
    runs = [scored(number, visibility="org") for number in range(3)]
    with TraceStore(url) as store:
        for run in runs:
            store.add(run, registry=REGISTRY)
        store.add(scored(9, visibility="org"), registry="https://other.example.org")
        first = store.outbox.next_pending(REGISTRY)
        assert first.trace_id == runs[0].trace.id
        later = first.due_at + timedelta(hours=1)
        store.outbox.save(
            replace(first, due_at=later, reason="\x00 no", issues=({"path": "\x00"},))
        )
        assert store.outbox.next_pending(REGISTRY).trace_id == runs[1].trace.id
        back = store.outbox.get(first.trace_id)
        assert (back.due_at, back.reason, list(back.issues)) == (
            later, "\ufffd no", [{"path": "\ufffd"}]
        )  # fmt: skip


def test_entries_are_listed_newest_first_without_bodies(url, scored):
    with TraceStore(url) as store:
        for number in range(4):
            store.add(scored(number, visibility="org"), registry=REGISTRY)
        listed = store.outbox.entries(limit=2, offset=1)
        queued = [one.queued_at for one in store.outbox.entries()]
        assert queued == sorted(queued, reverse=True)
        assert [one.body for one in listed] == [None, None]
        assert store.outbox.entries(state="dead") == []
        with pytest.raises(ConfigError, match="'lost' is not a state"):
            store.outbox.entries(state="lost")
        with pytest.raises(ConfigError, match="must not be negative"):
            store.outbox.entries(limit=-1)


def test_an_id_that_may_mean_several_is_an_error(url, scored):
    with TraceStore(url) as store:
        for number in range(2):
            store.add(
                scored(
                    visibility="org", trace_id=f"kp:trace:{'a' * 8}-0000-4000-8000-{number:012}"
                ),
                registry=REGISTRY,
            )
        with pytest.raises(StoreError, match="may mean several"):
            store.outbox.get("aaaa")
        assert store.outbox.get("bbbb") is None


def test_a_standing_is_what_was_saved(url):
    now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    standing = Standing(
        REGISTRY, "key", now, 60.0, "asked to wait", False, 3, 7, 30, now, (now.isoformat(),)
    )
    with TraceStore(url) as store:
        assert store.outbox.standing(REGISTRY, "key") == Standing(REGISTRY, "key")
        store.outbox.save(standing)
        store.outbox.save(replace(standing, failures=4))
        back = store.outbox.standing(REGISTRY, "key")
        assert replace(back, throttled_at=tuple(back.throttled_at)) == replace(standing, failures=4)
        assert store.outbox.standing(REGISTRY, "other key").failures == 0


def test_there_is_one_sender_at_a_time(url):
    with TraceStore(url) as store, TraceStore(url) as other:
        with store.outbox.sending() as held, other.outbox.sending() as also:
            assert (held, also) == (True, False)
        with other.outbox.sending() as held:
            assert held


def test_a_waiting_sender_gets_its_turn(url):
    turn = threading.Event()
    got = []

    def wait_for_it() -> None:
        with TraceStore(url) as other, other.outbox.sending(300.0) as held:
            got.append(held)

    with TraceStore(url) as store:
        with store.outbox.sending() as held:
            waiting = threading.Thread(target=wait_for_it)
            waiting.start()
            turn.set()
            assert held
        waiting.join(300)
    assert got == [True]


def test_writing_goes_on_while_somebody_sends(url, scored):
    with TraceStore(url) as store, TraceStore(url) as other, store.outbox.sending():
        other.add(scored(visibility="org"), registry=REGISTRY)
        assert other.outbox.counts()["pending"] == 1


HOLD = """
import sys, time
from kp_langchain import TraceStore
with TraceStore(sys.argv[1]) as store, store.outbox.sending() as held:
    print(held, flush=True)
    time.sleep(600)
"""


def test_a_killed_sender_leaves_the_way_free(url):
    with TraceStore(url) as store:
        store.count()
        with subprocess.Popen(
            [sys.executable, "-c", HOLD, url], stdout=subprocess.PIPE, text=True, cwd=ROOT
        ) as holder:
            assert holder.stdout.readline() == "True\n"
            with store.outbox.sending() as held:
                assert not held
            holder.send_signal(signal.SIGKILL)
            holder.wait()
        with store.outbox.sending(300.0) as held:
            assert held


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_inherit_the_senders_place(url):
    with TraceStore(url) as store:
        with store.outbox.sending() as held:
            assert held
            child = os.fork()
            if child == 0:
                with TraceStore(url) as own, own.outbox.sending() as also:
                    os._exit(7 if also else 0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with store.outbox.sending() as held:
            assert held


def test_files_and_folders_are_private(tmp_path, scored):
    path = tmp_path / "new" / "deep" / "traces.db"
    umask = os.umask(0)
    try:
        with TraceStore(path) as store:
            store.add(scored(visibility="org"), registry=REGISTRY)
            with store.outbox.sending():
                modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert set(modes) == {"traces.db", "traces.db-wal", "traces.db-shm", "traces.db-sender"}
    assert set(modes.values()) == {0o600}
    assert {folder.stat().st_mode & 0o777 for folder in (path.parent, path.parents[1])} == {0o700}


APART = """
import sys
from kp_langchain import TraceStore
with TraceStore(sys.argv[1]) as store:
    print(store.count())
"""


def test_a_second_store_on_the_file_leaves_the_first_ones_locks(tmp_path, scored):
    """Closing any descriptor of a file drops the locks that this process has on it."""
    path = tmp_path / "traces.db"
    with TraceStore(path) as first, first.database.reading():
        first.add(scored(1))
        with TraceStore(path) as second:
            second.add(scored(2))
        # The last to close a database removes its log, if it takes itself for that.
        done = subprocess.run(
            [sys.executable, "-c", APART, str(path)], cwd=ROOT, capture_output=True, text=True
        )
        assert done.stdout == "2\n", done.stderr
        assert path.with_name("traces.db-wal").exists()
        with TraceStore(path) as third:
            third.add(scored(3))
        assert first.count() == 3


def test_a_second_store_on_the_file_leaves_the_senders_place(tmp_path):
    path = tmp_path / "traces.db"
    ask = (
        "import sys; from kp_langchain import TraceStore\n"
        "with TraceStore(sys.argv[1]).outbox.sending() as held: print(held)"
    )
    with (
        TraceStore(path) as first,
        TraceStore(path) as second,
        first.outbox.sending() as held,
        second.outbox.sending() as also,
    ):
        assert (held, also) == (True, False)
        done = subprocess.run(
            [sys.executable, "-c", ask, str(path)], cwd=ROOT, capture_output=True, text=True
        )
        assert done.stdout == "False\n", done.stderr
