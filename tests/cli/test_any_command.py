"""What holds for every command: mistakes, stores of any kind, pipes, terminals, hostile texts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import DomainPolicy, TraceStore
from kp_langchain.cli.app import COMMANDS
from kp_langchain.demo.tasks import RUNS
from kp_langchain.run_keys import RunKeys
from kp_langchain.scoring.evidence import VETO_FLAGS
from tests import programs
from tests.agents import ASK, handler, searching
from tests.cli.made_runs import HOSTILE, START, WITHOUT_MODEL, document, made
from tests.commands import cli, cli_apart

MISTAKES = [
    tuple(part.strip() for part in line.split("|"))
    for line in Path(__file__).with_name("mistakes.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
GUIDE = Path(__file__).parents[2] / "examples" / "guides" / "calibration.md"
SETTINGS = {"KP_DATABASE_URL": "runs.db", "KP_EMBEDDING_MODEL": "/no/such/model"}


def record(number: int = 1) -> str:
    """Record runs into `runs.db`; return the id of the last trace."""
    with TraceStore("runs.db") as store:
        watching = handler("finance", store=store, policy=DomainPolicy(threshold=0.0))
        for _ in range(number):
            searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
    assert scored is not None
    return scored.trace.id


# Mistakes.


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a store of one run, and files; the id of the run."""
    folder = tmp_path_factory.mktemp("template")
    with contextlib.chdir(folder):
        Path("folder").mkdir()
        for name in ("v.jsonl", "v.txt", "empty.csv"):
            Path(name).touch()
        Path("other.csv").write_text("name,age\nx,1\n")
        Path("wrong.toml").write_text("databas_url = 'x'\n")
        Path("in.jsonl").write_text(json.dumps(document(), default=str) + "\n")
        return folder, record()


@pytest.fixture
def prepare(template: tuple[Path, str], tmp_path: Path) -> str:
    """A copy of that folder to work in; the id of its run."""
    shutil.copytree(template[0], tmp_path, dirs_exist_ok=True)
    return template[1]


@pytest.mark.parametrize(("status", "line", "message"), MISTAKES, ids=lambda text: text or "any")
def test_a_mistake_is_one_message_and_changes_nothing(
    prepare: str, status: str, line: str, message: str
) -> None:
    before = {path: path.read_bytes() for path in Path().glob("*") if path.is_file()}
    words = [prepare if word == "ID" else word for word in shlex.split(line)]
    variables = dict(word.split("=", 1) for word in words if re.match(r"KP_\w+=", word))
    words = [word for word in words if not re.match(r"KP_\w+=", word)]
    done = cli(*words, columns=200, **{"KP_DATABASE_URL": "runs.db", **variables})
    assert (done.returncode, done.stdout) == (int(status), ""), done
    assert message in " ".join(done.stderr.replace("│", "").split())
    assert ("error: " if status == "1" else "Usage: ") in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path("typo.db").exists()
    with TraceStore("runs.db") as store:
        assert store.verdicts(prepare) == []
    with closing(sqlite3.connect("runs.db")) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    after = {path: path.read_bytes() for path in Path().glob("*") if path.is_file()}
    assert {path for path in after if path.stem != "runs"} == set(before) - {Path("runs.db")}
    assert all(after[path] == before[path] for path in before if path.suffix != ".db")


def test_version_and_help() -> None:
    assert re.fullmatch(r"kp-langchain \d+\.\d+\.\d+\n", cli("--version").stdout)
    listed = cli("--help").stdout
    assert "Usage" in cli().stdout + cli().stderr
    for name, line in COMMANDS.items():
        assert f"  {name} " in listed
        help_ = " ".join(cli(name, "--help").stdout.split())
        assert "[[" not in help_
        assert "Usage: " in help_
        assert line.split()[0] in help_, "the table of the program says it as the command does"


# Stores of any kind.

READING = (
    "review --search x --sort score", "review --json", "review stats", "review failures",
    "patterns", "label next", "label failures", "registry outbox",
    "store delete --domain finance --dry-run",
)  # fmt: skip
OF_ONE_RUN = ("review abc", "store delete abc --yes")
REPORTING = ("export", "store prune")  # on stderr, or after a write
STORES: dict[str, tuple[Callable[[], Any], int, str]] = {
    "missing": (lambda: None, 1, "there is no database at"),
    "without runs": (lambda: TraceStore("runs.db").count(), 0, ""),
    "touched": (lambda: Path("runs.db").touch(), 0, ""),
    "newer": (lambda: record() and make_newer(), 1, "install the version of"),
    "text": (
        lambda: Path("runs.db").write_bytes(b"no database\n" * 100),
        1,
        "the file is damaged or no SQLite database",
    ),
}


