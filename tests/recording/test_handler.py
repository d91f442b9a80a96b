"""The handler as its owner uses it: gate, log, store, registry, what goes wrong, its end."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from kp_langchain import (
    ConfigError,
    DomainPolicy,
    KPCallbackHandler,
    ReasoningTrace,
    Registry,
    ScoredTrace,
    Scorer,
    ScoringWeights,
    TraceStore,
    capture,
)
from kp_langchain.store import journal
from tests.agents import ASK, QUESTION, agent, asearch, call, handler, run, say, searching
from tests.loopback_registry import LoopbackRegistry
from tests.recording.playing import Events, approving, last, scored_by, stored
from tests.scoring.conftest import Slow

ALWAYS = DomainPolicy(threshold=0.0)
NEVER = DomainPolicy(threshold=1.0)
NETWORK = DomainPolicy(threshold=0.0, visibility="network")


def play(*watching: KPCallbackHandler, times: int = 1) -> None:
    for _ in range(times):
        answer = searching().invoke(ASK, {"callbacks": list(watching)})
        assert answer["messages"][-1].content == "42"


# ------------------------------------------------------------------ what it makes of a run


def test_the_last_run_is_scored_by_the_domain_of_the_handler_or_of_the_run() -> None:
    watching, run_id = handler("finance"), uuid4()
    assert watching.last(0.1) is None
    scored = last(watching, run_id=run_id)
    assert scored.run_id == run_id
    assert scored.trace.metadata.task_domain == scored.breakdown.profile == "finance"
    assert scored.trace.metadata.quality_score == scored.breakdown.total
    assert last(watching, metadata={"kp_domain": "medical"}).breakdown.profile == "medical"
    assert run(searching(), domain="gardening").breakdown.profile == "default"


def test_the_policy_and_the_agents_id_reach_the_trace() -> None:
    weights = ScoringWeights(0.0, 0.0, 0.0, 1.0)
    policy = DomainPolicy(weights=weights, visibility="org", privacy_level="federated")
    scored = run(searching(), domain="finance", policy={"finance": policy}, agent_id="a1")
    assert scored.breakdown.outcome_confidence.weight == 1.0
    metadata = scored.trace.metadata
    assert (metadata.visibility, metadata.privacy_level) == ("org", "federated")
    assert metadata.agent_id == "kp:agent:a1"
    policies: dict[str, Any] = {"finance": policy}
    watching = handler(domain="finance", policy=policies, store="policies.db")
    policies["code"] = "changed by its owner"
    assert last(watching).breakdown.outcome_confidence.weight == 1.0
    assert run(searching(), agent_id="kp:agent:b").trace.metadata.agent_id == "kp:agent:b"
    assert run(searching()).trace.metadata.agent_id is None


def test_the_argument_sets_the_threshold_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_DOMAINS__FINANCE__THRESHOLD", "0.22")
    for options, threshold in (({}, 0.22), ({"policy": DomainPolicy(threshold=0.33)}, 0.33)):
        assert run(searching(), domain="finance", **options).threshold == threshold


@pytest.mark.parametrize(
    ("policy", "decision", "has_body", "expires"),
    [
        (ALWAYS, "kept", True, False),
        (NEVER, "below_threshold", True, True),
        (DomainPolicy(threshold=1.0, keep_days=0), "below_threshold", False, False),
        (DomainPolicy(threshold=1.0, keep="all"), "below_threshold", True, False),
    ],
)
def test_the_gate_decides_and_the_policy_says_how_long_a_body_is_kept(
    policy: DomainPolicy, decision: str, has_body: bool, expires: bool
) -> None:
    with TraceStore("t.db") as store:
        watching = handler(policy=policy, store=store)
        scored = last(watching)
        assert scored.decision == decision
        assert watching.stats()[decision] == 1
        kept = stored(store, scored)
        assert (kept.decision, kept.breakdown) == (decision, scored.breakdown)
        assert kept.trace == (scored.trace if has_body else None)
        assert (kept.kept_until is not None) is expires


def test_capture_records_what_runs_inside_the_block_in_any_task() -> None:
    async def main() -> KPCallbackHandler:
        with capture("finance", store=None, scorer=Scorer(embedder=None)) as watching:
            searching().invoke(ASK)
            await asyncio.gather(*(searching().ainvoke(ASK) for _ in range(4)))
        searching().invoke(ASK)
        return watching

    watching = asyncio.run(main())
    assert scored_by(watching).breakdown.profile == "finance"
    assert watching.stats()["runs"] == watching.stats()["scored"] == 5


def test_the_objective_function_comes_first_and_may_fail() -> None:
    for function, objective in (
        (lambda _: "mine", "mine"), (lambda _: None, QUESTION), (lambda x: x["no"], QUESTION),
    ):  # fmt: skip
        assert run(searching(), objective=function).trace.task.objective == objective


# ------------------------------------------------------------------ the log


@pytest.fixture
def records(caplog: pytest.LogCaptureFixture) -> Callable[[], list[logging.LogRecord]]:
    caplog.set_level(logging.INFO, "kp_langchain")
    return lambda: [one for one in caplog.records if "kp.trace_scored" in one.getMessage()]


def test_every_scored_run_gives_one_record_with_every_figure(
    records: Callable[[], list[logging.LogRecord]],
) -> None:
    scored = run(searching(), domain="finance")
    (record,) = records()
    fields = vars(record)
    assert {name: fields[name] for name in (
        "score", "threshold", "decision", "trace_id", "run_id", "confidence_source", "objective",
    )} == {
        "score": scored.breakdown.total, "threshold": scored.threshold, "trace_id": scored.trace.id,
        "decision": scored.decision, "run_id": str(scored.run_id), "confidence_source": "default",
        "objective": QUESTION,
    }  # fmt: skip
    for name, dimension in scored.breakdown.dimensions.items():
        figures = (dimension.value, dimension.weight, dimension.contribution)
        assert (fields[name], fields[f"{name}_weight"], fields[f"{name}_contribution"]) == figures
    json.dumps({key: value for key, value in fields.items() if key not in ("args", "exc_info")})
    assert f"{scored.breakdown.total:.3f}" in record.getMessage()


@pytest.mark.parametrize(
    ("objective", "logged"),
    [
        ("Buy bread", "Buy bread"),
        ("word " * 30, "word " * 11 + "word"),
        ("é" * 100, "é" * 60),
        ("  one\nkp\ttwo\x1b[2J\u202e", "one kp two\ufffd[2J\ufffd"),
        ("Write to ann@example.org", "Write to [REDACTED:email]"),
    ],
)
def test_a_log_line_ends_with_the_beginning_of_the_redacted_task(
    records: Callable[[], list[logging.LogRecord]], objective: str, logged: str
) -> None:
    for level in ("aggregated", "private"):
        policy = DomainPolicy(privacy_level=level)
        scored = run(searching(), {"messages": [("user", objective)]}, policy=policy)
        assert records()[-1].getMessage().endswith(f" | {scored.trace.id} | {logged}")


def test_a_host_whose_logging_is_in_the_way_loses_its_lines_only(
    records: Callable[[], list[logging.LogRecord]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise RuntimeError("the host's handler")

    theirs = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = theirs(*args, **kwargs)
        record.trace_id = "the host's"
        return record

    logging.setLogRecordFactory(factory)
    try:
        scored = run(searching())
    finally:
        logging.setLogRecordFactory(theirs)
    (record,) = records()
    assert vars(record)["kp"]["trace_id"] == scored.trace.id
    monkeypatch.setattr(logging.getLogger("kp_langchain"), "handlers", [Broken()])
    watching, fine = handler(scorer=RaisingScorer(embedder=None)), handler()
    play(watching, fine, times=2)
    assert watching.flush(300)
    assert fine.flush(300)
    assert watching.stats()["scorer_errors"] == fine.stats()["scored"] == 2


# ------------------------------------------------------------------ functions that fail or hang


class RaisingScorer(Scorer):
    def evaluate(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("secret text of the run")


class RaisingEmbedder:
    def embed(self, texts: Any) -> Any:
        raise OSError("no weights")


def test_a_scorer_that_raises_is_counted_and_logged_once_without_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watching = handler(scorer=RaisingScorer(embedder=None), policy=ALWAYS)
    play(watching, times=3)
    scored = scored_by(watching)
    assert scored.breakdown.novelty_source == "scorer failed: RuntimeError"
    assert scored.decision == "below_threshold"
    stats = watching.stats()
    assert (stats["scorer_errors"], stats["scored"], stats["failed"]) == (3, 3, 0)
    (warning,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert "RuntimeError" in warning.getMessage()
    assert "secret text" not in caplog.text
    breakdown = run(searching(), scorer=Scorer(embedder=RaisingEmbedder())).breakdown
    assert breakdown.novelty.value == 0.5
    assert "OSError" in breakdown.novelty_source


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke"])
def test_an_interrupt_inside_a_tool_cancels_the_run(error: type[BaseException], how: str) -> None:
    @tool
    def interrupted(q: str) -> str:
        """Be interrupted."""
        raise error

    made = agent(say("I try.", call("interrupted", q="a")), say("42"), tools=(interrupted,))
    watching = handler()
    config: Any = {"callbacks": [watching]}
    play: dict[str, Callable[[], object]] = {
        "invoke": lambda: made.invoke(ASK, config),
        "stream": lambda: list(made.stream(ASK, config)),
        "ainvoke": lambda: asyncio.run(made.ainvoke(ASK, config)),
    }
    with pytest.raises(error):
        play[how]()
    searching().invoke(ASK, config)
    scored_by(watching)
    stats = watching.stats()
    assert (stats["runs"], stats["cancelled"], stats["scored"]) == (2, 1, 1)


def test_an_interrupt_while_a_callback_reads_reaches_the_host() -> None:
    class Interrupted(dict[str, Any]):
        def get(self, *_: Any) -> Any:
            raise KeyboardInterrupt

        items = values = get

    with pytest.raises(KeyboardInterrupt):
        RunnableLambda(lambda value: value).invoke(Interrupted(), {"callbacks": [handler()]})


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_functions_of_the_caller_that_raise_end_nothing(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(value: Any) -> Any:
        raise error(getattr(value, "objective", ""))

    watching = handler(outcome=fail, on_scored=fail)
    play(watching, times=2)
    assert watching.flush(300)
    stats = watching.stats()
    assert stats["scored"] == stats["outcome_errors"] == stats["on_scored_errors"] == 2
    assert caplog.messages
    assert QUESTION not in caplog.text


def test_on_scored_finds_its_run_in_the_store_and_does_not_wait_for_itself() -> None:
    said: list[tuple[bool, bool]] = []
    with TraceStore("runs.db") as store:

        def look(scored: ScoredTrace) -> None:
            said.append((store.get(scored.trace.id) is not None, watching.flush(5)))

        watching = handler(store=store, on_scored=look)
        play(watching)
        assert watching.flush(300)
    assert said == [(True, False)]


@pytest.fixture
def end() -> Iterator[threading.Event]:
    """Ends whatever hangs."""
    end = threading.Event()
    yield end
    end.set()


class HangingScorer(Scorer):
    end: threading.Event

    def evaluate(self, *_: Any, **__: Any) -> Any:
        self.end.wait()


class HangingEmbedder:
    def __init__(self, end: threading.Event) -> None:
        self.end = end

    def embed(self, texts: Any) -> Any:
        self.end.wait()
        raise OSError


class HangingMapping(dict[str, Any]):
    end: threading.Event

    def __iter__(self) -> Any:
        self.end.wait()
        return super().__iter__()


def ended_by(end: threading.Event, hanging: Any) -> Any:
    hanging.end = end
    return hanging


HANGING: dict[str, tuple[Callable[[threading.Event], dict[str, Any]], str]] = {
    "outcome": (lambda end: {"outcome": lambda _: end.wait() and None}, "outcome_errors"),
    "what outcome returns": (
        lambda end: {"outcome": lambda _: ended_by(end, HangingMapping(success=True))},
        "outcome_errors",
    ),
    "on_scored": (lambda end: {"on_scored": lambda _: end.wait()}, "on_scored_errors"),
    "redactor": (lambda end: {"redactor": lambda text: end.wait() and text}, "redaction_errors"),
    "scorer": (
        lambda end: {"scorer": ended_by(end, HangingScorer(embedder=None))}, "scorer_errors",
    ),
    "embedder": (lambda end: {"scorer": Scorer(embedder=HangingEmbedder(end))}, "scorer_errors"),
}  # fmt: skip


@pytest.mark.parametrize("what", HANGING)
def test_what_hangs_is_given_up_named_and_counted(
    what: str,
    end: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KP_FUNCTION_TIMEOUT_S", "0.05")
    options, count = HANGING[what]
    with TraceStore("runs.db") as store:
        watching = handler(store=store, **options(end))
        play(watching, times=12)
        assert watching.flush(300)
        stats = watching.stats()
        assert stats["scored"] == stats[count] == store.count() == 12
    assert "took longer than 0.05 s" in caplog.text
    end.set()
    assert watching.flush(300)
    assert watching.stats()[count] == 12  # what comes too late is not counted again


@pytest.mark.parametrize("what", ["outcome", "scorer"])
def test_what_hangs_stops_no_other_handler(what: str, end: threading.Event) -> None:
    with TraceStore("runs.db") as store:
        watching = handler(store=store, **HANGING[what][0](end))
        others = [handler(store=store), handler(), handler(outcome=lambda _: 0.5)]
        play(watching, *others, times=3)
        for other in others:
            assert other.flush(300)
            assert other.stats()["scored"] == 3
        assert watching.stats()["scored"] < 3
        end.set()
        assert watching.flush(300)
        assert watching.stats()["scored"] == 3


def test_runs_wait_for_a_model_that_is_loading() -> None:
    embedder, scored = Slow(), []
    with TraceStore("runs.db") as store:
        watching = handler(store=store, scorer=Scorer(embedder=embedder), on_scored=scored.append)
        play(watching, times=2)
        assert embedder.asked.wait(300)
        assert (watching.stats()["scored"], store.count()) == (0, 0)
        embedder.go.set()
        assert watching.flush(300)
        assert store.count() == 2
    assert scored[1].breakdown.nearest.trace_id == scored[0].trace.id


# ------------------------------------------------------------------ a store or queue in the way


def test_runs_wait_for_a_store_that_cannot_be_written_so_many_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KP_MAX_QUEUE", "2")
    folder = Path("folder.db")
    folder.mkdir()
    store = TraceStore(folder)
    watching = handler(store=store)
    for _ in range(4):
        last(watching)  # it is scored, logged and told of all the same
    stats = watching.stats()
    assert (stats["scored"], stats["waiting_to_store"], stats["not_stored"]) == (4, 2, 2)
    assert not watching.flush()
    folder.rmdir()
    assert watching.flush()
    assert (watching.stats()["waiting_to_store"], store.count()) == (0, 2)


def test_a_run_waits_for_a_store_whose_url_cannot_be_read() -> None:
    watching = handler(store="postgresql://ann@localhost:port/runs")
    last(watching)
    assert not watching.flush()
    stats = watching.stats()
    assert (stats["waiting_to_store"], stats["not_stored"]) == (1, 0)


def test_a_run_that_the_database_refuses_does_not_take_others_with_it() -> None:
    with TraceStore("runs.db") as store:
        store.count()
        with closing(sqlite3.connect("runs.db")) as other:
            other.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON runs WHEN new.domain = 'code' "
                "BEGIN SELECT raise(ABORT, 'not this one'); END"
            )
            watching = handler("finance", store=store)
            for domain in ("finance", "code", "finance"):
                metadata = {"kp_domain": domain}
                searching().invoke(ASK, {"callbacks": [watching], "metadata": metadata})
            until = time.monotonic() + 60
            while store.count() < 2 and time.monotonic() < until:
                assert not watching.flush()
            assert (store.count(), watching.stats()["waiting_to_store"]) == (2, 1)
            other.execute("DROP TRIGGER refuse")
        assert watching.flush()
        assert store.count() == 3


@pytest.mark.parametrize(
    "error",
    [TypeError(), ValueError(), OverflowError(), RecursionError(),
     sa.exc.DataError("INSERT", {}, sqlite3.DataError("string or blob too big"))],
)  # fmt: skip
def test_a_run_that_no_database_takes_is_dropped_and_the_others_are_kept(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body_of = journal.body_of

    def refuse(trace: ReasoningTrace) -> Any:
        if trace.metadata.task_domain == "code":
            raise error
        return body_of(trace)

    monkeypatch.setattr(journal, "body_of", refuse)
    with TraceStore("runs.db") as store:
        store.count()
        watching = handler(store=store)
        with closing(sqlite3.connect("runs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # so that they are written together
            for domain in ("finance", "code", "finance"):
                metadata = {"kp_domain": domain}
                searching().invoke(ASK, {"callbacks": [watching], "metadata": metadata})
        assert not watching.flush(300)
        stats = watching.stats()
        assert (store.count(), stats["not_stored"], stats["waiting_to_store"]) == (2, 1, 0)
        assert watching.flush(300)
    assert "a run cannot be kept in the store" in caplog.text


def test_runs_beyond_the_queue_are_dropped_and_counted(
    end: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KP_MAX_QUEUE", "2")
    begun = threading.Event()
    watching = handler(on_scored=lambda _: begun.set() or end.wait())
    play(watching)
    assert begun.wait(300)
    play(watching, times=5)
    end.set()
    assert watching.flush(300)
    stats = watching.stats()
    assert stats["runs"] == 6 == stats["scored"] + stats["dropped"]
    assert stats["dropped"] >= 1


# ------------------------------------------------------------------ the registry


def test_only_visible_traces_that_passed_go_to_the_registry() -> None:
    with LoopbackRegistry() as server, TraceStore("runs.db") as store:
        for visibility, threshold in (("private", 0.0), ("org", 0.0), ("network", 1.0)):
            policy = DomainPolicy(visibility=visibility, threshold=threshold)
            registry = Registry(server.url, api_key="kp_x")
            watching = handler(policy=policy, store=store, registry=registry)
            play(watching)
            assert watching.send(300)
        (unit,) = server.units.values()
        assert unit["metadata"]["visibility"] == "org"


def test_the_settings_name_the_registry_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with LoopbackRegistry(keys={"kp_x"}) as server:
        monkeypatch.setenv("KP_REGISTRY_URL", server.url)
        monkeypatch.setenv("KP_API_KEY", "kp_x")
        for store, sent in (("runs.db", 1), (None, 1)):
            watching = handler(policy=NETWORK, store=store)
            play(watching)
            assert watching.send(300)
            assert len(server.units) == sent
        monkeypatch.setenv("KP_DISABLED", "1")
        off = handler(policy=NETWORK, store="runs.db")
        play(off)
        assert off.send(300)
        assert (off.stats()["runs"], len(server.requests)) == (0, 1)


# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"domain": ""}, "domain"), ({"domain": None}, "domain"), ({"domain": " "}, "domain"),
        ({"policy": {"threshold": 1}}, "policy"), ({"outcome": 3}, "outcome"),
        ({"on_scored": "x"}, "on_scored"), ({"on_scored": asyncio.sleep}, "on_scored"),
        ({"objective": 1}, "objective"), ({"registry": object()}, "registry"),
        ({"store": 7}, "store"), ({"scorer": "auto"}, "scorer"), ({"scorer": Scorer}, "scorer"),
        ({"agent_id": 7}, "agent_id"), ({"redactor": "presidio"}, "redactor is 'presidio'"),
        ({"registry": "https://r.example.org", "store": None}, "registry needs a store"),
        ({"registry": "http://far.example.org", "store": "runs.db"}, "write https://"),
        ({"verifiers": None}, "verifiers is None"), ({"verifiers": [len, 7]}, "7"),
        ({"verifiers": [Scorer]}, "Scorer"), ({"verifiers": len}, "verifiers is <built-in"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        KPCallbackHandler(**arguments)


# ------------------------------------------------------------------ its end


def test_with_stores_what_ended_lets_errors_through_and_records_nothing_more() -> None:
    def fail() -> None:
        with watching:
            play(watching, times=3)
            raise LookupError("mine")

    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        with pytest.raises(LookupError, match="mine"):
            fail()
        assert store.count() == 3
        play(watching)
        assert watching.stats()["runs"] == 3


def test_async_with_waits_while_the_event_loop_goes_on() -> None:
    scoring, go = threading.Event(), threading.Event()

    async def let_go() -> None:
        await asyncio.to_thread(scoring.wait, 60)
        go.set()  # this runs only if the loop is not blocked by the end of the block

    async def main(watching: KPCallbackHandler) -> int:
        async with watching:
            play(watching)
            letting_go = asyncio.create_task(let_go())
        await letting_go
        return watching.stats()["scored"]

    held = handler(on_scored=lambda _: scoring.set() or go.wait(60), store="runs.db")
    assert asyncio.run(main(held)) == 1


def test_the_lifespan_of_a_service_stores_and_sends() -> None:
    pytest.importorskip("starlette")
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route
    from starlette.testclient import TestClient

    async def ask(_: Request) -> PlainTextResponse:
        made = agent(say("I search.", call("asearch", q="a")), say("42"), tools=(asearch,))
        answer = await made.ainvoke(ASK, {"callbacks": [watching]})
        return PlainTextResponse(answer["messages"][-1].content)

    key = "kp_0123456789abcdef0123456789abcdef"
    with LoopbackRegistry(keys={key}) as server, TraceStore("runs.db") as store:
        registry = Registry(server.url, api_key=key)
        policy = NETWORK.model_copy(update={"twin_similarity": 1.0})  # the same run again
        watching = handler("finance", store=store, registry=registry, policy=policy)
        for times in (1, 2):  # an application may be started again
            service = Starlette(routes=[Route("/", ask)], lifespan=watching.lifespan)
            with TestClient(service) as client:
                assert client.get("/").text == "42"
            assert store.count() == len(server.units) == times


def test_close_gives_up_what_is_open() -> None:
    watching = handler()
    config: Any = {"callbacks": [watching], "configurable": {"thread_id": "closed"}}
    approving().invoke(ASK, config)
    Events(watching)
    assert (watching.stats()["paused"], watching.stats()["open"]) == (1, 1)
    watching.close()
    stats = watching.stats()
    assert (stats["paused"], stats["open"], stats["abandoned"]) == (1, 0, 1)


def test_a_stream_held_at_its_pause_is_in_the_store_when_its_handler_is_closed() -> None:
    graph, thread = approving(), {"configurable": {"thread_id": "t-1"}}
    with handler(store="runs.db") as watching:
        stream = graph.stream(ASK, {**thread, "callbacks": [watching]}, stream_mode="updates")
        assert any("__interrupt__" in part for part in stream)
    assert watching.store is not None
    assert (watching.stats()["paused"], watching.store.paused.count()) == (1, 1)
    stream.close()
