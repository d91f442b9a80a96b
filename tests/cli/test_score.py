"""`kp-langchain score`: what comes out, what is skipped, and resuming after an interruption."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import ReasoningTrace, Scorer, Settings, VectorCache
from kp_langchain.cli.jsonl import LONGEST_LINE_BYTES, Line, read_lines
from kp_langchain.cli.line_scorer import LineScorer, profiles
from kp_langchain.embedding.auto_embedder import AutoEmbedder
from kp_langchain.gate import default_threshold
from kp_langchain.scoring import FastembedEmbedder
from tests.commands import ROOT, Done, cli, cli_apart

# An installation without the embedding model: the command starts at once.
WITHOUT_MODEL = (
    "import sys; sys.modules.update(sentence_transformers=None, fastembed=None);"
    "from kp_langchain.cli.app import main; main()"
)
needs_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def wire(number: int, *, objective: str | None = None, domain: str = "code") -> dict[str, Any]:
    return {
        "id": f"kp:trace:{number:08x}-0000-4000-8000-000000000000",
        "metadata": {"task_domain": domain, "success": True},
        "task": {"objective": objective or f"task {number % 7}"},
        "steps": [
            {"step_id": 0, "type": "thought", "content": "ümläut"},
            {"step_id": 1, "type": "tool_call", "tool": {"name": "a"}},
            {"step_id": 2, "type": "tool_call", "tool": {"name": "b"}},
        ],
        "outcome": {"result_summary": "done", "confidence": 0.9},
    }


def jsonl(*values: object) -> str:
    return "".join(
        (value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values
    )


class Hashed:
    """A vector of its own for each text, and none for a text that says so."""

    def embed(self, texts):
        rows = []
        for text in texts:
            if "refuse" in text:
                raise RuntimeError("refused")
            seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
            rows.append(np.random.default_rng(seed).normal(size=16))
        return np.array(rows)


def score(
    files, out, *, embedder=None, max_elements: int = 5, with_model: bool = True
) -> tuple[LineScorer, list[str]]:
    told: list[str] = []
    embedder = (embedder or Hashed()) if with_model else None
    scorer = Scorer(embedder=embedder, cache=VectorCache(max_elements, 16))
    scoring = LineScorer(scorer, Settings(), report=told.append, advance=lambda _: None)
    scoring.run([str(file) for file in files], out and str(out))
    return scoring, told


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The command in this process, in an installation without the embedding model.

    What it writes on standard output, it writes past Python's `sys.stdout`.
    """
    for package in ("sentence_transformers", "fastembed"):
        monkeypatch.setitem(sys.modules, package, None)
    # Not the one of this process, which may have found a model before.
    monkeypatch.setattr("kp_langchain.embedding.embedder_protocol._default_embedder", AutoEmbedder)

    def run(*words: str, text: str = "") -> Done:
        return cli("score", *words, stdin=text)

    return run


def command_apart(*words: str, text: str = "") -> Done:
    """The same in a process of its own."""
    return cli_apart("score", *words, stdin=text, program=WITHOUT_MODEL)


def read(out: Path) -> list[dict[str, Any]]:
    """The records without the times they took."""
    records = [json.loads(line) for line in out.read_text().splitlines()]
    for record in records:
        assert record["breakdown"].pop("elapsed_ms") > 0
    return records


