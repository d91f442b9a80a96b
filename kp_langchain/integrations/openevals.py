"""Evaluators of the shape that openevals gives them, as verifiers. Imports no openevals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from kp_langchain.errors import ConfigError, VerdictError
from kp_langchain.recording.outcome import FinishedRun

if TYPE_CHECKING:
    from kp_langchain.recording.verifiers import Verifier


def verifier_of(
    evaluator: Callable[..., Any], *, key: str | None = None, pass_at: float = 0.5
) -> Verifier:
    """Make a verifier of an evaluator, such as one that `create_llm_as_judge` made.

    It is given the task as `inputs`, the answer (or the error that ended the run) as `outputs`,
    and None as `reference_outputs`, and returns a mapping with `key`, `score` and `comment`, or a
    list of them; it may be async. A boolean score is the success. A number from 0 to 1 is taken
    for how sure one can be of the result: it becomes the confidence, and the run succeeded if it
    reaches `pass_at`. The comment becomes the note.

    Args:
        evaluator: The evaluator.
        key: Names the verifier, and chooses among several results; not needed for a single one.
        pass_at: The score, 0 to 1, from which a run succeeded.

    Raises:
        ConfigError: An argument cannot be used.
    """
    if not callable(evaluator):
        raise ConfigError(f"evaluator is {evaluator!r}; give a callable such as an LLM judge")
    if key is not None and not (isinstance(key, str) and key.strip()):
        raise ConfigError(f"key is {key!r}; give the evaluator's feedback key or leave it out")
    if isinstance(pass_at, bool) or not isinstance(pass_at, int | float) or not 0 <= pass_at <= 1:
        raise ConfigError(f"pass_at is {pass_at!r}; give a number from 0 to 1")

    def verifier(run: FinishedRun) -> Any:
        said = evaluator(
            inputs=run.objective, outputs=run.answer or run.error, reference_outputs=None
        )
        return _later(said, key, pass_at) if isawaitable(said) else _report(said, key, pass_at)

    verifier.__name__ = key or "openevals"
    return verifier


async def _later(said: Awaitable[Any], key: str | None, pass_at: float) -> dict[str, Any]:
    return _report(await said, key, pass_at)


def _report(said: Any, key: str | None, pass_at: float) -> dict[str, Any]:
    results = said if isinstance(said, list) else [said]
    if not all(isinstance(one, Mapping) for one in results):
        raise VerdictError("the evaluator returned no mapping with key, score and comment")
    if key is not None and len(results) > 1:
        results = [one for one in results if one.get("key") == key]
    if len(results) != 1:
        raise VerdictError(
            f"the evaluator returned {len(results)} results to choose from; name one by key=..."
        )
    score, comment = results[0].get("score"), results[0].get("comment")
    report: dict[str, Any] = {"note": comment if isinstance(comment, str) else None}
    if isinstance(score, bool):
        return report | {"success": score}
    if isinstance(score, int | float) and 0 <= score <= 1:
        return report | {"success": score >= pass_at, "confidence": float(score)}
    raise VerdictError("the evaluator's score is neither a bool nor a number from 0 to 1")
