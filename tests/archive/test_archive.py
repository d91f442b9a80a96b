"""An archive scores the same over any engine, and continues what was interrupted."""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import pickle
import re
import signal
import stat
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped,unused-ignore]
import pytest
from numpy.typing import NDArray

from kp_langchain import DomainPolicy, ReasoningTrace, Scorer, Settings
from kp_langchain.archive.engines import Engine, opened
from kp_langchain.archive.files import Storage
from kp_langchain.archive.passes import Job
from kp_langchain.archive.rows import Problem, Tools
from kp_langchain.archive.run import Progress, score_archive, score_stream
from kp_langchain.archive.splitting import FileParts, split_file
from kp_langchain.archive.tables import RESULT
from kp_langchain.calibration.agreement import RunDigest, TaskRun, agreement_of, pairs_of
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.model import ConfidenceModel, Term
from kp_langchain.embedding.embedder import NO_IDENTITY
from kp_langchain.errors import KPError
from kp_langchain.gate import threshold_of
from kp_langchain.scoring import Worth
from tests.archive.conftest import REMEMBERED, Archive, Words, query, tools, wire
from tests.commands import cli
from tests.importing.test_conventions import MESSAGES

ROWS = "domain=*/day=*/*.parquet"
HAS_RAY = importlib.util.find_spec("ray") is not None
ENGINES = [
    ("local", 1, 7), ("local", 2, 50), ("local", 1, 1000),
    pytest.param(
        "ray", 2, 13, marks=pytest.mark.skipif(not HAS_RAY, reason="needs the extra ray"),
    ),
]  # fmt: skip


def rows_of(folder: str) -> list[dict[str, Any]]:
    """The rows of a result in order, as anybody reads them."""
    frame = query(f"SELECT * FROM '{folder}/{ROWS}' ORDER BY file, line").df()  # noqa: S608
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso"))
    return rows


def check(archive: Archive, folder: str) -> None:
    """The rows are those of `Scorer.evaluate`, one after the other."""
    rows = rows_of(folder)
    assert [(row["file"], row["line"]) for row in rows] == list(archive.scores)
    for row, (score, novelty, nearest) in zip(rows, archive.scores.values(), strict=True):
        assert row["score"] == pytest.approx(score, abs=1e-6)
        assert row["novelty"] == pytest.approx(novelty, abs=1e-6)
        assert row["nearest_id"] == nearest
        threshold = threshold_of(row["task_domain"], None)
        is_measured = nearest is not None
        assert row["threshold"] == (threshold.measured if is_measured else threshold.unmeasured)
        assert row["passed"] == (row["score"] >= row["threshold"])
    assert not list(Path(folder).rglob("*.kp-part"))
    errors = query(f"SELECT * FROM '{folder}/_errors/*.parquet' ORDER BY place").fetchall()  # noqa: S608
    assert [place for place, _ in errors] == sorted(archive.bad)
    assert all(reason for _, reason in errors)


