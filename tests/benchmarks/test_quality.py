"""The evaluation with labelled runs: what it reads, how it counts, cases with known answers."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import trace_from_messages
from tests.benchmarks.quality import failed_calls, runs
from tests.benchmarks.quality.ranking import Ranking
from tests.benchmarks.quality.selection import WORTH
from tests.benchmarks.quality.tables import renewed

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = [{"role": "user", "content": "What is 6 x 7?"}, {"role": "assistant", "content": "42"}]


def row(**changed: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "success": True, "source": "s", **changed}


def written(path: Path, lines: Iterable[object]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_messages_and_traces_are_read(tmp_path: Path) -> None:
    trace = trace_from_messages(MESSAGES, domain="finance", success=False, confidence=0.1)
    wire = json.loads(trace.model_dump_json())
    told: list[str] = []
    file = written(
        tmp_path / "runs.jsonl",
        [
            row(domain="code", task="  The  Task "),
            "",
            {"trace": wire, "success": False, "source": "t"},
            row(success=None),
        ],
    )
    found = runs.read([file], told.append)
    assert told == []
    assert found.skipped == 0
    assert found.unlabelled == {"s": 1}
    first, second = found.labelled
    assert (first.source, first.task, first.success) == ("s", "the task", True)
    assert first.trace.metadata.task_domain == "code"
    assert (second.source, second.task, second.success) == ("t", "what is 6 x 7?", False)
    assert second.trace.metadata.task_domain == "finance"
    # What it was reported to be may be the truth; what counts is what it looked like.
    assert second.trace.metadata.success is True
    assert second.trace.outcome.confidence == 0.8


def test_a_task_may_be_named_elsewhere(tmp_path: Path) -> None:
    lines = [row(meta={"id": " A"}), row(meta={}), row(meta=3), row(), row(meta={"id": 7})]
    told: list[str] = []
    found = runs.read([written(tmp_path / "runs.jsonl", lines)], told.append, "meta.id")
    assert [one.task for one in found.labelled] == ["a", *["what is 6 x 7?"] * 3]
    assert "id is '7'; a text is needed" in told[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting"),
        ("[]", "a list"),
        ("[" * 100_000, "recursion"),
        (row(source=None), "no source"),
        (row(source=" "), "source is ' '"),
        (row(source=7), "source is '7'"),
        (row(success="yes"), "success is 'yes'"),
        (row(success=1), "success is 1"),
        (row(domain=[]), "domain is"),
        (row(task={}), "task is"),
        ({"success": True, "source": "s"}, "either messages or trace"),
        (row(trace={}), "either messages or trace"),
        (row(messages=[]), "no model answer"),
        (row(messages=3), "cannot be read"),
        (row(messages=[{"role": "assistant", "content": "a", "tool_calls": "x"}]), "cannot be"),
        ({"trace": {}, "success": True, "source": "s"}, "metadata"),
        ({"trace": "x", "success": True, "source": "s"}, ""),
        ("\x00\x01", "Expecting"),
    ],
)
def test_a_line_that_is_no_run_is_told_and_skipped(
    tmp_path: Path, line: object, reason: str
) -> None:
    file = written(tmp_path / "runs.jsonl", [row(), line, row()])
    told: list[str] = []
    found = runs.read([file], told.append)
    assert len(found.labelled) == 2
    assert found.skipped == 1
    (message,) = told
    assert message.startswith(f"{file}:2: ")
    assert reason in message
    assert len(message) < len(str(file)) + 320


def test_lines_that_are_no_utf8_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_bytes(b'{"\xff": 1}\n' + json.dumps(row()).encode())
    told: list[str] = []
    assert len(runs.read([file], told.append).labelled) == 1
    assert len(told) == 1


def test_a_compressed_file_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    lines = [json.dumps(row(task=random.Random(at).randbytes(50).hex())) for at in range(2000)]
    packed = gzip.compress("\n".join(lines).encode())
    whole, half, other = (tmp_path / name for name in ("a.jsonl.gz", "b.jsonl.gz", "c.jsonl.gz"))
    whole.write_bytes(packed)
    half.write_bytes(packed[: len(packed) // 2])
    other.write_bytes(b"not compressed at all")
    told: list[str] = []
    assert len(runs.read([whole], told.append).labelled) == 2000
    assert told == []
    found = runs.read([half, other], told.append)
    assert 0 < len(found.labelled) < 2000
    assert found.skipped == len(told) == 2
    assert told[0].startswith(f"{half}:{len(found.labelled) + 1}: ")
    assert told[1].startswith(f"{other}:1: ")


columns = st.lists(
    st.tuples(st.integers(0, 4), st.booleans(), st.sampled_from("abc")), min_size=1, max_size=30
)


@given(columns)
def test_auc_is_the_share_of_pairs_ranked_right(rows: list[tuple[int, bool, str]]) -> None:
    values, successes, tasks = map(list, zip(*rows, strict=True))
    ranking = Ranking(successes, tasks)

    def share(pairs: Iterable[tuple[tuple[int, bool, str], tuple[int, bool, str]]]) -> Any:
        right = [(good[0] > bad[0]) + (good[0] == bad[0]) / 2 for good, bad in pairs]
        return pytest.approx(sum(right) / len(right)) if right else None

    pairs = [(one, other) for one, other in product(rows, rows) if one[1] and not other[1]]
    found = ranking.auc(values)
    assert (found and found["value"]) == share(pairs)
    same = [(one, other) for one, other in pairs if one[2] == other[2]]
    assert ranking.pairs() == len(same)
    assert ranking.within_task(values) == share(same)


@given(columns)
def test_the_top_tenth_counts_equal_runs_in_part(rows: list[tuple[int, bool, str]]) -> None:
    values, successes, tasks = map(list, zip(*rows, strict=True))
    ranking = Ranking(successes, tasks)
    assert ranking.top([0.0] * len(rows)) == pytest.approx(ranking.base_rate)
    assert ranking.top(list(map(float, successes))) >= ranking.base_rate - 1e-9
    assert 0 <= ranking.top(values) <= 1 + 1e-9
    assert 1 <= ranking.tasks_in_top(values) <= max(1, round(len(rows) / 10))


@given(columns, st.randoms(use_true_random=False))
def test_a_gain_turns_around_with_its_columns(
    rows: list[tuple[int, bool, str]], draw: random.Random
) -> None:
    values, successes, tasks = map(list, zip(*rows, strict=True))
    others = draw.sample(values, len(values))
    ranking = Ranking(successes, tasks)
    there, back = ranking.gain(values, others), ranking.gain(others, values)
    assert (there is None) == (back is None) == (len(set(successes)) < 2)
    if there and back:
        assert there["low"] <= there["value"] <= there["high"]
        assert [there["low"], there["high"]] == pytest.approx([-back["high"], -back["low"]])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """What comes of two sources: in one the answer tells the truth, in the other nothing does."""
    out = tmp_path_factory.mktemp("quality")
    draw = random.Random(8)
    lines: list[object] = ["no run", row(source="unknown", success=None)]
    for source, says in ("telling", bool), ("silent", lambda _: draw.random() < 0.5):
        lines += [made(source, at, draw.random() < 0.5, says) for at in range(120)]
    lines.append(made("lonely", 0, True, bool))
    file = written(out / "runs.jsonl", lines)
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.quality", file, "--no-embedder", "--draws", "2",
         "--curve", "40", "1000", "--label-draws", "6", "--out", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{file}:1: Expecting value" in done.stderr
    report: dict[str, Any] = json.loads((out / "quality.json").read_text())
    return report, done.stdout, out


def made(source: str, at: int, success: bool, says: Callable[[bool], bool]) -> dict[str, Any]:
    """A run that looks for something and says that it found it, or that it did not."""
    answer = "Done, this is it." if says(success) else "I am sorry, I was not able to find it."
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "search", "arguments": json.dumps({"q": at})},
    }
    messages = [
        {"role": "user", "content": f"Find number {at // 2}"},
        {"role": "assistant", "content": "I search.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": f"page {at}"},
        {"role": "assistant", "content": answer},
    ]
    return {"source": source, "messages": messages, "success": success}


def test_a_feature_that_tells_the_truth_is_found(
    evaluated: tuple[dict[str, Any], str, Path],
) -> None:
    report, printed, _ = evaluated
    telling = report["sources"]["telling"]
    assert telling["auc"]["score"]["value"] == pytest.approx(0.5)
    assert telling["auc"]["true_outcome"]["value"] == 1.0
    assert telling["runs"] == 120
    assert telling["tasks"] == 60
    learned = telling["learned"]["200"]
    assert learned["refused"] == 0
    assert learned["model_auc"]["value"] > 0.95
    assert learned["brier"] < learned["default_brier"]
    before, model, worth = (learned["score"][at] for at in ("before", "model", "worth"))
    assert before["auc"]["value"] == pytest.approx(0.5)
    assert model["auc"]["value"] > 0.95
    assert model["gain"]["low"] > 0.3
    assert model["top_lift"]["low"] > 1.3
    assert worth["auc"]["value"] > 0.95
    assert worth["top_lift"]["low"] > 1.3
    assert learned["worth_of_refused_too"] == {
        key: value for key, value in worth.items() if key != "gain"
    }
    assert "| telling | 120 |" in printed


def test_a_model_of_chance_is_refused_and_changes_nothing(
    evaluated: tuple[dict[str, Any], str, Path],
) -> None:
    report, printed, _ = evaluated
    learned = report["sources"]["silent"]["learned"]["200"]
    assert learned["refused"] == 1
    assert learned["model_auc"]["low"] < 0.5 < learned["model_auc"]["high"]
    before = learned["score"]["before"]
    for stage in ("model", "worth"):
        assert learned["score"][stage]["auc"] == before["auc"]
        assert learned["score"][stage]["gain"]["value"] == 0
    assert learned["worth_of_refused_too"]["auc"] != before["auc"]
    assert "| 1, 0 of 1 |" in printed


def test_true_labels_are_told_from_random_ones(
    evaluated: tuple[dict[str, Any], str, Path],
) -> None:
    """The labels of one source say what its runs say; those of the other say nothing."""
    report, printed, _ = evaluated
    assert set(report["installed"]) == {"30", "50", "100"}  # of 120 runs
    for one in report["installed"].values():
        assert [one[labels]["draws"] for labels in ("true", "random", "length")] == [12, 24, 6]
        assert one["true"]["installed"] >= 6
        assert one["random"]["installed"] <= 6
        assert one["length"]["installed"] == one["length"]["warned"] >= 1
    assert report["installed"]["50"]["true"]["auc_of_installed"] > 0.9
    assert "### Models installed from true and from random labels" in printed


def test_models_are_held_against_runs_that_changed_and_against_others(
    evaluated: tuple[dict[str, Any], str, Path],
) -> None:
    report, printed, _ = evaluated
    found = report["promises"]["telling"]
    assert found["models"] == 6  # of 50 verdicts: of 120 runs too few are left after 100
    assert found["broken"]["as before"] <= 1
    assert found["broken"]["opposite"] == 6
    assert "### Models said to hold no longer" in printed


def test_later_runs_of_other_tasks_are_selected_by_every_form(
    evaluated: tuple[dict[str, Any], str, Path],
) -> None:
    report, printed, _ = evaluated
    selection = report["selection"]
    assert selection["sources"]["telling"] == {
        "draws": 2, "models": {"accepted": 2}, "gates": 2, "labelled": 60, "further": 60,
    }  # fmt: skip
    assert selection["sources"]["silent"]["models"] == {"refused": 2}
    assert selection["sources"]["silent"]["gates"] == 0
    in_use = selection["forms"]["what `calibrate --write` leaves as the gate"]["sources"]
    assert in_use["telling"] == selection["forms"][WORTH]["sources"]["telling"]
    as_it_is = selection["forms"]["score as it is"]["sources"]
    assert in_use["silent"] == as_it_is["silent"]
    for form, one in selection["forms"].items():
        lift = one["sources"]["telling"]["lift"]
        assert (lift["low"] > 1.3) is (form != "score as it is"), form
        assert 0 <= one["sources"]["telling"]["solved_per_run"]["value"] <= 1
        assert f"| {form} |" in printed
    best = selection["forms"][selection["best"]]
    assert best["behind_best"] == {"value": 0, "low": 0, "high": 0}
    assert best["mean"]["lift"]["value"] == max(
        one["mean"]["lift"]["value"] for one in selection["forms"].values()
    )


def test_a_pass_rate_is_held_where_a_fixed_threshold_lets_half_of_the_runs_pass(
    evaluated: tuple[dict[str, Any], str, Path],
) -> None:
    report, printed, _ = evaluated
    kept = report["pass_rates"]["telling"]["kept"]
    for way, shares in kept.items():
        assert len(shares) == 2
        if way.startswith("pass rate"):
            assert all(share == pytest.approx(0.1, abs=0.05) for share in shares)
        else:  # half of the runs look alike, and are as sure as the surest
            assert min(shares) > 0.4
    assert "where 10% is promised" in printed


def test_what_is_too_little_is_counted_and_no_more(
    evaluated: tuple[dict[str, Any], str, Path],
) -> None:
    report, printed, _ = evaluated
    assert (report["labelled"], report["skipped"], report["unlabelled"]) == (241, 1, {"unknown": 1})
    assert "Runs: 241 labelled, 1 not, 1 bad." in printed
    lonely = report["sources"]["lonely"]
    assert lonely["runs"] == 1
    assert lonely["auc"]["score"] is None
    assert "learned" not in lonely
    assert "too few" in printed


def test_tables_of_the_same_head_are_renewed() -> None:
    old = "# T\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n| 3 | 4 |\n\nEnd.\n| a | c |\n| - | - |\n"
    new = "### What it is\n\n| a | b |\n| --- | ---: |\n| 5 | \\g<0> |\n"
    assert renewed(old, [new]) == (
        "# T\n\n| a | b |\n| --- | ---: |\n| 5 | \\g<0> |\n\nEnd.\n| a | c |\n| - | - |\n"
    )


@pytest.mark.skipif(not find_spec("matplotlib"), reason="matplotlib comes with the bench extra")
def test_the_plot_names_the_sources(evaluated: tuple[dict[str, Any], str, Path]) -> None:
    drawn = (evaluated[2] / "quality.svg").read_text()
    assert "telling" in drawn
    assert "silent" in drawn
    assert len(drawn) < 60_000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.jsonl"], "no such file"),
        (["README.md"], "no labelled run"),
        (["README.md", "--draws", "0"], "numbers above 0"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.quality", *arguments, "--out", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_failed_calls_are_held_against_the_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def messages(output: str) -> list[dict[str, Any]]:
        function = {"name": "search", "arguments": "{}"}
        return [
            MESSAGES[0],
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c", "type": "function", "function": function}
            ]},
            {"role": "tool", "tool_call_id": "c", "content": output},
            MESSAGES[1],
        ]  # fmt: skip

    lines = [
        row(messages=messages("Error: nothing there"), success=False),
        row(messages=messages("it is not missing"), success=True),
        row(messages=messages("it does not matter"), success=False),
    ]
    failed_calls.main([written(tmp_path / "runs.jsonl", lines)])
    assert capsys.readouterr().out.splitlines()[2:] == ["| s | 3 | 33.3 % | 0.00 | 0.50 | 0.750 |"]
