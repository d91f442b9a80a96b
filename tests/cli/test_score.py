"""`kp-langchain score`: what comes out, and what is skipped."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import ReasoningTrace, Scorer
from tests import programs
from tests.cli.made_runs import WITHOUT_MODEL, document
from tests.commands import Done, cli


def wire(number: int, *, objective: str | None = None, domain: str = "code") -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"type": "thought", "content": "ümläut"}]
    steps += [{"type": "tool_call", "tool": {"name": name}} for name in "ab"]
    trace = document(
        number, domain=domain, objective=objective or f"task {number % 7}", steps=steps,
        answer="done", created_at="2026-02-01T12:00:00.000Z",
    )  # fmt: skip
    trace["outcome"]["confidence"] = 0.9
    return trace


def jsonl(*values: object) -> str:
    return "".join(
        (value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values
    )


@pytest.fixture
def command(without_model: None) -> Callable[..., Done]:
    """The command in this process; on standard output it writes past Python's `sys.stdout`."""
    return lambda *words, text="": cli("score", *words, stdin=text)


def apart(*words: str, text: str = "") -> Done:
    return programs.run("-c", WITHOUT_MODEL, "score", *words, stdin=text)


def start(*words: str, **streams: Any) -> programs.Program:
    return programs.start("-c", WITHOUT_MODEL, "score", *words, **streams)


def read(out: str = "out.jsonl") -> list[dict[str, Any]]:
    """Return the records without the times they took."""
    records = [json.loads(line) for line in Path(out).read_text().splitlines()]
    for record in records:
        assert record["breakdown"].pop("elapsed_ms") > 0
    return records


def test_each_line_is_the_trace_with_its_score(command: Callable[..., Done]) -> None:
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(100))))
    done = command("in.jsonl", "--out", "out.jsonl")
    assert done.returncode == 0, done.stderr
    alone, records = Scorer(embedder=None), read()
    assert len(records) == 100
    for number, record in enumerate(records):
        trace = ReasoningTrace.model_validate(wire(number))
        assert record["source"] == {"file": "in.jsonl", "line": number + 1}
        assert record["trace_id"] == record["trace"]["id"] == trace.id
        assert record["domain"] == "code"
        assert record["score"] == pytest.approx(alone.evaluate(trace).total, abs=1e-6)
        assert record["trace"]["metadata"]["quality_score"] == pytest.approx(record["score"])
        assert record["passed"] == (record["score"] >= record["threshold"])
        assert ReasoningTrace.model_validate(record["trace"]).steps == trace.steps


def test_thresholds_and_weights_are_those_of_the_settings(command: Callable[..., Done]) -> None:
    Path("kp.toml").write_text(
        "[defaults]\nthreshold = 0.95\n"
        "weights = {complexity = 0, novelty = 0, tool_diversity = 0, outcome_confidence = 1}\n"
        "[domains.code]\nthreshold = 0.2\n"
        "weights = {complexity = 0, novelty = 1, tool_diversity = 0, outcome_confidence = 0}\n"
    )
    domains = ("code", "finance", "Finance", "Finance")
    Path("in.jsonl").write_text(jsonl(*(wire(n, domain=name) for n, name in enumerate(domains))))
    done = command("in.jsonl", "--out", "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert [(r["score"], r["threshold"], r["passed"]) for r in read()] == [
        (0.5, 0.2, True), *[(0.9, 0.95, False)] * 3,
    ]  # fmt: skip
    assert done.stderr.count("did you mean 'finance'?") == 1


GOOD = json.dumps(wire(1))
HOSTILE = [
    "{", "nonsense", "null", "[]", "{}", GOOD[:-5], GOOD + GOOD, GOOD.replace("0.9", "NaN"),
    GOOD.replace("0.9", "7"), json.dumps({**wire(1), "unknown": float("nan")}),
    json.dumps({**wire(1), "unknown": [-float("inf")]}),
    json.dumps({**wire(1), "unknown": "\ud800"}), json.dumps(wire(1, objective="\udfff")),
    json.dumps({**wire(1), "id": "nonsense"}), json.dumps({**wire(1), "steps": []}),
    "[" * 100_000, '{"a":' * 100_000, "1" * 10_000, '"' + "x" * 3_000_000 + '"', "\x00\x00\x00",
    "\x1b[2J",
]  # fmt: skip


def test_hostile_lines_are_told_by_number_and_skipped(command: Callable[..., Done]) -> None:
    lines = itertools.chain.from_iterable((line, json.dumps(wire(9))) for line in HOSTILE)
    content = jsonl(*lines).encode("utf-8", "surrogatepass")
    Path("in.jsonl").write_bytes(content + b'{"a": "\xff"}\n\xff\xfe{\x00}\x00\n')
    done = command("in.jsonl", "--out", "out.jsonl")
    assert done.returncode == 1, done.stderr
    reports = [line for line in done.stderr.splitlines() if line.startswith("in.jsonl:")]
    numbers = [*range(1, 2 * len(HOSTILE), 2), 2 * len(HOSTILE) + 1, 2 * len(HOSTILE) + 2]
    assert [int(line.split(":")[1]) for line in reports] == numbers
    assert all(line.split(":", 2)[2].strip() for line in reports)
    assert max(map(len, reports)) < 400
    assert "\x1b" not in done.stderr
    assert "Traceback" not in done.stderr
    assert f"scored {len(HOSTILE)}," in done.stderr
    assert f"skipped {len(numbers)}" in done.stderr
    assert len(read()) == len(HOSTILE)


def test_what_is_strange_but_no_fault(command: Callable[..., Done]) -> None:
    """A byte order mark, CRLF, blank lines, no line feed at the end, NaN as a word."""
    strange = {**wire(2), "unknown": {"deep": [1, None, "NaN \\ Infinity"]}}
    text = f"\ufeff\r\n{GOOD}\r\n\r\n   \n\t{json.dumps(strange, ensure_ascii=False)}"
    Path("in.jsonl").write_bytes(text.encode())
    done = command("in.jsonl", "--out", "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert [record["source"]["line"] for record in read()] == [2, 5]
    assert read()[1]["trace"]["unknown"] == strange["unknown"]
    assert "skipped 0" in done.stderr


def test_standard_input_and_output_and_several_files() -> None:
    Path("one.jsonl").write_text(jsonl(wire(1), "bad"))
    done = apart("one.jsonl", "-", text=jsonl("", wire(2)))
    assert done.returncode == 1
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["source"] for r in records] == [
        {"file": "one.jsonl", "line": 1}, {"file": "-", "line": 2},
    ]  # fmt: skip
    done = apart("-")
    assert (done.returncode, done.stdout) == (0, "")


def test_ctrl_c_leaves_the_file_as_it_was() -> None:
    Path("out.jsonl").write_text("before")
    read_end, write_end = os.pipe()
    errors_end, stderr_end = os.pipe()
    with (
        os.fdopen(read_end, "rb") as stdin, os.fdopen(stderr_end, "wb") as stderr,
        Path("other").open("wb") as out,
    ):  # fmt: skip
        process = start("-", "--out", "out.jsonl", stdin=stdin, stdout=out, stderr=stderr)
    with os.fdopen(write_end, "w") as to_it, os.fdopen(errors_end) as errors:
        to_it.write("".join(jsonl(wire(n)) for n in range(64)) + "bad\n" * 64)
        to_it.flush()
        while not (line := errors.readline()).startswith("stdin:128:"):
            assert line
        process.send_signal(signal.SIGINT)  # it waits for more lines
        text = errors.read()
    assert process.wait() == 130
    assert "interrupted after 64" in text
    assert Path("out.jsonl").read_text() == "before"
