"""Stores in other processes: pickled to them, or inherited by a fork."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from kp_langchain.store import TraceStore, default_store

LONGEST_S = 120


class Labelled(TraceStore):
    """A user's own kind of store, with another way to make one and more in it."""

    def __init__(self, label: str, *, folder: Path) -> None:
        super().__init__(folder / f"{label}.db")
        self.label = label
        self.held = [label]

    def describe(self) -> str:
        return f"{self.label}: {self.count()}"


@pytest.fixture(params=["spawn", "fork", "forkserver"])
def method(request: pytest.FixtureRequest) -> str:
    if request.param not in multiprocessing.get_all_start_methods():
        pytest.skip(f"this system starts no process by {request.param}")
    return str(request.param)


@contextmanager
def another_process(method: str) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # for forking beside threads
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            yield pool


def test_another_process_writes_into_the_same_database(url, scored, method):
    with TraceStore(url) as store, another_process(method) as process:
        store.add(scored(1))
        process.submit(TraceStore.add, store, scored(2)).result(LONGEST_S)
        assert process.submit(TraceStore.count, store).result(LONGEST_S) == 2
        runs = process.submit(TraceStore.runs, store).result(LONGEST_S)
        assert [run.objective for run in runs] == ["task 2", "task 1"]
        assert runs[0].trace.task.objective == "task 2"  # read by the store that came with it
        store.add(scored(3))
        assert store.count() == 3


def test_the_default_store_stays_the_one_it_was(tmp_path, scored, monkeypatch, method):
    monkeypatch.setenv("KP_DATABASE_URL", str(tmp_path / "before.db"))
    with TraceStore() as store, another_process(method) as process:
        store.add(scored())
        text = pickle.dumps(store)
        monkeypatch.setenv("KP_DATABASE_URL", str(tmp_path / "after.db"))
        assert pickle.loads(text).location == str(tmp_path / "before.db")  # noqa: S301
        assert process.submit(TraceStore.count, store).result(LONGEST_S) == 1
    assert not (tmp_path / "after.db").exists()


def test_the_shared_store_travels_too(tmp_path, scored, method):
    store = default_store(Path(tmp_path / "shared.db"))
    with another_process(method) as process:
        store.add(scored())
        assert process.submit(TraceStore.count, store).result(LONGEST_S) == 1
    store.close()


def test_all_copies_that_reach_a_process_are_one_store(tmp_path):
    text = pickle.dumps(TraceStore(tmp_path / "x.db"))
    with pickle.loads(text) as first:  # noqa: S301
        assert pickle.loads(text) is first is default_store(tmp_path / "x.db")  # noqa: S301


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch, scored):
    monkeypatch.chdir(tmp_path)
    store = TraceStore(Path("here.db"))
    text = pickle.dumps(store)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pickle.loads(text) as other:  # noqa: S301
        other.add(scored())
    assert (tmp_path / "here.db").exists()


def test_a_subclass_stays_what_it_is(tmp_path, scored, method):
    with Labelled("mine", folder=tmp_path) as store, another_process(method) as process:
        store.add(scored())
        assert process.submit(Labelled.describe, store).result(LONGEST_S) == "mine: 1"
        other = copy.copy(store)
        assert type(other) is Labelled
        assert other.held is store.held
        assert other.describe() == "mine: 1"
        other.close()
        deep = copy.deepcopy(store)
        assert deep.held == store.held
        assert deep.held is not store.held


def test_a_password_travels_and_is_not_shown():
    store = TraceStore("postgresql://me:s3cr%40et@127.0.0.1:1/db")
    other = pickle.loads(pickle.dumps(store))  # noqa: S301
    assert other.database.location.url == "postgresql://me:s3cr%40et@127.0.0.1:1/db"
    assert "s3cr" not in repr(other) + other.location


def test_a_store_that_is_in_use_can_be_pickled(url, scored):
    with TraceStore(url) as store:
        store.add(scored())
        with store.database.writing():
            taken: list[bytes] = []
            other_thread = threading.Thread(target=lambda: taken.append(pickle.dumps(store)))
            other_thread.start()
            other_thread.join(LONGEST_S)
        with pickle.loads(taken[0]) as other:  # noqa: S301
            assert other.count() == 1
        assert store.count() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_inherits_a_store_notices_a_deleted_file(tmp_path, scored):
    with TraceStore(tmp_path / "x.db") as store:
        store.add(scored())
        (tmp_path / "x.db").unlink()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # for forking beside threads
            child = os.fork()
        if child == 0:
            code = 1
            try:
                code = 0 if store.count() == 0 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.add(scored())
        assert store.count() == 1
