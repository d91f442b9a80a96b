"""`kp-langchain label` as a user types it, on stores of runs that were really scored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import DomainPolicy, TraceStore
from tests.agents import ASK, handler, searching
from tests.commands import Done, cli, cli_apart
from tests.loopback_registry import LoopbackRegistry
from tests.registry.test_sender import KEY
from tests.unheard import unheard_port

SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
SCORE = 0.48  # between the run as a failure and as a success


def label(*words: str, stdin: str = "") -> Done:
    return cli("label", *words, "--database", "runs.db", stdin=stdin)


def label_apart(*words: str, **environment: str) -> Done:
    """Send in a process of its own, because the sender stays until its process ends."""
    return cli_apart("label", *words, "--database", "runs.db", **environment)


class Runs:
    """The runs of `runs.db`, scored as they really ended."""

    def __init__(self, store: TraceStore) -> None:
        self.store = store
        self.ids: list[str] = []
        self.run_ids: list[str] = []

    def add(self, number: int, *, visibility: Any = "private", **options: Any) -> None:
        policy = DomainPolicy(threshold=SCORE, visibility=visibility, keep="all")
        watching = handler("finance", store=self.store, policy=policy, **options)
        for _ in range(number):
            # One question asked again would not be new, and would not pass.
            ask = {"messages": [("user", f"question {len(self.ids)}")]}
            searching().invoke(ask, {"callbacks": [watching]})
            scored = watching.last()
            assert scored is not None
            self.ids.append(scored.trace.id)
            self.run_ids.append(str(scored.run_id))

    def decisions(self) -> list[str]:
        found = [self.store.get(one) for one in self.ids]
        return [run.decision for run in found if run is not None]


@pytest.fixture
def runs() -> Iterator[Runs]:
    with TraceStore("runs.db") as store:
        yield Runs(store)


def test_the_scores_of_these_runs_lie_on_both_sides_of_the_threshold(runs: Runs) -> None:
    runs.add(1)
    runs.add(1, outcome=lambda _: {"success": False, "confidence": 0.0})
    assert runs.decisions() == ["contributed", "below_threshold"]


@pytest.mark.parametrize("which", ["ids", "run_ids", "beginning"])
def test_one_run_by_any_of_its_ids(runs: Runs, which: str) -> None:
    runs.add(1)
    wanted = {
        "ids": runs.ids[0],
        "run_ids": runs.run_ids[0],
        "beginning": runs.ids[0].removeprefix("kp:trace:")[:13],
    }[which]
    done = label(wanted, "--failure", "--note", f"wrong, see {SECRET}")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    after = runs.store.get(runs.ids[0])
    assert after is not None
    assert f"-> {after.score:.3f}  kept -> below_threshold" in first
    assert "failure 0.00" in first
    assert second == "Labelled 1, of which now kept 0, withdrawn 1; unknown 0."
    assert runs.decisions() == ["below_threshold"]
    (verdict,) = [v for v in runs.store.verdicts(runs.ids[0]) if v.source == "label"]
    assert (verdict.success, verdict.confidence) == (False, None)
    assert verdict.note is not None
    assert SECRET not in verdict.note
    assert after.score < SCORE

    done = label(wanted, "--success", "--confidence", "0.9")
    assert "below_threshold -> kept" in done.stdout
    assert "success 0.90" in done.stdout
    assert runs.decisions() == ["contributed"]


def test_json_is_all_that_stands_on_stdout(runs: Runs) -> None:
    runs.add(1)
    done = label(runs.ids[0], "--failure", "--json")
    (line,) = done.stdout.splitlines()
    change = json.loads(line)
    assert change["trace_id"] == runs.ids[0]
    assert (change["decision_before"], change["decision"]) == ("contributed", "below_threshold")
    assert (change["success_before"], change["success"]) == (True, False)
    assert "Labelled 1" in done.stderr


def test_a_file_of_json_lines(runs: Runs) -> None:
    runs.add(5)
    values: list[Any] = [False, "no", 0, "Failure", "true"]
    rows = [
        {name: id_, "success": value, "confidence": confidence, "ignored": {}}
        for name, id_, value, confidence in zip(
            ["id", "trace_id", "run_id", "id", "id"],
            [*runs.ids[:2], *runs.run_ids[2:4], runs.ids[4]],
            values,
            [0.1, "0.1", "", None, " 0.9 "],
            strict=True,
        )
    ]
    text = "\ufeff" + "\n\n".join(json.dumps(row) for row in rows)
    Path("verdicts.jsonl").write_text(text, encoding="utf-8")
    done = label("--from", "verdicts.jsonl")
    assert done.returncode == 0, done.stderr
    assert "Labelled 5, of which now kept 0, withdrawn 4; unknown 0." in done.stdout
    found = [runs.store.get(one) for one in runs.ids]
    assert [run.success for run in found if run] == [False] * 4 + [True]
    assert [run.confidence for run in found if run] == [0.1, 0.1, 0.0, 0.0, 0.9]


@pytest.mark.parametrize(
    ("head", "line", "encoding"),
    [
        ("id,success,confidence,note", '{},no,0.1,"two\nlines, and ""more"""', "utf-8"),
        ("Run_ID;Success;Confidence;Note", '{};NO;0.1;"two\nlines, and ""more"""', "utf-8-sig"),
        ("note\tid \tsuccess\tconfidence", '"two\nlines, and ""more"""\t{}\t0\t0.1', "utf-8"),
    ],
)
def test_a_csv_file(runs: Runs, head: str, line: str, encoding: str) -> None:
    runs.add(2)
    lines = [head, *(line.format(one) for one in runs.run_ids), ""]
    Path("verdicts.CSV").write_bytes("\r\n".join(lines).encode(encoding))
    done = label("--from", "verdicts.CSV")
    assert done.returncode == 0, done.stderr
    assert "Labelled 2, of which now kept 0, withdrawn 2; unknown 0." in done.stdout
    (verdict,) = [v for v in runs.store.verdicts(runs.ids[0]) if v.source == "label"]
    assert verdict.note == 'two\nlines, and "more"'
    assert verdict.confidence == 0.1


