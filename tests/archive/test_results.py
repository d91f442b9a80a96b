"""Statistics and reports read an archive, as they read a store with the same runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import TraceStore
from kp_langchain.archive.results import Results
from kp_langchain.archive.run import score_archive
from kp_langchain.errors import KPError
from kp_langchain.review import stats_of
from tests.archive.conftest import Archive, query, tools, wire
from tests.commands import cli


@pytest.fixture
def scored(archive: Archive) -> str:
    score_archive(archive.files, "scored", tools(), block_rows=40)
    return "scored"


@pytest.fixture
def stored(scored: str) -> Iterator[TraceStore]:
    """A store with all runs of the archive."""
    with Results(scored).newest(1000) as store:
        yield store


def plain(figures: Any) -> list[dict[str, Any]]:
    """Statistics without what only a store knows, and what depends on the order of the runs."""
    every = [one.to_dict() for one in stats_of(figures)]
    for one in every:
        del one["usage"], one["threshold"]
        one["parts"] = {part.pop("name"): part for part in one["parts"]}
        one["rules"] = {rule.pop("name"): rule for rule in one["rules"]}
        one["thresholds"] = sorted(one["thresholds"])
        del one["explanation"]
    # Sums of floats depend on the order.
    rounded: list[dict[str, Any]] = json.loads(
        json.dumps(every), parse_float=lambda text: round(float(text), 9)
    )
    return rounded


def test_statistics_are_those_of_a_store_with_the_same_runs(
    archive: Archive, scored: str, stored: TraceStore
) -> None:
    of_archive, of_store = plain(Results(scored).figures()), plain(stored.domain_figures())
    assert of_archive == of_store
    assert sum(one["runs"] for one in of_archive) == len(archive.scores)
    assert any(one["compared"] for one in of_archive)


def test_some_of_the_runs(scored: str, stored: TraceStore) -> None:
    since = datetime(2026, 2, 2, 1, tzinfo=UTC)
    for filters in (
        {"domain": "Größe/../x"},
        {"since": since, "until": since + timedelta(minutes=20)},
        {"domain": "code", "since": since},
        {"domain": "code", "until": datetime(2020, 1, 1, tzinfo=UTC)},
        {"domain": "no such"},
    ):
        results, number = Results(scored, **filters), stored.count(**filters)  # type: ignore[arg-type]
        assert results.count() == number
        assert sum(one["runs"] for one in results.figures().values()) == number
        with results.newest(5) as store:
            newest = [run.trace_id for run in store.runs(limit=100)]
        assert newest == [run.trace_id for run in stored.runs(limit=5, **filters)]  # type: ignore[arg-type]


def test_a_run_is_as_it_was_scored(scored: str, stored: TraceStore) -> None:
    rows = query(f"SELECT * FROM '{scored}/*/*/*.parquet'").df().to_dict("records")  # noqa: S608
    for row in rows:
        run = stored.get(row["trace_id"])
        assert run is not None
        assert (run.score, run.threshold) == (row["score"], row["threshold"])
        assert (run.decision == "kept") == row["passed"]
        assert run.breakdown.to_dict() == json.loads(row["breakdown"])
        assert run.breakdown.novelty.value == row["novelty"]
        assert list(run.breakdown.flags) == list(row["flags"])


def test_the_commands(archive: Archive, scored: str) -> None:
    stats = cli("review", "stats", "--archive", scored, "--json")
    assert sum(json.loads(line)["runs"] for line in stats.stdout.splitlines()) == len(
        archive.scores
    )
    assert "code keeps" in cli("review", "stats", "--archive", scored).stdout
    of_one = cli("review", "stats", "--archive", scored, "--domain", "code").stdout
    assert "recovered errors" in of_one
    assert "label next" not in of_one
    none = cli("review", "stats", "--archive", scored, "--domain", "none")
    assert none.stdout.strip() == "No run matches in scored."
    report = cli("report", "--archive", scored, "--html", "page.html", "--limit", "20")
    assert "Wrote 20 of 149 runs" in report.stdout
    assert "label import" not in report.stdout
    assert Path("page.html").is_file()


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["review", "stats", "--archive", "scored", "--database", "x.db"], 2, "give one of"),
        (["review", "stats", "--archive", "scored", "--where", "user=ann"], 2, "not by user"),
        (["report", "--archive", "scored", "--serve"], 2, "--archive is for --html"),
        (["report", "--archive", "none", "--html", "page.html"], 1, "none holds no results"),
    ],
)
def test_what_is_refused(scored: str, words: list[str], status: int, message: str) -> None:
    done = cli(*words)
    assert (done.returncode, message in done.stderr) == (status, True)


def test_no_more_than_asked_of_runs_that_began_at_once() -> None:
    traces = [wire(number) for number in range(12)]
    for number, trace in enumerate(traces):
        trace["metadata"]["created_at"] = f"2026-02-0{1 + number // 4}T00:00:00Z"
    Path("in.jsonl").write_text("\n".join(map(json.dumps, traces)))
    score_archive(["in.jsonl"], "scored", tools())
    with Results("scored").newest(6) as store:
        days = sorted(run.created_at.day for run in store.runs(limit=100))
    assert days == [2, 2, 3, 3, 3, 3]


def test_a_lost_or_broken_file_is_an_error(scored: str) -> None:
    file = max(Path(scored).glob("domain=*/*/*.parquet"), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(b"PAR1")
    for name in ("review", "report"):
        words = ["stats"] if name == "review" else ["--html", "page.html"]
        done = cli(name, *words, "--archive", scored)
        assert (done.returncode, "cannot be read" in done.stderr) == (1, True)
    file.unlink()
    with pytest.raises(KPError, match="has lost files"):
        Results(scored)
    file.write_bytes(content)
    for plan in ("null", "{", '{"version": 0}'):
        Path(scored, "_work/plan.json").write_text(plan)
        with pytest.raises(KPError, match=r"plan\.json cannot be read"):
            Results(scored)


def test_an_archive_that_is_not_complete(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise KPError("interrupted")

    monkeypatch.setattr("kp_langchain.archive.run.write_file", fail)
    with pytest.raises(KPError, match="interrupted"):
        score_archive(archive.files, "scored", tools())
    with pytest.raises(KPError, match="is not complete"):
        Results("scored")
