"""Writing and finding runs; every test runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
import sqlite3
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kp_langchain.errors import ConfigError, KPError, StoreError
from kp_langchain.run_keys import RunKeys
from kp_langchain.schema import ReasoningTrace
from kp_langchain.store import TraceStore, default_store, rows


@pytest.fixture
def store(url):
    with TraceStore(url) as store:
        yield store


def test_a_run_comes_back_with_every_column(store, scored):
    one = scored(3, score=0.75, keep=True, keys=RunKeys("s", "t", "hash:u", "n", ("b", "a")))
    store.add(one)
    run = store.get(one.trace.id)
    columns = asdict(run)
    assert columns == {
        "trace_id": one.trace.id,
        "run_id": str(one.run_id),
        "created_at": datetime(2026, 2, 1, 12, 3, tzinfo=UTC),
        "domain": "finance",
        "framework": "langgraph",
        "agent_id": "kp:agent:desk",
        "objective": "task 3",
        "success": True,
        "confidence": 0.8,
        "confidence_source": "reported",
        "n_steps": 2,
        "score": 0.75,
        "threshold": 0.6,
        "decision": "contributed",
        "profile": "finance",
        "visibility": "private",
        "privacy_level": "aggregated",
        "kept": True,
        "kept_until": None,
        "withheld": None,
        "session": "s",
        "thread": "t",
        "user_hash": "hash:u",
        "run_name": "n",
        "namespace": None,
        "tags": ["b", "a"],
        "gate": "score",
        "worth": None,
        "twin_of": None,
        "similarity_to_twin": None,
        "replaced_by": None,
        "recovered_errors": 0,
        "tools": ["ledger"],
        "redactions": {},
        "dropped": {},
    }
    assert run.breakdown == one.breakdown
    assert run.trace == one.trace
    assert run.created_at.utcoffset() == timedelta(0)
    assert type(run.success) is bool


def test_a_run_that_is_replaced_has_the_new_tags_alone(store, scored):
    one = scored(keys=RunKeys(tags=("old", "both")))
    store.add(one)
    store.add(replace(one, keys=RunKeys(tags=("new", "both"))))
    assert [store.count(tag=tag) for tag in ("old", "new", "both")] == [0, 1, 1]
    store.add(replace(one, keys=None))
    assert store.count(tag="both") == 0
    assert store.get(one.trace.id).tags == []


def test_an_unkept_body_leaves_its_figures(store, scored):
    one = scored(keep=False)
    store.add(one)
    run = store.get(one.trace.id)
    assert run.kept is False
    assert run.trace is None
    assert run.breakdown.total == 0.7
    assert list(store.traces()) == []


def test_listed_runs_can_show_their_trace(store, scored):
    one = scored()
    store.add(one)
    (listed,) = store.runs()
    assert listed.trace == one.trace
    assert listed == store.get(one.trace.id)


def test_the_same_trace_again_replaces(store, scored):
    first = scored(score=0.2, keep=False)
    store.add(first)
    second = scored(9, trace_id=first.trace.id, domain="code", score=0.9)
    store.add(second)
    assert store.count() == 1
    run = store.get(first.trace.id)
    assert (run.score, run.domain, run.decision, run.trace) == (
        0.9,
        "code",
        "contributed",
        second.trace,
    )
    store.add(first)
    assert store.get(first.trace.id).trace is None


def test_a_batch_may_name_a_trace_twice_and_the_last_one_counts(store, scored):
    first = scored(score=0.2)
    last = scored(trace_id=first.trace.id, score=0.3)
    store.add_many([first, scored(), last])
    assert store.count() == 2
    assert store.get(first.trace.id).score == 0.3


def test_add_many_takes_nothing_and_iterators(store, scored):
    store.add_many([])
    store.add_many(scored(n) for n in range(3))
    assert store.count() == 3


def test_a_batch_is_written_whole_or_not_at_all(store, scored):
    store.add(scored())
    bad = scored()
    bad.trace.outcome.__dict__["confidence"] = None
    with pytest.raises(StoreError, match="cannot write"):
        store.add_many([scored(), bad, scored()])
    assert store.count() == 1


class Unreadable(dict):
    def items(self):
        raise RuntimeError("not today")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def endless():
    value = {"a": 1}
    value["self"] = [value]
    return value


ODD_VALUES = [
    ({"number": 10**5000}, {"number": "[left out: a number of 16610 bits]"}),
    ({"number": -(10**4000)}, {"number": -(10**4000)}),
    ({10**5000: 1}, {"<int>": 1}),
    ({"nested": Unreadable(a=1)}, {"nested": {"a": 1}}),
]


def with_input(one, value):
    # As an integration may hand it over: what LangChain's events hold is cleaned before.
    one.trace.steps[1].__dict__["input"] = value
    return one


@pytest.mark.parametrize(("value", "kept"), ODD_VALUES, ids=range(len(ODD_VALUES)))
def test_what_no_database_takes_is_left_out_and_the_run_is_stored(store, scored, value, kept):
    one = with_input(scored(content="the rest"), value)
    store.add(one)
    steps = store.get(one.trace.id).trace.steps
    assert steps[1].input == kept
    assert steps[0].content == "the rest"


def test_a_value_that_holds_itself_is_written_up_to_there(store, scored):
    one = with_input(scored(), endless())
    store.add(one)
    kept = store.get(one.trace.id).trace.steps[1].input
    assert kept["a"] == 1
    assert "[left out: it holds itself]" in json.dumps(kept)


def test_json_is_cleaned_of_what_cannot_be_written():
    assert rows.clean_json(endless()) == {"a": 1, "self": ["[left out: it holds itself]"]}
    unreadable = "[left out: a Unreadable that cannot be read]"
    assert rows.clean_json([1, Unreadable(a=1)]) == [1, unreadable]
    same = [1]
    assert rows.clean_json([same, same]) == [same, same]


@pytest.mark.parametrize("depth", [150, 240, 300, 900, 5000, 100_000])
def test_values_nested_at_any_depth_are_stored(store, scored, depth):
    one = with_input(scored(), {"deep": nested(depth)})
    store.add(one)
    text = json.dumps(store.get(one.trace.id).trace.steps[1].input)
    assert text.count("[") == depth + 1 or "[left out: nested deeper than 200]" in text


def test_odd_values_among_unknown_fields_are_left_out_too(store, scored):
    one = scored()
    trace = one.trace.model_copy(update={"vendor": {"n": 10**5000}, "list": [endless()]})
    store.add(replace(one, trace=trace, task="a\0b", threshold=math.nan))
    run = store.get(one.trace.id)
    assert run.threshold == 0.0
    extra = run.trace.model_extra
    assert extra["vendor"] == {"n": "[left out: a number of 16610 bits]"}
    assert "[left out: it holds itself]" in json.dumps(extra["list"])


def test_a_run_of_odd_values_spoils_no_other_of_its_batch(store, scored):
    odd = with_input(scored(), {"number": 10**5000})
    store.add_many([scored(), odd, scored()])
    assert store.count() == 3


def test_days_beyond_the_calendar_s_end_are_for_good(store, scored):
    one = scored(score=0.1, keep_days=1e15)
    store.add(one)
    assert store.get(one.trace.id).kept_until is None
    assert store.get(one.trace.id).kept


def test_names_of_any_length_are_stored_and_found(store, scored):
    # Of one kind of characters alone an index would make little, and take it.
    drawn = random.Random(7)
    name = "".join(chr(0x4E00 + drawn.randrange(20_000)) for _ in range(100_000))
    one = scored(domain=name, run_id=name)
    store.add(one)
    assert store.get(one.trace.id).domain == name[:500]
    assert store.count(domain=name) == 1
    assert store.get(name) is not None


class TestLargeBodies:
    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch):
        monkeypatch.setattr(rows, "_LONGEST_BODY_CHARS", 20_000)

    def test_its_long_texts_are_left_out(self, store, scored):
        one = scored(content="long " * 4000, tool_input={"short": "yes", "long": "x" * 10_001})
        store.add(one)
        steps = store.get(one.trace.id).trace.steps
        assert steps[0].content == "[left out: 20000 characters]"
        assert steps[1].input == {"short": "yes", "long": "[left out: 10001 characters]"}

    def test_one_of_many_short_texts_leaves_its_figures(self, store, scored, caplog):
        one = scored(tool_input={str(n): "x" * 100 for n in range(1000)})
        store.add(replace(one), registry="https://kp.example")
        run = store.get(one.trace.id)
        assert (run.kept, run.trace, run.score) == (False, None, 0.7)
        assert "is too large to be kept" in caplog.text
        assert sum(store.outbox.counts().values()) == 0

    def test_a_text_column_is_cut(self, store, scored):
        one = scored()
        one.trace.task.objective = "x" * 1_100_000
        store.add(one)
        assert store.get(one.trace.id).objective == "x" * 1_000_000


def test_filters_order_and_pages_agree_with_a_plain_list(store, scored):
    plan = list(itertools.product(["finance", "code"], [0.1, 0.5, 0.6, 0.9], range(4)))
    everything = [
        scored(minute, domain=domain, score=score, keep=score > 0.5)
        for domain, score, minute in plan
    ]
    store.add_many(everything)
    ordered = sorted(everything, key=lambda s: (s.trace.metadata.created_at, s.trace.id))
    for domain, decision, low, newest_first in itertools.product(
        [None, "code", "nowhere"],
        [None, "contributed", "below_threshold"],
        [None, 0.5, 0.95],
        [True, False],
    ):
        which = {"domain": domain, "decision": decision, "min_score": low}
        expected = [
            one
            for one in (reversed(ordered) if newest_first else ordered)
            if domain in (None, one.trace.metadata.task_domain)
            and decision in (None, one.decision)
            and (low is None or one.breakdown.total >= low)
        ]
        ids = [one.trace.id for one in expected]
        assert store.count(**which) == len(expected)
        listed = store.runs(**which, limit=None, newest_first=newest_first)
        assert [run.trace_id for run in listed] == ids
        page = store.runs(**which, limit=5, offset=3, newest_first=newest_first)
        assert [run.trace_id for run in page] == ids[3:8]
        kept = [one.trace for one in expected if one.keep_body]
        assert list(store.traces(**which, newest_first=newest_first)) == kept


def test_runs_gives_fifty_unless_told(store, scored):
    store.add_many([scored(n) for n in range(55)])
    assert len(store.runs()) == 50
    assert store.runs()[0].objective == "task 54"
    assert store.runs(limit=0) == []
    assert len(store.runs(limit=None, offset=50)) == 5


@pytest.mark.parametrize("wrong", [{"limit": -1}, {"offset": -1}])
def test_negative_pages_are_refused(store, wrong):
    with pytest.raises(ConfigError, match="-1"):
        store.runs(**wrong)


def test_writing_while_traces_are_read(store, scored):
    store.add_many([scored(n) for n in range(45)])
    seen = []
    for trace in store.traces(newest_first=False):
        if not seen:
            store.add(scored(100))
            store.add(scored(-100))
        seen.append(trace.task.objective)
    assert seen == [f"task {n}" for n in range(45)] + ["task 100"]


def test_a_half_read_iterator_holds_nothing(store, scored):
    store.add_many([scored(n) for n in range(3)])
    started = [store.traces() for _ in range(30)]
    assert all(next(one).task.objective == "task 2" for one in started)
    store.add(scored())


class TestGet:
    TRACE = "5f0c1a2b-0000-4000-8000-000000000001"
    OTHER = "5f0c1a2b-0000-4000-8000-000000000002"
    RUN = "9a9a9a9a-1111-4111-8111-111111111111"

    @pytest.fixture
    def filled(self, store, scored):
        store.add(scored(1, trace_id=f"kp:trace:{self.TRACE}", run_id=uuid.UUID(self.RUN)))
        store.add(scored(2, trace_id=f"kp:trace:{self.OTHER}"))
        return store

    @pytest.mark.parametrize(
        "wanted",
        [f"kp:trace:{TRACE}", TRACE, TRACE.upper(), f" {TRACE}\n", TRACE[:-1] + "1", RUN, RUN[:6]],
    )
    def test_finds_by_trace_id_run_id_and_prefix(self, filled, wanted):
        assert filled.get(wanted).objective == "task 1"

    @pytest.mark.parametrize(
        "wanted",
        [
            "",
            "kp:trace:",
            "5f0c1a2c",
            "zz",
            "5f0c%",
            "5f0c1a2_",
            "\0",
            "\ud800",
            RUN + "1",
            "5f" * 50,
        ],
    )
    def test_finds_nothing(self, filled, wanted):
        assert filled.get(wanted) is None

    def test_an_ambiguous_prefix_lists_the_matches(self, filled):
        with pytest.raises(StoreError, match="several") as caught:
            filled.get("5f0c1a2b")
        assert self.TRACE in str(caught.value)
        assert self.OTHER in str(caught.value)
        assert "finance" in str(caught.value)

    def test_an_exact_id_beats_what_begins_with_it(self, store, scored):
        store.add(scored(1, run_id="abc"))
        store.add(scored(2, run_id="abcdef"))
        assert store.get("abc").objective == "task 1"

    def test_one_run_recorded_twice_is_ambiguous(self, store, scored):
        store.add_many([scored(1, run_id=self.RUN), scored(2, run_id=self.RUN)])
        with pytest.raises(StoreError, match="several"):
            store.get(self.RUN)


def test_times_keep_their_instant(store, scored):
    tokyo = timezone(timedelta(hours=9))
    moments = [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(2026, 7, 1, 0, 30, 15, 123456, tzinfo=tokyo),
        datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
    ]
    for moment in moments:
        one = scored(created_at=moment)
        store.add(one)
        run = store.get(one.trace.id)
        assert run.created_at == moment
        assert run.created_at.tzinfo is UTC


def test_text_no_database_takes_is_replaced(store, scored):
    one = scored(
        content="a\0b\ud800c \U0001f600",
        domain="fin\0ance",
        tool_input={"k\udfff": ["\0", float("nan"), math.inf, {"deep": b"\xff\0"}], "o": object()},
    )
    store.add(one)
    run = store.get(one.trace.id)
    assert run.domain == "fin\ufffdance"
    assert run.trace.steps[0].content == "a\ufffdb\ufffdc \U0001f600"
    assert run.trace.steps[1].input == {
        "k\ufffd": ["\ufffd", None, None, {"deep": "\ufffd\ufffd"}],
        "o": "<object>",
    }
    assert store.count(domain="fin\0ance") == 1


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None, categories=None)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


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
def test_any_text_and_json_survives_the_round_trip(store, scored, content, value):
    one = scored(content=content, tool_input={"value": value})
    store.add(one)
    steps = store.get(one.trace.id).trace.steps
    assert steps[0].content == storable(content)
    assert steps[1].input == {"value": storable(value)}


def test_unknown_fields_and_absent_ones_survive(store, scored):
    one = scored()
    data = one.trace.model_dump()
    data["vendor"] = {"note": None, "list": [1, 2.5]}
    store.add(
        type(one)(
            **{f.name: getattr(one, f.name) for f in fields(one)}
            | {"trace": ReasoningTrace.model_validate(data)}
        )
    )
    kept = store.get(one.trace.id).trace
    assert kept.model_dump() == data


def test_threads_share_one_store(store, scored):
    gate = threading.Barrier(8)

    def work(number):
        gate.wait()
        for i in range(10):
            one = scored(number * 10 + i)
            store.add(one)
            assert store.get(one.trace.id).trace == one.trace
            store.runs(limit=3)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, n) for n in range(8)]:
            done.result()
    assert store.count() == 80


def test_a_closed_store_opens_again(store, scored):
    one = scored()
    store.add(one)
    (run,) = store.runs()
    store.close()
    store.close()
    assert run.trace == one.trace
    assert store.count() == 1


def test_runs_and_stores_travel_between_processes(store, scored):
    one = scored()
    store.add(one)
    run = pickle.loads(pickle.dumps(store.get(one.trace.id)))  # noqa: S301
    assert run.trace == one.trace
    assert pickle.loads(pickle.dumps(store)).location == store.location  # noqa: S301


def test_one_shared_store_per_database(url, tmp_path):
    shared = default_store(url)
    assert default_store(url) is shared
    assert default_store(tmp_path / "other.db") is not shared
    shared.close()


def test_store_errors_are_kp_errors():
    assert issubclass(StoreError, KPError)


@pytest.mark.parametrize("filters", [{}, {"decision": "contributed"}, {"domain": "finance"}])
@pytest.mark.parametrize("with_expiring", [True, False])
def test_a_page_of_traces_is_read_in_order_and_not_sorted(tmp_path, scored, filters, with_expiring):
    """Else each page would read all runs of a large store."""
    with TraceStore(tmp_path / "traces.db") as store:
        store.add_many([scored(number) for number in range(30)])
        statements = []

        def note(connection, cursor, statement, parameters, *_):
            statements.append((statement, parameters))

        engine = store.database.open().engine
        sa.event.listen(engine, "before_cursor_execute", note)
        assert len(list(store.traces(with_expiring=with_expiring, **filters))) == 30
        sa.event.remove(engine, "before_cursor_execute", note)
        with closing(sqlite3.connect(tmp_path / "traces.db")) as connection:
            for statement, parameters in statements:
                plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
                assert "TEMP B-TREE" not in str(plan.fetchall())
