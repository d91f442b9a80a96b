"""A database that is deleted, moved, replaced or emptied while in use: noticed, said, gone on with.

Each test records real agents with a handler that writes to the store, or uses the store itself.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from kp_langchain import KPCallbackHandler
from kp_langchain.errors import StoreError
from kp_langchain.store import TraceStore, default_store, shared_stores, sqlite
from tests import agents

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="an open file cannot be deleted there")


# Plays 20 runs, goes on until it is told to stop, and then plays 200 more.
WRITING = """
import sys, threading
from uuid import uuid4
sys.path.insert(0, sys.argv[1])
from tests import agents
handler = agents.handler(store=sys.argv[2])
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()

def play(times):
    for _ in range(times):
        run, tool = uuid4(), uuid4()  # by hand: an agent would take most of the time
        handler.on_chain_start(None, {"input": "q"}, run_id=run)
        handler.on_tool_start({"name": "t"}, "x", run_id=tool, parent_run_id=run)
        handler.on_tool_end("y", run_id=tool)
        handler.on_chain_end({"output": "z"}, run_id=run)
        while not handler.flush(60): pass
    return times

stored = play(20)
print("stored", stored, flush=True)
while not told.is_set():
    stored += play(1)
print("stored", stored + play(200))
"""


def run(handler: KPCallbackHandler, times: int) -> None:
    for _ in range(times):
        agents.searching().invoke(agents.ASK, {"callbacks": [handler]})


def wait_until_stored(handler: KPCallbackHandler) -> None:
    # What a store refused is tried again after pauses, for which flush does not wait.
    until = time.monotonic() + 600
    while not handler.flush(60) or handler.stats()["waiting_to_store"]:
        assert time.monotonic() < until
        time.sleep(0.05)


def record(handler: KPCallbackHandler, times: int) -> None:
    """Have a scripted agent answer so many times, and wait until that is stored."""
    run(handler, times)
    wait_until_stored(handler)


def in_another_process(program: str, *arguments: object) -> str:
    text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def committed(path: Path) -> int:
    """How many runs another process finds there."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, "kp_langchain")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "traces.db"


@pytest.fixture
def store(path: Path):
    with TraceStore(path) as store:
        yield store


@pytest.fixture
def recording(store: TraceStore):
    """A handler whose store has two runs."""
    handler = agents.handler(store=store)
    record(handler, 2)
    assert store.count() == 2
    yield handler
    handler.close()


