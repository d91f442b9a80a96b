"""The handler as its owner uses it: gate, log, outcome, what goes wrong, what is bounded."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from pydantic import BaseModel

from kp_langchain import (
    ConfigError,
    DomainPolicy,
    FinishedRun,
    KPCallbackHandler,
    Registry,
    ScoredTrace,
    Scorer,
    ScoringWeights,
    TraceStore,
    capture,
)
from kp_langchain.novelty_sources import STILL_LOADING
from kp_langchain.recording.worker import intake
from kp_langchain.score_log import log_scored
from tests.agents import (
    ASK,
    QUESTION,
    ScriptedChatModel,
    agent,
    call,
    handler,
    run,
    say,
    search,
    searching,
    shape,
)
from tests.loopback_registry import LoopbackRegistry

ALWAYS = DomainPolicy(threshold=0.0)
NEVER = DomainPolicy(threshold=1.0)


def test_the_last_scored_run_is_there_after_the_agent_returned() -> None:
    watching = handler("finance")
    assert watching.last(0.1) is None
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    assert scored.trace.metadata.task_domain == "finance"
    assert scored.trace.metadata.quality_score == scored.breakdown.total
    assert scored.breakdown.profile == "finance"
    assert scored.trace.outcome.result_summary == "42"


def test_run_id_is_langchains() -> None:
    run_id = uuid4()
    watching = handler()
    searching().invoke(ASK, {"callbacks": [watching], "run_id": run_id})
    scored = watching.last()
    assert scored is not None
    assert scored.run_id == run_id


@pytest.mark.parametrize(
    ("policy", "decision"), [(ALWAYS, "contributed"), (NEVER, "below_threshold")]
)
def test_the_gate_decides_and_the_store_keeps_for_good_what_passed(
    policy: DomainPolicy, decision: str, tmp_path: Path
) -> None:
    with TraceStore(tmp_path / "t.db") as store:
        watching = handler(policy=policy, store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        assert scored.decision == decision
        assert watching.stats()[decision] == 1
        stored = store.get(scored.trace.id)
        assert stored is not None
        assert stored.decision == decision
        assert stored.breakdown == scored.breakdown
        assert stored.trace == scored.trace
        assert (stored.kept_until is None) == (decision == "contributed")


def test_keep_all_keeps_the_body_of_a_run_that_did_not_pass(tmp_path: Path) -> None:
    with TraceStore(tmp_path / "t.db") as store:
        watching = handler(policy=DomainPolicy(threshold=1.0, keep="all"), store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        stored = store.get(str(scored.run_id))
        assert stored is not None
        assert stored.trace == scored.trace


def test_policy_weights_visibility_and_privacy_reach_the_trace() -> None:
    policy = DomainPolicy(
        weights=ScoringWeights(0.0, 0.0, 0.0, 1.0), visibility="org", privacy_level="federated"
    )
    watching = handler("finance", policy={"finance": policy})
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    assert scored.breakdown.outcome_confidence.weight == 1.0
    assert scored.trace.metadata.visibility == "org"
    assert scored.trace.metadata.privacy_level == "federated"


def test_the_runs_metadata_names_the_domain() -> None:
    watching = handler("finance")
    searching().invoke(ASK, {"callbacks": [watching], "metadata": {"kp_domain": "medical"}})
    scored = watching.last()
    assert scored is not None
    assert scored.breakdown.profile == "medical"


def test_kp_toml_and_environment_set_the_threshold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("kp.toml").write_text("[domains.finance]\nthreshold = 0.11\n")
    assert run_threshold("finance") == 0.11
    monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.22")
    assert run_threshold("finance") == 0.22
    assert run_threshold("finance", policy=DomainPolicy(threshold=0.33)) == 0.33


def run_threshold(domain: str, **options: Any) -> float:
    return run(searching(), domain=domain, **options).threshold


def test_agent_id_is_written_in_the_protocols_form() -> None:
    assert run(searching(), agent_id="a1").trace.metadata.agent_id == "kp:agent:a1"
    assert run(searching(), agent_id="kp:agent:b").trace.metadata.agent_id == "kp:agent:b"
    assert run(searching()).trace.metadata.agent_id is None


def test_mcp_server_comes_from_the_tools_metadata() -> None:
    remote = search.model_copy(update={"metadata": {"mcp_server": "github"}})
    made = agent(say("", call("search", q="a")), say("42"), tools=(remote,))
    step = run(made).trace.steps[0]
    assert step.tool is not None
    assert step.tool.mcp_server == "github"


def test_steps_hold_inputs_outputs_and_latency() -> None:
    thought, asked, seen, last = run(searching()).trace.steps
    assert thought.content == "I search."
    assert asked.input == {"q": "a"}
    assert seen.content == "result for a"
    assert seen.latency_ms is not None
    assert last.content == "42"


# ------------------------------------------------------------------ logging


def test_every_scored_run_gives_one_record_with_every_figure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        scored = run(searching(), domain="finance")
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "kp.trace_scored"]
    fields = vars(record)
    assert record.levelno == logging.INFO
    assert fields["score"] == scored.breakdown.total
    assert fields["threshold"] == scored.threshold
    assert fields["decision"] == scored.decision
    assert fields["trace_id"] == scored.trace.id
    assert fields["run_id"] == str(scored.run_id)
    assert fields["confidence_source"] == "default"
    for name in ("complexity", "novelty", "tool_diversity", "outcome_confidence"):
        dimension = getattr(scored.breakdown, name)
        assert fields[name] == dimension.value
        assert fields[f"{name}_weight"] == dimension.weight
        assert fields[f"{name}_contribution"] == dimension.contribution
    json.dumps({key: value for key, value in fields.items() if key not in ("args", "exc_info")})
    assert f"{scored.breakdown.total:.3f}" in record.getMessage()


@pytest.mark.parametrize(
    ("objective", "level", "logged"),
    [
        ("Buy bread", "aggregated", "Buy bread"),
        ("word " * 30, "aggregated", "word " * 11 + "word"),
        ("é" * 100, "aggregated", "é" * 60),
        (
            "  one\nkp.trace_scored\ttwo\x1b[2J\u202e",
            "aggregated",
            "one kp.trace_scored two\ufffd[2J\ufffd",
        ),
        ("Write to ann@example.org", "aggregated", "Write to [REDACTED:email]"),
        ("Write to ann@example.org", "private", "Write to [REDACTED:email]"),
    ],
)
def test_a_log_line_ends_with_the_beginning_of_the_redacted_task(
    caplog: pytest.LogCaptureFixture, objective: str, level: str, logged: str
) -> None:
    policy = DomainPolicy(privacy_level=level)
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        scored = run(searching(), {"messages": [("user", objective)]}, policy=policy)
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "kp.trace_scored"]
    assert record.getMessage().endswith(f" | {scored.trace.id} | {logged}")
    assert vars(record)["objective"] == logged


def test_a_log_line_of_a_run_without_a_task_ends_with_its_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        scored = run(searching(), objective=lambda _: "")
    scored.trace.task.objective = " "
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        log_scored(scored, has_registry=False)
    record = caplog.records[-1]
    assert record.getMessage().endswith(f" | {scored.trace.id}")
    assert vars(record)["objective"] == ""


@pytest.mark.parametrize(("registry", "word"), [(None, "kept"), ("https://r.test", "contributed")])
def test_a_log_line_says_kept_where_no_registry_is_set(
    caplog: pytest.LogCaptureFixture, registry: str | None, word: str
) -> None:
    with caplog.at_level(logging.INFO, logger="kp_langchain"), TraceStore("runs.db") as store:
        run(searching(), domain="finance", policy=ALWAYS, store=store, registry=registry)
    (record,) = [r for r in caplog.records if getattr(r, "event", "") == "kp.trace_scored"]
    assert record.getMessage().startswith(f"kp.trace_scored finance {word} (threshold")
    assert vars(record)["decision"] == "contributed"


# ------------------------------------------------------------------ outcome


@pytest.mark.parametrize(
    ("report", "success", "confidence", "source"),
    [
        (None, True, 0.8, "default"),
        (True, True, 0.8, "default"),
        (False, False, 0.2, "default"),
        (0.7, True, 0.7, "outcome function"),
        ({"success": False, "confidence": 0.6}, False, 0.6, "outcome function"),
        ({"confidence": 0}, True, 0.0, "outcome function"),
        ({}, True, 0.8, "default"),
    ],
)
def test_outcome_function(report: Any, success: bool, confidence: float, source: str) -> None:
    seen: list[FinishedRun] = []

    def judge(finished: FinishedRun) -> Any:
        seen.append(finished)
        return report

    scored = run(searching(), outcome=judge)
    assert scored.trace.metadata.success is success
    assert scored.trace.outcome.confidence == confidence
    assert scored.breakdown.confidence_source == source
    assert seen[0].objective == QUESTION
    assert seen[0].answer == "42"
    assert seen[0].output["messages"][-1].content == "42"  # type: ignore[index]
    assert [step.type for step in seen[0].steps] == [s.type for s in scored.trace.steps]


@pytest.mark.parametrize("report", [7, "yes", float("nan"), {"confidence": 2}, {"success": 1}])
def test_an_unusable_report_is_counted_and_passed_over(
    report: Any, caplog: pytest.LogCaptureFixture
) -> None:
    watching = handler(outcome=lambda _: report)
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    assert scored.breakdown.confidence_source == "default"
    assert watching.stats()["outcome_errors"] == 1


class _Form(BaseModel):
    value: int
    confidence: float


def test_confidence_from_structured_output() -> None:
    made = agent(say("", call("_Form", value=1, confidence=0.91)), response_format=_Form)
    scored = run(made)
    assert scored.trace.outcome.confidence == 0.91
    assert scored.breakdown.confidence_source == "structured output"


def test_confidence_from_token_probabilities() -> None:
    answer = AIMessage(
        "yes",
        response_metadata={"logprobs": {"content": [{"logprob": 0.0}, {"logprob": -0.6931472}]}},
    )
    scored = run(agent(answer))
    assert scored.trace.outcome.confidence == pytest.approx(0.75)
    assert scored.breakdown.confidence_source == "token probabilities"


def test_what_the_caller_reported_comes_before_what_the_output_says() -> None:
    made = agent(say("", call("_Form", value=1, confidence=0.91)), response_format=_Form)
    assert run(made, outcome=lambda _: 0.4).trace.outcome.confidence == 0.4


def test_objective_function_comes_first_and_may_fail() -> None:
    assert run(searching(), objective=lambda _: "mine").trace.task.objective == "mine"
    assert run(searching(), objective=lambda _: None).trace.task.objective == QUESTION
    assert run(searching(), objective=lambda x: x["no"]).trace.task.objective == QUESTION


# ------------------------------------------------------------------ several handlers


def test_two_handlers_of_different_domains_record_one_run_each_for_itself() -> None:
    class Lengths:
        def embed(self, texts: Any) -> Any:
            import numpy as np

            return np.ones((len(texts), 4), dtype="float32")

    shared = Scorer(embedder=Lengths())
    one, other = handler("finance", scorer=shared), handler("code", scorer=shared)
    searching().invoke(ASK, {"callbacks": [one, other]})
    first, second = one.last(), other.last()
    assert first is not None
    assert second is not None
    assert (first.breakdown.profile, second.breakdown.profile) == ("finance", "code")
    assert first.trace.id != second.trace.id
    # One experience: neither is a precedent for the other.
    assert first.breakdown.novelty.value == second.breakdown.novelty.value == 0.5
    searching().invoke(ASK, {"callbacks": [one]})
    again = one.last()
    assert again is not None
    assert again.breakdown.novelty.value == pytest.approx(0.0, abs=1e-6)


def test_capture_records_runs_inside_the_block_only() -> None:
    with capture("finance", store=None, scorer=Scorer(embedder=None)) as watching:
        searching().invoke(ASK)
    searching().invoke(ASK)
    assert watching.flush()
    assert watching.stats()["runs"] == 1
    scored = watching.last()
    assert scored is not None
    assert scored.breakdown.profile == "finance"


def test_capture_around_async_code() -> None:
    async def main() -> KPCallbackHandler:
        with capture(store=None, scorer=Scorer(embedder=None)) as watching:
            await asyncio.gather(*(searching().ainvoke(ASK) for _ in range(5)))
        return watching

    watching = asyncio.run(main())
    assert watching.flush()
    assert watching.stats()["scored"] == 5


def test_resume_with_another_handler_gives_one_trace() -> None:
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command

    paused = agent(
        say("I search.", call("search", q="a")),
        say("42"),
        checkpointer=InMemorySaver(),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True})],
    )
    thread: Any = {"thread_id": "two handlers"}
    first, second = handler("finance"), handler("finance")
    paused.invoke(ASK, {"callbacks": [first], "configurable": thread})
    assert first.stats()["paused"] == 1
    resume = Command(resume={"decisions": [{"type": "approve"}]})
    paused.invoke(resume, {"callbacks": [second], "configurable": thread})
    scored = second.last()
    assert scored is not None
    assert shape(scored.trace) == ["thought", "call search", "saw search", "thought"]
    assert scored.trace.task.objective == QUESTION
    assert first.stats()["handed_over"] == 1
    assert first.stats()["paused"] == 0


# ------------------------------------------------------------------ what goes wrong


class _RaisingEmbedder:
    def embed(self, texts: Any) -> Any:
        raise OSError("no weights")


def test_an_embedder_that_raises_costs_the_novelty_only() -> None:
    scored = run(searching(), scorer=Scorer(embedder=_RaisingEmbedder()))
    assert scored.breakdown.novelty.value == 0.5
    assert "OSError" in scored.breakdown.novelty_source


class _LoadingEmbedder:
    """Is ready from its first embedding on, for which it waits until it is let."""

    def __init__(self) -> None:
        self.ready = False
        self.asked, self.go = threading.Event(), threading.Event()

    def embed(self, texts: Any) -> Any:
        self.asked.set()
        assert self.go.wait(300)
        self.ready = True
        return [[float(len(text)), 1.0] for text in texts]


def test_a_run_is_scored_when_the_model_is_there_and_its_draft_is_on_disk_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "300")
    embedder, scored = _LoadingEmbedder(), []
    with TraceStore(tmp_path / "runs.db") as store:
        watching = handler(store=store, scorer=Scorer(embedder=embedder), on_scored=scored.append)
        for _ in range(2):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert embedder.asked.wait(300)
        assert intake.wait(300)
        assert watching._writer is not None
        assert watching._writer.wait(300)
        assert (store.count(), store.unscored.count()) == (0, 2)
        embedder.go.set()
        assert watching.flush(300)
        assert (store.count(), store.unscored.count()) == (2, 0)
    assert scored[0].breakdown.novelty_source != STILL_LOADING
    assert scored[1].breakdown.nearest.trace_id == scored[0].trace.id
    assert scored[1].breakdown.novelty.value == pytest.approx(0.0, abs=1e-6)


class _RaisingScorer(Scorer):
    def evaluate(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("secret text of the run")


def test_a_scorer_that_raises_is_counted_and_logged_once_without_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watching = handler(scorer=_RaisingScorer(embedder=None), policy=ALWAYS)
    for _ in range(3):
        assert searching().invoke(ASK, {"callbacks": [watching]})["messages"][-1].content == "42"
    scored = watching.last()
    assert scored is not None
    assert scored.breakdown.novelty_source == "scorer failed: RuntimeError"
    assert scored.decision == "below_threshold"
    stats = watching.stats()
    assert (stats["scorer_errors"], stats["scored"], stats["failed"]) == (3, 3, 0)
    warned = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "RuntimeError" in warned[0].getMessage()
    assert "secret text" not in caplog.text


def test_runs_wait_for_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "dir.db").mkdir()
    store = TraceStore(tmp_path / "dir.db")
    watching = handler(store=store)
    assert searching().invoke(ASK, {"callbacks": [watching]})["messages"][-1].content == "42"
    assert watching.last() is not None  # it is scored, logged and told of all the same
    stats = watching.stats()
    assert (stats["runs"], stats["scored"], stats["waiting_to_store"]) == (1, 1, 1)
    assert not watching.flush()
    (tmp_path / "dir.db").rmdir()
    assert watching.flush()
    assert watching.stats()["waiting_to_store"] == 0
    assert store.count() == 1


def test_so_many_runs_wait_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_MAX_QUEUE", "2")
    (tmp_path / "dir.db").mkdir()
    watching = handler(store=TraceStore(tmp_path / "dir.db"))
    for _ in range(4):
        searching().invoke(ASK, {"callbacks": [watching]})
        watching.last()
    stats = watching.stats()
    assert (stats["scored"], stats["waiting_to_store"], stats["not_stored"]) == (4, 2, 2)
    (tmp_path / "dir.db").rmdir()
    assert watching.flush()


def test_a_run_that_can_never_be_written_does_not_hold_others_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unwritable(TraceStore):
        def add_many(self, scored: Iterable[ScoredTrace], *, registry: str | None = None) -> None:
            runs = list(scored)
            for one in runs:
                if getattr(one.trace.metadata, "task_domain", "code") == "code":
                    one.trace.__dict__["metadata"] = None
            super().add_many(runs, registry=registry)

    with Unwritable(tmp_path / "runs.db") as store:
        watching = handler("finance", store=store, policy=ALWAYS)
        for domain in ("code", "finance"):
            config = {"callbacks": [watching], "metadata": {"kp_domain": domain}}
            searching().invoke(ASK, config)
        assert watching.flush()
        assert (watching.stats()["not_stored"], store.count()) == (1, 1)
    assert "it is dropped and counted under 'not_stored'" in caplog.text
    assert "tried again" not in caplog.text


def hold_intake() -> threading.Event:
    """Have the intake wait until the event is set, so that finished runs queue up behind it."""
    go = threading.Event()
    intake.submit(lambda: go.wait(300) or None)
    return go


class HeldStore(TraceStore):
    """Takes the first scored runs only when told to, so that others queue up behind them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.go = threading.Event()
        self.written: list[int] = []

    def add_many(self, scored: Iterable[ScoredTrace], *, registry: str | None = None) -> None:
        assert self.go.wait(60)
        runs = list(scored)
        super().add_many(runs, registry=registry)
        self.written.append(len(runs))


