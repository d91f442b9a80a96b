"""The store's contract, on SQLite and on PostgreSQL: verdicts, what people label, the outbox."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import (
    ConfigError,
    ReasoningTrace,
    ScoredTrace,
    Scorer,
    StoreError,
    TraceStore,
    UnknownRunError,
    Verdict,
)
from kp_langchain.calibration.features import features_of
from kp_langchain.gate import decide
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.store.jobs import JUDGE, SCORE
from kp_langchain.store.registry_units import Standing
from tests.cli.made_runs import recorded
from tests.store.conftest import (
    LONG_S,
    REGISTRY,
    START,
    Conversation,
    _scored,
    execute,
    files_below,
    fork,
    rows_by_table,
)

EARLIER, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)


def judged_run(
    *, success=True, confidence=0.5, threshold=0.5, recoveries=0, visibility="network", **more
) -> ScoredTrace:
    """A run that was really scored."""
    kinds = ["thought", "tool_call", "observation", *["error_recovery"] * recoveries, "thought"]
    tools = {1: "ledger", 2: "search"}
    trace = ReasoningTrace.model_validate(
        {
            "metadata": {"task_domain": "finance", "success": success, "visibility": visibility},
            "task": {"objective": "compare the quarters"},
            "steps": [
                {"step_id": at, "type": kind, "content": f"step {at}"}
                | ({"tool": {"name": tools[at]}} if at in tools else {})
                for at, kind in enumerate(kinds)
            ],
            "outcome": {"result_summary": "it grew", "confidence": confidence},
        }
    )
    breakdown = Scorer(embedder=None).score(trace)
    trace.metadata.quality_score = breakdown.total
    return ScoredTrace(
        trace=trace,
        breakdown=breakdown,
        decision=decide(breakdown.total, threshold),
        threshold=threshold,
        run_id=uuid.uuid4(),
        features=features_of(trace, looked_successful=success),
        **{"keep_body": True, "keep_days": 7.0, **more},
    )


def states(store):
    return {state: number for state, number in store.outbox.counts().items() if number}


def added(store, one=None, **options):
    one = one or judged_run(**options)
    store.add(one, registry=REGISTRY)
    return one


# ------------------------------------------------------------------ what a verdict changes


def test_a_run_that_passes_now_is_kept_and_queued_now(store, caplog):
    one = added(store, threshold=0.6)
    assert (one.decision, states(store)) == ("below_threshold", {})
    assert store.get(one.trace.id).kept_until is not None
    with caplog.at_level(logging.INFO, "kp_langchain"):
        (change,) = store.report_outcome(
            str(one.run_id), success=True, source="desk", registry=REGISTRY
        )
    assert (change.decision_before, change.decision) == ("below_threshold", "kept")
    assert (change.score_before, change.confidence) == (one.breakdown.total, 1.0)
    stored = store.get(one.trace.id)
    assert (stored.score, stored.decision) == (change.score, "kept")
    assert (stored.confidence, stored.confidence_source) == (1.0, "desk")
    assert stored.kept_until is None
    trace = stored.trace
    assert trace.metadata.quality_score == stored.score == stored.breakdown.total
    assert (trace.outcome.confidence, trace.metadata.validated_by) == (1.0, ["desk"])
    assert states(store) == {"pending": 1}
    sent = json.loads(store.outbox.get(one.trace.id).body)
    assert ReasoningTrace.model_validate(sent) == trace
    assert list(store.traces()) == [trace]
    (record,) = [each for each in caplog.records if getattr(each, "kp_event", "") != ""]
    assert (record.kp_event, record.trace_id) == ("kp.trace_rescored", one.trace.id)
    assert (record.score_before, record.score) == (change.score_before, change.score)
    assert (record.decision_before, record.decision) == ("below_threshold", "kept")
    assert record.source == "desk"
    assert "below_threshold -> kept" in record.getMessage()


def test_a_run_that_no_longer_passes_is_withdrawn_before_it_left(store):
    one = added(store, confidence=0.8)
    assert (one.decision, states(store)) == ("kept", {"pending": 1})
    before = store.get(one.trace.id)
    (change,) = store.report_outcome(one.trace.id, success=False, note="the total was wrong")
    assert (change.decision, states(store)) == ("below_threshold", {"withdrawn": 1})
    assert store.outbox.get(one.trace.id).body is None
    stored = store.get(one.trace.id)
    assert abs(stored.kept_until - datetime.now(UTC) - timedelta(days=7)) < timedelta(minutes=5)
    assert list(store.traces()) == []
    for name in ("complexity", "novelty", "tool_diversity", "profile", "novelty_source", "nearest"):
        assert getattr(stored.breakdown, name) == getattr(before.breakdown, name)
    figures = store.figures(decision="below_threshold")
    assert (figures["score"], figures["label"]) == ([change.score], [False])
    value = stored.breakdown.outcome_confidence.value
    assert figures["outcome_confidence"] == [pytest.approx(value)]
    # Whoever changes their mind sends once.
    for success in (True, False, True):
        store.report_outcome(one.trace.id, success=success, registry=REGISTRY)
    assert states(store) == {"pending": 1}
    assert json.loads(store.outbox.get(one.trace.id).body)["metadata"]["success"] is True
    assert [one.success for one in store.verdicts(one.trace.id)] == [False, True, False, True]
    withdrawn = replace(store.outbox.get(one.trace.id), state="withdrawn", body=None)
    store.outbox.save(withdrawn)  # what a person withdrew stays withdrawn
    store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert states(store) == {"withdrawn": 1}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.booleans(),
    confidence=st.floats(0, 1),
    recoveries=st.integers(0, 5),
    success=st.booleans(),
    said=st.none() | st.floats(0, 1),
)
def test_the_score_is_what_it_would_have_been(store, first, confidence, recoveries, success, said):
    one = judged_run(success=first, confidence=confidence, recoveries=recoveries)
    store.add(one)
    store.report_outcome(one.trace.id, success=success, confidence=said)
    as_said = one.trace.model_copy(deep=True)
    as_said.metadata.success = success
    as_said.outcome.confidence = float(success) if said is None else said
    expected = Scorer(embedder=None).score(as_said)
    stored = store.get(one.trace.id)
    assert stored.score == pytest.approx(expected.total, abs=1e-12)
    assert [rule.name for rule in stored.breakdown.rules] == [rule.name for rule in expected.rules]
    assert stored.decision == decide(expected.total, one.threshold)


@pytest.mark.parametrize(
    ("options", "decision", "kept"),
    [
        ({"visibility": "private"}, "kept", True),
        ({"withheld": "redaction failed", "keep_days": None}, "below_threshold", True),
        ({"keep_body": False}, "below_threshold", False),
        ({"keep_days": 0.0}, "below_threshold", False),  # its time is over
    ],
    ids=str,
)
def test_what_must_stay_at_home_is_scored_again_and_stays(store, options, decision, kept):
    one = added(store, threshold=0.6, **options)
    (change,) = store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert change.score >= one.threshold
    assert (change.decision, change.has_trace, states(store)) == (decision, kept, {})
    stored = store.get(one.trace.id)
    assert (stored.score, stored.withheld) == (change.score, options.get("withheld"))
    assert (stored.trace is not None) is kept


def test_a_body_whose_time_is_over_is_gone(store, url, tmp_path):
    one, other = judged_run(threshold=0.99, keep_days=0.0), judged_run(threshold=0.6)
    one.trace.steps[0].content = "told in confidence " * 1000
    store.add(*[one, other])
    assert store.get(one.trace.id).trace is None
    assert store.get(other.trace.id).trace == other.trace
    with TraceStore(url) as again:  # a process that begins looks for what is over
        again.add(judged_run())
    assert "told in confidence" not in str(rows_by_table(store)["runs"])
    if (tmp_path / "store").exists():
        store.close()
        assert b"in confidence" not in files_below(tmp_path / "store")


def test_without_its_body_a_run_gets_the_score_that_it_would_have_with_it(store):
    made = {"success": False, "recoveries": 3, "threshold": 0.99}
    with_body, without = judged_run(**made), judged_run(**made, keep_days=0.0)
    store.add(*[with_body, without])
    assert store.get(without.trace.id).trace is None
    changes = [store.report_outcome(one.trace.id, success=True)[0] for one in (with_body, without)]
    assert changes[0].score == changes[1].score
    assert [rule.name for rule in store.get(without.trace.id).breakdown.rules] == [
        "recovered_errors"
    ]


def test_the_newest_verdict_counts_and_a_model_s_only_where_there_is_no_other(store):
    one = added(store)
    later = {"success": False, "confidence": 0.3, "note": "n", "source": "ann", "at": LATER}
    store.report_outcome(one.trace.id, **later)
    (change,) = store.report_outcome(one.trace.id, success=True, at=EARLIER)
    assert (change.success, change.score) == (False, change.score_before)
    first, second = store.verdicts(one.trace.id)
    assert (first.success, first.at) == (True, EARLIER)
    assert second == Verdict(**later)
    verdicts = [
        {"success": False, "at": EARLIER, "source": "label"},
        {"success": True, "at": LATER, "source": "langfuse", "by_model": True},
        {"success": True, "at": EARLIER, "source": "langfuse", "by_model": True},
    ]
    for order in itertools.permutations(verdicts):
        store.add(one := judged_run(success=True))
        for verdict in order:
            store.report_outcome(one.trace.id, **verdict)
        stored = store.get(one.trace.id)
        assert (stored.success, stored.confidence_source) == (False, "label")
        assert sum(each.by_model for each in store.verdicts(one.trace.id)) == 2
    assert set(store.figures()["label"]) == {False}
    assert {each.success for each in store.models.task_verdicts("finance")} == {False}
    alone = added(store)
    (change,) = store.report_outcome(alone.trace.id, success=False, by_model=True)
    assert change.success is store.get(alone.trace.id).success is False


def test_one_run_that_several_handlers_recorded_is_judged_as_one(store):
    first, second = judged_run(), judged_run()
    store.add(*[first, replace(second, run_id=first.run_id)])
    changes = store.report_outcome(str(first.run_id), success=False)
    assert {change.trace_id for change in changes} == {first.trace.id, second.trace.id}
    (change,) = store.report_outcome(first.trace.id, success=True)
    assert change.trace_id == first.trace.id


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_what_cannot_be_a_verdict_is_an_error_and_changes_nothing(store):
    one = added(store)
    for said, complaint in (
        ({}, "says nothing"), ({"note": "hm"}, "says nothing"),
        ({"success": "yes"}, "success is a str; give True or False"),
        ({"success": 1}, "success is 1; give True or False"),
        ({"confidence": 1.5}, "confidence is 1.5; give a number from 0 to 1"),
        ({"confidence": float("nan")}, "confidence is nan"),
        ({"confidence": True}, "confidence is True"), ({"confidence": 10**400}, "confidence is 1"),
        ({"success": True, "source": None}, "source is a NoneType"),
        ({"success": True, "note": b"x"}, "note is a bytes"),
        ({"success": True, "at": "today"}, "at is a str"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=complaint):
            store.report_outcome(one.trace.id, **said)
    with pytest.raises(UnknownRunError, match="no run 'deadbeef'"):
        store.report_outcome("deadbeef", success=True)
    with pytest.raises(UnknownRunError) as error:
        store.report_outcome("f" * 1_000_000, success=True)
    assert len(str(error.value)) < 1000
    store.add(*(_scored(trace_id=f"kp:trace:{'a' * 8}-{number}") for number in range(2)))
    with pytest.raises(StoreError, match="may mean several runs"):
        store.report_outcome("aaaaaaaa", success=True)
    assert rows_by_table(store)["verdicts"] == []


def test_verdicts_that_come_with_a_run_are_kept_and_do_not_score_it_again(store):
    verdict = Verdict(success=False, source="outcome function", note="wrong sum")
    one = added(store, verdict=verdict)
    (stored,) = store.verdicts(one.trace.id)
    assert (stored.success, stored.source, stored.note) == (False, verdict.source, "wrong sum")
    assert store.get(one.trace.id).score == one.breakdown.total
    others = [f"kp:trace:{number}" for number in range(70_000)]  # more than a statement takes
    assert list(store.verdicts_by_trace([*others, one.trace.id])) == [one.trace.id]


def test_a_run_as_sinks_receive_it_says_where_tools_have_it(store):
    external = ExternalTrace("e" * 32, "5" * 16, "agents")
    one = replace(judged_run(), external_traces={"langfuse": external})
    other = judged_run()
    store.add(*[one, other])
    again = store.scored(one.trace.id)
    assert (again.external_traces, again.breakdown) == ({"langfuse": external}, one.breakdown)
    assert [step.content for step in again.trace.steps] == [s.content for s in one.trace.steps]
    assert store.scored("kp:trace:none") is None
    assert list(store.external_traces.of_tool("langfuse")) == [(one.trace.id, external)]
    assert list(store.external_traces.of_tool("opik")) == []
    store.delete(one.trace.id)
    assert list(store.external_traces.of_tool("langfuse")) == []


# ------------------------------------------------------------------ notes

KEY = "sk-ant-api03-" + "a1B2c3D4" * 11 + "AA"
NOTES = [
    (None, f"it used {KEY}\x00\ud800" + "x" * 9000, ("it used", "REDACTED")),
    # 4000 characters end within the address
    (None, "x " * 1993 + "ada.lovelace@example.org", ("x x",)),
    ("without_names", "Ada checked it, ada@example.org", ("[name] checked it, [REDACTED:email]",)),
    ("failing", "Ada checked it", ("[REDACTED:failed]",)),
]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("redactor", "note", "parts"), NOTES, ids=range(len(NOTES)))
def test_notes_are_redacted_before_they_are_cut(store, monkeypatch, redactor, note, parts):
    one = added(store)
    if redactor is not None:
        monkeypatch.setenv("KP_REDACTION__REDACTOR", f"tests.store.conftest:{redactor}")
    store.report_outcome(one.trace.id, success=True, note=note)
    (verdict,) = store.verdicts(one.trace.id)
    assert all(part in verdict.note for part in parts)
    assert not any(secret in verdict.note for secret in ("Ada", "lovelace", KEY, "\x00"))
    assert len(verdict.note) <= 4000


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_who_gave_a_verdict_is_redacted_by_the_rules_wherever_it_goes(store, monkeypatch):
    monkeypatch.setenv("KP_REDACTION__PATTERNS__PERSON", r"Zebulon \w+")
    one = added(store)
    for source in ("Zebulon Quack", "jane.roe@acme.org", "label"):
        store.report_outcome(one.trace.id, success=True, source=source)
    names = ["[REDACTED:person]", "[REDACTED:email]", "label"]
    assert [verdict.source for verdict in store.verdicts(one.trace.id)] == names
    (trace,) = store.traces(with_expiring=True)
    assert trace.metadata.validated_by[-3:] == names


@pytest.mark.parametrize("name", ["nowhere:redact", "tests.store.conftest:nothing", "math:pi"])
def test_a_redactor_that_is_not_there_is_an_error(store, monkeypatch, name):
    one = added(store)
    monkeypatch.setenv("KP_REDACTION__REDACTOR", name)
    with pytest.raises(ConfigError, match=f"the redactor '{name}' of \\[redaction\\]"):
        store.report_outcome(one.trace.id, success=True, note="Ada checked it")
    assert store.verdicts(one.trace.id) == []


# ------------------------------------------------------------------ what models learn from

FEATURES = {"steps": 2.0}


@pytest.fixture
def add(store):
    """Adds a run with features and returns its trace id; more verdicts are given one by one."""

    def add(number=0, *verdicts, **options):
        store.add(one := _scored(number, **{"features": FEATURES} | options))
        for verdict in verdicts:
            store.report_outcome(one.trace.id, **verdict)
        return one.trace.id

    return add


def unlabelled(store, domain=None):
    return [run.trace_id for run in store.models.unlabelled(domain)]


def test_the_newest_success_that_was_stated_is_the_label(store, add):
    assert store.models.unlabelled() == store.models.task_verdicts() == []
    at = START + timedelta(days=1)
    add(1, {"success": True, "at": at}, {"success": False, "at": at + timedelta(hours=2)},
        {"success": True, "at": at + timedelta(hours=1)},
        {"confidence": 0.9, "at": at + timedelta(hours=3)})  # fmt: skip
    add(2, {"success": True, "at": EARLIER}, {"confidence": 0.3, "at": LATER})
    add(3, {"confidence": 0.3})
    old = add(4, {"success": True}, features={"features_version": 1.0}, domain="old")
    assert store.get(old).success
    assert store.models.labelled("old") == []  # an earlier version computed its features otherwise
    assert sorted(one.success for one in store.models.labelled("finance")) == [False, True]
    assert sorted(one.success for one in store.models.task_verdicts("finance")) == [False, True]
    assert store.models.labelled_domains() == ["finance", "old"]
    assert store.models.labelled("code") == store.models.task_verdicts("code") == []
    one = added(store)
    store.report_outcome(one.trace.id, success=True)
    *_, labelled = store.models.labelled("finance")  # it began last
    assert labelled.task == "compare the quarters"
    assert (labelled.values["novelty"], labelled.looked_successful) == (0.5, True)


def test_runs_that_somebody_can_look_at_and_learn_from_are_to_be_asked_about(store, add):
    first, sure = add(1), add(2, {"confidence": 0.9})
    add(3, {"success": True})
    add(4, {"success": False}, {"confidence": 0.9})
    add(5, verdict=Verdict(success=True, source="judge"))
    add(6, keep=False)
    add(6, score=0.1, keep_days=0.0)
    add(6, withheld="too long to redact")
    add(6, features=None)
    code = add(7, domain="code")
    still = add(8, score=0.1, keep_days=1.0)
    assert unlabelled(store) == [still, code, sure, first]  # the newest first
    assert unlabelled(store, "code") == [code]
    assert unlabelled(store, "other\x00") == []
    assert len(store.models.task_verdicts()) == 3


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
    assert len({one.task for one in store.models.labelled("finance")}) == 5


# ------------------------------------------------------------------ the outbox


def test_what_passed_enters_with_its_run_and_once(store):
    one = _scored(visibility="network")
    store.add(one, registry=REGISTRY)
    waiting = store.outbox.get(one.trace.id)
    assert (waiting.state, waiting.registry, waiting.attempts) == ("pending", REGISTRY, 0)
    assert json.loads(waiting.body) == json.loads(one.trace.model_dump_json())
    assert waiting.idempotency_key == hashlib.sha256(waiting.body.encode()).hexdigest()
    store.outbox.save(replace(waiting, state="sent", registry_id="r1", body=None))
    store.add(one, registry=REGISTRY)
    assert states(store) == {"sent": 1}
    assert store.outbox.get("r1").trace_id == one.trace.id
    assert store.outbox.next_pending(REGISTRY) is None


def test_what_must_stay_does_not_enter(store):
    store.add(_scored(visibility="private"), registry=REGISTRY)
    store.add(_scored(visibility="network", score=0.1), registry=REGISTRY)
    store.add(_scored(visibility="network"))
    assert store.count() == 3
    for visibility in ("org", "network"):  # only its secrets are redacted
        one = _scored(visibility=visibility)
        one.trace.metadata.privacy_level = "private"
        store.add(one, registry=REGISTRY)
        for success in (False, True):
            store.report_outcome(one.trace.id, success=success, registry=REGISTRY)
    assert store.outbox.contributions() == []


def test_the_one_that_is_due_first_is_next_and_the_newest_is_listed_first(store):
    runs = [_scored(number, visibility="org") for number in range(4)]
    for run in runs:
        store.add(run, registry=REGISTRY)
    store.add(_scored(9, visibility="org"), registry="https://other.example.org")
    first = store.outbox.next_pending(REGISTRY)
    assert first.trace_id == runs[0].trace.id
    later = first.due_at + timedelta(hours=1)
    store.outbox.save(replace(first, due_at=later, reason="no"))
    assert store.outbox.next_pending(REGISTRY).trace_id == runs[1].trace.id
    back = store.outbox.get(first.trace_id)
    assert (back.due_at, back.reason) == (later, "no")
    queued = [one.queued_at for one in store.outbox.contributions()]
    assert queued == sorted(queued, reverse=True)
    assert [one.body for one in store.outbox.contributions(limit=2)] == [None, None]
    assert store.outbox.contributions(state="dead") == []
    with pytest.raises(ConfigError, match="nega"):
        store.outbox.contributions(limit=-1)


def test_what_a_verdict_took_back_is_not_begun(store):
    one = added(store, confidence=0.8)
    read = store.outbox.next_pending(REGISTRY)
    standing = Standing(REGISTRY, "key", START, "asked to wait", False, 3, (START.isoformat(),))
    assert store.outbox.standing(REGISTRY, "key") == Standing(REGISTRY, "key")
    store.report_outcome(one.trace.id, success=False)
    tried = replace(read, attempts=1, changed_at=datetime.now(UTC))
    with store.outbox.sending() as lease:
        assert store.outbox.begin(tried, read=read, lease=lease) is False
    assert states(store) == {"withdrawn": 1}
    store.report_outcome(one.trace.id, success=True)
    read = store.outbox.next_pending(REGISTRY)
    with store.outbox.sending() as lease:
        begun = replace(read, attempts=1)
        assert store.outbox.begin(begun, read=read, lease=lease) is True
    assert store.outbox.get(one.trace.id).attempts == 1
    store.outbox.save(replace(standing, failures=4))
    assert store.outbox.standing(REGISTRY, "key") == replace(standing, failures=4)
    assert store.outbox.standing(REGISTRY, "other key").failures == 0


HOLD = """
import sys
from kp_langchain import TraceStore
with TraceStore(sys.argv[1]) as store, store.outbox.sending(lasts_s=3600.0) as lease:
    print(lease is not None, flush=True)
    sys.stdin.readline()