class TestWhileAHandlerWrites:
    def test_the_file_is_deleted(self, recording, store, path, said):
        path.unlink()
        record(recording, 5)
        assert committed(path) == store.count() == 5
        (line,) = said()
        assert str(path) in line
        assert "was deleted or moved" in line
        assert recording.stats()["not_stored"] == recording.stats()["waiting_to_store"] == 0

    def test_the_file_is_deleted_with_its_log_and_index(self, recording, store, path, said):
        for each in list(path.parent.iterdir()):
            each.unlink()
        record(recording, 5)
        assert committed(path) == store.count() == 5
        assert len(said()) == 1

    def test_the_folder_is_deleted(self, recording, store, path, said):
        shutil.rmtree(path.parent)
        record(recording, 5)
        assert committed(path) == store.count() == 5
        assert len(said()) == 1

    def test_the_folder_is_renamed(self, recording, store, path, said):
        path.parent.rename(path.parent.with_name("moved"))
        record(recording, 5)
        assert committed(path) == store.count() == 5
        assert committed(path.parent.with_name("moved") / path.name) == 2
        assert len(said()) == 1

    def test_the_file_is_moved_without_its_log(self, recording, store, path, said):
        path.rename(path.with_name("moved.db"))
        record(recording, 5)
        assert committed(path) == store.count() == 5
        assert committed(path.with_name("moved.db")) == 2
        assert len(said()) == 1

    def test_another_database_takes_its_place(self, recording, store, path, said, scored):
        with TraceStore(path.with_name("other.db")) as other:
            other.add_many([scored(n) for n in range(10)])
        path.with_name("other.db").replace(path)
        record(recording, 5)
        assert committed(path) == store.count() == 15
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (line,) = said()
        assert "was replaced by another file" in line

    def test_a_link_to_another_database_takes_its_place(self, recording, store, path, said, scored):
        elsewhere = path.parents[1] / "elsewhere" / "real.db"
        with TraceStore(elsewhere) as other:
            other.add(scored())
        path.unlink()
        path.symlink_to(elsewhere)
        record(recording, 5)
        assert committed(elsewhere) == store.count() == 6
        record(recording, 1)
        assert len(said()) == 1

    def test_it_is_moved_and_a_link_to_it_takes_its_place(self, recording, store, path, said):
        elsewhere = path.parent.parent / "moved.db"
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        record(recording, 5)
        assert committed(elsewhere) == store.count() == 7
        (line,) = said()
        assert "was moved and replaced by a link" in line
        # SQLite would take the log for one of a file that is put there.
        assert [each.name for each in path.parent.iterdir()] == [path.name]

    def test_it_is_moved_behind_a_link_while_two_processes_write(self, path):
        """They notice one after the other, and meanwhile both go on."""
        elsewhere = path.parent.parent / "moved.db"
        program = [sys.executable, "-W", "error", "-c", WRITING, str(ROOT), str(path)]
        with ExitStack() as stack:
            writing = [
                stack.enter_context(subprocess.Popen(program, stdin=-1, stdout=-1, text=True))
                for _ in range(2)
            ]
            for each in writing:
                assert each.stdout.readline() == "stored 20\n"
            link = path.parent.parent / "link"
            link.symlink_to(elsewhere)
            os.link(path, elsewhere)
            link.replace(path)  # at once: a process that found no file would begin another
            stored = [int(each.communicate("\n")[0].split()[-1]) for each in writing]
        assert committed(elsewhere) == sum(stored)
        with closing(sqlite3.connect(elsewhere)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    @pytest.mark.parametrize("behind_a_link", [True, False])
    def test_it_is_moved_while_another_connection_reads_it(
        self, path, said, monkeypatch, behind_a_link
    ):
        monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.1)
        elsewhere = path.parent.parent / "moved.db"
        with TraceStore(path) as store, ExitStack() as stack:
            handler = agents.handler(store=store)
            record(handler, 2)
            reader = stack.enter_context(closing(sqlite3.connect(path)))
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM runs").fetchone() == (2,)
            record(handler, 2)
            path.rename(elsewhere)
            if behind_a_link:
                path.symlink_to(elsewhere)
            record(handler, 3)
            assert store.count() == (7 if behind_a_link else 3)
            handler.close()
        is_lost = [
            line for line in said() if "are lost, because another process keeps reading" in line
        ]
        assert len(is_lost) == (0 if behind_a_link else 1)
        if behind_a_link:
            assert committed(elsewhere) == 7

    def test_a_link_to_it_is_made_anew(self, path, said):
        elsewhere = path.parent / "real" / "traces.db"
        TraceStore(elsewhere).count()
        path.symlink_to(elsewhere)
        with TraceStore(path) as store:
            handler = agents.handler(store=store)
            record(handler, 2)
            path.with_name("link").symlink_to(Path("real", "traces.db"))
            path.with_name("link").replace(path)
            record(handler, 3)
            assert committed(elsewhere) == store.count() == 5
            handler.close()
        assert said() == []

    def test_a_link_to_it_leads_to_another_database_now(self, path, said):
        first, second = path.parent / "first.db", path.parent / "second.db"
        for each in (first, second):
            TraceStore(each).count()
        path.symlink_to(first)
        with TraceStore(path) as store:
            handler = agents.handler(store=store)
            record(handler, 2)
            with TraceStore(first) as other:
                assert other.count() == 2
                path.unlink()
                path.symlink_to(second)
                record(handler, 3)
                assert other.count() == committed(first) == 2
            assert committed(second) == store.count() == 3
            handler.close()
        (line,) = said()
        assert "was replaced by another file" in line

    def test_what_is_no_database_takes_its_place(self, recording, store, path, said):
        letter = "Dear reader, this is a letter. " * 100
        path.with_name("letter").write_text(letter)
        path.with_name("letter").replace(path)
        run(recording, 5)
        assert not recording.flush(60)
        assert recording.stats()["waiting_to_store"] == 5
        assert path.read_text() == letter
        assert "was replaced by another file" in said()[0]
        assert "is not a SQLite database" in said()[1]
        with pytest.raises(StoreError, match="is not a SQLite database"):
            store.count()
        path.unlink()
        wait_until_stored(recording)
        assert committed(path) == 5

    def test_the_log_is_deleted(self, recording, store, path, said):
        Path(f"{path}-wal").unlink()
        record(recording, 5)
        assert committed(path) == store.count() == 7
        (line,) = said()
        assert "lost its file traces.db-wal" in line

    def test_the_index_is_deleted(self, recording, store, path, said):
        Path(f"{path}-shm").unlink()
        record(recording, 5)
        assert committed(path) == store.count() == 7
        assert len(said()) == 1

    def test_log_and_index_are_deleted(self, recording, store, path, said):
        Path(f"{path}-wal").unlink()
        Path(f"{path}-shm").unlink()
        record(recording, 5)
        assert committed(path) == store.count() == 7
        assert len(said()) == 1

    @pytest.mark.parametrize(("in_the_log", "left"), [(True, 7), (False, 5)])
    def test_the_file_is_emptied(self, recording, store, path, said, in_the_log, left):
        if not in_the_log:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.truncate(path, 0)
        record(recording, 5)
        assert committed(path) == store.count() == left
        (line,) = said()
        assert "was emptied" in line

    def test_again_and_again(self, recording, path, said):
        for round_ in range(1, 6):
            shutil.rmtree(path.parent)
            record(recording, 3)
            assert committed(path) == 3
            assert len(said()) == round_


