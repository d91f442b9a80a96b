"""What archives are read from, and how that is cut into blocks."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fsspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kp_langchain.archive.blocks import BlockCounts, halos
from kp_langchain.archive.files import Storage, find_files, name_of
from kp_langchain.archive.results import Results
from kp_langchain.archive.rows import Problem
from kp_langchain.archive.run import score_archive, score_stream
from kp_langchain.archive.splitting import Block, FilePart, Splitting, read_rows_of, split_file
from kp_langchain.archive.tables import folder_name
from kp_langchain.errors import KPError
from kp_langchain.importing.json_lines import LONGEST_LINE_BYTES
from tests.archive.conftest import query, tools, wire
from tests.commands import cli
from tests.importing.spans import genai_spans, lines

SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": f"Look up the price of tin with {SECRET}."},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "prices", "arguments": "{}"}},
    ]},
    {"role": "tool", "tool_call_id": "c1", "content": "31,000 a tonne"},
    {"role": "assistant", "content": "Tin costs 31,000 a tonne."},
]  # fmt: skip
LANGSMITH: dict[str, Any] = {
    "id": "00000000-0000-4000-8000-000000000001", "run_type": "llm", "name": "model",
    "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:01Z",
    "inputs": {"messages": [[{"lc": 1, "id": ["HumanMessage"], "kwargs": {"content": "why?"}}]]},
    "outputs": {"generations": [[{"text": "42", "message": {"type": "ai", "data": {}}}]]},
    "extra": {"metadata": {"kp_domain": "code"}}, "error": None,
}  # fmt: skip


def jsonl(*values: Any) -> Callable[[], str]:
    def write() -> str:
        Path("in.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
        return "in.jsonl"

    return write


def document(value: Any) -> Callable[[], str]:
    def write() -> str:
        Path("in.json").write_text(json.dumps(value, indent=2))
        return "in.json"

    return write


def table(rows: list[dict[str, Any]]) -> Callable[[], str]:
    def write() -> str:
        parquet.write_table(pa.Table.from_pylist(rows), "in.parquet", row_group_size=3)
        return "in.parquet"

    return write


SPANS = {"resourceSpans": [{"scopeSpans": [{"spans": genai_spans()}]}]}
TRACES = [wire(number) for number in range(8)]
TRACE_IDS = [trace["id"] for trace in TRACES]
CONVERSATIONS = [
    {"id": str(n), "domain": "finance", "messages": MESSAGES, "success": bool(n % 2)}
    for n in range(5)
]
SOURCES: dict[str, tuple[Callable[[], str], list[str] | int]] = {
    "traces": (jsonl(*TRACES), TRACE_IDS),
    "traces over many lines": (document(TRACES[0]), TRACE_IDS[:1]),
    "conversations": (jsonl(*CONVERSATIONS), 5),
    "messages alone": (jsonl(*[MESSAGES] * 3), 3),
    "traces and conversations": (jsonl(*TRACES[:2], *CONVERSATIONS[:2]), 4),
    "a list of conversations": (document(CONVERSATIONS), 5),
    "spans": (jsonl(*lines(*genai_spans())), 1),
    "spans in a document": (document(SPANS), 1),
    "runs of LangSmith": (jsonl(LANGSMITH), 1),
    "an export of LangSmith": (document({"runs": [LANGSMITH]}), 1),
    "an export of LangSmith as Parquet": (
        table([
            {**LANGSMITH, "start_time": datetime(2026, 1, 1, tzinfo=UTC),
             "end_time": datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
             **{name: json.dumps(LANGSMITH[name]) for name in ("inputs", "outputs", "extra")}},
        ]), 1,
    ),
    "Parquet with traces": (table([{"trace": json.dumps(one)} for one in TRACES]), TRACE_IDS),
    "Parquet with messages as JSON": (
        table([{**one, "messages": json.dumps(one["messages"])} for one in CONVERSATIONS]), 5,
    ),
    "Parquet with messages as lists": (table(CONVERSATIONS), 5),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_each_form_is_scored_the_same_as_archive_and_as_lines(name: str) -> None:
    write, expected = SOURCES[name]
    file = write()
    streamed = {
        (part.rows.traces.trace_ids[row], facts["line"]): float(part.scores.total[row])
        for part in score_stream([file], tools())
        for row, facts in enumerate(part.rows.facts)
    }
    problems: list[Problem] = []
    score_archive(
        [file], "out", tools(), block_rows=2, report=lambda now: problems.extend(now.problems)
    )
    rows = query(
        "SELECT trace_id, line, score, trace FROM 'out/domain=*/*/*.parquet' ORDER BY line"
    ).fetchall()
    assert problems == []
    assert {(id_, line): score for id_, line, score, _ in rows} == pytest.approx(streamed)
    ids = [id_ for id_, *_ in rows]
    assert len(ids) == expected if isinstance(expected, int) else sorted(ids) == expected
    assert SECRET not in "".join(trace for *_, trace in rows)


def test_what_was_written_is_read_again() -> None:
    file = jsonl(*TRACES)()
    score_archive([file], "first", tools(), block_rows=3)
    files = find_files(["first"])
    assert files
    assert not any("_work" in name for name in files)
    summary = score_archive(files, "second", tools())
    assert (summary.scored, summary.skipped) == (len(TRACES), 0)


def paused_and_resumed() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A run of LangGraph that pauses, and what it does when it is resumed in its thread."""

    def calls(number: int, **root: Any) -> list[dict[str, Any]]:
        ids = [f"00000000-0000-4000-8000-{number:011}{at}" for at in (0, 1)]
        times = {
            "start_time": f"2026-01-01T00:0{number}:00Z",
            "end_time": f"2026-01-01T00:0{number}:01Z",
        }
        metadata = {"thread_id": "T", "langgraph_node": "agent", "langgraph_step": 1,
                    "langgraph_checkpoint_ns": "agent:1"}  # fmt: skip
        return [
            {"id": ids[0], "run_type": "chain", "name": "LangGraph", **times, **root,
             "extra": {"metadata": {"thread_id": "T"}}},
            {**LANGSMITH, **times, "id": ids[1], "parent_run_id": ids[0],
             "extra": {"metadata": metadata}},
        ]  # fmt: skip

    question = {"messages": [{"type": "human", "content": "do a thing for me"}]}
    error = "GraphInterrupt((Interrupt(value='ok?'),))"
    answer = {"messages": [{"type": "ai", "content": "final"}]}
    return calls(1, inputs=question, error=error), calls(2, inputs=None, outputs=answer)


