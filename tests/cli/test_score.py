"""`kp-langchain score`: what comes out, what is skipped, and resuming after an interruption."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kp_langchain import ReasoningTrace, Scorer, Settings, VectorCache
from kp_langchain.cli.json_files import LONGEST_LINE_BYTES, read_lines
from kp_langchain.cli.score import Scoring
from kp_langchain.gate import default_threshold
from tests import programs
from tests.cli.made_runs import WITHOUT_MODEL, document
from tests.commands import ROOT, Done, cli


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


class Hashed:
    """A vector of its own for each text, and none for a text that says so."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        rows = []
        for text in texts:
            if "refuse" in text:
                raise RuntimeError("refused")
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
            rows.append(np.random.default_rng(seed).normal(size=16))
        return np.array(rows)


def score(
    files: Sequence[str],
    out: str,
    *,
    embedder: Hashed | None = None,
    max_elements: int = 5,
    with_model: bool = True,
) -> tuple[Scoring, list[str]]:
    """Score with an embedder of the tests; return the counts and what was reported."""
    scorer = Scorer(
        embedder=(embedder or Hashed()) if with_model else None,
        cache=VectorCache(max_elements, 16),
    )
    scoring = Scoring(scorer, Settings())
    with redirect_stderr(io.StringIO()) as errors:
        scoring.run(files, out)
    return scoring, errors.getvalue().splitlines()


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


def rounded(value: Any) -> Any:
    """A value but for the last digits, which depend on what was computed together."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items() if key != "why"}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def test_each_line_is_the_trace_with_its_score() -> None:
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(100))))
    scoring, reports = score(["in.jsonl"], "out.jsonl", max_elements=20)
    assert reports == []
    alone = Scorer(embedder=Hashed(), cache=VectorCache(20, 16))
    records = read()
    assert len(records) == scoring.scored == 100
    assert sum(record["passed"] for record in records) == scoring.passed
    for number, record in enumerate(records):
        trace = ReasoningTrace.model_validate(wire(number))
        assert record["source"] == {"file": "in.jsonl", "line": number + 1}
        assert record["trace_id"] == record["trace"]["id"] == trace.id
        assert record["domain"] == "code"
        assert record["score"] == pytest.approx(alone.evaluate(trace).total, abs=1e-6)
        assert record["trace"]["metadata"]["quality_score"] == record["score"]
        assert (record["breakdown"]["nearest"] is None) == (number == 0)
        assert record["threshold"] == default_threshold("code", novelty_measured=number > 0)
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


def test_a_line_too_long_for_the_memory() -> None:
    with Path("in.jsonl").open("w") as file:
        file.write(jsonl(wire(1)) + "{" + " " * (2 * LONGEST_LINE_BYTES) + "}\n" + jsonl(wire(2)))
    _, reports = score(["in.jsonl"], "out.jsonl")
    assert reports == ["in.jsonl:2: longer than 16 MB"]
    assert [record["source"]["line"] for record in read()] == [1, 3]


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


def test_help_tells_the_exit_statuses(command: Callable[..., Done]) -> None:
    text = " ".join(command("--help").stdout.split())
    for words in ("0, every line was scored", "1, some were skipped", "2, wrong usage"):
        assert words in text


# Outputs that end.


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("option", [("--out", "/dev/full"), ()], ids=str)
def test_a_full_disk(option: tuple[str, ...]) -> None:
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(100))))
    with Path("/dev/full").open("wb") as full, Path("errors").open("wb") as errors:
        assert start("in.jsonl", *option, stdout=full, stderr=errors).wait() == 1
    text = Path("errors").read_text()
    assert "cannot be written: No space left" in text
    assert "scored 0," in text
    assert "Traceback" not in text


def test_a_reader_that_goes_away() -> None:
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(2000))))
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe, Path("errors").open("wb") as errors:
        assert start("in.jsonl", stdout=pipe, stderr=errors).wait() == 141
    # Of all that it might say, only the warning that there is no model.
    assert [line[:7] for line in Path("errors").read_text().splitlines()] == ["novelty"]


# Resuming.


def inputs() -> list[str]:
    """Two files with bad lines, and texts that the embedder refuses."""
    first = [wire(n, objective="refuse" if n % 11 == 3 else None) for n in range(90)]
    Path("one.jsonl").write_text(jsonl(*first[:40], "bad", "", *first[40:], "bad"))
    Path("two.jsonl").write_text(jsonl("bad", *(wire(n) for n in range(100, 150))))
    return ["one.jsonl", "two.jsonl"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, 139),
    st.just(0.0) | st.floats(0, 1),
    st.sampled_from([3, 20, 1000]),
    st.booleans(),
)
def test_resumes_after_a_stop_at_any_byte(
    folder: Path, whole_lines: int, of_the_next: float, max_elements: int, with_model: bool
) -> None:
    files, options = inputs(), {"max_elements": max_elements, "with_model": with_model}
    for name in ("whole.jsonl", "part.jsonl"):
        Path(name).unlink(missing_ok=True)
    score(files, "whole.jsonl", **options)  # type: ignore[arg-type]
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 140
    kept, half = b"".join(lines[:whole_lines]), lines[whole_lines]
    Path("part.jsonl").write_bytes(kept + half[: int(of_the_next * (len(half) - 1))])
    for remaining in (140 - whole_lines, 0):
        scoring, reports = score(files, "part.jsonl", **options)  # type: ignore[arg-type]
        assert scoring.scored == remaining
        assert reports[0].startswith("resuming after ") == (whole_lines > 0 or remaining == 0)
        assert Path("part.jsonl").read_bytes().startswith(kept)
        assert rounded(read("part.jsonl")) == rounded(read("whole.jsonl"))


KILLED = """
import os, signal, sys
from tests.cli.test_score import Hashed, score

