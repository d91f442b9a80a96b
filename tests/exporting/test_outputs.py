"""The files and folders of an export, and what a run that fails or a full disk does to them."""

from __future__ import annotations

import gc
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import TraceStore
from kp_langchain.exporting.formats import FORMATS, write_file
from tests.commands import cli
from tests.exporting.conftest import AT, CASES, export, lines_of, runs_in


@pytest.mark.parametrize("form", ["openai", "sharegpt"])
def test_what_a_file_to_train_on_has_no_room_for_is_beside_it(
    form: str, every_case: TraceStore
) -> None:
    done = export(form, "-o", "runs.jsonl")
    assert "need --output" not in done.stderr
    marks = lines_of(Path("runs.marks.jsonl").read_text())
    lines = lines_of(Path("runs.jsonl").read_text())
    assert len(marks) == len(lines) == len(CASES)
    assert stat.S_IMODE(Path("runs.marks.jsonl").stat().st_mode) == 0o600
    assert {"verdict", "worth", "usage", "step_marks", "split"} <= marks[0].keys()
    assert "step marks, and a card, need --output FOLDER" in export(form).stderr
    assert "need --output" not in export("atif").stderr
    export("atif", "-o", "others.jsonl")
    assert not Path("others.marks.jsonl").exists()


def test_only_known_endings_are_files(every_case: TraceStore) -> None:
    export("atif", "-o", "run.v2")
    assert Path("run.v2", "README.md").is_file()
    for path in ("runs.json", "runs.parquet"):
        done = cli("export", "--format", "atif", "-o", path, *AT)
        assert done.returncode == 2
        assert "a file that ends in .jsonl, or into a folder" in " ".join(done.stderr.split())
        assert not Path(path).exists()


def test_a_run_that_cannot_be_counted_is_neither_written_nor_the_end(
    every_case: TraceStore,
) -> None:
    run, *others = runs_in(every_case)
    damaged: Any = replace(run, run=replace(run.run, redactions=None))
    wrong: Any = replace(run, run=replace(run.run, score=float("nan")))
    for form in FORMATS.values():
        stream, marks = BytesIO(), BytesIO()
        tally = write_file([damaged, wrong, *others], form, "keep", stream, marks)
        assert tally.skipped.total() in (1, 2)
        assert tally.count == len(others) + 2 - tally.skipped.total()
        assert len(lines_of(marks.getvalue().decode())) == tally.count


class Full(BytesIO):
    """A file on a disk that has no room left for a second page."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 4000:
            raise OSError(28, "No space left on device")
        return super().write(data)


def some_then_none(runs: list[Any]) -> Iterator[Any]:
    yield from runs
    raise OSError("the store is gone")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("kind", "message"), [(Full, "No space"), (BytesIO, "store is gone")])
def test_nothing_hides_what_ended_an_export(
    form: str, kind: Any, message: str, every_case: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", others.append)
    runs = runs_in(every_case) * 20

    def error() -> str:
        try:
            with kind() as stream:
                write_file(some_then_none(runs), FORMATS[form], "keep", stream)
        except OSError as error:
            return str(error)
        return ""

    assert message in error()
    gc.collect()
    assert not others


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_goes_to_stdout_a_file_and_a_folder(form: str, every_case: TraceStore) -> None:
    suffix = FORMATS[form].suffix
    export(form, "-o", f"runs{suffix}")
    content = Path(f"runs{suffix}").read_bytes()
    if suffix != ".parquet":
        assert export(form).stdout.encode() == content
        assert content.decode().isprintable() or set(filter(str.isspace, content.decode())) <= {
            " ",
            "\n",
        }
    assert stat.S_IMODE(Path(f"runs{suffix}").stat().st_mode) == 0o600
    export(form, "-o", "folder", "--test-share", "0")
    names = {path.name for path in Path("folder").iterdir()}
    assert {FORMATS[form].file_name("train"), "README.md"} <= names
    assert ("marks.jsonl" in names) == (form in ("openai", "sharegpt"))
    done = cli("export", "--format", form, "-o", "folder", *AT)
    assert done.returncode == 1
    assert "folder exists and is not empty; name a new folder, or remove it" in done.stderr
