"""Verdicts that come after a run was stored; every test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
import json
import logging
import random
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import ConfigError, Scorer, StoreError, UnknownRunError
from kp_langchain.calibration.features import features_of
from kp_langchain.gate import ScoredTrace, decide
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.registry.sender import Sender
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import ReasoningTrace
from kp_langchain.store import TraceStore, Verdict
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY, Clock, drive, to

REGISTRY = "https://registry.example.org"
EARLIER, LATER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def store(url):
    with TraceStore(url) as store:
        yield store


def run(
    *, success=True, confidence=0.5, threshold=0.5, recoveries=0, visibility="network", **more
) -> ScoredTrace:
    """A run that was really scored."""
    kinds = ["thought", "tool_call", "observation", *["error_recovery"] * recoveries, "thought"]
    tools = {1: "ledger", 2: "search"}
    trace = ReasoningTrace.model_validate(
        {
            "metadata": {
                "task_domain": "finance",
                "success": success,
                "visibility": visibility,
            },
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
    decision = decide(breakdown.total, threshold)
    return ScoredTrace(
        trace=trace,
        breakdown=breakdown,
        decision=decision,
        threshold=threshold,
        run_id=uuid.uuid4(),
        features=features_of(trace, looked_successful=success),
        **{"keep_body": True, "keep_days": 7.0, **more},
    )


def test_a_broken_logging_handler_costs_no_verdict(store):
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("the host's handler")

    store.add(one := run())
    logger, broken = logging.getLogger("kp_langchain"), Broken()
    level = logger.level
    logger.addHandler(broken)
    logger.setLevel(logging.INFO)
    try:
        (change,) = store.report_outcome(one.trace.id, success=False)
    finally:
        logger.removeHandler(broken)
        logger.setLevel(level)
    assert change.changed
    assert not store.get(one.trace.id).success


def states(store):
    return {state: number for state, number in store.outbox.counts().items() if number}


def test_a_run_that_passes_now_is_contributed_now(store):
    one = run(threshold=0.6)
    store.add(one, registry=REGISTRY)
    assert (one.decision, states(store)) == ("below_threshold", {})
    assert store.get(one.trace.id).kept_until is not None

    (change,) = store.report_outcome(str(one.run_id), success=True, registry=REGISTRY)

    assert (change.decision_before, change.decision) == ("below_threshold", "contributed")
    assert (change.score_before, change.confidence) == (one.breakdown.total, 1.0)
    stored = store.get(one.trace.id)
    assert (stored.score, stored.decision, stored.kept_until) == (
        change.score,
        "contributed",
        None,
    )
    assert (stored.confidence, stored.confidence_source) == (1.0, "reported")
    trace = stored.trace
    assert trace.metadata.quality_score == stored.score == stored.breakdown.total
    assert (trace.outcome.confidence, trace.metadata.validated_by) == (1.0, ["reported"])
    assert states(store) == {"pending": 1}
    sent = json.loads(store.outbox.get(one.trace.id).body)
    assert ReasoningTrace.model_validate(sent) == trace
    assert list(store.traces()) == [trace]


def test_a_run_that_no_longer_passes_is_withdrawn_before_it_left(store):
    one = run(confidence=0.8)
    store.add(one, registry=REGISTRY)
    assert (one.decision, states(store)) == ("contributed", {"pending": 1})
    (change,) = store.report_outcome(one.trace.id, success=False, note="the total was wrong")
    assert change.decision == "below_threshold"
    assert states(store) == {"withdrawn": 1}
    assert store.outbox.get(one.trace.id).body is None
    stored = store.get(one.trace.id)
    expected = datetime.now(UTC) + timedelta(days=7)
    assert abs(stored.kept_until - expected) < timedelta(minutes=5)
    assert list(store.traces()) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.booleans(),
    confidence=st.floats(0, 1),
    recoveries=st.integers(0, 5),
    success=st.booleans(),
    said=st.none() | st.floats(0, 1),
)
def test_the_score_is_what_it_would_have_been(store, first, confidence, recoveries, success, said):
    one = run(success=first, confidence=confidence, recoveries=recoveries)
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


def test_novelty_stays_what_it_was(store):
    one = run()
    store.add(one)
    before = store.get(one.trace.id).breakdown
    store.report_outcome(one.trace.id, success=False)
    after = store.get(one.trace.id).breakdown
    for name in ("complexity", "novelty", "tool_diversity", "profile", "novelty_source", "nearest"):
        assert getattr(after, name) == getattr(before, name)
    assert after.outcome_confidence != before.outcome_confidence


def test_changing_ones_mind_sends_once(store):
    one = run(confidence=0.8)
    store.add(one, registry=REGISTRY)
    for success in (False, True, False, True):
        store.report_outcome(one.trace.id, success=success, registry=REGISTRY)
    assert states(store) == {"pending": 1}
    assert json.loads(store.outbox.get(one.trace.id).body)["metadata"]["success"] is True
    assert [verdict.success for verdict in store.verdicts(one.trace.id)] == [
        False,
        True,
        False,
        True,
    ]


def test_what_a_person_took_out_of_the_outbox_stays_out(store):
    one = run(confidence=0.8)
    store.add(one, registry=REGISTRY)
    store.outbox.remove(one.trace.id)
    store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert states(store) == {}


def test_a_verdict_on_a_run_with_tags_leaves_them_as_they_are(store):
    one = run(threshold=0.6, keys=RunKeys(session="s", tags=("beta", "eu")))
    store.add(one, registry=REGISTRY)
    (change,) = store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert change.decision == "contributed"
    (stored,) = store.runs(tag="beta", session="s")
    assert (stored.tags, stored.success) == (["beta", "eu"], True)


def test_a_private_trace_stays_at_home(store):
    one = run(threshold=0.6, visibility="private")
    store.add(one, registry=REGISTRY)
    (change,) = store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert (change.decision, states(store)) == ("contributed", {})


def test_a_trace_that_could_not_be_redacted_is_never_contributed(store):
    one = run(threshold=0.6, withheld="redaction failed", keep_days=None)
    store.add(one, registry=REGISTRY)
    (change,) = store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert change.score >= one.threshold
    assert (change.decision, states(store)) == ("below_threshold", {})
    assert store.get(one.trace.id).withheld == "redaction failed"


def test_without_its_body_a_run_is_scored_again_but_not_contributed(store):
    one = run(threshold=0.6, keep_body=False)
    store.add(one, registry=REGISTRY)
    (change,) = store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert change.score >= one.threshold
    assert (change.kept, change.decision, states(store)) == (False, "below_threshold", {})
    assert store.get(one.trace.id).score == change.score


def test_verdicts_of_more_runs_than_a_statement_takes(store):
    judged = run()
    store.add(judged)
    store.report_outcome(judged.trace.id, success=True)
    others = [f"kp:trace:{number}" for number in range(70_000)]
    assert list(store.verdicts_by_trace([*others, judged.trace.id])) == [judged.trace.id]


def test_a_body_whose_time_is_over_is_gone(store, url):
    one, other = run(threshold=0.6, keep_days=0.0), run(threshold=0.6)
    store.add_many([one, other])
    assert store.get(one.trace.id).kept is False
    assert store.get(one.trace.id).trace is None
    assert store.get(other.trace.id).trace == other.trace
    (change,) = store.report_outcome(one.trace.id, success=True, registry=REGISTRY)
    assert (change.kept, states(store)) == (False, {})
    with TraceStore(url) as again:  # a process that begins looks for what is over
        again.add(run())
        with again.database.reading() as connection:
            bodies = connection.execute(sa.text("SELECT trace_id, body FROM runs")).all()
    assert {trace_id for trace_id, body in bodies if body is None} == {one.trace.id}


def test_an_older_verdict_is_written_down_and_changes_nothing(store):
    one = run()
    store.add(one)
    store.report_outcome(one.trace.id, success=False, at=LATER)
    (change,) = store.report_outcome(one.trace.id, success=True, at=EARLIER)
    assert (change.success, change.score) == (False, change.score_before)
    assert [(v.success, v.at) for v in store.verdicts(one.trace.id)] == [
        (True, EARLIER),
        (False, LATER),
    ]


def test_one_run_that_several_handlers_recorded_is_judged_as_one(store):
    first, second = run(), run()
    both = [
        first,
        ScoredTrace(**{n: getattr(second, n) for n in second.__slots__} | {"run_id": first.run_id}),
    ]
    store.add_many(both)
    changes = store.report_outcome(str(first.run_id), success=False)
    assert {change.trace_id for change in changes} == {first.trace.id, second.trace.id}
    (change,) = store.report_outcome(first.trace.id, success=True)
    assert change.trace_id == first.trace.id


def test_an_id_that_means_nothing_or_too_much_is_an_error(store):
    with pytest.raises(UnknownRunError, match="no run 'deadbeef'"):
        store.report_outcome("deadbeef", success=True)
    ids = [f"kp:trace:aaaaaaaa-0000-4000-8000-00000000000{at}" for at in (1, 2)]
    for id_ in ids:
        one = run()
        one.trace.id = id_
        store.add(one)
    with pytest.raises(StoreError, match="may mean several runs"):
        store.report_outcome("aaaaaaaa", success=True)
    assert all(store.verdicts(id_) == [] for id_ in ids)


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({}, "says nothing"),
        ({"note": "hm"}, "says nothing"),
        ({"success": "yes"}, "success is a str; give True or False"),
        ({"success": 1}, "success is 1; give True or False"),
        ({"confidence": 1.5}, "confidence is 1.5; give a number from 0 to 1"),
        ({"confidence": float("nan")}, "confidence is nan"),
        ({"confidence": True}, "confidence is True"),
        ({"confidence": 10**400}, "confidence is 1000"),
        ({"success": True, "source": None}, "source is a NoneType"),
        ({"success": True, "note": b"x"}, "note is a bytes"),
        ({"success": True, "at": "today"}, "at is a str"),
    ],
)
def test_an_unusable_verdict_is_an_error_and_changes_nothing(store, said, complaint):
    one = run()
    store.add(one)
    with pytest.raises(ConfigError, match=complaint):
        store.report_outcome(one.trace.id, **said)
    assert store.verdicts(one.trace.id) == []


def test_notes_are_redacted_and_hostile_ones_are_stored(store):
    one = run()
    store.add(one)
    key = "sk-ant-api03-" + "a1B2c3D4" * 11 + "AA"
    store.report_outcome(one.trace.id, success=True, note=f"it used {key}\x00\ud800" + "x" * 9000)
    (verdict,) = store.verdicts(one.trace.id)
    assert key not in verdict.note
    assert "REDACTED" in verdict.note
    assert len(verdict.note) <= 4000


def test_notes_go_through_the_redactor_that_the_settings_name(store, monkeypatch):
    one = run()
    store.add(one)
    monkeypatch.setenv("KP_REDACTION__REDACTOR", "tests.store.redactors:without_names")
    store.report_outcome(one.trace.id, success=True, note="Ada checked it, ada@example.org")
    (verdict,) = store.verdicts(one.trace.id)
    assert verdict.note == "[name] checked it, [REDACTED:email]"


def test_a_redactor_that_fails_leaves_nothing_of_a_note(store, monkeypatch):
    one = run()
    store.add(one)
    monkeypatch.setenv("KP_REDACTION__REDACTOR", "tests.store.redactors:failing")
    store.report_outcome(one.trace.id, success=True, note="Ada checked it")
    (verdict,) = store.verdicts(one.trace.id)
    assert verdict.note == "[REDACTED:failed]"


@pytest.mark.parametrize("name", ["nowhere:redact", "tests.store.redactors:nothing", "math:pi"])
def test_a_redactor_that_is_not_there_is_an_error(store, monkeypatch, name):
    one = run()
    store.add(one)
    monkeypatch.setenv("KP_REDACTION__REDACTOR", name)
    with pytest.raises(ConfigError, match=f"the redactor '{name}' of \\[redaction\\]"):
        store.report_outcome(one.trace.id, success=True, note="Ada checked it")
    assert store.verdicts(one.trace.id) == []


def test_every_rescoring_is_logged_with_before_and_after(store, caplog):
    one = run(threshold=0.6)
    store.add(one)
    with caplog.at_level(logging.INFO, "kp_langchain"):
        (change,) = store.report_outcome(one.trace.id, success=True, source="desk")
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "kp.trace_rescored"]
    assert record.trace_id == one.trace.id
    assert (record.score_before, record.score) == (change.score_before, change.score)
    assert (record.decision_before, record.decision) == ("below_threshold", "contributed")
    assert record.source == "desk"
    assert "below_threshold -> kept" in record.getMessage()


def test_verdicts_that_come_with_a_run_are_kept_and_do_not_score_it_again(store):
    one = run(verdict=Verdict(success=False, source="outcome function", note="wrong sum"))
    store.add(one)
    (verdict,) = store.verdicts(one.trace.id)
    assert (verdict.success, verdict.source, verdict.note) == (
        False,
        "outcome function",
        "wrong sum",
    )
    assert store.get(one.trace.id).score == one.breakdown.total


def test_the_newest_success_that_was_told_is_the_label(store):
    runs = [run() for _ in range(4)]
    store.add_many(runs)
    store.report_outcome(runs[0].trace.id, success=True, at=EARLIER)
    store.report_outcome(runs[0].trace.id, success=False, at=LATER)
    store.report_outcome(runs[1].trace.id, success=True, at=EARLIER)
    store.report_outcome(runs[1].trace.id, confidence=0.3, at=LATER)
    store.report_outcome(runs[2].trace.id, confidence=0.3)
    labelled = store.models.labelled("finance")
    assert sorted(one.success for one in labelled) == [False, True]
    assert store.models.verdict_counts() == {"finance": (1, 1)}
    assert store.models.labelled("code") == []
    first = labelled[0]
    assert first.task == "compare the quarters"
    assert first.values["novelty"] == 0.5
    assert first.looked_successful is True


def test_a_note_is_redacted_before_it_is_cut(store):
    one = run()
    store.add(one)
    note = "x " * 1993 + "ada.lovelace@example.org"  # 4000 characters end within the address
    store.report_outcome(one.trace.id, success=True, note=note)
    (verdict,) = store.verdicts(one.trace.id)
    assert len(verdict.note) <= 4000
    assert "lovelace" not in verdict.note


def test_an_unknown_id_of_any_length_makes_a_short_message(store):
    with pytest.raises(UnknownRunError) as error:
        store.report_outcome("f" * 1_000_000, success=True)
    assert len(str(error.value)) < 1000


def test_what_a_verdict_took_back_is_not_begun(store):
    one = run(confidence=0.8)
    store.add(one, registry=REGISTRY)
    read = store.outbox.next_pending(REGISTRY)
    standing = store.outbox.standing(REGISTRY, "a key")
    tried = replace(read, attempts=1, changed_at=datetime.now(UTC))
    store.report_outcome(one.trace.id, success=False)
    assert store.outbox.begin(tried, standing, read=read) is False
    assert states(store) == {"withdrawn": 1}

    store.report_outcome(one.trace.id, success=True)
    read = store.outbox.next_pending(REGISTRY)
    assert store.outbox.begin(replace(read, attempts=1), standing, read=read) is True
    assert store.outbox.get(one.trace.id).attempts == 1


def test_a_body_whose_time_is_over_is_gone_from_the_file(tmp_path):
    one = run(threshold=0.99, keep_days=0.0)
    one.trace.steps[0].content = "told in confidence " * 1000
    for each in (one, run()):  # a process that begins looks for what is over
        with TraceStore(tmp_path / "traces.db") as store:
            store.add(each)
    assert all(b"in confidence" not in file.read_bytes() for file in tmp_path.iterdir())


def test_tasks_that_begin_alike_are_different_tasks(store):
    runs = [run(), run(), run()]
    for one, asked in zip(
        runs, ("Compare the quarters", "compare the years", "years"), strict=True
    ):
        one.trace.task.objective = "You know all about money. " * 100 + asked
    store.add_many(runs)
    for one in runs:
        store.report_outcome(one.trace.id, success=True)
    assert len({one.task for one in store.models.labelled("finance")}) == 3


def test_verdicts_in_any_order_leave_the_registry_what_passes(store):
    """Two threads change their minds, while a sender and a registry that fails are at work."""
    faults = itertools.cycle([None, "reset_after", None, "stored_500", "500", None, "reset_before"])
    runs = [run(confidence=0.8) for _ in range(3)]
    ids = [one.trace.id for one in runs]

    def judge(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(80):
            store.report_outcome(draw.choice(ids), success=draw.random() < 0.5)

    clock = Clock()
    with LoopbackRegistry(keys={KEY}, misbehave=lambda *_: next(faults)) as server:
        registry = to(server)
        store.add_many(runs, registry=registry.url)
        sender = Sender(store, registry, clock=clock)
        threads = [threading.Thread(target=judge, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            clock.skip(sender, sender._send_due() or 1.0)
        for thread in threads:
            thread.join()
        server.misbehave = lambda *_: None
        drive(sender, clock)
        passing = {id_ for id_ in ids if store.get(id_).decision == "contributed"}
        assert set(server.units) == passing
        assert {store.outbox.get(id_).status for id_ in passing} <= {"sent"}
        assert all(store.get(id_).success == store.verdicts(id_)[-1].success for id_ in ids)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_model_verdict_counts_only_where_there_is_no_other(store, order):
    verdicts = [
        {"success": False, "at": EARLIER, "source": "label"},
        {"success": True, "at": LATER, "source": "langfuse", "by_model": True},
        {"success": True, "at": EARLIER, "source": "langfuse", "by_model": True},
    ]
    scored = run(success=True)
    store.add(scored)
    for number in order:
        store.report_outcome(scored.trace.id, **verdicts[number])
    stored = store.get(scored.trace.id)
    assert (stored.success, stored.confidence_source) == (False, "label")
    assert [one.label for one in store.summaries()] == [False]
    assert [one.success for one in store.models.task_verdicts("finance")] == [False]
    assert sum(one.by_model for one in store.verdicts(scored.trace.id)) == 2


def test_a_model_verdict_alone_counts(store):
    scored = run(success=True)
    store.add(scored)
    (change,) = store.report_outcome(scored.trace.id, success=False, by_model=True)
    assert change.success is False
    assert [one.label for one in store.summaries()] == [False]


def test_a_run_as_sinks_receive_it_says_where_tools_have_it(store):
    external = ExternalTrace("e" * 32, "5" * 16, "agents")
    scored = replace(run(), external_traces={"langfuse": external})
    other = run()
    store.add_many([scored, other])
    again = store.scored(scored.trace.id)
    assert again is not None
    assert again.external_traces == {"langfuse": external}
    assert again.breakdown == scored.breakdown
    assert [step.content for step in again.trace.steps] == [
        step.content for step in scored.trace.steps
    ]
    assert store.scored("kp:trace:none") is None
    assert list(store.external_traces.of_tool("langfuse")) == [(scored.trace.id, external)]
    assert list(store.external_traces.of_tool("opik")) == []
    ids = dict(store.external_traces.run_ids())
    assert ids == {one.trace.id: str(one.run_id) for one in (scored, other)}
    store.delete(scored.trace.id)
    assert list(store.external_traces.of_tool("langfuse")) == []
