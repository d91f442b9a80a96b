"""The store's contract, on SQLite and on PostgreSQL: runs are written, found, listed and read."""

from __future__ import annotations

import json
import math
import pickle
import random
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain import (
    ConfigError,
    StoreError,
    TraceStore,
    UnknownRunError,
)
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import Tool, TraceStep
from kp_langchain.scoring import RuleFired
from kp_langchain.store import rows, run_days, tables
from kp_langchain.store.run_days import Day, note_days
from kp_langchain.store.run_figures import figures_by_domain
from kp_langchain.usage import ModelUsage, Usage
from tests.store.conftest import REGISTRY, START, _scored, complete, execute, rows_by_table

LONG_TASK = f"first {'x ' * 600} last"


def listed(store, **filters):
    """The objectives of the runs that match, the oldest first; every way to list them agrees."""
    runs = store.runs(**filters, newest_first=False, limit=None)
    assert store.count(**filters) == len(runs)
    assert set(store.figures(**filters)["trace_id"]) == {one.trace_id for one in runs}
    kept = [run.trace_id for run in reversed(runs) if run.has_trace]
    assert [one.id for one in store.traces(**filters)] == kept
    return [run.objective for run in runs]


# ------------------------------------------------------------------ what is written comes back


def test_however_many_tokens_a_run_took_figures_have_them(store):
    many = Usage(models=(ModelUsage(model="m", reported_calls=1, input_tokens=3_000_000_000),))
    store.add(replace(_scored(1), usage=replace(many, duration_ms=1e12)), _scored(2))
    assert store.figures()["total_tokens"] == [3e9, None]
    assert store.figures()["duration_ms"] == [1e12, None]
    assert [run.usage for run in store.runs()] == [None, replace(many, duration_ms=1e12)]


def test_a_run_comes_back_with_every_column(store):
    one = _scored(3, score=0.75, keys=RunKeys("s", "t", "hash:u", "n", ("b", "a")))
    store.add(one)
    run = store.get(one.trace.id)
    stored = asdict(run)
    del stored["breakdown"], stored["read_trace"]
    assert stored == {
        "trace_id": one.trace.id, "run_id": str(one.run_id),
        "created_at": datetime(2026, 2, 1, 12, 3, tzinfo=UTC), "domain": "finance",
        "framework": "langgraph", "agent_id": "kp:agent:desk", "objective": "task 3",
        "success": True, "confidence": 0.8, "confidence_source": "reported", "n_steps": 2,
        "score": 0.75, "threshold": 0.6, "decision": "kept", "profile": "finance",
        "visibility": "private", "privacy_level": "aggregated", "has_trace": True,
        "kept_until": None,
        "agreement": None, "veto": None,
        "withheld": None, "session": "s", "thread": "t", "user_hash": "hash:u", "run_name": "n",
        "namespace": None, "tags": ["b", "a"], "gate": "score", "worth": None, "twin_of": None,
        "similarity_to_twin": None, "replaced_by": None, "recovered_errors": 0,
        "tools": ["ledger"], "redactions": {}, "dropped": {}, "usage": None, "is_taken_over": False,
    }  # fmt: skip
    assert (run.breakdown, run.trace) == (one.breakdown, one.trace)
    assert type(run.success) is bool
    assert store.runs() == [run]
    assert store.runs()[0].trace == one.trace
    again = pickle.loads(pickle.dumps(run))  # noqa: S301
    assert again.trace == one.trace
    bodiless = _scored(4, keep=False)
    store.add(bodiless)
    run = store.get(bodiless.trace.id)
    assert (run.has_trace, run.trace, run.breakdown) == (False, None, bodiless.breakdown)
    assert list(store.traces()) == [one.trace]


def test_a_run_that_is_added_again_is_as_it_is_now(store):
    one = _scored(score=0.7, tags=("old", "both"))
    store.add(one)
    again = _scored(trace_id=one.trace.id, objective="another", score=0.3, tags=("new", "both"))
    store.add(*[one, _scored(2), again])
    assert listed(store) == ["another", "task 2"]
    for filters, number in (
        ({"tag": "old"}, 0), ({"tag": "new"}, 1), ({"tag": "both"}, 1), ({"min_score": 0.5}, 1),
        ({"search": "another", "decision": "below_threshold"}, 1),
    ):  # fmt: skip
        assert store.count(**filters) == number
    store.add(replace(again, keys=None))
    assert (store.count(tag="both"), store.get(one.trace.id).tags) == (0, [])


