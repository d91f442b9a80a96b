"""`kp-langchain report` as a user types it: the file, the served page, and what is in them."""

from __future__ import annotations

import json
import random
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kp_langchain import Verdict
from kp_langchain.gate.run import ShownTrace
from kp_langchain.run_keys import RunKeys
from kp_langchain.scoring.evidence import Worth
from tests.commands import Done, cli
from tests.report.pages import Served, Store, searches, step

Serve = Callable[[], Served]


def report(*words: str) -> Done:
    return cli("report", *words, "--database", "runs.db")


# ------------------------------------------------------------------ the file


def test_the_file_is_private_and_the_command_says_what_it_holds(store: Store) -> None:
    store.add("buy bread")
    store.add(domain="code", keys=RunKeys(session="s7"))
    done = report("--html", "page.html")
    assert done.returncode == 0, done.stderr
    assert f"Wrote 2 of 2 runs to {Path('page.html').absolute()}" in done.stdout
    assert "redacted texts" in done.stdout
    assert stat.S_IMODE(Path("page.html").stat().st_mode) == 0o600
    assert "Wrote 1 of 1 run " in report("--html", "page.html", "--domain", "code").stdout
    assert "Wrote 1 of 2 runs" in report("--html", "page.html", "--limit", "1").stdout
    assert "Wrote 2 of 2 runs" in report("--html", "page.html", "--since", "1h").stdout
    assert "Wrote 0 of 0 runs" in report("--html", "page.html", "--since", "2999-01-01").stdout
    assert "Wrote 0 of 0 runs" in report("--html", "page.html", "--until", "2020-01-01").stdout
    assert "Wrote 1 of 1 run " in report("--html", "page.html", "--search", "bread").stdout
    assert "Wrote 1 of 1 run " in report("--html", "page.html", "--where", "session=s7").stdout
    assert [path.name for path in Path().glob("*page*")] == ["page.html"]


def test_only_an_earlier_report_is_replaced(store: Store) -> None:
    store.add()
    Path("notes.html").write_text("<!doctype html>\nmine")
    Path("folder").mkdir()
    Path("link").symlink_to("nowhere")
    for file, reason in (
        ("notes.html", "notes.html exists and is no report"),
        ("folder", "folder exists and is no report"),
        ("link", "link exists and is no report"),
        ("missing/page.html", "there is no folder missing"),
        ("-", ""),
        (".", ""),
    ):
        done = report("--html", file)
        assert done.returncode in (1, 2)
        assert reason in done.stderr
        assert "<html" not in done.stdout
    assert Path("notes.html").read_text() == "<!doctype html>\nmine"
    Path("empty.html").touch()
    for _ in range(2):
        assert report("--html", "empty.html").returncode == 0


def test_a_store_that_cannot_be_read_is_an_error_as_elsewhere(store: Store) -> None:
    Path("junk.db").write_text("no database " * 1000)
    store.add()
    store.run_sql(("UPDATE runs SET created_at = 'no time'",))
    for name, message in (
        ("runs.db", "cannot read the trace store"),
        ("typo.db", "there is no database at"),
        ("junk.db", "no SQLite database"),
    ):
        done = cli("report", "--html", "page.html", "--database", name)
        assert done.returncode == 1
        assert message in done.stderr
        assert not Path("page.html").exists()


# ------------------------------------------------------------------ what is in it


def test_the_policy_forbids_all_but_the_own_script_and_style(store: Store) -> None:
    store.add()
    page = store.page()
    head = page.split("<style>")[0]
    assert "default-src 'none'; script-src 'sha256-" in head
    assert "base-uri 'none'; form-action 'none'" in head
    assert "unsafe" not in head
    assert "connect-src" not in head
    for part in ("http://", "https://", "eval("):
        assert part not in page
    script = page.split("<script>")[-1].split("</script>")[0]
    assert len(script.encode()) <= 56_000
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "import"):
        assert word not in script


