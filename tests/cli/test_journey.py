"""The way of a user from verdicts to a gate that keeps its promise, over restarts."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kp_langchain import TraceStore
from kp_langchain.cli.app import app
from kp_langchain.scoring.trace_text import embedded_text
from kp_langchain.store import StoredRun
from tests.cli.support_desk import DOMAIN, STORE, Run, Words

ROOT = Path(__file__).resolve().parents[2]
LABELLED = 72
LATER = 100  # in two processes
PROMISED = 0.1

pytest.importorskip("sklearn")


def play(folder: Path, first: int, end: int) -> dict[str, Run]:
    """Play runs in a process of their own; return each by the id that LangChain gave it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.cli.support_desk", str(first), str(end)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["run_id"]: Run(row["number"]) for row in rows}


@dataclass(frozen=True)
class Calibrated:
    """What became of the labelled runs.

    Args:
        exit_status: Of `calibrate --write`.
        printed: By the same.
        policy: What it wrote into `kp.toml`; None if it wrote nothing.
    """

    exit_status: int
    printed: str
    policy: dict[str, Any] | None


def calibrate(folder: Path, played: dict[str, Run], truth: Callable[[Run], bool]) -> Calibrated:
    """Label the runs from a file, then calibrate."""
    lines = (json.dumps({"id": run_id, "success": truth(run)}) for run_id, run in played.items())
    (folder / "verdicts.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("KP_DATABASE_URL", STORE)
        patch.setenv("COLUMNS", "120")
        labelled = CliRunner().invoke(app, ["label", "--from", "verdicts.jsonl"])
        assert labelled.exit_code == 0, labelled.output
        done = CliRunner().invoke(app, ["calibrate", "--domain", DOMAIN, "--write"])
    written = folder / "kp.toml"
    policy = None
    if written.exists():
        policy = tomllib.loads(written.read_text())["domains"][DOMAIN]
    return Calibrated(done.exit_code, done.output, policy)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Run]]:
    """A folder with a store of runs that nobody has judged yet, and these runs."""
    folder = tmp_path_factory.mktemp("journey")
    return folder, play(folder, 0, LABELLED)


def kept(runs: Sequence[StoredRun]) -> list[StoredRun]:
    return [run for run in runs if run.decision == "contributed"]


def test_from_verdicts_to_a_gate_by_worth(
    labelled: tuple[Path, dict[str, Run]], tmp_path: Path
) -> None:
    folder = shutil.copytree(labelled[0], tmp_path / "user")
    calibrated = calibrate(folder, labelled[1], lambda run: run.is_right)
    assert calibrated.exit_status == 0, calibrated.printed
    assert calibrated.policy == {"gate": "worth", "pass_rate": PROMISED}

    middle = LABELLED + LATER // 2
    later = play(folder, LABELLED, middle) | play(folder, middle, LABELLED + LATER)
    assert {run.task for run in later.values()}.isdisjoint(run.task for run in labelled[1].values())
    with TraceStore(folder / STORE) as store:
        stored = [store.get(run_id) for run_id in later]
        runs = [run for run in stored if run is not None]
        texts = [embedded_text(trace) for run in kept(runs) if (trace := run.trace) is not None]
    assert len(runs) == LATER
    assert {run.gate for run in runs} == {"worth"}
    promised = round(PROMISED * LATER)
    assert abs(len(kept(runs)) - promised) <= 0.02 * LATER
    for process in (runs[: LATER // 2], runs[LATER // 2 :]):
        assert abs(len(kept(process)) - promised // 2) <= 0.02 * LATER
    right = np.mean([later[run.run_id].is_right for run in kept(runs)])
    base = np.mean([run.is_right for run in later.values()])
    assert right > 1.5 * base
    vectors = Words().embed(texts)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert (vectors @ vectors.T - np.eye(len(texts))).max() < 0.9


def test_verdicts_by_chance_write_nothing(
    labelled: tuple[Path, dict[str, Run]], tmp_path: Path
) -> None:
    folder = shutil.copytree(labelled[0], tmp_path / "user")
    draw = random.Random(2)
    calibrated = calibrate(folder, labelled[1], lambda _: draw.random() < 0.5)
    assert calibrated.exit_status == 1
    assert calibrated.policy is None
    assert "Nothing was written" in calibrated.printed
    with TraceStore(folder / STORE) as store:
        assert store.models.in_force(DOMAIN) is None
