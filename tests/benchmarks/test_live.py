"""The live benchmark without its model: what runs are shown, and how they are counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.tool import ToolCall

from kp_langchain.demo.scripted import ScriptedChatModel
from tests.benchmarks.live.figures import as_it_reads, choice_row, run_tables
from tests.benchmarks.live.hotel import HOTEL
from tests.benchmarks.live.library import LIBRARY
from tests.benchmarks.live.model import ToolCaller, prompt_of
from tests.benchmarks.live.runs import Kept, Row, Shown, run
from tests.benchmarks.live.worlds import ANSWER, Task

KINDS = ["items of a branch", "price of a title"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    one = Kept(LIBRARY, tmp_path_factory.mktemp("kept"), KINDS)
    yield one
    one.store.close()


def doing(task: Task, value: str) -> ScriptedChatModel:
    """A model that makes the right calls, and answers with a value."""
    calls = [*((one.name, dict(one.arguments)) for one in task.calls), (ANSWER, {"value": value})]
    return ScriptedChatModel(
        AIMessage(
            "",
            tool_calls=[ToolCall(name=name, args=args, id=str(at))],
            usage_metadata={"input_tokens": 100 + at, "output_tokens": 1, "total_tokens": 101 + at},
        )
        for at, (name, args) in enumerate(calls)
    )


@pytest.mark.parametrize(
    ("shown", "kinds"),
    [
        (Shown("nothing", {}), []),
        (Shown("recall", {"limit": 1}), ["price of a title"]),
        (Shown("right kind", {"calls": "all"}), ["price of a title"]),
    ],
)
def test_a_run_is_counted(kept: Kept, shown: Shown, kinds: list[str]) -> None:
    task = LIBRARY.task("price of a title", 0, is_kept=False)
    row = run(kept, "arm", shown, task, 0, doing(task, task.truth))
    assert (row.solved, row.answered, row.shown) == (True, True, kinds)
    assert (row.model_calls, row.first_prompt_tokens) == (4, 100)
    assert row.prompt_tokens == 100 + 101 + 102 + 103
    assert row.calls[-1] == f'answer({{"value": "{task.truth}"}})'
    assert not run(kept, "arm", shown, task, 0, doing(task, "0.01")).solved


def test_a_run_without_an_answer_ends(kept: Kept) -> None:
    task = LIBRARY.task("price of a title", 0, is_kept=False)
    lost = ScriptedChatModel(
        AIMessage("", tool_calls=[ToolCall(name="list_tables", args={}, id=str(at))])
        for at in range(20)
    )
    row = run(kept, "arm", Shown("nothing", {}), task, 0, lost)
    assert (row.solved, row.answered) == (False, False)


def test_what_recall_chooses_is_counted(kept: Kept) -> None:
    with as_it_reads():
        row = choice_row("a name", kept, 1)
    assert row[:2] == ["a name", 24]  # of 24 kinds, of which two are kept
    assert 2 <= int(str(row[2])) <= int(str(row[3])) <= 2


def test_the_tables_compare_pairs() -> None:
    def row(arm: str, number: int, *, solved: bool, tokens: int) -> Row:
        return Row("w", arm, f"kind {number % 5}", number, solved, True, tokens, 50, 2, 1.0, ())

    rows = [row("nothing", n, solved=n < 2, tokens=100) for n in range(10)]
    rows += [row("recall", n, solved=n > 0, tokens=120) for n in range(10)]
    runs, pairs, effect = run_tables(rows, ["nothing", "recall"])
    assert "| w, nothing | 2 of 10:" in runs
    cells = [cell.strip() for cell in pairs.splitlines()[-1].split("|")]
    assert cells[1:3] == ["w, recall", "10"]
    assert cells[3].startswith("+0.70 (")
    assert cells[4:6] == ["8", "1"]
    assert cells[6] == "0.039"  # the exact test of eight of nine
    assert effect.startswith("w: with examples no judged run, without (held out) 20 % of 10")
    assert cells[8:10] == ["1.20 times", "1.20 times"]


def test_the_prompt_and_the_calls_of_the_model() -> None:
    messages: list[Any] = [
        SystemMessage("Be exact."),
        HumanMessage("How many?"),
        AIMessage("", tool_calls=[ToolCall(name="look", args={"at": 1}, id="1")]),
        ToolMessage("three", tool_call_id="1"),
    ]
    model = ToolCaller(url="http://127.0.0.1:1").bind_tools(HOTEL.open().tools)
    text = prompt_of(messages, model.tools)
    assert text.startswith("<|im_start|>system\nBe exact.")
    assert json.dumps(model.tools[0]) in text
    assert '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>' in text
    assert text.endswith("three\n</tool_response><|im_end|>\n<|im_start|>assistant\n<tool_call>\n")


def test_kept_runs_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    with Kept(HOTEL, tmp_path / "new", ["room cleaned"]).store as store:
        assert store.count(domain="hotel", decision="kept") == 2
