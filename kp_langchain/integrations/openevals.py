"""Use evaluators with the interface of openevals as verifiers; does not import openevals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from kp_langchain.errors import ConfigError, VerdictError
from kp_langchain.integrations.tools import check_pass_at
from kp_langchain.recording.outcome import FinishedRun
from kp_langchain.verdict import is_unit

if TYPE_CHECKING:
    from kp_langchain.recording.outcome import Verifier

__all__ = ["verifier_of"]


def verifier_of(
    evaluator: Callable[..., Any], *, key: str | None = None, pass_at: float = 0.5
) -> Verifier:
    """Return a verifier that calls an evaluator, such as one from `create_llm_as_judge`.

    The evaluator is called with the task as `inputs`, the answer (or the error that ended the run)
    as `outputs`, and None as `reference_outputs`. It returns a mapping with `key`, `score` and
    `comment`, or a list of such mappings; it may be async. A boolean score is the success. A number
    from 0 to 1 is the confidence, and the run succeeded if it is at least `pass_at`. The comment
    becomes the note.

    Args:
        evaluator: The evaluator.
        key: The name of the verifier. It also selects one of several results.
        pass_at: The lowest score of a run that succeeded, 0 to 1.

    Returns:
        A verifier, which raises `VerdictError` if it cannot read the evaluator's result.

    Raises:
        ConfigError: An argument is invalid.
    """
    if not callable(evaluator):
        raise ConfigError(f"evaluator is {evaluator!r}; give a callable such as an LLM judge")
    if key is not None and not (isinstance(key, str) and key.strip()):
        raise ConfigError(f"key is {key!r}; give the evaluator's feedback key or leave it out")
    check_pass_at(pass_at)

    def verifier(run: FinishedRun) -> Any:
        result = evaluator(
            inputs=run.objective, outputs=run.answer or run.error, reference_outputs=None
        )
        if not isawaitable(result):
            return _report(result, key, pass_at)

        async def report() -> dict[str, Any]:
            return _report(await result, key, pass_at)

        return report()

    verifier.__name__ = key or "openevals"
    return verifier


def _report(result: Any, key: str | None, pass_at: float) -> dict[str, Any]:
    results = result if isinstance(result, list) else [result]
    if not all(isinstance(entry, Mapping) for entry in results):
        raise VerdictError("the evaluator returned no mapping with key, score and comment")
    if key is not None and len(results) > 1:
        results = [entry for entry in results if entry.get("key") == key]
    if len(results) != 1:
        raise VerdictError(
            f"the evaluator returned {len(results)} results to choose from; name one by key=..."
        )
    score, comment = results[0].get("score"), results[0].get("comment")
    report: dict[str, Any] = {"note": comment if isinstance(comment, str) else None}
    if isinstance(score, bool):
        return report | {"success": score}
    if is_unit(score):
        return report | {"success": score >= pass_at, "confidence": float(score)}
    raise VerdictError("the evaluator's score is neither a bool nor a number from 0 to 1")
