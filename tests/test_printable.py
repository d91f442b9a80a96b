"""What a log line and a terminal show of texts that are somebody's."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import DomainPolicy, TraceStore
from kp_langchain._logging import log_event, warn_once
from kp_langchain.printable import beside, printable, printable_json
from tests.agents import ASK, handler, searching
from tests.commands import cli

HOSTILE = (
    "a\nERROR forged\x1b]0;title\x07\x1b[2J\u202egnp.exe\u2066\x9b31m[red]x[/] [link=http://e.org]"
)


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_json_means_the_same_and_is_printable(text):
    escaped = printable_json(json.dumps({"k": text}, ensure_ascii=False))
    assert escaped.isprintable()
    assert json.loads(escaped) == json.loads(json.dumps({"k": text}))
    assert printable(text).isprintable()
    assert all(line.isprintable() for line in printable(text, keep="\n").split("\n"))


def test_what_is_printable_stays():
    assert printable("Grüße, 世界 😀 a\u3000b\u2028c\td") == "Grüße, 世界 😀 a b c d"
    assert printable_json('"世界 \u3000"') == '"世界 \\u3000"'


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [logging.Formatter("%(levelname)s %(message)s").format(one) for one in caplog.records]


def test_every_log_line_is_one_line_of_printable_text(caplog):
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        warn_once("a", "it said %s, %r, %.1f", HOSTILE, ValueError(HOSTILE), 1.5)
        warn_once("b", HOSTILE.replace("%", ""))
        log_event("event %s", HOSTILE * 1000, fields={"domain_": HOSTILE, "figure": 3})
        logging.getLogger("kp_langchain").warning("directly %s %d", HOSTILE, 3)
    assert len(lines(caplog)) == 4
    assert all(line.isprintable() and len(line) < 1500 for line in lines(caplog))
    assert caplog.records[2].domain_.isprintable()
    assert "1.5" in lines(caplog)[0]


def test_a_runs_domain_forges_no_log_line(caplog):
    watching = handler()
    with caplog.at_level(logging.INFO, logger="kp_langchain"):
        searching().invoke(
            ASK, {"callbacks": [watching], "metadata": {"kp_domain": HOSTILE + "x" * 10_000}}
        )
        assert watching.flush()
    assert [one for one in caplog.records if getattr(one, "event", "") == "kp.trace_scored"]
    for record in caplog.records:
        assert record.getMessage().isprintable()
        texts = [value for value in vars(record).values() if isinstance(value, str)]
        assert all(text.isprintable() for text in texts)


@pytest.fixture
def stored() -> str:
    """The id of a run in `runs.db` whose every text is hostile."""
    with TraceStore("runs.db") as store:
        watching = handler(
            HOSTILE, store=store, policy=DomainPolicy(threshold=0), objective=lambda _: HOSTILE
        )
        asked = {"messages": [("user", HOSTILE)]}
        searching().invoke(asked, {"callbacks": [watching]})
        scored = watching.last()
        assert scored is not None
        store.report_outcome(scored.trace.id, success=True, note=HOSTILE)
        return scored.trace.id


@pytest.mark.parametrize(
    "words",
    [
        ["review"], ["review", "--json"], ["review", "show", "ID"],
        ["review", "show", "ID", "--json"], ["review", "show", HOSTILE],
        ["review", "--domain", HOSTILE], ["outbox"], ["outbox", "--json"],
        ["outbox", "show", HOSTILE], ["withdraw", HOSTILE], ["label", "ID", "--success"],
        ["label", "ID", "--success", "--json", "--note", HOSTILE],
        ["label", "--from", HOSTILE + ".csv"], ["label", "--from", HOSTILE],
        ["calibrate"], ["calibrate", "--json"], ["calibrate", "--domain", HOSTILE],
        ["calibrate", "remove", HOSTILE], ["calibrate", "show"],
        ["score", HOSTILE], ["trust", HOSTILE], [HOSTILE], ["review", "--limit", HOSTILE],
        ["review", f"--{HOSTILE}"], ["review", "--database", HOSTILE],
    ],
    ids=lambda words: " ".join(words).replace(HOSTILE, "HOSTILE"),
)  # fmt: skip
def test_no_command_shows_a_terminal_what_it_would_obey(stored, words):
    words = [stored if word == "ID" else word for word in words]
    if words[0] in ("review", "label", "calibrate", "outbox", "withdraw") and (
        "--database" not in words and len(words) and words[1:2] != ["show"]
    ):
        words += ["--database", "runs.db"]
    done = cli(*words, KP_DATABASE_URL="runs.db", FORCE_COLOR="", NO_COLOR="1")
    assert "Traceback" not in done.stderr
    for line in (done.stdout + done.stderr).split("\n"):
        assert line.isprintable(), line
        # What was typed may be repeated as it is; what a run brought stays within its line.
        assert any(HOSTILE in word for word in words) or not line.startswith("ERROR forged")
    if "--json" in words and done.stdout:
        assert [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(sys.platform == "win32", reason="names")
def test_neither_what_a_file_of_verdicts_holds_nor_its_name_forges_a_line(stored):
    name = "a\nERROR forged.jsonl"
    Path(name).write_text(json.dumps({"id": HOSTILE, "success": True}) + "\n[]\n")
    done = cli("label", "--from", name, KP_DATABASE_URL="runs.db")
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()] == [
        "a ERROR forged.jsonl:1",
        "a ERROR forged.jsonl:2",
    ]


def test_json_holds_the_texts_as_they_are(stored):
    done = cli("review", "show", stored, "--json", "--database", "runs.db")
    assert json.loads(done.stdout)["objective"] == HOSTILE


@pytest.mark.parametrize(
    ("value", "threshold", "text"),
    [
        (0.60994, 0.61, "0.6099"),
        (0.609999999, 0.61, "0.609999999"),
        (0.61, 0.61, "0.610"),
        (0.5, 0.61, "0.500"),
        (0.61004, 0.61, "0.610"),
        (0.60994, 0.610004, "0.6099"),
    ],
)
def test_a_value_below_a_threshold_looks_below_it(
    value: float, threshold: float, text: str
) -> None:
    assert beside(value, threshold) == text
