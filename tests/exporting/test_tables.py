"""Parquet: read back by pyarrow, pandas, DuckDB and datasets."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from kp_langchain import ReasoningTrace, TraceStore
from kp_langchain.exporting.tables import _COLUMNS
from tests.commands import cli
from tests.exporting.conftest import AT, CASES, WITHOUT_ANSWER, export, scored


@pytest.fixture
def file(every_case: TraceStore, fill: Any) -> Path:
    """A table of all cases, of which one has a verdict, and of a run without an answer."""
    fill(scored(99, WITHOUT_ANSWER))
    run = every_case.runs()[0]
    every_case.report_outcome(run.trace_id, success=False, note="not what the ledger says")
    export("parquet", "-o", "runs.parquet")
    return Path("runs.parquet")


def test_a_row_has_what_is_known_of_a_run(file: Path) -> None:
    table = parquet.read_table(file)
    assert table.column_names == list(_COLUMNS)
    rows = table.to_pylist()
    assert len(rows) == len(CASES) + 1
    (judged,) = (row for row in rows if row["verdict_success"] is not None)
    assert (judged["success"], judged["note"]) == (False, "not what the ledger says")
    by_number = {int(row["objective"].split()[2]): row for row in rows if row["objective"]}
    row = by_number[1 + list(CASES).index("an error that was recovered")]
    assert (row["failed_calls"], row["tools"], row["n_steps"]) == (1, ["find"], 6)
    assert json.loads(row["messages"])[0]["role"] == "user"
    assert json.loads(row["step_marks"])[0]["failed"] is True
    trace = ReasoningTrace.model_validate_json(row["trace"])
    assert trace.id == row["trace_id"]
    assert by_number[99]["messages"] is None
    assert {row["input_tokens"] for row in rows} == {None}
    assert {row["split"] for row in rows} <= {"train", "test"}


def test_pandas_duckdb_and_datasets_read_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import duckdb
    import pandas as pd

    monkeypatch.setenv("HF_HOME", str(Path("hub").resolve()))
    import datasets

    number = len(CASES) + 1
    frame = pd.read_parquet(file)
    assert len(frame) == number
    assert str(frame["created_at"].dtype).startswith("datetime64")
    select = "SELECT domain, count(*), avg(score) FROM 'runs.parquet' GROUP BY domain"
    ((domain, count, mean),) = duckdb.sql(select).fetchall()
    assert (domain, count, mean) == ("finance", number, pytest.approx(0.7, abs=0.1))
    loaded = datasets.load_dataset(
        "parquet", data_files=str(file), cache_dir="cache", split="train"
    )
    assert len(loaded) == number
    assert set(loaded.column_names) == set(_COLUMNS)


@pytest.mark.parametrize("form", ["parquet", "openai", "sharegpt", "feedback"])
def test_a_folder_is_a_dataset_with_its_splits(form: str, every_case: TraceStore) -> None:
    import datasets

    export(form, "-o", "runs", "--test-share", "0.4")
    loaded = datasets.load_dataset("runs", cache_dir="cache")
    files = {path.stem: path for path in Path("runs").iterdir() if path.stem in ("train", "test")}
    assert loaded.keys() == files.keys() == {"train", "test"}
    assert sum(len(split) for split in loaded.values()) == len(CASES)


def test_without_pyarrow_the_message_names_the_extra(
    every_case: TraceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = cli("export", "--format", "parquet", "-o", "folder", *AT)
    assert done.returncode == 1
    assert "pip install 'kp-langchain[parquet]'" in done.stderr
    assert not Path("folder").exists()
