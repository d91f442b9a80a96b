"""`export` as a user types it; recall's tests hold what an example looks like."""

from __future__ import annotations

import json
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from kp_langchain import DomainPolicy, ReasoningTrace, TraceStore
from tests.agents import agent, call, handler, say
from tests.cli.made_runs import made
from tests.commands import Done, cli

AT = ("--database", "runs.db")
FEW_SHOT = ("export", "--format", "few-shot", *AT)


@pytest.fixture
def ids() -> dict[str, str]:
    """Runs of each fate in `runs.db`; their trace ids by name."""
    runs = {
        "old": made(1),
        "new": made(2, domain="code"),
        "failed": made(3, success=False),
        "below": made(4, score=0.1),
        "expiring": made(5, score=0.1, options={"keep_days": 7.0}),
        "without body": made(6, options={"keep_body": False}),
        "with identifiers": made(7, content="ann@example.com", privacy_level="private"),
    }
    with TraceStore("runs.db") as store:
        store.add_many(runs.values())
    return {name: run.trace.id for name, run in runs.items()}


def exported(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("", "failed new old"), ("--all", "expiring below failed new old"),
        ("--decision below_threshold", "below"),
        ("--decision below_threshold --all", "expiring below"), ("--domain code", "new"),
        ("--with-identifiers", "identifiers failed new old"), ("--limit 2", "failed new"),
        ("--search x1", ""), ("--min-score 0.9", ""),
    ],
)  # fmt: skip
def test_traces_that_passed_or_are_asked_for_the_newest_first(
    ids: dict[str, str], words: str, names: str
) -> None:
    done = cli("export", *words.split(), *AT)
    by_name = ids | {"identifiers": ids["with identifiers"]}
    assert exported(done) == [by_name[name] for name in names.split()]
    if not words:
        assert done.stderr == (
            "Exported 3 traces. Left out 1 that keep identifiers (--with-identifiers).\n"
        )


def test_each_line_is_a_trace_in_wire_form(ids: dict[str, str]) -> None:
    with TraceStore("runs.db") as store:
        (trace,) = store.traces(decision="contributed", domain="code")
    (line,) = cli("export", "--domain", "code", *AT).stdout.splitlines()
    assert json.loads(line) == trace.model_dump(mode="json")
    assert ReasoningTrace.model_validate_json(line) == trace


def play_in_namespaces(*namespaces: str | None) -> None:
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.0))
        for name in namespaces:
            play = agent(say("", call("search", q="a")), say("42"))
            config = {"callbacks": [watching], "metadata": {"kp_namespace": name}}
            play.invoke({"messages": [("user", f"task of {name}")]}, config)
            assert watching.flush(600)


def test_a_line_has_the_namespace_of_its_run_and_the_command_score_keeps_it() -> None:
    play_in_namespaces("acme", "globex", None)
    lines = [json.loads(line) for line in cli("export", *AT).stdout.splitlines()]
    assert [line.get("kp_namespace") for line in lines] == [None, "globex", "acme"]
    assert lines[2]["task"]["objective"] == "task of acme"
    cli("export", "-o", "traces.jsonl", *AT)
    words = ("score", "traces.jsonl", "--out", "scores.jsonl")
    assert cli(*words, KP_EMBEDDING_MODEL="/no/such/model").returncode == 0
    scored = [json.loads(line)["trace"] for line in Path("scores.jsonl").read_text().splitlines()]
    assert [one.get("kp_namespace") for one in scored] == [None, "globex", "acme"]
    assert [one["id"] for one in scored] == [line["id"] for line in lines]


def test_a_file_is_for_its_owner_appears_whole_and_survives_a_failure(ids: dict[str, str]) -> None:
    done = cli("export", "--output", "out.jsonl", *AT)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("Exported 3 traces to out.jsonl.")
    path = Path("out.jsonl")
    assert len(path.read_text().splitlines()) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = Path("link.jsonl")
    link.symlink_to(path)
    assert cli("export", "--domain", "code", "-o", "link.jsonl", *AT).returncode == 0
    assert link.is_symlink()
    before = path.read_text()
    assert len(before.splitlines()) == 1
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        connection.execute("UPDATE runs SET body = '{}' WHERE trace_id = ?", (ids["old"],))
    done = cli("export", "-o", "out.jsonl", *AT)
    assert done.returncode == 1
    assert "cannot be read back" in done.stderr
    assert path.read_text() == before
    assert len([path.name for path in Path().iterdir() if "out" in path.name]) == 1


def test_a_store_without_traces_gives_no_line_and_no_header(ids: dict[str, str]) -> None:
    done = cli("export")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Exported 0 traces.\n")
    done = cli(*FEW_SHOT, "--domain", "none")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Exported 0 examples.\n")


def test_only_successes_are_examples_and_only_a_verdict_says_so(ids: dict[str, str]) -> None:
    assert cli(*FEW_SHOT).stdout.count("<<<example") == 2
    assert cli(*FEW_SHOT, "--all").stdout.count("<<<example") == 5

    def certain() -> int:
        return cli(*FEW_SHOT).stdout.count(": a run that succeeded>>>")

    assert certain() == 0
    for success, number in ((True, 1), (False, 0), (True, 1)):
        assert cli("label", ids["old"], f"--{'success' if success else 'failure'}", *AT)
        assert certain() == number
    with TraceStore("runs.db") as store:
        store.report_outcome(ids["new"], confidence=0.9)  # which says nothing of success
    assert certain() == 1


def test_examples_are_as_long_as_they_may_be(ids: dict[str, str]) -> None:
    whole = cli(*FEW_SHOT).stdout
    for max_chars in (len(whole), len(whole) - 1, 20):
        done = cli(*FEW_SHOT, "--max-chars", str(max_chars))
        assert len(done.stdout) <= max_chars
    assert "fits into 20 characters" in done.stderr


def test_traces_of_several_namespaces_are_no_examples_in_one_text() -> None:
    play_in_namespaces("ann@acme.example", None)
    done = cli(*FEW_SHOT)
    assert (done.returncode, done.stdout.count("<<<example")) == (0, 2)
    assert "Exported 2 examples. They are for runs of the namespace hash:" in done.stderr
    play_in_namespaces("globex")
    Path("out.txt").write_text("before")
    refused = cli(*FEW_SHOT, "-o", "out.txt")
    assert (refused.returncode, Path("out.txt").read_text()) == (1, "before")
    assert "several namespaces (globex, hash:" in refused.stderr
    assert "--where namespace=NAME, or give --all-namespaces" in refused.stderr
    assert cli(*FEW_SHOT).stdout == ""
    done = cli(*FEW_SHOT, "--where", "namespace=ann@acme.example")
    assert done.stdout.count("<<<example") == 1
    assert "task of ann@" not in done.stdout
    everything = cli(*FEW_SHOT, "--all-namespaces")
    assert everything.stdout.count("<<<example") == 3
    assert "They are for runs of the namespaces globex, hash:" in everything.stderr
