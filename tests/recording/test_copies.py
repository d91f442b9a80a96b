"""A handler in another process, and copies of it in this one."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kp_langchain import DomainPolicy, KPCallbackHandler, Registry, Scorer, TraceStore, VectorCache
from kp_langchain.recording.capture import CaptureOptions
from kp_langchain.recording.options import HandlerOptions
from tests.agents import ASK, handler, searching

ROOT = Path(__file__).resolve().parents[2]
SPAWN = multiprocessing.get_context("spawn")


class Letters:
    """An embedder that counts letters."""

    def embed(self, texts: list[str]) -> Any:
        letters = "abcdefghijklmnopqrstuvwxyz"
        return np.array([[text.count(letter) + 0.1 for letter in letters] for text in texts])


def play(watching: KPCallbackHandler) -> str:
    os.chdir("/")  # a relative path of the store must not lead elsewhere
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last(60)
    assert scored is not None
    return scored.trace.id


class Counting(KPCallbackHandler):
    """A handler with an attribute and an event of its own."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(store="runs.db", scorer=Scorer(embedder=None))
        self.count = 0

    def on_text(self, text: str, **_: Any) -> None:
        self.count += self.step


def lenient(_: object) -> dict[str, Any]:
    return {"success": True, "confidence": 0.75}


def test_a_handler_plays_in_a_spawned_process() -> None:
    sent = handler(store="runs.db", outcome=lenient, policy=DomainPolicy(threshold=0.0))
    child = SPAWN.Process(target=play, args=(sent,))
    child.start()
    child.join(600)
    assert child.exitcode == 0
    with TraceStore("runs.db") as store:
        (run,) = store.runs()
    assert run.decision == "contributed"
    assert run.trace.outcome.confidence == 0.75


def test_a_handler_is_sent_with_each_task_of_a_pool() -> None:
    sent = handler(store=Path("runs.db"))
    with ProcessPoolExecutor(2, mp_context=SPAWN) as pool:
        ids = list(pool.map(play, [sent] * 4))
    with TraceStore("runs.db") as store:
        assert {run.trace_id for run in store.runs()} == set(ids)


def test_a_handler_that_has_heard_a_graph_is_sent_as_before() -> None:
    sent = handler(store="runs.db")
    before = pickle.dumps(sent)
    searching().invoke(ASK, {"callbacks": [sent]})
    assert sent.flush(60)
    assert pickle.dumps(sent) == before
    with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
        pool.submit(play, sent).result(600)
    with TraceStore("runs.db") as store:
        assert store.count() == 2


def test_a_handler_of_a_subclass_arrives_with_what_it_has_besides() -> None:
    sent = Counting(3)
    searching().invoke(ASK, {"callbacks": [sent]})
    sent.on_text("")
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301
    assert type(arrived) is Counting
    arrived.on_text("")
    assert (arrived.step, arrived.count) == (3, 6)
    searching().invoke(ASK, {"callbacks": [arrived]})
    assert arrived.flush(60)
    assert arrived.stats()["scored"] == 1


def test_what_was_left_to_the_settings_is_up_to_those_of_the_other_process() -> None:
    sent = pickle.dumps(KPCallbackHandler("finance", scorer=Scorer(embedder=None)))
    script = (
        "import pickle, sys; from tests.recording.test_copies import play\n"
        "play(pickle.loads(sys.stdin.buffer.read()))"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        input=sent,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KP_DATABASE_URL": str(Path("there.db").absolute()),
        },
        check=True,
        timeout=600,
    )
    with TraceStore("there.db") as store:
        assert store.count(domain="finance") == 1


@pytest.mark.parametrize("name", ["outcome", "on_scored", "objective", "redactor", "verifiers"])
def test_a_function_that_cannot_be_sent_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [one for one in sys.modules if one.endswith("cloudpickle")]:
        monkeypatch.delitem(sys.modules, module)

    def nested(_: object) -> None:
        return None

    where = f"{name}[1]" if name == "verifiers" else name
    for function in (nested, lambda _: None):
        argument: Any = [lenient, function] if name == "verifiers" else function
        with pytest.raises(pickle.PicklingError) as caught:
            pickle.dumps(handler(**{name: argument}))
        assert str(caught.value).startswith(f"{where} is <function ")
        assert "defined at the top of a module" in str(caught.value)


def test_cloudpickle_sends_any_function() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    confidence = 0.625
    sent = handler(store="runs.db", outcome=lambda _: confidence)
    arrived = pickle.loads(cloudpickle.dumps(sent))  # noqa: S301 - our own bytes
    searching().invoke(ASK, {"callbacks": [arrived]})
    assert arrived.last(60).trace.outcome.confidence == 0.625


def test_a_store_and_a_registry_arrive_with_what_they_need_to_connect() -> None:
    registry = Registry(
        "http://127.0.0.1:9", api_key="kp_" + "0" * 32, agent_id="kp:agent:desk", timeout_s=3.0
    )
    sent = handler(store=TraceStore("runs.db"), registry=registry)
    arrived = pickle.loads(pickle.dumps(sent))  # noqa: S301
    again = pickle.loads(pickle.dumps(registry))  # noqa: S301
    assert again == registry
    assert "0" * 32 not in repr(again)
    searching().invoke(ASK, {"callbacks": [arrived]})
    assert arrived.last(60).trace.metadata.agent_id == "kp:agent:desk"
    with TraceStore("runs.db") as store:
        assert store.count() == 1


def test_a_store_that_arrives_twice_is_one() -> None:
    sent = pickle.dumps(TraceStore("runs.db"))
    assert pickle.loads(sent) is pickle.loads(sent)  # noqa: S301


def test_a_scorer_arrives_without_its_memory() -> None:
    scorer = Scorer(
        profiles={
            "mine": {"complexity": 1, "novelty": 0, "tool_diversity": 0, "outcome_confidence": 0}
        },
        embedder=Letters(),
        cache=VectorCache(max_elements=7, dimensions=26),
        step_cap=3,
        latency_budget_ms=None,
    )
    trace = traced("mine")
    first = scorer.evaluate(trace)
    assert scorer.score(trace).novelty.value == pytest.approx(0.0, abs=1e-6)
    arrived = pickle.loads(pickle.dumps(scorer))  # noqa: S301
    assert arrived.max_remembered == 7
    score = arrived.score(trace)
    assert (score.total, score.nearest, score.profile) == (first.total, first.nearest, "mine")


def traced(domain: str) -> Any:
    scored = []
    watching = handler(domain, on_scored=scored.append)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush(60)
    return scored[0].trace


def test_the_default_embedder_is_loaded_where_it_arrives() -> None:
    assert pickle.loads(pickle.dumps(Scorer())).max_remembered == Scorer().max_remembered  # noqa: S301


def test_frameworks_that_copy_callbacks_get_the_handler_itself() -> None:
    watching = handler()
    assert copy.copy(watching) is watching
    assert copy.deepcopy({"callbacks": [watching]})["callbacks"][0] is watching


def test_a_handler_s_arguments_are_the_same_wherever_they_are_listed() -> None:
    arguments = [name for name in signature(KPCallbackHandler).parameters if name != "domain"]
    assert list(CaptureOptions.__annotations__) == arguments
    assert [name for name in HandlerOptions.__slots__ if name != "domain"] == arguments