def let_all_be_scored(watching: KPCallbackHandler) -> None:
    assert intake.wait(60)
    assert watching._queue._lane.wait(60)


def test_runs_that_queued_up_are_written_together(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with HeldStore(path) as store:
        watching = handler(store=store)
        for _ in range(40):
            searching().invoke(ASK, {"callbacks": [watching]})
        let_all_be_scored(watching)
        store.go.set()
        assert watching.flush()
        assert sum(store.written) == 40
        assert 1 < max(store.written) <= 32
        assert watching.stats()["waiting_to_store"] == 0
        with closing(sqlite3.connect(path)) as other:  # what is flushed is committed
            assert other.execute("SELECT count(*) FROM runs").fetchone() == (40,)
            assert other.execute("SELECT count(*) FROM unscored").fetchone() == (0,)


def test_a_store_in_order_takes_more_runs_than_may_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TraceStore(tmp_path / "runs.db") as store:
        monkeypatch.setenv("KP_MAX_QUEUE", "2")
        first = handler(store=store)
        monkeypatch.delenv("KP_MAX_QUEUE")
        watching = handler(store=store)
        go = hold_intake()
        for _ in range(9):
            searching().invoke(ASK, {"callbacks": [watching]})
        go.set()
        assert watching.flush()
        assert first.flush()
        assert (store.count(), watching.stats()["not_stored"]) == (9, 0)


def test_a_run_that_the_database_refuses_does_not_take_others_with_it(tmp_path: Path) -> None:
    with TraceStore(tmp_path / "runs.db") as store:
        store.count()
        with closing(sqlite3.connect(tmp_path / "runs.db")) as other:
            other.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON runs WHEN new.domain = 'code' "
                "BEGIN SELECT raise(ABORT, 'not this one'); END"
            )
            watching = handler("finance", store=store)
            go = hold_intake()
            for at in range(7):
                domain = {"kp_domain": "code"} if at == 3 else {}
                searching().invoke(ASK, {"callbacks": [watching], "metadata": domain})
            go.set()
            assert not watching.flush()
            assert not watching.flush()
            assert (store.count(), watching.stats()["waiting_to_store"]) == (6, 1)
            other.execute("DROP TRIGGER refuse")
        assert watching.flush()
        assert store.count() == 7


