"""SQLite alone: files that cannot be used, and files that go or change while they are in use.

What an open store does when its file is deleted, moved, replaced or emptied is recorded with real
agents: it is noticed, said once, and gone on with.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
import sqlite3
import stat
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from kp_langchain import StoreError, TraceStore
from kp_langchain import store as store_package
from kp_langchain.store import connections as sqlite
from kp_langchain.store import default_store
from tests import agents, programs
from tests.store.conftest import LONG_S, Conversation, _scored, fork

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions and open files of POSIX")


def apart(code, *words):
    """What a program in a process of its own prints."""
    done = programs.run("-c", code, *map(str, words), PYTHONPATH=str(programs.ROOT))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def committed(path):
    """How many runs another program finds there, in a sound file."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return connection.execute("SELECT count(*) FROM runs").fetchone()[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "traces.db"


@pytest.fixture
def store(path):
    with TraceStore(path) as store:
        yield store


# ------------------------------------------------------------------ files that cannot be used

LETTER = "Dear reader, this is a letter. " * 100


def test_what_cannot_be_a_database_is_refused_in_one_line_that_names_it(tmp_path):
    (tmp_path / "file").write_text(LETTER)
    for place, message in (
        (tmp_path, "Is a directory"),
        *(
            (place, "give the path of a file in a folder you may write to")
            for place in (
                tmp_path / "file" / "x.db",
                tmp_path / "file" / "deep" / "x.db",
                f"{tmp_path}/x\0.db",
                f"{tmp_path}/\ud800.db",
                tmp_path / ("x" * 5000),
            )
        ),
        (tmp_path / "file", "the file is damaged or no SQLite database; restore it"),
    ):
        with pytest.raises(StoreError) as caught:
            TraceStore(place).count()
        assert message in str(caught.value)
        assert TraceStore(place).location in str(caught.value)
        assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == LETTER
    (tmp_path / "empty.db").touch()
    with TraceStore(tmp_path / "empty.db") as store:
        assert store.count() == 0


def test_a_file_that_another_program_damaged_is_told_with_what_to_do(store, path):
    store.add(*(_scored(n, content="word " * 400) for n in range(60)))
    store.close()
    whole = path.read_bytes()
    for damaged in (whole[:40_000], whole[:4096] + os.urandom(60_000) + whole[64_096:]):
        path.with_name("y.db").write_bytes(damaged)
        message = "the file is damaged or no SQLite database; restore it"
        with TraceStore(path.with_name("y.db")) as other, pytest.raises(StoreError, match=message):
            list(other.traces())
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE bodies SET trace = '{\"steps\": 1}'")
    (run,) = store.runs(limit=1)
    for read in (lambda: run.trace, lambda: next(store.traces())):
        with pytest.raises(StoreError, match="cannot be read back"):
            read()
    with pytest.raises(StoreError, match=run.trace_id):
        _ = run.trace
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE bodies SET trace = 'not JSON'")
    with pytest.raises(StoreError, match="cannot be read back"):
        next(store.traces())
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DROP TABLE scores")
    with pytest.raises(StoreError, match=r"cannot read the trace store.*no such table"):
        store.runs()
    with pytest.raises(StoreError, match="cannot write the trace store"):
        store.add(_scored())


def test_a_lock_that_is_never_released_ends_the_waiting(store, path, monkeypatch):
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.01)
    store.add(_scored())
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process has been writing to it"):
            store.add(_scored())
        other.execute("ROLLBACK")
    store.add(_scored())
    assert store.count() == 2


