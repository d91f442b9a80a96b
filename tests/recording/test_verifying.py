"""Verifiers: who is asked, with what, and that nothing they do hurts a run."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.tools import tool

from kp_langchain import ConfigError, FinishedRun, ScoredTrace, Scorer, TraceStore, capture
from kp_langchain.recording.time_limit import MAX_HANGING
from tests.agents import ASK, ScriptedChatModel, agent, call, handler, run, say, searching

SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
ROOT = Path(__file__).resolve().parents[2]


def yes(_: FinishedRun) -> bool:
    return True


def no(_: FinishedRun) -> bool:
    return False


@pytest.mark.parametrize(
    ("answer", "success", "confidence"),
    [
        (True, True, 0.8),
        (False, False, 0.2),
        ({"success": False, "confidence": 0.9, "note": "wrong number"}, False, 0.9),
        (None, True, 0.8),
        (0.3, True, 0.3),
    ],
)
def test_a_verifier_judges_a_run_that_nobody_judged(
    answer: Any, success: bool, confidence: float
) -> None:
    def grade(_: FinishedRun) -> Any:
        return answer

    async def agrade(_: FinishedRun) -> Any:
        await asyncio.sleep(0)
        return answer

    for verifier in (grade, agrade):
        scored = run(searching(), verifiers=[verifier])
        assert scored.trace.metadata.success is success
        assert scored.trace.outcome.confidence == confidence
        said = confidence not in (0.8, 0.2)
        name = f"verifier {verifier.__name__}" if said else "default"
        assert scored.breakdown.confidence_source == name


def test_the_first_that_says_a_success_wins_and_no_further_one_is_asked() -> None:
    asked = []

    def named(name: str, answer: Any) -> Any:
        def verifier(_: FinishedRun) -> Any:
            asked.append(name)
            return answer

        return verifier

    scored = run(searching(), verifiers=[named("a", None), named("b", False), named("c", True)])
    assert scored.trace.metadata.success is False
    assert asked == ["a", "b"]


@tool
def tell() -> str:
    """Tell how it went."""
    dispatch_custom_event("kp.outcome", {"success": True})
    return "told"


def test_who_knows_comes_before_verifiers() -> None:
    def never(_: FinishedRun) -> bool:
        raise AssertionError("asked")

    watching = handler(outcome=lambda _: True, verifiers=[never])
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    assert scored.trace.metadata.success is True
    told = handler(verifiers=[never])
    telling = agent(say("", call("tell")), say("done"), tools=(tell,))
    telling.invoke(ASK, {"callbacks": [told]})
    assert told.flush()
    assert watching.stats()["verifier_errors"] == told.stats()["verifier_errors"] == 0
    # A confidence alone says nothing of the success.
    scored = run(searching(), outcome=lambda _: 0.6, verifiers=[no])
    assert scored.trace.metadata.success is False
    assert scored.trace.outcome.confidence == 0.6


def test_a_verifier_sees_redacted_text_only() -> None:
    seen: list[FinishedRun] = []
    leaky = agent(
        say(f"I use {SECRET}", call("search", q=SECRET)), say(f"Mail me@example.org, {SECRET}")
    )
    config = {"metadata": {"token": SECRET}}
    watching = handler(verifiers=[lambda r: seen.append(r)])
    leaky.invoke(
        {"messages": [("user", f"log in with {SECRET}")]}, {"callbacks": [watching], **config}
    )
    scored = watching.last()
    assert scored is not None
    (finished,) = seen
    assert SECRET not in repr(finished)
    assert "me@example.org" not in repr(finished)
    assert finished.objective == scored.trace.task.objective
    assert finished.answer == scored.trace.outcome.result_summary
    assert list(finished.steps) == scored.trace.steps
    assert (finished.output, finished.metadata, finished.error) == (None, {}, "")
    assert finished.run_id == scored.run_id
    assert finished.success is True


def test_a_verifier_of_a_failed_run_sees_the_error_redacted() -> None:
    seen: list[FinishedRun] = []

    def fail(q: str) -> str:
        """Fail."""
        raise ConnectionError(f"refused for {SECRET}")

    failing = agent(say("", call("fail", q="a")), tools=(tool(fail),))
    watching = handler(verifiers=[lambda r: seen.append(r)])
    with pytest.raises(ConnectionError):
        failing.invoke(ASK, {"callbacks": [watching]})
    assert watching.flush()
    (finished,) = seen
    assert "ConnectionError" in finished.error
    assert SECRET not in finished.error
    assert finished.answer == ""
    assert finished.success is False


def test_a_run_that_cannot_be_redacted_is_shown_to_no_verifier() -> None:
    def broken(_: str) -> str:
        raise OSError

    asked: list[FinishedRun] = []
    scored = run(searching(), redactor=broken, verifiers=[lambda r: asked.append(r)])
    assert scored.decision == "below_threshold"
    assert asked == []


def test_what_a_verifier_does_to_its_run_changes_nothing() -> None:
    def vandal(finished: FinishedRun) -> bool:
        for step in finished.steps:
            step.content = SECRET
            if step.input:
                step.input["q"] = SECRET
        return True

    scored = run(searching(), verifiers=[vandal])
    assert SECRET not in scored.trace.model_dump_json()


class _Endless(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        return 1

    def __len__(self) -> int:
        return 1 << 60

    def __iter__(self) -> Iterator[str]:
        return (f"{n}" for n in iter(int, 1))


class _Weird:
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


class _PayloadError(Exception):
    def __str__(self) -> str:
        raise SystemExit(SECRET)


def _raising(error: BaseException) -> Any:
    def verifier(_: FinishedRun) -> Any:
        raise error

    return verifier


async def _araising(_: FinishedRun) -> Any:
    raise RuntimeError(SECRET)


HURTFUL = {
    "error": _raising(ValueError(SECRET)),
    "exit": _raising(SystemExit(1)),
    "interrupt": _raising(KeyboardInterrupt()),
    "generator exit": _raising(GeneratorExit()),
    "error without words": _raising(_PayloadError()),
    "async error": _araising,
    "text": lambda _: "yes",
    "out of range": lambda _: 7,
    "not a number": lambda _: float("nan"),
    "unknown keys": lambda _: {"success": True, "score": 1},
    "note is no text": lambda _: {"success": True, "note": 7},
    "huge": lambda _: b"x" * 50_000_000,
    "endless": lambda _: _Endless(),
    "weird": lambda _: _Weird(),
    "deep": lambda _: {"success": {"a": {}}},
    "type": lambda _: object,
}


@pytest.mark.parametrize("what", HURTFUL)
def test_whatever_a_verifier_does_costs_its_opinion_only(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    watching = handler(verifiers=[HURTFUL[what], no])
    for _ in range(2):
        searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    assert scored.trace.metadata.success is False  # the next one was asked
    stats = watching.stats()
    assert (stats["scored"], stats["failed"], stats["verifier_errors"]) == (2, 0, 2)
    warned = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "verifier_errors" in warned[0].getMessage()
    assert SECRET not in caplog.text


def test_late_ones_are_left_behind_and_only_so_many_of_them() -> None:
    end, ended = threading.Event(), threading.Semaphore(0)

    def hang(_: FinishedRun) -> bool:
        end.wait()
        ended.release()
        return True

    watching = handler(verifiers=[hang], verifier_timeout_s=0.01)
    for _ in range(MAX_HANGING + 3):
        searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush()
    stats = watching.stats()
    assert stats["scored"] == MAX_HANGING + 3
    assert stats["verifier_timeouts"] == MAX_HANGING
    assert stats["verifiers_skipped"] == 3
    end.set()
    for _ in range(MAX_HANGING):
        assert ended.acquire(timeout=60)
    assert run(searching(), verifiers=[no]).trace.metadata.success is False


def test_an_async_one_that_is_late_is_ended() -> None:
    ended = threading.Event()

    async def hang(_: FinishedRun) -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    watching = handler(verifiers=[hang], verifier_timeout_s=0.01)
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush()
    assert watching.stats()["verifier_timeouts"] == 1
    assert ended.wait(60)


def test_the_store_is_written_while_a_verifier_takes_its_time(tmp_path: Path) -> None:
    written = threading.Event()

    class Telling(TraceStore):
        def add_many(self, scored: Iterable[ScoredTrace], *, registry: str | None = None) -> None:
            super().add_many(scored, registry=registry)
            written.set()

    answers = iter([lambda: True, lambda: written.wait(60)])
    with Telling(tmp_path / "runs.db") as store:
        watching = handler(
            store=store, verifiers=[lambda _: next(answers)()], verifier_timeout_s=90
        )
        for _ in range(2):
            searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush()
        assert [run.success for run in store.runs()] == [True, True]


def test_several_handlers_ask_each_their_own() -> None:
    good, bad = handler(verifiers=[yes]), handler(verifiers=[no])
    searching().invoke(ASK, {"callbacks": [good, bad]})
    first, second = good.last(), bad.last()
    assert first is not None
    assert second is not None
    assert (first.trace.metadata.success, second.trace.metadata.success) == (True, False)


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
    searching().invoke(ASK, {"callbacks": [watching]})
    assert watching.flush()
    stats = watching.stats()
    assert (stats["runs"], stats["scored"], stats["by_verifiers"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"verifiers": yes}, "verifiers is <function yes"),
        ({"verifiers": [yes, 7]}, "7"),
        ({"verifiers": [Scorer]}, "Scorer"),
        ({"verifiers": None}, "verifiers is None"),
        ({"verifier_timeout_s": 0}, "verifier_timeout_s is 0"),
        ({"verifier_timeout_s": True}, "verifier_timeout_s is True"),
        ({"verifier_timeout_s": float("nan")}, "verifier_timeout_s is nan"),
        ({"verifier_timeout_s": float("inf")}, "verifier_timeout_s is inf"),
        ({"verifier_timeout_s": "10"}, "verifier_timeout_s is '10'"),
    ],
)
def test_arguments_that_cannot_be_used(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=r"^verifier") as caught:
        handler(**options)
    assert told in str(caught.value)


HEAD = """
import os, threading
from tests.agents import ASK, handler, searching
from kp_langchain import TraceStore
store = TraceStore("runs.db")
"""


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KP_EXIT_TIMEOUT_S": "300"},
        check=True,
    )


def test_a_script_that_just_ends_has_its_runs_verified() -> None:
    python(
        """
        watching = handler(store=store, verifiers=[lambda run: False])
        for _ in range(6):
            searching().invoke(ASK, {"callbacks": [watching]})
        """
    )
    with TraceStore("runs.db") as store:
        assert [run.success for run in store.runs()] == [False] * 6


def test_late_verifiers_do_not_hold_up_the_end_of_a_process() -> None:
    python(
        """
        hang = lambda run: threading.Event().wait()
        watching = handler(store=store, verifiers=[hang], verifier_timeout_s=0.05)
        for _ in range(6):
            searching().invoke(ASK, {"callbacks": [watching]})
        """
    )
    with TraceStore("runs.db") as store:
        assert store.count() == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_waits_for_no_verifier_and_the_child_asks_its_own() -> None:
    python(
        """
        from kp_langchain import _forksafe
        _forksafe._FORK_PATIENCE_S = 3600
        begun, go = threading.Event(), threading.Event()
        def hang(run):
            begun.set()
            go.wait()
            return False
        watching = handler(store=store, verifiers=[hang], verifier_timeout_s=3600)
        searching().invoke(ASK, {"callbacks": [watching]})
        begun.wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine = handler("child", store=store, verifiers=[lambda run: False])
                searching().invoke(ASK, {"callbacks": [mine]})
                scored = mine.last()
                code = 0 if scored and not scored.trace.metadata.success else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        go.set()
        scored = watching.last()
        assert not scored.trace.metadata.success
        assert watching.stats()["verifier_timeouts"] == 0
        """
    )