def test_standard_input(runs: Runs) -> None:
    runs.add(1)
    row = json.dumps({"id": runs.ids[0], "success": False})
    assert "withdrawn 1" in label("--from", "-", stdin=row).stdout


def test_every_bad_line_is_told_and_the_others_count(runs: Runs) -> None:
    runs.add(1)
    (one,) = runs.ids
    lines = [
        "{",
        "[1]",
        '{"success": true}',
        json.dumps({"id": one, "success": "perhaps"}),
        json.dumps({"id": one, "success": 2}),
        json.dumps({"id": one}),
        json.dumps({"id": one, "success": True, "confidence": 7}),
        f'{{"id": "{one}", "confidence": NaN}}',
        json.dumps({"id": one, "success": True, "note": 7}),
        json.dumps({"id": "nothing", "success": True}),
        json.dumps({"id": 7, "success": True}),
        "[" * 100_000,
        '{"id": "\\ud800", "success": true}',
        json.dumps({"id": one, "success": False}),
    ]
    Path("v.jsonl").write_text("\n".join(lines))
    done = label("--from", "v.jsonl")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Labelled 1, of which now kept 0, withdrawn 1; unknown 2, skipped 11." in (done.stdout)
    told = dict(line.split(": ", 1) for line in done.stderr.splitlines() if line.startswith("v."))
    assert list(told) == [f"v.jsonl:{number}" for number in range(1, len(lines))]
    assert "perhaps" in told["v.jsonl:4"]
    assert "0 to 1" in told["v.jsonl:7"]
    assert "no run 'nothing'" in told["v.jsonl:10"]


def test_every_bad_line_of_a_csv_is_told_and_the_others_count(runs: Runs) -> None:
    runs.add(1)
    (one,) = runs.ids
    lines = [
        b"id,success",
        f"{one},maybe".encode(),
        f"{one},yes,more".encode(),
        b",yes",
        b"\xff\xfe,yes",
        b'"broken"x,yes',
        b"only",
        b"",
        f"{one},no".encode(),
    ]
    Path("v.csv").write_bytes(b"\n".join(lines))
    done = label("--from", "v.csv")
    assert done.returncode == 1
    assert "withdrawn 1; unknown 1, skipped 5." in done.stdout
    told = [line.split(": ")[0] for line in done.stderr.splitlines()]
    assert told == [f"v.csv:{number}" for number in range(2, 8)]


def test_a_beginning_that_means_several_is_told(runs: Runs) -> None:
    runs.add(20)
    first = [one.removeprefix("kp:trace:")[0] for one in runs.ids]
    common = max(first, key=first.count)  # of 20 ids, two begin alike
    done = label("--from", "-", stdin=json.dumps({"id": common, "success": False}))
    assert done.returncode == 1
    assert "stdin:1: " in done.stderr
    assert "may mean several" in done.stderr
    assert "unknown 1." in done.stdout


