"""Handlers with a store remember there what novelty is measured against."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import sqlalchemy as sa

from kp_langchain import KPCallbackHandler, Scorer, TraceStore, default_scorer, evaluate_value
from kp_langchain.recording import store_writer
from kp_langchain.scoring import process_scorer
from kp_langchain.store import pending_entries, stored_memory
from kp_langchain.store.remembered import Remembered
from kp_langchain.store.tables import remembered
from tests.agents import agent, call, say
from tests.recording.test_processes import python


class Letters:
    """Counts letters."""

    def embed(self, texts):
        return np.array([[text.count(chr(97 + at)) for at in range(26)] for text in texts], float)


def use_letters() -> None:
    """Let the process's scorer have a small embedder."""
    process_scorer._default_scorer = Scorer(embedder=Letters())


@pytest.fixture(autouse=True)
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_scorer, "_default_scorer", Scorer(embedder=Letters()))


def play(text: str, *handlers: KPCallbackHandler) -> None:
    looking = agent(say(text, call("search", q=text)), say(text))
    looking.invoke({"messages": [("user", text)]}, {"callbacks": list(handlers)})


def novelty(text: str, watching: KPCallbackHandler) -> float:
    play(text, watching)
    assert watching.flush(300)
    return round(watching.last().breakdown.novelty.value, 6)


TEXTS = ("abba", "banana", "cabbage", "banana", "xyz", "abba", "cabbages")
REPLAY = """
from tests.recording.test_remembering import novelty, use_letters
from kp_langchain import KPCallbackHandler
use_letters()
watching = KPCallbackHandler(store=sys.argv[1])
for text in sys.argv[2:]:
    print(novelty(text, watching))
"""


def in_process(url: str, texts: tuple[str, ...]) -> list[float]:
    script = f"sys.argv[1:] = {[url, *texts]!r}\n" + REPLAY
    return [float(line) for line in python(script).stdout.split()]


def test_novelty_is_the_same_with_a_restart_in_between(url):
    whole = [novelty(text, KPCallbackHandler(store=None)) for text in TEXTS]
    assert len(set(whole)) > 3
    assert in_process(url, TEXTS[:3]) + in_process(url, TEXTS[3:]) == whole


def test_what_is_remembered_when_a_script_just_ends_is_kept():
    python(
        """
        from tests.recording.test_remembering import play, use_letters
        from kp_langchain import KPCallbackHandler
        use_letters()
        handler = KPCallbackHandler(store=store)
        for text in ("abba", "banana"):
            play(text, handler)
        """
    )
    with TraceStore("runs.db") as store:
        assert store.remembered.count() == 2
        assert novelty("abba", KPCallbackHandler(store=store)) == 0


def test_handlers_of_one_store_share_a_memory_and_those_of_another_do_not():
    with TraceStore("one.db") as one, TraceStore("other.db") as other:
        play("abba", KPCallbackHandler("finance", store=one))
        assert novelty("abba", KPCallbackHandler("code", store=one)) == 0
        for watching in (KPCallbackHandler(store=other), KPCallbackHandler(store=None)):
            assert novelty("abba", watching) == 0.5


def test_without_a_store_the_memory_is_that_of_evaluate_value(make_trace):
    trace = make_trace(objective="abba")
    evaluate_value(trace)
    with TraceStore("runs.db") as store:
        assert novelty("abba", KPCallbackHandler(store=store)) == 0.5
        assert store.remembered.count() == 1
    watching = KPCallbackHandler(store=None)
    novelty("banana", watching)
    assert watching.last().breakdown.nearest.trace_id == trace.id
    assert default_scorer().score(trace).novelty.value == 0


def test_a_scorer_of_the_user_s_own_keeps_its_memory():
    with TraceStore("runs.db") as store:
        scorer = Scorer(embedder=Letters())
        novelty("abba", KPCallbackHandler(store=store, scorer=scorer))
        assert store.remembered.count() == 0
        assert store.count() == 1
        shared = Scorer(embedder=Letters(), cache=store.novelty_memory())
        novelty("abba", KPCallbackHandler(store=store, scorer=shared))
        assert store.remembered.count() == 1


def test_the_bounds_are_the_settings(monkeypatch):
    monkeypatch.setenv("KP_NOVELTY_MEMORY", "2")
    with TraceStore("runs.db") as store:
        watching = KPCallbackHandler(store=store)
        for text in ("abba", "banana", "cabbage"):
            novelty(text, watching)
        assert novelty("abba", watching) > 0
        assert store.remembered.count() <= 3


@pytest.mark.parametrize("has_store", [True, False])
def test_each_domain_may_have_its_own(monkeypatch, has_store):
    monkeypatch.setenv("KP_NOVELTY_SCOPE", "domain")
    monkeypatch.setattr(process_scorer, "_default_scorer", None)
    monkeypatch.setattr(process_scorer, "Scorer", lambda **more: Scorer(embedder=Letters(), **more))
    with TraceStore("runs.db") as store:
        place = store if has_store else None
        finance, code = (KPCallbackHandler(domain, store=place) for domain in ("finance", "code"))
        assert [novelty("abba", one) for one in (finance, code, finance, code)] == [0.5, 0.5, 0, 0]
        if has_store:
            with store.database.reading() as connection:
                scopes = connection.scalars(sa.select(remembered.c.scope).distinct())
                assert {*scopes} == {"finance", "code"}
        else:
            assert store.remembered.count() == 0


