"""Scores sent to tracing tools with the tools' own packages, to a server on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnableParallel

from kp_langchain import ConfigError, KPCallbackHandler, ScoredTrace, TraceStore
from kp_langchain.gate.run import ExternalTrace
from kp_langchain.integrations.opentelemetry import OpenTelemetryScores
from kp_langchain.recording.score_receivers import new_receiver
from kp_langchain.store import jobs
from tests import agents, programs
from tests.agents import ScriptedChatModel, say
from tests.commands import ROOT, cli_apart
from tests.integrations import tools
from tests.integrations.tools import SCORES, SERVERS, TOOLS, Received, Tool, ToolServer, question_in
from tests.loopback_tools import LoopbackTool
from tests.store.conftest import execute

# The tools' packages use what is deprecated, and close their connections when they are collected.
pytestmark = pytest.mark.filterwarnings("ignore")
each_tool = pytest.mark.parametrize("name", TOOLS)
ask_at_once, recorder = tools.ask_at_once, tools.recorder


@pytest.fixture
def server() -> Iterator[LoopbackTool]:
    with LoopbackTool(ToolServer()) as loopback:
        yield loopback


@pytest.fixture(autouse=True)
def _no_leftovers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from kp_langchain.recording.score_receivers import _shared_receiver

    monkeypatch.setattr(jobs, "_FIRST_PAUSE_S", 0.05)  # after a failed attempt
    _shared_receiver.cache_clear()  # a receiver holds on to its client
    yield
    _shared_receiver.cache_clear()
    tools.uninstrument()


@pytest.fixture
def attach(server: LoopbackTool, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tool]:
    return lambda name, to=server: tools.attach(name, to, monkeypatch)


def scores_by(tool: Tool, field: str) -> dict[Any, dict[str, Received]]:
    """The scores that a tool has now, by a field and their name."""
    by: dict[Any, dict[str, Received]] = {}
    for one in tool.scores():
        by.setdefault(getattr(one, field), {})[one.name] = one
    return by


def is_of(run: ScoredTrace, scores: dict[str, Received]) -> bool:
    """Whether these are all scores of a run."""
    assert scores.keys() == SCORES
    for dimension, part in run.breakdown.dimensions.items():
        assert scores[f"kp_{dimension}"].value == pytest.approx(part.value, abs=1e-4)
    total = scores["kp_quality_score"]
    assert total.value == pytest.approx(run.breakdown.total, abs=1e-4)
    return run.breakdown.line() in total.comment


@each_tool
def test_concurrent_runs_have_their_own_scores_and_a_late_verdict_replaces_them(
    name: str, attach: Callable[..., Tool]
) -> None:
    tool, scored, runs = attach(name), list[ScoredTrace](), 8
    handler = recorder(name, scored)
    ask_at_once([handler, *tool.handlers], runs)
    assert handler.send(60)
    tool.flush()
    traces, before = tool.traces(), scores_by(tool, "trace_id")
    assert len(set(traces.values())) == runs
    assert len(tool.scores()) == runs * len(SCORES)
    for run in scored:
        assert is_of(run, before[traces[question_in(run.trace.task.objective)]])
    counts = ("scores_sent", "scores_failed", "scores_without_trace")
    assert [handler.stats()[count] for count in counts] == [runs, 0, 0]

    first = scored[0]
    handler.report_outcome(first.run_id, success=False)
    assert handler.send(60)
    assert handler.stats()["scores_sent"] == runs + 1
    after = scores_by(tool, "trace_id")
    (rescored,) = [run for run in scored if run.previous is not None]
    own = traces[question_in(first.trace.task.objective)]
    assert is_of(rescored, after[own])
    assert after[own]["kp_outcome_confidence"].value == 0.0
    ids = {one.id for one in tool.scores()}
    assert ids == {one.id for scores in before.values() for one in scores.values()}
    assert {key: after[key] for key in after if key != own} == {
        key: before[key] for key in before if key != own
    }


@each_tool
def test_runs_in_one_trace_of_the_program_have_scores_of_their_own(
    name: str, attach: Callable[..., Tool]
) -> None:
    tool, scored = attach(name), list[ScoredTrace]()
    handler = recorder(name, scored)

    async def serve_a_request() -> None:
        with tool.span():
            handlers = [handler, *tool.handlers]
            await asyncio.gather(*(tools.ask(handlers, number) for number in range(3)))

    asyncio.run(serve_a_request())
    assert handler.send(60)
    handler.report_outcome(scored[0].run_id, success=False)
    assert handler.send(60)
    tool.flush()
    assert len({run.external_traces[name].trace_id for run in scored}) == 1
    by_span = scores_by(tool, "span_id")
    assert len({one.id for one in tool.scores()}) == 3 * len(SCORES)
    assert all(is_of(run, by_span[run.external_traces[name].span_id]) for run in scored[1:])


@each_tool
def test_the_trace_of_a_chain_of_few_steps_is_found(name: str, attach: Callable[..., Tool]) -> None:
    tool, scored = attach(name), list[ScoredTrace]()
    handler = recorder(name, scored)
    model = ScriptedChatModel([say("a")] * 8)
    chains: list[Any] = [
        ChatPromptTemplate.from_template("{text}") | model,
        RunnableLambda(lambda _: model.invoke("b")),
        RunnableParallel(a=model, b=model),
    ]
    callbacks: Any = {"callbacks": [handler, *tool.handlers]}
    for number, chain in enumerate(chains):
        text: Any = {"text": f"question {number}"} if number == 0 else f"question {number}"
        chain.invoke(text, callbacks)
    if name in ("phoenix", "opentelemetry"):  # nothing begins inside it; it is found as it ends
        model.invoke("question 3", callbacks)
        asyncio.run(model.ainvoke("question 4", callbacks))
    assert handler.send(60)
    tool.flush()
    assert handler.stats()["scores_sent"] == len(scored)
    assert len({(one.trace_id, one.span_id) for one in tool.scores()}) == len(scored)
    if name != "phoenix":  # there, the spans stand in the place of traces
        assert {one.trace_id for one in tool.scores()} == set(tool.traces().values())
    for run in scored[3:]:
        own = scores_by(tool, "trace_id")[tool.traces()[question_in(run.trace.task.objective)]]
        assert is_of(run, own)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "no tracer") for name in TOOLS),
        *((name, "not in the sample") for name in ("langsmith", "phoenix", "opentelemetry")),
        ("langfuse", "tracing is off"),
    ],
)
def test_a_run_that_the_tool_does_not_record_is_counted(
    name: str, reason: str, attach: Callable[..., Tool], server: LoopbackTool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("LANGFUSE_TRACING_ENABLED", "false")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tool, scored = attach(name), list[ScoredTrace]()
    if reason == "no tracer":
        tools.uninstrument()
        tool.handlers.clear()
    for tracer in tool.handlers if name == "langsmith" else ():
        tracer.client.tracing_sample_rate = 0.0  # its package reads the environment once
    handler = recorder(name, scored)
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    assert handler.stats()["scores_without_trace"] == 1
    assert scored[0].external_traces == {}
    assert not any(re.search("scores|feedback|annot|assess", one.path) for one in server.requests)


@pytest.mark.parametrize("name", SERVERS)
def test_a_tool_that_refuses_costs_only_its_scores_and_is_asked_four_times(
    name: str, attach: Callable[..., Tool], server: LoopbackTool, caplog: pytest.LogCaptureFixture
) -> None:
    tool, scored = attach(name), list[ScoredTrace]()
    server.answer = lambda _: (503, {"detail": "a secret of the server"})
    handler = recorder(name, scored)
    ask_at_once([handler, *tool.handlers], runs=1)
    handler.flush()
    assert len(scored) == 1
    assert handler.send(120)
    stats = handler.stats()
    assert (stats["scores_failed"], stats["scores_sent"], stats["scored"]) == (1, 0, 1)
    if name in ("langfuse", "opik", "phoenix"):  # whose packages would try again themselves
        sent = [one for one in server.requests if re.search("scores|annotations", one.path)]
        assert len(sent) == 4
    own = [record.getMessage() for record in caplog.records if record.name == "kp_langchain"]
    assert any(f"a score cannot be sent to {name}" in message for message in own)
    assert "secret" not in str(own)
    with TraceStore("runs.db") as store:
        assert store.count() == 1


# ------------------------------------------------------------------ what one tool alone does


def test_scores_that_langfuse_takes_in_part_have_failed(
    attach: Callable[..., Tool], server: LoopbackTool, caplog: pytest.LogCaptureFixture
) -> None:
    tool = attach("langfuse")
    results = {"accepted": 4, "rejected": 1, "errors": [{"message": "a secret of the server"}]}
    server.answer = lambda request: (207, results) if "scores" in request.path else (200, {})
    handler = recorder("langfuse", [])
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    stats = handler.stats()
    assert (stats["scores_failed"], stats["scores_sent"]) == (1, 0)
    assert len(server.sent_to("/api/public/scores")) == 1  # its API asks not to repeat these
    assert "KPError: Langfuse rejected 1 of 5 scores" in caplog.text
    assert "secret" not in caplog.text


def test_langfuse_gets_the_same_time_and_the_environment_with_each_score(
    attach: Callable[..., Tool], server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANGFUSE_TRACING_ENVIRONMENT", "staging")
    tool, scored = attach("langfuse"), list[ScoredTrace]()
    handler = recorder("langfuse", scored)
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    handler.report_outcome(scored[0].run_id, success=False)
    assert handler.send(60)
    first, second = (request.json for request in server.sent_to("/api/public/scores"))
    # Langfuse replaces a score only if its time is the same as well.
    times = {one["timestamp"] for one in (*first, *second)}
    assert [datetime.fromisoformat(one) for one in times] == [scored[0].trace.metadata.created_at]
    assert {one["environment"] for one in (*first, *second)} == {"staging"}


def test_each_project_of_langfuse_gets_the_scores_of_its_own_runs(
    attach: Callable[..., Tool], server: LoopbackTool
) -> None:
    with LoopbackTool(ToolServer()) as other_server:
        projects, scored = [attach("langfuse"), attach("langfuse", other_server)], []
        handler = recorder("langfuse", scored)
        for number, tool in enumerate(projects):
            asyncio.run(tools.ask([handler, *tool.handlers], number))
        assert handler.send(60)
        for run in scored[:2]:
            handler.report_outcome(run.run_id, success=False)
        assert handler.send(60)
        for number, (run, tool) in enumerate(zip(scored[:2], projects, strict=True)):
            tool.flush()
            [trace_id] = tool.traces().values()
            assert question_in(run.trace.task.objective) == f"question {number}"
            assert [one.trace_id for one in tool.scores()] == [trace_id] * 2 * 5
            # A receiver that saw neither run
            new_receiver("langfuse").send(run, run.external_traces["langfuse"])
            assert len(tool.scores()) == 3 * 5
    assert handler.stats()["scores_failed"] == 0


def test_scores_of_one_langfuse_project_are_not_sent_to_another(
    attach: Callable[..., Tool], server: LoopbackTool
) -> None:
    tool, scored = attach("langfuse"), list[ScoredTrace]()
    handler = recorder("langfuse", scored)
    ask_at_once([handler, *tool.handlers], runs=1)
    assert handler.send(60)
    sent = len(server.sent_to("/scores"))
    with LoopbackTool(ToolServer()) as elsewhere:
        environment = tools.environment_of("langfuse", elsewhere.url)
        words = ("label", scored[0].trace.id, "--failure", "--database", "runs.db")
        later = cli_apart(*words, KP_SEND_SCORES_TO="langfuse", **environment)
        assert later.returncode == 0, later.stderr
        message = "Scores sent to langfuse: 0 of 1 (KPError: there are no keys of the project"
        assert message in " ".join((later.stdout + later.stderr).split())
        assert not elsewhere.sent_to("/scores")
    assert len(server.sent_to("/scores")) == sent


def test_scores_go_where_the_tracer_of_langsmith_sends_traces(
    attach: Callable[..., Tool], server: LoopbackTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoopbackTool(ToolServer()) as elsewhere:
        tool = attach("langsmith", elsewhere)
        monkeypatch.setenv("LANGSMITH_ENDPOINT", server.url)
        handler = recorder("langsmith", [])
        ask_at_once([handler, *tool.handlers], runs=1)
        assert handler.send(60)
        assert len(tool.scores()) == 5
    assert not server.sent_to("/feedback")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_a_client_of_its_own(attach: Callable[..., Tool]) -> None:
    attach("langsmith")
    receiver: Any = new_receiver("langsmith")
    client = receiver._connect()
    assert receiver._connect() is client
    child = os.fork()
    if child == 0:
        os._exit(receiver._connect() is client)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ------------------------------------------------------------------ any receiver


def not_found() -> httpx.HTTPStatusError:
    request = httpx.Request("PUT", "http://127.0.0.1/scores")
    return httpx.HTTPStatusError("absent", request=request, response=httpx.Response(404))


class Elsewhere:
    """Has a trace of each run, and fails to take in the first scores."""

    name = "elsewhere"

    def __init__(self, *errors: BaseException, **external: Any) -> None:
        self.errors, self.external = list(errors), external
        self.sent: list[tuple[ScoredTrace, ExternalTrace]] = []

    def find_trace(self, root_id: uuid.UUID, parent_id: uuid.UUID) -> ExternalTrace | None:
        return ExternalTrace(str(root_id), **self.external)

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        if self.errors:
            raise self.errors.pop(0)
        assert external.trace_id == str(scored.run_id)
        self.sent.append((scored, external))


def send(*receivers: Any, runs: int = 1, **options: Any) -> dict[str, int]:
    """Play runs at once whose scores go to receivers; return the counts."""
    watching = agents.handler(send_scores_to=list(receivers), **options)
    ask_at_once([watching], runs)
    assert watching.send(300)
    return {name: count for name, count in watching.stats().items() if name.startswith("scores_")}


def test_where_a_run_is_recorded_and_what_its_verdict_states_is_stored_clean() -> None:
    elsewhere = Elsewhere(span_id="s\x00", is_part=True)
    handler = recorder(elsewhere, [])
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    ((scored, external),) = elsewhere.sent
    assert external == ExternalTrace(str(scored.run_id), "s\ufffd", None, is_part=True)
    handler.report_outcome(scored.trace.id, success=False)
    assert handler.send(300)
    later, external = elsewhere.sent[-1]
    assert external == ExternalTrace(str(scored.run_id), "s\ufffd", None, is_part=True)
    assert later.stored_id == scored.trace.id
    with TraceStore("runs.db") as store:
        stated = {"success": True, "confidence": 0.7, "source": "ann@example.com"}
        store.report_outcome(scored.trace.id, **stated)
        judged = store.scored(scored.trace.id)
    assert judged is not None
    confidences = []
    for one in (scored, judged):
        logs, records = tools.log_records()
        OpenTelemetryScores(logs).send(one, ExternalTrace("1" * 32, "2" * 16))
        sent = [tools.received_record(record.log_record) for record in records.get_finished_logs()]
        confidences += [each.comment for each in sent if each.name == "kp_outcome_confidence"]
        assert "ann@" not in str(sent)
    assert confidences[0] == "confidence 0.80 (default), succeeded; weight 0.25"
    assert confidences[1].startswith("confidence 0.70 (")


def test_a_receiver_is_asked_four_times_for_each_run() -> None:
    # No answer; an answer, if not the right one; taken in the third time.
    elsewhere = Elsewhere(*[OSError("no answer")] * 4, not_found(), not_found())
    counts = [send(elsewhere, store="runs.db") for _ in range(3)]
    assert sum(one["scores_failed"] for one in counts) == 1
    assert sum(one["scores_sent"] for one in counts) == 2
    with TraceStore("runs.db") as store:
        assert store.count() == 3
        assert jobs_left(store) == []


def jobs_left(store: TraceStore) -> list[str]:
    return [row[0] for row in execute(store, "SELECT kind FROM jobs")]


class Hanging(Elsewhere):
    """Does not answer until the test ends."""

    def __init__(self, name: str, end: threading.Event) -> None:
        super().__init__()
        self.name, self.end = name, end  # type: ignore[misc]

    def send(self, scored: ScoredTrace, external: ExternalTrace) -> None:
        self.end.wait(600)


def test_receivers_that_hang_hold_up_no_other() -> None:
    end, elsewhere = threading.Event(), Elsewhere()
    hanging = [Hanging(name, end) for name in ("one", "two")]
    watching = agents.handler(send_scores_to=[*hanging, elsewhere], store="runs.db")
    ask_at_once([watching], runs=3)
    assert watching.flush(300)
    until = time.monotonic() + 300
    while len(elsewhere.sent) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(elsewhere.sent) == 3
    with TraceStore("runs.db") as store:
        assert {"score one", "score two"} <= {*jobs_left(store)}
    end.set()
    assert watching.send(300)


def test_scores_that_a_process_did_not_send_are_sent_by_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobs, "_MOST_TAKEN", 1)
    end = threading.Event()
    first = agents.handler(send_scores_to=[Hanging("elsewhere", end)], store="runs.db")
    ask_at_once([first], runs=5)
    assert first.flush(300)
    with TraceStore("runs.db") as store:
        assert jobs_left(store) == ["score elsewhere"] * 5
        gone, damaged, unreadable, *sound = (run.trace_id for run in store.runs())
        store.delete(gone)
        execute(store, "UPDATE bodies SET trace = '{' WHERE trace_id = :id", id=damaged)
        execute(store, "UPDATE scores SET breakdown = '[1]' WHERE trace_id = :id", id=unreadable)
        execute(store, "UPDATE jobs SET lease_until = 1, owner = 'dead'")
        execute(store, "UPDATE jobs SET attempts = 4 WHERE key = :id", id=damaged)
        elsewhere = Elsewhere()
        second = agents.handler(send_scores_to=[elsewhere], store=store)
        assert second.send(300)
        assert second.stats()["scores_sent"] == 2
        assert {one.stored_id for one, _ in elsewhere.sent} == {*sound}
        assert jobs_left(store) == []
    end.set()


def test_a_score_that_is_out_of_date_or_that_another_process_has_is_not_sent() -> None:
    end = threading.Event()
    slow = Hanging("elsewhere", end)
    first = agents.handler(send_scores_to=[slow], store="runs.db")
    ask_at_once([first], runs=3)
    assert first.flush(300)
    with TraceStore("runs.db") as store:
        for run in store.runs():
            store.report_outcome(run.trace_id, success=False, tools=["elsewhere"])
        elsewhere = Elsewhere()
        assert agents.handler(send_scores_to=[elsewhere], store=store).send(300)
        assert [one.trace.metadata.success for one, _ in elsewhere.sent] == [False] * 3
        end.set()
        assert first.send(300)
        assert first.stats()["scores_sent"] <= 1  # the one that was under way
        assert jobs_left(store) == []


def test_a_score_waits_until_its_run_is_in_the_store() -> None:
    elsewhere = Elsewhere()
    with TraceStore("runs.db") as store:
        watching = agents.handler(send_scores_to=[elsewhere], store=store)
        store.count()  # makes the tables
        execute(
            store,
            "CREATE TRIGGER refuse BEFORE INSERT ON runs BEGIN SELECT raise(ABORT, 'not now'); END",
        )
        ask_at_once([watching], runs=2)
        assert not watching.send(300)
        assert (watching.stats()["scored"], elsewhere.sent) == (2, [])
        execute(store, "DROP TRIGGER refuse")
        assert watching.send(300)
        assert {one.trace.id for one, _ in elsewhere.sent} == {one.trace_id for one in store.runs()}
        assert (watching.stats()["scores_sent"], jobs_left(store)) == (2, [])


def test_a_verdict_past_the_handler_has_the_score_sent_by_the_next_process() -> None:
    assert send(Elsewhere(), store="runs.db")["scores_sent"] == 1
    with TraceStore("runs.db") as store:
        (run,) = store.runs()
        for _ in range(2):  # the second one changes nothing
            store.report_outcome(run.trace_id, success=False, tools=["elsewhere", "unknown"])
        assert jobs_left(store) == ["score elsewhere"]
        elsewhere = Elsewhere()
        assert agents.handler(send_scores_to=[elsewhere], store=store).send(300)
        assert [one.trace.metadata.success for one, _ in elsewhere.sent] == [False]
        assert jobs_left(store) == []


def test_without_a_store_no_scores_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="send_scores_to needs a store"):
        KPCallbackHandler(store=None, send_scores_to=["opentelemetry"])
    monkeypatch.setenv("KP_SEND_SCORES_TO", "opentelemetry")
    watching = agents.handler(store=None)
    ask_at_once([watching], runs=1)
    assert watching.send(300)
    assert watching.stats()["scores_without_trace"] == 0


@pytest.mark.parametrize("answer", [LookupError(), "a trace"])
def test_a_receiver_that_breaks_while_the_run_is_under_way_harms_nobody(answer: Any) -> None:
    class Broken(Elsewhere):
        def find_trace(self, root_id: uuid.UUID, parent_id: uuid.UUID) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    handler = recorder(Broken(), [])
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    stats = handler.stats()
    assert stats["scored"] == stats["scores_without_trace"] == 1
    assert (stats["callback_errors"] > 0) is isinstance(answer, Exception)


def test_the_settings_name_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KP_SEND_SCORES_TO", "langsmith")
    handler = agents.handler(store="runs.db")
    ask_at_once([handler], runs=1)
    assert handler.send(300)
    assert handler.stats()["scores_without_trace"] == 1
    assert send()["scores_without_trace"] == 0


@pytest.mark.parametrize(
    ("receivers", "message"),
    [
        (["langsmit"], "choose from langsmith, langfuse"),
        (["elsewhere"], "choose from langsmith, langfuse"),
        ("langsmith", "give a list such as"),
        ([3], "give one of langsmith"),
        ([OpenTelemetryScores(), "opentelemetry"], "names a tool twice"),
    ],
)
def test_what_cannot_be_a_receiver_is_refused(receivers: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KPCallbackHandler(send_scores_to=receivers)


# ------------------------------------------------------------------ the examples


def run_example(name: str, tool: str = "opentelemetry", url: str = "") -> str:
    """Run an example against a server, and return what it printed."""
    settings = {"HF_HUB_OFFLINE": "1", **tools.environment_of(tool, url)}
    settings["KP_EMBEDDING_MODEL"] = "/no/such/model"  # loading one takes seconds
    settings["KP_DATABASE_URL"] = f"{name}.db"  # else the runs of one example repeat another's
    path = str(ROOT / "examples" / f"{name}.py")
    done = programs.run(
        "-c", f"import runpy; runpy.run_path({path!r}, None, '__main__')", **settings
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def received(tool: str, server: LoopbackTool) -> dict[str, str]:
    """Return the names of the scores that a server received, with the tool's id of the trace."""
    if tool == "langsmith":
        return {one.json["key"]: one.json["run_id"] for one in server.sent_to("/feedback")}
    if tool == "langfuse":
        sent = [one for request in server.sent_to("/scores") for one in request.json]
        return {one["name"]: one["traceId"] for one in sent}
    if tool == "phoenix":
        sent = [one for r in server.sent_to("/span_annotations") for one in r.json["data"]]
        return {one["name"]: one["span_id"] for one in sent}
    if tool == "opik":
        sent = [o for r in server.sent_to("/feedback-scores", "PUT") for o in r.json["scores"]]
        return {one["name"]: one["id"] for one in sent}
    return {
        request.json["assessment"]["assessment_name"]: request.path.split("/")[-2]
        for request in server.sent_to("/assessments")
    }