def test_a_registry_needs_a_store_and_a_usable_url() -> None:
    for options, told in (
        ({"registry": "https://registry.example.org"}, "registry needs a store"),
        ({"registry": 7}, "registry is 7"),
        ({"registry": "http://far.example.org", "store": "runs.db"}, "write https://"),
        ({"redactor": "presidio"}, "redactor is 'presidio'"),
    ):
        with pytest.raises(ConfigError, match=told):
            handler(**options)


def test_only_visible_traces_that_passed_go_to_the_registry(tmp_path: Path) -> None:
    with LoopbackRegistry() as server:
        for visibility, threshold in (("private", 0.0), ("org", 0.0), ("network", 1.0)):
            policy = DomainPolicy(visibility=visibility, threshold=threshold)
            registry = Registry(server.url, api_key="kp_x")
            watching = handler(policy=policy, store=tmp_path / "runs.db", registry=registry)
            searching().invoke(ASK, {"callbacks": [watching]})
            assert watching.send(300)
        (unit,) = server.units.values()
        assert unit["metadata"]["visibility"] == "org"


def test_the_settings_name_the_registry_and_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackRegistry(keys={"kp_x"}) as server:
        monkeypatch.setenv("KP_REGISTRY_URL", server.url)
        monkeypatch.setenv("KP_API_KEY", "kp_x")
        policy = DomainPolicy(visibility="network", threshold=0.0)
        watching = handler(policy=policy, store=tmp_path / "runs.db")
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.send(300)
        assert len(server.units) == 1
        nowhere = handler(policy=policy, store=None)
        searching().invoke(ASK, {"callbacks": [nowhere]})
        assert nowhere.send(300)
        monkeypatch.setenv("KP_DISABLED", "1")
        off = handler(policy=policy, store=tmp_path / "runs.db")
        searching().invoke(ASK, {"callbacks": [off]})
        assert off.send(300)
        assert len(server.requests) == 1


