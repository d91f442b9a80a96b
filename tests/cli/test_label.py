"""`label` as a user types it: one run, files of verdicts, and `next` in a terminal and a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kp_langchain import DomainPolicy, ScoredTrace, TraceStore
from kp_langchain.calibration.agreement import RunDigest
from tests import programs
from tests.agents import handler, searching
from tests.cli.made_runs import KEY, SECRET, made
from tests.cli.terminal import Terminal
from tests.commands import Done, cli, cli_apart
from tests.loopback_registry import LoopbackRegistry

SCORE = 0.48  # between the run as a failure and as a success
FAILED = {"success": False, "confidence": 0.0}


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

    def add(self, number: int, *, outcome: Any = None, **policy: Any) -> None:
        options = {"threshold": SCORE, "keep": "all", **policy}
        watching = handler(
            "finance", store=self.store, policy=DomainPolicy(**options),
            outcome=outcome and (lambda _: outcome),
        )  # fmt: skip
        for _ in range(number):
            # One question asked again would not be new, and would not pass.
            ask = {"messages": [("user", f"question {len(self.ids)}")]}
            searching().invoke(ask, {"callbacks": [watching]})
            scored = watching.last()
            assert scored is not None
            self.ids.append(scored.trace.id)
            self.run_ids.append(str(scored.run_id))

    @property
    def decisions(self) -> list[str]:
        return [run.decision for one in self.ids if (run := self.store.get(one)) is not None]

    def verdict(self, number: int = 0) -> Any:
        """The one verdict that was given here."""
        (verdict,) = [v for v in self.store.verdicts(self.ids[number]) if v.source == "label"]
        return verdict


@pytest.fixture
def runs() -> Iterator[Runs]:
    with TraceStore("runs.db") as store:
        yield Runs(store)


@pytest.mark.parametrize("which", ["trace id", "run id", "beginning"])
def test_one_run_by_any_of_its_ids(runs: Runs, which: str) -> None:
    runs.add(1)
    beginning = runs.ids[0].removeprefix("kp:trace:")[:13]
    wanted = {"trace id": runs.ids[0], "run id": runs.run_ids[0], "beginning": beginning}[which]
    done = label(wanted, "--failure", "--note", f"wrong, see {SECRET}")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    after = runs.store.get(runs.ids[0])
    assert after is not None
    assert f"failure 0.00  score {after.score:.3f}" in first or f"-> {after.score:.3f}" in first
    assert "kept -> below_threshold" in first
    assert "failure 0.00" in first
    assert second == "Labelled 1, of which now kept 0, no longer kept 1; unknown 0."
    assert runs.decisions == ["below_threshold"]
    assert (runs.verdict().success, runs.verdict().confidence) == (False, None)
    assert runs.verdict().note.startswith("wrong, see")
    assert SECRET not in runs.verdict().note
    done = label(wanted, "--success", "--confidence", "0.9", "--json")
    (line,) = done.stdout.splitlines()
    change = json.loads(line)
    assert change["trace_id"] == runs.ids[0]
    assert (change["decision_before"], change["decision"]) == ("below_threshold", "kept")
    assert (change["success_before"], change["success"]) == (False, True)
    assert "Labelled 1" in done.stderr


def test_a_run_whose_trace_is_gone_is_told_not_to_be_kept(runs: Runs) -> None:
    runs.add(1, outcome=FAILED, keep="passed", keep_days=0)
    done = label(runs.ids[0], "--success")
    assert "below_threshold, because its trace is no longer kept" in done.stdout
    assert "now kept 0" in done.stdout


# Files.


def test_a_file_of_json_lines_also_read_again(runs: Runs) -> None:
    runs.add(5)
    ids = [*runs.ids[:2], *runs.run_ids[2:4], runs.ids[4]]
    rows = [
        {name: id_, "success": value, "confidence": confidence, "ignored": {}, "note": "a@b.org"}
        for id_, (name, value, confidence) in zip(
            ids,
            [("id", False, 0.1), ("trace_id", "no", "0.1"), ("run_id", 0, ""),
             ("id", "Failure", None), ("id", "true", " 0.9 ")],
            strict=True,
        )
    ]  # fmt: skip
    text = "\ufeff" + "\n\n".join(json.dumps(row) for row in rows)
    Path("verdicts.jsonl").write_text(text, encoding="utf-8")
    done = label("import", "verdicts.jsonl")
    assert done.returncode == 0, done.stderr
    assert "Labelled 5, of which now kept 0, no longer kept 4; unknown 0." in done.stdout
    found = [runs.store.get(one) for one in runs.ids]
    assert [run.success for run in found if run] == [False] * 4 + [True]
    assert [run.confidence for run in found if run] == [0.1, 0.1, 0.0, 0.0, 0.9]
    again = label("import", "-", stdin=text)
    assert (again.returncode, "Labelled 0, " in again.stdout) == (0, True)
    assert "given before 5" in again.stdout
    runs.store.report_outcome(runs.ids[0], success=True)  # somebody said otherwise meanwhile
    assert "Labelled 1, " in label("import", "verdicts.jsonl").stdout


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
    done = label("import", "verdicts.CSV")
    assert done.returncode == 0, done.stderr
    assert "Labelled 2, of which now kept 0, no longer kept 2; unknown 0." in done.stdout
    assert runs.verdict().note == 'two\nlines, and "more"'
    assert runs.verdict().confidence == 0.1


BAD_LINES = {
    "v.jsonl": [
        "{", "[1]", '{"success": true}', '{"id": "ID", "success": "perhaps"}',
        '{"id": "ID", "success": 2}', '{"id": "ID"}',
        '{"id": "ID", "success": true, "confidence": 7}', '{"id": "ID", "confidence": NaN}',
        '{"id": "ID", "success": true, "note": 7}', '{"id": "nothing", "success": true}',
        '{"id": 7, "success": true}', "[" * 100_000, '{"id": "\\ud800", "success": true}',
    ],
    "v.csv": [
        "id,success", "ID,maybe", "ID,yes,more", ",yes", "\udcff\udcfe,yes", '"broken"x,yes',
        "only", "",
    ],
}  # fmt: skip
TOLD = {4: "perhaps", 7: "0 to 1", 10: "no run 'nothing'"}


@pytest.mark.parametrize(
    ("name", "good", "counts"),
    [("v.jsonl", '{"id": "ID", "success": false}', "unknown 2, skipped 11."),
     ("v.csv", "ID,no", "unknown 1, skipped 5.")],
)  # fmt: skip
def test_every_bad_line_is_told_and_the_others_count(
    runs: Runs, name: str, good: str, counts: str
) -> None:
    runs.add(1)
    text = "\n".join([*BAD_LINES[name], good]).replace("ID", runs.ids[0])
    Path(name).write_bytes(text.encode(errors="surrogateescape"))
    done = label("import", name)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"Labelled 1, of which now kept 0, no longer kept 1; {counts}" in done.stdout
    told = dict(line.split(": ", 1) for line in done.stderr.splitlines() if line.startswith("v."))
    numbers = range(1, 14) if name == "v.jsonl" else range(2, 8)
    assert list(told) == [f"{name}:{number}" for number in numbers]
    if name == "v.jsonl":
        assert all(words in told[f"v.jsonl:{number}"] for number, words in TOLD.items())


def test_a_beginning_that_means_several_is_told(runs: Runs) -> None:
    runs.store.add(*[made(1), made(2)])
    done = label("import", "-", stdin=json.dumps({"id": "0000000", "success": False}))
    assert done.returncode == 1
    assert "stdin:1: " in done.stderr
    assert "may mean several" in done.stderr
    assert "unknown 1." in done.stdout


MB = 1 << 20
PEAK = """\
import resource, sys
from kp_langchain.cli.verdict_files import verdicts_in
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(*(one.why or "fine" for one in verdicts_in(sys.argv[1])), sep="\\n")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="units of ru_maxrss")
@pytest.mark.parametrize(
    ("name", "parts", "reason"),
    [
        ("quoted.csv", [b'id,success,note\na,yes,fine\nb,yes,"', MB, b'"\nc,no,fine\n'],
         "not valid CSV: field larger than field limit (131072)"),
        ("a.jsonl", [b'{"id": "a", "success": true}\n{"id": "', 50 * MB,
                     b'"}\n{"id": "a", "success": true}\n'], "too long to be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_lines_longer_than_anybody_writes_are_told_and_take_no_memory(
    name: str, parts: list[Any], reason: str
) -> None:
    with Path(name).open("wb") as file:
        for part in parts:  # a number stands for so many letters
            file.writelines([part] if isinstance(part, bytes) else [b"x" * MB] * (part // MB))
    done = programs.run("-c", PEAK, name)
    *told, grown = done.stdout.splitlines()
    assert told == ["fine", reason, "fine"], done.stderr
    assert int(grown) < 45 * MB


# A registry.


def test_what_passes_now_is_sent_now_and_what_does_not_is_withdrawn(runs: Runs) -> None:
    with LoopbackRegistry() as registry:
        settings = {"KP_REGISTRY_URL": registry.url, "KP_API_KEY": KEY}
        runs.add(1, visibility="network", outcome=FAILED)
        done = label_apart(runs.ids[0], "--success", **settings)
        assert done.returncode == 0, done.stderr
        assert "now kept 1" in done.stdout
        assert "Sent or withdrawn at the registry: 1 of 1." in done.stdout
        assert list(registry.units) == runs.ids
        done = label_apart(runs.ids[0], "--failure", **settings)
        assert "no longer kept 1" in done.stdout
        assert "1 of 1." in done.stdout
        assert registry.units == {}


def test_what_cannot_be_sent_now_is_told(runs: Runs) -> None:
    runs.add(1, visibility="network", outcome=FAILED)
    busy = b"HTTP/1.1 503 -\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n"
    with LoopbackRegistry(misbehave=lambda *_: busy) as registry:
        settings = {"KP_REGISTRY_URL": registry.url, "KP_API_KEY": KEY}
        done = label_apart(runs.ids[0], "--success", **settings)
    assert done.returncode == 0
    assert "0 of 1." in done.stdout
    assert "kp-langchain registry outbox send" in done.stdout
    done = label_apart(runs.ids[0], "--success", KP_DISABLED="1", **settings)
    assert "KP_DISABLED is set" in done.stdout
    assert "No registry is configured" in label_apart(runs.ids[0], "--success").stdout


# `label next`, in a terminal.

QUESTION = "Did it succeed?"
NEXT = ("label", "next", "--database", "runs.db")


def run(number: int, **options: Any) -> ScoredTrace:
    """A run without a verdict; its trace id begins with its number."""
    options.setdefault("score", 0.5)
    options.setdefault("objective", f"compare quarter {number}")
    step = {"type": "tool_call", "tool": {"name": "ledger"}, "input": {"quarter": number}}
    return made(number, threshold=0.51, **({"steps": [step]} | options))


def fill(*runs: ScoredTrace) -> None:
    with TraceStore("runs.db") as store:
        store.count()  # also makes an empty one
        store.add(*runs)


def number_of(offer: dict[str, Any]) -> str:
    return str(offer["trace_id"]).removeprefix("kp:trace:")[:8]


def id_of(number: str) -> str:
    return f"kp:trace:{number}-0000-4000-8000-000000000000"


def piped(answers: str, *words: str) -> Done:
    """Run the command in this process; its answers come from no terminal."""
    return label("next", *words, stdin=answers)


def offered(*words: str) -> list[dict[str, Any]]:
    done = piped("", "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def verdicts() -> dict[str, list[bool | None]]:
    """The verdicts on each run, the newest first, by the first eight digits of its id."""
    with TraceStore("runs.db") as store:
        by_run = {run.trace_id: store.verdicts(run.trace_id) for run in store.runs(limit=None)}
    return {
        number_of({"trace_id": id_}): [one.success for one in reversed(given)]
        for id_, given in by_run.items()
        if given
    }


def press(*keys: str, **terminal: Any) -> Terminal:
    """Have the command ask in a terminal until it ends, which it does with status 0."""
    with Terminal(*NEXT, prompt=QUESTION, **terminal) as opened:
        for key in keys:
            opened.press(key)
        assert opened.end() == 0
    return opened


def test_one_key_gives_each_verdict_and_the_next_run_follows() -> None:
    fill(*map(run, range(3)))
    first, second, third = map(number_of, offered())
    _, *screens = press("y", "N", "y").screens
    assert verdicts() == {first: [True], second: [False], third: [True]}
    progress = [screen.split(" verdicts given")[0].splitlines()[-1] for screen in screens]
    assert progress == ["0 of 3", "1 of 3", "2 of 3"]
    for id_, screen in zip((first, second, third), screens, strict=True):
        assert f"compare quarter {int(id_)}\n" in screen
        assert f"ledger({int(id_)})" in screen
        assert "answer\nit grew\n" in screen
    assert f"last: {first}  finance  success 1.00  score 0.500 -> " in screens[1]
    needs = "1 succeeded, 1 failed; 8 more verdicts give a provisional model"
    assert needs in " ".join(screens[2].split())
    assert "Labelled 3, of which now kept 2, no longer kept 0; unknown 0." in screens[2]
    assert "no other run to ask about" in screens[2]


def test_the_end_says_whether_there_are_more_runs() -> None:
    fill(*map(run, range(3)))
    assert len(offered("--limit", "2")) == 2
    limited = piped("y\ns\n", "--limit", "2").stdout
    assert "The limit is reached, and there are more runs" in limited
    assert "no other run to ask about" not in limited
    assert "no other run to ask about" in piped("y\ny\n", "--limit", "2").stdout


def test_runs_that_agree_with_a_judged_one_of_their_task_are_asked_about_last() -> None:
    digest = RunDigest(frozenset({1, 2}), frozenset(), frozenset({3}), 4, 5)
    alike = replace(digest, answer=frozenset({1, 2, 6}))
    other = RunDigest(frozenset({7}), frozenset(), frozenset({8}), 9, 10)
    digests = {1: digest, 2: alike, 3: digest, 4: other, 5: None}
    task = [
        run(at, objective="the same", options={"digest": one and one.to_bytes()})
        for at, one in digests.items()
    ]
    fill(*task, run(6))

    def order() -> list[tuple[int, str]]:
        return [(int(number_of(one)), one["reason"]) for one in offered()]

    (first, *_), before = order()[:2], order()
    assert {reason for _, reason in before[:2]} == {"a new task"}
    again = [(number, reason) for number, reason in before if "agrees" in reason]
    assert before[-2:] == again
    assert {number for number, _ in again} < {1, 2, 3}
    assert [reason for _, reason in again] == [
        f"run {number} of its task, and agrees with an earlier one" for number in (4, 5)
    ]
    piped("y\n", "--limit", "1")
    assert order() == before[1:]
    assert first not in order()


def test_from_ten_verdicts_on_calibrate_is_named() -> None:
    fill(*map(run, range(12)))
    assert "10 more verdicts give a provisional model" in piped("").stdout
    lines = piped("y\nn\n" * 5).stdout
    assert "1 more verdict gives a provisional model" in lines
    assert "5 succeeded, 5 failed; enough for a confidence model: kp-langchain calibrate" in lines


def test_skip_back_and_quit() -> None:
    fill(*map(run, range(4)))
    first, second, third, _ = map(number_of, offered())
    # The first b and ? lead nowhere; the next go back to the first.
    terminal = press(*"b?ysbbnyq")
    assert verdicts() == {first: [False, True], second: [True]}
    text = "\n".join(terminal.screens)
    assert "b leads nowhere here" in text
    assert "? leads nowhere here" in text
    again = terminal.screens[5]
    assert "given     success; y or n replaces it" in again
    assert "success, confidence 1.00 (label)" in again
    assert f"asked as  {third}" in terminal.screens[-1]
    assert "Labelled 2," in terminal.screens[-1]


def test_a_note_is_redacted_and_belongs_to_the_next_verdict() -> None:
    fill(run(1), run(2))
    first, second = map(number_of, offered())
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("o")
        terminal.type(f"wrong quarter, see {SECRET}", after="Note: ")
        terminal.press("n")
        terminal.press("y")
        assert terminal.end() == 0
    assert "note      wrong quarter, see" in terminal.screens[2]
    with TraceStore("runs.db") as store:
        (one,), (other,) = (store.verdicts(id_of(number)) for number in (first, second))
    assert (one.success, one.source, other.note) == (False, "label", None)
    assert str(one.note).startswith("wrong quarter, see")
    assert SECRET not in str(one.note)


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("n\x03", 130), ("\x04", 0)])
def test_what_was_given_stays_when_the_person_ends_it(key: str, status: int) -> None:
    fill(run(1), run(2))
    first, _ = map(number_of, offered())
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("y")
        terminal.press(key)
        assert terminal.end() == status
    assert verdicts() == {first: [True]}
    assert ("interrupted" in terminal.output) == (status == 130)
    assert "Labelled 1," in terminal.output


def test_a_key_shows_all_of_a_run_that_the_screen_shortens() -> None:
    step = {"type": "tool_call", "tool": {"name": "search"}, "input": {"q": "x"}}
    answer = "\n".join(f"line {at} of the answer" for at in range(500))
    fill(run(1, steps=[step] * 40, answer=answer))
    terminal = press("m", "y")
    screen, _, whole = "\n".join(terminal.screens).partition(QUESTION)
    assert "... 32 more" in screen
    assert "line 250 of the answer" not in screen
    assert "line 250 of the answer" in whole
    assert verdicts() == {"00000001": [True]}


def test_hostile_text_stays_text_and_an_arrow_key_is_no_answer() -> None:
    hostile = "\x1b[2J\x1b]0;mine\x07\u202e\r done"
    tool = {"name": hostile}
    steps = [
        {"type": "tool_call", "tool": tool, "input": {hostile: hostile, "n": [hostile]}},
        {"type": "observation", "tool": tool, "content": hostile},
        {"type": "thought", "content": hostile},
    ]
    fill(
        run(1, objective=hostile, answer=hostile, steps=steps, domain=hostile),
        run(2, objective="o" * 900_000, answer="\x1b[31m" + "a b" * 3_000_000),
    )
    terminal = press("\x1b[B", "\x1bn", "s", "q")  # the first as if b were pressed
    assert verdicts() == {}
    assert terminal.output.count("\x1b[2J") == len(terminal.screens) - 1 <= 4  # our own
    for part in ("\x07", "\x1b]", "\u202e", "\x1b[31m"):
        assert part not in terminal.output
    assert "done" in terminal.output
    assert len(terminal.output) < 40_000


@pytest.mark.parametrize("variable", ["PYTHONIOENCODING=ascii", "TERM=dumb"])
def test_terminals_that_can_do_less(variable: str) -> None:
    fill(run(1, objective="prüfe das Quartal…", answer="日本語"))
    output = press("y", **dict([variable.split("=")])).output
    assert "das Quartal" in output
    assert variable != "PYTHONIOENCODING=ascii" or output.isascii()
    assert variable != "TERM=dumb" or "\x1b" not in output


def test_what_others_label_or_delete_meanwhile_is_passed_over() -> None:
    fill(*map(run, range(4)))
    ids = [number_of(offer) for offer in offered()]
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("s")  # the second run is on the screen when the next line runs
        terminal.wait_for_question()
        with TraceStore("runs.db") as store:
            store.report_outcome(id_of(ids[2]), success=False)
        assert (
            cli("store", "delete", id_of(ids[1]), "--yes", "--database", "runs.db").returncode == 0
        )
        for key in "yy":
            terminal.press(key)
        assert terminal.end() == 0
    assert verdicts() == {ids[2]: [False], ids[3]: [True]}


# Through a pipe.


def test_answers_come_through_a_pipe_one_a_line() -> None:
    fill(*map(run, range(5)))
    ids = [number_of(offer) for offer in offered()]
    done = piped("y\n\n n \ns\no\nbecause\nFAILURE\nY")
    assert done.returncode == 0, done.stderr
    assert verdicts() == {ids[0]: [True], ids[1]: [False], ids[3]: [True]}
    assert done.stderr == "failure leads nowhere here\n"
    assert "\x1b" not in done.stdout
    assert (
        done.stdout.count(" verdicts given; ") == 6
    )  # five runs, and one of them again with its note
    with TraceStore("runs.db") as store:
        assert [one.note for one in store.verdicts(id_of(ids[3]))] == ["because"]


def test_the_end_of_a_pipe_ends_it() -> None:
    fill(run(1))
    for answers in ("", "o", "o\n", "\n\n"):
        done = piped(answers)
        assert done.returncode == 0, answers
        assert done.stderr == "no answer: the input has ended\n", answers
    assert verdicts() == {}


def test_two_runs_of_the_command_agree_and_a_later_one_goes_on() -> None:
    fill(*(run(at, objective=f"task {at % 4}") for at in range(12)))
    order = offered()
    assert offered() == order
    assert [offer["task_verdicts"] for offer in order] == [0] * 4 + [1] * 4 + [2] * 4
    assert order[0].keys() >= {"trace_id", "domain", "objective", "reason", "confidence"}
    piped("y\nn\nq\n")
    assert [offer["trace_id"] for offer in offered()] == [offer["trace_id"] for offer in order[2:]]
    piped("y\n" * 5, "--limit", "1")
    assert [offer["trace_id"] for offer in offered()] == [offer["trace_id"] for offer in order[3:]]
    assert offered("--domain", "code") == []


def test_nothing_to_ask_about() -> None:
    fill()
    done = piped("y\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("No run to ask about")
    fill(run(1), run(2, options={"keep_body": False}), run(3, options={"withheld": "x"}), run(4))
    with TraceStore("runs.db") as store, store.database.writing() as connection:
        connection.exec_driver_sql(
            """UPDATE bodies SET trace = '{"x": 1}' WHERE trace_id LIKE '%00000004-%'"""
        )
    assert piped("y\ny\n").returncode == 0
    assert verdicts() == {"00000001": [True]}


def test_a_screen_shows_calls_and_what_decided() -> None:
    def step(kind: str, tool: str | None, content: str = "", **more: Any) -> dict[str, Any]:
        named = {"tool": {"name": tool}} if tool else {}
        return {"type": kind, "content": content, **named, **more}

    steps = [
        step("tool_call", "weather", input={"city": "Oslo", "days": 3, "unit": "C", "x": 1}),
        step("tool_call", "search", input={"q": 'a "quoted" word'}, attempts=3),
        step("observation", "search", "two hits"),
        step("error_recovery", "weather", "503 from the server"),
        step("error_recovery", None, "the model was busy"),
        step("tool_call", "book"),
        step("observation", None, "Error: no seats"),
        step("tool_call", "late"),
    ]
    gated = run(1, steps=steps, objective="the same", options={"gate": "worth", "threshold": 0.4})
    gated = replace(gated, breakdown=gated.breakdown.with_worth(0.4, "a model"))  # novelty 0.5
    twin = run(2, objective="the same", options={
        "threshold": 0.3, "decision": "twin", "twin_of": "kp:trace:x",
    })  # fmt: skip
    fill(gated, twin, *(run(at, objective="the same") for at in (3, 4)))
    with TraceStore("runs.db") as store:
        store.report_outcome(id_of("00000003"), success=True)
    screens = piped("s\ns\ns\n").stdout.split(" verdicts given; ")[1:]
    shown = " ".join(" ".join(screens).split())
    assert "worth 0.350 is below the threshold of finance, 0.4 (novelty not measured); a" in shown
    assert "success, confidence 0.80 (default)" in shown
    assert "twin: score 0.500 reaches the threshold of finance, 0.3" in shown
    (screen,) = (one for one in screens if "weather(" in one)
    calls = screen.partition("calls")[2].partition("answer")[0]
    assert [line.strip() for line in calls.strip().splitlines()[1:]] == [
        '! weather(city="Oslo", days=3, unit="C", ...) -> 503 from the server',
        'search("a \\"quoted\\" word") x3 -> two hits',
        "!  -> the model was busy",
        "! book() -> Error: no seats",
        "late()",
    ]
