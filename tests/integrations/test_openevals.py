"""Evaluators of openevals' shape, with scripted models, as verifiers of real agents' runs."""

from __future__ import annotations

from typing import Any

import pytest

from kp_langchain import ConfigError, ScoredTrace
from kp_langchain.integrations.openevals import verifier_of
from tests.agents import ASK, QUESTION, ScriptedChatModel, call, handler, say, searching


def judge_by(*scores: Any, is_async: bool = False, key: str = "correctness") -> Any:
    """An evaluator as `create_llm_as_judge` makes them: it has a model fill in a form."""
    answers = [say("", call("score", score=one, reasoning="so it seems")) for one in scores]
    model = ScriptedChatModel(answers)

    def prompt(inputs: Any, outputs: Any) -> list[tuple[str, str]]:
        return [("user", f"Is {outputs!r} right for {inputs!r}?")]

    def read(message: Any) -> dict[str, Any]:
        form = message.tool_calls[0]["args"]
        return {
            "key": key,
            "score": form["score"],
            "comment": form["reasoning"],
            "metadata": None,
        }

    def evaluator(
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **_: Any
    ) -> dict[str, Any]:
        return read(model.invoke(prompt(inputs, outputs)))

    async def aevaluator(
        *, inputs: Any = None, outputs: Any, reference_outputs: Any = None, **_: Any
    ) -> dict[str, Any]:
        return read(await model.ainvoke(prompt(inputs, outputs)))

    return aevaluator if is_async else evaluator


def judged(verifier: Any) -> tuple[ScoredTrace, dict[str, int]]:
    watching = handler(verifiers=[verifier])
    searching().invoke(ASK, {"callbacks": [watching]})
    scored = watching.last()
    assert scored is not None
    return scored, watching.stats()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("score", "success", "confidence"),
    [(True, True, None), (False, False, None), (0.9, True, 0.9), (0.3, False, 0.3), (1, True, 1.0)],
)
def test_a_judge_decides(
    score: Any, success: bool, confidence: float | None, is_async: bool
) -> None:
    verifier = verifier_of(judge_by(score, is_async=is_async), key="correctness")
    scored, stats = judged(verifier)
    assert stats["verifier_errors"] == 0
    assert scored.trace.metadata.success is success
    if confidence is not None:
        assert scored.trace.outcome.confidence == confidence
        assert scored.breakdown.confidence_source == "verifier correctness"


def test_it_is_given_task_and_answer_and_its_comment_is_the_note() -> None:
    seen: list[dict[str, Any]] = []

    def evaluator(**given: Any) -> dict[str, Any]:
        seen.append(given)
        return {"key": "k", "score": False, "comment": "no"}

    notes: list[Any] = []
    verifier = verifier_of(evaluator)

    def watched(run: Any) -> Any:
        said: Any = verifier(run)
        notes.append(said["note"])
        return said

    judged(watched)
    assert seen == [{"inputs": QUESTION, "outputs": "42", "reference_outputs": None}]
    assert notes == ["no"]
    assert verifier.__name__ == "openevals"


def test_pass_at() -> None:
    assert judged(verifier_of(judge_by(0.6), pass_at=0.7))[0].trace.metadata.success is False


def test_a_key_chooses_among_several_results() -> None:
    def evaluator(**_: Any) -> list[dict[str, Any]]:
        return [{"key": "a", "score": True}, {"key": "b", "score": False, "comment": None}]

    assert judged(verifier_of(evaluator, key="b"))[0].trace.metadata.success is False
    for key in (None, "c"):
        scored, stats = judged(verifier_of(evaluator, key=key))
        assert stats["verifier_errors"] == 1
        assert scored.breakdown.confidence_source == "default"


@pytest.mark.parametrize(
    "said",
    [None, True, [], [1], {"score": None}, {"score": "yes"}, {"score": 7}, {"score": float("nan")}],
)
def test_an_answer_that_cannot_be_read_is_counted(said: Any) -> None:
    _, stats = judged(verifier_of(lambda **_: said))
    assert (stats["scored"], stats["verifier_errors"]) == (1, 1)


@pytest.mark.parametrize(
    "options", [{"evaluator": 7}, {"key": ""}, {"key": 7}, {"pass_at": 2}, {"pass_at": True}]
)
def test_arguments_that_cannot_be_used(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name} is"):
        verifier_of(**({"evaluator": print} | options))