def test_a_run_whose_trace_is_gone_cannot_be_contributed_and_is_told(runs: Runs) -> None:
    policy = DomainPolicy(threshold=SCORE, keep_days=0)
    watching = handler("finance", store=runs.store, policy=policy, outcome=lambda _: False)
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    done = label(scored.trace.id, "--success")
    assert "below_threshold, because its trace is no longer kept" in done.stdout
    assert "now kept 0" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "give one of ID, --from FILE, --from-langsmith"),
        (["x", "--from", "v.jsonl"], "give one of"),
        (["x", "--langsmith"], "give one of"),
        (["x"], "--success or --failure"),
        (["x", "--note", "y"], "--success or --failure"),
        (["x", "--success", "--confidence", "2"], "confidence"),
        (["--from", "v.jsonl", "--success"], "belong to one ID"),
        (["--from", "nothing.jsonl"], "nothing.jsonl is not a file"),
        (["--from", "v.txt"], "is not a .csv, .jsonl, .ndjson file"),
        (["x", "--success", "--key", "k"], "--key and --since belong to --from-langsmith"),
    ],
)
def test_wrong_usage(words: list[str], told: str) -> None:
    TraceStore("runs.db").count()
    Path("v.jsonl").touch()
    Path("v.txt").touch()
    done = label(*words)
    assert done.returncode == 2
    assert told in " ".join(done.stderr.replace("│", "").split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing", "--success"], "no run 'nothing' in"),
        (["--from", "empty.csv"], "must name the columns"),
        (["--from", "other.csv"], "begins with 'name,age'"),
    ],
)
def test_an_error_is_one_message_and_status_1(words: list[str], told: str) -> None:
    TraceStore("runs.db").count()
    Path("empty.csv").touch()
    Path("other.csv").write_text("name,age\nx,1\n")
    done = label(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert told in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_what_passes_now_is_sent_now_and_what_does_not_is_withdrawn(runs: Runs) -> None:
    with LoopbackRegistry() as registry:
        settings = {"KP_REGISTRY_URL": registry.url, "KP_API_KEY": KEY}
        runs.add(2, visibility="network", outcome=lambda _: {"success": False, "confidence": 0.0})
        done = label_apart(runs.ids[0], "--success", **settings)
        assert done.returncode == 0, done.stderr
        assert "now contributed 1" in done.stdout
        assert f"Sent or withdrawn at {registry.url}: 1 of 1." in done.stdout
        assert list(registry.units) == runs.ids[:1]
        done = label_apart(runs.ids[0], "--failure", **settings)
        assert "withdrawn 1" in done.stdout
        assert "1 of 1." in done.stdout
        assert registry.units == {}


def test_what_cannot_be_sent_now_is_told(runs: Runs) -> None:
    runs.add(1, visibility="network", outcome=lambda _: {"success": False, "confidence": 0.0})
    with unheard_port() as port:
        settings = {"KP_REGISTRY_URL": f"http://127.0.0.1:{port}", "KP_API_KEY": KEY}
        done = label_apart(runs.ids[0], "--success", "--timeout", "0.5", **settings)
    assert done.returncode == 0
    assert "0 of 1." in done.stdout
    assert "kp-langchain outbox send" in done.stdout
    assert runs.store.outbox.counts()["pending"] == 1
    done = label_apart(runs.ids[0], "--success", KP_DISABLED="1", **settings)
    assert "KP_DISABLED is set" in done.stdout
    done = label_apart(runs.ids[0], "--success")
    assert "none is configured" in done.stdout


def test_a_file_that_is_read_again_gives_no_verdict_twice(tmp_path: Path) -> None:
    with TraceStore("runs.db") as store:
        watching = handler(store=store, policy=DomainPolicy(threshold=0.0))
        searching().invoke(ASK, {"callbacks": [watching]})
        scored = watching.last()
    assert scored is not None
    line = json.dumps({"trace_id": scored.trace.id, "success": True, "note": "mail a@b.org"})
    Path("verdicts.jsonl").write_text(f"{line}\n")
    words = ("label", "--from", "verdicts.jsonl", "--database", "runs.db")
    assert "Labelled 1, " in cli(*words).stdout
    again = cli(*words)
    assert (again.returncode, "Labelled 0, " in again.stdout) == (0, True)
    assert "given before 1" in again.stdout
    with TraceStore("runs.db") as store:
        assert len(store.verdicts(scored.trace.id)) == 1
        store.report_outcome(scored.trace.id, success=False)
    assert "Labelled 1, " in cli(*words).stdout  # somebody said otherwise meanwhile