def test_rules_and_redactor_reach_every_text_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("kp.toml").write_text('[redaction]\npatterns = { ticket = "TICK-[0-9]+" }\n')
    runnable = agent(say("I see TICK-1 of Miller", call("search", q="TICK-2")), say("TICK-3 is 42"))
    ask = {"messages": [("user", "Where is TICK-4 of Miller?")]}
    scored = run(runnable, ask, redactor=lambda text: text.replace("Miller", "[NAME]"))
    written = scored.trace.model_dump_json()
    assert "TICK-" not in written
    assert "Miller" not in written
    assert written.count("[REDACTED:ticket]") >= 4
    assert "[NAME]" in written


def test_a_redactor_that_fails_keeps_the_run_from_leaving(tmp_path: Path) -> None:
    def bad(text: str) -> str:
        raise RuntimeError(text)

    policy = DomainPolicy(visibility="network", threshold=0.0)
    scored = run(searching(), redactor=bad, policy=policy)
    assert scored.decision == "below_threshold"
    assert not re.search("I search|result for|the answer", scored.trace.model_dump_json())


def test_on_scored_that_raises_is_counted_and_changes_nothing() -> None:
    def boom(_: ScoredTrace) -> None:
        raise ValueError("mine")

    watching = handler(on_scored=boom)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.last() is not None
    assert watching.stats()["on_scored_errors"] == 1