def test_a_batch_is_written_whole_or_not_at_all(store):
    store.add(*[])
    store.add(*(_scored(number) for number in range(3)))
    bad = _scored()
    bad.trace.metadata.__dict__["privacy_level"] = None
    with pytest.raises(StoreError, match="cannot write"):
        store.add(*[_scored(visibility="org"), bad, _scored()], registry=REGISTRY)
    assert (store.count(), sum(store.outbox.counts().values())) == (3, 0)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


ODD = [
    ({"number": -(10**4000)}, {"number": -(10**4000)}),
    ({10: 1}, {"10": 1}),
    ({"deep": nested(150)}, {"deep": nested(150)}),
    (
        {"k\udfff": ["\0", float("nan"), math.inf, {"deep": {1.5}}], "o": object()},
        {"k\ufffd": ["\ufffd", None, None, {"deep": [1.5]}], "o": "<object>"},
    ),
]


def test_what_no_database_takes_is_left_out_and_every_run_is_stored(store):
    """As an integration may hand it over: what LangChain's events hold is cleaned before."""
    runs = [_scored(number, content="a\0b\ud800c \U0001f600") for number in range(len(ODD))]
    for one, (value, _) in zip(runs, ODD, strict=True):
        one.trace.steps[1].__dict__["input"] = value
    store.add(*[*runs, _scored()])
    assert store.count() == len(ODD) + 1
    for one, (_, kept) in zip(runs, ODD, strict=True):
        steps = store.get(one.trace.id).trace.steps
        assert steps[0].content == "a\ufffdb\ufffdc \U0001f600"
        assert steps[1].input == kept
    one = _scored(keep_days=1e15, score=0.1, domain="fin\0ance")
    trace = one.trace.model_copy(update={"vendor": {"n": math.nan, "null": None, "all": [1, 2.5]}})
    store.add(replace(one, trace=trace, task="a\0b", threshold=math.nan))
    run = store.get(one.trace.id)
    assert (run.threshold, run.has_trace, run.kept_until.year > 4000) == (0.0, True, True)
    vendor = {"n": None, "null": None, "all": [1, 2.5]}
    assert run.trace.model_extra == {"vendor": vendor}
    assert (run.domain, store.count(domain="fin\0ance")) == ("fin\ufffdance", 1)
    endless = _scored(tool_input={})
    endless.trace.steps[1].input["self"] = endless.trace.steps[1].input
    with pytest.raises(StoreError, match="cannot be written as JSON"):
        store.add(endless)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats()
    | st.text(st.characters(codec=None, categories=None)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)  # fmt: skip


def storable(value):
    if isinstance(value, str):
        return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {storable(k): storable(v) for k, v in value.items()}
    return [storable(v) for v in value] if isinstance(value, list) else value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.text(st.characters(codec=None, categories=None)), value=JSON)
def test_any_text_and_json_survives_the_round_trip(store, content, value):
    one = _scored(content=content, tool_input={"value": value})
    store.add(one)
    steps = store.get(one.trace.id).trace.steps
    assert steps[0].content == storable(content)
    assert steps[1].input == {"value": storable(value)}


def test_times_keep_their_instant_and_long_names_are_found(store):
    for moment in (
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(2026, 7, 1, 0, 30, 15, 123456, tzinfo=timezone(timedelta(hours=9))),
        datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
    ):
        store.add(one := _scored(created_at=moment))
        run = store.get(one.trace.id)
        assert (run.created_at, run.created_at.tzinfo) == (moment, UTC)
    # Of one kind of characters alone an index would make little, and take it.
    drawn = random.Random(7)
    name = "".join(chr(0x4E00 + drawn.randrange(20_000)) for _ in range(100_000))
    store.add(one := _scored(domain=name, run_id=name, objective="x" * 1_100_000))
    run = store.get(one.trace.id)
    assert (run.domain, run.objective) == (name[:500], "x" * 1_000_000)
    assert (store.count(domain=name), store.get(name)) == (1, run)


