"""The README's Python runs, in order, as one session; its TOML is a valid configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import Settings, TraceStore
from kp_langchain.demo.scripted import ScriptedChatModel, call, say
from kp_langchain.redaction import redact
from tests.agents import search
from tests.trusting import write_trusted

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the README's Python takes for granted: a model and tools."""
    # Without the model, so that it takes no seconds to load; the tests of scoring have it.
    monkeypatch.setattr("kp_langchain.embedding.packages.is_any_installed", lambda: False)
    monkeypatch.setattr("kp_langchain.scoring.default._default_scorer", None)
    answers = [say("I look.", call("search", q="a")), say("Hedge half."), say("Hedge all of it.")]
    answers.append(say("Hedge 5 of them."))
    return {"model": ScriptedChatModel(answers), "tools": [search]}


def play(session: dict[str, Any]) -> None:
    assert len(blocks("python")) == 7
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), session)  # noqa: S102 - our own text


def test_python(session: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    play(session)
    printed = capsys.readouterr().out
    assert "outcome confidence" in printed
    assert session["handler"].domain == "finance"
    assert session["handler"].flush()
    assert [run.tags for run in session["found"]] == [["beta"]]
    with TraceStore() as store:
        (verdict,) = store.verdicts(session["scored"].trace.id)
    assert (verdict.success, verdict.note) == (False, "ACME has no euros")


def test_python_where_recording_is_switched_off(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KP_DISABLED", "1")
    play(session)
    assert session["scored"] is None
    (said,) = (line for line in caplog.messages if "switched off (KP_DISABLED" in line)
    assert "last() returns None" in said


def test_toml() -> None:
    block, keys, contributing, redacting = blocks("toml")
    write_trusted(keys)
    assert Settings().run_keys.session == ("chat_id", "session_id")
    write_trusted(contributing)
    assert Settings().registry_url == "https://registry.example.org"
    assert Settings().policy_for("finance").visibility == "network"
    write_trusted(redacting)
    done = redact("employeeNumber=7, TICK-123456, support@example.com", rules=Settings().redaction)
    assert done.value == (
        "employeeNumber=[REDACTED:employee_number], [REDACTED:ticket], support@example.com"
    )
    write_trusted(block)
    policy = Settings().policy_for("finance")
    assert policy.threshold == 0.7
    assert policy.keep == "all"
    assert policy.privacy_level == "aggregated"


def test_every_setting_is_named() -> None:
    for name in Settings.model_fields:
        assert name in README