@pytest.mark.parametrize(("engine", "workers", "block_rows"), ENGINES)
def test_scores_are_those_of_one_after_the_other(
    archive: Archive, engine: Engine, workers: int, block_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kp_langchain.archive.run._FILE_ROWS", 20)
        patch.setattr("kp_langchain.archive.run._BUCKET_ROWS", 40)
        summary = score_archive(
            archive.files, "out", tools(), engine=engine, workers=workers, block_rows=block_rows
        )
    check(archive, "out")
    assert (summary.scored, summary.skipped) == (len(archive.scores), len(archive.bad))
    score_archive(archive.files, "alone", tools())
    assert rows_of("out") == rows_of("alone")
    files, alone = ([*Path(folder).glob(ROWS)] for folder in ("out", "alone"))
    assert len(files) > len(alone) or block_rows > len(archive.scores)
    assert not multiprocessing.active_children()


def test_json_lines_are_scored_the_same(archive: Archive) -> None:
    found = {
        (facts["file"], facts["line"]): (
            part.scores.total[row], part.scores.novelty[row], part.scores.nearest_id[row],
        )
        for part in score_stream(archive.files, tools())
        for row, facts in enumerate(part.rows.facts)
    }  # fmt: skip
    assert list(found) == list(archive.scores)
    for one, expected in zip(found.values(), archive.scores.values(), strict=True):
        assert one[:2] == pytest.approx(expected[:2], abs=1e-6)
        assert one[2] == expected[2]


# ------------------------------------------------------------------ interrupted


@pytest.mark.parametrize(("name", "items"), [("read", 4), ("score", 3), ("write", 2)])
def test_what_was_interrupted_continues_where_it_was(
    archive: Archive, name: str, items: int
) -> None:
    def interrupt(now: Progress) -> None:
        if (now.name, now.done) == (name, items):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_archive(archive.files, "out", tools(), block_rows=10, report=interrupt)
    seen: list[Progress] = []
    score_archive(archive.files, "out", tools(), block_rows=10, report=seen.append)
    check(archive, "out")
    again = max((one.rows for one in seen if one.name == "read"), default=0)
    assert again == (len(archive.scores) - 39 if name == "read" else 0)  # 4 blocks, a bad line


class Deadly(Words):
    """Ends its own process when a file is there, and removes that if it is to happen once."""

    def __init__(self, flag: Path, *, once: bool) -> None:
        self.flag, self.once = flag, once

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.flag.exists() and _is_worker():
            if self.once:
                self.flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(texts)


def _is_worker() -> bool:
    ray = sys.modules.get("ray")
    is_of_ray = ray is not None and ray.is_initialized() and "RAY_RAYLET_PID" in os.environ
    return is_of_ray or multiprocessing.parent_process() is not None


def deadly(flag: Path, *, once: bool) -> Tools:
    scorer = Scorer(embedder=Deadly(flag, once=once), max_remembered=REMEMBERED)
    return tools(scorer=scorer)


def test_a_killed_worker_ends_the_command_and_the_same_continues(
    archive: Archive, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    with pytest.raises(KPError, match="the same command continues"):
        score_archive(archive.files, "out", deadly(flag, once=False), workers=2, block_rows=20)
    assert not multiprocessing.active_children()
    flag.unlink()
    score_archive(archive.files, "out", deadly(flag, once=False), workers=2, block_rows=20)
    check(archive, "out")


@pytest.mark.skipif(not HAS_RAY, reason="needs the extra ray")
def test_ray_goes_on_without_a_killed_worker(archive: Archive, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    score_archive(
        archive.files, "out", deadly(flag, once=True), engine="ray", workers=2, block_rows=20
    )
    assert not flag.exists()
    check(archive, "out")


def forever(number: int) -> int:
    """Never return, except for the first item."""
    if number:
        threading.Event().wait()
    return number


def interrupted(engine: Engine) -> None:
    with opened(engine, 2) as map_blocks:
        assert next(iter(map_blocks(forever, range(8)))) == 0
        raise KeyboardInterrupt


def test_ctrl_c_waits_for_no_block() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted("local")
    assert not multiprocessing.active_children()


def test_what_is_finished_is_not_done_again(archive: Archive) -> None:
    first = score_archive(archive.files, "out", tools(), block_rows=10)
    seen: list[Progress] = []
    assert score_archive(archive.files, "out", tools(), block_rows=10, report=seen.append) == first
    assert not seen
    assert [path.name for path in Path("out/_work").iterdir()] == ["plan.json"]


class Broken(Words):
    """Fails while a file is there."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.flag.exists():
            raise OSError("no model here")
        return super().embed(texts)


def test_a_worker_without_the_model_writes_nothing(archive: Archive, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    broken = scorer(embedder=Broken(flag))
    with pytest.raises(KPError, match="a worker cannot embed: embedder failed: OSError"):
        score_archive(archive.files, "out", broken, block_rows=10)
    flag.unlink()
    score_archive(archive.files, "out", broken, block_rows=10)
    check(archive, "out")


def test_runs_without_a_time_have_that_of_the_first_start() -> None:
    lines = [json.dumps({"messages": MESSAGES}), *[json.dumps(bare(n)) for n in range(4)]]
    Path("in.jsonl").write_text("\n".join(lines))

    def interrupt(now: Progress) -> None:
        if now.name == "read" and now.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_archive(["in.jsonl"], "out", tools(), block_rows=1, report=interrupt)
    begun = json.loads(Path("out/_work/plan.json").read_text())["read_at"]
    score_archive(["in.jsonl"], "out", tools(), block_rows=1)
    rows = rows_of("out")
    assert {datetime.fromisoformat(row["created_at"]) for row in rows} == {
        datetime.fromisoformat(begun).replace(microsecond=0) + timedelta(
            milliseconds=datetime.fromisoformat(begun).microsecond // 1000)
    }  # fmt: skip
    score_archive(["in.jsonl"], "again", tools())
    assert [row["trace_id"] for row in rows] == [row["trace_id"] for row in rows_of("again")]


def bare(number: int) -> dict[str, Any]:
    """A trace that states neither its id nor its time."""
    trace = wire(number)
    del trace["id"], trace["metadata"]["created_at"]
    return trace


def test_a_broken_block_is_named(archive: Archive) -> None:
    def interrupt(now: Progress) -> None:
        if now.name == "score":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_archive(archive.files, "out", tools(), block_rows=10, report=interrupt)
    block = Path("out/_work/read/0000003.block")
    block.write_bytes(b"")
    with pytest.raises(KPError, match=r"0000003\.block cannot be read .*; if it is broken, remov"):
        score_archive(archive.files, "out", tools(), block_rows=10)
    block.unlink()
    score_archive(archive.files, "out", tools(), block_rows=10)
    check(archive, "out")


def test_only_the_owner_may_read_the_result(archive: Archive) -> None:
    Path("out").mkdir(mode=0o755)
    score_archive(archive.files, "out", tools())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in Path("out").rglob("*") if path.is_file()}
    assert modes == {0o600}


# ------------------------------------------------------------------ refused


def test_of_two_commands_one_is_refused(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def split_and_start_another(*arguments: Any) -> FileParts:
        with pytest.raises(KPError, match="rows of a block 10, now 11"):
            score_archive(archive.files, "out", tools(), block_rows=11)
        return split_file(*arguments)

    monkeypatch.setattr("kp_langchain.archive.run.split_file", split_and_start_another)
    score_archive(archive.files, "out", tools(), block_rows=10)
    check(archive, "out")


def test_another_version_of_a_file_is_refused(archive: Archive) -> None:
    score_archive(archive.files, "out", tools())
    os.utime("one.jsonl", ns=(1, 1))
    with pytest.raises(KPError, match=r"files .*one\.jsonl"):
        score_archive(archive.files, "out", tools())


def other_settings() -> Tools:
    return replace(tools(), settings=Settings(domains={"code": DomainPolicy(threshold=0.9)}))


class Others(Words):
    model = "others"


def scorer(**options: Any) -> Tools:
    return tools(scorer=Scorer(**{"embedder": Words(), "max_remembered": REMEMBERED, **options}))


@pytest.mark.parametrize(
    ("files", "other", "block_rows", "message"),
    [
        (["one.jsonl", "two.jsonl"], tools, 11, "rows of a block 10, now 11"),
        (["one.jsonl"], tools, 10, "number of files 2, now 1"),
        (["two.jsonl", "one.jsonl"], tools, 10, "files"),
        (["one.jsonl", "two.jsonl"], lambda: scorer(max_remembered=7), 10, "novelty_memory 20"),
        (["one.jsonl", "two.jsonl"], lambda: scorer(embedder=Others()), 10, "embedder"),
        (["one.jsonl", "two.jsonl"], lambda: tools(agrees=False), 10, "agreement true, now false"),
        (["one.jsonl", "two.jsonl"], other_settings, 10, "domains, policies and redaction"),
        (["one.jsonl", "two.jsonl"], lambda: tools(models={"code": model("code")}), 10, "models"),
    ],
)  # fmt: skip
def test_another_plan_is_refused(
    archive: Archive, files: list[str], other: Any, block_rows: int, message: str
) -> None:
    score_archive(archive.files, "out", tools(), block_rows=10)
    with pytest.raises(KPError, match=message):
        score_archive(files, "out", other(), block_rows=block_rows)
    check(archive, "out")


def test_a_folder_of_others_is_refused(archive: Archive) -> None:
    Path("out").mkdir()
    Path("out/mine.1.part").touch()
    with pytest.raises(KPError, match="is not empty"):
        score_archive(archive.files, "out", tools())
    assert [path.name for path in Path("out").iterdir()] == ["mine.1.part"]


# ------------------------------------------------------------------ rows


def test_any_fault_of_a_row_costs_that_row(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flags_of(trace: ReasoningTrace) -> tuple[str, ...]:
        if trace.id == wire(6)["id"]:
            raise RuntimeError("a fault")
        return ()

    monkeypatch.setattr("kp_langchain.archive.rows.flags_of", flags_of)
    problems: list[Problem] = []
    score_archive(archive.files, "out", tools(), report=lambda now: problems.extend(now.problems))
    (fault,) = [one for one in problems if "RuntimeError" in one.reason]
    assert fault.place == "one.jsonl:8"  # line 3 holds no trace
    assert len(rows_of("out")) == len(archive.scores) - 1


def test_others_open_the_result_without_this_package(archive: Archive) -> None:
    score_archive(archive.files, "out", tools(), block_rows=10)
    counts = "SELECT domain, CAST(day AS text) AS day, count(*) AS n FROM"
    by_duckdb = query(f"{counts} 'out/{ROWS}' GROUP BY ALL").df()
    frame = pd.read_parquet("out")
    assert set(frame) == {*RESULT, "domain", "day"}
    by_pandas = frame.groupby(["task_domain", frame["day"].astype(str)], observed=True).size()
    assert {(one.domain, one.day): one.n for one in by_duckdb.itertuples()} == by_pandas.to_dict()
    assert set(by_duckdb["domain"]) == {"finance", "code", "Größe/../x"}
    assert all(frame["created_at"].dt.strftime("%Y-%m-%d") == frame["day"].astype(str))
    trace = ReasoningTrace.model_validate_json(frame["trace"].iloc[0])
    assert trace.metadata.quality_score == frame["score"].iloc[0]
    guide = Path(__file__).parents[2] / "examples" / "guides" / "archives.md"
    documented = [
        name.strip(" `") for line in guide.read_text(encoding="utf-8").splitlines()
        if line.startswith("| `") for name in line.split("|")[1].split(",")
    ]  # fmt: skip
    assert documented == [*RESULT, "domain", "day"]


def test_runs_of_one_task_are_compared() -> None:
    answers = ["it grew by 7", "it grew by 7 units", "it shrank"]
    traces = [
        ReasoningTrace.model_validate(
            {**wire(n), "outcome": {"result_summary": answer, "confidence": 0.5},
             "task": {"objective": "compare the last two quarters"}}
        )
        for n, answer in enumerate(answers)
    ]  # fmt: skip
    lines = [*(trace.model_dump_json() for trace in traces), json.dumps(wire(9))]
    Path("in.jsonl").write_text("\n".join(lines))
    score_archive(["in.jsonl"], "out", tools(), block_rows=2)
    rows = rows_of("out")
    runs = [TaskRun(one.id, one.id, RunDigest.of(one).to_bytes()) for one in traces]
    for row, run in zip(rows[:3], runs, strict=True):
        agreement = agreement_of(pairs_of(run, runs))
        assert agreement is not None
        assert row["agreement"] == pytest.approx(agreement.value)
        assert row["agreement_runs"] == agreement.runs == 2
        assert row["agreement_agreeing"] == agreement.agreeing
    assert rows[3]["agreement"] is None


def model(domain: str) -> ConfidenceModel:
    return ConfidenceModel(
        domain=domain, features_version=int(features_of(ReasoningTrace.model_validate(wire(1)))[
            "features_version"]), created_at=datetime(2026, 1, 1, tzinfo=UTC), runs=90, tasks=30,
        base_rate=0.5, auc=0.8, auc_low=0.7, auc_high=0.9, brier=0.2, default_brier=0.3,
        intercept=0.4, terms=(Term("steps", 1.0, 0.5, 0.8),),
    )  # fmt: skip


def test_a_confidence_model_gives_its_domain_worths(archive: Archive, without_model: None) -> None:
    of_code = model("code")
    Path("model.json").write_text(json.dumps(of_code.to_dict()))
    score_archive(archive.files, "out", tools(models={"code": of_code}, agrees=False))
    rows = rows_of("out")
    for row in rows:
        features = features_of(ReasoningTrace.model_validate_json(row["trace"]))
        expected = Worth.of(of_code.confidence(features), row["novelty"]).value
        has_model = row["task_domain"] == "code"
        assert row["worth"] == (pytest.approx(expected) if has_model else None)
        assert row["worth_basis"] == (of_code.source if has_model else None)
    done = cli("score", "one.jsonl", "--out", "out.jsonl", "--model", "model.json")
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert {"worth" in one["breakdown"] for one in lines if one["domain"] == "code"} == {True}


def test_the_command(archive: Archive, without_model: None) -> None:
    words = ("score", *archive.files, "--out", "out", "--workers", "1", "--block-rows", "9")
    for _ in range(2):
        done = cli(*words)
        assert done.returncode == 1, done.stderr
        assert f"scored {len(archive.scores)}, of which passed" in done.stderr
        assert f"skipped {len(archive.bad)}" in done.stderr
    done = cli(*words[:-1], "8")
    assert (done.returncode, "another plan" in done.stderr) == (1, True)
    assert len(rows_of("out")) == len(archive.scores)


def test_without_a_terminal_lines_say_how_far_it_is(
    archive: Archive, without_model: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kp_langchain.cli.sources._SAID_EVERY_S", 0.0)
    done = cli("score", "one.jsonl", "--out", "out", "--workers", "1", "--block-rows", "45")
    assert re.search(r"^read: 1 of 2 [\d,]+ rows/s$", done.stderr, re.MULTILINE)
    assert re.search(r"^write: 6 of 6 [\d,]+ rows/s$", done.stderr, re.MULTILINE)


def test_without_ray_the_extra_is_named(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(KPError, match=r"kp-langchain\[ray\]"):
        score_archive(archive.files, "out", tools(), engine="ray")


@pytest.mark.skipif(not HAS_RAY, reason="needs the extra ray")
def test_a_ray_that_is_not_there_is_an_error(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(KPError, match=r"Ray cannot be started or joined: .*refused"):
        score_archive(archive.files, "out", tools(), engine="ray")


class Changing(Words):
    """Another model in each process, as machines may have them."""

    @property
    def revision(self) -> str:
        return str(os.getpid())


def test_workers_with_another_model_are_refused(archive: Archive) -> None:
    with pytest.raises(KPError, match="every machine needs the same files of the model"):
        score_archive(archive.files, "out", scorer(embedder=Changing()), workers=2)


def test_a_worker_with_a_model_is_refused_where_the_command_has_none() -> None:
    embedded = Scorer(embedder=Words()).embed_many(["a", "b"])
    without = Scorer(embedder=None).embed_many(["a", "b"])
    own = tools(identity=NO_IDENTITY)
    own.check_embedded(without)
    with pytest.raises(KPError, match="every machine needs the same files of the model"):
        own.check_embedded(embedded)


def test_no_key_travels_to_workers(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "kp_" + "0123456789abcdef" * 2
    monkeypatch.setenv("KP_API_KEY", key)
    monkeypatch.setenv("KP_REGISTRY_URL", "https://registry.example.org")
    Path("kp.toml").write_text("[defaults]\nthreshold = 0.5\n")
    job = Job.of(Storage("out"), tools())
    assert key.encode() not in pickle.dumps(job)
    assert b"registry.example.org" not in pickle.dumps(job)