class Mortal(Hashed):
    calls = 0
    def embed(self, texts):
        Mortal.calls += 1
        if Mortal.calls == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(texts)

score(["in.jsonl"], "out.jsonl", embedder=Mortal(), max_elements=30)
"""


def test_killed_again_and_again() -> None:
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(400))))
    score(["in.jsonl"], "whole.jsonl", max_elements=30)
    lengths = []
    for calls in ("3", "4"):
        done = programs.run("-c", KILLED, calls, PYTHONPATH=str(ROOT))
        assert done.returncode == -signal.SIGKILL
        lengths.append(len(read()))
    assert 0 < lengths[0] < lengths[1] < 400
    score(["in.jsonl"], "out.jsonl", max_elements=30)
    assert rounded(read()) == rounded(read("whole.jsonl"))


def test_ctrl_c_leaves_what_can_be_resumed(command: Callable[..., Done]) -> None:
    lines = [jsonl(wire(n)) for n in range(200)]
    read_end, write_end = os.pipe()
    errors_end, stderr_end = os.pipe()
    with (
        os.fdopen(read_end, "rb") as stdin, os.fdopen(stderr_end, "wb") as stderr,
        Path("other").open("wb") as out,
    ):  # fmt: skip
        process = start("-", "--out", "out.jsonl", stdin=stdin, stdout=out, stderr=stderr)
    with os.fdopen(write_end, "w") as to_it, os.fdopen(errors_end) as errors:
        to_it.write("".join(lines[:64]) + "bad\n" * 64)
        to_it.flush()
        while not (line := errors.readline()).startswith("-:128:"):
            assert line
        process.send_signal(signal.SIGINT)  # it waits for more lines
        text = errors.read()
    assert process.wait() == 130
    assert "interrupted; the same command resumes from here" in text
    assert "scored 64," in text
    assert len(read()) == 64
    done = command("-", "--out", "out.jsonl", text="".join(lines))
    assert done.returncode == 0, done.stderr
    assert "resuming after -:64" in done.stderr
    assert [r["source"]["line"] for r in read()] == list(range(1, 201))


@pytest.mark.parametrize(
    "content",
    [
        "my notes\n", "my notes", 'my notes\n{"sour', '{"id": 1}\n', f"{GOOD}\n", GOOD,
        "\x00" * 100, '{"source":{"file":"in.jsonl","line":true}\n', "\n",
        '{"source":{"file":"in.jsonl","line":1},"breakdown":{},"trace":{}}\n',
    ],
    ids=lambda text: ascii(text)[:30],
)  # fmt: skip
def test_a_file_of_something_else_is_left_as_it_is(
    command: Callable[..., Done], content: str
) -> None:
    Path("in.jsonl").write_text(jsonl(wire(1)))
    Path("out.jsonl").write_text(content)
    done = command("in.jsonl", "--out", "out.jsonl")
    assert done.returncode == 2
    assert "cannot resume out.jsonl: " in done.stderr
    assert Path("out.jsonl").read_text() == content


def test_an_output_of_other_input_is_left_as_it_is(command: Callable[..., Done]) -> None:
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(5))))
    score(["in.jsonl"], "out.jsonl")
    content = Path("out.jsonl").read_bytes()
    Path("other.jsonl").write_text("")
    for changed in (jsonl(*(wire(n) for n in range(1, 9))), jsonl(wire(1)), "bad\n" * 9):
        Path("in.jsonl").write_text(changed)
        done = command("in.jsonl", "--out", "out.jsonl")
        assert done.returncode == 2
        assert "in.jsonl:5, which has changed" in done.stderr
    done = command("other.jsonl", "--out", "out.jsonl")
    assert (done.returncode, "made from in.jsonl" in done.stderr) == (2, True)
    assert Path("out.jsonl").read_bytes() == content


def test_lines_are_read_whatever_they_hold() -> None:
    Path("in.jsonl").write_bytes(b"\xef\xbb\xbf\n\n{}\r\n" + b"x" * 100 + b"\n" + b"y" * 17 * 2**20)
    assert [line.number for line in read_lines("in.jsonl")] == [3, 4, 5]
