"""The runs that a person can be asked about; every test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from kp_langchain.calibration.model import Term
from kp_langchain.store import TraceStore, Verdict
from tests.calibration.test_model import MODEL
from tests.store.conftest import START

FEATURES = {"features_version": 1.0, "steps": 2.0}


@pytest.fixture
def store(url):
    with TraceStore(url) as store:
        yield store


@pytest.fixture
def add(store, scored):
    """Adds a run with features and returns its trace id; more verdicts are given one by one."""

    def add(number=0, *verdicts, objective=None, **options):
        one = scored(number, **{"features": FEATURES} | options)
        if objective is not None:
            one.trace.task.objective = objective
        store.add(one)
        for verdict in verdicts:
            store.report_outcome(one.trace.id, **verdict)
        return one.trace.id

    return add


def ids(store, domain=None):
    return [run.trace_id for run in store.models.unlabelled(domain)]


def test_a_store_without_runs(store):
    assert store.models.unlabelled() == store.models.task_verdicts() == []
    assert store.models.unlabelled("finance") == store.models.task_verdicts("finance") == []


def test_runs_without_a_verdict_on_success_are_to_be_asked_about(store, add):
    first, sure = add(1), add(2, {"confidence": 0.9})
    add(3, {"success": True})
    add(4, {"success": False}, {"confidence": 0.9})
    add(5, verdict=Verdict(success=True, source="judge"))
    assert ids(store) == [sure, first]  # the newest first
    assert len(store.models.task_verdicts()) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"keep": False},
        {"score": 0.1, "keep_days": 0.0},
        {"withheld": "too long to redact"},
        {"features": None},
    ],
    ids=str,
)
def test_what_nobody_can_look_at_or_learn_from_is_left_out(store, add, options):
    shown = add(1, score=0.1, keep_days=1.0)
    add(2, **options)
    assert ids(store) == [shown]


def test_the_domain(store, add):
    code, finance = add(1, domain="code"), add(2)
    add(3, {"success": True}, domain="code")
    assert ids(store) == [finance, code]
    assert ids(store, "code") == [code]
    assert ids(store, "other\x00") == []
    assert [one.domain for one in store.models.task_verdicts("code")] == ["code"]
    assert store.models.task_verdicts("finance") == []


def test_the_newest_verdict_that_states_success_counts(store, add):
    at = START + timedelta(days=1)
    add(
        1,
        {"success": True, "at": at},
        {"success": False, "at": at + timedelta(hours=2)},
        {"success": True, "at": at + timedelta(hours=1)},
        {"confidence": 0.9, "at": at + timedelta(hours=3)},
    )
    (verdict,) = store.models.task_verdicts()
    assert verdict.success is False


def test_repeats_have_an_equal_task_whether_they_have_a_verdict_or_not(store, add):
    long = "first " * 5_000
    for number, objective in enumerate(("Compare  A\nwith B", long + "b", long + "c", "é")):
        add(number, objective=objective)
        add(number, {"success": True}, objective=objective.upper())
    add(8, task="hash", objective="one way")
    add(9, {"success": True}, task="hash", objective="another way")
    without = sorted(run.task for run in store.models.unlabelled())
    assert without == sorted(one.task for one in store.models.task_verdicts())
    assert len(set(without)) == 5
    assert max(map(len, without)) <= 10_000


def test_the_confidence_is_that_of_the_model_in_force(store, add):
    by_steps = replace(MODEL, intercept=0.0, terms=(Term("steps", 0.0, 1.0, 1.0),))
    few, many = add(1), add(2, features=FEATURES | {"steps": 100.0})
    other = add(3, domain="code")
    assert {run.confidence for run in store.models.unlabelled()} == {None}
    store.models.install(by_steps)
    confidences = {run.trace_id: run.confidence for run in store.models.unlabelled()}
    assert confidences[few] == pytest.approx(by_steps.confidence(FEATURES))
    assert confidences[many] > confidences[few] > 0.5
    assert confidences[other] is None
    store.models.install(replace(by_steps, features_version=0))
    assert {run.confidence for run in store.models.unlabelled("finance")} == {None}


@pytest.mark.parametrize(
    "text",
    ["[]", '{"steps": "many"}', '{"steps": 1e999}', '"x"', "[" * 5000 + "]" * 5000],
    ids=lambda text: text[:20],
)
def test_features_that_another_program_wrote_cost_their_own_run_the_confidence(store, add, text):
    store.models.install(replace(MODEL, terms=(Term("steps", 0.0, 1.0, 1.0),)))
    good, bad = add(1), add(2)
    with store.database.writing() as connection:
        connection.execute(
            sa.text("UPDATE runs SET features = :text WHERE trace_id = :id"),
            {"text": text, "id": bad},
        )
    confidences = {run.trace_id: run.confidence for run in store.models.unlabelled()}
    assert confidences[good] is not None
    assert bad in confidences


def test_a_model_that_cannot_be_read_is_no_model(store, add):
    store.models.install(MODEL)
    add(1)
    with store.database.writing() as connection:
        connection.execute(sa.text("""UPDATE models SET body = '{"domain": 1}'"""))
    (run,) = store.models.unlabelled()
    assert run.confidence is None
