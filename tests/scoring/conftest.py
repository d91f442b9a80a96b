from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kp_langchain.schema import ReasoningTrace

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., ReasoningTrace]:
    """A trace from steps written as `type` or `type:tool`."""

    def make(
        *steps: str,
        domain: str = "default",
        success: bool = True,
        confidence: float = 0.8,
        objective: str = "an objective",
        content: str | None = "words",
    ) -> ReasoningTrace:
        wire_steps = []
        for index, step in enumerate(steps or ("thought", "tool_call:a", "tool_call:b")):
            kind, _, tool = step.partition(":")
            wire = {"step_id": index, "type": kind}
            if content is not None:
                wire["content"] = content
            if tool:
                wire["tool"] = {"name": tool}
            wire_steps.append(wire)
        return ReasoningTrace.model_validate(
            {
                "metadata": {"task_domain": domain, "success": success},
                "task": {"objective": objective},
                "steps": wire_steps,
                "outcome": {"result_summary": "done", "confidence": confidence},
            }
        )

    return make


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script in a fresh interpreter, offline. The timeout is there for deadlocks alone."""

    def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        base = {
            k: v for k, v in os.environ.items() if k not in {"KP_EMBEDDING_MODEL", "HF_ENDPOINT"}
        }
        done = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
            env={**base, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    return run
