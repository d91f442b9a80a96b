"""`export` and `import` as a user types them; tests/recall and tests/importing hold the formats."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import stat
import threading
import tracemalloc
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from kp_langchain import DomainPolicy, ReasoningTrace, TraceStore
from kp_langchain.archive.sources import read_values
from tests.agents import ASK, agent, call, handler, say, searching
from tests.cli.made_runs import SECRET, made
from tests.commands import Done, cli, cli_apart
from tests.importing.spans import genai_spans, lines, span
from tests.importing.test_conventions import MESSAGES
from tests.importing.ways import traced

AT = ("--database", "runs.db")


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
        store.add(*runs.values())
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
        (trace,) = store.traces(decision="kept", domain="code")
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
        connection.execute("UPDATE bodies SET trace = '{}' WHERE trace_id = ?", (ids["old"],))
    done = cli("export", "-o", "out.jsonl", *AT)
    assert done.returncode == 1
    assert "cannot be read back" in done.stderr
    assert path.read_text() == before
    assert len([path.name for path in Path().iterdir() if "out" in path.name]) == 1


def write(name: str, *values: Any) -> str:
    Path(name).write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return name


def run_import(*words: str, stdin: str = "") -> Done:
    """Import in a process of its own, because the threads that score stay until it ends."""
    no_model = {"KP_EMBEDDING_MODEL": "/no/such/model"}  # loading one takes seconds
    done = cli_apart("import", *words, "--database", "runs.db", stdin=stdin, **no_model)
    own = [line for line in done.stderr.splitlines(keepends=True) if "/no/such/model" not in line]
    return Done(done.returncode, done.stdout, "".join(own))


def summary(done: Done) -> str:
    return done.stdout.splitlines()[-1]


def count() -> int:
    with TraceStore("runs.db") as store:
        return store.count()


def test_files_of_every_format_also_again() -> None:
    messages = write("messages.jsonl", {"messages": MESSAGES, "id": 1}, MESSAGES)
    documents = [{"messages": MESSAGES, "id": number} for number in (2, 3)]
    text = "\n".join(json.dumps(one, indent=2) for one in documents)
    Path("documents.json").write_text(text)
    first, *others = lines(*genai_spans())  # a run may be spread over files
    spans = write("spans.jsonl", *others)
    files = (messages, "documents.json", spans, write("root.jsonl", first))
    done = run_import(*files, "--domain", "finance", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    places = ["messages.jsonl:1", "messages.jsonl:2", "documents.json:1"]
    assert [row["source"] for row in rows][:3] == places
    assert len(rows) == 5
    assert all({"trace_id", "run_id", "score", "decision"} <= set(row) for row in rows)
    assert {row["domain"] for row in rows} == {"finance"}
    assert done.stderr.startswith("Imported 5, ")
    again = run_import(*files, "--domain", "finance")
    assert again.stdout == "Imported 0, of which kept 0, known before 5.\n"
    assert run_import("-", stdin=json.dumps(MESSAGES)).stdout.endswith("known before 1.\n")
    # A document that is cut off is reported once, and what came before it is read.
    Path("cut.json").write_text(text[:-40])
    done = run_import("cut.json")
    assert done.returncode == 1
    assert "known before 1, skipped 1." in done.stdout
    (message,) = done.stderr.splitlines()
    assert message.startswith("cut.json:")
    assert "not valid JSON: " in message
    assert count() == 5


def test_sources_are_those_of_score() -> None:
    Path("folder").mkdir()
    table = [{"messages": MESSAGES, "id": "1", "domain": "code"}, {"messages": [], "id": "2"}]
    parquet.write_table(pa.Table.from_pylist(table), "folder/runs.parquet")
    write("folder/more.jsonl", {"messages": MESSAGES, "id": "3"})
    write("one.jsonl", {"messages": MESSAGES, "id": "4"})
    url = Path(write("url.jsonl", {"messages": MESSAGES, "id": "5"})).absolute().as_uri()
    done = run_import("folder", "o*.jsonl", url, "--json")
    assert done.returncode == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["source"] for row in rows] == [
        "folder/more.jsonl:1", "folder/runs.parquet:1", "one.jsonl:1", f"{url}:1",
    ]  # fmt: skip
    assert rows[1]["domain"] == "code"
    assert done.stderr.splitlines()[0].startswith("folder/runs.parquet:2: 0 messages hold no")


def test_traces_are_refused_with_what_reads_them() -> None:
    lines = [json.loads(made(number).trace.model_dump_json()) for number in (1, 2)]
    rows = [{"trace": json.dumps(one)} for one in lines]
    parquet.write_table(pa.Table.from_pylist([*rows, {"trace": None}]), "scored.parquet")
    other = pa.Table.from_pylist([{"prompt": "a"}])
    parquet.write_table(other, "other.parquet")
    done = run_import(write("traces.jsonl", *lines), "scored.parquet", "other.parquet")
    assert (done.returncode, count()) == (1, 0)
    a_trace = "a trace, and no longer the run that it was made of; kp-langchain score reads traces"
    reasons = [line.split(": ", 1) for line in done.stderr.splitlines()]
    assert [place for place, _ in reasons] == [
        "traces.jsonl:1", "traces.jsonl:2", "scored.parquet:1", "scored.parquet:2",
        "scored.parquet:3", "other.parquet:1",
    ]  # fmt: skip
    assert all(why.startswith(a_trace) for _, why in reasons[:4])
    assert reasons[4][1] == "its column trace is empty"
    assert reasons[5][1] == "no column trace or messages; there are prompt"


def test_what_the_handler_recorded_is_known_and_parts_without_a_root_are_no_run() -> None:
    with TraceStore("runs.db") as store, traced() as files:
        watching = handler(store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(60)
    langsmith, genai = (
        write("langsmith.jsonl", *files.langsmith),
        write("genai.jsonl", *files.genai),
    )
    done = run_import(langsmith)
    assert done.stdout == "Imported 0, of which kept 0, known before 1.\n"
    assert run_import(genai).stdout == done.stdout
    with traced() as files:
        searching().invoke(ASK)
    parts = [run for run in files.langsmith if run.get("parent_run_id")]
    done = run_import(write("parts.jsonl", *parts))
    assert done.returncode == 0
    assert done.stdout.startswith("Imported 0, of which kept 0, without their root ")
    assert count() == 1
    assert summary(run_import(write("whole.jsonl", *files.langsmith))).startswith("Imported 1, ")


BAD: list[tuple[Any, str]] = [
    ({"messages": [{"role": "user", "content": "hello"}]},
     "1 messages hold no model answer and no tool call: nothing to trace"),
    ({"messages": MESSAGES, "success": "perhaps"}, "success"),
    ({"messages": MESSAGES, "domain": 3}, "domain is of type int; give a text"),
    ({"messages": MESSAGES, "objective": [SECRET]}, "objective is of type list; give a text"),
    ({"messages": MESSAGES, "kp_namespace": "acme", "metadata": {"kp_namespace": "globex"}},
     "kp_namespace differs from the one in metadata"),
    ({"hello": "world"}, "neither spans in OTLP JSON, LangSmith runs, nor messages"),
    (5, "neither spans in OTLP JSON, LangSmith runs, nor messages"),
    ({"run_type": "chain", "id": "no uuid"}, "the id of a run is 'no uuid'; a UUID is needed"),
    ({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}, 7]}]}]},
     "a span without a traceId of 32 or a spanId of 16 hexadecimal digits"),
    *(({"messages": [*MESSAGES, {"role": "assistant", **fields}]},
       f"the messages cannot be read, at number {len(MESSAGES) + 1} (")
      for fields in (
          {"content": {"a": SECRET}}, {"content": [SECRET, 5]},
          {"content": "a", "tool_calls": [{"id": "1", "args": SECRET}]},
          {"content": "a", "role": SECRET},
          {"content": "a", "role": "tool", "tool_call_id": "1", "status": SECRET},
          {"role": None, "type": None, "content": SECRET},
      )),
]  # fmt: skip


def test_what_is_compressed_is_read_from_files_but_not_from_pipes() -> None:
    plain = json.dumps({"messages": MESSAGES}).encode()
    Path("runs.jsonl.gz").write_bytes(gzip.compress(plain))
    done = run_import("runs.jsonl.gz")
    assert (done.returncode, summary(done)) == (0, "Imported 1, of which kept 0.")
    os.mkfifo("pipe")
    for content, messages in (
        (plain, ""),
        (gzip.compress(plain), "error: pipe is compressed; unpack it: zcat | kp-langchain ... -\n"),
    ):
        writer = threading.Thread(target=Path("pipe").write_bytes, args=[content])
        writer.start()
        assert run_import("pipe").stderr == messages
        writer.join()


def test_lines_that_cannot_be_used_are_told_without_what_they_say() -> None:
    file = write("bad.jsonl", *(value for value, _ in BAD))
    damaged = [b'{"messages": [', b"\xff\xfe", b"[" * 100_000, b'{"cut', b'{"off']
    with Path(file).open("ab") as stream:
        stream.write(b"\n".join([*damaged, json.dumps({"messages": MESSAGES}).encode(), b""]))
    done = run_import(file)
    assert done.returncode == 1
    assert summary(done).startswith("Imported 1, ")
    reasons: dict[int, str] = {}
    for line in done.stderr.splitlines():
        _, number, reason = line.split(":", 2)
        reasons.setdefault(int(number), reason.strip())
    assert sorted(reasons) == list(range(1, len(BAD) + len(damaged) + 1))
    for number, (_, message) in enumerate(BAD, start=1):
        assert message in reasons[number]
    told = [reasons[len(BAD) + number] for number in range(1, 6)]
    assert told[2] == "nested too deeply"
    assert all("not valid JSON" in told[at] for at in (0, 1, 3, 4))
    assert SECRET[:12] not in done.stderr
    assert "input_value" not in done.stderr


def test_files_that_cannot_be_read_keep_no_other_from_being_imported() -> None:
    last = write("last.jsonl", *lines(*genai_spans()))
    bad = "/proc/self/mem"  # may be opened, and not be read
    done = run_import(write("first.jsonl", {"messages": MESSAGES, "id": 1}), bad, last)
    assert done.returncode == 1
    assert summary(done).startswith("Imported ")
    assert count() >= 2
    assert f"error: {bad} cannot be read: " in done.stderr


def test_runs_that_did_not_end_or_show_nothing() -> None:
    kind = "openinference.span.kind"
    endless = span(1, 0, 0, 1, having={kind: "CHAIN"}) | {"endTimeUnixNano": "0"}
    empty = span(2, 0, 0, 1, having={kind: "CHAIN"})
    circle = [span(3, 4, 0, 1, having={kind: "LLM"}), span(4, 3, 0, 1, having={kind: "LLM"})]
    done = run_import(write("odd.jsonl", *lines(endless, empty, *circle)))
    assert done.returncode == 1
    assert done.stdout == (
        "Imported 0, of which kept 0, without an end 1, without a step 1, skipped 2.\n"
    )
    assert done.stderr.count("is part of itself") == 2


def test_nothing_is_written_unredacted() -> None:
    text = json.dumps({"messages": MESSAGES, "objective": f"use {SECRET}"})
    text = text.replace("result", SECRET).replace('"content": "b"', f'"content": "key {SECRET}"')
    Path("secret.jsonl").write_text(text)
    assert run_import("secret.jsonl").returncode == 0
    assert count() == 1
    for file in Path().glob("runs.db*"):
        assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("line", [b"{\n", b'{"ab": [\n', b"{\n\n\n\n"])
def test_many_short_lines_take_no_more_memory_than_their_text(line: bytes) -> None:
    Path("short.jsonl").write_bytes(line * 20_000)
    tracemalloc.start()
    try:
        ((_, _, why),) = read_values("short.jsonl")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert why
    assert peak_bytes < 8 * len(line) * 20_000 + (2 << 20)


def test_places_count_blank_lines() -> None:
    Path("spread.json").write_text('\n\n{\n\n"a": 1}\n\n\n{"b":\n\n2}\n\n{"cut":\n')
    values = list(read_values("spread.json"))
    assert [value for _, value, _ in values] == [{"a": 1}, {"b": 2}, None]
    assert [place for place, _, _ in values[:2]] == ["spread.json:3", "spread.json:8"]