def test_a_run_that_paused_goes_on_in_its_file_alone() -> None:
    first, second = paused_and_resumed()
    jsonl(*first)()
    Path("in.jsonl").rename("first.jsonl")
    jsonl(*second)()
    steps = "SELECT n_steps FROM '{}/domain=*/*/*.parquet'"
    for out, block_rows in (("apart", 1), ("together", 500)):
        score_archive(["first.jsonl", "in.jsonl"], out, tools(), block_rows=block_rows)
        assert query(steps.format(out)).fetchall() == [(1,)]
    score_archive([jsonl(*first, *second)()], "joined", tools())
    assert query(steps.format("joined")).fetchall() == [(2,)]


def test_small_files_share_a_block() -> None:
    files = []
    for number, one in enumerate(CONVERSATIONS):
        jsonl(one)()
        files.append(str(Path("in.jsonl").rename(f"{number}.jsonl")))
    seen = []
    score_archive(files, "out", tools(), block_rows=3, report=seen.append)
    assert {one.total for one in seen if one.name == "read"} == {2}
    lines = query("SELECT file, line FROM 'out/domain=*/*/*.parquet' ORDER BY file").fetchall()
    assert lines == [(file, 1) for file in files]


def test_torn_first_lines_cost_themselves() -> None:
    lines = ['{"torn": ', '{"torn": ', *map(json.dumps, TRACES)]
    Path("in.jsonl").write_text("\n".join(lines))
    summary = score_archive(["in.jsonl"], "out", tools())
    assert (summary.scored, summary.skipped) == (len(TRACES), 2)


def test_a_worker_that_can_read_no_runs_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    file = jsonl(*TRACES[:2], *CONVERSATIONS)()

    def fail(*_: object) -> None:
        raise ImportError("no module of the redactor")

    with monkeypatch.context() as patch:
        patch.setattr("kp_langchain.archive.runs.assemble", fail)
        with pytest.raises(KPError, match="a worker cannot read runs: no module of the redactor"):
            score_archive([file], "out", tools())
    assert score_archive([file], "out", tools()).skipped == 0


def test_what_cannot_be_written_whole_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    file = jsonl(*TRACES)()

    def fail(*_: object) -> None:
        raise OSError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr("kp_langchain.archive.passes.row_group", fail)
        with pytest.raises(KPError, match="the network is gone"):
            score_archive([file], "memory://lost", tools(), block_rows=3)
    score_archive([file], "memory://lost", tools(), block_rows=3)
    assert Results("memory://lost").count() == len(TRACES)