def test_a_domain_says_what_examples_do_in_all_its_runs(store: Store) -> None:
    for at in range(40):
        shown = (ShownTrace("kp:trace:example", 1, 0.8, held_out=at >= 20, is_drawn=True),)
        store.add(f"task {at}", shown=shown, verdict=Verdict(success=at > 20), success=at > 20)
    store.add("fix", domain="code")

    def effects() -> dict[str, Any]:
        return {domain["name"]: domain["effect"] for domain in store.read()[0]["domains"]}

    assert effects()["code"] is None
    effect = effects()["finance"]
    proof, *_, reason = effect["lines"]
    assert proof.startswith("with examples 0 % of 20 judged runs succeeded, without (held out) 95")
    assert proof.endswith("; examples hurt")
    assert reason.startswith("Nothing is shown: runs of this domain ended worse with examples")
    assert effect["is_stopped"]
    store.traces.effects.decide("finance", shows=True)
    assert not effects()["finance"]["is_stopped"]


def test_a_domain_has_its_groups_of_failures_or_says_that_there_is_none(store: Store) -> None:
    for at in range(40):
        tool, verdict = "mail" if at >= 30 else "search", Verdict(success=at < 30)
        store.add(f"task {at}", searches(str(at), tool), verdict=verdict)
        store.add(f"fix {at}", searches(str(at)), domain="code")
    data, _ = store.read()
    failures = {domain["name"]: domain["failures"] for domain in data["domains"]}
    (group,) = failures["finance"]["groups"]
    objectives = {data["runs"][at]["objective"] for at in group["failed"]}
    assert objectives == {f"task {at}" for at in range(30, 40)}
    assert (group["title"], group["unjudged"]) == ("calls mail and nothing else", [])
    assert (group["otherwise"], bool(group["why"])) == (None, True)
    assert failures["code"] == {
        "text": "code: no failures in 40 runs, as the runs ended; no verdicts yet.",
        "nearest": None,
        "groups": [],
    }


def test_long_texts_are_cut_with_a_mark_and_counted(store: Store) -> None:
    words = "word " * 400_000 + "end"
    steps = [step("thought", words), *searches("it") * 200]
    store.add("x" * 50_000, steps, result="y" * 3_000_000)
    assert len(store.page()) < 200_000
    data, (trace,) = store.read()
    head, left_out, tail = trace["steps"][0][2]
    assert len(head) + left_out + len(tail) == len(words)
    assert words.startswith(head)
    assert words.endswith(tail)
    assert data["runs"][0]["objective"][1] == 49_400
    assert trace["left_out"] == len(steps) - len(trace["steps"]) > 0


def test_many_long_runs_are_below_six_megabytes(store: Store) -> None:
    draw = random.Random(1)
    for number in range(250):
        texts = (draw.randbytes(1000).hex() for _ in range(24))
        store.add(f"task {number}", [step("thought", text) for text in texts])
    assert 3_000_000 < len(store.page().encode()) < 6_000_000
    _, traces = store.read()
    assert len(traces) == 250
    for head, left_out, tail in (item[2] for trace in traces for item in trace["steps"]):
        assert len(head) + left_out + len(tail) == 2000
        assert left_out > 0  # all are cut until they fit in