def test_flush_from_on_scored_does_not_wait_for_itself() -> None:
    said: list[bool] = []
    watching: KPCallbackHandler
    watching = handler(on_scored=lambda _: said.append(watching.flush(5)))
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush()
    assert said == [False]


class _Hostile:
    """Raises whatever is asked of it."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error("str")

    __repr__ = __str__

    def __getattr__(self, name: str) -> Any:
        raise self.error(name)


@pytest.mark.parametrize("error", [ValueError, SystemExit, RecursionError, GeneratorExit])
def test_values_that_raise_do_not_reach_the_agent(error: type[BaseException]) -> None:
    watching = handler()
    run_id, tool_id = uuid4(), uuid4()
    watching.on_chain_start(None, {"input": _Hostile(error)}, run_id=run_id)
    watching.on_tool_start(
        {"name": "t"}, "x", run_id=tool_id, parent_run_id=run_id, inputs={"a": _Hostile(error)}
    )
    watching.on_tool_end(_Hostile(error), run_id=tool_id)
    watching.on_chain_end(_Hostile(error), run_id=run_id)
    assert watching.flush()
    stats = watching.stats()
    assert stats["runs"] == stats["scored"] == 1


def test_arguments_that_make_no_sense_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    watching = handler()
    for event in (
        "on_chain_start", "on_chain_end", "on_chain_error", "on_chat_model_start", "on_llm_start",
        "on_llm_end", "on_llm_error", "on_tool_start", "on_tool_end", "on_tool_error",
        "on_retriever_start", "on_retriever_end", "on_retriever_error", "on_retry",
        "on_custom_event", "on_interrupt", "on_resume",
    ):  # fmt: skip
        getattr(watching, event)()
        getattr(watching, event)(None, None, None, run_id=[], parent_run_id=object())
    assert watching.stats()["callback_errors"] >= 17
    assert watching.stats()["open"] == 0


def test_cyclic_and_huge_values_are_cut_to_their_bound() -> None:
    ring: dict[str, Any] = {"data": "x" * 5_000_000}
    ring["ring"] = ring
    watching = handler()
    run_id, tool_id = uuid4(), uuid4()
    watching.on_chain_start(None, {"input": "q"}, run_id=run_id)
    watching.on_tool_start({"name": "t"}, "", run_id=tool_id, parent_run_id=run_id, inputs=ring)
    watching.on_tool_end("y" * 5_000_000, run_id=tool_id)
    watching.on_chain_end({"output": "done"}, run_id=run_id)
    scored = watching.last()
    assert scored is not None
    assert len(scored.trace.model_dump_json()) < 20_000
    assert "characters left out" in (scored.trace.steps[1].content or "")


def test_lone_surrogates_and_nul_are_replaced(tmp_path: Path) -> None:
    with TraceStore(tmp_path / "t.db") as store:
        watching = handler(store=store, policy=ALWAYS)
        made = agent(say("bad \ud800 text\x00"))
        made.invoke({"messages": [("user", "why \udfff\x00?")]}, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        assert scored.trace.steps[0].content == "bad ? text\ufffd"
        stored = store.get(scored.trace.id)
        assert stored is not None
        assert stored.objective == "why ?\ufffd?"


# ------------------------------------------------------------------ privacy


def test_secrets_and_identifiers_reach_neither_embedder_nor_log_nor_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    embedded: list[str] = []

    class Reading:
        def embed(self, texts: Any) -> Any:
            import numpy as np

            embedded.extend(texts)
            return np.ones((len(texts), 4), dtype="float32")

    secret, person = "sk-proj-" + "a1B2" * 12, "jane.doe@example.com"
    file = tmp_path / "t.db"
    with caplog.at_level(logging.DEBUG), TraceStore(file) as store:
        watching = handler(store=store, policy=ALWAYS, scorer=Scorer(embedder=Reading()))
        made = agent(
            say(f"key {secret} of {person}", call("search", q=f"password={secret}")),
            say(f"done with {secret} for {person}"),
        )
        made.invoke(
            {"messages": [("user", f"use {secret}, ask {person}")]}, {"callbacks": [watching]}
        )
        scored = watching.last()
    assert scored is not None
    for private in (secret, person):
        assert private not in scored.trace.model_dump_json()
        assert all(private not in text for text in embedded)
        assert private not in caplog.text
        assert all(private.encode() not in path.read_bytes() for path in tmp_path.glob("t.db*"))
    assert embedded


def test_privacy_level_private_keeps_identifiers_but_no_secrets() -> None:
    secret, person = "sk-proj-" + "a1B2" * 12, "jane.doe@example.com"
    made = agent(say(f"{secret} {person}"))
    text = run(made, policy=DomainPolicy(privacy_level="private")).trace.model_dump_json()
    assert secret not in text
    assert person in text


@pytest.mark.parametrize("part", ["learn", "redact"])
def test_what_cannot_be_redacted_is_dropped(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(f"kp_langchain.redaction.session.Session.{part}", broken)
    scored = run(searching())
    text = scored.trace.model_dump_json()
    assert "I search" not in text
    assert QUESTION not in text
    assert scored.trace.steps[1].input == {"input": "[REDACTED:failed]"}


# ------------------------------------------------------------------ bounds


def test_the_oldest_open_run_is_given_up_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_MAX_OPEN_RUNS", "2")
    watching = handler()
    ids = [uuid4() for _ in range(5)]
    for run_id in ids:
        watching.on_chain_start(None, {}, run_id=run_id)
    assert watching.stats()["open"] == 2
    assert watching.stats()["abandoned"] == 3
    watching.on_chain_end({}, run_id=ids[0])
    assert watching.stats()["scored"] == 0


def test_a_silent_run_is_abandoned_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setenv("KP_RUN_TIMEOUT_S", "60")
    watching = handler()
    silent, busy = uuid4(), uuid4()
    watching.on_chain_start(None, {}, run_id=silent)
    watching.on_chain_start(None, {}, run_id=busy)
    clock[0] += 50
    watching.on_tool_start({"name": "t"}, "", run_id=uuid4(), parent_run_id=busy)
    clock[0] += 20
    assert watching.stats()["open"] == 1
    assert watching.stats()["abandoned"] == 1


def test_steps_beyond_the_bound_are_dropped_from_the_middle_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_MAX_STEPS", "10")
    watching = handler()
    run_id = uuid4()
    watching.on_chain_start(None, {"input": "q"}, run_id=run_id)
    for at in range(50):
        tool_id = uuid4()
        watching.on_tool_start({"name": "t"}, str(at), run_id=tool_id, parent_run_id=run_id)
        watching.on_tool_end(f"saw {at}", run_id=tool_id)
    watching.on_chain_end({"output": "done"}, run_id=run_id)
    scored = watching.last()
    assert scored is not None
    assert len(scored.trace.steps) == 10
    assert scored.trace.steps[0].input == {"input": "0"}
    assert scored.trace.steps[-1].content == "saw 49"
    assert watching.stats()["dropped_steps"] == 90


def test_runs_beyond_the_queue_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_MAX_QUEUE", "2")
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "300")
    go, begun = threading.Event(), threading.Event()

    def hold(_: ScoredTrace) -> None:
        begun.set()
        go.wait(300)

    watching = handler(on_scored=hold)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert begun.wait(300)
    for _ in range(5):
        searching().invoke(ASK, {"callbacks": [watching]})
        assert intake.wait(300)  # a run that is being taken in is in neither queue
    assert watching.stats()["dropped"] == 3
    go.set()
    assert watching.flush(300)
    stats = watching.stats()
    assert stats["runs"] == 6 == stats["scored"] + stats["dropped"]


def test_closed_and_disabled_handlers_record_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = handler()
    watching.on_chain_start(None, {}, run_id=uuid4())
    watching.close()
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.stats()["runs"] == 1
    assert watching.stats()["abandoned"] == 1
    monkeypatch.setenv("KP_DISABLED", "1")
    off = handler()
    searching().invoke(ASK, {"callbacks": [off]})
    assert off.stats()["runs"] == 0


def test_what_starts_after_its_root_has_ended_is_not_a_new_run() -> None:
    watching = handler()
    root, child, grandchild = uuid4(), uuid4(), uuid4()
    watching.on_chain_start(None, {"input": "q"}, run_id=root)
    watching.on_chain_error(asyncio.CancelledError(), run_id=root)
    watching.on_chain_start(None, {"input": "q"}, run_id=child, parent_run_id=root)
    watching.on_chain_start(None, {"input": "q"}, run_id=grandchild, parent_run_id=child)
    assert watching.stats()["runs"] == 1
    assert watching.stats()["cancelled"] == 1


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"domain": ""}, "domain"),
        ({"domain": None}, "domain"),
        ({"policy": {"threshold": 1}}, "policy"),
        ({"outcome": 3}, "outcome"),
        ({"on_scored": "x"}, "on_scored"),
        ({"objective": 1}, "objective"),
        ({"registry": object()}, "registry"),
        ({"store": 7}, "store"),
        ({"scorer": "auto"}, "scorer"),
        ({"scorer": Scorer}, "scorer"),
        ({"domain": " "}, "domain"),
        ({"agent_id": 7}, "agent_id"),
        ({"on_scored": asyncio.sleep}, "on_scored"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        KPCallbackHandler(**arguments)


def test_a_bad_configuration_file_names_file_key_value_and_remedy() -> None:
    Path("kp.toml").write_text("[domains.finance]\nthresold = 0.6\n")
    with pytest.raises(ConfigError, match=r"kp\.toml.*domains\.finance\.thresold.*threshold"):
        handler()


def test_unknown_domain_is_scored_with_the_default_profile() -> None:
    assert run(searching(), domain="gardening").breakdown.profile == "default"


def test_a_root_that_is_not_a_graph_gets_no_graph_events() -> None:
    watching = handler()
    RunnableLambda(lambda x: ScriptedChatModel([say("hi")]).invoke(x)).invoke(
        "q", {"callbacks": [watching]}
    )
    scored = watching.last()
    assert scored is not None
    assert shape(scored.trace) == ["thought"]


# ------------------------------------------------------------------ a host that is in the way


class _Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the host's handler")

    def handle(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("the host's handler")


def test_a_logging_handler_that_raises_costs_its_lines_only_and_is_counted() -> None:
    broken, logger = _Broken(), logging.getLogger("kp_langchain")
    level = logger.level
    logger.addHandler(broken)
    logger.setLevel(logging.DEBUG)
    try:
        watching = handler(scorer=_RaisingScorer(embedder=None))
        fine = handler()
        for _ in range(2):
            searching().invoke(ASK, {"callbacks": [watching, fine]})
        assert watching.flush(300)
        assert fine.flush(300)
    finally:
        logger.removeHandler(broken)
        logger.setLevel(level)
    assert watching.stats()["scorer_errors"] == 2
    assert fine.stats()["scored"] == fine.stats()["on_scored_errors"] == 2
    assert fine.last() is not None


def test_a_record_factory_that_owns_our_names_costs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = theirs(*args, **kwargs)
        record.trace_id = "the host's"
        return record

    logging.setLogRecordFactory(factory)
    try:
        with caplog.at_level(logging.INFO, logger="kp_langchain"):
            scored = run(searching())
    finally:
        logging.setLogRecordFactory(theirs)
    (record,) = [r for r in caplog.records if "kp.trace_scored" in r.getMessage()]
    assert vars(record)["kp"]["trace_id"] == scored.trace.id


def test_an_exit_raised_by_the_callers_functions_ends_nothing() -> None:
    def leave(_: Any) -> Any:
        raise SystemExit

    watching = handler(outcome=leave, on_scored=leave)
    for _ in range(2):
        searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.last() is not None
    stats = watching.stats()
    assert stats["scored"] == stats["outcome_errors"] == stats["on_scored_errors"] == 2


def test_a_report_that_cannot_be_used_leaves_the_next_one_its_say() -> None:
    def work(question: str) -> Any:
        dispatch_custom_event("kp.outcome", {"success": False, "confidence": 0.9})
        return searching().invoke({"messages": [("user", question)]})

    scored = run(RunnableLambda(work), QUESTION, outcome=lambda _: {"confidence": 7})
    assert scored.trace.metadata.success is False
    assert scored.trace.outcome.confidence == 0.9
    assert scored.breakdown.confidence_source == "kp.outcome event"


def test_no_warning_quotes_the_run(caplog: pytest.LogCaptureFixture) -> None:
    private = "the words of jane.doe@example.com"

    def work(question: str) -> Any:
        dispatch_custom_event("kp.outcome", {"confidence": private})
        return agent(say(private)).invoke({"messages": [("user", question)]})

    run(RunnableLambda(work), private, outcome=lambda finished: float(finished.answer))
    assert [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "jane" not in caplog.text


@pytest.mark.parametrize("side", ["beginning", "end"])
@pytest.mark.parametrize("offset", range(0, 200, 9))
def test_a_secret_across_the_bound_of_a_text_is_seen_whole(
    side: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_MAX_TEXT_CHARS", "300")
    secret = "ghp_" + "a1B2c3D4e5" * 4
    filler, long = "w" * offset + " ", " and so on " * 800
    text = filler + secret + long if side == "beginning" else f"{long}{secret} {filler}"
    trace = run(agent(say(text, call("search", q=text)), say("42"))).trace
    written = trace.model_dump_json()
    assert all(secret[at : at + 12] not in written for at in range(len(secret) - 12))
    content = trace.steps[0].content or ""
    assert len(content) <= 300
    near = offset if side == "beginning" else 9
    assert content[:near][:50] == text[:near][:50]
    assert content[-min(offset, 50) - 1 :] == text[-min(offset, 50) - 1 :]
    assert "characters left out]" in content


@pytest.mark.parametrize("side", ["beginning", "end"])
def test_a_piece_of_a_secret_beside_a_cut_is_left_out(
    side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where redaction makes the text so short that it would fit its bound."""
    monkeypatch.setenv("KP_MAX_TEXT_CHARS", "6000")
    secret = "ghp_" + "a1B2c3D4e5" * 4
    keys = " ".join(["ghp_" + "Z9y8X7w6V5" * 4] * 4000)
    for at in range(4900, 5100, 8):
        text = keys[:at] + " " + secret + " " + keys
        text = text if side == "beginning" else f"{keys} {secret} {keys[-at:]}"
        written = run(agent(say(text), say("42"))).trace.model_dump_json()
        assert "ghp_" not in written
        assert all(secret[i : i + 12] not in written for i in range(len(secret) - 12))


