"""The benchmarks start, and count right; with `-m slow` each runs in its quickest form.

How fast anything is, is not asked. Then comes memory, which `python -m tests.benchmarks` measures
and which is bounded.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import re
import subprocess
import sys
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, ToolMessage

from kp_langchain import KPCallbackHandler, Scorer, Settings, trace_from_messages
from kp_langchain.calibration.agreement import RunDigest, TaskRun
from kp_langchain.calibration.measures import auc
from kp_langchain.calibration.model import LabelledRun
from tests import recorded
from tests.agents import agent, call, say
from tests.benchmarks import quality
from tests.benchmarks.harness import ROOT, ChildError, in_fresh_process
from tests.benchmarks.intervals import (
    RESAMPLES,
    Ranking,
    Sampled,
    Selection,
    TaskResamples,
    mean,
    mean_of_families,
)
from tests.benchmarks.ranks import AS_THE_GATE, OWN_MODEL_ALONE, halves, rank
from tests.benchmarks.recall import plan_f1
from tests.benchmarks.sources import JudgedRun, source_of
from tests.benchmarks.workspace import LABELLED, Run, read_runs, split_by_task
from tests.programs import Done

PROGRAMS = {
    "archives": "--rows 1500",
    "__main__": "--quick --handlers none everything",
    "commands": "--runs 20 --rounds 1",
    "credit": "--times 2",
    "export": "--runs 30",
    "failures": "--shuffles 1",
    "journey": "--sources tau-bench --draws 1 --no-embedder",
    "patterns": "--traces 100",
    "quality": "--sources tau-bench react-webshop --draws 1 --label-draws 1 --no-embedder",
    "recall": "--every 6 --folds 2 --traces 100",
    "redaction": "--every 100",
    "scoring": "--most 1000",
    "store": "--runs 1000",
    "thresholds": "--every 100",
}
"""The programs, and what each needs to take seconds."""
NEED_RECORDED_RUNS = {
    "archives", "export", "failures", "journey", "patterns", "quality", "recall", "thresholds",
}  # fmt: skip
README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = importlib.import_module(f"tests.benchmarks.{name}")
    with pytest.raises(SystemExit) as end:
        program.main(["--help"])
    assert end.value.code == 0
    command = f"python -m tests.benchmarks.{name}".removesuffix(".__main__")
    assert command in capsys.readouterr().out
    assert command in README


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_figures(name: str) -> None:
    if name in NEED_RECORDED_RUNS and not recorded.present():
        pytest.skip("needs the recorded runs")
    command = ["-W", "ignore", "-m", f"tests.benchmarks.{name}", *PROGRAMS[name].split()]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| ---: |" in done.stdout or " s  kp-langchain" in done.stdout
    assert not re.search(r"\bnan\b", done.stdout)


def test_a_measurement_that_fails_in_its_process_is_named() -> None:
    with pytest.raises(ChildError, match="json:nothing: Attr"):
        in_fresh_process("json:nothing", {})


# Labelled runs

MESSAGES = [{"role": "user", "content": "What is 6 x 7?"}, {"role": "assistant", "content": "42"}]


def row(**changed: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "success": True, "source": "s", **changed}


def test_labelled_runs_are_read_by_source_and_task_and_other_lines_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [
        row(domain="code", task="  The  Task "),
        row(source="t", success=False, meta={"task_id": "7"}),
        row(source="t", success=None),
        row(source="t", domain="other"),
    ]
    bad = ["{", [], row(source=" "), row(success="yes"), row(messages=[]), {"source": "s"}]
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in [*good, *bad]))
    by_source = read_runs([file])
    assert list(by_source) == ["t", "s"]
    (first,) = by_source["s"]
    assert (first.task, first.domain, first.success) == ("the task", "code", True)
    assert [(run.task[:5], run.success, run.domain) for run in by_source["t"]] == [
        ("7", False, "default"),
        ("{'rol", True, "default"),
    ]
    places = [message.split(": ")[0] for message in capsys.readouterr().err.splitlines()]
    assert places == [f"{file}:{number}" for number in range(5, 11)]


@pytest.mark.parametrize("size", [31, 2 * LABELLED, 5 * LABELLED])
def test_labelled_and_later_runs_share_no_task(size: int) -> None:
    runs = [Run(str(at), "s", "default", f"task {at // 3}", True, {}) for at in range(size)]
    labelled, further = split_by_task(runs, seed=3)
    assert sorted([*labelled, *further]) == sorted(runs)
    assert {run.task for run in labelled}.isdisjoint(run.task for run in further)
    wanted = min(LABELLED, size // 2)
    assert wanted <= len(labelled) < wanted + 3
    assert (labelled, further) != split_by_task(runs, seed=4)


# Figures with intervals

TASKS = [f"task {number}" for number in range(40)]


def selection(successes: list[bool], tasks: list[str], kept: list[bool]) -> Selection:
    return Selection(successes, tasks, kept, TaskResamples(tasks))


def width(selected: Selection) -> float:
    """Return how wide the interval of its lift is."""
    interval = selected.lift().interval
    assert interval is not None
    return interval[1] - interval[0]


def test_keeping_all_runs_gains_nothing_and_keeping_the_good_ones_gains_all() -> None:
    successes = [number % 4 == 0 for number in range(40)]
    everything = selection(successes, TASKS, [True] * 40).lift()
    assert everything.text() == "1.00 (1.00 to 1.00)"
    good = selection(successes, TASKS, successes)
    assert good.lift().value == pytest.approx(4.0)
    assert good.solved_per_run().value == 1.0
    nothing = selection(successes, TASKS, [False] * 40)
    assert nothing.lift().text() == nothing.solved_per_run().text() == "-"
    assert mean([everything, nothing.lift()]).text() == everything.text()


def test_an_interval_counts_tasks_and_not_runs() -> None:
    successes = [number % 4 != 0 for number in range(40)]
    kept = [number < 20 for number in range(40)]
    others = [f"{task} {copy}" for copy in range(5) for task in TASKS]
    once = width(selection(successes, TASKS, kept))
    assert width(selection(successes * 5, TASKS * 5, kept * 5)) == pytest.approx(once)
    assert width(selection(successes * 5, others, kept * 5)) < once / 1.5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 5)), min_size=1, max_size=20))
def test_a_mean_over_tasks_is_that_of_their_means(pairs: list[tuple[str, float]]) -> None:
    tasks, values = [task for task, _ in pairs], [value for _, value in pairs]
    of_tasks = [
        sum(value for task, value in pairs if task == one) / tasks.count(one) for one in set(tasks)
    ]
    figure = TaskResamples(tasks).mean_of_tasks(tasks, values)
    assert figure.value == pytest.approx(sum(of_tasks) / len(of_tasks))
    assert (figure - figure).interval == (0.0, 0.0)


def ranking(*runs: tuple[str, bool, float]) -> Ranking:
    tasks, successes, values = zip(*runs, strict=True)
    return Ranking(successes, tasks, values, TaskResamples(tasks))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 5).map(float)),
        min_size=2,
        max_size=30,
    ).filter(lambda runs: len({success for _, success, _ in runs}) == 2)
)
def test_the_area_of_a_ranking_is_that_of_the_package(runs: list[tuple[str, bool, float]]) -> None:
    pytest.importorskip("sklearn")
    of_all = ranking(*runs)
    expected = auc(of_all.successes, of_all.values, of_all.tasks)
    assert of_all.auc().value == pytest.approx(expected.value)


def test_within_tasks_only_runs_of_one_task_are_compared() -> None:
    of_all = ranking(("a", True, 2), ("a", False, 1), ("b", True, 9), ("b", False, 9))
    assert of_all.auc_within_tasks().value == 0.75
    assert of_all.auc().value == 0.625
    assert ranking(("a", True, 2), ("b", False, 1)).auc_within_tasks().text() == "-"


def test_the_first_runs_of_a_ranking_are_kept() -> None:
    runs = [(f"task {number}", number >= 18, float(number)) for number in range(20)]
    first = ranking(*runs).first(0.1)
    assert (first.share, first.lift().value, first.tasks_per_run) == (0.1, 10.0, 1.0)
    assert ranking(*runs).first(0.001).share == 0.05


def test_a_mean_of_families_counts_each_once_and_draws_them_too() -> None:
    def of(value: float) -> Sampled:
        return Sampled(value, np.full(RESAMPLES, value))

    figure = mean_of_families({"a": [of(1.0), of(3.0), of(2.0)], "b": [of(4.0)], "c": [mean([])]})
    assert figure.value == 3.0
    assert figure.interval == (2.0, 4.0)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("abb", "bba", 1.0), ("aab", "ac", 2 / 5), ("a", "", 0.0), ("", "", 1.0)],
)
def test_plans_are_compared_by_their_calls(one: str, other: str, expected: float) -> None:
    assert plan_f1(Counter(one), Counter(other)) == pytest.approx(expected)


# The gate


def judged(number: int, answer: str, *, thread: str | None = None, success: bool = True) -> Any:
    """Return a run as a store has it; runs of two numbers in turn are of one task."""
    messages = [MESSAGES[0], {"role": "assistant", "content": answer}]
    trace = trace_from_messages(messages)
    breakdown = Scorer(embedder=None).score(trace)
    labelled = LabelledRun(f"task {number // 2}", success, {}, True, {}, datetime.now(UTC))
    digest = RunDigest.of(trace).to_bytes()
    task_run = TaskRun(str(number), str(number), digest, frozenset(filter(None, [thread])))
    return JudgedRun(str(number), labelled, breakdown, task_run, False, False)


def test_without_verdicts_runs_that_agree_rank_before_those_that_do_not() -> None:
    answers = ["It is forty-two.", "It is forty-two.", "Perhaps seven.", "It may be nine, I think."]
    source = source_of("s", [judged(at, answers[at % 4]) for at in range(12)])
    assert source.tasks_repeat
    ranks = [rank(source, run, None, AS_THE_GATE) for run in source.runs]
    assert min(ranks[0::4] + ranks[1::4]) > max(ranks[2::4] + ranks[3::4])
    flagged = replace(source.runs[0].breakdown, flags=("answer_unable",))
    run = replace(source.runs[0], breakdown=flagged)
    assert rank(source, run, None, AS_THE_GATE) < 0 < rank(source, run, None, OWN_MODEL_ALONE)
    assert rank(source, run, None, OWN_MODEL_ALONE) == flagged.total


def test_runs_of_one_thread_are_compared_without_guards_alone() -> None:
    source = source_of("s", [judged(at, "It is forty-two.", thread="t") for at in range(2)])
    assert [run.agreement for run in source.runs] == [None, None]
    assert [run.unguarded and run.unguarded.value for run in source.runs] == [1.0, 1.0]


def test_tasks_are_halved_and_one_run_of_each_is_asked_about_first() -> None:
    runs = [judged(at, "It is forty-two.", success=at % 3 == 0) for at in range(40)]
    drawn = halves(source_of("s", runs), seed=1)
    assert drawn is not None
    assert len({run.task for run in drawn.asked[:10]}) == 10
    assert len({run.task for run in drawn.ranked}) == 10
    assert {run.id for run in (*drawn.asked, *drawn.ranked)} == {run.id for run in runs}
    assert drawn != halves(source_of("s", runs), seed=2)
    assert halves(source_of("s", runs[:10]), seed=1) is None  # too few to rank


def test_the_gate_is_measured_from_a_file_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    # What a program changes for its whole process, which this one is not.
    monkeypatch.setattr(logging, "disable", lambda level: None)
    for name in [name for name in os.environ if name.startswith("KP_")]:
        monkeypatch.delenv(name)
    lines = [
        row(
            messages=[
                {"role": "user", "content": f"What is the sum of {task} and 35?"},
                {"role": "assistant", "content": f"It is {task + 35 + at // 2 * at}{'.!.!'[at]}"},
            ],
            success=at < 2,
            source=source,
        )
        for source, tasks in (("sums", 12), ("few", 1))
        for task in range(tasks)
        for at in range(4)
    ]
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert quality.main([str(file), "--no-embedder", "--draws", "1", "--label-draws", "1"]) == 0
    found = {
        cells[0]: cells[1:]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) > 1
    }
    assert found["lift of the first tenth, mean of sources"][0] == "2.00 (2.00 to 2.00)"
    assert found["AUC within tasks, mean of sources"][0] == "1.00 (1.00 to 1.00)"
    assert "few" in found  # among what the gates keep, and in no mean


# Memory


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Iterator[KPCallbackHandler]:
    monkeypatch.setenv("KP_RUN_TIMEOUT_S", "0.2")
    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    yield handler
    handler.close()


async def _cancel(config: Any, messages: list[HumanMessage]) -> None:
    begun = asyncio.Semaphore(0)

    async def never(q: str) -> str:
        """Search for ever."""
        begun.release()
        await asyncio.Event().wait()
        return ""

    from langchain_core.tools import StructuredTool

    tool = StructuredTool.from_function(coroutine=never, name="never")
    one = agent(say("I search.", call("never", q="a")), tools=(tool,))
    tasks = [asyncio.create_task(one.ainvoke({"messages": [m]}, config)) for m in messages[:1]]
    await begun.acquire()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("way", ["cancelled", "closed", "dropped"])
def test_nothing_stays_of_runs_that_were_given_up(way: str, handler: KPCallbackHandler) -> None:
    config: Any = {"callbacks": [handler]}

    def give_up() -> weakref.ref[HumanMessage]:
        message = HumanMessage("What is 6 x 7?")
        if way == "cancelled":
            asyncio.run(_cancel(config, [message]))
        else:
            stream = agent(say("42")).stream({"messages": [message]}, config)
            next(stream)
            if way == "closed":
                stream.close()
        return weakref.ref(message)

    reference = give_up()
    for _ in range(10_000):  # the next run ends the time of those before it
        agent(say("42")).invoke({"messages": [("user", "And 7 x 8?")]}, config)
        handler.flush()
        gc.collect()
        if reference() is None:
            return
    raise AssertionError("the message of the run is still alive")


def large_outputs() -> dict[str, Any]:
    """Return 1 MB in the forms in which tools return them."""
    text = "a line of the ledger, " * 50_000
    parts = [text[start : start + 1000] for start in range(0, len(text), 1000)]
    blocks: list[Any] = [{"type": "text", "text": part} for part in parts]
    rows = [{"line": number, "text": part} for number, part in enumerate(parts)]
    return {
        "text": text,
        "message": ToolMessage(text, tool_call_id="c"),
        "message of blocks": ToolMessage(blocks, tool_call_id="c"),
        "message with artifact": ToolMessage("seen", tool_call_id="c", artifact=rows),
        "list of mappings": rows,
        "bytes": text.encode(),
    }


def test_a_large_output_costs_its_bound(run_python: Callable[..., Done]) -> None:
    # In a process of its own, where no thread of another test allocates anything.
    run_python(f"from {__name__} import measure_large_outputs as measure; measure()")


def measure_large_outputs() -> None:
    handler = KPCallbackHandler(store=None, scorer=Scorer(embedder=None))
    outputs = {"first": "redaction is loaded, which is no output's", **large_outputs()}
    for form in list(outputs):
        output = outputs[form]
        root, tool = uuid4(), uuid4()
        inputs = {"messages": [HumanMessage("Why?")]}
        handler.on_chain_start(None, inputs, run_id=root, name="agent")
        handler.on_tool_start(
            {"name": "search"}, "", inputs={"q": "a"}, run_id=tool, parent_run_id=root
        )
        tracemalloc.start()
        handler.on_tool_end(output, run_id=tool)
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        if isinstance(output, ToolMessage):  # not even one of its attributes is kept
            reference = weakref.ref(outputs.pop(form))
            del output
            gc.collect()
            assert reference() is None, form
        handler.on_chain_end({"messages": []}, run_id=root)
        handler.flush()
        if form != "first":
            assert held < 6 * Settings().max_text_chars, form  # with a margin at both ends
            # 200 blocks are joined before the text is cut.
            joined = 200 * 1000 if form == "message of blocks" else 0
            assert peak < 20 * Settings().max_text_chars + 2 * joined, form
    handler.close()
