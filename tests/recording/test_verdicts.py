"""How a run ended: as it looks, as verifiers and reports say, and as a confidence model says."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents.middleware import ModelCallLimitMiddleware, ToolCallLimitMiddleware
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import ToolException, tool
from pydantic import BaseModel

from kp_langchain import (
    ConfigError,
    DomainPolicy,
    FinishedRun,
    KPCallbackHandler,
    Registry,
    ScoredTrace,
    Scorer,
    TraceStore,
    capture,
)
from kp_langchain.calibration.features import FEATURES_VERSION, complete_features, features_of
from kp_langchain.calibration.model import ConfidenceModel, estimated_score, estimated_worth
from kp_langchain.scoring import PROFILES
from tests.agents import (
    ASK,
    QUESTION,
    ScriptedChatModel,
    agent,
    broken,
    call,
    handler,
    run,
    say,
    search,
    searching,
)
from tests.loopback_registry import LoopbackRegistry
from tests.recording.playing import APPROVED, SECRET, approving, last, scored_by, stored
from tests.recording.test_bounds import Endless
from tests.store.conftest import execute


def yes(_: FinishedRun) -> bool:
    return True


def no(_: FinishedRun) -> bool:
    return False


# ------------------------------------------------------------------ as it looks

ENDINGS: dict[str, tuple[list[str | Exception], bool, bool]] = {
    # What the tool returns or raises, call by call; whether the run looks successful, and whether
    # its last call counts as failed. The agent answers as if nothing had happened.
    "a fine output": (["3 rooms are free"], True, False),
    "an error as text": (["Error: the hotel is not known"], False, True),
    "a program's traceback": (["Traceback (most recent call last):\nKeyError: 'x'"], False, True),
    "a raised error": ([ToolException("the hotel is not known")], False, True),
    "an error, then a fine output": (["Error: try again", "3 rooms are free"], True, False),
    "a raised error, then a fine output": ([ToolException("no"), "3 rooms are free"], True, False),
    "a fine output, then an error": (["3 rooms are free", "Error: sold out"], False, True),
    "words that describe": (["Missing: a film. It does not exist in colour."], True, False),
    "nothing": ([""], True, False),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_run_looks_successful_by_how_its_last_call_ended(name: str) -> None:
    outputs, succeeds, fails = ENDINGS[name]
    left = list(outputs)

    @tool
    def rooms(hotel: str) -> str:
        """Search for rooms."""
        output = left.pop(0)
        if isinstance(output, Exception):
            raise output
        return output

    rooms.handle_tool_error = True
    answers = [say("", call("rooms", f"c{at}", hotel="Ritz")) for at in range(len(outputs))]
    scored = run(agent(*answers, say("The Ritz has 3 rooms."), tools=(rooms,)))
    assert scored.trace.metadata.success is succeeds
    assert scored.features is not None
    assert complete_features(scored.features, scored.trace)["last_observation_fails"] == fails


# ------------------------------------------------------------------ what somebody says of it


class Form(BaseModel):
    value: int
    confidence: float


SAYS: list[tuple[Any, bool, float, bool]] = [
    # An answer; the success and confidence it gives; whether it has stated a confidence.
    (None, True, 0.8, False), ({}, True, 0.8, False), (True, True, 0.8, False),
    (False, False, 0.2, False), (0.3, True, 0.3, True), (1, True, 1.0, True),
    ({"success": False, "confidence": 0.6}, False, 0.6, True), ({"confidence": 0}, True, 0.0, True),
    ({"success": False, "confidence": 0.9, "note": "wrong number"}, False, 0.9, True),
    (np.bool_(False), False, 0.2, False), (np.float32(0.5), True, 0.5, True),
    ({"success": np.bool_(False), "confidence": np.float64(0.25)}, False, 0.25, True),
    ({"success": None, "note": "hm"}, True, 0.8, False),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "success", "confidence", "is_stated"), SAYS)
def test_what_an_outcome_function_or_a_verifier_says(
    answer: Any, success: bool, confidence: float, is_stated: bool
) -> None:
    def grade(finished: FinishedRun) -> Any:
        assert (finished.objective, finished.answer, len(finished.steps)) == (QUESTION, "42", 4)
        return answer

    async def agrade(_: FinishedRun) -> Any:
        await asyncio.sleep(0)
        return answer

    options: dict[str, dict[str, Any]] = {
        "outcome function": {"outcome": grade},
        "verifier grade": {"verifiers": [grade]},
        "verifier agrade": {"verifiers": [agrade]},
    }
    for source, functions in options.items():
        scored = run(searching(), **functions)
        assert scored.trace.metadata.success is success
        assert scored.trace.outcome.confidence == confidence
        assert scored.breakdown.confidence_source == (source if is_stated else "default")


def test_each_source_counts_before_those_after_it() -> None:
    def work(question: str) -> Any:
        dispatch_custom_event("kp.outcome", {"success": False, "confidence": 0.9})
        return searching().invoke({"messages": [("user", question)]})

    scored = run(
        RunnableLambda(work), QUESTION, outcome=lambda _: {"confidence": 7}, verifiers=[yes]
    )
    assert (scored.trace.metadata.success, scored.trace.outcome.confidence) == (False, 0.9)
    made = agent(say("", call("Form", value=1, confidence=0.91)), response_format=Form)
    assert run(made, outcome=lambda _: 0.4).trace.outcome.confidence == 0.4


def test_the_first_verifier_that_says_a_success_wins_and_no_further_one_is_asked() -> None:
    asked = []

    def named(name: str, answer: Any) -> Any:
        def verifier(_: FinishedRun) -> Any:
            asked.append(name)
            return answer

        return verifier

    verifiers = [named("a", None), named("b", False), named("c", True)]
    assert run(searching(), verifiers=verifiers).trace.metadata.success is False
    assert run(searching(), outcome=yes, verifiers=verifiers).trace.metadata.success is True
    assert asked == ["a", "b"]


def test_a_verifier_sees_redacted_text_only_and_changes_nothing() -> None:
    seen: list[FinishedRun] = []

    def vandal(finished: FinishedRun) -> None:
        seen.append(finished)
        assert SECRET not in repr(finished)
        assert "me@example.org" not in repr(finished)
        for step in finished.steps:
            step.content = SECRET

    leaky = agent(
        say(f"I use {SECRET}", call("search", q=SECRET)), say(f"Mail me@example.org, {SECRET}")
    )
    watching = handler(verifiers=[vandal])
    inputs = {"messages": [("user", f"log in with {SECRET}")]}
    scored = last(watching, leaky, inputs, metadata={"token": SECRET})
    assert SECRET not in scored.trace.model_dump_json()
    (finished,) = seen
    assert finished.objective == scored.trace.task.objective
    assert finished.answer == scored.trace.outcome.result_summary
    assert (finished.output, finished.metadata, finished.error) == (None, {}, "")
    assert (finished.run_id, finished.success) == (scored.run_id, True)

    def fail(q: str) -> str:
        """Fail."""
        raise ConnectionError(f"refused for {SECRET}")

    failing = agent(say("", call("fail", q="a")), tools=(tool(fail),))
    with pytest.raises(ConnectionError):
        failing.invoke(ASK, {"callbacks": [watching]})
    assert watching.flush()
    assert "ConnectionError" in seen[1].error
    assert (seen[1].answer, seen[1].success) == ("", False)

    def cannot(_: str) -> str:
        raise OSError

    run(searching(), redactor=cannot, verifiers=[vandal])
    assert len(seen) == 2  # what cannot be redacted is shown to no verifier


class Weird:
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


class SilentError(Exception):
    def __str__(self) -> str:
        raise SystemExit(SECRET)


async def araising(_: FinishedRun) -> Any:
    raise RuntimeError(SECRET)


def raising(error: BaseException) -> Any:
    def verifier(_: FinishedRun) -> Any:
        raise error

    return verifier


HURTFUL: list[Any] = [
    *(raising(error) for error in (
        ValueError(SECRET), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), SilentError(),
    )),
    araising,
    *((lambda _, answer=answer: answer) for answer in (
        SECRET, 7, float("nan"), 10**400, {"success": True, "score": 1}, {"success": 1},
        {"confidence": SECRET}, {"confidence": True}, {"sucess": True}, {"success": {"a": {}}},
        {"success": True, "note": 7}, [True], b"x" * 50_000_000, Endless(value=1), Weird(), object,
    )),
]  # fmt: skip


@pytest.mark.parametrize("function", HURTFUL, ids=range(len(HURTFUL)))
def test_whatever_a_verifier_or_an_outcome_function_does_costs_its_opinion_only(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watching = handler(verifiers=[function, no])
    for _ in range(2):
        scored = last(watching)
        assert scored.trace.metadata.success is False  # the next one was asked
    stats = watching.stats()
    assert (stats["scored"], stats["failed"], stats["verifier_errors"]) == (2, 0, 2)
    assert len([one for one in caplog.messages if "verifier_errors" in one]) == 1
    if function is not araising:
        watching = handler(outcome=function)
        assert last(watching).breakdown.confidence_source == "default"
        assert (watching.stats()["failed"], watching.stats()["outcome_errors"]) == (0, 1)
    assert SECRET not in caplog.text


def test_late_verifiers_are_given_up_and_only_so_many_of_them_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "0.01")
    end, ended = threading.Event(), threading.Event()

    async def ahang(_: FinishedRun) -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    watching = handler(verifiers=[lambda _: end.wait()])
    for _ in range(30):
        last(watching)
    stats = watching.stats()
    assert stats["verifier_timeouts"] + stats["verifiers_skipped"] == stats["scored"] == 30
    assert stats["verifiers_skipped"] > 0
    end.set()
    watching = handler(verifiers=[ahang])
    last(watching)
    assert watching.stats()["verifier_timeouts"] == 1
    assert ended.wait(60)


def test_what_a_verifier_itself_runs_is_not_recorded() -> None:
    judge = ScriptedChatModel([say("good")] * 9)

    def with_a_model(_: FinishedRun) -> bool:
        return judge.invoke("?").content == "good"

    with capture(store=None, scorer=Scorer(embedder=None), verifiers=[with_a_model]) as watching:
        searching().invoke(ASK)
        assert watching.flush()
    assert watching.stats()["runs"] == watching.stats()["scored"] == 1

    # Not even where the model brings the handler itself, which would have no end.
    def with_the_handler(_: FinishedRun) -> bool:
        return judge.invoke("?", {"callbacks": [watching]}).content == "good"

    watching = handler(verifiers=[with_the_handler])
    last(watching)
    stats = watching.stats()
    assert (stats["runs"], stats["scored"], stats["by_verifiers"]) == (2, 1, 1)


# ------------------------------------------------------------------ verdicts that are reported


@pytest.fixture
def store(folder: Path) -> TraceStore:
    return TraceStore(folder / "traces.db")


def judged(watching: KPCallbackHandler, run_id: UUID | str, **verdict: Any) -> None:
    watching.report_outcome(run_id, **verdict)
    assert watching.flush(300)


def test_a_run_that_is_scored_again_is_delivered_like_a_new_one(store: TraceStore) -> None:
    scored: list[ScoredTrace] = []
    watching, run_id = handler(store=store, on_scored=scored.append), uuid4()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    judged(watching, run_id, success=False, note="wrong town")  # needs no flush before
    first, again = scored
    assert (first.previous, first.run_id, again.run_id) == (None, run_id, run_id)
    assert again.previous is not None
    assert again.previous.breakdown == first.breakdown
    assert again.trace.id == first.trace.id
    assert again.breakdown.total < first.breakdown.total
    assert watching.last(300) is first
    kept = stored(store, again)
    assert (kept.success, kept.confidence, kept.confidence_source) == (False, 0.0, "reported")
    judged(watching, first.trace.id, success=True)
    assert [one.trace.metadata.success for one in scored] == [True, False, True]
    verdicts = {(one.success, one.note) for one in store.verdicts(first.trace.id)}
    assert verdicts == {(False, "wrong town"), (True, None)}
    assert watching.stats()["rescored"] == 2


def test_a_verdict_while_the_run_is_under_way_counts_when_it_is_scored(store: TraceStore) -> None:
    watching, run_id = handler(store=store, outcome=yes), uuid4()

    @tool
    def look(q: str) -> str:
        """Look."""
        watching.report_outcome(str(run_id), success=False, note="seen at once")
        return q

    looking = agent(say("I look.", call("look", q="a")), say("It is Paris."), tools=(look,))
    scored = last(watching, looking, run_id=run_id)
    assert (scored.trace.metadata.success, scored.trace.outcome.confidence) == (False, 0.0)
    (verdict,) = store.verdicts(scored.trace.id)
    assert (verdict.source, verdict.note) == ("reported", "seen at once")
    assert watching.stats()["rescored"] == 0


def test_what_passes_by_a_verdict_is_sent_and_what_fails_is_deleted(store: TraceStore) -> None:
    just_above = run(searching()).breakdown.total + 0.01
    policy = DomainPolicy(threshold=just_above, visibility="network")
    with LoopbackRegistry() as registry:
        to = Registry(registry.url, api_key="kp_key")
        watching = handler(store=store, policy=policy, registry=to)
        trace_id = last(watching).trace.id
        for success, sent in ((True, [trace_id]), (False, []), (True, [trace_id])):
            watching.report_outcome(trace_id, success=success)
            assert watching.send(300)
            assert list(registry.units) == sent
            counted = "sent" if success else "withdrawn"
            assert store.outbox.counts()[counted] == 1


def test_verdicts_that_are_of_no_use_are_counted_or_told(store: TraceStore) -> None:
    watching = handler(store=store)
    for _ in range(3):
        judged(watching, uuid4(), success=True)
    stats = watching.stats()
    assert (stats["verdict_errors"], stats["waiting_to_store"]) == (3, 0)
    with pytest.raises(ConfigError, match="store=None"):
        handler().report_outcome(uuid4(), success=True)
    with pytest.raises(ConfigError, match="says nothing"):
        watching.report_outcome(uuid4())


def test_a_verdict_waits_for_a_store_that_cannot_be_written_and_holds_up_no_other(
    store: TraceStore,
) -> None:
    watching = handler(store=store)
    ids = [last(watching).trace.id for _ in range(2)]
    with closing(sqlite3.connect(store.location)) as other:
        other.execute("ALTER TABLE verdicts RENAME TO gone")
        watching.report_outcome(ids[0], success=False)
        assert not watching.flush(300)
        assert watching.stats()["waiting_to_store"] == 1
        other.execute("ALTER TABLE gone RENAME TO verdicts")
        assert watching.flush(300)
        other.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON verdicts "
            f"WHEN NEW.trace_id = '{ids[0]}' BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
        for trace_id in ids:
            watching.report_outcome(trace_id, success=False)
        assert not watching.flush(300)
        assert [len(store.verdicts(one)) for one in ids] == [1, 1]
        assert watching.stats()["waiting_to_store"] == 1
        other.execute("DROP TRIGGER refuse")
        assert watching.flush(300)


def test_notes_go_through_the_handlers_redactor_once(store: TraceStore) -> None:
    texts: list[str] = []

    def redact(text: str) -> str:
        texts.append(text)
        return text.replace("Ada", "[name]")

    watching = handler(store=store, redactor=redact)
    scored = last(watching)
    judged(watching, scored.trace.id, success=True, note="Ada checked it")
    assert texts.count("Ada checked it") == 1
    assert [verdict.note for verdict in store.verdicts(scored.trace.id)] == ["[name] checked it"]


def test_on_scored_may_report_an_outcome_of_each_run_and_fail(
    store: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    def judge(run: ScoredTrace) -> None:
        if run.previous is None:
            watching.report_outcome(run.trace.id, success=False)
        raise LookupError(run.run_id)

    watching = handler(store=store, on_scored=judge)
    with caplog.at_level(logging.INFO, "kp_langchain"):
        scored = last(watching)
        while not watching.stats()["rescored"]:  # it is reported while its run is delivered
            assert watching.flush(300)
        assert watching.flush(300)  # until the second delivery has ended too
    assert stored(store, scored).success is False
    assert watching.stats()["on_scored_errors"] == 2
    assert "kp.trace_rescored" in [getattr(record, "kp_event", "") for record in caplog.records]


@pytest.mark.filterwarnings("ignore:Direct attribute assignment:DeprecationWarning")
def test_threads_report_while_runs_end(store: TraceStore) -> None:
    watching = handler(store=store)
    ids = [uuid4() for _ in range(12)]

    def work(mine: list[UUID]) -> None:
        for run_id in mine:
            searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
            watching.report_outcome(run_id, success=run_id.int % 2 == 0)

    threads = [threading.Thread(target=work, args=(ids[at::3],)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watching.flush(60)
    judged_ = {one.run_id: one.success for one in store.runs(limit=None)}
    assert judged_ == {str(run_id): run_id.int % 2 == 0 for run_id in ids}


def test_what_the_outcome_function_says_is_a_verdict_for_calibration(store: TraceStore) -> None:
    watching = handler(store=store, outcome=lambda run: {"success": False, "note": run.objective})
    for metadata in ({"kp_task": "desk/1"}, {"kp_task": "desk/1"}, {"kp_task": 2}, {}):
        scored = last(watching, metadata=metadata)
    (verdict,) = store.verdicts(scored.trace.id)
    assert (verdict.success, verdict.source) == (False, "outcome function")
    labelled = store.models.labelled("default")
    assert (labelled[-1].success, labelled[-1].looked_successful) == (False, True)
    assert labelled[-1].features == features_of(
        scored.trace, looked_successful=True, proves_failure=False
    )
    assert [one.features.get("agreement") for one in labelled] == [1.0, 1.0, None, None]
    first, again, other, untold = [one.task for one in labelled]
    assert first == again != other != untold
    assert "desk" not in first


# ------------------------------------------------------------------ a confidence model

CONFIDENCE = 0.7109495


def model(**changes: Any) -> ConfidenceModel:
    """Return a model by which every run is right with the probability `CONFIDENCE`."""
    fields: dict[str, Any] = {
        "domain": "default", "features_version": FEATURES_VERSION, "runs": 214, "tasks": 90,
        "created_at": datetime(2026, 3, 1, tzinfo=UTC), "base_rate": 0.5, "auc": 0.74,
        "auc_low": 0.67, "auc_high": 0.8, "brier": 0.2, "default_brier": 0.3, "intercept": 0.9,
        "terms": (), "worths": tuple(number / 100 for number in range(100)),
    }  # fmt: skip
    return ConfidenceModel(**fields | changes)


@pytest.fixture
def with_model(store: TraceStore) -> TraceStore:
    store.models.install(model())
    return store


def no_answer() -> Any:
    """An agent whose run looks like a failure."""
    return agent(say("I search.", call("search", q="a")), say(""))


def test_a_model_gives_the_confidence_nobody_else_gives(with_model: TraceStore) -> None:
    scored = last(handler(store=with_model))
    assert scored.trace.outcome.confidence == pytest.approx(CONFIDENCE)
    assert "confidence 0.71 (calibrated on 214 runs, AUC 0.74)" in scored.breakdown.text()
    assert scored.trace.metadata.success is True
    elsewhere = last(handler("finance", store=with_model))
    assert elsewhere.breakdown.confidence_source == "default"
    assert last(handler(store=with_model, outcome=no)).trace.outcome.confidence == 0.2
    assert with_model.models.remove("default") is True
    elsewhere = last(handler(store=TraceStore(with_model.location)))
    assert elsewhere.breakdown.confidence_source == "default"


@pytest.mark.parametrize("change", [("features_version", 99), ("terms", 1)])
def test_a_model_that_cannot_be_used_leaves_the_default(
    with_model: TraceStore, change: tuple[str, int]
) -> None:
    with closing(sqlite3.connect(with_model.location)) as other:
        path = (f"$.{change[0]}", change[1])
        other.execute("UPDATE models SET body = json_set(body, ?, ?)", path)
        other.commit()
    watching = handler(store=TraceStore(with_model.location))
    assert last(watching).breakdown.confidence_source == "default"
    assert watching.stats()["failed"] == 0


def test_a_model_of_another_version_takes_the_one_in_use_out_of_force(
    with_model: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kp_langchain.recording.windows._READ_AGAIN_S", 0.0)
    watching = handler(store=with_model)
    assert last(watching).trace.outcome.confidence == pytest.approx(CONFIDENCE)
    later = datetime(2026, 4, 1, tzinfo=UTC)
    with_model.models.install(model(features_version=99, created_at=later))
    assert last(watching).breakdown.confidence_source == "default"


@pytest.mark.parametrize(("confidence", "success"), [(0.5, True), (0.49, False)])
def test_a_run_that_looks_like_a_failure_is_a_success_if_that_is_likelier(
    store: TraceStore, confidence: float, success: bool
) -> None:
    store.models.install(model(intercept=math.log(confidence / (1 - confidence))))
    scored = last(handler(store=store), no_answer())
    assert scored.trace.metadata.success is success
    outcome = scored.breakdown.outcome_confidence
    assert outcome.value == scored.trace.outcome.confidence == pytest.approx(confidence)
    assert outcome.why.endswith("succeeded" if success else "looked like a failure")
    kept = stored(store, scored)
    assert (kept.success, kept.score) == (success, scored.breakdown.total)
    # What calibrate would say of it.
    store.report_outcome(scored.trace.id, success=True)
    (labelled,) = store.models.labelled("default")
    estimate = estimated_score(labelled, PROFILES["default"], confidence)
    assert estimate == pytest.approx(kept.score)
    assert estimated_worth(labelled, confidence) == pytest.approx(kept.worth)


@pytest.mark.parametrize("limit", [ModelCallLimitMiddleware, ToolCallLimitMiddleware])
def test_a_run_that_a_limit_ends_proves_its_failure(limit: Any) -> None:
    pytest.importorskip("langgraph.callbacks", reason="older limits answer in other words")
    asks = [say("", call("search", f"c{at}", q=str(at))) for at in range(2)]
    scored = run(agent(*asks, middleware=[limit(run_limit=1, exit_behavior="end")]))
    assert scored.features is not None
    assert scored.features["proves_failure"] == 1.0


def test_a_failure_that_is_proved_or_stated_counts_whatever_the_model_says(
    with_model: TraceStore,
) -> None:
    watching = handler(store=with_model)
    failing = agent(say("", call("broken", x="1")), tools=(broken,))
    with pytest.raises(ValueError, match="bad x"):
        failing.invoke(ASK, {"callbacks": [watching]})
    scored = scored_by(watching)
    assert scored.trace.metadata.success is False
    assert scored.breakdown.outcome_confidence.value == pytest.approx(CONFIDENCE * 0.3)
    assert scored.features is not None
    assert scored.features["proves_failure"] == 1.0
    stated = handler(store=with_model, outcome=lambda _: {"success": False, "confidence": 0.5})
    scored = last(stated)
    assert scored.breakdown.outcome_confidence.value == pytest.approx(0.15)
    assert scored.worth == pytest.approx(0.15 * 0.875)


def test_worth_stands_beside_the_score_and_the_score_stays_the_gate(
    with_model: TraceStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kp_langchain"):
        scored = last(handler(store=with_model))
    assert scored.worth == pytest.approx(CONFIDENCE * 0.875)
    (record,) = (one for one in caplog.records if hasattr(one, "worth"))
    kept = stored(with_model, scored)
    for one in (scored, vars(record), kept):
        gate, worth = (
            (one["gate"], one["worth"]) if isinstance(one, dict) else (one.gate, one.worth)
        )
        assert (gate, worth) == ("score", scored.worth)

    def boast(_: object) -> dict[str, float]:
        search.invoke({"q": "a"})
        return {"confidence": 1.0}

    boasting = last(handler(store=with_model), RunnableLambda(boast), "how sure are you?")
    assert boasting.breakdown.confidence_source == "structured output"
    assert boasting.breakdown.worth is not None
    assert boasting.breakdown.worth.confidence == pytest.approx(CONFIDENCE)


def test_a_domain_with_a_model_may_be_gated_by_worth(with_model: TraceStore) -> None:
    for worth_threshold, decision in ((0.6, "kept"), (0.65, "below_threshold")):
        policy = DomainPolicy(gate="worth", worth_threshold=worth_threshold, threshold=1.0)
        scored = last(handler(store=with_model, policy=policy))
        assert (scored.gate, scored.threshold) == ("worth", worth_threshold)
        assert scored.decision == decision
    for success, worth, decision in ((True, 0.875, "kept"), (False, 0.0, "below_threshold")):
        (change,) = with_model.report_outcome(scored.trace.id, success=success)
        assert (change.gate, change.worth, change.decision) == ("worth", worth, decision)
        kept = stored(with_model, scored)
        assert (kept.gate, kept.worth, kept.decision) == ("worth", worth, decision)
    without = last(handler(store=TraceStore("other.db"), policy=policy))
    assert (without.gate, without.worth, without.threshold) == ("score", None, 1.0)


def test_with_a_model_the_best_tenth_passes_unless_a_threshold_is_set(store: TraceStore) -> None:
    # The model is less sure than the default was: the built-in thresholds were not made for it.
    store.models.install(model(scores=tuple(number / 200 for number in range(100))))
    scored = last(handler(store=store))
    assert (scored.gate, scored.threshold, scored.decision) == ("score", 0.45, "kept")
    fixed = last(handler(store=store, policy=DomainPolicy(threshold=0.59)))
    assert (fixed.gate, fixed.threshold) == ("score", 0.59)


def test_the_rate_begins_with_the_models_held_out_worths_and_survives_a_restart(
    with_model: TraceStore,
) -> None:
    policy = DomainPolicy(gate="worth", pass_rate=0.3)
    first = last(handler(store=with_model, policy=policy))
    assert (first.gate, first.threshold) == ("worth", pytest.approx(0.7))
    again = last(handler(store=TraceStore(with_model.location), policy=policy))
    # One run of 101 did not pass, of which 0.3 should have: of the next, 0.315 are to pass.
    assert again.threshold == pytest.approx(0.68)


@given(
    reported=st.none() | st.booleans(),
    outcome=st.none() | st.booleans() | st.floats(0, 1),
    verifier=st.none() | st.booleans() | st.floats(0, 1),
)
def test_success_and_confidence_come_each_from_the_first_source_that_tells(
    reported: bool | None, outcome: Any, verifier: Any
) -> None:
    def work(question: str) -> Any:
        if reported is not None:
            dispatch_custom_event("kp.outcome", {"success": reported})
        return searching().invoke({"messages": [("user", question)]})

    scored = run(
        RunnableLambda(work), QUESTION, outcome=lambda _: outcome, verifiers=[lambda _: verifier]
    )
    said = [one for one in (outcome, reported, verifier) if isinstance(one, bool)]
    assert scored.trace.metadata.success is (said[0] if said else True)
    asked = [outcome] if said[:1] in ([outcome], [reported]) else [outcome, verifier]
    sure = [one for one in asked if isinstance(one, float)]
    default = 0.8 if scored.trace.metadata.success else 0.2
    assert scored.trace.outcome.confidence == (sure[0] if sure else default)


def test_a_verdict_waits_for_the_run_that_it_is_on() -> None:
    watching = handler(store="kp.db")
    for number in range(8):  # what was recorded before a pause is read from the store
        config = {"callbacks": [watching], "configurable": {"thread_id": str(number)}}
        made, run_id = approving(), uuid4()
        made.invoke(ASK, config)
        made.invoke(APPROVED, {**config, "run_id": run_id})
        watching.report_outcome(run_id, success=True)
    assert watching.flush(300)
    assert watching.stats()["verdict_errors"] == 0
    with TraceStore("kp.db") as store:
        assert len(execute(store, "SELECT * FROM verdicts")) == 8


def test_a_verdict_that_cannot_be_kept_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watching = handler(store="kp.db")
    damaged = last(watching).trace.id
    with TraceStore("kp.db") as store:
        execute(store, "UPDATE bodies SET trace = '{}'")
    watching.report_outcome(damaged, success=True)
    assert not watching.flush(300)
    assert watching.stats()["not_stored"] == 1
    assert "a verdict cannot be kept in the store" in caplog.text
    assert last(watching).stored
    assert watching.flush(300)