FULL = """
import resource, sys
from kp_langchain import StoreError, TraceStore
from tests.store.conftest import _scored
store = TraceStore(sys.argv[1])
store.add(_scored())
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.add(*(_scored(n, content="word " * 400) for n in range(200)))
except StoreError as error:
    print(error)
print(store.count())
"""
FORBIDDEN = """
import os, sys
from kp_langchain import StoreError, TraceStore
store = TraceStore(sys.argv[1])
if os.geteuid() == 0:  # whom permissions do not stop
    os.setgid(65534)
    os.setuid(65534)
try:
    store.count()
except StoreError as error:
    print(error)
"""
KILLED = """
import os, sys
from kp_langchain import TraceStore
from tests.store.conftest import _scored
store = TraceStore(sys.argv[1])
store.add(_scored())
with store.database.writing() as connection:
    connection.exec_driver_sql("DELETE FROM runs")
    os.kill(os.getpid(), 9)
"""


def test_a_full_disk_undoes_the_whole_batch_and_a_killed_writer_leaves_nothing_half(tmp_path):
    message, count = apart(FULL, tmp_path / "x.db").splitlines()
    assert re.search(r"cannot write .*(is full|disk I/O error); make room and try again", message)
    assert count == "1"
    programs.run("-c", KILLED, str(tmp_path / "y.db"), PYTHONPATH=str(programs.ROOT))
    for name in ("x.db", "y.db"):
        with TraceStore(tmp_path / name) as store:
            assert store.count() == 1
            store.add(_scored())


def test_what_may_not_be_written_is_refused():
    give = "give the path of a file in a folder you may write to"
    for file_mode, folder_mode, expected in (
        (None, 0o555, give), (0o444, 0o755, give),
        (0o666, 0o555, give),
    ):  # fmt: skip
        # Not in pytest's folder, which nobody else may enter.
        with tempfile.TemporaryDirectory(prefix="kp-store-") as name:
            path = Path(name, "x.db")
            if file_mode is not None:
                with TraceStore(path) as store:
                    store.count()
                path.chmod(file_mode)
            path.parent.chmod(folder_mode)
            try:
                message = apart(FORBIDDEN, path)
            finally:
                path.parent.chmod(0o755)
        assert message.startswith(f"cannot open the trace store at {path}: ")
        assert message.endswith(expected)


def test_only_the_owner_may_read_it(tmp_path):
    umask = os.umask(0)
    try:
        with TraceStore(tmp_path / "deep" / "folder" / "traces.db") as store:
            store.add(_scored())
            folder = tmp_path / "deep" / "folder"
            assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)} == {0o700}
            modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()}
    finally:
        os.umask(umask)
    names = ["traces.db", "traces.db-wal", "traces.db-shm"]
    assert modes == dict.fromkeys(names, 0o600)


# ------------------------------------------------------------------ files that go or change


@pytest.fixture
def said(caplog):
    """The warnings of this package so far."""
    caplog.set_level(logging.WARNING, "kp_langchain")
    return lambda: [one.getMessage() for one in caplog.records if one.name == "kp_langchain"]


def run(handler, times):
    for _ in range(times):
        agents.searching().invoke(agents.ASK, {"callbacks": [handler]})


def wait_until_stored(handler):
    # What a store refused is tried again after pauses, for which flush does not wait.
    until = time.monotonic() + LONG_S
    while not handler.flush(60) or handler.stats()["waiting_to_store"]:
        assert time.monotonic() < until
        time.sleep(0.05)


def record(handler, times):
    run(handler, times)
    wait_until_stored(handler)


@pytest.fixture
def recording(store):
    """A handler whose store has two runs."""
    handler = agents.handler(store=store)
    record(handler, 2)
    yield handler
    handler.close()


def replace_by_another(path):
    with TraceStore(path.with_name("other.db")) as other:
        other.add(*(_scored(n) for n in range(10)))
    path.with_name("other.db").replace(path)


