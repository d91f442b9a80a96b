"""Verdicts reported through the handler: while a run is under way, right after it, and late."""

from __future__ import annotations

import gc
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import weakref
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.tools import tool

from kp_langchain import (
    ConfigError,
    DomainPolicy,
    FinishedRun,
    KPCallbackHandler,
    Registry,
    Scorer,
    TraceStore,
)
from kp_langchain.calibration.features import FEATURES_VERSION, features_of
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.gate import ScoredTrace
from kp_langchain.recording import pending_verdicts
from kp_langchain.store.verdicts import judge_stored
from tests.agents import ASK, agent, call, handler, run, say, searching
from tests.loopback_registry import LoopbackRegistry

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(folder: Path) -> TraceStore:
    return TraceStore(folder / "traces.db")


def test_a_verdict_right_after_the_run_needs_no_flush(store: TraceStore) -> None:
    watching = handler(store=store)
    run_id = uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    watching.report_outcome(run_id, success=False, note="wrong town")
    assert watching.flush(300)
    stored = store.get(str(run_id))
    assert stored is not None
    assert (stored.success, stored.confidence, stored.confidence_source) == (False, 0.0, "reported")
    (verdict,) = store.verdicts(stored.trace_id)
    assert (verdict.success, verdict.note) == (False, "wrong town")
    assert watching.stats()["rescored"] == 1


def test_a_verdict_while_the_run_is_under_way_counts_when_it_is_scored(store: TraceStore) -> None:
    watching = handler(store=store, outcome=lambda _: True)
    run_id = uuid4()

    @tool
    def look(q: str) -> str:
        """Look."""
        watching.report_outcome(str(run_id), success=False, note="seen at once")
        return q

    looking = agent(say("I look.", call("look", q="a")), say("It is Paris."), tools=(look,))
    looking.invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    scored = watching.last(300)
    assert scored is not None
    assert (scored.trace.metadata.success, scored.trace.outcome.confidence) == (False, 0.0)
    (verdict,) = store.verdicts(scored.trace.id)
    assert (verdict.source, verdict.note) == ("reported", "seen at once")
    assert watching.stats()["rescored"] == 0


def test_what_passes_by_a_verdict_is_sent_and_what_fails_is_deleted(store: TraceStore) -> None:
    just_above = run(searching()).breakdown.total + 0.01
    policy = DomainPolicy(threshold=just_above, visibility="network")
    with LoopbackRegistry() as registry:
        watching = handler(
            store=store, policy=policy, registry=Registry(registry.url, api_key="kp_key")
        )
        run_id = uuid4()
        searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
        first = watching.last(300)
        assert first is not None
        assert first.decision == "below_threshold"
        watching.report_outcome(run_id, success=True)
        assert watching.send(300)
        assert store.outbox.counts()["sent"] == 1
        assert list(registry.units) == [first.trace.id]
        watching.report_outcome(first.trace.id, success=False)
        assert watching.send(300)
        assert store.outbox.counts()["withdrawn"] == 1
        assert registry.units == {}
        watching.report_outcome(first.trace.id, success=True)
        assert watching.send(300)
        assert list(registry.units) == [first.trace.id]