def test_a_body_without_bounds_is_refused(store, monkeypatch):
    monkeypatch.setattr(rows, "_LONGEST_BODY_CHARS", 20_000)
    one = _scored(visibility="org", tool_input={str(n): "x" * 100 for n in range(1000)})
    with pytest.raises(StoreError, match="is too large to be stored"):
        store.add(one, registry=REGISTRY)
    assert (store.count(), sum(store.outbox.counts().values())) == (0, 0)


def test_a_trace_without_steps_is_neither_kept_nor_contributed(store):
    whole, emptied = _scored(visibility="network"), _scored(visibility="network")
    emptied.trace.steps.clear()
    store.add(*[whole, emptied], registry=REGISTRY)
    assert store.get(emptied.trace.id).has_trace is False
    assert [trace.id for trace in store.traces()] == [whole.trace.id]
    assert [one.trace_id for one in store.outbox.contributions()] == [whole.trace.id]


def test_what_was_redacted_and_dropped_is_counted_by_kind(store):
    text = "[REDACTED:email#k3f9x2m1qa] and [REDACTED:email] [REDACTED:card] [REDACTED:NO]"
    for keep in (True, False):
        store.add(one := _scored(content=text, keep=keep, dropped={"steps": 2}))
        run = store.get(one.trace.id)
        assert (run.redactions, run.dropped) == ({"email": 2, "card": 1}, {"steps": 2})


# ------------------------------------------------------------------ what selects runs


def with_steps(one, *steps):
    return replace(one, trace=one.trace.model_copy(update={"steps": list(steps)}))


ODD_TOOL = 'a "tool", \\ with_100%'
ALL = list(range(8))
FILTERS = [
    ({}, ALL),
    ({"domain": "code"}, [1]), ({"domain": "other\x00"}, []), ({"decision": "kept"}, [0, 3]),
    ({"min_score": 0.7}, [0, 1, 3]), ({"min_score": 0.95}, []),
    ({"since": START + timedelta(minutes=1)}, ALL[1:]),
    ({"until": START + timedelta(minutes=3)}, [0, 1, 2]),
    ({"since": START + timedelta(minutes=1), "until": START + timedelta(minutes=3)}, [1, 2]),
    ({"since": (START + timedelta(minutes=7)).astimezone().replace(tzinfo=None)}, [7]),
    ({"since": datetime.max.replace(year=9000)}, []),
    ({"search": "euro"}, [0, 1]), ({"search": "EURO hedge"}, [0]), ({"search": "hedge  euro"}, [0]),
    ({"search": "straße"}, [2]), ({"search": "STRASSE"}, [2]), ({"search": "100%"}, [3]),
    ({"search": "a_b"}, [3]), ({"search": "axb"}, []), ({"search": "東京"}, [4]),
    ({"search": "%"}, [3]), ({"search": "/"}, []), ({"search": ""}, ALL), ({"search": "  "}, ALL),
    ({"search": "\x00"}, []), ({"search": "\ud800"}, []), ({"search": "x" * 5000}, []),
    ({"search": "first"}, [5]), ({"search": "last"}, []),
    ({"rule": "single_tool"}, [6]), ({"rule": "single"}, []), ({"tool": ODD_TOOL}, [7]),
    ({"rule": "answer_unable"}, [6]), ({"rule": "repeated_calls"}, [6]),
    ({"rule": "last_call_failed"}, []),
    ({"tool": ODD_TOOL.upper()}, []), ({"tool": "edge"}, []), ({"tool": "ledger"}, ALL[:7]),
    ({"recovered_errors": True}, [7]), ({"decision": "twin"}, [2]),
    ({"decision": None, "recovered_errors": False}, ALL),
    ({"session": "s"}, [4, 5]), ({"session": "s", "tag": "u"}, [5]), ({"tag": "t"}, [4, 5]),
    ({"namespace": "n"}, [5]), ({"domain": "code", "tag": "t"}, []),
    ({"domain": "finance", "session": "s", "tag": "t", "search": "tokyo"}, []),
]  # fmt: skip