def assert_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """The same but for the last digits, which depend on what was computed together."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert rounded(one) == rounded(other)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: rounded(item) for key, item in value.items() if key not in {"created_at", "why"}
        }
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value


def test_each_line_is_the_trace_with_its_score():
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(100))))
    scoring, told = score(["in.jsonl"], "out.jsonl", max_elements=20)
    assert told == []
    alone = Scorer(embedder=Hashed(), cache=VectorCache(20, 16))
    records = read(Path("out.jsonl"))
    assert len(records) == scoring.scored == 100
    assert sum(record["passed"] for record in records) == scoring.passed
    for number, record in enumerate(records):
        breakdown = alone.evaluate(wire(number))
        assert record["source"] == {"file": "in.jsonl", "line": number + 1}
        assert record["id"] == record["trace"]["id"] == wire(number)["id"]
        assert record["domain"] == "code"
        assert record["score"] == pytest.approx(breakdown.total, abs=1e-6)
        assert record["trace"]["metadata"]["quality_score"] == record["score"]
        assert (record["breakdown"]["nearest"] is None) == (number == 0)
        assert record["threshold"] == default_threshold("code", novelty_measured=number > 0)
        assert record["passed"] == (record["score"] >= record["threshold"])
        trace = ReasoningTrace.model_validate(record["trace"])
        assert trace.steps == ReasoningTrace.model_validate(wire(number)).steps


def test_thresholds_and_weights_are_those_of_the_settings():
    Path("kp.toml").write_text(
        "[defaults]\nthreshold = 0.95\n"
        "weights = {complexity = 0, novelty = 0, tool_diversity = 0, outcome_confidence = 1}\n"
        "[domains.code]\nthreshold = 0.2\n"
        "weights = {complexity = 0, novelty = 1, tool_diversity = 0, outcome_confidence = 0}\n"
    )
    Path("in.jsonl").write_text(
        jsonl(wire(1), wire(2, domain="finance"), wire(3, domain="anything"))
    )
    done = command_apart("in.jsonl")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(r["score"], r["threshold"], r["passed"]) for r in records] == [
        (0.5, 0.2, True),
        (0.9, 0.95, False),
        (0.9, 0.95, False),
    ]
    assert profiles(Settings())["medical"].outcome_confidence == 1.0


HOSTILE = [
    "{",
    "nonsense",
    "null",
    "[]",
    "{}",
    json.dumps(wire(1))[:-5],
    json.dumps(wire(1)) + json.dumps(wire(2)),
    json.dumps(wire(1)).replace("0.9", "NaN"),
    json.dumps(wire(1)).replace("0.9", "7"),
    json.dumps({**wire(1), "unknown": float("nan")}),
    json.dumps({**wire(1), "unknown": [-float("inf")]}),
    json.dumps({**wire(1), "unknown": "\ud800"}),
    json.dumps(wire(1, objective="\udfff")),
    json.dumps({**wire(1), "id": "nonsense"}),
    json.dumps({**wire(1), "steps": []}),
    "[" * 100_000,
    '{"a":' * 100_000,
    "1" * 10_000,
    '"' + "x" * 3_000_000 + '"',
    "\x00\x00\x00",
    "\x1b[2J",
]


def test_hostile_lines_are_told_by_number_and_skipped(command):
    lines = list(itertools.chain.from_iterable((line, json.dumps(wire(9))) for line in HOSTILE))
    content = (
        jsonl(*lines).encode("utf-8", "surrogatepass") + b'{"a": "\xff"}\n\xff\xfe{\x00}\x00\n'
    )
    Path("in.jsonl").write_bytes(content)
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
    assert len(read(Path("out.jsonl"))) == len(HOSTILE)


def test_what_is_strange_but_no_fault():
    """A byte order mark, CRLF, blank lines, no line feed at the end, NaN as a word."""
    strange = {**wire(2), "unknown": {"deep": [1, None, "NaN \\ Infinity"]}}
    text = (
        "\ufeff\r\n"
        + json.dumps(wire(1))
        + "\r\n\r\n   \n\t"
        + json.dumps(strange, ensure_ascii=False)
    )
    Path("in.jsonl").write_bytes(text.encode())
    done = command_apart("in.jsonl")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["source"]["line"] for record in records] == [2, 5]
    assert records[1]["trace"]["unknown"] == strange["unknown"]
    assert "skipped 0" in done.stderr


def test_a_line_too_long_for_the_memory():
    with Path("in.jsonl").open("w") as file:
        file.write(jsonl(wire(1)) + "{" + " " * (2 * LONGEST_LINE_BYTES) + "}\n" + jsonl(wire(2)))
    _, told = score(["in.jsonl"], "out.jsonl")
    assert told == ["in.jsonl:2: longer than 16 MB"]
    assert [record["source"]["line"] for record in read(Path("out.jsonl"))] == [1, 3]


def test_standard_input_and_several_files():
    Path("one.jsonl").write_text(jsonl(wire(1), "bad"))
    done = command_apart("one.jsonl", "-", text=jsonl("", wire(2)))
    assert done.returncode == 1
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [r["source"] for r in records] == [
        {"file": "one.jsonl", "line": 1},
        {"file": "-", "line": 2},
    ]


def test_nothing_at_all(command):
    done = command_apart("-", text="")
    assert (done.returncode, done.stdout) == (0, "")
    Path("out.jsonl").write_text("")
    assert command("-", "--out", "out.jsonl", text="").returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "Missing argument"),
        (["missing.jsonl"], "missing.jsonl: No such file"),
        (["in.jsonl", "missing.jsonl"], "missing.jsonl: No such file"),
        (["."], "folder"),
        (["in.jsonl", "in.jsonl"], "more than once"),
        (["in.jsonl", "--out", "in.jsonl"], "is both input and output"),
        (["in.jsonl", "--out", "./sub/../in.jsonl"], "is both input and output"),
        (["in.jsonl", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage(command, words, told):
    Path("sub").mkdir()
    Path("in.jsonl").write_text(jsonl(wire(1)))
    done = command(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert Path("in.jsonl").read_text() == jsonl(wire(1))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="this user may read everything")
def test_an_unreadable_file_is_wrong_usage(command):
    Path("in.jsonl").write_text(jsonl(wire(1)))
    Path("in.jsonl").chmod(0)
    done = command("in.jsonl")
    assert done.returncode == 2
    assert "may not be read" in done.stderr


@needs_dev_full
@pytest.mark.parametrize("by_option", [True, False])
def test_a_full_disk(by_option):
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(100))))
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-W", "ignore", "-c", WITHOUT_MODEL, "score", "in.jsonl"]
        done = subprocess.run(
            [*command, "--out", "/dev/full"] if by_option else command,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert done.returncode == 1
    assert "cannot be written: No space left" in done.stderr
    assert "scored 0," in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_not_there_for_the_output(command):
    Path("in.jsonl").write_text(jsonl(wire(1)))
    done = command("in.jsonl", "--out", "no/such/out.jsonl")
    assert done.returncode == 1
    assert "out.jsonl cannot be opened: No such file" in done.stderr


def test_a_reader_that_goes_away():
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(2000))))
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_MODEL, "score", "in.jsonl"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(write_end)
    assert done.returncode == 141
    # Of all that it might say, only the warning that there is no model.
    assert [line[:7] for line in done.stderr.splitlines()] == ["novelty"]


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
    folder, whole_lines, of_the_next, max_elements, with_model
):
    files = inputs()
    for name in ("whole.jsonl", "part.jsonl"):
        Path(name).unlink(missing_ok=True)
    score(files, "whole.jsonl", max_elements=max_elements, with_model=with_model)
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 140
    kept, half = b"".join(lines[:whole_lines]), lines[whole_lines]
    Path("part.jsonl").write_bytes(kept + half[: int(of_the_next * (len(half) - 1))])
    scoring, told = score(files, "part.jsonl", max_elements=max_elements, with_model=with_model)
    assert scoring.scored == 140 - whole_lines
    assert told[0].startswith("resuming after ") == (whole_lines > 0)
    assert Path("part.jsonl").read_bytes().startswith(kept)
    assert_same(read(Path("part.jsonl")), read(Path("whole.jsonl")))
    again, _ = score(files, "part.jsonl", max_elements=max_elements, with_model=with_model)
    assert again.scored == 0
    assert_same(read(Path("part.jsonl")), read(Path("whole.jsonl")))


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


def test_killed_again_and_again():
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(400))))
    score(["in.jsonl"], "whole.jsonl", max_elements=30)
    lengths = []
    for calls in (3, 3, 4):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KILLED, str(calls)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=600,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        lengths.append(len(read(Path("out.jsonl"))))
    assert 0 < lengths[0] < lengths[1] < lengths[2] < 400
    score(["in.jsonl"], "out.jsonl", max_elements=30)
    assert_same(read(Path("out.jsonl")), read(Path("whole.jsonl")))


def test_ctrl_c_leaves_what_can_be_resumed(command):
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_MODEL, "score", "-", "--out", "out.jsonl"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        # What runs in the background of a script ignores SIGINT, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    lines = [jsonl(wire(n)) for n in range(200)]
    with process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("".join(lines[:64]) + "bad\n" * 64)
        process.stdin.flush()
        while not (line := process.stderr.readline()).startswith("-:128:"):
            assert line
        process.send_signal(signal.SIGINT)  # it waits for more lines
        told = process.stderr.read()
        assert process.wait(600) == 130
    assert "interrupted; the same command resumes from here" in told
    assert "scored 64," in told
    assert len(read(Path("out.jsonl"))) == 64
    done = command("-", "--out", "out.jsonl", text="".join(lines))
    assert done.returncode == 0, done.stderr
    assert "resuming after -:64" in done.stderr
    assert [r["source"]["line"] for r in read(Path("out.jsonl"))] == list(range(1, 201))


@pytest.mark.parametrize(
    "content",
    [
        "my notes\n",
        "my notes",
        'my notes\n{"sour',
        '{"id": 1}\n',
        jsonl(wire(1)),
        json.dumps(wire(1)),
        "\x00" * 100,
        '{"source":{"file":"in.jsonl","line":true}\n',
        '{"source":{"file":"in.jsonl","line":1},"breakdown":{},"trace":{}}\n',
        "\n",
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(command, content):
    Path("in.jsonl").write_text(jsonl(wire(1)))
    Path("out.jsonl").write_text(content)
    done = command("in.jsonl", "--out", "out.jsonl")
    assert done.returncode == 2
    assert "cannot resume out.jsonl: " in done.stderr
    assert Path("out.jsonl").read_text() == content


def test_an_output_of_other_input_is_left_as_it_is(command):
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
    assert done.returncode == 2
    assert "made from in.jsonl" in done.stderr
    assert Path("out.jsonl").read_bytes() == content


def test_lines_are_read_as_they_are_needed():
    pulled = 0

    def endless():
        nonlocal pulled
        while True:
            pulled += 1
            yield Line("x", pulled, json.dumps(wire(pulled % 99)).encode())

    scorer = Scorer(embedder=Hashed())
    scoring = LineScorer(scorer, Settings(), report=print, advance=lambda _: None)
    scored = 0
    for records in itertools.islice(scoring.records(endless()), 30):
        scored += len(records)
        assert pulled == scored


def test_long_lines_are_scored_in_smaller_groups():
    long = json.dumps({**wire(1), "unknown": "x" * 3_000_000}).encode()
    lines = (Line("x", number, long) for number in range(1, 13))
    scoring = LineScorer(Scorer(embedder=None), Settings(), report=print, advance=lambda _: None)
    assert {len(records) for records in scoring.records(lines)} == {3}


def test_all_bytes_are_counted(folder):
    Path("in.jsonl").write_bytes(b"\xef\xbb\xbf\n\n{}\r\n" + b"x" * 100 + b"\n" + b"y" * 17 * 2**20)
    seen: list[int] = []
    assert [line.number for line in read_lines("in.jsonl", seen.append)] == [3, 4, 5]
    assert sum(seen) == Path("in.jsonl").stat().st_size


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_a_bar_on_a_terminal_only(command):
    Path("in.jsonl").write_text(jsonl(*(wire(n) for n in range(300))))
    assert "%" not in command("in.jsonl").stderr
    reader, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_MODEL, "score", "in.jsonl"],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(terminal)
    shown = b""
    with process:
        while True:
            try:
                some = os.read(reader, 4096)
            except OSError:  # the terminal is gone
                break
            if not some:
                break
            shown += some
    os.close(reader)
    assert process.returncode == 0
    assert b"100%" in shown
    assert b"scored 300," in shown


def test_help_tells_the_exit_statuses(command):
    told = " ".join(command("--help").stdout.split())
    for words in ("0, every line was scored", "1, some were skipped", "2, wrong usage"):
        assert words in told


def test_resumes_among_texts_that_cannot_be_read(folder, onnx_folder):
    model = FastembedEmbedder(onnx_folder)
    texts = [
        "pay the invoice",
        "查明为什么这张发票付了两次款",
        "pay an invoice",
        "청구서를 알아보세요",
    ]
    wires = [wire(number, objective=texts[number % 4]) for number in range(12)]
    for each in wires:
        del each["steps"][0]["content"]
    (folder / "in.jsonl").write_text(jsonl(*wires))

    def scored(name: str) -> list[dict[str, Any]]:
        scorer = Scorer(embedder=model, cache=VectorCache(3))
        scoring = LineScorer(scorer, Settings(), report=print, advance=lambda _: None)
        scoring.run([str(folder / "in.jsonl")], str(folder / name))
        lines = (folder / name).read_text().splitlines()
        return [json.loads(line)["breakdown"] for line in lines]

    whole = scored("whole.jsonl")
    assert {one["novelty_source"] for one in whole[2:]} == {
        "unreadable",
        "nearest remembered trace",
    }
    kept = (folder / "whole.jsonl").read_bytes().splitlines(keepends=True)[:7]
    (folder / "part.jsonl").write_bytes(b"".join(kept))
    for one, other in zip(whole, scored("part.jsonl"), strict=True):
        assert one["nearest"] == other["nearest"]
        assert one["unreadable_share"] == other["unreadable_share"]
