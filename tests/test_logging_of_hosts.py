"""Our log records among the host's: structlog, queues, record classes, JSON, Alembic."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from collections.abc import Iterator
from logging.handlers import QueueHandler
from queue import SimpleQueue
from typing import Any

import pytest

from kp_langchain._logging import log_event
from tests.agents import run, searching

NEEDS_STRUCTLOG = "needs structlog, whose event is the message"


class Lines(logging.Handler):
    """Keeps what its formatter makes of each record, and the record."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What the root logger gets."""
    handler = Lines()
    root, ours = logging.getLogger(), logging.getLogger("kp_langchain")
    before = root.level, ours.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before[0])
    ours.setLevel(before[1])


def scored_of(lines: Lines) -> tuple[logging.LogRecord, str]:
    run(searching(), domain="finance")
    ((record, line),) = [
        (record, line)
        for record, line in zip(lines.records, lines.lines, strict=True)
        if getattr(record, "event", "") == "kp.trace_scored"
    ]
    return record, line


def test_structlogs_event_is_the_message_and_ours_a_field_beside_it(lines: Lines) -> None:
    structlog = pytest.importorskip("structlog", reason=NEEDS_STRUCTLOG)
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
    assert rendered["kp_event"] == "kp.trace_scored"
    assert rendered["score"] == vars(record)["score"]
    assert rendered["level"] == "info"


def test_json_of_all_fields_has_the_name_of_the_event(lines: Lines) -> None:
    record, _ = scored_of(lines)
    fields = vars(record)
    assert fields["kp_event"] == "kp.trace_scored"
    assert "event" not in fields


def test_the_event_travels_with_the_record(lines: Lines) -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    logger = logging.getLogger("kp_langchain")
    logger.addHandler(handler := QueueHandler(queue))
    try:
        scored_of(lines)
    finally:
        logger.removeHandler(handler)
    record = queue.get_nowait()
    for one in (record, copy.copy(record), pickle.loads(pickle.dumps(record))):  # noqa: S301
        assert isinstance(one, logging.LogRecord)
        assert one.event == "kp.trace_scored"  # type: ignore[attr-defined]
        assert vars(one)["domain"] == "finance"


class HostRecord(logging.LogRecord):
    """A host's own class of records."""

    @property
    def team(self) -> str:
        return "payments"


class OwnEvent(logging.LogRecord):
    """A host's records have an `event` already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.event = "the host's"


class Slotted(logging.LogRecord):
    __slots__ = ("more",)


@pytest.mark.parametrize(
    ("kind", "event"),
    [(HostRecord, "kp.thing"), (OwnEvent, "the host's"), (Slotted, "kp.thing")],
)
def test_records_of_the_hosts_own_class_stay_what_they_are(
    lines: Lines, kind: type[logging.LogRecord], event: str
) -> None:
    before = logging.getLogRecordFactory()
    logging.setLogRecordFactory(kind)
    try:
        log_event("it %s", "happened", fields={"event": "kp.thing", "figure": 3})
        logging.getLogger("kp_langchain").info("without an event")
    finally:
        logging.setLogRecordFactory(before)
    record, plain = lines.records
    assert lines.lines[0] == "it happened"
    for one in (record, copy.copy(record), pickle.loads(pickle.dumps(record))):  # noqa: S301
        assert isinstance(one, kind)
        assert getattr(one, "event", None) == event
        assert one.figure == 3  # type: ignore[attr-defined]
    assert type(plain) is kind


def test_a_filter_of_the_hosts_may_read_and_set_the_event(lines: Lines) -> None:
    seen = []

    def rename(record: logging.LogRecord) -> bool:
        seen.append(record.event)  # type: ignore[attr-defined]
        record.event = "mine"
        return True

    logger = logging.getLogger("kp_langchain")
    logger.addFilter(rename)
    try:
        log_event("it happened", fields={"event": "kp.thing"})
    finally:
        logger.removeFilter(rename)
    assert seen == ["kp.thing"]
    assert lines.records[0].event == "mine"  # type: ignore[attr-defined]
    assert vars(lines.records[0])["kp_event"] == "kp.thing"
