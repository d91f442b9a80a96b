"""Accounts without a home: the agent runs, its runs are scored, and what is not kept is said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kp_langchain import ConfigError, Settings
from kp_langchain.folders import config_dir, data_dir

AGENT = """
import json, logging, os, pwd

logging.basicConfig(format="%(message)s")
for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME"):
    os.environ.pop(name)
os.environ.update(json.loads(os.environ.pop("HOMES")))
if os.environ["HOME"] == "none":
    del os.environ["HOME"]
    def getpwuid(uid):
        raise KeyError(uid)
    pwd.getpwuid = getpwuid
if folder := os.environ.pop("DELETED", ""):
    os.makedirs(folder)
    os.chdir(folder)
    os.rmdir(folder)

from kp_langchain import KPCallbackHandler, KPMiddleware, Scorer
from kp_langchain.demo.scripted import ScriptedChatModel, say
from langchain.agents import create_agent

handler = KPCallbackHandler(scorer=Scorer(embedder=None))
agent = create_agent(ScriptedChatModel([say("42")]), [], middleware=[KPMiddleware(handler=handler)])
answer = agent.invoke({"messages": [("user", "q")]}, {"metadata": {"user_id": "ann"}})
print(json.dumps([answer["messages"][-1].content, handler.last(60).breakdown.total]))
handler.flush(0.1)
"""


@pytest.mark.parametrize(
    "homes",
    [
        {"HOME": "/dev/null"},
        {"HOME": "{folder}/file"},
        {"HOME": "none"},
        {"HOME": "{folder}", "XDG_CONFIG_HOME": "/dev/null", "XDG_DATA_HOME": "/dev/null"},
        {"HOME": "{folder}/loop"},
    ],
    ids=lambda homes: " ".join(homes.values()),
)
def test_the_agent_runs_without_a_home(
    homes: dict[str, str], run_python: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    (folder / "file").touch()
    (folder / "loop").symlink_to(folder / "loop")
    values = {name: value.format(folder=folder) for name, value in homes.items()}
    done = run_python(AGENT, HOMES=json.dumps(values), KP_EXIT_TIMEOUT_S="0.1")
    answer, score = json.loads(done.stdout)
    assert answer == "42"
    assert score > 0
    lines = done.stderr.splitlines()
    for beginning in ("a run cannot be kept in ", "users, and keys of runs that redaction would"):
        assert len([line for line in lines if line.startswith(beginning)]) == 1


def test_it_runs_in_a_folder_that_is_gone(
    run_python: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    homes = {"HOME": str(folder / "home"), "DELETED": str(folder / "gone")}
    done = run_python(AGENT, HOMES=json.dumps(homes), KP_EXIT_TIMEOUT_S="600")
    assert json.loads(done.stdout)[0] == "42"
    assert "kept" not in done.stderr
    assert (folder / "home").exists()


def test_a_folder_that_may_not_be_entered_has_no_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "loop"))
    for _ in range(2):
        assert Settings().agent_id is None
    assert len(caplog.messages) == 1
    assert "no settings are read from " in caplog.text


@pytest.mark.parametrize("variable", ["XDG_CONFIG_HOME", "KP_CONFIG"])
def test_a_file_that_is_there_and_cannot_be_read_is_an_error(
    variable: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kp_langchain" / "kp.toml").mkdir(parents=True)
    named = folder / "kp_langchain" / "kp.toml" if variable == "KP_CONFIG" else folder
    monkeypatch.setenv(variable, str(named))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Settings()


def test_without_a_home_no_folder_lies_in_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import pwd

    def getpwuid(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for path in (data_dir(), config_dir()):
        assert path.is_absolute()
        assert not path.parent.is_dir()
