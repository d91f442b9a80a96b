"""A function of the caller's that hangs costs its own part, and holds up nobody else."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kp_langchain import ScoredTrace, Scorer, TraceStore
from kp_langchain.recording.time_limit import MAX_HANGING
from kp_langchain.store.database import Database
from kp_langchain.store.location import Location
from tests.agents import ASK, handler, searching


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Ends whatever hangs."""
    end = threading.Event()
    yield end
    end.set()


class _HangingEmbedder:
    def __init__(self, end: threading.Event) -> None:
        self._end = end

    def embed(self, texts: Any) -> Any:
        self._end.wait()
        raise OSError


class _HangingMapping(dict[str, Any]):
    def __init__(self, end: threading.Event) -> None:
        super().__init__(success=True)
        self._end = end

    def __iter__(self) -> Any:
        self._end.wait()
        return super().__iter__()


class _HangingScorer(Scorer):
    end: threading.Event

    def evaluate(self, *_: Any, **__: Any) -> Any:
        self.end.wait()


def _scorer(end: threading.Event) -> Scorer:
    scorer = _HangingScorer(embedder=None)
    scorer.end = end
    return scorer


HANGING: dict[str, tuple[Callable[[threading.Event], dict[str, Any]], str, str]] = {
    "outcome": (
        lambda end: {"outcome": lambda _: end.wait() and None},
        "outcome_errors",
        "<lambda>",
    ),
    "what outcome returns": (
        lambda end: {"outcome": lambda _: _HangingMapping(end)},
        "outcome_errors",
        "<lambda>",
    ),
    "on_scored": (lambda end: {"on_scored": lambda _: end.wait()}, "on_scored_errors", "<lambda>"),
    "redactor": (
        lambda end: {"redactor": lambda text: end.wait() and text},
        "redaction_errors",
        "took longer",
    ),
    "scorer": (lambda end: {"scorer": _scorer(end)}, "scorer_errors", "_HangingScorer"),
    "embedder": (
        lambda end: {"scorer": Scorer(embedder=_HangingEmbedder(end))},
        "scorer_errors",
        "Scorer",
    ),
}


@pytest.mark.parametrize("what", HANGING)
def test_what_hangs_is_left_behind_named_and_counted(
    what: str,
    end: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "0.05")
    options, count, name = HANGING[what]
    with TraceStore("runs.db") as store:
        watching = handler(store=store, **options(end))
        for _ in range(MAX_HANGING + 2):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(300)
        stats = watching.stats()
        assert stats["scored"] == stats["runs"] == MAX_HANGING + 2
        assert stats[count] == MAX_HANGING + 2
        assert store.count() == MAX_HANGING + 2
    warned = [record.getMessage() for record in caplog.records]
    assert any(name in line and "took longer than 0.05 s" in line for line in warned)


def test_what_comes_too_late_is_not_counted_again(
    end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "0.05")
    asked: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

    def junk(_: object) -> object:
        asked.put(threading.current_thread())
        end.wait()
        return "junk"

    watching = handler(store=None, outcome=junk)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush(300)
    end.set()
    thread = asked.get(timeout=300)  # on a busy machine it begins after its time
    thread.join(300)
    assert not thread.is_alive()
    assert watching.stats()["outcome_errors"] == 1


@pytest.mark.parametrize("what", HANGING)
def test_what_hangs_stops_no_other_handler(what: str, end: threading.Event) -> None:
    options, _, _ = HANGING[what]
    with TraceStore("hung.db") as hung, TraceStore("runs.db") as store:
        watching = handler(store=hung, **options(end))  # for up to 10 s each
        others = [
            handler(store=store),
            handler(store=hung),
            handler(),
            handler(outcome=lambda _: 0.5),
        ]
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching, *others]})
        for other in others:
            assert other.flush(300)
            assert other.stats()["scored"] == 3
        assert watching.stats()["scored"] < 3
        end.set()
        assert watching.flush(300)
        assert watching.stats()["scored"] == 3


class FrozenDatabase(Database):
    """Answers nothing until it is told to."""

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self.go = threading.Event()
        self.asked = threading.Event()

    @contextmanager
    def writing(self) -> Iterator[Any]:
        self.asked.set()
        self.go.wait()
        with super().writing() as connection:
            yield connection


def test_a_store_that_does_not_answer_stops_no_other_handler() -> None:
    frozen = TraceStore("frozen.db")
    database = frozen._database = FrozenDatabase(frozen.database.location)
    with TraceStore("runs.db") as store:
        watching = handler(store=frozen)
        others = [handler(store=store), handler()]
        try:
            for _ in range(3):
                searching().invoke(ASK, {"callbacks": [watching, *others]})
            assert database.asked.wait(300)
            for other in others:
                assert other.flush(300)
                assert other.stats()["scored"] == 3
            assert not watching.flush(0.01)
        finally:
            database.go.set()
        assert watching.flush(300)
        assert frozen.count() == 3
        frozen.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_waits_for_no_function_of_the_callers(
    end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def hang(_: ScoredTrace) -> None:
        begun.set()
        end.wait()

    watching = handler(on_scored=hang)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert begun.wait(300)
    monkeypatch.setattr("kp_langchain._forksafe._FORK_PATIENCE_S", 3600)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
