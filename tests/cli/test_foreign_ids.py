"""Trace ids of other writers on the command line: shown as text, and found by their beginning."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kp_langchain import ReasoningTrace, TraceStore
from kp_langchain.cli.app import app
from kp_langchain.gate import ScoredTrace
from kp_langchain.scoring import Scorer
from tests.test_schema import document

ODD = ["kp:trace:[/red]\x1b[2Jx", "kp:trace:\u202eabc\nkp.trace_scored", "kp:trace:" + "w" * 900]


def scored(trace_id: str) -> ScoredTrace:
    trace = ReasoningTrace.model_validate(document("id", trace_id))
    breakdown = Scorer(embedder=None).score(trace)
    return ScoredTrace(trace, breakdown, "contributed", 0.1, uuid.uuid4())


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--database", "runs.db"])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with TraceStore("runs.db") as store:
        store.add_many(
            [scored(one) for one in [*ODD, "kp:trace:finance-demo-001"]],
            registry="https://registry.example.org",
        )


def test_lists_are_text() -> None:
    for command in ("review", "outbox"):
        shown = run(command)
        assert "finance-demo-001" in shown
        assert "[/red]" in shown
        assert all(line.isprintable() for line in shown.splitlines())


@pytest.mark.parametrize("trace_id", ODD, ids=ascii)
def test_each_is_explained_by_its_whole_id(trace_id: str) -> None:
    for command in ("review", "outbox"):
        shown = run(command, "show", trace_id)
        assert all(line.isprintable() for line in shown.splitlines())
    as_json = json.loads(run("review", "show", trace_id, "--json"))
    assert as_json["trace"]["id"] == trace_id


def test_a_beginning_is_enough() -> None:
    assert "kp:trace:finance-demo-001" in run("review", "show", "finance")
    assert "kp:trace:finance-demo-001" in run("outbox", "show", "finance-demo")
    run("label", "finance-demo-001", "--failure")
    with TraceStore("runs.db") as store:
        assert [one.success for one in store.verdicts("kp:trace:finance-demo-001")] == [False]