@pytest.mark.parametrize("tool", SERVERS)
def test_the_example_of_a_tool_has_scores_on_the_trace_of_its_run(
    tool: str, server: LoopbackTool
) -> None:
    printed = run_example(f"scores_to_{tool}", tool, server.url)
    assert "{'scores_sent': 1, 'scores_failed': 0}" in printed
    scores = received(tool, server)
    assert set(scores) == SCORES
    (trace_id,) = set(scores.values())
    in_bytes = bytes.fromhex(trace_id) if tool in ("langfuse", "phoenix") else trace_id.encode()
    is_score = ("/feedback", "/scores", "/span_annotations", "/feedback-scores", "/assessments")
    traced = b"".join(r.body for r in server.requests if not r.path.endswith(is_score))
    assert in_bytes in traced


def test_the_example_of_langfuse_stores_what_is_worth_it(server: LoopbackTool) -> None:
    printed = run_example("keep_worthy_in_langfuse", "langfuse", server.url)
    assert "'held': 0" in printed
    spans = tools.langfuse_spans(server)
    assert "1,200 EUR" in str(spans)
    assert "I do not know" not in str(spans)
    assert len({span.trace_id for span in spans}) == 1
    assert f"'kept': {len(spans)}," in printed


def test_the_examples_of_opentelemetry() -> None:
    printed = run_example("scores_to_opentelemetry")
    assert "{'scores_sent': 1, 'scores_failed': 0}" in printed
    decoder, records, at = json.JSONDecoder(), [], printed.find("{\n")
    while at >= 0:
        record, end = decoder.raw_decode(printed, at)
        records.append(record)
        at = printed.find("{\n", end)
    assert {one["attributes"]["gen_ai.evaluation.name"] for one in records} == SCORES
    (trace_id,) = {one["trace_id"] for one in records}
    assert int(trace_id, 16)
    printed = run_example("keep_worthy_traces")
    assert "2 runs, 1 exported" in printed
    assert "'held': 0" in printed
