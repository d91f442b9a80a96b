"""`KP_CAPTURE`: every run of a process is recorded, by one handler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = """
import asyncio, json, threading
import kp_langchain
from kp_langchain import KPCallbackHandler, TraceStore, capture
from tests.agents import ASK, searching
"""
END = """
from kp_langchain.recording.process_capture import process_handler
from kp_langchain.recording.worker import finish
finish()
with TraceStore("runs.db") as store:
    domains = sorted(run.domain for run in store.runs())
stats = process_handler().stats()
print(json.dumps({"domains": domains, "runs": stats["runs"], "scored": stats["scored"]}))
"""


def result_of(program: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program + END],
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "KP_CAPTURE": "true", "KP_DATABASE_URL": "runs.db"}
        | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_run_is_recorded_by_one_handler() -> None:
    program = """
searching().invoke(ASK)
asyncio.run(searching().ainvoke(ASK))
thread = threading.Thread(target=lambda: searching().invoke(ASK))
thread.start()
thread.join()
"""
    assert result_of(program, KP_DOMAIN="finance") == {
        "domains": ["finance"] * 3,
        "runs": 3,
        "scored": 3,
    }


def test_a_run_with_a_handler_is_recorded_by_that_one_alone() -> None:
    program = """
searching().invoke(ASK, {"callbacks": [KPCallbackHandler("coding")]})
with capture("planning"):
    searching().invoke(ASK)
searching().with_config(callbacks=[KPCallbackHandler("tables")]).invoke(ASK)
searching().invoke(ASK)
"""
    result = result_of(program)
    assert result == {
        "domains": ["coding", "default", "planning", "tables"],
        "runs": 1,
        "scored": 1,
    }


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_it_is_off_by_default(value: str) -> None:
    program = "import sys; print('langchain_core' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", "import kp_langchain; " + program],
        env=os.environ | {"PYTHONPATH": str(ROOT), "KP_CAPTURE": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_settings_that_cannot_be_used_cost_the_recording_and_not_the_agent() -> None:
    program = """
import logging
logging.basicConfig()
from tests.agents import ASK, searching
import kp_langchain
print(searching().invoke(ASK)["messages"][-1].content)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT), "KP_CAPTURE": "true", "KP_MAX_QUEUE": "many"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "42"
    assert "KP_CAPTURE is set, and nothing is recorded: ConfigError" in done.stderr
    assert "KP_MAX_QUEUE" in done.stderr


def test_a_broken_package_of_a_tool_costs_the_recording_and_not_the_agent() -> None:
    Path("packages", "opik").mkdir(parents=True)
    Path("packages", "opik", "__init__.py").write_text("raise TypeError('descriptors')")
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + "print(searching().invoke(ASK)['messages'][-1].content)"],
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(Path("packages").absolute()), str(ROOT)]),
            "KP_CAPTURE": "true",
            "KP_SEND_SCORES_TO": "opik",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "42"
    assert "opik cannot be imported (TypeError: descriptors)" in done.stderr


def test_both_variables_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    from kp_langchain.config import unknown_variables

    monkeypatch.setenv("KP_CAPTURE", "true")
    monkeypatch.setenv("KP_DOMAIN", "finance")
    assert not {"KP_CAPTURE", "KP_DOMAIN"} & unknown_variables().keys()
