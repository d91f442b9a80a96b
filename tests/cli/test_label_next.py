"""`kp-langchain label --next`, in a terminal and through a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kp_langchain import ReasoningTrace, TraceStore
from kp_langchain.calibration.features import features_of
from kp_langchain.calibration.model import Term
from kp_langchain.gate import ScoredTrace
from kp_langchain.scoring.breakdown import Dimension, ScoreBreakdown
from tests.calibration.test_model import MODEL
from tests.cli.terminal import Terminal
from tests.cli.test_label import label
from tests.commands import ROOT, Done

QUESTION = "Did it succeed?"
SECRET = "sk-ant-api03-" + "Ab3dE6gH9jK2mN5p" * 5
NEXT = ("label", "--next", "--database", "runs.db")
_PART = Dimension(0.5, 0.25, 0.125)


def run(
    number: int,
    *,
    objective: str | None = None,
    answer: str = "it grew",
    steps: list[dict[str, Any]] | None = None,
    domain: str = "finance",
    **options: Any,
) -> ScoredTrace:
    """A scored run without a verdict; its trace id is made of its number."""
    steps = steps or [
        {"type": "tool_call", "tool": {"name": "ledger"}, "input": {"quarter": number}}
    ]
    trace = ReasoningTrace.model_validate(
        {
            "id": f"kp:trace:{number:08}-0000-4000-8000-000000000000",
            "metadata": {
                "task_domain": domain,
                "success": True,
                "created_at": datetime(2026, 2, 1, tzinfo=UTC) + timedelta(minutes=number),
            },
            "task": {"objective": objective or f"compare quarter {number}"},
            "steps": [step | {"step_id": at} for at, step in enumerate(steps)],
            "outcome": {"result_summary": answer, "confidence": 0.8},
        }
    )
    breakdown = ScoreBreakdown(
        total=0.5, complexity=_PART, novelty=_PART, tool_diversity=_PART, outcome_confidence=_PART,
        weighted_sum=0.5, profile="default", rules=(), novelty_source="no embedder",
        confidence_source="default",
    )  # fmt: skip
    scored = ScoredTrace(
        trace=trace,
        breakdown=breakdown,
        decision="below_threshold",
        threshold=0.51,
        run_id=f"{number:08}",  # type: ignore[arg-type]
        features=features_of(trace, looked_successful=True),
    )
    return replace(scored, **options)


@pytest.fixture
def fill() -> Callable[..., None]:
    def fill(*runs: ScoredTrace) -> None:
        with closing(TraceStore("runs.db")) as store:
            store.count()  # also makes an empty one
            store.add_many(runs)

    return fill


def verdicts() -> dict[str, list[bool | None]]:
    """The verdicts on each run, the newest first, by the first eight digits of its id."""
    with TraceStore("runs.db") as store:
        by_run = {run.trace_id: store.verdicts(run.trace_id) for run in store.runs(limit=None)}
    return {
        id_.removeprefix("kp:trace:")[:8]: [one.success for one in reversed(given)]
        for id_, given in by_run.items()
        if given
    }


def piped(answers: str, *words: str) -> Done:
    """Run the command in this process; its answers come from no terminal."""
    return label("--next", *words, stdin=answers)


def offered(*words: str) -> list[dict[str, Any]]:
    done = piped("", "--json", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def number_of(offer: dict[str, Any]) -> str:
    return str(offer["id"]).removeprefix("kp:trace:")[:8]


# In a terminal.


def test_one_key_gives_each_verdict_and_the_next_run_follows(fill) -> None:
    fill(*map(run, range(3)))
    first, second, third = map(number_of, offered())
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        for key in "yNy":
            terminal.press(key)
        assert terminal.end() == 0
    assert verdicts() == {first: [True], second: [False], third: [True]}
    _, *screens = terminal.screens
    assert [screen.split(" verdicts given")[0].strip() for screen in screens] == [
        "0 of 3",
        "1 of 3",
        "2 of 3",
    ]
    for id_, screen in zip((first, second, third), screens, strict=True):
        assert f"compare quarter {int(id_)}\n" in screen
        assert f"ledger({int(id_)})" in screen
        assert "answer   it grew" in screen
    assert f"last: {first}  finance  success 1.00  score 0.500 -> " in screens[1]
    assert "1 succeeded, 1 failed; a model needs 28 more" in " ".join(screens[2].split())
    assert "Labelled 3, of which now kept 2, withdrawn 0; unknown 0." in screens[2]
    assert "no other run to ask about" in screens[2]


def test_skip_back_and_quit(fill) -> None:
    fill(*map(run, range(4)))
    first, second, third, _ = map(number_of, offered())
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        for key in "b?ysbbnyq":  # the first b and ? lead nowhere; the next go back to the first
            terminal.press(key)
        assert terminal.end() == 0
    assert verdicts() == {first: [False, True], second: [True]}
    text = "\n".join(terminal.screens)
    assert "b is the key for the run before" in text
    assert "? is none of these" in text
    again = terminal.screens[5]
    assert "given    success; y or n replaces it" in again
    assert "success, confidence 1.00 (label)" in again
    assert "repeats" not in again  # its task has no other run
    assert f"run      {third}" in terminal.screens[-1]
    assert "Labelled 2," in terminal.screens[-1]


def test_a_note_is_redacted_and_belongs_to_the_next_verdict(fill) -> None:
    fill(run(1), run(2))
    first, second = map(number_of, offered())
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("o")
        terminal.type(f"wrong quarter, see {SECRET}", after="Note: ")
        terminal.press("n")
        terminal.press("y")
        assert terminal.end() == 0
    assert "note     wrong quarter, see" in terminal.screens[2]
    with TraceStore("runs.db") as store:
        (one,) = store.verdicts(f"kp:trace:{first}-0000-4000-8000-000000000000")
        (other,) = store.verdicts(f"kp:trace:{second}-0000-4000-8000-000000000000")
    assert (one.success, one.source) == (False, "label")
    assert one.note is not None
    assert one.note.startswith("wrong quarter, see")
    assert SECRET not in one.note
    assert other.note is None


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("n\x03", 130), ("\x04", 0), ("q", 0)])
def test_what_was_given_stays_when_the_person_ends_it(fill, key: str, status: int) -> None:
    fill(run(1), run(2))
    first, _ = map(number_of, offered())
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("y")
        terminal.press(key)
        assert terminal.end() == status
    assert verdicts() == {first: [True]}
    assert ("interrupted" in terminal.output) == (status == 130)
    assert "Labelled 1," in terminal.output


def test_an_arrow_key_is_no_answer(fill) -> None:
    fill(run(1))
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("\x1b[B")  # as if b were pressed
        terminal.press("\x1bn")
        terminal.press("q")
        assert terminal.end() == 0
    assert verdicts() == {}


LONG = run(
    1,
    objective="An objective " + "that goes on and on, " * 60 + "end.",
    answer="\n".join(f"line {at} of the answer" for at in range(500)),
    steps=[
        step
        for at in range(40)
        for step in (
            {"type": "tool_call", "tool": {"name": "search"}, "input": {"q": "x" * 500, "at": at}},
            {"type": "observation", "tool": {"name": "search"}, "content": f"result {at} " * 99},
        )
    ],
)


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (200, 60), (40, 30)])
def test_a_screen_holds_both_ends_of_what_is_long(fill, columns: int, lines: int) -> None:
    fill(LONG)
    with Terminal(*NEXT, prompt=QUESTION, columns=columns, lines=lines) as terminal:
        terminal.press("q")
        terminal.end()
    screen = terminal.screens[1].partition(QUESTION)[0].splitlines()
    assert len(screen) < lines
    assert max(map(len, screen)) < columns
    text = " ".join(" ".join(screen).split())
    for part in (
        "An objective that",
        "end.",
        "line 0 of",
        "line 499 of",
        "result 0",
        "result 39",
    ):
        assert part in text or columns == 40, part
    assert "lines left out" in text
    assert "left out of 5" in text or "left out of 8" in text or "left out of 1" in text


def test_a_short_answer_leaves_its_room_to_calls_and_objective(fill) -> None:
    steps = [{"type": "tool_call", "tool": {"name": f"tool_{at}"}, "input": {}} for at in range(9)]
    fill(run(1, steps=steps))
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("q")
        terminal.end()
    assert [f"tool_{at}()" in terminal.screens[1] for at in range(9)] == [True] * 9
    assert "left out" not in terminal.screens[1]


def test_hostile_text_stays_text(fill) -> None:
    hostile = "\x1b[2J\x1b]0;mine\x07\u202e\r done"
    steps = [
        {
            "type": "tool_call",
            "tool": {"name": hostile},
            "input": {hostile: hostile, "n": [hostile]},
        },
        {"type": "observation", "tool": {"name": hostile}, "content": hostile},
        {"type": "thought", "content": hostile},
    ]
    fill(
        run(1, objective=hostile, answer=hostile, steps=steps, domain=hostile),
        run(2, objective="o" * 900_000, answer="\x1b[31m" + "a b" * 3_000_000),
    )
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("s")
        terminal.press("q")
        assert terminal.end() == 0
    assert terminal.output.count("\x1b[2J") == 2  # one for each screen
    for part in ("\x07", "\x1b]", "\u202e", "\x1b[31m"):
        assert part not in terminal.output
    assert "done" in terminal.output
    assert "left out of 9," in terminal.output
    assert len(terminal.output) < 20_000


@pytest.mark.parametrize(
    "environment", [{"NO_COLOR": "1"}, {"PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}], ids=str
)
def test_terminals_that_can_do_less(fill, environment: dict[str, str]) -> None:
    fill(run(1, objective="prüfe das Quartal…", answer="日本語"))
    with Terminal(*NEXT, prompt=QUESTION, **environment) as terminal:
        terminal.press("y")
        assert terminal.end() == 0
    assert "das Quartal" in terminal.output
    if "NO_COLOR" in environment:
        assert "\x1b[36m" not in terminal.output
    if "PYTHONIOENCODING" in environment:
        assert terminal.output.isascii()
    if "TERM" in environment:
        assert "\x1b" not in terminal.output


# Through a pipe.


def test_answers_come_through_a_pipe_one_a_line(fill) -> None:
    fill(*map(run, range(5)))
    ids = [number_of(offer) for offer in offered()]
    done = piped("y\n\n no \nskip\nnote\nbecause\nFAILURE\nyes")
    assert done.returncode == 0, done.stderr
    assert verdicts() == {ids[0]: [True], ids[1]: [False], ids[3]: [True]}
    assert done.stderr == "FAILURE is none of these\n"
    assert "\x1b" not in done.stdout
    assert done.stdout.count("\ntask ") == 6  # five runs, and one of them again with its note
    with TraceStore("runs.db") as store:
        run_ = store.get(ids[3])
        assert run_ is not None
        assert [one.note for one in store.verdicts(run_.trace_id)] == ["because"]


def test_the_end_of_a_pipe_ends_it(fill) -> None:
    fill(run(1))
    for answers in ("", "o", "o\n", "\n\n"):
        done = piped(answers)
        assert (done.returncode, done.stderr) == (0, ""), answers
    assert verdicts() == {}


def test_bytes_that_are_no_text_and_endless_lines_are_no_answers(fill) -> None:
    fill(run(1), run(2))
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "kp_langchain", *NEXT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as command:  # fmt: skip
        out, err = command.communicate(
            b"\xff\xfe\n"
            + b"x" * (1 << 16)
            + b"y\n"
            + b"y" * 3_000_000
            + b"\no\n"
            + b"n" * 3_000_000
            + b"\ny\nq\n",
            timeout=600,
        )
    assert command.returncode == 0, err
    assert b"Labelled 1," in out
    with TraceStore("runs.db") as store:
        (verdict,) = [one for run_ in store.runs() for one in store.verdicts(run_.trace_id)]
    assert verdict.note == "n" * 4000


def test_two_runs_of_the_command_agree_and_a_later_one_goes_on(fill) -> None:
    fill(*(run(at, objective=f"task {at % 4}") for at in range(12)))
    order = offered()
    assert offered() == order
    assert [offer["task_verdicts"] for offer in order] == [0] * 4 + [1] * 4 + [2] * 4
    piped("y\nn\nq\n")
    assert [offer["id"] for offer in offered()] == [offer["id"] for offer in order[2:]]
    piped("y\n" * 5, "--limit", "1")
    assert [offer["id"] for offer in offered()] == [offer["id"] for offer in order[3:]]


def test_the_json_names_what_other_programs_need(fill) -> None:
    fill(run(1), run(2, domain="code"))
    terms = (Term("answer_chars", 0.0, 1.0, 0.1),)
    with TraceStore("runs.db") as store:
        store.models.install(replace(MODEL, terms=terms))
        (code,) = offered("--domain", "code")
        (finance,) = offered("--domain", "finance", "--limit", "5")
    assert finance.pop("model_confidence") == pytest.approx(0.6, abs=0.1)
    reason = finance.pop("reason")
    assert reason.startswith("a new task; of such runs the model is least sure")
    assert finance == {
        "id": "kp:trace:00000001-0000-4000-8000-000000000000",
        "domain": "finance",
        "objective": "compare quarter 1",
        "confidence": 0.8,
        "confidence_source": "default",
        "task_verdicts": 0,
        "choice": "unsure",
    }
    assert (code["model_confidence"], code["choice"]) == (None, "drawn")
    done = label("--from", "-", stdin=json.dumps({"id": code["id"], "success": False}))
    assert "Labelled 1," in done.stdout
    assert offered("--domain", "code") == []


@pytest.mark.parametrize("words", [(), ("--domain", "code")])
def test_nothing_to_ask_about(fill, words: tuple[str, ...]) -> None:
    fill()
    done = piped("y\n", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("No run to ask about")
    fill(run(1), run(2, keep_body=False), run(3, withheld="x"))
    assert piped("y\ny\n", *words).returncode == 0
    assert verdicts() == ({} if words else {"00000001": [True]})
    assert offered() == ([] if not words else offered("--domain", "finance"))


def test_other_verdicts_on_the_task_are_shown(fill) -> None:
    fill(*(run(at, objective="the same") for at in range(4)))
    with TraceStore("runs.db") as store:
        store.report_outcome("00000000", success=True)
    done = piped("n\nb\nq\n")
    first, second, first_again = done.stdout.split("\ntask ")[1:]
    assert "its task has 3 more runs: 1 succeeded, 0 failed, 2 without a verdict" in first_again
    assert "its task has 3 more runs: 1 succeeded, 0 failed, 2 without a verdict" in first
    assert "its task has 3 more runs: 1 succeeded, 1 failed, 1 without a verdict" in second


def test_what_decided_is_shown_be_it_score_or_worth_or_a_twin(fill) -> None:
    gated = run(1, gate="worth", threshold=0.4)
    breakdown = gated.breakdown.with_worth(0.4)  # novelty 0.5
    fill(replace(gated, breakdown=breakdown), run(2, threshold=0.3, twin_of="kp:trace:x"))
    shown = " ".join(piped("s\ns\n").stdout.split())
    assert "worth 0.300, threshold 0.400; success, confidence 0.80 (default)" in shown
    assert "twin: score 0.500, threshold 0.300" in shown


def test_what_others_label_or_delete_meanwhile_is_passed_over(fill) -> None:
    fill(*map(run, range(4)))
    ids = [number_of(offer) for offer in offered()]
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("s")  # the second run is on the screen when the next line runs
        terminal.wait_for_question()
        with TraceStore("runs.db") as store:
            store.report_outcome(ids[2], success=False)
            with store.database.writing() as connection:
                connection.exec_driver_sql(
                    "DELETE FROM runs WHERE trace_id LIKE ?", (f"%{ids[1]}-%",)
                )
        for key in "yy":
            terminal.press(key)
        assert terminal.end() == 0
    assert verdicts() == {ids[2]: [False], ids[3]: [True]}


def test_a_trace_that_cannot_be_read_is_passed_over(fill) -> None:
    fill(run(1), run(2))
    with TraceStore("runs.db") as store, store.database.writing() as connection:
        connection.exec_driver_sql(
            """UPDATE runs SET body = '{"x": 1}' WHERE run_id = '00000001'"""
        )
    done = piped("y\ny\n")
    assert done.returncode == 0, done.stderr
    assert verdicts() == {"00000002": [True]}


def test_calls_are_shown_with_their_outputs_and_their_errors(fill) -> None:
    def step(kind: str, tool: str | None, content: str = "", **more: Any) -> dict[str, Any]:
        named = {"tool": {"name": tool}} if tool else {}
        return {"type": kind, "content": content, **named, **more}

    fill(
        run(
            1,
            steps=[
                step(
                    "tool_call", "weather", input={"city": "Oslo", "days": 3, "unit": "C", "x": 1}
                ),
                step("tool_call", "search", input={"q": 'a "quoted" word'}, attempts=3),
                step("observation", "search", "two hits"),
                step("error_recovery", "weather", "503 from the server"),
                step("error_recovery", None, "the model was busy"),
                step("tool_call", "book"),
                step("observation", None, "Error: no seats"),
                step("tool_call", "late"),
            ],
        )
    )
    text = piped("q\n").stdout.partition("calls")[2].partition("answer")[0]
    assert [line.strip() for line in text.strip().splitlines()] == [
        '! weather(city="Oslo", days=3, unit="C", ...) -> 503 from the server',
        'search("a \\"quoted\\" word") x3 -> two hits',
        "!  -> the model was busy",
        "! book() -> Error: no seats",
        "late()",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--next", "x"], "give one of ID, --from FILE, --from-langsmith"),
        (["--next", "--success"], "belong to one ID"),
        (["x", "--success", "--limit", "3"], "--domain, --limit and --ask-in belong to --next"),
        (["--from", "-", "--domain", "d"], "--domain, --limit and --ask-in belong to --next"),
        (["--next", "--limit", "0"], "limit"),
    ],
)
def test_wrong_usage(words: list[str], message: str) -> None:
    done = label(*words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_a_key_shows_the_whole_run(fill) -> None:
    fill(LONG)
    with Terminal(*NEXT, prompt=QUESTION) as terminal:
        terminal.press("m")
        terminal.press("y")
        assert terminal.end() == 0
    text = " ".join("\n".join(terminal.screens).split())
    assert "line 250 of the answer" in text
    assert text.count("that goes on and on") >= 60
    assert "result 20" in text
    assert verdicts() == {"00000001": [True]}