BAD: dict[str, tuple[Any, str]] = {
    "a conversation without an answer": ({"messages": MESSAGES[:1]}, "no model answer"),
    "a number": (7, "object"),
    "a run without an end": (
        {key: value for key, value in LANGSMITH.items() if key != "end_time"}, "no end",
    ),
    "a part of a run": ({**LANGSMITH, "parent_run_id": LANGSMITH["id"][:-1] + "9"}, "a part"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_row_without_a_trace_says_why(name: str) -> None:
    value, reason = BAD[name]
    problems = [
        problem for part in score_stream([jsonl(value)()], tools()) for problem in part.problems
    ]
    assert [problem.place for problem in problems] == ["in.jsonl:1"]
    assert reason in problems[0].reason


def test_a_table_without_traces_says_what_it_has() -> None:
    table([{"prompt": "a", "answer": "b"}])()
    (part,) = score_stream(["in.parquet"], tools())
    assert part.problems[0].reason == "no column trace or messages; there are prompt, answer"


def odd_column() -> pa.Array:
    """Texts of which the second is no UTF-8."""
    texts = [json.dumps(TRACES[0]).encode(), b"\xff\xfe", json.dumps(TRACES[1]).encode()]
    return pa.Array.from_buffers(pa.string(), 3, pa.array(texts, pa.binary()).buffers())


ODD: dict[str, tuple[dict[str, Any], dict[int, str]]] = {
    "a text that is no UTF-8": ({"trace": odd_column()}, {2: "UnicodeDecodeError"}),
    "traces that are numbers": ({"trace": [1, None]}, {1: "holds int", 2: "is empty"}),
    "traces in columns of their own, with gaps": (
        {"trace": [TRACES[0], {**TRACES[1], "metadata": {**TRACES[1]["metadata"], "x": 1}}]}, {},
    ),
    "a time that no calendar has": (
        {"messages": [MESSAGES] * 2, "at": pa.array([1, 3_093_527_980_800], pa.timestamp("s"))},
        {2: "OverflowError"},
    ),
    "success as numbers, and gaps": (
        {"messages": [MESSAGES] * 3, "success": [1.0, float("nan"), 0.0],
         "confidence": [0.5, None, float("nan")]}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_odd_row_of_a_table_costs_that_row(name: str) -> None:
    columns, reasons = ODD[name]
    parquet.write_table(pa.table(columns), "in.parquet")
    problems: list[Problem] = []
    summary = score_archive(
        ["in.parquet"], "out", tools(), report=lambda now: problems.extend(now.problems)
    )
    assert {int(one.place.partition(":")[2]) for one in problems} == reasons.keys()
    assert all(
        reason in problem.reason for problem, reason in zip(problems, reasons.values(), strict=True)
    )
    assert summary.scored == len(next(iter(columns.values()))) - len(reasons)


def test_nothing_private_is_in_a_reason() -> None:
    values = [{**LANGSMITH, "start_time": SECRET}, {"messages": MESSAGES, "confidence": SECRET}]
    for value in values:
        (part,) = score_stream([jsonl(value)()], tools())
        assert part.problems
        assert SECRET[:20] not in part.problems[0].reason


@pytest.mark.parametrize("block_rows", [1, 100])
def test_what_a_run_named_as_a_secret_is_unknown_to_the_next(block_rows: int) -> None:
    word = "plover-heron-42"
    naming = [{"role": "user", "content": f"My password is {word}"}, *MESSAGES[1:]]
    using = [{"role": "user", "content": f"Is {word} a bird?"}, *MESSAGES[1:]]
    file = jsonl(*({"messages": one} for one in (naming, using)))()
    score_archive([file], "out", tools(), block_rows=block_rows)
    rows = query("SELECT trace FROM 'out/domain=*/*/*.parquet' ORDER BY line").fetchall()
    assert [word in trace for (trace,) in rows] == [False, True]


def test_a_line_that_is_too_long_costs_that_line() -> None:
    lines = [json.dumps(TRACES[0]), "x" * (LONGEST_LINE_BYTES + 1), json.dumps(TRACES[1])]
    Path("in.jsonl").write_text("\n".join(lines))
    parts = [*score_stream(["in.jsonl"], tools())]
    assert [one.place for part in parts for one in part.problems] == ["in.jsonl:2"]
    summary = score_archive(["in.jsonl"], "out", tools())
    assert (summary.scored, summary.skipped) == (2, 1)


def test_names_of_files_hold_no_credentials() -> None:
    assert name_of("https://ann:secret@host/a/b.jsonl?sig=1#x") == "https://host/a/b.jsonl"
    assert name_of("s3://bucket/a.jsonl") == "s3://bucket/a.jsonl"
    assert name_of("a?b#c.jsonl") == "a?b#c.jsonl"


@pytest.mark.parametrize("domain", ["_x", "x" * 500, "../..", "ä/ö", "CON:", " ", "%2F", "\n"])
def test_a_domain_is_a_name_of_a_folder_that_readers_undo(domain: str) -> None:
    name = folder_name(domain)
    assert re.fullmatch(r"(?!_)[\w.~%-]{1,255}", name, re.ASCII)
    assert unquote(name) == domain or len(domain) > 200
    assert folder_name(domain) != folder_name(f"{domain}1")


def test_results_among_the_sources_are_left_out(without_model: None) -> None:
    Path("runs").mkdir()
    Path("runs/a.jsonl").write_text(json.dumps(TRACES[0]))
    for _ in range(2):
        done = cli("score", "runs", "--out", "runs/scored", "--workers", "1")
        assert (done.returncode, "scored 1, " in done.stderr) == (0, True), done.stderr


def test_a_damaged_file_is_an_error_that_names_it(without_model: None) -> None:
    Path("in.jsonl").write_bytes(b"\x1f\x8b123")
    for out in ("out", "out.jsonl"):
        done = cli("score", "in.jsonl", "--out", out)
        assert (done.returncode, "in.jsonl cannot be read" in done.stderr) == (1, True)


def test_sources_and_results_may_be_anywhere_that_fsspec_opens() -> None:
    jsonl(*TRACES)()
    system = fsspec.filesystem("memory")
    system.pipe("/in/a.jsonl", Path("in.jsonl").read_bytes())
    for _ in range(2):
        files = find_files(["memory://in"])
        assert [name.replace("///", "//") for name in files] == ["memory://in/a.jsonl"]
        assert score_archive(files, "memory://out", tools(), block_rows=3).scored == len(TRACES)
    assert {name.split("/")[2] for name in system.find("/out") if "part-" in name} == {
        "domain=finance", "domain=code", "domain=Gr%C3%B6%C3%9Fe%2F..%2Fx",
    }  # fmt: skip
    assert find_files(["memory://out"])  # in which nothing of the work is


# ------------------------------------------------------------------ files and blocks


def test_folders_patterns_and_urls_stand_for_their_files() -> None:
    for name in (
        "a/2.jsonl",
        "a/1.parquet",
        "a/b/3.json",
        "a/_work/4.jsonl",
        "a/.x/5.jsonl",
        "a/t",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    assert find_files(["a"]) == ["a/1.parquet", "a/2.jsonl", "a/b/3.json"]
    assert find_files(["a/*.jsonl", "-", "a/t"]) == ["a/2.jsonl", "-", "a/t"]
    assert find_files([Path("a/t").absolute().as_uri()]) == [Path("a/t").absolute().as_uri()]
    with pytest.raises(KPError, match=r"a/t is given more than once"):
        find_files(["a/t", "a/t"])


LINES = st.lists(st.sampled_from([b"", b"{}", b"  ", b"x" * 9, b"a\rb"]), max_size=30)


@given(content=LINES, rows=st.integers(1, 7), ends=st.booleans(), peeked=st.integers(1, 40))
def test_the_parts_of_a_file_are_all_its_lines(
    content: list[bytes], rows: int, ends: bool, peeked: int
) -> None:
    text = b"\n".join(content) + (b"\n" if ends else b"")
    Path("lines.jsonl").write_bytes(text)
    Path("lines.jsonl.gz").write_bytes(gzip.compress(text))
    storage = Storage("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kp_langchain.archive.splitting._READ_BYTES", peeked)
        split = [
            split_file(storage, "", Splitting(0, name, rows))
            for name in ("lines.jsonl", "lines.jsonl.gz")
        ]
    read, copied = [
        [
            row
            for part in one.parts
            for row in read_rows_of(
                storage, "", Block(0, (FilePart("lines.jsonl", 0, one.way, part),))
            )
        ]
        for one in split
    ]
    assert [one.way for one in split] == ["lines", "copied"]
    assert read == copied
    parts = split[0].parts
    expected = [(at, one.strip()) for at, one in enumerate(content, 1) if one.strip()]
    assert [(row.number, row.content) for row in read] == expected
    assert [part.first for part in parts] == [1 + rows * at for at in range(len(parts))]


COUNTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(counts=COUNTS, window=st.integers(1, 15))
def test_halos_hold_what_is_remembered_and_no_more(
    counts: list[tuple[int, int]], window: int
) -> None:
    blocks = [
        BlockCounts(number, rows, min(rows, vectors))
        for number, (rows, vectors) in enumerate(counts)
    ]
    for halo in halos(blocks, window):
        for kind, held in (("rows", halo.row_blocks), ("vectors", halo.vector_blocks)):
            before = [
                one.number for one in blocks[: halo.number] for _ in range(getattr(one, kind))
            ]
            # Of what the halo's blocks hold, the newest are what is remembered.
            own = [number for number in before if number in held]
            assert own[-window:] == before[-window:]
            assert set(held) == set(before[-window:])
