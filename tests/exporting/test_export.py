"""Which runs are exported, into which files, and what the card and the command say of it."""

from __future__ import annotations

import json
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from kp_langchain import DomainPolicy, TraceStore
from kp_langchain.cli.export import _FormatName
from kp_langchain.exporting.formats import FORMATS, write_file
from kp_langchain.exporting.selection import split_of
from kp_langchain.gate.check import NONE_PASSES
from tests.agents import ASK, agent, call, handler, say, search
from tests.cli.made_runs import HOSTILE, SECRET
from tests.commands import cli
from tests.exporting.conftest import (
    AT,
    CASES,
    WITHOUT_ANSWER,
    export,
    exported,
    exported_run,
    in_namespace,
    lines_of,
    objectives,
    runs_in,
    scored,
)
from tests.exporting.test_conversations import any_trace
from tests.recording.test_usage import SMALL, counted

ANSWER = CASES["an answer alone"]
Fill = Callable[..., TraceStore]


def below(number: int, **wire: Any) -> Any:
    return scored(number, ANSWER, **{"score": 0.1, "options": {"keep_days": 7.0}, **wire})


def tasks_of(lines: list[Any]) -> list[int]:
    """The numbers of the runs that lines of `feedback` tell of."""
    return [int(line["Inputs"]["task"].split()[2]) for line in lines]


@pytest.fixture
def mixed(fill: Fill) -> TraceStore:
    """Runs of each fate: kept (1), failed (2), below (3), below and judged right (4) or wrong (5),
    without a body (6), with identifiers (7), withheld (8)."""
    store = fill(
        scored(1, ANSWER), scored(2, ANSWER, success=False), below(3), below(4), below(5),
        scored(6, ANSWER, options={"keep_body": False}),
        scored(7, ANSWER, content="ann@example.com", privacy_level="private"),
        below(8, options={"keep_days": 7.0, "withheld": "redaction failed"}),
    )  # fmt: skip
    by_task = {run.objective.split()[2]: run.trace_id for run in store.runs()}
    store.report_outcome(by_task["4"], success=True, note="good")
    store.report_outcome(by_task["5"], success=False, note="bad")
    return store


@pytest.mark.parametrize(
    ("form", "words", "numbers"),
    [
        ("feedback", "", [5, 4, 2, 1]), ("feedback", "--all", [5, 4, 3, 2, 1]),
        ("feedback", "--with-identifiers", [7, 5, 4, 2, 1]), ("feedback", "--limit 2", [5, 4]),
        ("feedback", "--domain code", []), ("openai", "", [4, 1]), ("openai", "--all", [4, 3, 1]),
    ],
)  # fmt: skip
def test_kept_and_judged_runs_are_exported_and_successes_to_train_on(
    mixed: TraceStore, form: str, words: str, numbers: list[int]
) -> None:
    lines = exported(form, *words.split())
    if form == "feedback":
        assert tasks_of(lines) == numbers
    else:
        assert [int(text.split()[2]) for text in objectives(lines)] == numbers


def test_the_command_says_what_it_left_out_and_why(mixed: TraceStore) -> None:
    done = export("openai")
    assert done.stderr == (
        "Exported 2 of 8 runs. Left out 6: without success 2, neither kept nor judged (--all) 1, "
        "with identifiers (--with-identifiers) 1, withheld, because redaction failed 1, "
        "without a stored trace 1.\n"
        "Verdicts, scores, usage and step marks, and a card, need --output FOLDER.\n"
    )


def test_of_a_task_the_best_run_is_exported(fill: Fill) -> None:
    same = {"objective": "compare the same two quarters"}
    runs = [
        scored(number, ANSWER, **same, score=score) for number, score in enumerate((0.7, 0.9, 0.8))
    ]
    store = fill(*runs, scored(9, ANSWER))
    by_score = {run.score: run.trace_id for run in store.runs()}
    (_, best) = exported("atif")
    assert best["trajectory_id"] == by_score[0.9]
    store.report_outcome(runs[0].trace.id, success=True)
    store.report_outcome(runs[1].trace.id, success=False)
    assert [one["trajectory_id"] for one in exported("atif")][1] == runs[0].trace.id
    assert len(exported("atif", "--per-task", "2")) == 3
    # What was right and what was wrong are of use side by side.
    right_and_wrong = {line["score"] for line in exported("feedback")}
    assert right_and_wrong == {0.0, 1.0, 0.8}


