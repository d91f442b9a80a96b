"""Files with lines longer than anybody writes: each is told with its line, and takes no memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kp_langchain.cli.verdict_files import read_labels
from tests.commands import ROOT

_PEAK = """\
import resource, sys
from kp_langchain.cli.verdict_files import read_labels
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = [one.why or "fine" for one in read_labels(sys.argv[1])]
print(*found, sep="\\n")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
_MB = 1 << 20
_LENGTH = 100 * _MB


def write(path: Path, *parts: bytes | int) -> None:
    """Write parts one after the other; a number stands for so many letters."""
    with path.open("wb") as file:
        for part in parts:
            if isinstance(part, bytes):
                file.write(part)
                continue
            for _ in range(part // _MB):
                file.write(b"x" * _MB)


def peak(path: Path) -> tuple[list[str], float]:
    """What is said of each line, and by how many MB reading raised the memory."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(path)],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    *said, grown = done.stdout.splitlines()
    return said, int(grown) / (1 if sys.platform != "darwin" else 1024) / 1024


@pytest.mark.parametrize("quote", [b"", b'"'], ids=["plain", "quoted"])
def test_a_long_line_of_csv(tmp_path: Path, quote: bytes) -> None:
    file = tmp_path / "labels.csv"
    write(file, b"id,success,note\na,yes,fine\nb,yes,", quote, _LENGTH, quote, b"\nc,no,fine\n")
    said, grown_mb = peak(file)
    assert said == ["fine", "longer than 1 MB", "fine"]
    assert grown_mb < 30
    places = [one.place for one in read_labels(str(file))]
    assert places == [f"{file}:{number}" for number in (2, 3, 4)]


def test_a_row_of_csv_over_many_lines(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    write(file, b'id,success\n"a', b'","\n' * _MB, b'"\n')
    said, grown_mb = peak(file)
    assert said[0] == "longer than 1 MB"
    assert grown_mb < 200


def test_a_long_first_line_of_csv(tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    for length, why in ((2 * _MB, "longer than 1 MB"), (0, "not valid CSV")):
        write(file, b'id,"', length, b"x" * 200_000, b'"\n')
        with pytest.raises(Exception, match=f"labels.csv:1: {why}"):
            list(read_labels(str(file)))


def test_a_long_line_of_json(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    line = b'{"id": "a", "success": true}\n'
    write(file, line, b'{"id": "', _LENGTH, b'"}\n', line)
    said, grown_mb = peak(file)
    assert said == ["fine", "longer than 16 MB", "fine"]
    assert grown_mb < 100
    assert [one.verdict is not None for one in read_labels(str(file))] == [True, False, True]