def test_conditions_select_runs(store):
    tasks = ["Hedge the Euro", "the euro falls", "Hauptstraße 5", "100% of a_b", "明日の東京の天気",
             LONG_TASK, "g", "h"]  # fmt: skip
    runs = [_scored(number, objective=task, score=0.1) for number, task in enumerate(tasks)]
    runs[0] = _scored(0, objective=tasks[0])
    runs[1] = _scored(1, objective=tasks[1], domain="code", score=0.9, threshold=0.95)
    runs[2] = replace(runs[2], decision="twin", twin_of=runs[0].trace.id)
    runs[3] = _scored(3, objective=tasks[3], score=0.9)
    runs[4] = replace(runs[4], keys=RunKeys(session="s", tags=("t",)))
    runs[5] = replace(runs[5], keys=RunKeys(session="s", tags=("t", "u"), namespace="n"))
    fired = (RuleFired("single_tool", 0.7, 0.6), RuleFired("recovered_errors", 0.6, 0.7))
    flags = ("answer_unable", "repeated_calls")
    runs[6] = replace(runs[6], breakdown=replace(runs[6].breakdown, rules=fired, flags=flags))
    runs[7] = with_steps(
        runs[7],
        TraceStep(step_id=0, type="tool_call", tool=Tool(name=ODD_TOOL)),
        TraceStep(step_id=1, type="error_recovery", tool=Tool(name=ODD_TOOL), content="no"),
        TraceStep(step_id=2, type="thought", content="so"),
    )
    store.add(*runs)
    for filters, numbers in FILTERS:
        assert listed(store, **filters) == [tasks[number] for number in numbers], filters
    # The one whose place another took is one of the repeats, and is no longer kept.
    store.add(replace(_scored(9, objective="i"), replaces=(runs[0].trace.id,)))
    assert listed(store, decision="twin") == [tasks[0], tasks[2]]
    assert store.get(runs[0].trace.id).decision == "twin"
    with pytest.raises(TypeError, match="colour"):
        store.runs(colour="red")


def test_the_highest_score_or_novelty_comes_first_and_fifty_by_default(store):
    values = [(0.5, 0.9), (0.9, 0.1), (0.7, 0.5)]
    store.add(*(_scored(n, score=s, novelty=new) for n, (s, new) in enumerate(values)))

    def order(**options):
        return "".join(run.objective[-1] for run in store.runs(**options))

    assert [order(sort=sort) for sort in ("score", "novelty", "time")] == ["120", "021", "210"]
    assert order() == "210"
    assert order(sort="score", newest_first=False) == "021"
    assert order(sort="score", search="task", limit=2) == "12"
    assert order(sort="score", limit=1, offset=1) == "2"
    store.add(*(_scored(number) for number in range(3, 55)))
    assert (len(store.runs()), store.runs(limit=0)) == (50, [])
    assert len(store.runs(limit=None, offset=50)) == 5
    for wrong in ({"limit": -1}, {"offset": -1}):
        with pytest.raises(ConfigError, match="-1"):
            store.runs(**wrong)


def test_an_iterator_of_traces_holds_nothing_and_takes_in_what_is_added(store):
    store.add(*(_scored(number) for number in range(45)))
    started = [store.traces() for _ in range(30)]
    assert all(next(one).task.objective == "task 44" for one in started)
    seen = []
    for trace in store.traces():
        if not seen:
            store.add(*[_scored(100), _scored(-100)])
        seen.append(trace.task.objective)
    assert seen == [f"task {number}" for number in reversed(range(45))] + ["task -100"]


# ------------------------------------------------------------------ ids

