"""Feedback read from a LangSmith that is really spoken to over HTTP, by LangSmith's own client."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from langsmith import Client
from urllib3.util import Retry

from kp_langchain import ConfigError, DomainPolicy, TraceStore
from kp_langchain.errors import KPError
from kp_langchain.gate.external_trace import ExternalTrace
from kp_langchain.integrations.langsmith import LangSmithScores, feedback
from kp_langchain.verdict import RunVerdict
from tests.agents import ASK, handler, searching
from tests.commands import Done, cli
from tests.loopback_tools import BEGAN, LoopbackLangSmith, LoopbackTool, Request

RUN = str(uuid.uuid4())


@pytest.fixture
def server() -> Iterator[LoopbackLangSmith]:
    with LoopbackLangSmith() as server:
        yield server


def client(url: str, key: str = "ls-key") -> Client:
    return Client(
        url, api_key=key, auto_batch_tracing=False, retry_config=Retry(0), timeout_ms=60_000
    )


def read(server: LoopbackLangSmith, *run_ids: str, **options: Any) -> list[RunVerdict]:
    return list(feedback(run_ids or [RUN], client=client(server.url), **options))


@pytest.mark.parametrize(
    ("given", "success", "confidence"),
    [
        ({"score": 1}, True, None),
        ({"score": 0}, False, None),
        ({"score": True}, True, None),
        ({"score": 1.0}, True, None),
        ({"score": 0.75}, True, 0.75),
        ({"score": 0.5}, True, 0.5),
        ({"score": 0.25}, False, 0.25),
        ({"value": "correct"}, True, None),
        ({"value": " Incorrect "}, False, None),
        ({"value": False}, False, None),
        ({"score": 1, "value": "incorrect"}, True, None),
    ],
)
def test_what_a_feedback_says(
    server: LoopbackLangSmith, given: dict[str, Any], success: bool, confidence: float | None
) -> None:
    server.give(RUN, comment="as I see it", **given)
    (one,) = read(server)
    assert one.verdict is not None
    assert (one.verdict.success, one.verdict.confidence) == (success, confidence)
    assert (one.run_id, one.key, one.at) == (RUN, "correctness", BEGAN)
    assert (one.verdict.source, one.verdict.note) == ("langsmith", "as I see it")
    assert one.verdict.at == BEGAN
    assert server.methods == {"GET"}


@pytest.mark.parametrize(
    "given",
    [{"score": 4}, {"score": -1}, {"score": 1.5}, {"value": "so so"}, {"value": {"a": 1}}],
)
def test_what_cannot_be_read_is_told(server: LoopbackLangSmith, given: dict[str, Any]) -> None:
    server.give(RUN, **given)
    (one,) = read(server)
    assert one.verdict is None
    assert "'correctness'" in one.why


def test_a_mere_comment_is_passed_over(server: LoopbackLangSmith) -> None:
    server.give(RUN, comment="hm")
    assert read(server) == []


def test_a_changed_feedback_counts_from_its_change(server: LoopbackLangSmith) -> None:
    later = BEGAN + timedelta(days=1)
    server.give(RUN, 1, modified_at=later.replace(tzinfo=None).isoformat())
    (one,) = read(server)
    assert one.at == later


@pytest.mark.parametrize(("source", "by_model"), [("app", False), ("api", False), ("model", True)])
def test_whether_a_model_gave_it(server: LoopbackLangSmith, source: str, by_model: bool) -> None:
    server.give(RUN, 1, feedback_source={"type": source, "metadata": None})
    (one,) = read(server)
    assert one.verdict is not None
    assert one.verdict.by_model is by_model


def test_pass_at(server: LoopbackLangSmith) -> None:
    server.give(RUN, 0.75)
    (one,) = read(server, pass_at=0.8)
    assert one.verdict is not None
    assert one.verdict.success is False
    with pytest.raises(ConfigError, match="pass_at is 7"):
        read(server, pass_at=7)


def test_many_runs_with_many_feedbacks_each_once(server: LoopbackLangSmith) -> None:
    ids = [str(uuid.uuid4()) for _ in range(120)]
    for id_ in ids:
        for score in (0, 1, 1):
            server.give(id_, score)
    server.give(str(uuid.uuid4()), 1)
    found = read(server, *ids, *ids)
    assert len(found) == 360
    assert {one.run_id for one in found} == set(ids)
    assert max(len(query["run"]) for query in server.asked) <= 50


def test_only_the_wanted_keys(server: LoopbackLangSmith) -> None:
    server.give(RUN, 1, key="toxicity")
    server.give(RUN, 0)
    assert [one.key for one in read(server, keys=["correctness"])] == ["correctness"]
    assert len(read(server)) == 2


def test_no_runs_ask_for_nothing(server: LoopbackLangSmith) -> None:
    assert list(feedback([], client=client(server.url))) == []
    assert server.asked == []


def test_a_server_that_heeds_no_page_and_no_run() -> None:
    with LoopbackLangSmith(deaf=True) as server:
        for _ in range(100):
            server.give(RUN, 1)
        server.give(str(uuid.uuid4()), 1)
        assert len(read(server)) == 100


@pytest.mark.parametrize(
    ("faults", "key", "told"),
    [
        ({}, "wrong", "refuses the key; set LANGSMITH_API_KEY"),
        ({"status": 401}, "ls-key", "refuses the key"),
        ({"status": 403}, "ls-key", "refuses the key"),
        ({"status": 404}, "ls-key", "status 404"),
        ({"status": 429}, "ls-key", "status 429"),
        ({"status": 500}, "ls-key", "status 500"),
        ({"body": b"<html>"}, "ls-key", "gave no readable answer"),
        ({"body": b'{"a": 1}'}, "ls-key", "gave no readable answer"),
        ({"body": b"[1]"}, "ls-key", "gave no readable answer"),
        ({"body": b'[{"id": 1}]'}, "ls-key", "gave no readable answer"),
    ],
)
def test_what_goes_wrong_is_one_clear_error(faults: dict[str, Any], key: str, told: str) -> None:
    with LoopbackLangSmith(**faults) as server:
        with pytest.raises(KPError) as caught:
            list(feedback([RUN], client=client(server.url, key)))
        assert told in str(caught.value)
        assert server.url in str(caught.value)


def test_a_server_that_is_not_there() -> None:
    with LoopbackLangSmith() as server:
        url = server.url
    with pytest.raises(KPError, match="cannot be reached at http"):
        list(feedback([RUN], client=client(url)))


# ------------------------------------------------------------------ the command


def label(server: LoopbackLangSmith, *words: str) -> Done:
    settings = {"LANGSMITH_ENDPOINT": server.url, "LANGSMITH_API_KEY": "ls-key"}
    return cli("label", "--langsmith", "--database", "runs.db", *words, **settings)


@pytest.fixture
def run_ids() -> list[str]:
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.48))
        for _ in range(3):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush()
        return [run.run_id for run in store.runs(newest_first=False)]


def test_the_command_labels_what_the_store_has(
    server: LoopbackLangSmith, run_ids: list[str]
) -> None:
    secret = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
    server.give(run_ids[0], 1)
    server.give(run_ids[0], 0, comment=f"no, see {secret}")
    server.give(run_ids[1], 4)
    server.give(str(uuid.uuid4()), 1)
    done = label(server, "--json")
    assert done.returncode == 1
    assert f"LangSmith, run {run_ids[1]}: feedback 'correctness': its score is 4" in done.stderr
    assert "LangSmith has 3 feedbacks under 'correctness' on 3 runs." in done.stderr
    assert "Labelled 1, of which now kept 0, withdrawn 1; unknown 0, skipped 1." in (done.stderr)
    changes = [json.loads(line) for line in done.stdout.splitlines()]
    assert [change["success"] for change in changes] == [True, False]
    with TraceStore("runs.db") as store:
        run = store.runs(newest_first=False)[0]
        assert (run.success, run.confidence_source) == (False, "langsmith")
        said = [v for v in store.verdicts(run.trace_id) if v.source == "langsmith"]
        assert [v.success for v in said] == [True, False]
        assert secret not in str(said)

    again = label(server)  # what is known already changes nothing
    assert "Labelled 0" in again.stdout
    with TraceStore("runs.db") as store:
        assert len([v for v in store.verdicts(run.trace_id) if v.source == "langsmith"]) == 2


def test_the_command_asks_which_key_is_meant(server: LoopbackLangSmith, run_ids: list[str]) -> None:
    server.give(run_ids[0], 0)
    server.give(run_ids[0], 1, key="toxicity")
    done = label(server)
    assert done.returncode == 1
    assert "correctness (1), toxicity (1)" in " ".join(done.stderr.split())
    done = label(server, "--key", "correctness")
    assert done.returncode == 0, done.stderr
    assert "withdrawn 1" in done.stdout


def test_the_command_tells_that_the_key_is_refused(
    server: LoopbackLangSmith, run_ids: list[str]
) -> None:
    server.key = "another"
    done = label(server)
    assert done.returncode == 1
    assert done.stderr.startswith("error: LangSmith at http://127.0.0.1")
    assert "Traceback" not in done.stderr


def test_runs_are_looked_up_a_hundred_at_a_time_at_most() -> None:
    asked: list[int] = []
    queue = {"id": str(uuid.UUID(int=2)), "tenant_id": str(uuid.UUID(int=3)), "name": "q"}
    queue |= {"created_at": BEGAN.isoformat(), "updated_at": BEGAN.isoformat()}

    def answer(request: Request) -> tuple[int, Any]:
        if request.path == "/annotation-queues":
            return 200, [queue]
        if request.path == "/runs/query":
            asked.append(request.json["limit"])
            run = {"session_id": str(uuid.UUID(int=1)), "start_time": BEGAN.isoformat()}
            return 200, {"runs": [run | {"id": id_} for id_ in request.json["id"]]}
        return 200, {}

    ids = [str(uuid.uuid4()) for _ in range(250)]
    with LoopbackTool(answer) as tool:
        receiver = LangSmithScores(client(tool.url))
        assert receiver.ask_for_verdicts([ExternalTrace(id_, id_) for id_ in ids], "q") == 250
    assert asked == [100, 100, 50]


def test_runs_worth_a_verdict_enter_an_annotation_queue(run_ids: list[str]) -> None:
    queues: list[dict[str, str]] = []
    put: list[dict[str, str]] = []

    def answer(request: Request) -> tuple[int, Any]:
        if request.path == "/annotation-queues" and request.method == "POST":
            times = {"created_at": BEGAN.isoformat(), "updated_at": BEGAN.isoformat()}
            ids = {"id": str(uuid.uuid4()), "tenant_id": str(uuid.uuid4())}
            queues.append(times | ids | {"name": request.json["name"]})
            return 200, queues[-1]
        if request.path == "/annotation-queues":
            return 200, queues
        if request.path == "/runs/query":
            assert set(request.json["id"]) <= set(run_ids)
            run = {"session_id": str(uuid.UUID(int=1)), "start_time": BEGAN.isoformat()}
            return 200, {"runs": [run | {"id": id_} for id_ in request.json["id"]]}
        if request.path.endswith("/runs/by-key"):
            put.extend(request.json)
        return 200, {}

    settings = {"LANGSMITH_API_KEY": "ls-key"}
    words = ("label", "--next", "--ask-in", "langsmith", "--limit", "2", "--database", "runs.db")
    with LoopbackTool(answer) as tool:
        for _ in range(2):
            done = cli(*words, LANGSMITH_ENDPOINT=tool.url, **settings)
            assert done.returncode == 0, done.stderr
            put_in = "2 of 2 runs put into the annotation queue 'kp_langchain'"
            assert done.stdout == f"LangSmith: {put_in}.\n"
    assert [queue["name"] for queue in queues] == ["kp_langchain"]  # made once
    assert len(put) == 4
    assert {one["run_id"] for one in put} < set(run_ids)
    assert {one["session_id"] for one in put} == {str(uuid.UUID(int=1))}
