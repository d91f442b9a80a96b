"""`export` as a user types it."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from kp_langchain import DomainPolicy, ReasoningTrace, TraceStore
from kp_langchain.recall.few_shot import HEADER
from tests.agents import agent, call, handler, say
from tests.commands import Done, cli, cli_apart
from tests.store.conftest import _scored

AT = ("--database", "runs.db")
SOFT = {"messages": [("user", "add\nand search")]}


@pytest.fixture
def ids() -> dict[str, str]:
    """Runs of each fate in `runs.db`; their trace ids by name."""
    runs = {
        "old": _scored(1, content="old"),
        "new": _scored(2, content="new", domain="code"),
        "failed": _scored(3),
        "below": replace(_scored(4, score=0.1), keep_days=None),
        "expiring": replace(_scored(5, score=0.1), keep_days=7.0),
        "without body": _scored(6, keep=False),
        "with identifiers": _scored(7, content="ann@example.com"),
    }
    runs["failed"].trace.metadata.success = False
    runs["with identifiers"].trace.metadata.privacy_level = "private"
    with TraceStore("runs.db") as store:
        store.add_many(runs.values())
    return {name: run.trace.id for name, run in runs.items()}


def exported(done: Done) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["id"] for line in done.stdout.splitlines()]


def test_traces_that_passed_are_exported_the_newest_first(ids: dict[str, str]) -> None:
    done = cli("export", *AT)
    assert exported(done) == [ids["failed"], ids["new"], ids["old"]]
    assert (
        done.stderr == "Exported 3 traces. Left out 1 that keep identifiers (--with-identifiers).\n"
    )


def test_what_is_asked_for_is_exported_too(ids: dict[str, str]) -> None:
    assert len(exported(cli("export", "--all", *AT))) == 5
    assert exported(cli("export", "--decision", "below_threshold", *AT)) == [ids["below"]]
    with_all = exported(cli("export", "--decision", "below_threshold", "--all", *AT))
    assert with_all == [ids["expiring"], ids["below"]]
    assert ids["with identifiers"] in exported(cli("export", "--with-identifiers", *AT))


def test_the_filters_of_a_listing_hold(ids: dict[str, str]) -> None:
    assert exported(cli("export", "--domain", "code", *AT)) == [ids["new"]]
    assert exported(cli("export", "--search", "task 1", *AT)) == [ids["old"]]
    assert exported(cli("export", "--limit", "2", *AT)) == [ids["failed"], ids["new"]]
    assert exported(cli("export", "--min-score", "0.9", *AT)) == []
    assert "there is no such rule" in cli("export", "--rule", "none", *AT).stderr


def test_each_line_is_a_trace_in_wire_form(ids: dict[str, str]) -> None:
    with TraceStore("runs.db") as store:
        traces = list(store.traces(decision="contributed", domain="code"))
    (line,) = cli("export", "--domain", "code", *AT).stdout.splitlines()
    assert json.loads(line) == traces[0].model_dump(mode="json")
    assert ReasoningTrace.model_validate_json(line) == traces[0]


def play_in_namespaces(*namespaces: str | None) -> None:
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.0))
        for name in namespaces:
            play = agent(say("", call("search", q="a")), say("42"))
            config = {"callbacks": [watching], "metadata": {"kp_namespace": name}}
            play.invoke({"messages": [("user", f"task of {name}")]}, config)
            assert watching.flush(600)


def test_a_line_has_the_namespace_of_its_run() -> None:
    play_in_namespaces("acme", "globex", None)
    lines = [json.loads(line) for line in cli("export", *AT).stdout.splitlines()]
    assert [line.get("kp_namespace") for line in lines] == [None, "globex", "acme"]
    assert lines[2]["task"]["objective"] == "task of acme"
    cli("export", "-o", "traces.jsonl", *AT)
    words = ("score", "traces.jsonl", "--out", "scores.jsonl")
    assert cli(*words, KP_EMBEDDING_MODEL="/no/such/model").returncode == 0
    scored = [json.loads(line)["trace"] for line in Path("scores.jsonl").read_text().splitlines()]
    assert [trace.get("kp_namespace") for trace in scored] == [None, "globex", "acme"]


def test_the_command_score_takes_it(ids: dict[str, str]) -> None:
    assert cli("export", "-o", "traces.jsonl", *AT).returncode == 0
    words = ("score", "traces.jsonl", "--out", "scores.jsonl")
    done = cli(*words, KP_EMBEDDING_MODEL="/no/such/model")
    assert done.returncode == 0, done.stderr
    scores = Path("scores.jsonl").read_text().splitlines()
    names = ("failed", "new", "old")
    assert [json.loads(line)["id"] for line in scores] == [ids[name] for name in names]


def test_a_file_is_for_its_owner_and_appears_whole(ids: dict[str, str]) -> None:
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
    assert len(path.read_text().splitlines()) == 1


def test_an_export_that_fails_leaves_the_file_as_it_was(ids: dict[str, str]) -> None:
    import sqlite3
    from contextlib import closing

    Path("out.jsonl").write_text("before")
    with closing(sqlite3.connect("runs.db")) as connection, connection:
        damaged = "UPDATE runs SET body = '{}' WHERE trace_id = ?"
        connection.execute(damaged, (ids["old"],))
    done = cli("export", "-o", "out.jsonl", *AT)
    assert done.returncode == 1
    assert "cannot be read back" in done.stderr
    assert Path("out.jsonl").read_text() == "before"
    assert [path.name for path in Path().iterdir() if "out" in path.name] == ["out.jsonl"]
    Path("folder").mkdir()
    assert "folder is not a file" in cli("export", "-o", "folder", *AT).stderr
    assert "No such file or directory" in cli("export", "-o", "no/such/out", *AT).stderr


def test_a_terminal_without_unicode(ids: dict[str, str]) -> None:
    with TraceStore("runs.db") as store:
        store.add(_scored(9, content="日本語 \x1b[2J", domain="Prüfung"))
    done = cli_apart("export", "--domain", "Prüfung", *AT, PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert "\x1b" not in done.stdout
    assert json.loads(done.stdout)["steps"][0]["content"] == "日本語 \x1b[2J"


def test_an_empty_store(ids: dict[str, str]) -> None:
    done = cli("export")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "Exported 0 traces.\n")
    assert "there is no database at" in cli("export", "--database", "typo.db").stderr


class TestFewShot:
    @pytest.fixture
    def run_ids(self) -> None:
        with TraceStore("runs.db") as store:
            watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.0))
            for answer in ("42", "43\nand more"):
                play = agent(
                    say("", call("soft", x="z")), say("", call("search", q="a")), say(answer)
                )
                play.invoke(SOFT, {"callbacks": [watching]})
            assert watching.flush(600)

    def test_an_example_has_task_calls_results_and_answer(self, run_ids: None) -> None:
        done = cli("export", "--format", "few-shot", "--limit", "1", *AT)
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            f"{HEADER}\n"
            "<<<example 1: a run that seems to have succeeded>>>\n"
            'Task: "add and search"\n'
            '1. soft({"x": "z"}) -> error: "soft z"\n'
            '2. search({"q": "a"}) -> ok: "result for a"\n'
            'Answer: "43 and more"\n'
            "<<<end of example 1>>>\n"
        )

    def test_it_says_that_a_run_succeeded_where_a_verdict_does(self, run_ids: None) -> None:
        with TraceStore("runs.db") as store:
            newest, oldest = (run.trace_id for run in store.runs())
            store.report_outcome(oldest, success=True)
            store.report_outcome(newest, success=False)
            store.report_outcome(newest, success=True)
        done = cli("export", "--format", "few-shot", *AT)
        assert done.stdout.count(": a run that succeeded>>>") == 2
        with TraceStore("runs.db") as store:
            store.report_outcome(newest, success=False)
        done = cli("export", "--format", "few-shot", *AT)
        assert done.stdout.count(": a run that succeeded>>>") == 1
        assert "seems to" not in done.stdout

    def test_a_verdict_that_states_only_a_confidence_says_nothing_of_success(
        self, run_ids: None
    ) -> None:
        with TraceStore("runs.db") as store:
            newest, oldest = (run.trace_id for run in store.runs())
            store.report_outcome(newest, confidence=0.9)
            store.report_outcome(oldest, success=True)
            store.report_outcome(oldest, confidence=0.9)
        done = cli("export", "--format", "few-shot", *AT)
        assert done.stdout.count(": a run that seems to have succeeded>>>") == 2

    def test_only_successes_are_examples(self, ids: dict[str, str]) -> None:
        words = ("export", "--format", "few-shot", *AT)
        assert cli(*words).stdout.count("<<<example") == 2
        assert cli(*words, "--all").stdout.count("<<<example") == 5

    def test_it_is_as_long_as_it_may_be(self, ids: dict[str, str]) -> None:
        words = ("export", "--format", "few-shot", *AT)
        whole = cli(*words).stdout
        for max_chars in (len(whole), len(whole) - 1, 20):
            done = cli(*words, "--max-chars", str(max_chars))
            assert len(done.stdout) <= max_chars
        assert "fits into 20 characters" in done.stderr
        assert "--max-chars belongs to" in cli("export", "--max-chars", "9", *AT).stderr

    def test_traces_of_several_namespaces_are_no_examples_in_one_text(self) -> None:
        play_in_namespaces("ann@acme.example", "globex", None)
        words = ("export", "--format", "few-shot", *AT)
        Path("out.txt").write_text("before")
        refused = cli(*words, "-o", "out.txt")
        assert (refused.returncode, Path("out.txt").read_text()) == (1, "before")
        assert "several namespaces (globex, hash:" in refused.stderr
        assert "--where namespace=NAME, or give --all-namespaces" in refused.stderr
        assert cli(*words).stdout == ""
        done = cli(*words, "--where", "namespace=ann@acme.example")
        assert done.returncode == 0
        assert done.stdout.count("<<<example") == 1
        assert "task of ann@" not in done.stdout
        assert "They are for runs of the namespace hash:" in done.stderr
        everything = cli(*words, "--all-namespaces")
        assert everything.stdout.count("<<<example") == 3
        assert "They are for runs of the namespaces globex, hash:" in everything.stderr

    def test_traces_of_one_namespace_and_of_none_are_for_that_one(self) -> None:
        play_in_namespaces("acme", None)
        done = cli("export", "--format", "few-shot", *AT)
        assert done.returncode == 0
        assert done.stderr == (
            "Exported 2 examples. They are for runs of the namespace acme alone.\n"
        )

    def test_an_empty_store_gives_no_header(self, ids: dict[str, str]) -> None:
        done = cli("export", "--format", "few-shot", "--domain", "none", *AT)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr == "Exported 0 examples.\n"


@pytest.mark.parametrize("words", [["export", "--all", "--output"], ["report", "--html"]])
def test_a_store_is_never_replaced(words: list[str]) -> None:
    with TraceStore("runs.db") as store:
        store.count()
    before = Path("runs.db").read_bytes()
    done = cli(*words, "runs.db", "--database", "runs.db")
    assert done.returncode == 1
    assert "runs.db" in done.stderr
    assert Path("runs.db").read_bytes() == before
