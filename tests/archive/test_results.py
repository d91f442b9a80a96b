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
from tests.archive.conftest import Archive, query, tools
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
    none = cli("review", "stats", "--archive", scored, "--domain", "none")
    assert none.stdout.strip() == "No run matches in scored."
    report = cli("report", "--archive", scored, "--html", "page.html", "--limit", "20")
    assert "Wrote 20 of 149 runs" in report.stdout
    assert "scored" in Path("page.html").read_text(encoding="utf-8")


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


def test_an_archive_that_is_not_complete(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise KPError("interrupted")

    monkeypatch.setattr("kp_langchain.archive.run.write_file", fail)
    with pytest.raises(KPError, match="interrupted"):
        score_archive(archive.files, "scored", tools())
    with pytest.raises(KPError, match="is not complete"):
        Results("scored")