"""


def test_there_is_one_sender_at_a_time_and_the_lease_of_a_killed_one_expires(store, url):
    with TraceStore(url) as other:
        with store.outbox.sending(lasts_s=LONG_S) as first, other.outbox.sending() as second:
            assert (first is not None, second) == (True, None)
            other.add(_scored(visibility="org"), registry=REGISTRY)  # writing goes on
            asking = Conversation(HOLD, url)
            assert asking.line() == "False"
            asking.end()
            # Nor does a forked child inherit the place, or free it when it ends.
            assert fork(lambda: not takes_turn(url)) == 0
            assert not takes_turn(url)
        assert takes_turn(url)
    holding = Conversation(HOLD, url)
    assert holding.line() == "True"
    holding.kill()
    assert not takes_turn(url)
    execute(store, "UPDATE jobs SET lease_until = 1")
    assert takes_turn(url)


def takes_turn(url):
    with TraceStore(url) as store, store.outbox.sending() as lease:
        return lease is not None


def test_a_process_gives_back_its_own_jobs_of_one_kind(store, url):
    store.journal.record([own := recorded()])
    store.journal.add([_scored(external_traces={"tool": ExternalTrace("1")})], ["tool"])
    with TraceStore(url) as other, TraceStore(url) as next_one:
        other.journal.record([recorded(1)])
        store.journal.jobs.release(JUDGE)
        taken = [next_one.journal.jobs.take(kind) for kind in (JUDGE, SCORE.format("tool"))]
    assert [[row["key"] for row in rows] for rows in taken] == [[own.trace.id], []]
