"""What decisions rest on is said everywhere by the same words, and so is what one run shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from kp_langchain import DomainPolicy, TraceStore
from kp_langchain.calibration.basis import DOCUMENTS_FORMULA, NO_BASIS, basis_of
from kp_langchain.calibration.features import FEATURES_VERSION
from kp_langchain.calibration.model import ConfidenceModel
from kp_langchain.gate.check import NONE_PASSES
from kp_langchain.report.collect import collect
from kp_langchain.text import short_id
from tests.agents import agent, call, handler, say, searching
from tests.commands import cli

MODEL = ConfidenceModel(
    domain="finance", features_version=99, created_at=datetime(2026, 3, 1, tzinfo=UTC),
    runs=12, tasks=12, base_rate=0.5, auc=0.71, auc_low=0.52, auc_high=0.85, brier=0.2,
    default_brier=0.3, intercept=0.0, terms=(),
)  # fmt: skip
WAITS = "nothing is kept before 30 runs have shown whether tasks repeat"
AGREEMENT = "by agreement with other runs of each task"
TASK = "How many euros does ACME hold?"


@pytest.mark.parametrize(
    ("gate", "labelled", "compared", "last", "text"),
    [
        ("score", 0, 9, 9, "10 verdicts change that: kp-langchain label next"),
        ("worth", 9, 9, 9, "10 verdicts change that: kp-langchain label next"),
        ("score", 10, 300, 300, "the verdicts given may change that: kp-langchain calibrate"),
        ("score", 9, 10, 51, "10 verdicts change that: kp-langchain label next"),
        ("score", 9, 10, 50, 'gate = "worth" changes that, because tasks repeat; so do 10 '
                             "verdicts: kp-langchain label next"),
    ],
)  # fmt: skip
def test_without_model_and_agreement_there_is_no_basis(
    gate: str, labelled: int, compared: int, last: int, text: str
) -> None:
    known = {"labelled": labelled, "compared": compared, "last": last}
    basis = basis_of(gate, None, **known)
    assert basis == (f"kept by {DOCUMENTS_FORMULA}; {text}", True)
    beginning = WAITS if last < 30 else f"kept by {DOCUMENTS_FORMULA}"
    waiting = basis_of("score", None, highest=NONE_PASSES, **known)
    assert waiting == (f"{beginning}; {text}", True)
    assert basis_of(None, None, labelled=0, compared=0).text == NO_BASIS


@pytest.mark.parametrize(
    ("labelled", "text"),
    [
        (0, "no verdict yet"), (1, "1 verdict so far"), (9, "9 verdicts so far"),
        (10, "the verdicts given may make a model: kp-langchain calibrate"),
    ],
)  # fmt: skip
def test_a_gate_by_agreement_alone(labelled: int, text: str) -> None:
    basis = basis_of("worth", None, labelled=labelled, compared=10)
    assert basis == (f"{AGREEMENT}; {text}", False)


def test_a_model_is_the_basis_as_long_as_it_is_used() -> None:
    current = replace(MODEL, features_version=FEATURES_VERSION)
    text = "provisional: calibrated on 12 runs, AUC 0.71 (0.52 to 0.85)"
    assert basis_of("worth", current, labelled=12, compared=0) == (text, False)
    assert basis_of("score", current, labelled=0, compared=0) == (text, False)
    assert basis_of("score", MODEL, labelled=0, compared=0).is_missing


# ------------------------------------------------------------------ real runs


@pytest.fixture
def store(without_model: None) -> Iterator[TraceStore]:
    """Twelve runs of one task by worth, the last of which ends in an error; two by score."""
    with TraceStore("runs.db") as store:
        policy = DomainPolicy(gate="worth", pass_rate=0.2)
        watching = handler("finance", store=store, policy=policy)
        for number in range(12):
            failing = agent(say("I look.", call("soft", x="a")), say("It is 7."))
            record(watching, failing if number == 11 else searching(), number)
        record(handler("code", store=store), searching(), 13)
        record(handler("code", store=store), searching(), 14)
        yield store


def record(watching: Any, subject: Any, number: int) -> None:
    config = {"callbacks": [watching], "metadata": {"session_id": f"desk {number}"}}
    subject.invoke({"messages": [("user", TASK)]}, config)
    assert watching.flush(120)


def printed(*words: str) -> str:
    done = cli(*words, "--database", "runs.db", columns=200)
    assert done.returncode == 0, done
    return " ".join(done.stdout.split())


def test_each_command_says_what_decisions_rest_on(store: TraceStore) -> None:
    by_agreement = f"finance: {AGREEMENT}; no verdict yet"
    without = f"code: {NO_BASIS}"
    assert without in printed("review")
    assert by_agreement not in printed("review")  # which names what lacks a basis
    assert NO_BASIS not in printed("review", "--domain", "finance")
    for words in (("review", "stats"), ("doctor",)):
        text = printed(*words)
        assert by_agreement in text, words
        assert without in text, words
    one = printed("review", "stats", "--domain", "finance")
    assert f"basis {AGREEMENT}; no verdict yet verdicts none" in one
    assert " runs with others of their task vetoed 1 run: last_call_failed 1 recovered" in one
    domains = {one["name"]: one for one in collect(store, {}, limit=100).domains}
    assert (domains["code"]["basis"], domains["code"]["has_basis"]) == (NO_BASIS, False)
    assert domains["finance"]["has_basis"]
    assert domains["finance"]["vetoed"] == {"last_call_failed": 1}
    for run in store.runs(domain="code"):
        store.report_outcome(run.trace_id, success=True)
    assert store.models.bases(["finance", "nothing"]).keys() == {"finance"}


def test_a_domain_that_waits_for_its_first_runs_says_so() -> None:
    with TraceStore("runs.db") as store:
        record(handler(store=store, policy=DomainPolicy(gate="worth")), searching(), 1)
        (run,) = store.runs()
        (on_page,) = collect(store, {}, limit=100).runs
    assert (on_page["waits"], on_page["basis"]) == (True, WAITS)
    assert f"basis {WAITS}; 10 verdicts change that" in printed("review", "stats")
    one = printed("review", run.trace_id)
    reason = "among the first 30 runs of default, of which only those pass that agree with others"
    assert f"below_threshold: {reason}" in one
    assert f"basis {WAITS}; 10 verdicts change that" in one


def test_one_run_says_how_far_it_agrees_and_what_vetoes_it(store: TraceStore) -> None:
    vetoed, *others = store.runs(domain="finance")
    text = printed("review", vetoed.trace_id)
    assert "below_threshold: veto:last_call_failed, its last tool call failed " in text
    assert re.search(r"agreement agrees with 0 of 5 runs of this task, 0\.\d\d flag", text)
    assert "flag last_call_failed: its last tool call failed; vetoes the run basis " in text
    assert "basis agreement with other runs of its task, without verdicts outcome" in text
    compared = printed("review", "compare", vetoed.trace_id, others[0].trace_id)
    assert "last_call_failed: its last tool call failed; vetoes the run" in compared
    assert re.search(r"agrees with \d of 5 runs of this task, ", compared)
    assert f" veto:last_call_failed {TASK}" in printed("review")
    record_of = {one["id"]: one for one in collect(store, {}, limit=100).runs}
    on_page = record_of[vetoed.trace_id]
    assert on_page["veto"] == "last_call_failed"
    assert on_page["flags"] == ["last_call_failed: its last tool call failed; vetoes the run"]
    assert on_page["agreement"].startswith("agrees with 0 of 5 runs of this task, 0.")
    (code, _) = store.runs(domain="code")
    assert f"basis {NO_BASIS} outcome" in printed("review", code.trace_id)
    assert json.loads(printed("review", code.trace_id, "--json"))["basis"] == NO_BASIS
    assert record_of[code.trace_id]["basis"] == DOCUMENTS_FORMULA


@pytest.mark.parametrize(
    ("similarity", "text"),
    [(None, "a run of the same task, which was"), (0.95, "similarity 0.95, which was")],
)
def test_a_twin_says_in_what_it_is_alike(
    store: TraceStore, similarity: float | None, text: str
) -> None:
    newest, first = store.scored(store.runs()[0].trace_id), store.runs()[1]
    assert newest is not None
    twin = replace(newest, twin_of=first.trace_id, similarity_to_twin=similarity)
    store.add(replace(twin, decision="twin", stored_id=None))
    assert f"twin of {short_id(first.trace_id)}, {text}" in printed("review", newest.trace.id)
