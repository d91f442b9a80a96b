"""What the store does today and will not do once its inside is rebuilt; see the design.

Each part goes with the issue that deletes its mechanism.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from kp_langchain import TraceStore
from tests.agents import handler
from tests.store.conftest import LONG_S, _scored, fork
from tests.store.test_files import committed, record

# ------------------------------------------------------------------ forks and links


def test_a_fork_in_the_middle_of_anothers_write_leaves_the_child_free(store):
    store.add(_scored())
    holding, release = threading.Event(), threading.Event()

    def hold():
        with store.database._lock:
            holding.set()
            release.wait(LONG_S)

    holder = threading.Thread(target=hold)
    holder.start()
    assert holding.wait(LONG_S)
    assert fork(lambda: store.add(_scored()) or store.count() == 2) == 0
    release.set()
    holder.join(LONG_S)
    assert store.count() == 2


@pytest.fixture
def path(tmp_path):
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder" / "traces.db"


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be moved there")
def test_a_file_that_is_moved_behind_a_link_is_the_same(path, caplog):
    caplog.set_level(logging.WARNING, "kp_langchain")
    elsewhere = path.parents[1] / "moved.db"
    with TraceStore(path) as store, closing(handler(store=store)) as watching:
        record(watching, 2)
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        record(watching, 3)
        assert committed(elsewhere) == store.count() == 5
        assert "was moved and replaced by a link" in caplog.text
        # SQLite would take the log for one of a file that is put there.
        assert [each.name for each in path.parent.iterdir()] == [path.name]
        number = len(caplog.records)
        path.with_name("link").symlink_to(elsewhere)  # the link is made anew
        path.with_name("link").replace(path)
        record(watching, 1)
        assert (committed(elsewhere), len(caplog.records)) == (6, number)


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be deleted there")
@pytest.mark.parametrize("lost", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_a_log_that_is_deleted_is_made_anew(path, caplog, lost):
    caplog.set_level(logging.WARNING, "kp_langchain")
    with TraceStore(path) as store, closing(handler(store=store)) as watching:
        record(watching, 2)
        for suffix in lost:
            Path(f"{path}{suffix}").unlink()
        record(watching, 3)
        assert committed(path) == store.count() == 5
    (line,) = [one.getMessage() for one in caplog.records]
    assert f"lost its file traces.db{lost[0]}" in line


def test_a_write_that_a_reader_keeps_in_a_log_is_told_to_be_lost(path, caplog, monkeypatch):
    monkeypatch.setattr("kp_langchain.store.sqlite._BUSY_TIMEOUT_S", 0.1)
    with TraceStore(path) as store, closing(handler(store=store)) as watching:
        record(watching, 2)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM runs").fetchone()
            record(watching, 2)
            path.rename(path.parents[1] / "moved.db")
            record(watching, 3)
            assert store.count() == 3
    assert "are lost, because another process keeps reading" in caplog.text
