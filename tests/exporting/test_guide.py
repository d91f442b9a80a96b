"""The guide on exports: its commands write the files that its snippets read."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from kp_langchain import TraceStore
from kp_langchain.exporting.formats import FORMATS
from tests.commands import ROOT, cli
from tests.exporting.conftest import CASES, scored
from tests.test_documents import rows, texts

GUIDE = ROOT / "examples" / "guides" / "export.md"


def test_the_guide_lists_each_format() -> None:
    assert [cells[0].strip("`") for cells in rows(GUIDE, "## Formats")] == list(FORMATS)


def test_what_the_commands_write_is_what_the_snippets_read(run_python: Any) -> None:
    with TraceStore() as store:
        store.add(*(scored(number, case) for number, case in enumerate(CASES.values())))
    for line in "".join(texts(GUIDE, "sh")).splitlines():
        done = cli(*shlex.split(line, comments=True)[1:])
        assert done.returncode == 0, done.stderr
    snippets = "".join(texts(GUIDE, "py")).replace('open("feedback.jsonl")', "stream")
    opened = 'stream = __import__("pathlib").Path("feedback.jsonl").read_text().splitlines()'
    folder = f"import os; os.chdir({str(Path.cwd())!r})"
    done = run_python(f"{folder}\n{opened}\n{snippets}", HF_HOME=str(Path("hub").resolve()))
    assert "finance" in done.stdout