def test_the_texts_of_one_run_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_MAX_RUN_CHARS", "20000")
    watching = handler()
    run_id = uuid4()
    watching.on_chain_start(None, {"input": "q"}, run_id=run_id)
    for _ in range(400):
        tool_id = uuid4()
        watching.on_tool_start({"name": "t"}, "x" * 9999, run_id=tool_id, parent_run_id=run_id)
        watching.on_tool_end("y" * 9999, run_id=tool_id)
    watching.on_chain_end({"output": "done"}, run_id=run_id)
    scored = watching.last()
    assert scored is not None
    assert len(scored.trace.steps) == 800
    assert sum(len(step.model_dump_json()) for step in scored.trace.steps) < 150_000


def test_failed_redaction_is_counted_and_never_contributed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the text of the run")

    monkeypatch.setattr("kp_langchain.redaction.session.Session.redact", broken)
    watching = handler("finance", policy=ALWAYS)
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    assert scored.decision == "below_threshold"
    assert scored.trace.metadata.task_domain == "finance"
    assert watching.stats()["redaction_errors"] > 0
    assert "the text of the run" not in caplog.text
    assert "redaction failed (RuntimeError)" in caplog.text


def test_close_gives_up_what_waits() -> None:
    from langchain.agents.middleware import HumanInTheLoopMiddleware
    from langgraph.checkpoint.memory import InMemorySaver

    stopping = agent(
        say("I search.", call("search", q="a")),
        checkpointer=InMemorySaver(),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"search": True})],
    )
    watching = handler()
    thread: Any = {"thread_id": "closed"}
    stopping.invoke(ASK, {"callbacks": [watching], "configurable": thread})
    assert watching.stats()["paused"] == 1
    watching.close()
    assert watching.stats()["paused"] == 0
    assert watching.stats()["abandoned"] == 1


