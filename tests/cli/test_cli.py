"""The command line as a user types it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from kp_langchain import DomainPolicy, ReasoningTrace, TraceStore
from kp_langchain.demo.tasks import TASKS
from tests.agents import ASK, agent, call, handler, say, searching
from tests.commands import ROOT, cli, cli_apart


@pytest.fixture
def runs() -> list[str]:
    """A store in `runs.db` with one run that passed and one that did not; their trace ids."""
    ids = []
    with TraceStore("runs.db") as store:
        for domain, threshold in (("finance", 0.0), ("code", 1.0)):
            watching = handler(domain, store=store, policy=DomainPolicy(threshold=threshold))
            searching().invoke(ASK, {"callbacks": [watching]})
            scored = watching.last()
            assert scored is not None
            ids.append(scored.trace.id)
    return ids


def test_version_and_help() -> None:
    assert re.fullmatch(r"kp-langchain \d+\.\d+\.\d+\n", cli("--version").stdout)
    for words in ([], ["--help"], ["review", "--help"], ["demo", "--help"]):
        done = cli(*words)
        assert "Usage" in done.stdout + done.stderr


def test_each_command_is_the_file_of_its_name() -> None:
    files = (ROOT / "kp_langchain" / "cli" / "commands").glob("[!_]*.py")
    lines = cli("--help").stdout.partition("Commands:")[2].splitlines()
    assert {file.stem.removesuffix("_") for file in files} == {
        line.split()[0] for line in lines if line.strip()
    }


def test_the_package_runs_as_a_module() -> None:
    def as_module(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "kp_langchain", *words],
            capture_output=True, text=True, timeout=600, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        return done.returncode, done.stdout

    done = cli("--version")
    assert as_module("--version") == (0, done.stdout)
    assert as_module("review", "show", "x", "--database", "typo.db")[0] == 1


def test_review_lists_runs_newest_first(runs: list[str]) -> None:
    done = cli("review", "--database", "runs.db")
    assert done.returncode == 0, done.stderr
    first, second = (line for line in done.stdout.splitlines() if "what is the answer" in line)
    assert "code" in first
    assert "below" in first
    assert "finance" in second
    assert "kept" in second
    assert runs[0].removeprefix("kp:trace:")[:8] in second


def test_what_passed_is_called_kept_without_a_registry_and_contributed_with_one(
    runs: list[str],
) -> None:
    url = {"KP_REGISTRY_URL": "https://registry.example.org"}
    for word, settings in (("kept", {}), ("contributed", url)):
        for words in (["review"], ["review", "show", runs[0]]):
            done = cli(*words, "--database", "runs.db", **settings)
            assert word in done.stdout.split() + done.stdout.split(": ")[0].split()
        listed = cli("review", "--database", "runs.db", "--decision", word, "--json", **settings)
        (line,) = listed.stdout.splitlines()
        assert json.loads(line)["decision"] == "contributed"  # data keeps its word
    for words in (["review"], ["review", "show", runs[0]], ["review", "show", runs[1]]):
        assert "contributed" not in cli(*words, "--database", "runs.db").stdout


def test_settings_that_cannot_be_used_do_not_keep_a_named_store_from_being_read(
    runs: list[str],
) -> None:
    done = cli("review", "--database", "runs.db", KP_MAX_STEPS="many")
    assert done.returncode == 0, done.stderr
    assert "kept" in done.stdout


def test_review_shows_the_local_time_of_each_run(runs: list[str]) -> None:
    with TraceStore("runs.db") as store:
        run = store.get(runs[0])
    assert run is not None
    there = run.created_at.astimezone(timezone(timedelta(hours=-9)))
    for columns, form in ((160, "%Y-%m-%d %H:%M"), (100, "%m-%d %H:%M")):
        done = cli("review", "--database", "runs.db", columns=columns, TZ="XXX9")
        (row,) = (line for line in done.stdout.splitlines() if "finance" in line)
        assert f"{there:{form}}" in row
    done = cli("review", "--database", "runs.db", columns=80, TZ="XXX9")
    (row,) = (line for line in done.stdout.splitlines() if "finance" in line)
    assert f"{there:%H:%M}" in row or f"{there:%m-%d}" in row  # the day has changed meanwhile


def test_review_of_an_older_run_shows_its_day_where_there_is_no_room_for_both(
    runs: list[str],
) -> None:
    connection = sqlite3.connect("runs.db")
    with connection:
        (stored,) = connection.execute("SELECT created_at FROM runs LIMIT 1").fetchone()
        older = "2024-02-03" + stored[len("2024-02-03") :]
        connection.execute("UPDATE runs SET created_at = ?", (older,))
    connection.close()
    for columns, form in ((80, "02-03"), (100, "02-03 "), (160, "2024-02-03 ")):
        done = cli("review", "--database", "runs.db", columns=columns, TZ="UTC0")
        assert form in done.stdout
        assert "2024" not in done.stdout or columns == 160


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_review_fits_its_terminal_and_shows_what_matters(runs: list[str], columns: int) -> None:
    table = cli("review", "--database", "runs.db", columns=columns).stdout.splitlines()[:5]
    assert max(map(len, table)) <= columns
    row = next(line for line in table if "finance" in line)
    assert runs[0].removeprefix("kp:trace:")[:8] in row
    assert "kept" in row
    assert re.search(r"0\.\d{3} (0\.00 )?┃█", " ".join(row.split()))
    assert "what is" in row
    assert columns < 130 or "nov" in "".join(table)


def test_what_is_piped_is_not_cut(runs: list[str]) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "from kp_langchain.cli.app import main; main()",
         "review", "--database", "runs.db"],
        capture_output=True, text=True, timeout=600, check=True,
        env={**environment, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "what is the answer?" in done.stdout


def test_escapes_of_an_agent_do_not_reach_the_terminal() -> None:
    with TraceStore("runs.db") as store:
        watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
        hostile = "\x1b[2J\x1b]0;mine\x07 done"
        agent(say(hostile)).invoke({"messages": [("user", hostile)]}, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        done = cli("review", "show", scored.trace.id, "--database", "runs.db")
        listed = cli("review", "--database", "runs.db")
    for text in (done.stdout, listed.stdout):
        assert "done" in text
        assert "\x1b" not in text
        assert "\x07" not in text


def test_review_in_a_terminal_without_unicode(runs: list[str]) -> None:
    with TraceStore("runs.db") as store:
        watching = handler("Prüfung", store=store, policy=DomainPolicy(threshold=0.0))
        agent(say("日本語")).invoke({"messages": [("user", "€ " * 200)]}, {"callbacks": [watching]})
        assert watching.flush(600)
    for words in (["review"], ["review", "--json"]):
        done = cli_apart(*words, "--database", "runs.db", PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
        assert "finance" in done.stdout
        assert done.stdout.isascii()
    assert json.loads(done.stdout.splitlines()[0])["domain"] == "Prüfung"


def test_review_filters(runs: list[str]) -> None:
    def ids(*words: str) -> list[str]:
        lines = cli("review", "--database", "runs.db", "--json", *words).stdout.splitlines()
        return [json.loads(line)["trace_id"] for line in lines]

    assert ids() == runs[::-1]
    assert ids("--domain", "finance") == runs[:1]
    assert ids("--decision", "below_threshold") == runs[1:]
    assert ids("--min-score", "0.99") == []
    assert ids("--limit", "1") == runs[1:]


def test_review_filters_by_the_keys_of_a_run() -> None:
    with TraceStore("runs.db") as store:
        watching = handler(store=store)
        for session, user in (("s-1", "ann"), ("s-2", "bob")):
            keys: Any = {"metadata": {"session_id": session, "user_id": user}, "tags": ["beta"]}
            searching().invoke(ASK, {"callbacks": [watching], **keys})
        assert watching.flush(120)

    def sessions(*wheres: str) -> list[str]:
        words = [word for where in wheres for word in ("--where", where)]
        lines = cli("review", "--database", "runs.db", "--json", *words).stdout.splitlines()
        return sorted(json.loads(line)["session"] for line in lines)

    assert sessions("session=s-1") == sessions("user=ann") == ["s-1"]
    assert sessions("tag=beta") == ["s-1", "s-2"]
    assert sessions("tag=beta", "user=bob") == ["s-2"]
    assert sessions("session=s-1", "user=bob") == []
    (run,) = (json.loads(cli("review", "--database", "runs.db", "--json", "--limit", "1").stdout),)
    shown = cli("review", "show", run["trace_id"], "--database", "runs.db").stdout
    assert f"session s-2  user {run['user_hash']}" in shown
    assert "tags beta" in shown


def test_review_of_an_empty_store_says_so(runs: list[str]) -> None:
    done = cli("review")
    assert done.returncode == 0
    done = cli("review", "--database", "runs.db", "--min-score", "0.99")
    assert "No run of 2 matches" in done.stdout


def test_demo_says_that_recording_is_off() -> None:
    done = cli("demo", KP_DISABLED="1")
    assert done.returncode == 1
    assert "KP_DISABLED" in done.stderr


def test_show_explains_a_run_and_its_steps(runs: list[str]) -> None:
    done = cli("review", "show", runs[0], "--database", "runs.db")
    assert done.returncode == 0, done.stderr
    for word in (
        "complexity",
        "novelty",
        "as the run ended",
        "redacted",
        "result for a",
        "answer\n42",
    ):
        assert word in done.stdout


@pytest.mark.parametrize(("columns", "longest"), [(60, 16), (80, 36), (120, 60), (160, 80)])
def test_show_has_room_for_names_of_tools(columns: int, longest: int) -> None:
    names = ["get_reservation_details_by_user_id", "mcp__github__create_pull_request_review", "a"]
    tools = tuple(
        StructuredTool.from_function(lambda q: q, name=name, description="Repeat.")
        for name in names
    )
    calls = [say("I call.", call(name, q="one two three " * 9)) for name in names]
    with TraceStore("tools.db") as store:
        watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
        agent(*calls, say("42"), tools=tools).invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
    assert scored is not None
    shown = cli(
        "review", "show", scored.trace.id, "--steps", "--database", "tools.db", columns=columns
    ).stdout
    table = shown[shown.index(" what ") : shown.index("answer\n")].splitlines()
    assert max(map(len, table)) <= columns
    for name in names:
        # Whole where it fits, and else in pieces, of which none is lost.
        pieces = [name[at : at + longest] for at in range(0, len(name), longest)]
        assert all(piece in shown for piece in pieces)
    assert "one two" in shown.replace("\n", " ")


def test_show_says_how_long_the_steps_are_kept(runs: list[str]) -> None:
    done = cli("review", "show", runs[1].removeprefix("kp:trace:")[:13], "--database", "runs.db")
    assert "complexity" in done.stdout
    assert "The steps are kept until" in done.stdout
    with TraceStore("never.db") as store:
        watching = handler(store=store, policy=DomainPolicy(threshold=1.0, keep_days=0))
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
    assert scored is not None
    done = cli("review", "show", scored.trace.id, "--database", "never.db")
    assert "keeps those of a run that did not pass for `keep_days` only" in done.stdout


@pytest.mark.parametrize(
    ("decision", "withheld", "reason"),
    [
        ("below_threshold", "redaction failed", "was withheld: redaction failed.\n"),
        ("contributed", None, "The store does not have the steps of this run.\n"),
    ],
)
def test_show_says_why_it_has_no_steps(
    runs: list[str], decision: str, withheld: str | None, reason: str
) -> None:
    with closing(sqlite3.connect("runs.db")) as database, database:
        database.execute(
            "UPDATE runs SET body = NULL, decision = ?, withheld = ?", (decision, withheld)
        )
    shown = cli("review", "show", runs[0], "--database", "runs.db").stdout
    assert reason in shown
    assert "did not pass" not in shown


def test_show_tells_what_was_said_of_a_run(runs: list[str]) -> None:
    with TraceStore("runs.db") as store:
        store.report_outcome(runs[0], success=False, confidence=0.1, note="wrong\x1b[2J sum")
    done = cli("review", "show", runs[0], "--database", "runs.db")
    assert re.search(r"failure, confidence 0\.10, .* UTC, reported: wrong.*sum", done.stdout)
    assert "\x1b" not in done.stdout
    told = json.loads(cli("review", "show", runs[0], "--database", "runs.db", "--json").stdout)
    assert [verdict["success"] for verdict in told["verdicts"]] == [False]


def test_show_as_json_holds_the_trace(runs: list[str]) -> None:
    done = cli("review", "show", runs[0], "--database", "runs.db", "--json")
    data = json.loads(done.stdout)
    assert data["trace_id"] == runs[0]
    assert ReasoningTrace.model_validate(data["trace"]).id == runs[0]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["review", "show", "nothing"], "no run 'nothing'"),
        (["review", "--database", "typo.db"], "typo.db; check --database"),
        (["review", "--database", "folder"], "folder"),
        (["review", "--database", "mysql://host/db"], "mysql"),
        (["review", "--where", "sesion=x"], "did you mean session?"),
        (["review", "--where", "colour=x"], "are session, thread, user, namespace, tag, name"),
        (["review", "--where", "session"], "--where session: it has no '='"),
        (["review", "--where", "session="], "write session=VALUE"),
        (["review", "--where", "tag=a", "--where", "tag=b"], "tag was given before"),
    ],
)
def test_an_error_is_one_message_and_status_1(words: list[str], told: str) -> None:
    Path("folder").mkdir()
    done = cli(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_configuration_file_is_told_to_the_user() -> None:
    Path("kp.toml").write_text("databas_url = 'x'\n")
    done = cli("review")
    assert done.returncode == 1
    assert "did you mean database_url" in done.stderr


def test_schema_is_json_schema() -> None:
    schema = json.loads(cli("schema").stdout)
    assert schema["title"] == "ReasoningTrace"
    assert "@context" in schema["properties"]


def test_demo_runs_scores_gates_and_shows(onnx_folder: Path) -> None:
    # A model that loads fast; .ci/run plays the demo with the one that it finds by itself.
    done = cli_apart("demo", "--database", "demo.db", KP_EMBEDDING_MODEL=str(onnx_folder))
    assert done.returncode == 0, done.stderr
    for task in TASKS:
        assert task.title[:20] in done.stdout
    with TraceStore("demo.db") as store:
        stored = {run.objective: run for run in store.runs()}
        assert len(stored) == len(TASKS)
        assert {run.domain for run in stored.values()} >= {
            "finance", "code", "medical", "customer_service",
        }  # fmt: skip
        by_title = {task.title: stored[task.question] for task in TASKS}
        kept = store.count(decision="contributed")
    assert f"Kept: {kept} of {len(TASKS)}" in done.stdout
    assert by_title["a plain prompt"].score == pytest.approx(0.1)
    assert by_title["fix a bug, after three mistakes"].breakdown.rules
    failed = by_title["settle a trade, bank unreachable"]
    assert failed.success is False
    assert failed.decision == "below_threshold"
    assert "kp-langchain review show" in done.stdout
    shown = re.findall(r"review show (\w+) --database (\S+)", done.stdout)
    assert cli("review", "show", shown[0][0], "--database", shown[0][1]).returncode == 0
    again = cli_apart("demo", "--database", "demo.db", KP_EMBEDDING_MODEL=str(onnx_folder))
    assert f"Kept: 0 of {len(TASKS)} runs; {kept} repeat kept runs of an earlier demo" in (
        again.stdout
    )


def test_demo_with_an_unknown_model_is_told_to_the_user() -> None:
    done = cli_apart("demo", "--model", "nobody:nothing", "--database", "demo.db")
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert "Traceback" not in done.stderr