def test_the_split_is_one_of_tasks_and_the_same_in_each_format(fill: Fill) -> None:
    store = fill(
        *(
            scored(number, ANSWER, objective=f"compare quarter {number // 3} again")
            for number in range(60)
        )
    )
    words = ("--per-task", "3", "--test-share", "0.3")
    export("openai", "-o", "openai", *words)
    export("atif", "-o", "atif", *words)
    splits = {
        name: {
            split: lines_of(Path(name, f"{split}.jsonl").read_text()) for split in ("train", "test")
        }
        for name in ("openai", "atif")
    }
    tasks = {split: set(objectives(lines)) for split, lines in splits["openai"].items()}
    assert tasks["train"]
    assert tasks["test"]
    assert not tasks["train"] & tasks["test"]
    for split, lines in splits["atif"].items():
        assert {line["steps"][0]["message"] for line in lines} == tasks[split]
        assert {line["extra"]["split"] for line in lines} == {split}
        assert len(lines) == 3 * len(tasks[split])
    assert store.count() == 60
    shares = [split_of(str(number), 0.1) for number in range(2000)]
    assert 150 < shares.count("test") < 250
    assert split_of("any", 0.0) == "train"
    assert split_of("any", 1.0) == "test"


def test_runs_of_several_namespaces_are_refused_unless_one_is_chosen(fill: Fill) -> None:
    fill(
        scored(1, ANSWER, **in_namespace("acme")), scored(2, ANSWER, **in_namespace("globex")),
        scored(3, ANSWER),
    )  # fmt: skip
    done = cli("export", "--format", "openai", "-o", "runs", *AT)
    assert done.returncode == 1
    assert "2 namespaces (globex, acme) and without one; choose one with" in done.stderr
    assert not Path("runs").exists()
    assert len(exported("openai", "--all-namespaces")) == 3
    (line,) = exported("atif", "--where", "namespace=acme")
    assert line["extra"]["kp_namespace"] == "acme"
    export("openai", "--where", "namespace=globex", "-o", "of_globex")
    (mark,) = lines_of(Path("of_globex", "marks.jsonl").read_text())
    assert mark["kp_namespace"] == "globex"
    assert "Namespaces: globex 1." in Path("of_globex", "README.md").read_text()
    # In the wire form each line names its own, as before.
    assert len(cli("export", *AT).stdout.splitlines()) == 3


def test_one_objective_of_two_tenants_is_two_tasks(fill: Fill) -> None:
    same = {"objective": "compare the same two quarters"}
    fill(
        scored(1, ANSWER, **same, **in_namespace("acme")), scored(2, ANSWER, **same),
        scored(3, ANSWER, **same, **in_namespace("globex")), scored(4, ANSWER, **same),
    )  # fmt: skip
    lines = exported("feedback", "--all-namespaces")
    assert len(lines) == 3
    assert len({line["annotations"]["task"] for line in lines}) == 3
    (of_acme,) = exported("feedback", "--where", "namespace=acme")
    assert of_acme["annotations"]["task"] in {line["annotations"]["task"] for line in lines}


def test_who_has_no_namespaces_sees_none(every_case: TraceStore) -> None:
    export("openai", "-o", "runs")
    for file in Path("runs").iterdir():
        assert "namespace" not in file.read_text().lower()


