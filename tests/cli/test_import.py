"""`kp-langchain import` as a user types it."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import TraceStore
from kp_langchain.cli.import_files import read_values
from tests.agents import ASK, handler, searching
from tests.commands import Done, cli, cli_apart
from tests.importing.test_conventions import MESSAGES, genai_spans, lines, span
from tests.importing.ways import traced

SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5


def write(name: str, *values: Any) -> str:
    Path(name).write_text("".join(f"{json.dumps(value)}\n" for value in values))
    return name


def run_import(*words: str, stdin: str = "") -> Done:
    """Import in a process of its own, because the threads that score stay until it ends."""
    no_model = {"KP_EMBEDDING_MODEL": "/no/such/model"}  # loading one takes seconds
    done = cli_apart("import", *words, "--database", "runs.db", stdin=stdin, **no_model)
    own = [line for line in done.stderr.splitlines(keepends=True) if "/no/such/model" not in line]
    return Done(done.returncode, done.stdout, "".join(own))


def count() -> int:
    with TraceStore("runs.db") as store:
        return store.count()


def test_new_runs_have_a_line_each_and_known_ones_are_counted() -> None:
    file = write("spans.jsonl", *lines(*genai_spans()))
    done = run_import(file, "--domain", "finance")
    assert (done.returncode, done.stderr) == (0, "")
    first, summary = done.stdout.splitlines()
    assert first.split()[1] == "finance"
    assert summary.startswith("Imported 1, of which kept ")
    again = run_import(file, "--domain", "finance")
    assert again.returncode == 0
    assert again.stdout == "Imported 0, of which kept 0, known before 1.\n"
    assert count() == 1


def test_what_the_handler_recorded_is_known() -> None:
    with TraceStore("runs.db") as store, traced() as files:
        watching = handler(store=store)
        searching().invoke(ASK, {"callbacks": [watching]})
        assert watching.flush(60)
    done = run_import(write("langsmith.jsonl", *files.langsmith))
    assert done.stdout == "Imported 0, of which kept 0, known before 1.\n"
    assert run_import(write("spans.jsonl", *files.genai)).stdout == done.stdout


def test_files_of_every_format_and_packing() -> None:
    messages = write("messages.jsonl", {"messages": MESSAGES, "id": 1}, MESSAGES)
    Path("document.json").write_text(json.dumps({"messages": MESSAGES, "id": 2}, indent=2))
    with gzip.open("spans.jsonl.gz", "wt") as stream:
        stream.write("".join(f"{json.dumps(one)}\n" for one in lines(*genai_spans())))
    done = run_import(messages, "document.json", "spans.jsonl.gz", "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["source"] for one in found] == [
        "messages.jsonl:1", "messages.jsonl:2", "document.json:1", "spans.jsonl.gz:1",
    ]  # fmt: skip
    assert all({"trace_id", "run_id", "domain", "score", "decision"} <= set(one) for one in found)
    assert done.stderr.startswith("Imported 4, ")
    assert run_import("-", stdin=json.dumps(MESSAGES)).stdout.endswith("known before 1.\n")


def test_lines_that_cannot_be_used() -> None:
    file = write(
        "bad.jsonl",
        {"messages": MESSAGES},
        {"messages": [{"role": "user", "content": "hello"}]},
        {"messages": MESSAGES, "success": "perhaps"},
        {"messages": MESSAGES, "domain": 3},
        {"hello": "world"},
        5,
        {"run_type": "chain", "id": "no uuid"},
        {"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}, 7]}]}]},
    )
    with Path(file).open("ab") as stream:
        stream.write(b'{"messages": [\n\xff\xfe\n' + b"[" * 100_000 + b"\n")
    done = run_import(file)
    assert done.returncode == 1
    assert done.stdout.endswith("skipped 11.\n")
    reasons = {}
    for line in done.stderr.splitlines():
        _, number, reason = line.split(":", 2)
        reasons.setdefault(int(number), reason.strip())
    assert reasons[2] == "1 messages hold no model answer and no tool call: nothing to trace"
    assert "success" in reasons[3]
    assert reasons[4] == "domain is of type int; give a text"
    assert reasons[5] == reasons[6] == "neither spans in OTLP JSON, LangSmith runs, nor messages"
    assert reasons[7] == "the id of a run is 'no uuid'; a UUID is needed"
    assert reasons[8] == "a span without a traceId of 32 or a spanId of 16 hexadecimal digits"
    assert reasons[9] == reasons[10] == "not valid JSON"
    assert reasons[11] == "nested too deeply"


@pytest.mark.parametrize(
    "fields",
    [
        {"content": {"a": SECRET}},
        {"content": [SECRET, 5]},
        {"content": "a", "tool_calls": [{"id": "1", "args": SECRET}]},
        {"content": "a", "function_call": {"arguments": SECRET}},
        {"content": "a", "role": SECRET},
        {"content": "a", "role": "tool", "tool_call_id": "1", "status": SECRET},
        {"role": None, "type": None, "content": SECRET},
    ],
)
def test_why_a_message_cannot_be_read_is_said_without_what_it_says(fields: dict[str, Any]) -> None:
    messages = [*MESSAGES, {"role": "assistant", **fields}]
    done = run_import(write("bad.jsonl", {"messages": messages}, {"messages": MESSAGES}))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("Imported 1, ")
    assert f"the messages cannot be read, at number {len(messages)} (" in done.stderr
    assert SECRET[:12] not in done.stderr
    assert "input_value" not in done.stderr


@pytest.mark.parametrize("name", ["objective", "domain"])
def test_a_field_that_is_no_text_is_said_without_its_value(name: str) -> None:
    done = run_import(write("bad.jsonl", {"messages": MESSAGES, name: [SECRET]}))
    assert done.stderr == f"bad.jsonl:1: {name} is of type list; give a text\n"


def test_the_namespace_of_a_line_is_kept() -> None:
    file = write(
        "tenants.jsonl",
        {"messages": MESSAGES, "id": 1, "kp_namespace": "acme"},
        {"messages": MESSAGES, "id": 2, "metadata": {"kp_namespace": "acme"}},
        {"messages": MESSAGES, "id": 3},
        {"messages": MESSAGES, "kp_namespace": "acme", "metadata": {"kp_namespace": "globex"}},
    )
    done = run_import(file)
    assert done.returncode == 1
    assert done.stderr == "tenants.jsonl:4: kp_namespace differs from the one in metadata\n"
    with TraceStore("runs.db") as store:
        stored = [run.namespace for run in store.runs(newest_first=False)]
        assert sorted(stored, key=str) == [None, "acme", "acme"]
        assert store.count(namespace="acme") == 2


def test_a_run_may_be_spread_over_files() -> None:
    first, *others = lines(*genai_spans())
    done = run_import(write("old.jsonl", *others), write("new.jsonl", first))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("Imported 1, ")


def test_a_file_that_cannot_be_read_keeps_no_other_from_being_imported() -> None:
    Path("broken.jsonl.gz").write_bytes(b"\x1f\x8b\x08 no more")
    first, last = write("first.jsonl", MESSAGES), write("last.jsonl", *lines(*genai_spans()))
    done = run_import(first, "broken.jsonl.gz", last)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("Imported 2, ")
    assert "broken.jsonl.gz cannot be read" in done.stderr


def test_parts_of_a_run_of_langsmith_without_its_root_are_no_run() -> None:
    with traced() as files:
        searching().invoke(ASK)
    parts = [run for run in files.langsmith if run.get("parent_run_id")]
    assert parts
    done = run_import(write("parts.jsonl", *parts))
    assert done.returncode == 0
    assert done.stdout.startswith("Imported 0, of which kept 0, without their root ")
    assert count() == 0
    whole = run_import(write("whole.jsonl", *files.langsmith))
    assert whole.stdout.splitlines()[-1].startswith("Imported 1, ")


def test_a_document_that_is_cut_off_is_reported_once_and_what_came_before_it_is_read() -> None:
    documents = [{"messages": MESSAGES, "id": number} for number in (1, 2, 3)]
    text = "\n".join(json.dumps(one, indent=2) for one in documents)
    Path("documents.json").write_text(text)
    assert run_import("documents.json").stdout.splitlines()[-1].startswith("Imported 3, ")
    Path("cut.json").write_text(text[:-40])
    done = run_import("cut.json")
    assert done.returncode == 1
    assert "known before 2, skipped 1." in done.stdout
    (message,) = done.stderr.splitlines()
    file, number, reason = message.split(":", 2)
    assert (file, reason.strip()[:16]) == ("cut.json", "not valid JSON: ")
    assert int(number) in (text[:-40].count("\n"), text[:-40].count("\n") + 1)


def test_lines_after_several_damaged_ones_are_read() -> None:
    file = write("lines.jsonl", {"messages": MESSAGES, "id": 1}, {"messages": MESSAGES, "id": 2})
    Path(file).write_text('{"cut\n{"off\n' + Path(file).read_text())
    done = run_import(file)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("Imported 2, ")
    assert done.stderr.count("not valid JSON") == 2


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
    text = json.dumps({"messages": MESSAGES, "objective": f"use {SECRET}"}).replace(
        "result", SECRET
    )
    text = text.replace('"content": "b"', f'"content": "key {SECRET}"')
    Path("secret.jsonl").write_text(text)
    assert run_import("secret.jsonl").returncode == 0
    assert count() == 1
    for file in Path().glob("runs.db*"):
        assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.jsonl"], "missing.jsonl: No such file"),
        (["."], ". is a folder"),
        (["a.jsonl", "a.jsonl"], "a.jsonl is given more than once"),
        (["a.jsonl", "--domain", " "], "--domain is empty"),
        (["a.jsonl", "--format", "csv"], "csv"),
    ],
)
def test_wrong_usage(words: list[str], message: str) -> None:
    write("a.jsonl", MESSAGES)
    done = cli("import", *words, "--database", "runs.db")
    assert done.returncode == 2
    assert message in done.stderr
    assert not Path("runs.db").exists()


@pytest.mark.parametrize("line", [b"{\n", b"[\n", b'{"ab": [\n', b"{\n\n\n\n"])
def test_many_short_lines_take_no_more_memory_than_their_text(line: bytes) -> None:
    with gzip.open("short.jsonl.gz", "wb") as stream:
        stream.write(line * 100_000)
    tracemalloc.start()
    try:
        (value,) = read_values("short.jsonl.gz")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value.why
    assert peak_bytes < 8 * len(line) * 100_000 + (2 << 20)


def test_places_count_blank_lines() -> None:
    Path("spread.json").write_text('\n\n{\n\n"a": 1}\n\n\n{"b":\n\n2}\n\n{"cut":\n')
    values = list(read_values("spread.json"))
    assert [one.value for one in values] == [{"a": 1}, {"b": 2}, None]
    assert [one.place for one in values[:2]] == ["spread.json:3", "spread.json:8"]


def test_a_format_that_is_named_is_the_only_one() -> None:
    file = write("spans.jsonl", *lines(*genai_spans()), MESSAGES)
    done = run_import(file, "--format", "langsmith")
    assert done.returncode == 1
    assert done.stderr.count("not in the format langsmith") == 5
    assert run_import(file, "--format", "openinference").stdout.startswith("Imported 0, ")
    assert run_import(file, "--format", "genai").stdout.splitlines()[-1].startswith("Imported 1, ")


def test_a_damaged_compressed_file() -> None:
    content = gzip.compress(json.dumps(MESSAGES).encode() * 50)
    Path("cut.gz").write_bytes(content[:-20])
    Path("false.gz").write_bytes(b"no gzip")
    for name in ("cut.gz", "false.gz"):
        done = run_import(name)
        assert done.returncode == 1
        assert f"error: {name} cannot be read: " in done.stderr


def test_a_switched_off_recorder_imports_nothing() -> None:
    file = write("a.jsonl", MESSAGES)
    done = cli("import", file, "--database", "runs.db", KP_DISABLED="true")
    assert done.returncode == 1
    assert "recording is switched off" in done.stderr