def test_the_most_silent_run_is_given_up_not_the_busy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setenv("KP_MAX_OPEN_RUNS", "2")
    watching = handler()
    busy, silent, new = uuid4(), uuid4(), uuid4()
    for run_id in (busy, silent):
        clock[0] += 1
        watching.on_chain_start(None, {"input": "q"}, run_id=run_id)
    clock[0] += 1
    tool_id = uuid4()
    watching.on_tool_start({"name": "t"}, "", run_id=tool_id, parent_run_id=busy)
    clock[0] += 1
    watching.on_chain_start(None, {"input": "q"}, run_id=new)
    watching.on_tool_end("seen", run_id=tool_id)
    watching.on_chain_end({"output": "done"}, run_id=busy)
    assert watching.flush(300)
    assert watching.stats()["scored"] == 1
    assert watching.stats()["abandoned"] == 1


def test_a_tool_that_was_cancelled_has_not_failed() -> None:
    def play(*, failing: bool) -> list[str]:
        watching = handler()
        run_id, slow, quick = uuid4(), uuid4(), uuid4()
        watching.on_chain_start(None, {"input": "q"}, run_id=run_id)
        watching.on_tool_start({"name": "slow"}, "", run_id=slow, parent_run_id=run_id)
        watching.on_tool_error(asyncio.CancelledError(), run_id=slow)
        watching.on_tool_start({"name": "quick"}, "", run_id=quick, parent_run_id=run_id)
        watching.on_tool_end("seen", run_id=quick)
        if failing:
            watching.on_chain_error(ValueError("v"), run_id=run_id)
        else:
            watching.on_chain_end({"output": "done"}, run_id=run_id)
        scored = watching.last()
        assert scored is not None
        return shape(scored.trace)

    steps = ["call slow", "call quick", "saw quick"]
    assert play(failing=False) == steps
    assert play(failing=True) == [*steps, "saw"]