CHANGES = {
    "the file is deleted": (lambda path: path.unlink(), 3),
    "the folder is deleted": (lambda path: shutil.rmtree(path.parent), 3),
    "it is moved without its log": (lambda path: path.rename(path.with_name("moved.db")), 3),
    "another one takes its place": (replace_by_another, 13),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_becomes_of_the_file_is_said_once_and_gone_on_with(
    recording, store, path, said, change
):
    act, left = CHANGES[change]
    act(path)
    record(recording, 3)
    assert committed(path) == store.count() == left
    (line,) = said()
    assert f"{path} was deleted, moved or replaced while it was in use" in line
    stats = recording.stats()
    assert stats["not_stored"] == stats["waiting_to_store"] == 0
    shutil.rmtree(path.parent)  # and once more
    record(recording, 2)
    assert (committed(path), len(said())) == (2, 2)


WRITING = """
import logging, sys
from kp_langchain import TraceStore
from tests.store.conftest import _scored
logging.basicConfig(stream=sys.stdout, format="%(message)s")
store = TraceStore(sys.argv[1])
store.add(_scored())
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(20):
        store.add(_scored())
    print("done", flush=True)
store.close()
"""
REVIEWING = """
import sys
from kp_langchain.cli.app import main
sys.argv = ["kp-langchain", "review", "--json", "--database", sys.argv[1]]
try:
    main()
except SystemExit as end:
    print(end.code)
"""


def test_other_processes_notice_too(store, path):
    other = Conversation(WRITING, str(path))
    assert other.line() == "ready"
    store.add(_scored())
    path.unlink()
    assert apart(REVIEWING, path).endswith("1")  # there is no database
    assert not path.exists()
    other.say()
    for _ in range(20):
        store.add(_scored(5))
    # There may be the new one by then.
    assert "was deleted, moved or replaced" in other.line()
    assert other.line() == "done"
    assert committed(path) == store.count() == 40
    other.end()
    assert "task 5" in apart(REVIEWING, path)

    def child() -> bool:
        path.unlink()
        return store.count() == 0

    assert fork(child) == 0  # with a store that it inherits
    store.add(_scored())
    assert store.count() == 1


COUNTING = """
import sqlite3, sys
from kp_langchain import TraceStore
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
connection.close()  # deletes the log, if it looks as if nobody else had it open
with TraceStore(sys.argv[1]) as store, store.outbox.sending() as lease:
    print(store.count(), lease is not None)
"""


def test_a_second_store_on_the_file_leaves_the_locks_of_the_first(store, path):
    """Closing a descriptor gives up every lock of the process on the file, SQLite's included."""
    store.add(_scored())
    with store.database.reading(), store.outbox.sending(lasts_s=LONG_S) as first:
        with TraceStore(path) as second, second.outbox.sending() as also:
            assert (first is not None, also, second.count()) == (True, None, 1)
        assert apart(COUNTING, path).split() == ["1", "1", "False"]
        assert path.with_name("traces.db-wal").exists()
    assert apart(COUNTING, path).split() == ["1", "1", "True"]
    store.add(_scored())
    assert committed(path) == 2


# ------------------------------------------------------------------ stores that handlers share


def open_below(folder):
    """The files there that this process has open, where the system tells."""
    own = Path("/proc/self/fd")
    links = [os.path.realpath(each) for each in (own.iterdir() if own.exists() else ())]
    return [link for link in links if str(folder) in link]


def test_handlers_made_one_after_another_open_it_once_until_it_is_closed(
    tmp_path, path, monkeypatch
):
    monkeypatch.setattr(store_package, "_stores", {})
    record(agents.handler(store=path), 1)
    opened = open_below(path.parent)
    for _ in range(3):
        record(agents.handler(store=path), 1)
        gc.collect()
        assert sorted(open_below(path.parent)) == sorted(opened)
    assert committed(path) == 4
    shutil.rmtree(path.parent)
    default_store(tmp_path / "b.db").count()
    for number in range(20):
        default_store(tmp_path / "many" / f"{number}.db").count()
    assert len({link.split(".db")[0] for link in open_below(tmp_path / "many")}) == 16
    store = default_store(tmp_path / "b.db")
    assert store.count() == 0
    store.close()
    assert not [link for link in open_below(tmp_path) if "b.db" in link]
    assert default_store(tmp_path / "b.db") is store
    assert store.count() == 0
    store.close()