TRACE = "5f0c1a2b-0000-4000-8000-000000000001"
OTHER = "5f0c1a2b-0000-4000-8000-000000000002"
RUN = "9a9a9a9a-1111-4111-8111-111111111111"
FOREIGN = [
    "finance-demo-001", "Finance-Demo-001", "crewai-Research the latest ",
    "crewai-Research the latest", "0F8FAD5B-D9CB-469F-A165-70867728950E", "a/b?c=d#e%20f_%",
    "事例 😀", "\x1b[2J\n\u202e", "[/red]", "a\x00", "a\ufffd", "x" * 5000, "x" * 4999 + "y",
    "😀" * 150, "\U0010ffff", "\ud7ff", "kp:trace:", "kp:trace:finance-demo-001",
]  # fmt: skip
FOUND = [  # by a beginning
    ("finance-demo", 0), ("Finance", 1), ("FINANCE-demo-001", 0), ("a/b?c=d#e%20f_%", 5),
    ("kp:trace:a/b?", 5), ("事例 😀", 6), ("[/re", 8), ("kp:trace:\U0010ffff", 14),
    ("kp:trace:\ud7ff", 15), (" 0F8FAD5B\n", 4), ("kp:trace:kp:trace:f", 17),
]  # fmt: skip
UNKNOWN = ["", " ", "cre", "fin", "kp:trace:", "KP:TRACE:", "%", "_", "b/", "kp:tracf", "\ud800",
           "\0", "z" * 9000, "5f0c1a2c", "5f0c%", "5f0c1a2_", RUN + "1"]  # fmt: skip


def test_each_id_of_any_writer_is_found_by_its_whole_and_by_its_beginning(store):
    runs = [
        _scored(number, trace_id=f"kp:trace:{name}", visibility="org", domain="😀" * 500)
        for number, name in enumerate(FOREIGN)
    ]
    store.add(*runs, registry=REGISTRY)
    ids = [run.trace_id for run in store.runs(limit=None)]
    assert len({*ids}) == len(FOREIGN)
    assert max(map(len, ids)) <= 150
    for number, one in enumerate(runs):
        run = store.get(one.trace.id)
        assert run.objective == f"task {number}"
        assert run.trace.id == one.trace.id.replace("\x00", "\ufffd")
        assert store.get(run.trace_id) == run
        waiting = store.outbox.get(one.trace.id)
        assert waiting.unit_id == json.loads(waiting.body)["id"] == run.trace.id
    for beginning, number in FOUND:
        assert store.get(beginning).objective == f"task {number}"
    for unknown in UNKNOWN:
        assert store.get(unknown) is store.outbox.get(unknown) is None
        with pytest.raises(UnknownRunError):
            store.report_outcome(unknown, success=True)
    for several in ("crewai", "crewai-Research the lat"):
        with pytest.raises(UnknownRunError, match="may mean several") as caught:
            store.get(several)
        assert all(f"kp:trace:{name}" in str(caught.value) for name in FOREIGN[2:4])
        with pytest.raises(StoreError, match="may mean several"):
            store.outbox.get(several)
    for number in (2, 9, 11, 13, 17):
        (change,) = store.report_outcome(runs[number].trace.id, success=False, note="no")
        assert [one.note for one in store.verdicts(runs[number].trace.id)] == ["no"]
        assert store.verdicts(change.trace_id) == store.verdicts(runs[number].trace.id)


def test_a_run_is_found_by_trace_id_run_id_and_beginnings_of_them(store):
    store.add(_scored(1, trace_id=f"kp:trace:{TRACE}", run_id=uuid.UUID(RUN)))
    store.add(_scored(2, trace_id=f"kp:trace:{OTHER}"))
    for wanted in (f"kp:trace:{TRACE}", TRACE, TRACE.upper(), f"KP:TRACE:{TRACE.upper()}",
                   f" {TRACE}\n", RUN, RUN[:6]):  # fmt: skip
        assert store.get(wanted).objective == "task 1"
    with pytest.raises(StoreError, match="several") as caught:
        store.get("5f0c1a2b")
    assert all(part in str(caught.value) for part in (TRACE, OTHER, "finance"))
    store.add(*[_scored(3, run_id="abc"), _scored(4, run_id="abcdef")])
    assert store.get("abc").objective == "task 3"  # an exact one beats what begins with it
    store.add(_scored(5, run_id=RUN))
    with pytest.raises(StoreError, match="several"):
        store.get(RUN)


# ------------------------------------------------------------------ stores


def test_threads_share_one_store_which_opens_again_after_it_was_closed(store):
    gate = threading.Barrier(4)

    def work(number):
        gate.wait()
        for i in range(10):
            one = _scored(number * 10 + i)
            store.add(one)
            assert store.get(one.trace.id).trace == one.trace
            store.runs(limit=3)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, number) for number in range(4)]:
            done.result()
    assert store.count() == 40
    (run,) = store.runs(limit=1)
    store.close()
    store.close()
    assert run.trace.task.objective == "task 39"
    assert store.count() == 40


