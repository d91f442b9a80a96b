"""The measurement of recall, by cases with known answers and on a handful of recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import recorded
from tests.benchmarks.recall import measure, recorded_runs, tables
from tests.benchmarks.recall.attacks import attacks
from tests.benchmarks.recall.bits import Meter, targets
from tests.benchmarks.recall.costs import costs
from tests.benchmarks.recall.dimensions import correlations, properties, spearman
from tests.benchmarks.recall.figures import TaskMeans
from tests.benchmarks.recall.strangers import answered
from tests.benchmarks.recall.surprise import Part, SmallModel, Surprise
from tests.benchmarks.recall.targets import MOST_CALLS, parts_of
from tests.benchmarks.recall.ways import NOTHING, RANDOM, RECALL, WAYS


class Letters:
    """An embedder at no cost: how often each letter occurs."""

    model = "letters"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = np.ones((len(texts), 128), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            np.add.at(row, np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8), 1)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Counting(SmallModel):
    """A model that is surprised by actions whose tool was not shown before."""

    def _compute(self, prompt: str, parts: Sequence[Part]) -> tuple[float, int, int]:
        tools = [part.text.partition("(")[0] for part in parts if part.is_action]
        return float(sum(tool not in prompt for tool in tools)), len(tools), len(prompt)


def test_means_are_of_tasks_and_not_of_runs() -> None:
    tasks = TaskMeans(["a", "a", "a", "b"])
    assert tasks.mean(np.array([0.0, 0.0, 0.0, 1.0])).value == 0.5
    assert tasks.mean(np.array([0.0, np.nan, 1.0, np.nan])).value == 0.5
    assert tasks.mean(np.full(4, np.nan)).estimate is None
    same = tasks.mean(np.array([0.2, 0.4, 0.6, 0.4]))
    assert same.estimate == pytest.approx({"value": 0.4, "low": 0.4, "high": 0.4})


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3], [10, 20, 90], 1.0),
        ([1, 2, 3], [3, 2, -5], -1.0),
        ([1, 1, 2, 2], [1, 2, 1, 2], 0.0),
        ([1, 1, 1], [1, 2, 3], None),
        ([1, np.nan, 1], [1, 2, 3], None),
    ],
)
def test_rank_correlation(one: list[float], other: list[float], expected: float | None) -> None:
    found = spearman(np.array(one, dtype=float), np.array(other, dtype=float))
    assert found == pytest.approx(expected) if expected is not None else np.isnan(found)


def test_only_the_calls_of_a_run_count() -> None:
    call = {"function": {"name": "search", "arguments": '{"q": "x"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "a policy"},
        {"role": "user", "content": "find x"},
        {"role": "assistant", "content": "I search x", "tool_calls": [call]},
        {"role": "tool", "content": "y " * 500},
        {"role": "user", "content": "find x"},
        {"role": "assistant", "content": "It is y."},
    ]
    parts = parts_of(messages)
    text = "".join(part.text for part in parts)
    assert [part.text for part in parts if part.is_action] == ['search({"q": "x"})']
    assert text.startswith('Task: find x\nCall: search({"q": "x"})\nResult: y y')
    assert "policy" not in text
    assert "I search" not in text
    assert len(text) < 300
    many = parts_of([{"role": "assistant", "tool_calls": [call] * (MOST_CALLS + 5)}])
    assert sum(part.is_action for part in many) == MOST_CALLS


def test_what_was_computed_is_read_again(tmp_path: Path) -> None:
    parts = [Part("Call: "), Part("search()", is_action=True)]
    model = Counting(tmp_path)
    model.__dict__["_name"] = "counting"
    assert model.surprise("", parts) == Surprise(1.0, 1, 0)
    assert model.surprise("search", parts) == Surprise(0.0, 1, 6)
    again = Counting(tmp_path)
    again.__dict__["_name"] = "counting"
    assert again.surprise("search", parts).per_token == 0.0
    assert (model.computed, again.computed) == (2, 0)


def test_a_search_is_timed() -> None:
    found = costs(Letters(), traces=60, queries=5)
    assert 0 < found.median <= found.slowest_of_20 < 1000
    assert min(found.of_three, found.after_one_more) > 0
    assert "60 kept traces" in tables.cost_table(found)


@pytest.mark.skipif(not recorded.present(), reason="needs the recorded runs")
@pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
def test_a_handful_of_recorded_runs(tmp_path: Path) -> None:
    told: list[str] = []
    sources = recorded_runs.sources(Letters(), told.append, of_each=60)
    assert [one.name for one in sources] == list(recorded_runs.SOURCES)
    meter = Meter(Counting(tmp_path))
    meter.model.__dict__["_name"] = "counting"
    by_source = {one.name: measure.measure(one, sources, 2, meter, told.append) for one in sources}
    for source in sources:
        found = by_source[source.name]
        assert set(found.f1) == set(WAYS)
        assert found.f1[NOTHING].value == 0
        assert 0 <= found.f1[RANDOM].value <= found.f1[RECALL].value + 0.3 <= 1.3
        assert found.bits[NOTHING].value == 1.0  # no tool was shown
        assert found.bits[RECALL].value < 1.0
        for query in targets(source):
            assert source.successes[query]
            assert not source.are_attacks[query]
    printed = "\n".join(tables.way_tables(by_source))
    assert "Plan F1 of what is shown" in printed
    assert "Bits a token" in printed
    assert attacks(sources).clean > 0
    stores = {one.name: measure.stores_of(one, 2) for one in sources}
    shares, with_tools = (
        {one.name: answered(stores, one, knows_tools=knows) for one in sources}
        for knows in (False, True)
    )
    for name, of_tasks in shares.items():
        assert of_tasks[name].value == pytest.approx(by_source[name].shown.value)
        assert with_tools[name][name].value == of_tasks[name].value  # their agents have the tools
        assert all(with_tools[name][store].value <= of_tasks[store].value for store in of_tasks)
    assert "store of tau-bench" in tables.stranger_table(shares, with_tools)


@pytest.mark.skipif(not recorded.present(), reason="needs the recorded runs")
@pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")
def test_what_goes_with_a_gain() -> None:
    (source, *_) = recorded_runs.sources(Letters(), lambda _: None, of_each=60)
    numbers = properties(source, 2)
    assert {len(np.atleast_2d(values)) for values in numbers.values()} == {1, 2}
    columns = correlations(
        source, source.queries, lambda _, at: numbers["calls"][at], numbers, competing=None
    )
    assert {"similarity", "agreement"} < set(columns)
    assert np.nanmin(columns["calls"]) == pytest.approx(1.0)
    assert all(np.nanmax(np.abs(column), initial=0.0) <= 1 + 1e-9 for column in columns.values())
