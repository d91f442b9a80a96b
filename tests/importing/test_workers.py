"""Workers embed ahead what an import records; what is stored is what one process stores."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from kp_langchain import Scorer, Settings, TraceStore
from kp_langchain.archive.engines import Engine
from kp_langchain.archive.files import find_files
from kp_langchain.archive.import_workers import embed_runs, embedding_ahead
from kp_langchain.archive.run import tools_of
from kp_langchain.archive.sources import read_runs
from kp_langchain.embedding.embedder import EmbedderIdentity
from kp_langchain.embedding.local_models import LocalModel, _default_embedder
from kp_langchain.errors import KPError
from kp_langchain.importing.importer import Imported, Importer
from kp_langchain.importing.recorded_run import RecordedRun
from kp_langchain.recording.redactor import KNOWN_SECRETS
from tests.archive.conftest import Words

NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray"
)
PHRASE = "tangerine-motorway-71"
RUNS = 12


def conversation(number: int) -> dict[str, Any]:
    """A run; the fourth names a password, the tenth is of the same session and repeats it."""
    answer = f"Answer {number % 5}: {'the ledger balances ' * (number % 3)}"
    if number == 3:
        answer += f" The password is {PHRASE}"
    if number == 9:
        answer += f" We used {PHRASE} again"
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    return {
        "id": f"run {number}", "domain": ("finance", "code")[number % 2],
        "session_id": f"session {number % 3}",
        "messages": [
            {"role": "user", "content": f"Question {number % 4}?"},
            {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": f"value {number}"},
            {"role": "assistant", "content": answer},
        ],
    }  # fmt: skip


@pytest.fixture
def sources(onnx_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A folder with Parquet, and a pattern for two files of lines; embedded in groups of 2."""
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(onnx_folder))
    monkeypatch.setattr("kp_langchain.archive.import_workers._GROUP_RUNS", 2)
    monkeypatch.setattr("kp_langchain.scoring.process_scorer._default_scorer", None)
    _default_embedder.cache_clear()
    runs = [conversation(number) for number in range(RUNS)]
    Path("tables/below").mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(runs[:4]), "tables/below/1.parquet")
    as_json = [{**run, "messages": json.dumps(run["messages"])} for run in runs[4:6]]
    parquet.write_table(pa.Table.from_pylist(as_json), "tables/below/2.parquet")
    for name, part in (("a1.jsonl", runs[6:8]), ("a2.jsonl", runs[8:])):
        Path(name).write_text("".join(f"{json.dumps(run)}\n" for run in part))
    yield ["tables", "a?.jsonl"]
    _default_embedder.cache_clear()


def importing(
    database: str, sources: Sequence[str], engine: Engine = "local", workers: int = 1
) -> Iterator[Imported]:
    """Import as a new process does."""
    KNOWN_SECRETS.clear()
    settings = Settings()
    with TraceStore(database) as store:
        importer = Importer(store, settings)
        runs = (run for run in read_runs(find_files(sources)) if isinstance(run, RecordedRun))
        with embedding_ahead(importer, settings, engine, workers) as ahead:
            yield from importer.run(ahead(runs))
        importer.close()


def stored(database: str) -> dict[str, list[tuple[Any, ...]]]:
    """Scores and decisions, and what novelty is measured against, in the order of both."""
    runs = (
        "SELECT one.run_id, one.domain, one.score, one.novelty, one.novelty_source, one.decision,"
        " one.gated_value, one.worth, one.agreement, twin.run_id, body.trace ->> '$.steps'"
        " FROM runs one LEFT JOIN runs twin ON twin.trace_id = one.twin_of"
        " LEFT JOIN bodies body ON body.trace_id = one.trace_id ORDER BY one.rowid"
    )
    memory = (
        "SELECT run_id, fingerprint, vector, model, revision, baseline FROM vectors"
        " JOIN runs USING (trace_id) WHERE kind = 'memory' ORDER BY number"
    )
    with closing(sqlite3.connect(database)) as connection:
        return {name: connection.execute(sql).fetchall()
                for name, sql in (("runs", runs), ("memory", memory))}  # fmt: skip


@pytest.fixture
def embedded_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts for which the model of this process was run."""
    texts: list[str] = []
    embed = LocalModel.embed

    def noting(self: LocalModel, own: Sequence[str]) -> NDArray[np.float32]:
        texts.extend(own)
        return embed(self, own)

    monkeypatch.setattr(LocalModel, "embed", noting)
    return texts


@pytest.mark.parametrize(
    ("engine", "workers"), [("local", 2), pytest.param("ray", 2, marks=NEEDS_RAY)]
)
def test_what_is_stored_is_what_one_process_stores(
    engine: Engine, workers: int, sources: list[str], embedded_here: list[str]
) -> None:
    fates = [one.fate for one in importing("alone.db", sources)]
    assert fates == ["imported"] * RUNS
    assert len(embedded_here) == RUNS
    embedded_here.clear()
    order = [one.run.place for one in importing("by_workers.db", sources, engine, workers)]
    assert order == [
        *(f"tables/below/1.parquet:{row}" for row in range(1, 5)),
        *(f"tables/below/2.parquet:{row}" for row in range(1, 3)),
        *(f"a1.jsonl:{line}" for line in range(1, 3)),
        *(f"a2.jsonl:{line}" for line in range(1, 5)),
    ]
    alone = stored("alone.db")
    assert stored("by_workers.db") == alone
    assert len(alone["memory"]) == RUNS
    assert len({row[3] for row in alone["runs"]}) > 3  # novelty
    # Of the workers, none knows what an earlier run of the session named.
    ready, repeating = embedded_here
    assert ready == "ready?"
    assert "We used" in repeating
    assert PHRASE not in repeating
    assert not multiprocessing.active_children()
    again = [one.fate for one in importing("by_workers.db", sources, engine, workers)]
    assert again == ["known"] * RUNS


def test_one_worker_is_this_process(sources: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kp_langchain.archive.import_workers.opened", None)
    assert len(list(importing("alone.db", sources))) == RUNS


def test_after_a_worker_was_killed_the_same_import_continues(sources: list[str]) -> None:
    results = importing("killed.db", sources, "local", 2)
    next(results)  # more groups than workers take at once are still to come
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(KPError, match="the same command continues"):
        list(results)
    assert not multiprocessing.active_children()
    fates = [one.fate for one in importing("killed.db", sources)]
    assert set(fates) == {"known", "imported"}
    list(importing("alone.db", sources))
    assert stored("killed.db")["runs"] == stored("alone.db")["runs"]


def test_a_worker_with_another_model_is_refused() -> None:
    scorer, now = Scorer(embedder=Words()), datetime.now(UTC)
    Path("in.jsonl").write_text(json.dumps(conversation(1)))
    (run,) = read_runs(["in.jsonl"])
    assert isinstance(run, RecordedRun)
    for model in ("words", "others"):
        identity = EmbedderIdentity(model)
        tools = tools_of(Settings(), scorer=scorer, read_at=now, identity=identity).packed()
        if model == "words":
            assert len(embed_runs(tools, [run])) == 1
            continue
        with pytest.raises(KPError, match="every machine needs the same files of the model"):
            embed_runs(tools, [run])