def test_a_folder_has_splits_marks_and_a_card_that_only_its_owner_reads(
    every_case: TraceStore, fill: Fill
) -> None:
    run = every_case.runs()[0]
    fill(scored(99, WITHOUT_ANSWER))
    every_case.report_outcome(run.trace_id, success=True, source="desk|*x*\n# y")
    done = export("openai", "-o", "runs", "--test-share", "0.3")
    assert "Left out 1: without an answer at the end 1." in done.stderr
    files = {path.name: path for path in Path("runs").iterdir()}
    assert files.keys() == {"README.md", "marks.jsonl", "train.jsonl", "test.jsonl"}
    assert stat.S_IMODE(Path("runs").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.values()} == {0o600}
    marks = lines_of(files["marks.jsonl"].read_text())
    assert len(marks) == len(CASES)
    lines = {name: lines_of(files[f"{name}.jsonl"].read_text()) for name in ("train", "test")}
    for split, of_split in lines.items():
        assert sum(mark["split"] == split for mark in marks) == len(of_split)
    text = files["README.md"].read_text()
    head, body = text.split("---\n")[1:]
    (config,) = yaml.safe_load(head)["configs"]
    assert {one["split"]: one["path"] for one in config["data_files"]} == {
        "train": "train.jsonl", "test": "test.jsonl",
    }  # fmt: skip
    assert f"{len(CASES)} runs of {len(CASES) + 1} that were looked at" in body
    assert "# Runs of agents: finance\n" in body
    assert yaml.safe_load(head)["pretty_name"] == "Runs of agents: finance"
    assert f"| finance | score | kept | {len(CASES)} | 0.600 |" in body
    assert f"Verdicts: not judged {len(CASES) - 1}, right 1." in body
    assert "Who judged: desk\\|\\*x\\* \\# y 1." in body
    assert "without an answer at the end 1" in body
    assert "runs.db" not in text
    assert str(Path.cwd()) not in text


def test_a_card_tells_apart_domains_gates_and_thresholds_that_nothing_reaches(fill: Fill) -> None:
    wire = {"domain": "code_review", "threshold": NONE_PASSES, "decision": "below_threshold"}
    options = {"decision": wire.pop("decision"), "keep_days": 7.0}
    fill(
        scored(1, ANSWER, **wire, options=options), scored(2, ANSWER, threshold=0.5),
        scored(3, ANSWER, threshold=0.6),
    )  # fmt: skip
    export("atif", "--all", "-o", "runs")
    text = Path("runs", "README.md").read_text()
    assert "# Runs of agents: finance, code_review\n" in text
    assert "| finance | score | kept | 2 | 0.500 to 0.600 |\n" in text
    assert "| code_review | score | below_threshold | 1 | none passes yet |\n" in text
    thresholds = [line["extra"]["threshold"] for line in exported("atif", "--all")]
    assert thresholds == [0.6, 0.5, None]
    export("parquet", "--all", "-o", "runs.parquet")
    rows = parquet.read_table("runs.parquet").to_pylist()
    assert [row["threshold"] for row in rows] == thresholds


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_trace, max_size=3))
def test_any_traces_give_a_file_in_each_format(traces: list[Any]) -> None:
    runs = [exported_run(trace) for trace in traces]
    for form in FORMATS.values():
        stream = BytesIO()
        tally = write_file(runs, form, "mask", stream)
        assert tally.count + tally.skipped.total() == len(runs)
        content = stream.getvalue()
        if form.suffix == ".jsonl":
            assert len(lines_of(content.decode())) == tally.count
        elif form.suffix == ".json":
            assert len(json.loads(content)["cases"]) == tally.count
        else:
            assert parquet.read_table(BytesIO(content)).num_rows == len(runs)


def test_options_that_mean_nothing_for_a_format_are_refused() -> None:
    for words in (
        "--per-task 1", "--test-share 0.1", "--failing-steps mask", "--all-namespaces",
    ):  # fmt: skip
        done = cli("export", *words.split(), *AT)
        assert done.returncode == 2
        assert "are of no use for traces; give another" in " ".join(done.stderr.split())
    for form in FORMATS.keys() - {"openai", "sharegpt"}:
        done = cli("export", "--format", form, "--failing-steps", "drop", *AT)
        assert done.returncode == 2
        assert f"--failing-steps is of no use for {form}:" in " ".join(done.stderr.split())


def test_the_command_knows_each_format() -> None:
    assert get_args(_FormatName) == ("trace", *FORMATS)
    assert cli("export", "--format", "csv", *AT).returncode == 2


def test_where_nothing_is_to_be_exported_no_folder_is_made(fill: Fill) -> None:
    fill(below(1))
    done = cli("export", "--format", "openai", "-o", "runs", *AT)
    assert done.returncode == 1
    assert (
        "nothing to export among 1 run. Left out 1: neither kept nor judged (--all) 1."
        in done.stderr
    )
    assert "Label runs, or give --all" in done.stderr
    assert not Path("runs").exists()
    assert exported("openai") == []
    assert json.loads(export("cases").stdout) == {"name": "kp-langchain", "cases": []}


