"""Inputs of the reference implementation's own tests, and the traces of the protocol's documents.

Scores are those of the reference implementation without an embedder, each with an empty cache.
Of tests that say only which of two scores is higher, both scores stand here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from kp_langchain import ReasoningTrace
from kp_langchain.errors import VectorError
from kp_langchain.scoring import Scorer, VectorCache

PLAIN = "thought tool_call:search observation"
RECOVERING = "thought {} tool_call:fix tool_call:verify observation"
THRICE, TWICE = (RECOVERING.format(" ".join(["error_recovery"] * n)) for n in (3, 2))
TWENTY = " ".join(
    f"thought tool_call:tool_{4 * n + 1} observation error_recovery" for n in range(5)
)
LINTING = "thought tool_call:linter tool_call:compiler tool_call:test_runner tool_call:formatter"

# Steps, domain, whether it succeeded, confidence, score; where there are two, the first is higher.
SCORES: dict[str, list[tuple[str, str, bool, float, float]]] = {
    "a usual trace": [(PLAIN, "testing", True, 0.9, 0.55125)],
    "one thought": [("thought", "testing", True, 0.9, 0.1)],
    "a bonus for three recoveries": [
        (THRICE, "testing", True, 0.85, 0.8335714285714285),
        (TWICE, "testing", True, 0.85, 0.7525),
    ],
    "no bonus after a failure": [
        (THRICE, "testing", True, 0.85, 0.8335714285714285),
        (THRICE, "testing", False, 0.85, 0.5848214285714285),
    ],
    "a penalty for one tool": [
        ("thought tool_call:search tool_call:summarize observation", "testing", True, 0.9, 0.65375),
        ("thought tool_call:search tool_call:search observation", "testing", True, 0.9, 0.51625),
    ],
    "no penalty without tools": [("thought observation thought", "testing", True, 0.9, 0.47)],
    "more types of steps": [
        ("thought tool_call:t1 observation error_recovery tool_call:t2", "testing", True, 0.9,
         0.7625),
        ("thought thought", "testing", True, 0.9, 0.43625),
    ],
    "more confidence": [
        (PLAIN, "testing", True, 0.95, 0.56375),
        (PLAIN, "testing", True, 0.2, 0.37625),
    ],
    "success": [
        (PLAIN, "testing", True, 0.9, 0.55125),
        (PLAIN, "testing", False, 0.9, 0.39375),
    ],
    "neutral novelty without an embedder": [(PLAIN, "testing", True, 1.0, 0.57625)],
    "never above 1": [(TWENTY, "testing", True, 1.0, 0.8875)],
    "never below 0": [("tool_call:t", "testing", False, 0.0, 0.25875)],
    "finance weighs the outcome": [
        ("thought tool_call:calc tool_call:verify observation", "finance", True, 0.95, 0.7355),
        ("thought tool_call:calc tool_call:verify observation", "general", True, 0.95, 0.66625),
    ],
    "code weighs tools": [
        (f"{LINTING} observation", "code", True, 0.5, 0.637),
        (f"{LINTING} observation", "general", True, 0.5, 0.55875),
    ],
    "a domain nobody knows": [(PLAIN, "underwater_basket_weaving", True, 0.8, 0.52625)],
}  # fmt: skip

F32 = np.float32
# What is done with a cache, and what comes of it; `similarity` holds the query and the result.
CACHES: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "a new one is empty": ({}, [("size", 0)]),
    "each vector counts": (
        {"dimensions": 3},
        [("add", [1, 0, 0]), ("size", 1), ("add", [0, 1, 0]), ("size", 2)],
    ),
    "a vector of float32": ({"dimensions": 3}, [("add", F32([1, 0, 0])), ("size", 1)]),
    "a vector of numbers": ({"dimensions": 3}, [("add", [0.5, 0.5, 0.5]), ("size", 1)]),
    "a wrong length": (
        {"dimensions": 3},
        [("refuse", ([1, 0], "2", "3")), ("refuse", ([1, 0, 0, 0], "4", "3"))],
    ),
    "a wrong length by default": ({}, [("refuse", ([1, 2, 3], "3", "384"))]),
    "no more than fit": (
        {"max_elements": 3, "dimensions": 2},
        [("add", [1, 0]), ("add", [0, 1]), ("add", [1, 1]), ("size", 3), ("add", [0.5, 0.5]),
         ("size", 3)],
    ),
    "the oldest leaves": (
        {"max_elements": 2, "dimensions": 3},
        [("add", [1, 0, 0]), ("add", [0, 1, 0]), ("similarity", ([1, 0, 0], 1)),
         ("add", [0, 0, 1]), ("size", 2), ("similarity", ([1, 0, 0], 0))],
    ),
    "nothing is like an empty one": ({"dimensions": 3}, [("similarity", ([1, 0, 0], 0))]),
    "identical": (
        {"dimensions": 3},
        [("add", [0.6, 0.8, 0]), ("similarity", ([0.6, 0.8, 0], 1))],
    ),
    "at a right angle": (
        {"dimensions": 3},
        [("add", [1, 0, 0]), ("similarity", ([0, 1, 0], 0))],
    ),
    "the highest of several": (
        {"dimensions": 3},
        [("add", [1, 0, 0]), ("add", [0, 1, 0]), ("add", [0, 0, 1]),
         ("similarity", ([0, 0, 1], 1))],
    ),
    "half a right angle": (
        {"dimensions": 2},
        [("add", [1, 0]), ("similarity", ([1, 1], 0.5**0.5))],
    ),
    "zeros are like nothing": (
        {"dimensions": 3},
        [("add", [0, 0, 0]), ("similarity", ([1, 0, 0], 0))],
    ),
    "a query of float32": (
        {"dimensions": 3},
        [("add", [1, 0, 0]), ("similarity", (F32([1, 0, 0]), 1))],
    ),
    "cleared": (
        {"dimensions": 3},
        [("add", [1, 0, 0]), ("add", [0, 1, 0]), ("size", 2), ("clear", None), ("size", 0),
         ("similarity", ([1, 0, 0], 0))],
    ),
    "many dimensions": (
        {"dimensions": 384},
        [("add", np.eye(384, dtype=F32)[0]), ("similarity", (np.eye(384, dtype=F32)[0], 1))],
    ),
    "room for one": (
        {"max_elements": 1, "dimensions": 3},
        [("add", [1, 0, 0]), ("similarity", ([1, 0, 0], 1)), ("add", [0, 1, 0]), ("size", 1),
         ("similarity", ([1, 0, 0], 0)), ("similarity", ([0, 1, 0], 1))],
    ),
    "what is older than its time has expired": (
        {"max_elements": 100, "dimensions": 3, "ttl_ms": 100},
        [("add", [1, 0, 0]), ("size", 1), ("wait_ms", 150), ("size", 0)],
    ),
    "what is younger is kept": (
        {"max_elements": 100, "dimensions": 3, "ttl_ms": 5000},
        [("add", [1, 0, 0]), ("size", 1)],
    ),
    "what has expired is like nothing": (
        {"max_elements": 100, "dimensions": 3, "ttl_ms": 100},
        [("add", [1, 0, 0]), ("wait_ms", 150), ("similarity", ([1, 0, 0], 0))],
    ),
}  # fmt: skip

# Id, domain, steps, confidence and score of the traces that the documents show.
EXAMPLES: dict[str, tuple[str, str, str, float, float]] = {
    "scoring of a finance trace": (
        "kp:trace:finance-demo-001", "finance",
        "thought tool_call:financial_data_api observation tool_call:comparison_tool observation",
        0.92, 0.724,
    ),
    "scoring of a review": (
        "kp:trace:550e8400-e29b-41d4-a716-446655440000", "code-review",
        "thought tool_call:github_pr_read observation tool_call:static_analysis observation",
        0.95, 0.66875,
    ),
    "concepts": (
        "kp:trace:550e8400-e29b-41d4-a716-446655440000", "financial_analysis",
        "thought tool_call:web_search observation", 0.82, 0.53125,
    ),
    "contributing": (
        "kp:trace:a1b2c3d4-e5f6-7890-abcd-ef1234567890", "devops",
        "thought tool_call:grafana_query observation", 0.92, 0.55625,
    ),
    "with CrewAI": (
        "kp:trace:crewai-demo-001", "code_review",
        "thought tool_call:bandit_scan observation", 0.92, 0.55625,
    ),
    "with LangGraph": (
        "kp:trace:example-from-langgraph", "financial_analysis",
        "thought tool_call:web_search observation", 0.9, 0.55125,
    ),
}  # fmt: skip


def trace(
    steps: str,
    domain: str,
    *,
    success: bool = True,
    confidence: float,
    trace_id: str = "kp:trace:test-0001",
) -> dict[str, Any]:
    wire_steps = []
    for number, step in enumerate(steps.split()):
        kind, _, tool = step.partition(":")
        one: dict[str, Any] = {"step_id": number, "type": kind, "content": f"step {number}"}
        wire_steps.append(one | ({"tool": {"name": tool}} if tool else {}))
    return {
        "@context": "https://openknowledgepulse.org/schema/v1",
        "@type": "ReasoningTrace",
        "id": trace_id,
        "metadata": {
            "created_at": "2025-06-15T10:00:00.000Z",
            "task_domain": domain,
            "success": success,
            "quality_score": 0,
            "visibility": "network",
            "privacy_level": "aggregated",
        },
        "task": {"objective": "an objective"},
        "steps": wire_steps,
        "outcome": {"result_summary": "done", "confidence": confidence},
    }


def test_these_are_all() -> None:
    assert (len(SCORES), len(CACHES), len(EXAMPLES)) == (15, 21, 6)


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str) -> None:
    scores = []
    for steps, domain, success, confidence, expected in SCORES[name]:
        wire = trace(steps, domain, success=success, confidence=confidence)
        scores.append(Scorer(embedder=None).evaluate(wire).total)
        assert scores[-1] == pytest.approx(expected, abs=1e-9)
        assert 0.0 <= scores[-1] <= 1.0
    assert scores == sorted(set(scores), reverse=True)


@pytest.mark.parametrize("name", CACHES)
def test_caches(name: str) -> None:
    options, actions = CACHES[name]
    now_s = [100.0]
    cache = VectorCache(**options, clock=lambda: now_s[0])
    for action, value in actions:
        if action == "add":
            cache.add(value)
        elif action == "size":
            assert cache.size == value
        elif action == "similarity":
            assert cache.max_cosine_similarity(value[0]) == pytest.approx(value[1], abs=1e-9)
        elif action == "wait_ms":
            now_s[0] += value / 1000
        elif action == "clear":
            cache.clear()
        else:
            vector, *lengths = value
            with pytest.raises(VectorError) as caught:
                cache.add(vector)
            assert all(length in str(caught.value) for length in lengths)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_of_the_documents(name: str) -> None:
    trace_id, domain, steps, confidence, expected = EXAMPLES[name]
    wire = trace(steps, domain, confidence=confidence, trace_id=trace_id)
    read = ReasoningTrace.model_validate(wire)
    assert read.id == trace_id
    assert read.model_dump(mode="json") == wire
    assert Scorer(embedder=None).evaluate(read).total == pytest.approx(expected, abs=1e-9)


def test_examples_without_steps_are_refused_as_by_the_protocol() -> None:
    # Three pages contribute a trace without steps, which the protocol's own schema refuses.
    with pytest.raises(ValidationError, match="steps"):
        ReasoningTrace.model_validate(trace("", "general", confidence=0.8))