def make_newer(path: str | Path = "runs.db") -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE kp_schema SET version = '9042', oldest = '9042'")


@pytest.mark.parametrize("line", [*READING, *OF_ONE_RUN, *REPORTING])
@pytest.mark.parametrize("kind", STORES)
def test_a_store_of_any_kind(kind: str, line: str) -> None:
    make, status, message = STORES[kind]
    make()
    before = Path("runs.db").read_bytes() if kind == "text" else b""
    done = cli(*line.split(), "--database", "runs.db", columns=80)
    if status == 0 and line in OF_ONE_RUN:
        status, message = 1, "no run 'abc' in"
    assert done.returncode == status, done
    assert message in " ".join(done.stderr.split())
    if status == 0 and line in READING:
        assert done.stderr == ""
        assert ("--json" in line) == (done.stdout == "")
    assert Path("runs.db").exists() == (kind != "missing")
    assert kind != "text" or Path("runs.db").read_bytes() == before


def test_a_command_that_reads_creates_no_database() -> None:
    done = cli("review", KP_DATABASE_URL="none.db")
    assert (done.returncode, "no database at" in done.stderr) == (1, True)
    assert not Path("none.db").exists()


@pytest.mark.parametrize("line", READING)
def test_a_store_that_another_program_writes_can_be_read(line: str) -> None:
    record()
    with closing(sqlite3.connect("runs.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        done = cli(*line.split(), "--database", "runs.db")
    assert done.returncode == 0
    assert done.stderr == ("no answer: the input has ended\n" if line == "label next" else "")


def test_unusable_settings_do_not_keep_a_named_store_from_being_read() -> None:
    record()
    done = cli("review", "--database", "runs.db", KP_MAX_STEPS="many")
    assert (done.returncode, done.stderr) == (0, "")


# Pipes whose reader is gone, and full disks.

PIPED = (
    "--help", "schema", "review", "review --json", "label {id} --success", "label next", "export",
    "doctor",
)  # fmt: skip


def start(line: str, stdout: Any, stderr: Any) -> programs.Program:
    return programs.start(
        "-m", "kp_langchain", *line.split(), stdout=stdout, stderr=stderr, **SETTINGS
    )


def closed_pipe() -> Any:
    read_end, write_end = os.pipe()
    os.close(read_end)
    return os.fdopen(write_end, "wb", buffering=0)


@pytest.mark.parametrize("line", PIPED)
def test_a_closed_pipe_ends_a_command_without_a_word(line: str) -> None:
    trace_id = record()
    with closed_pipe() as out, Path("errors").open("w+b") as errors:
        assert start(line.format(id=trace_id), out, errors).wait() == 141
    assert Path("errors").read_bytes() == b""


@pytest.mark.parametrize("line", ["review --json --limit 100", "export --all"])
def test_a_reader_of_the_first_line_gets_it(line: str) -> None:
    record(160)  # more than a pipe and a buffer hold
    read_end, write_end = os.pipe()
    with Path("errors").open("w+b") as errors, os.fdopen(write_end, "wb") as out:
        command = start(line, out, errors)
    with os.fdopen(read_end, "rb") as reader:
        assert reader.readline().startswith(b"{")
    assert command.wait() == 141
    assert Path("errors").read_bytes() == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("line", ["schema", "review", "export"])
def test_a_full_disk_is_one_message_and_status_1(line: str) -> None:
    record()
    with Path("/dev/full").open("wb") as full, Path("errors").open("w+b") as errors:
        assert start(line, full, errors).wait() == 1
    message = "error: the output cannot be written: No space left on device"
    assert Path("errors").read_text().strip() == message


# Terminals.

VIEWS = (
    "review", "review show {id}", "review show {id} --steps", "review stats",
    "review stats --domain {domain}", "review failures",
)  # fmt: skip


@pytest.mark.parametrize("columns", [60, 120, 250])
def test_every_view_fits_the_terminal(columns: int) -> None:
    long = "mcp__github__create_pull_request_review"
    steps: list[dict[str, Any]] = [
        {"type": "tool_call", "tool": {"name": name}, "input": {"q": "one two three " * 9}}
        for name in ("get_reservation_details_by_user_id", long, "a")
    ]
    runs = [made(1, steps=steps, objective="hedge " * 99), made(2, domain="d" * 40, score=0.1)]
    with TraceStore("runs.db") as store:
        store.add(*runs)
    ids = {"id": runs[0].trace.id, "other": runs[1].trace.id, "domain": "finance"}
    for view in VIEWS:
        done = cli(*view.format(**ids).split(), columns=columns, **SETTINGS)
        assert done.returncode == 0, done.stderr
        lines = [
            line for line in done.stdout.splitlines()
            if "kp:trace:" not in line and "runs.db" not in line  # ids and paths are not cut
        ]  # fmt: skip
        assert max(map(len, lines)) <= columns, (view, max(lines, key=len))
        assert not any(line.endswith(" ") for line in lines), view
        if "--steps" in view:
            assert long in done.stdout


def test_what_is_piped_is_not_cut() -> None:
    record()
    with TraceStore("runs.db") as store:
        store.add(made(1, objective="x" * 300))
    program = "import os; del os.environ['COLUMNS']; from kp_langchain.cli.app import main; main()"
    done = cli_apart("review", program=program, **SETTINGS)
    assert "what is the answer?" in done.stdout


def test_a_terminal_without_unicode() -> None:
    with TraceStore("runs.db") as store:
        run = made(1, domain="Prüfung", content="日本語 \x1b[2J", objective="€ " * 200)
        store.add(run)
    for line in ("review", "review show {id}", "review stats", "review --json", "export"):
        words = line.format(id=run.trace.id).split()
        done = cli_apart(*words, PYTHONIOENCODING="ascii", **SETTINGS)
        assert (done.returncode, done.stdout.isascii()) == (0, True), done.stderr
        assert "\x1b" not in done.stdout
        assert "#" in done.stdout or line.endswith(("json", "export", "stats"))
    assert json.loads(done.stdout)["steps"][0]["content"] == "日本語 \x1b[2J"


# Texts of agents, of other writers, and of whoever types.

ODD_IDS = ["kp:trace:[/red]\x1b[2J\u202eabc\nkp.trace_scored", "kp:trace:" + "w" * 900]
SHOWING = (
    "review", "review --json", "review show {id}", "review show {id} --steps",
    "review show {id} --json", "review stats", "review stats --json", "review failures",
    "review failures --json", "review --domain {hostile}",
    "review show {hostile}",
    "review --limit {hostile}", "review --{hostile}", "review --database {hostile}",
    "registry outbox", "registry outbox --json", "registry outbox show {id}",
    "registry outbox show {hostile}", "registry withdraw {hostile}",
    "label {id} --success", "label {id} --success --json --note {hostile}",
    "label import {hostile}", "label import {hostile}.csv", "label next --json",
    "calibrate", "calibrate --json", "calibrate --domain {hostile}", "calibrate remove {hostile}",
    "calibrate show", "score {hostile}", "import {hostile}", "{hostile}", "export",
    "store delete {id} --dry-run", "doctor",
)  # fmt: skip


@pytest.mark.parametrize("trace_id", ODD_IDS, ids=ascii)
def test_no_command_shows_a_terminal_what_it_would_obey(trace_id: str) -> None:
    steps: list[dict[str, Any]] = [
        {"type": "tool_call", "tool": {"name": HOSTILE}, "input": {HOSTILE: HOSTILE}},
        {"type": "observation", "tool": {"name": HOSTILE}, "content": HOSTILE},
    ]
    options = {"keys": RunKeys(session=HOSTILE, tags=(HOSTILE,))}
    wire = {"domain": HOSTILE, "objective": HOSTILE, "answer": HOSTILE, "steps": steps}
    other = made(2, trace_id="kp:trace:finance-demo-001", options=options, **wire)
    with TraceStore("runs.db") as store:
        store.add(
            *[made(1, trace_id=trace_id, visibility="network", options=options, **wire), other],
            registry="https://registry.example.org",
        )
        store.report_outcome(trace_id, success=True, note=HOSTILE)
    values = {"id": trace_id, "other": other.trace.id, "hostile": HOSTILE}
    for line in SHOWING:
        words = [word.format(**values) for word in line.split()]
        done = cli(*words, columns=200, FORCE_COLOR="", NO_COLOR="1", **SETTINGS)
        assert "Traceback" not in done.stderr
        for shown in (done.stdout + done.stderr).split("\n"):
            assert shown.isprintable(), (line, shown)
            # What was typed may be repeated as it is; what a run brought stays within its line.
            assert "{hostile}" in line or "stats" in line or not shown.startswith("ERROR"), line
        if "--json" in line:
            assert [json.loads(one) for one in done.stdout.splitlines()], line
    shown = json.loads(cli("review", "show", trace_id, "--json", **SETTINGS).stdout)
    assert (shown["trace"]["id"], shown["objective"]) == (trace_id, HOSTILE)
    assert "[red]x[/] <script>" in cli("review", "show", trace_id, columns=200, **SETTINGS).stdout


def test_the_beginning_of_an_id_is_enough() -> None:
    foreign = made(1, trace_id="kp:trace:finance-demo-001", visibility="network")
    with TraceStore("runs.db") as store:
        store.add(foreign, registry="https://registry.example.org")
        store.add(made(2, domain="code", created_at=START))
    for line in ("review finance", "registry outbox show finance-demo"):
        assert foreign.trace.id in cli(*line.split(), **SETTINGS).stdout
    assert cli("label", "finance-demo-001", "--failure", **SETTINGS).returncode == 0
    with TraceStore("runs.db") as store:
        assert [one.success for one in store.verdicts(foreign.trace.id)] == [False]


# The demo.


def test_demo_plays_a_first_day() -> None:
    # Without a model, which takes seconds; .ci/run plays it with the one that it finds.
    done = cli_apart("demo", "--database", "demo.db", program=WITHOUT_MODEL)
    assert done.returncode == 0, done.stderr
    assert all(run.title in done.stdout and run.way in done.stdout for run in RUNS)
    right = {run.question: run.title for run in RUNS if run.is_right}
    with TraceStore("demo.db") as store:
        runs = list(store.runs())
    kept = [run.objective for run in runs if run.decision == "kept"]
    assert len(runs) == len(RUNS)
    assert 0 < len(kept) == len(set(kept) & right.keys()), "one a task"
    assert f"Kept: {len(kept)} of {len(RUNS)} runs, {len(kept)} of them right." in done.stdout
    flags = {run.veto for run in runs}
    assert flags >= {"last_call_failed", "same_call_twice", "answer_unable"}
    assert all(f"veto:{flag}" in done.stdout for flag in flags - {None})
    for flag in VETO_FLAGS:
        of_flag = cli("review", "--rule", flag, "--json", "--database", "demo.db")
        assert of_flag.returncode == 0, of_flag.stderr  # each flag is a choice
        vetoed = {json.loads(line)["trace_id"] for line in of_flag.stdout.splitlines()}
        assert vetoed >= {run.trace_id for run in runs if run.veto == flag}
    assert "No run has a verdict. From 10 on, a model learns" in done.stdout
    assert "pip install 'kp-langchain[calibrate]'" in done.stdout
    # The worths in the guide are those with a model.
    (excerpt,) = re.findall(r"```text\n(task  .*?)\n\.\.\.", GUIDE.read_text(), flags=re.DOTALL)
    rows, printed = (re.sub(r"0\.\d{3}", "0.NNN", text) for text in (excerpt, done.stdout))
    assert set(rows.splitlines()) <= set(printed.splitlines())
    shown = re.findall(r"kp-langchain review (\w+) --database (\S+)", done.stdout)
    assert cli("review", "show", shown[0][0], "--database", shown[0][1]).returncode == 0

    again = cli("demo", "--database", "demo.db")
    assert again.returncode == 1
    assert again.stderr == (
        f"error: {Path('demo.db').resolve()} has {len(RUNS)} runs already, and the demo needs a "
        "store without any; omit --database, or name a new file\n"
    )
    with TraceStore("demo.db") as store:
        assert store.count() == len(RUNS)


def test_the_demo_begins_anew_in_its_own_store() -> None:
    first = cli_apart("demo", program=WITHOUT_MODEL)
    path = Path(os.environ["XDG_DATA_HOME"], "kp_langchain", "demo.db")
    make_newer(path)
    Path(f"{path}-wal").write_bytes(b"left behind")
    again = cli_apart("demo", program=WITHOUT_MODEL)
    assert (again.returncode, "Deleted" in first.stdout) == (0, False), again.stderr
    assert again.stdout.startswith(f"Deleted the runs of an earlier demo: {path}\n")
    assert re.findall(r"\nKept: .*", again.stdout) == re.findall(r"\nKept: .*", first.stdout)
    make_newer(path)
    refused = cli("demo", "--database", str(path))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert "uses version" in refused.stderr