# ------------------------------------------------------------------ figures by day


def same_figures(store: TraceStore) -> bool:
    """Whether what is kept by day is what counting all runs gives."""
    counted, kept = figures_by_domain(store.figures()), store.domain_figures()

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(one) for name, one in value.items()}
        return round(value, 6) if isinstance(value, float) else value

    assert rounded(kept) == rounded(counted)
    for domain in counted:
        assert rounded(store.domain_figures(domain=domain)) == {domain: rounded(counted[domain])}
    return True


def test_figures_that_are_kept_by_day_are_those_of_all_runs(store):
    assert store.domain_figures() == {}
    many = [
        complete(
            number,
            score=0.4 + number / 60,
            domain=("finance", "code")[number % 2],
            created_at=START + timedelta(hours=9 * number),
            verdict=None,
        )
        for number in range(30)
    ]
    rule = RuleFired("single_tool", 0.7, 0.6)
    many = [replace(one, breakdown=replace(one.breakdown, rules=(rule,))) for one in many]
    store.add(*many)
    assert same_figures(store)
    days = rows_by_table(store)["run_days"]
    assert len(days) > 10
    assert rows_by_table(store)["changed_days"] == []
    changes: list[Callable[[], object]] = [
        lambda: store.report_outcome(many[0].trace.id, success=False),
        lambda: store.report_outcome(many[29].trace.id, success=True, by_model=True),
        lambda: store.delete(many[3].trace.id),
        lambda: store.add(replace(complete(31, score=0.9), replaces=(many[28].trace.id,))),
        lambda: store.add(complete(0, trace_id=many[5].trace.id, domain="other")),
        lambda: store.delete(until=START + timedelta(days=3)),
    ]
    for change in changes:
        change()
        assert same_figures(store)
        kept = {(row["domain"], row["day"]): row for row in rows_by_table(store)["run_days"]}
        unchanged = [row for row in days if kept.get((row["domain"], row["day"])) == row]
        assert len(unchanged) >= len(days) // 2
        days = list(kept.values())
    store.delete(until=datetime.now(UTC))
    assert store.domain_figures() == {}
    assert rows_by_table(store)["run_days"] == []


def test_figures_miss_no_run_of_a_transaction_under_way(new_postgres_url):
    url = new_postgres_url()
    with TraceStore(url) as store, TraceStore(url) as other, ExitStack() as open_ones:
        store.add(_scored(1))
        connection = open_ones.enter_context(other.database.writing())
        note_days(connection, [Day.of("finance", START)])
        late = {**execute(store, "SELECT * FROM runs")[0]._mapping, "trace_id": "kp:trace:late"}
        connection.execute(sa.insert(tables.runs), late)
        assert store.domain_figures()["finance"]["runs"] == 1  # and waits for nobody
        open_ones.close()
        assert store.domain_figures()["finance"]["runs"] == 2
        assert same_figures(store)


def test_days_that_many_transactions_changed_are_noted_once(store, url):
    rows = [_scored(number) for number in range(6)]
    for one in rows:
        store.add(one)
    with store.database.writing() as connection:
        run_days.merge_changes(connection)
    assert len(rows_by_table(store)["changed_days"]) == 1
    store.add(_scored(9, created_at=datetime(9999, 12, 31, 23, tzinfo=UTC)))
    assert store.domain_figures()["finance"]["runs"] == 7
    assert same_figures(store)


def test_figures_are_counted_where_they_cannot_be_kept(store, monkeypatch):
    store.add(_scored(1), _scored(2, domain="code"))

    def refuse(*_: object) -> None:
        raise sa.exc.OperationalError("", None, OSError("cannot be written"))

    with monkeypatch.context() as patch:
        patch.setattr(run_days, "lock_names", refuse)
        assert same_figures(store)
        assert rows_by_table(store)["run_days"] == []
    assert same_figures(store)
    assert len(rows_by_table(store)["run_days"]) == 2