class TestOtherUses:
    def test_a_reader_sees_what_lies_there_now(self, store, path, said, scored):
        store.add_many([scored(n) for n in range(3)])
        run = store.runs(limit=1)[0]
        with TraceStore(path.with_name("other.db")) as other:
            other.add(scored(7))
        path.with_name("other.db").replace(path)
        assert store.count() == 1
        assert [one.objective for one in store.runs()] == ["task 7"]
        assert [trace.task.objective for trace in store.traces()] == ["task 7"]
        assert store.get(run.trace_id) is None
        assert store.outbox.counts()["pending"] == 0
        assert store.models.entries() == []
        assert len(said()) == 1

    def test_a_write_into_a_file_that_goes_meanwhile_is_an_error(self, store, path, scored):
        store.count()
        gone = pytest.raises(StoreError, match=r"it was deleted or moved; write it again")
        with gone, store.database.writing():
            path.unlink()
        store.add(scored())
        assert committed(path) == 1

    def test_a_store_that_was_closed_may_find_its_file_gone(self, store, path, said, scored):
        store.add(scored())
        store.close()
        shutil.rmtree(path.parent)
        assert store.count() == 0
        assert said() == []

    def test_another_process_that_also_writes_notices_too(self, path, scored):
        program = """
            import logging
            from kp_langchain.store import TraceStore
            from tests.store.conftest import _scored
            logging.basicConfig(stream=sys.stdout, format="%(message)s")
            store = TraceStore(sys.argv[1])
            store.add(_scored())
            print("ready", flush=True)
            for line in sys.stdin:
                for _ in range(20):
                    store.add(_scored())
                print("done", flush=True)
        """
        text = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(program)
        with subprocess.Popen(
            [sys.executable, "-c", text, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            with TraceStore(path) as store:
                store.add(scored())
                path.unlink()
                other.stdin.write("go\n")
                other.stdin.flush()
                for _ in range(20):
                    store.add(scored())
                # There may be the new one by then.
                assert re.search("was (deleted or moved|replaced by)", other.stdout.readline())
                assert other.stdout.readline() == "done\n"
                assert committed(path) == store.count() == 40
            other.stdin.close()
            assert other.wait(600) == 0
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    def test_the_command_line_reads_what_lies_there_now(self, store, path, scored):
        store.add(scored())
        path.unlink()
        program = """
            from kp_langchain.cli.app import main
            sys.argv = ["kp-langchain", "review", "--json", "--database", sys.argv[1]]
            try:
                main()
            except SystemExit as end:
                print(end.code)
        """
        assert in_another_process(program, path).endswith("1")  # there is no database
        assert not path.exists()
        store.add(scored(5))
        listed = in_another_process(program, path)
        assert "task 5" in listed
        assert "task 0" not in listed


class TestTwoStoresOnOneFile:
    """Closing a descriptor gives up every lock of the process on the file, SQLite's included."""

    def test_the_second_one_does_not_take_the_first_one_s_lock(self, store, path, scored):
        store.add(scored())
        with TraceStore(path) as second:
            assert second.count() == 1
            assert (
                in_another_process(
                    """
                import sqlite3
                connection = sqlite3.connect(sys.argv[1])
                print(connection.execute("SELECT count(*) FROM runs").fetchone()[0])
                connection.close()  # deletes the log, if it looks as if nobody else had it open
                """,
                    path,
                )
                == "1"
            )
            store.add(scored())
            assert committed(path) == 2

    def test_asking_for_the_sender_s_lock_does_not_free_it(self, store, path, scored):
        store.add(scored())
        ask = """
            from kp_langchain.store import TraceStore
            with TraceStore(sys.argv[1]).outbox.sending() as held:
                print(held)
        """
        with store.outbox.sending() as held:
            assert held
            with TraceStore(path) as second, second.outbox.sending() as held_too:
                assert not held_too
            assert in_another_process(ask, path) == "False"
        assert in_another_process(ask, path) == "True"


class TestTheSenderSLock:
    def test_a_sender_notices_that_it_is_no_longer_alone(self, store, path, scored):
        store.add(scored(score=0.9, visibility="network"), registry="https://kp.example")
        unit = store.outbox.next_pending("https://kp.example")
        standing = store.outbox.standing("https://kp.example", "key")
        with store.outbox.sending() as held:
            assert held
            Path(f"{path}-sender").unlink()
            with pytest.raises(StoreError, match=r"traces.db-sender was deleted.*try again"):
                store.outbox.begin(unit, standing, read=unit)
        with store.outbox.sending() as held:
            assert held
            assert store.outbox.begin(unit, standing, read=unit)

    def test_whoever_only_records_is_not_held_up_by_that(self, store, path, scored):
        import threading

        with store.outbox.sending() as held:
            assert held
            Path(f"{path}-sender").unlink()
            recorder = threading.Thread(target=store.add, args=(scored(),))
            recorder.start()
            recorder.join(60)
        assert store.count() == 1


class TestPostgres:
    @pytest.fixture
    def url(self, new_postgres_url):
        return new_postgres_url()

    def test_every_table_is_dropped(self, url, said):
        import psycopg

        with TraceStore(url) as store:
            handler = agents.handler(store=store)
            record(handler, 2)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("DROP SCHEMA public CASCADE")
                connection.execute("CREATE SCHEMA public")
            record(handler, 5)
            handler.close()
            assert store.count() == 5
        assert any("lost its tables" in line for line in said())

    def test_the_database_is_dropped_and_created_anew(self, url, postgres, said):
        import psycopg

        name = url.partition("?")[0].rpartition("/")[2]
        with TraceStore(url) as store:
            handler = agents.handler(store=store)
            record(handler, 2)
            with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
                with pytest.raises(StoreError, match="the server has no such database; create it"):
                    store.count()
                connection.execute(f"CREATE DATABASE {name}")
            record(handler, 5)
            handler.close()
            assert store.count() == 5
        assert any("lost its tables" in line for line in said())

    def test_one_table_is_dropped(self, url, scored):
        import psycopg

        with TraceStore(url) as store:
            store.add(scored())
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("DROP TABLE verdicts")
            with pytest.raises(StoreError, match=r"a table is missing \(.*verdicts.*restore the"):
                store.verdicts("kp:trace:1")
            assert store.count() == 1


class TestSharedStores:
    @pytest.fixture(autouse=True)
    def none_kept_open(self, monkeypatch):
        monkeypatch.setattr(shared_stores, "_recent", type(shared_stores._recent)())

    def opened(self, monkeypatch) -> list[object]:
        from kp_langchain.store import engine

        opened: list[object] = []
        open_database = engine.open_database

        def counting(location: object) -> object:
            opened.append(location)
            return open_database(location)

        monkeypatch.setattr(engine, "open_database", counting)
        return opened

    def test_handlers_made_one_after_another_open_it_once(self, path, monkeypatch):
        import gc

        opened = self.opened(monkeypatch)
        for _ in range(10):
            record(agents.handler(store=path), 1)
            gc.collect()
        assert len(opened) == 1
        assert committed(path) == 10

    def test_so_many_stay_open_and_no_more(self, tmp_path, monkeypatch):
        opened = self.opened(monkeypatch)
        places = [tmp_path / f"{n}.db" for n in range(20)]
        for place in places:
            default_store(place).count()
        assert len(shared_stores._recent) == 16
        default_store(places[-1]).count()
        assert len(opened) == 20
        default_store(places[0]).count()
        assert len(opened) == 21

    def test_one_whose_file_is_gone_is_let_go(self, tmp_path, said):
        default_store(tmp_path / "a" / "x.db").count()
        shutil.rmtree(tmp_path / "a")
        default_store(tmp_path / "b.db").count()
        assert [location.path for location in shared_stores._recent] == [tmp_path / "b.db"]
        assert open_below(tmp_path / "a") == []
        assert said() == []

    def test_one_that_a_handler_uses_tells_of_it(self, path, said):
        handler = agents.handler(store=path)
        record(handler, 1)
        shutil.rmtree(path.parent)
        other = default_store(path.parents[1] / "other.db")
        other.count()
        record(handler, 3)
        assert committed(path) == 3
        assert len(said()) == 1

    def test_it_can_be_closed(self, path):
        store = default_store(path)
        store.count()
        store.close()
        assert open_below(path.parent) == []
        assert default_store(path) is store
        assert store.count() == 0


def open_below(folder: Path) -> list[str]:
    """The files there that this process has open, where the system tells."""
    own = Path("/proc/self/fd")
    links = []
    for each in own.iterdir() if own.exists() else ():
        with suppress(FileNotFoundError):  # closed by now
            links.append(str(each.readlink()))
    return [link for link in links if str(folder) in link]
