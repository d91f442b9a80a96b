"""The benchmarks start, and count right; with `-m slow` each runs.

How fast anything is, is not asked. What they measure with labelled runs is held against cases with
known answers.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import random
import re
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage, ToolMessage

from kp_langchain import KPCallbackHandler, Scorer, Settings
from tests import recorded
from tests.agents import agent, call, say
from tests.benchmarks.harness import ROOT, ChildError, in_fresh_process, quartiles
from tests.benchmarks.intervals import Selection, TaskResamples, mean
from tests.benchmarks.recall import plan_f1, plan_of
from tests.benchmarks.workspace import LABELLED, Run, read_runs, split_by_task
from tests.programs import Done

PROGRAMS = {
    "__main__": ["--quick", "--handlers", "none", "everything"],
    "commands": ["--runs", "20", "--rounds", "1"],
    "credit": ["--times", "2"],
    "imported": ["--every", "300"],
    "journey": ["--sources", "tau-bench", "--draws", "1", "--no-embedder"],
    "planted": ["--every", "100"],
    "quality": [
        "--every",
        "3",
        "--verdicts",
        "50",
        "--draws",
        "1",
        "--label-draws",
        "0",
        "--no-embedder",
    ],
    "recall": ["--every", "6", "--folds", "2", "--traces", "100"],
    "redaction": ["--every", "100"],
    "scoring": ["--most", "1000"],
    "store": ["--runs", "1000"],
    "thresholds": ["--every", "100"],
}
"""The programs, and what each needs to take seconds."""
NEED_RECORDED_RUNS = {"imported", "journey", "quality", "recall", "thresholds"}
TASKS = [f"task {number}" for number in range(40)]


def test_every_program_is_listed_and_named_in_the_readme() -> None:
    folder = Path(__file__).parent
    main = "\ndef main(words"
    programs = {path.stem for path in folder.glob("*.py") if main in path.read_text()}
    assert programs == PROGRAMS.keys()
    text = (folder / "README.md").read_text(encoding="utf-8")
    for name in programs - {"__main__"}:
        assert f"python -m tests.benchmarks.{name}" in text, name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    program = importlib.import_module(f"tests.benchmarks.{name}")
    with pytest.raises(SystemExit) as end:
        program.main(["--help"])
    assert end.value.code == 0
    command = "tests.benchmarks" if name == "__main__" else f"tests.benchmarks.{name}"
    assert f"python -m {command}" in capsys.readouterr().out


def run_program(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    module = "tests.benchmarks" if name == "__main__" else f"tests.benchmarks.{name}"
    command = [sys.executable, "-W", "ignore", "-m", module, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_prints_tables(name: str) -> None:
    if name in NEED_RECORDED_RUNS and not recorded.present():
        pytest.skip("needs the recorded runs")
    done = run_program(name, *PROGRAMS[name])
    assert done.returncode == 0, done.stderr
    assert "| ---: |" in done.stdout
    assert not re.search(r"\bnan\b", done.stdout)


def test_a_measurement_that_fails_in_its_process_is_named() -> None:
    with pytest.raises(ChildError, match="json:nothing: Attr"):
        in_fresh_process("json:nothing", {})


def test_quartiles_are_those_of_the_samples() -> None:
    assert quartiles([5, 1, 2, 4, 3]) == (2, 3, 4)


# Labelled runs

MESSAGES = [{"role": "user", "content": "What is 6 x 7?"}, {"role": "assistant", "content": "42"}]


def row(**changed: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "success": True, "source": "s", **changed}


def write_lines(path: Path, lines: Sequence[object]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def test_labelled_runs_are_read_by_source_and_task(tmp_path: Path) -> None:
    lines = [
        row(domain="code", task="  The  Task "),
        row(source="t", success=False, meta={"task_id": "7"}),
        row(source="t", success=None),
        row(source="t", domain="other"),
    ]
    found = read_runs([write_lines(tmp_path / "runs.jsonl", lines)])
    assert list(found) == ["t", "s"]
    (first,) = found["s"]
    assert (first.task, first.domain, first.success) == ("the task", "code", True)
    assert [(run.task[:5], run.success, run.domain) for run in found["t"]] == [
        ("7", False, "default"),
        ("{'rol", True, "default"),
    ]
    assert len({run.id for runs in found.values() for run in runs}) == 3


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "3", row(source=None), row(source=" "), row(success="yes"), row(messages=3),
     row(messages=[]), {"source": "s", "messages": MESSAGES}],
)  # fmt: skip
def test_a_line_that_is_no_run_is_reported_and_skipped(
    tmp_path: Path, line: object, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_lines(tmp_path / "runs.jsonl", [row(), line, row()])
    assert len(read_runs([file])["s"]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"{file}:2: ")


@pytest.mark.parametrize("size", [31, 2 * LABELLED, 5 * LABELLED])
def test_labelled_and_later_runs_share_no_task(size: int) -> None:
    runs = [Run(str(at), "s", "default", f"task {at // 3}", True, {}) for at in range(size)]
    labelled, further = split_by_task(runs, seed=3)
    assert sorted([*labelled, *further]) == sorted(runs)
    assert {run.task for run in labelled}.isdisjoint(run.task for run in further)
    wanted = min(LABELLED, size // 2)
    assert wanted <= len(labelled) < wanted + 3
    assert (labelled, further) == split_by_task(runs, seed=3)
    assert (labelled, further) != split_by_task(runs, seed=4)


def looking_for(source: str, at: int, success: bool, says: Callable[[bool], bool]) -> Any:
    """Return a run that looks for something and says that it found it, or that it did not."""
    answer = "Done, this is it." if says(success) else "I am sorry, I was not able to find it."
    function = {"name": "search", "arguments": json.dumps({"q": at})}
    messages = [
        {"role": "user", "content": f"Find number {at // 2}"},
        {"role": "assistant", "content": "I search.",
         "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": f"page {at}"},
        {"role": "assistant", "content": answer},
    ]  # fmt: skip
    return {"source": source, "task": f"{at // 2}", "messages": messages, "success": success}


@pytest.mark.slow
def test_a_source_whose_answers_tell_the_truth_is_learned_and_another_is_not(
    tmp_path: Path,
) -> None:
    drawn = random.Random(8)
    lines: list[object] = ["no run"]
    for source, says in ("telling", bool), ("silent", lambda _: drawn.random() < 0.5):
        lines += [looking_for(source, at, drawn.random() < 0.5, says) for at in range(120)]
    lines.append(looking_for("lonely", 0, True, bool))
    file = write_lines(tmp_path / "runs.jsonl", lines)
    options = ["--no-embedder", "--draws", "2", "--verdicts", "40", "200", "--label-draws", "3"]
    done = run_program("quality", str(file), *options)
    assert done.returncode == 0, done.stderr
    assert f"{file}:1: " in done.stderr
    assert "lonely" not in done.stdout
    cells = {
        name: [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in done.stdout.splitlines()
            if line.startswith(f"| {name} |")
        ]
        for name in ("telling", "silent")
    }
    score, model, stages, gates, curve = cells["telling"]
    assert score[1:3] == ["120", "60"]
    assert abs(float(score[4][:4]) - 0.5) < 0.03
    assert float(score[5][:4]) > 0.95  # once the truth is reported
    assert (model[1], model[-1]) == ("120", "0, 0 of 1")
    assert float(model[2][:4]) > 0.95
    assert float(stages[3][:4]) > 0.95
    assert float(gates[5]) > 1.3
    assert "refused" not in curve[2]
    _, model, stages, *_ = cells["silent"]
    assert model[-1] == "1, 0 of 1"
    assert stages[1] == stages[2] == stages[3]  # what is refused changes nothing


# Figures with intervals


def selection(successes: list[bool], tasks: list[str], kept: list[bool]) -> Selection:
    return Selection(successes, tasks, kept, TaskResamples(tasks))


def width(found: Selection) -> float:
    """Return how wide the interval of its lift is."""
    interval = found.lift().interval
    assert interval is not None
    return interval[1] - interval[0]


def test_keeping_all_runs_gains_nothing_and_keeping_the_good_ones_gains_all() -> None:
    successes = [number % 4 == 0 for number in range(40)]
    assert selection(successes, TASKS, [True] * 40).lift().text() == "1.00 (1.00 to 1.00)"
    good = selection(successes, TASKS, successes)
    assert good.lift().value == pytest.approx(4.0)
    assert good.solved_per_run().value == 1.0


def test_an_interval_counts_tasks_and_not_runs() -> None:
    successes = [number % 4 != 0 for number in range(40)]
    kept = [number < 20 for number in range(40)]
    others = [f"{task} {copy}" for copy in range(5) for task in TASKS]
    once = width(selection(successes, TASKS, kept))
    assert width(selection(successes * 5, TASKS * 5, kept * 5)) == pytest.approx(once)
    assert width(selection(successes * 5, others, kept * 5)) < once / 1.5


def test_a_task_is_solved_once() -> None:
    found = selection([True, True, True, False], ["a", "a", "b", "c"], [True, True, False, True])
    assert found.solved_per_run().value == pytest.approx(1 / 3)


def test_what_is_not_defined_has_no_figure_and_is_left_out_of_means() -> None:
    nothing_kept = selection([True, False] * 20, TASKS, [False] * 40)
    nothing_right = selection([False] * 40, TASKS, [True] * 40)
    assert nothing_kept.lift().text() == nothing_kept.solved_per_run().text() == "-"
    assert nothing_right.lift().text() == "-"
    everything = selection([True, False] * 20, TASKS, [True] * 40).lift()
    assert mean([everything, nothing_kept.lift()]).text() == everything.text()
    assert mean([]).interval is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-5, 5)), min_size=1, max_size=20))
def test_a_mean_over_tasks_is_that_of_their_means(pairs: list[tuple[str, float]]) -> None:
    tasks, values = [task for task, _ in pairs], [value for _, value in pairs]
    of_tasks = [
        sum(value for task, value in pairs if task == one) / tasks.count(one) for one in set(tasks)
    ]
    found = TaskResamples(tasks).mean_of_tasks(tasks, values)
    assert found.value == pytest.approx(sum(of_tasks) / len(of_tasks))
    assert (found - found).interval == (0.0, 0.0)


def test_plans_are_compared_by_their_calls() -> None:
    def plan(*tools: str) -> Any:
        calls = [{"function": {"name": tool}} for tool in tools]
        messages = [{"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "x"}]
        return plan_of(Run("1", "s", "default", "t", True, {"messages": messages}))

    assert plan_f1(plan("a", "b", "b"), plan("b", "b", "a")) == 1.0
    assert plan_f1(plan("a", "a", "b"), plan("a", "c")) == pytest.approx(2 / 5)
    assert plan_f1(plan("a"), plan()) == 0.0
    assert plan_f1(plan(), plan()) == 1.0


# Memory, which the programs measure and which is bounded


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