def test_an_unknown_run_is_counted_and_told_once(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    watching = handler(store=store)
    with caplog.at_level(logging.WARNING, "kp_langchain"):
        for _ in range(3):
            watching.report_outcome(uuid4(), success=True)
        assert watching.flush(300)
    assert watching.stats()["verdict_errors"] == 3
    assert watching.stats()["waiting_to_store"] == 0


def test_a_verdict_waits_for_a_store_that_cannot_be_written(store: TraceStore) -> None:
    watching = handler(store=store)
    run_id = uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    assert watching.flush(300)
    with closing(sqlite3.connect(store.location)) as other:
        other.execute("ALTER TABLE verdicts RENAME TO gone")
        other.commit()
        watching.report_outcome(run_id, success=False)
        assert not watching.flush(300)
        assert watching.stats()["waiting_to_store"] == 1
        other.execute("ALTER TABLE gone RENAME TO verdicts")
        other.commit()
    assert watching.flush(300)
    assert watching.stats()["waiting_to_store"] == 0
    assert [verdict.success for verdict in store.verdicts(str(store.runs()[0].trace_id))] == [False]


def test_a_verdict_that_can_never_be_written_holds_up_no_other(store: TraceStore) -> None:
    watching = handler(store=store)
    ids = [uuid4(), uuid4()]
    for run_id in ids:
        searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    assert watching.flush(300)
    with closing(sqlite3.connect(store.location)) as other:
        other.execute("UPDATE runs SET body = '{}' WHERE run_id = ?", (str(ids[0]),))
        other.commit()
    for run_id in ids:
        watching.report_outcome(run_id, success=False)
    for _ in range(3):
        assert not watching.flush(300)
    assert [store.get(str(run_id)).success for run_id in ids] == [True, False]
    assert watching.stats()["waiting_to_store"] == 1
    with closing(sqlite3.connect(store.location)) as other:
        other.execute("DELETE FROM runs")
        other.commit()
    assert watching.flush(300)


def test_each_verdict_has_one_fate_if_too_many_wait(
    store: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_write = threading.Event(), threading.Event()

    def judge_slowly(*args: Any, **kwargs: Any) -> list[ScoredTrace]:
        begun.set()
        assert may_write.wait(60)
        return judge_stored(*args, **kwargs)

    monkeypatch.setenv("KP_MAX_QUEUE", "2")
    watching = handler(store=store)
    run_id = uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    assert watching.flush(300)
    monkeypatch.setattr(pending_verdicts, "judge_stored", judge_slowly)
    for at in range(5):
        watching.report_outcome(run_id, success=bool(at % 2))
        assert begun.wait(60)
    while watching.stats()["not_stored"] < 2:  # the handler's threads hand them on
        may_write.wait(0.01)
    assert watching._writer is not None
    assert watching._writer.waiting == 3  # the one that is being written, and two behind it
    may_write.set()
    assert watching.flush(300)
    stats = watching.stats()
    assert (stats["waiting_to_store"], stats["not_stored"], stats["rescored"]) == (0, 2, 3)


def test_no_number_that_is_reported_costs_the_run(store: TraceStore) -> None:
    watching = handler(store=store, outcome=lambda _: {"success": False, "confidence": 10**400})
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.last(300) is not None
    assert (watching.stats()["failed"], watching.stats()["outcome_errors"]) == (0, 1)


def test_a_wrong_value_is_told_to_the_caller() -> None:
    with pytest.raises(ConfigError, match="store=None"):
        handler().report_outcome(uuid4(), success=True)
    with pytest.raises(ConfigError, match="says nothing"):
        handler().report_outcome(uuid4())


def test_notes_go_through_the_caller_s_redactor(store: TraceStore) -> None:
    watching = handler(store=store, redactor=lambda text: text.replace("Ada", "[name]"))
    run_id = uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    watching.report_outcome(run_id, success=True, note="Ada checked it")
    assert watching.flush(300)
    (verdict,) = store.verdicts(store.runs()[0].trace_id)
    assert verdict.note == "[name] checked it"


def test_notes_that_come_past_the_handler_go_through_its_redactor_once(store: TraceStore) -> None:
    texts: list[str] = []

    def redact(text: str) -> str:
        texts.append(text)
        return text.replace("Ada", "[name]")

    watching = handler(store=store, redactor=redact)
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(300)
    assert scored is not None
    for other in (store, TraceStore(store.location)):
        texts.clear()
        other.report_outcome(scored.trace.id, success=True, note="Ada checked it")
        assert texts == ["Ada checked it"]
    assert [verdict.note for verdict in store.verdicts(scored.trace.id)] == [
        "[name] checked it",
        "[name] checked it",
    ]


def test_a_run_that_is_scored_again_is_delivered_like_a_new_one(store: TraceStore) -> None:
    scored: list[ScoredTrace] = []
    watching = handler(store=store, on_scored=scored.append)
    run_id = uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    assert watching.flush(300)
    watching.report_outcome(run_id, success=False, note="wrong town")
    assert watching.flush(300)
    first, again = scored
    assert (first.previous, first.run_id, again.run_id) == (None, run_id, run_id)
    assert again.previous is not None
    assert again.previous.breakdown == first.breakdown
    assert again.trace.id == first.trace.id
    assert (again.trace.metadata.success, again.verdict.note) == (False, "wrong town")
    assert again.breakdown.total < first.breakdown.total
    assert watching.last(300) is first
    watching.report_outcome(run_id, success=True)
    assert watching.flush(300)
    assert [one.trace.metadata.success for one in scored] == [True, False, True]


def test_on_scored_may_report_an_outcome_of_each_run(store: TraceStore) -> None:
    scored: list[ScoredTrace] = []

    def judge(run: ScoredTrace) -> None:
        scored.append(run)
        watching.report_outcome(run.trace.id, success=False)

    watching = handler(store=store, on_scored=judge)
    searching().invoke(ASK, {"callbacks": [watching]})
    while watching.flush(300) and watching.stats()["rescored"] < 2:
        pass  # a verdict of `judge` is reported while its run is delivered
    assert watching.flush(300)
    assert [one.trace.metadata.success for one in scored] == [True, False]
    assert len(store.verdicts(scored[0].trace.id)) == 2


def test_a_handler_is_freed_although_its_redactor_holds_it(store: TraceStore) -> None:
    class Redacting(KPCallbackHandler):
        def __init__(self) -> None:
            super().__init__(store=store, scorer=Scorer(embedder=None), redactor=self.clean)

        def clean(self, text: str) -> str:
            return text

    handlers = [weakref.ref(Redacting()) for _ in range(5)]
    gc.collect()
    assert [one() for one in handlers] == [None] * 5


def test_what_is_scored_again_at_exit_is_delivered(folder: Path) -> None:
    script = """
import time
from pathlib import Path
from tests.agents import ASK, handler, searching

def write(scored):
    if scored.previous is not None:
        time.sleep(0.3)  # the process is ending meanwhile
        Path("again").write_text(str(scored.trace.metadata.success))

watching = handler(store="traces.db", on_scored=write)
searching().invoke(ASK, {"callbacks": [watching]})
watching.report_outcome(watching.last().run_id, success=False)
"""
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=True,
    )
    assert (folder / "again").read_text() == "False"


def test_a_verdict_that_on_scored_fails_on_is_written_and_logged(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(scored: ScoredTrace) -> None:
        raise LookupError(scored.run_id)

    watching = handler(store=store, on_scored=fail)
    run_id = uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    with caplog.at_level(logging.INFO, "kp_langchain"):
        watching.report_outcome(run_id, success=False)
        assert watching.flush(300)
    stats = watching.stats()
    assert (stats["rescored"], stats["on_scored_errors"]) == (1, 2)
    assert "kp.trace_rescored" in [getattr(record, "event", "") for record in caplog.records]


@pytest.mark.filterwarnings("ignore:Direct attribute assignment:DeprecationWarning")
def test_threads_report_while_runs_end(store: TraceStore) -> None:
    watching = handler(store=store)
    ids = [uuid4() for _ in range(12)]

    def work(mine: list) -> None:
        for run_id in mine:
            searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
            watching.report_outcome(run_id, success=run_id.int % 2 == 0)

    threads = [threading.Thread(target=work, args=(ids[at::3],)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watching.flush(60)
    assert {run_id: store.get(str(run_id)).success for run_id in ids} == {
        run_id: run_id.int % 2 == 0 for run_id in ids
    }


def test_what_the_outcome_function_says_is_a_verdict(store: TraceStore) -> None:
    def judge(run: FinishedRun) -> dict:
        return {"success": False, "note": f"no {run.objective}"}

    watching = handler(store=store, outcome=judge)
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(300)
    (verdict,) = store.verdicts(scored.trace.id)
    assert (verdict.success, verdict.source) == (False, "outcome function")
    (labelled,) = store.models.labelled("default")
    assert (labelled.success, labelled.looked_successful) == (False, True)
    assert labelled.features == features_of(
        scored.trace, looked_successful=True, proves_failure=False
    )


def a_model(domain: str = "default") -> ConfidenceModel:
    from datetime import UTC, datetime

    return ConfidenceModel(
        domain=domain,
        features_version=FEATURES_VERSION,
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        runs=214,
        tasks=90,
        base_rate=0.5,
        auc=0.74,
        auc_low=0.67,
        auc_high=0.8,
        brier=0.2,
        default_brier=0.3,
        intercept=0.9,
        terms=(),
    )


def test_an_installed_model_gives_the_confidence_nobody_else_gives(store: TraceStore) -> None:
    store.models.install(a_model())
    watching = handler(store=store)
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(300)
    assert scored.trace.outcome.confidence == pytest.approx(0.7109, abs=1e-4)
    assert "confidence 0.71 (calibrated on 214 runs, AUC 0.74)" in scored.breakdown.text()
    assert scored.trace.metadata.success is True

    elsewhere = handler("finance", store=store)
    searching().invoke(ASK, {"callbacks": [elsewhere]})
    assert elsewhere.last(300).breakdown.confidence_source == "default"

    judged = handler(store=store, outcome=lambda _: False)
    searching().invoke(ASK, {"callbacks": [judged]})
    assert judged.last(300).trace.outcome.confidence == 0.2


def test_a_removed_model_is_not_used(store: TraceStore) -> None:
    assert store.models.install(a_model()) == 1
    assert store.models.install(a_model()) == 2
    assert store.models.remove("default") is True
    assert store.models.remove("default") is False
    watching = handler(store=store)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.last(300).breakdown.confidence_source == "default"
    assert [(one.version, one.active) for one in store.models.entries()] == [(1, False), (2, False)]


@pytest.mark.parametrize("change", ["features_version = 99", "terms = 1"])
def test_a_model_that_cannot_be_used_leaves_the_default(store: TraceStore, change: str) -> None:
    store.models.install(a_model())
    key, value = change.split(" = ")
    with closing(sqlite3.connect(store.location)) as other:
        other.execute("UPDATE models SET body = json_set(body, ?, ?)", (f"$.{key}", int(value)))
        other.commit()
    watching = handler(store=TraceStore(store.location))
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(300)
    assert scored.breakdown.confidence_source == "default"
    assert watching.stats()["failed"] == 0


def test_bodies_of_runs_that_did_not_pass_are_kept_for_their_days(folder: Path) -> None:
    kept = {}
    for name, policy in {
        "by default": DomainPolicy(threshold=1.0),
        "never": DomainPolicy(threshold=1.0, keep_days=0),
        "for good": DomainPolicy(threshold=1.0, keep="all"),
        "passed": DomainPolicy(threshold=0.0),
    }.items():
        store = TraceStore(folder / f"{name}.db")
        watching = handler(store=store, policy=policy)
        agent(say("I search.", call("search", q="a")), say("42")).invoke(
            ASK, {"callbacks": [watching]}
        )
        assert watching.flush(300)
        (stored,) = store.runs()
        kept[name] = (stored.kept, stored.kept_until is not None, stored.trace is not None)
    assert kept == {
        "by default": (True, True, True),
        "never": (False, False, False),
        "for good": (True, False, True),
        "passed": (True, False, True),
    }


def test_repeats_of_a_task_are_told_by_what_the_metadata_call_it(store: TraceStore) -> None:
    watching = handler(store=store, outcome=lambda _: True)
    for metadata in ({"kp_task": "desk/1"}, {"kp_task": "desk/1"}, {"kp_task": 2}, {}):
        config = {"callbacks": [watching], "metadata": metadata}
        searching().invoke(ASK, config)
    assert watching.flush(300)
    first, again, other, untold = [run.task for run in store.models.labelled("default")]
    assert first == again != other
    assert "desk" not in first
    assert untold == "what is the answer?"


def test_send_waits_for_a_store_that_another_process_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kp_langchain.store.sqlite._BUSY_TIMEOUT_S", 0.01)
    policy = DomainPolicy(threshold=0.0, visibility="network")
    path = folder / "traces.db"
    TraceStore(path).count()
    with LoopbackRegistry() as registry, closing(sqlite3.connect(path)) as other:
        to = Registry(registry.url, api_key="kp_key")
        watching = handler(store=path, policy=policy, registry=to)
        other.execute("BEGIN IMMEDIATE")
        searching().invoke(ASK, {"callbacks": [watching]})
        assert not watching.flush(300)  # the store is held
        # Whoever waits finds it let go.
        here = threading.current_thread()
        monkeypatch.setattr(
            "time.sleep", lambda _: threading.current_thread() is here and other.rollback()
        )
        assert watching.send(60)
        assert len(registry.units) == 1