def test_no_secret_is_exported_whether_of_the_task_a_tool_a_note_or_a_key() -> None:
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.0))
        play = agent(say(f"I use {SECRET}.", call("search", q=SECRET)), say(f"It is {SECRET}."))
        config = {
            "callbacks": [watching],
            "metadata": {"kp_namespace": SECRET, "session_id": SECRET, "kp_task": SECRET},
            "tags": [SECRET],
        }
        play.invoke({"messages": [("user", f"look with {SECRET} for the rate")]}, config)
        assert watching.flush(600)
        (run,) = store.runs()
        store.report_outcome(run.trace_id, success=True, note=f"the key {SECRET} works")
    for form in FORMATS:
        export(form, "-o", form)
        for file in Path(form).iterdir():
            is_table = file.suffix == ".parquet"
            text = str(parquet.read_table(file).to_pylist()) if is_table else file.read_text()
            assert ("REDACTED" in text) == (file.suffix not in (".md", ".py"))
            assert SECRET[:20] not in text, file


def test_a_damaged_trace_and_hostile_texts_end_no_export(every_case: TraceStore) -> None:
    run, other, *_ = every_case.runs()
    every_case.report_outcome(other.trace_id, success=True, note=f"{HOSTILE} {SECRET}")
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("UPDATE bodies SET trace = '{}' WHERE trace_id = ?", (run.trace_id,))
    for form in ("atif", "otlp", "cases", "feedback"):
        done = export(form)
        assert f"Exported {len(CASES) - 1} of {len(CASES)} runs." in done.stderr
        assert "with a trace that cannot be read back 1" in done.stderr
        assert SECRET[:12] not in done.stdout
        assert "\x1b" not in done.stdout


def test_both_databases_give_the_same_runs(url: str) -> None:
    with TraceStore(url) as store:
        store.add(*(scored(number, case) for number, case in enumerate(CASES.values(), start=1)))
        run = store.runs()[0]
        store.report_outcome(run.trace_id, success=True, note="right")
        runs = runs_in(store, successes_only=True)
        assert [run.run.objective.split()[2] for run in runs] == list(
            map(str, range(1, len(CASES) + 1))
        )
        assert [run.judgement for run in runs[-2:]] == [None, True]
        stream = BytesIO()
        assert write_file(runs, FORMATS["atif"], "mask", stream).count == len(CASES)


def test_a_recorded_run_has_its_tools_what_it_took_and_cost() -> None:
    Path("kp.toml").write_text('[prices."small-1"]\ninput = 1000\noutput = 5000\n')
    read = say("I read.", call("search", q="a"), call("search", q="b"))
    answers = counted(read, 1000, 100), counted(say("blue"), 2000, 50)
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.0))
        agent(*answers, tools=(search,)).invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        store.report_outcome(scored.trace.id, success=True, source="jane.roe@acme.org")
    (chat,) = exported("openai")
    (tool,) = chat["tools"]
    assert (tool["type"], tool["function"]["name"]) == ("function", "search")
    assert [len(one.get("tool_calls", ())) for one in chat["messages"]] == [0, 2, 0, 0, 0]
    (trajectory,) = exported("atif")
    assert trajectory["final_metrics"]["total_prompt_tokens"] == 3000
    assert trajectory["final_metrics"]["total_cost_usd"] == pytest.approx(3.75)
    assert [step["metrics"]["prompt_tokens"] for step in trajectory["steps"][1:]] == [1000, 2000]
    assert trajectory["agent"]["model_name"] == SMALL
    assert trajectory["extra"]["verdict"]["source"] == "[REDACTED:email]"
    (trace,) = exported("trace")
    assert trace["metadata"]["validated_by"] == ["[REDACTED:email]"]
    assert trace["kp_usage"]["total_tokens"] == 3150
    for form in ("openai", "sharegpt", "atif", "otlp", "feedback", "cases"):
        export(form, "-o", form)
        files = "".join(path.read_text() for path in Path(form).iterdir())
        assert "jane.roe" not in files
        assert '"total_tokens": 3150' in files or '\\"total_tokens\\": 3150' in files, form
    assert "- Cost: $3.75." in Path("openai", "README.md").read_text()