def test_what_is_invisible_is_shown_and_words_stay_whole(store: Store) -> None:
    texts = {
        "b\x1bc\x7f": "b\ufffdc\ufffd",
        "\u202ea\u200b\ufeff": "\ufffda\ufffd\ufffd",
        "one\r\ntwo\rthree\u2028four\tfive": "one\ntwo\nthree\nfour\tfive",
    }
    same = ("\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "e\u0301")
    texts |= {text: text for text in same}
    ids = {store.add(text): written for text, written in texts.items()}
    assert {id_: run["objective"] for id_, run in store.records().items()} == ids


def test_a_run_says_what_it_lost_most_by(store: Store) -> None:
    talk = store.add(steps=[step("thought", "Hello.")])
    first = store.add(steps=searches("bread"))
    repeat = store.add(steps=searches("bread"))
    lost = {trace_id: run["lost"][0] for trace_id, run in store.records().items()}
    assert lost == {talk: "rule single_thought", first: "complexity", repeat: "novelty"}
    run = store.traces.get(repeat)
    assert run is not None
    for confidence, expected in ((0.2, "confidence"), (0.9, "novelty")):
        breakdown = replace(run.breakdown, worth=Worth.of(confidence, 0.0))
        part = breakdown.largest_loss("worth")
        assert part is not None
        assert part[0] == expected


def test_a_damaged_trace_costs_its_own_steps_alone(store: Store) -> None:
    changes: list[tuple[str, str, Any]] = [
        ("bodies", "trace", "{not json"),
        ("bodies", "trace", json.dumps({"steps": 7})),
        ("bodies", "trace", json.dumps({"steps": ["x"]})),
        ("runs", "score", 9e999),
    ]
    ids = [store.add(f"task {number}") for number in range(len(changes))]
    store.traces.close()
    store.run_sql(
        *(
            (f"UPDATE {table} SET {column} = ? WHERE trace_id = ?", value, trace_id)  # noqa: S608
            for trace_id, (table, column, value) in zip(ids, changes, strict=True)
        )
    )
    done = report("--html", "page.html")
    assert "4 stored traces cannot be read; their runs have no steps there." in done.stdout
    assert len(store.records()) == len(changes)


@pytest.mark.parametrize("change", ["redactions = '[1]'", "score = 'abc'", "objective = X'ff'"])
def test_a_row_that_another_program_changed_is_an_error(store: Store, change: str) -> None:
    store.add("buy bread")
    store.traces.close()
    store.run_sql((f"UPDATE runs SET {change}",))  # noqa: S608
    done = report("--html", "page.html")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: the runs of ")
    done = report("--html", "page.html", "--since", "no time")
    assert "the runs of" not in done.stderr


# ------------------------------------------------------------------ runs that were shown others


def test_a_run_has_what_it_was_shown_and_its_credit(store: Store) -> None:
    first = store.add("buy bread", threshold=0.1)
    good = store.add_shown(first, success=True)
    held_out = store.add_shown(first, success=False, held_out=True)
    elsewhere = store.add_shown(first, success=False, domain="code")
    store.note_planted(good, "override, for later runs")
    many = tuple(ShownTrace(f"kp:trace:{number}", number, 0.5) for number in range(1, 31))
    crowded = store.add(shown=many)
    runs = store.records()
    assert runs[first]["shown"] is None
    assert runs[first]["credit"].endswith(": shown to 1 run, held out from 1")
    assert runs[first]["planted"] is None
    assert runs[good]["shown"] == [[first, "similarity 0.83"]]
    assert runs[good]["credit"] is None
    assert runs[good]["planted"] == (
        "no run is shown it, because it has what looks like planted instructions: "
        "override, for later runs"
    )
    assert runs[held_out]["shown"] == [[first, "held out, similarity 0.83"]]
    assert runs[elsewhere]["shown"] == [[first, "similarity 0.83"]]
    rows = runs[crowded]["shown"]
    assert [row[0] for row in rows[:20]] == [f"kp:trace:{number}" for number in range(1, 21)]
    assert rows[20:] == [[None, "and 10 more"]]


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that are executed meanwhile."""
    made: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        made.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def test_no_run_costs_a_query_of_its_own(store: Store) -> None:
    first = store.add("buy bread", threshold=0.1)
    for _ in range(3):
        store.add_shown(first, success=True)
    with statements() as few:
        store.page()
    for number in range(180):
        store.add(f"task {number}", shown=(ShownTrace(first, 1, 0.5),))
    with statements() as many:
        store.page()
    assert len(few) == len(many)
    assert sum("shown_traces" in one for one in many) == 3


# ------------------------------------------------------------------ the served page


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_and_stores_verdicts_until_it_is_ended(
    store: Store, serve: Serve, ending: signal.Signals
) -> None:
    first = store.add("buy bread", searches("bread", "search", "mail"), threshold=0.5)
    later = store.add_shown(first, success=True)
    served = serve()
    assert served.printed.startswith("Serving 2 of 2 runs at http://127.0.0.1:")
    body = {"trace_id": first, "success": False, "note": "it was stale"}
    status, answer = served.send(json.dumps(body))
    (record,) = answer["runs"]
    assert status == 200
    assert record["outcome"].startswith("failure")
    assert "credit" not in record  # so that the page keeps what it has
    _, answer = served.send(json.dumps({"trace_id": later, "success": True}))
    assert answer["runs"][0]["shown"] == [[first, "similarity 0.83"]]
    (verdict,) = store.traces.verdicts(first)
    assert (verdict.success, verdict.note, verdict.source) == (False, "it was stale", "label")
    stored = store.traces.get(first)
    assert stored is not None
    assert (stored.success, stored.decision) == (False, "below_threshold")
    store.run_sql(("DROP TABLE verdicts",))
    status, answer = served.send(json.dumps(body))
    assert (status, bool(answer["error"])) == (500, True)
    assert served.end(ending) == 0
    assert "Labelled 2" in served.printed
    assert "Traceback" not in served.printed


def test_a_wrong_token_host_or_origin_is_refused(store: Store, serve: Serve) -> None:
    trace_id, served = store.add("buy bread"), serve()
    page, verdicts = f"/{served.token}/", f"/{served.token}/verdicts"
    port = served.host.split(":")[1]
    body = json.dumps({"trace_id": trace_id, "success": True})
    right = {"Origin": f"http://{served.host}", "Content_Type": "application/json"}

    for path in ("/", "/verdicts", f"/{served.token[:-1]}/", "//", "/x/", f"/x/{served.token}/"):
        assert served.ask("GET", path)[0] == 403, path
    for host in ("example.com", f"example.com:{port}", "127.0.0.1", ""):
        assert served.ask("GET", page, Host=host)[0] == 403, host
    assert served.ask("GET", page, Origin="http://example.com")[0] == 403
    for origin in ("http://example.com", "null", f"https://{served.host}", "http://127.0.0.1:1"):
        assert served.send(body, Origin=origin)[0] == 403, origin
    assert served.ask("POST", verdicts, body, Content_Type="application/json")[0] == 403
    assert served.ask("POST", "/wrong/verdicts", body, **right)[0] == 403
    assert served.ask("POST", page, body, **right)[0] == 404
    assert served.ask("GET", verdicts)[0] == 404
    assert served.ask("OPTIONS", verdicts, **right)[0] == 501
    assert store.traces.verdicts(trace_id) == []

    status, text, headers = served.ask("GET", page, Host=f"localhost:{port}")
    assert status == 200
    assert "connect-src 'self'" in text
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "Access-Control-Allow-Origin" not in headers
    assert "Set-Cookie" not in headers
    assert served.send(body)[0] == 200
    assert len(store.traces.verdicts(trace_id)) == 1


def test_a_body_that_is_no_verdict_is_refused(store: Store, serve: Serve) -> None:
    store.add()
    served = serve()
    for body, expected in (
        ("no json", 400),
        ("[]", 400),
        ('{"trace_id": "x"}', 400),
        ('{"trace_id": 7, "success": true}', 400),
        ('{"trace_id": "", "success": true}', 400),
        ('{"trace_id": "x", "success": "yes"}', 400),
        ('{"trace_id": "x", "success": true, "note": 7}', 400),
        ('{"trace_id": "nobody", "success": true}', 404),
        ("[" * 60_000, 400),
    ):
        status, answer = served.send(body)
        assert (status, bool(answer["error"])) == (expected, True), body[:40]
        assert served.send(body, Content_Type="text/plain")[0] == 415
    for length in ("70000", "-1", "much", "1" * 5000):
        assert served.send("", Content_Length=length)[0] in (411, 413)
