"""The benchmark suite runs from end to end; how fast anything is, is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks.candidates import CANDIDATES
from tests.benchmarks.suite import CASES, OVERHEAD

ROOT = Path(__file__).resolve().parents[2]
HANDLERS = ("none", "everything")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a quick run of everything has written."""
    out = tmp_path_factory.mktemp("benchmarks")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.benchmarks",
            "--quick",
            "--out",
            out,
            "--handlers",
            *HANDLERS,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert all(CANDIDATES[name].title in done.stdout for name in HANDLERS)
    return out


@pytest.fixture(scope="module")
def report(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return report


def quartiles_in(value: Any) -> Iterator[dict[str, float]]:
    """All quartiles, however deep."""
    if isinstance(value, dict):
        if "median" in value:
            yield value
        else:
            for inner in value.values():
                yield from quartiles_in(inner)


def test_every_case_is_there_with_every_handler(report: dict[str, Any]) -> None:
    assert report["failures"] == []
    assert list(report["overhead"]) == list(OVERHEAD)
    assert [case for case in CASES if case not in OVERHEAD and case not in report] == []
    assert list(report["handlers"]) == list(HANDLERS)
    for case in report["overhead"].values():
        assert list(case["handlers"]) == list(HANDLERS)
        assert all(figure["events"] > 10 * figure["runs"] for figure in case["handlers"].values())
    assert list(report["memory"]["growth"]) == list(HANDLERS)
    assert list(report["import"]) == ["package", *HANDLERS]


def test_every_sample_has_its_quartiles(report: dict[str, Any]) -> None:
    found = list(quartiles_in(report))
    assert len(found) > len(CASES) * len(HANDLERS)
    assert all(one["q1"] <= one["median"] <= one["q3"] and one["samples"] >= 2 for one in found)


def test_the_machine_and_the_versions_are_told(report: dict[str, Any]) -> None:
    assert report["quick"] is True
    assert report["machine"]["cores"] >= report["machine"]["usable_cores"] >= 1
    assert report["machine"]["processor"]
    assert {"kp-langchain", "langchain-core", "langgraph"} <= set(report["versions"])


def test_nothing_is_left_of_runs_that_were_given_up(report: dict[str, Any]) -> None:
    for ways in report["memory"]["left_over"].values():
        assert set(ways) == {"cancelled", "closed", "aclosed", "dropped"}
        assert all(way["when_over"]["alive"] == 0 for way in ways.values())


def test_a_large_output_costs_its_bound(report: dict[str, Any]) -> None:
    large = report["memory"]["large_output"]["recording"]
    assert large["output_bytes"] >= 1000 * large["bound_chars"]
    for form, figure in large["forms"].items():
        assert figure["held_bytes"] < 6 * large["bound_chars"], form  # with a margin at both ends
        assert figure["peak_bytes"] < 20 * large["bound_chars"], form


def test_what_the_worker_cannot_take_is_dropped_and_counted(report: dict[str, Any]) -> None:
    worker = report["worker"]
    assert worker["throughput"]["written"]["steps_per_run"] == 30
    overrun = worker["overrun"]["written"]
    assert overrun["dropped"] > 0
    assert overrun["scored"] + overrun["dropped"] == overrun["runs"]


@pytest.mark.skipif(not find_spec("matplotlib"), reason="matplotlib comes with the bench extra")
def test_the_plot_is_small_and_names_the_handlers(folder: Path) -> None:
    svg = folder / "plot.svg"
    assert svg.stat().st_size < 60_000
    texts = {text for text in ET.parse(svg).getroot().itertext() if text.strip()}  # noqa: S314
    assert {CANDIDATES[name].title for name in HANDLERS} <= texts


def test_a_peer_is_measured_or_named_as_not_installed(tmp_path: Path) -> None:
    missing = [name for name, candidate in CANDIDATES.items() if not candidate.installed]
    handlers = ["langsmith", *missing]  # LangSmith comes with LangChain
    command = [sys.executable, "-m", "tests.benchmarks", "--quick", "--out", tmp_path]
    done = subprocess.run(
        [*command, "--only", "ainvoke", "--handlers", *handlers],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not installed") >= len(missing)
    report = json.loads((tmp_path / "results.json").read_text())
    assert list(report["handlers"]) == handlers
    assert list(report["overhead"]["ainvoke"]["handlers"]) == ["langsmith"]


def test_an_unknown_case_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", "--only", "nothing"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "'nothing'" in done.stderr


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["receivers", "--rounds", "1", "--tool", "opentelemetry"], "CPU of a run, process"),
        (["delivered", "--tool", "opentelemetry"], "16 of 16"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_what_is_sent_to_other_tools_is_measured(words: list[str], printed: str) -> None:
    name, *options = words
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", f"tests.benchmarks.{name}", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