def test_a_withheld_run_is_not_remembered():
    def fails(_: str) -> str:
        raise RuntimeError

    with TraceStore("runs.db") as store:
        play("abba", watching := KPCallbackHandler(store=store, redactor=fails))
        assert watching.flush(300)
        (run,) = store.runs()
        assert run.withheld == "redaction failed"
        assert store.remembered.count() == 0


def test_traces_of_one_run_are_no_precedents_for_each_other():
    with TraceStore("runs.db") as store:
        two = [KPCallbackHandler(domain, store=store) for domain in ("finance", "code")]
        play("abba", *two)
        assert all(one.flush(300) for one in two)
        assert [one.last().breakdown.novelty.value for one in two] == [0.5, 0.5]
        assert store.remembered.count() == 2


def test_a_run_that_is_scored_again_is_no_precedent_for_itself():
    """Its process ended when the trace was remembered and the run was not stored yet."""
    done = python(
        """
        from tests.recording.test_remembering import play, use_letters
        from kp_langchain import KPCallbackHandler
        from kp_langchain.recording.pending_runs import PendingRuns
        PendingRuns.write = lambda self: True
        use_letters()
        def write_draft(run):
            watching._writer.wait()
        watching = KPCallbackHandler(store=store, outcome=write_draft)
        play("abba", watching)
        watching.flush(60)
        print(store.count(), store.unscored.count(), store.remembered.count(), flush=True)
        os._exit(0)
        """
    )
    assert done.stdout.split() == ["0", "1", "1"]
    with TraceStore("runs.db") as store:
        watching = KPCallbackHandler(store=store)
        assert watching.flush(300)
        (run,) = store.runs()
        assert run.breakdown.novelty.value == 0.5
        assert novelty("abba", watching) == 0


@pytest.fixture
def held() -> Iterator[tuple[TraceStore, threading.Event]]:
    """A store whose thread does nothing until the event is set."""
    store, go = TraceStore("held.db"), threading.Event()
    yield store, go
    go.set()
    store.close()


def test_scoring_waits_no_longer_than_the_writer_s_patience(held, monkeypatch, caplog):
    store, go = held
    with TraceStore("held.db") as earlier:
        assert novelty("abba", KPCallbackHandler(store=earlier)) == 0.5
    monkeypatch.setattr(store_writer, "_PATIENCE_S", 0.01)
    scored: list[float] = []
    done = threading.Event()

    def on_scored(run) -> None:
        scored.append(run.breakdown.novelty.value)
        done.set()

    watching = KPCallbackHandler(store=store, on_scored=on_scored)
    watching._writer._worker.submit(go.wait)
    play("abba", watching)
    assert done.wait(300)
    assert scored == [0.5]
    assert "does not answer" in caplog.text
    go.set()
    assert watching.flush(300)
    # The read was only late: it counts from now on.
    assert novelty("abba", watching) == 0
    assert store.remembered.count() == 3


def test_a_memory_that_cannot_be_written_holds_up_no_run(monkeypatch, caplog):
    with TraceStore("runs.db") as store:
        watching = KPCallbackHandler(store=store)
        novelty("abba", watching)
        with store.database.writing() as connection:
            connection.execute(sa.text("ALTER TABLE remembered RENAME TO gone"))
        assert novelty("abba", watching) == 0
        assert novelty("banana", watching) > 0
        stats = watching.stats()
        assert (stats["waiting_to_store"], stats["not_stored"], store.count()) == (0, 0, 3)
        assert not watching._writer.has_failed_writes
        assert "what is remembered for novelty cannot be kept" in caplog.text
        with store.database.writing() as connection:
            connection.execute(sa.text("ALTER TABLE gone RENAME TO remembered"))
        for pending in watching._writer._entries:
            pending.end_pause()
        assert watching.flush(300)
        assert store.remembered.count() == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_goes_on_with_the_window():
    done = python(
        """
        from tests.recording.test_remembering import novelty, use_letters
        from kp_langchain import KPCallbackHandler
        use_letters()
        watching = KPCallbackHandler(store=store)
        novelty("abba", watching)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ok = novelty("abba", watching) == 0 and novelty("xyz", watching) > 0.2
                code = 0 if ok else 2
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(novelty("abba", watching), store.remembered.count())
        print(novelty("xyz", KPCallbackHandler(store=TraceStore("runs.db"))))
        """
    )
    assert done.stdout.split() == ["0", "0.0", "4", "0.0"]


def test_workers_see_what_the_others_remember(monkeypatch):
    monkeypatch.setattr(stored_memory, "_READ_AGAIN_S", 0.0)
    with TraceStore("runs.db") as one, TraceStore("runs.db") as other:
        workers = [KPCallbackHandler(store=store) for store in (one, other)]
        assert novelty("abba", workers[0]) == 0.5
        assert novelty("abba", workers[1]) == 0
        assert novelty("xyz", workers[1]) > 0.2
        assert novelty("xyz", workers[0]) == 0


def test_handlers_made_for_each_run_read_the_store_once(monkeypatch):
    reads = []
    vectors = Remembered.vectors

    def counted(self, *arguments):
        reads.append(arguments)
        return vectors(self, *arguments)

    monkeypatch.setattr(Remembered, "vectors", counted)
    with TraceStore("runs.db") as store:
        for text in ("abba", "banana", "abba"):
            novelty(text, KPCallbackHandler(store=store))
    assert len(reads) == 1


def test_a_store_that_is_released_takes_its_memory_along():
    gc.collect()
    before = len(pending_entries._queues)
    store = TraceStore("runs.db")
    watching = KPCallbackHandler(store=store)
    novelty("abba", watching)
    assert len(pending_entries._queues) == before + 1
    store.close()
    del store, watching
    gc.collect()
    assert len(pending_entries._queues) == before