def test_a_part_that_the_redactor_drops_keeps_the_run_from_being_contributed() -> None:
    endless = "/home/x" * 500  # it gives up on this one, and says so
    watching = handler(policy=ALWAYS)
    agent(say(endless)).invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    assert scored.trace.steps[0].content == "[REDACTED:failed]"
    assert scored.decision == "below_threshold"
    assert watching.stats()["redaction_errors"] > 0


def test_a_structure_is_recorded_as_it_was_when_the_tool_returned_it() -> None:
    watching, root, tool = handler(), uuid4(), uuid4()
    rows = {"rows": [{"id": 1, "open": True}], "total": 2.5}
    watching.on_chain_start(None, {"input": "count"}, run_id=root, name="chain")
    watching.on_tool_start({"name": "query"}, "", run_id=tool, parent_run_id=root, inputs={})
    watching.on_tool_end(rows, run_id=tool)
    rows["rows"].append("added by the agent")
    watching.on_chain_end(rows, run_id=root)
    rows.clear()
    scored = watching.last(60)
    assert scored is not None
    observed = scored.trace.steps[-1].content
    assert observed == '{"rows": [{"id": 1, "open": true}], "total": 2.5}'
    assert scored.trace.outcome.result_summary.startswith('{"rows": [{"id": 1, "open": true}, "add')


def test_on_scored_finds_its_run_in_the_store(tmp_path: Path) -> None:
    found: list[bool] = []
    with TraceStore(tmp_path / "runs.db") as store:
        watching = handler(
            store=store,
            on_scored=lambda scored: found.append(store.get(scored.trace.id) is not None),
        )
        go = hold_intake()
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching]})
        go.set()
        assert watching.flush()
    assert found == [True] * 3


@pytest.mark.parametrize("where", ["one text", "beside another", "key", "quoted mark", "name"])
def test_a_piece_of_a_secret_beside_a_cut_is_left_out_of_inputs_too(where: str) -> None:
    secret = "ghp_" + "a1B2c3D4e5" * 4
    data = "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo5" * 83  # redaction makes it short
    for before in (4010, 4020, 4031):
        filled = f"{data} ".ljust(before, "w") + f" {secret} " + "q " * 8000
        inputs: dict[str, Any] = {
            "one text": {"text": filled},
            "beside another": {"a": data * 2 + "w" * (before - 2000), "b": f"{secret} more " * 9},
            "key": {f"{'u ' * ((before - 3950) // 2)}{secret}{'v ' * 150}": "1"},
            "quoted mark": {"text": filled + "... [120 characters left out] ..." + "z" * 2500},
            "name": {"q": "a"},
        }[where]
        name = f"{'u ' * ((before - 3950) // 2)}{secret}{'v ' * 150}" if where == "name" else "t"
        watching, root, ran = handler(), uuid4(), uuid4()
        watching.on_chain_start(None, {"input": "q"}, run_id=root)
        watching.on_tool_start({"name": name}, "", run_id=ran, parent_run_id=root, inputs=inputs)
        watching.on_tool_end(inputs.get("text", ""), run_id=ran)
        watching.on_chain_end({"output": "done"}, run_id=root)
        scored = watching.last(60)
        assert scored is not None
        written = scored.trace.model_dump_json()
        assert all(secret[i : i + 8] not in written for i in range(4, len(secret) - 8))
