"""Our log records among the host's (structlog, queues, record classes), each one printable line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kp_langchain import DomainPolicy
from kp_langchain._logging import log_event, warn_once
from kp_langchain.calibration.basis import DOCUMENTS_FORMULA, NO_BASIS, NOTHING_YET
from kp_langchain.text import format_against_threshold, printable, printable_json
from tests.agents import ASK, handler, run, searching

HOSTILE = (
    "a\nERROR forged\x1b]0;title\x07\x1b[2J\u202egnp.exe\u2066\x9b31m[red]x[/] [link=http://e.org]"
)


class Lines(logging.Handler):
    """Keeps our records, and what its formatter makes of each."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("kp_langchain"):  # others log at DEBUG, too
            self.records.append(record)
            self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the root logger gets."""
    receiver = Lines()
    root, ours = logging.getLogger(), logging.getLogger("kp_langchain")
    before = root.level, ours.level
    root.addHandler(receiver)
    root.setLevel(logging.DEBUG)
    yield receiver
    root.removeHandler(receiver)
    root.setLevel(before[0])
    ours.setLevel(before[1])


def scored_of(lines: Lines) -> tuple[logging.LogRecord, str]:
    run(searching(), domain="finance")
    ((record, line),) = [
        (record, line)
        for record, line in zip(lines.records, lines.lines, strict=True)
        if getattr(record, "kp_event", "") == "kp.trace_scored"
    ]
    return record, line


def test_structlogs_event_is_the_message_and_ours_a_field_beside_it(lines: Lines) -> None:
    structlog = pytest.importorskip("structlog")
    lines.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[
                structlog.contextvars.merge_contextvars,
                structlog.stdlib.add_log_level,
                structlog.stdlib.ExtraAdder(),
            ],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    record, line = scored_of(lines)
    rendered = json.loads(line)
    assert rendered["event"] == record.getMessage()
    assert rendered["event"].startswith("kp.trace_scored finance ")
    assert (rendered["kp_event"], rendered["level"]) == ("kp.trace_scored", "info")
    assert rendered["score"] == vars(record)["score"]
    assert "event" not in vars(record)


def test_what_a_decision_rests_on_is_a_field_and_a_domain_without_basis_is_told_once(
    lines: Lines,
) -> None:
    for _ in range(2):
        run(searching(), domain="a domain of its own")
    events = [(vars(one).get("kp_event"), vars(one).get("basis"), one) for one in lines.records]
    scored = [basis for event, basis, _ in events if event == "kp.trace_scored"]
    assert scored == [DOCUMENTS_FORMULA] * 2
    (record,) = [one for event, _, one in events if event == "kp.no_basis"]
    assert record.levelname == "INFO"
    assert record.getMessage() == f"kp.no_basis a domain of its own: {NO_BASIS}"
    assert (vars(record)["domain"], vars(record)["basis"]) == ("a domain of its own", NO_BASIS)


def test_a_run_that_waits_says_so(lines: Lines) -> None:
    run(searching(), domain="new", policy=DomainPolicy(gate="worth"))
    scored, told = (one.getMessage() for one in lines.records)
    assert scored.startswith("kp.trace_scored new below_threshold (waits) score ")
    assert told == f"kp.no_basis new: {NOTHING_YET}"


# Each is one printable line.


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_json_means_the_same_and_is_printable(text: str) -> None:
    escaped = printable_json(json.dumps({"k": text}, ensure_ascii=False))
    assert escaped.isprintable()
    assert json.loads(escaped) == json.loads(json.dumps({"k": text}))
    assert printable(text).isprintable()
    assert all(line.isprintable() for line in printable(text, keep="\n").split("\n"))


def test_what_is_printable_stays() -> None:
    assert printable("Grüße, 世界 😀 a\u3000b\u2028c\td") == "Grüße, 世界 😀 a b c d"
    assert printable_json('"世界 \u3000"') == '"世界 \\u3000"'


def test_no_text_of_ours_or_of_a_run_forges_a_log_line(lines: Lines) -> None:
    warn_once("a", "it said %s, %r, %.1f", HOSTILE, ValueError(HOSTILE), 1.5)
    warn_once("b", HOSTILE.replace("%", ""))
    log_event("event %s", HOSTILE * 1000, fields={"domain_": HOSTILE, "figure": 3})
    logging.getLogger("kp_langchain").warning("directly %s %d", HOSTILE, 3)
    assert "1.5" in lines.lines[0]
    watching = handler()
    metadata = {"kp_domain": HOSTILE + "x" * 10_000}
    searching().invoke(ASK, {"callbacks": [watching], "metadata": metadata})
    assert watching.flush()
    assert [one for one in lines.records if getattr(one, "kp_event", "") == "kp.trace_scored"]
    assert all(line.isprintable() and len(line) < 1500 for line in lines.lines)
    for record in lines.records:
        texts = [value for value in vars(record).values() if isinstance(value, str)]
        assert all(text.isprintable() for text in texts if text != record.msg)


@pytest.mark.parametrize(
    ("value", "threshold", "text"),
    [
        (0.60994, 0.61, "0.6099"), (0.609999999, 0.61, "0.609999999"), (0.61, 0.61, "0.610"),
        (0.5, 0.61, "0.500"), (0.61004, 0.61, "0.610"), (0.60994, 0.610004, "0.6099"),
    ],
)  # fmt: skip
def test_a_value_below_a_threshold_looks_below_it(
    value: float, threshold: float, text: str
) -> None:
    assert format_against_threshold(value, threshold) == text
