"""What the settings say of novelty's memory and of steps, in the scores that they lead to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kp_langchain import KPCallbackHandler, Scorer, VectorCache, default_scorer, evaluate_value
from kp_langchain.embedding.embedder_protocol import _default_embedder
from kp_langchain.errors import ConfigError
from kp_langchain.schema import ReasoningTrace
from tests.agents import ASK, searching
from tests.scoring.test_scorer import Words


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, onnx_folder: Path) -> Iterator[None]:
    """The default scorer is still to be made, with a real model."""
    _default_embedder.cache_clear()
    monkeypatch.setattr("kp_langchain.scoring.process_scorer._default_scorer", None)
    monkeypatch.setenv("KP_EMBEDDING_MODEL", str(onnx_folder))
    yield
    _default_embedder.cache_clear()


def pass_time() -> None:
    """Return when the clock of the memory has moved by more than a microsecond."""
    until = time.monotonic() + 2e-6
    while time.monotonic() <= until:
        pass


def with_steps(number: int) -> ReasoningTrace:
    step = {"step_id": 0, "type": "thought", "content": "I think."}
    return ReasoningTrace.model_validate(
        {
            "task": {"objective": "Count."},
            "steps": [step | {"step_id": at} for at in range(number)],
            "outcome": {"result_summary": "done", "confidence": 0.8},
            "metadata": {"task_domain": "default", "success": True},
        }
    )


def test_capacity(fresh, folder, make_trace):
    (folder / "kp.toml").write_text("novelty_memory = 1\n")
    first, second = make_trace(), make_trace(objective="Bake bread.", content="Flour, water.")
    assert evaluate_value(first) != evaluate_value(second)
    assert default_scorer().max_remembered == 1
    # The second has pushed the first one out.
    assert default_scorer().score(first).nearest.trace_id == second.id


def test_ttl(fresh, monkeypatch, make_trace):
    monkeypatch.setenv("KP_NOVELTY_TTL_S", "0.000001")
    evaluate_value(make_trace())
    pass_time()
    assert default_scorer().score(make_trace()).novelty_source == "empty cache"


def test_without_a_ttl_nothing_expires(fresh, make_trace):
    evaluate_value(make_trace())
    pass_time()
    assert default_scorer().score(make_trace()).novelty.value == pytest.approx(0, abs=1e-6)


def test_step_cap(fresh, folder):
    (folder / "kp.toml").write_text("step_cap = 20\n")
    capped, counted = (
        default_scorer().score(with_steps(40)),
        Scorer(embedder=None).score(with_steps(40)),
    )
    assert capped.complexity.value == Scorer(embedder=None).score(with_steps(20)).complexity.value
    assert counted.complexity.value > capped.complexity.value


def test_a_handler_without_a_scorer_goes_by_them(fresh, monkeypatch):
    monkeypatch.setenv("KP_STEP_CAP", "1")
    handler = KPCallbackHandler(store=None)
    searching().invoke(ASK, {"callbacks": [handler]})
    scored = handler.last()
    assert scored is not None
    assert len(scored.trace.steps) == 4
    one = Scorer(embedder=None, step_cap=1).score(scored.trace)
    assert scored.breakdown.complexity == one.complexity


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_remembered": 0}, "max_remembered is 0"),
        ({"max_remembered": True}, "max_remembered is True"),
        ({"ttl_ms": -1}, "ttl_ms is -1"),
        ({"ttl_ms": float("nan")}, "ttl_ms is nan"),
        ({"ttl_ms": "1"}, "ttl_ms is '1'"),
        ({"cache": VectorCache(), "ttl_ms": 5}, "VectorCache"),
        ({"cache": VectorCache(), "max_remembered": 5}, "VectorCache"),
    ],
)
def test_bounds_that_cannot_be_used(arguments, said):
    with pytest.raises(ConfigError, match=said):
        Scorer(**arguments)


@pytest.mark.parametrize("ttl_ms", [0, 0.001])
def test_a_scorer_of_ones_own_has_them_as_arguments(make_trace, ttl_ms):
    scorer = Scorer(embedder=Words(), max_remembered=2, ttl_ms=ttl_ms)
    scorer.remember(make_trace())
    pass_time()
    assert scorer.max_remembered == 2
    assert scorer.score(make_trace()).novelty_source == "empty cache"
