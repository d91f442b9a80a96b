"""`ExportedRun`: a run with all that an export writes of it, and how it is read from a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from kp_langchain.config import Settings
from kp_langchain.errors import StoreError
from kp_langchain.exporting.turns import marks_of, turns_of
from kp_langchain.gate.check import NONE_PASSES
from kp_langchain.prices import Prices
from kp_langchain.store.run_columns import trace_of
from kp_langchain.verdict import counting

if TYPE_CHECKING:
    from kp_langchain.exporting.selection import Choice
    from kp_langchain.exporting.turns import Turn
    from kp_langchain.schema import ReasoningTrace
    from kp_langchain.store import TraceStore
    from kp_langchain.store.run_columns import StoredRun
    from kp_langchain.usage import ModelCall, Tokens, Usage
    from kp_langchain.verdict import Verdict

_RUNS_AT_ONCE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """A run with all that an export writes of it.

    Attributes:
        run: The run as the store has it.
        trace: Its trace.
        task: A hash that is equal for the runs of a task.
        split: `train` or `test`, the same for the runs of a task.
        verdict: The verdict that counts: of those that state success, if any does; None without.
        model_calls: The answers of its models.
        cost: What it cost, in US dollars; None if that is not known.
        functions: The tools that its models could ask for, as OpenAI's functions: `name`, and
            perhaps `description` and `parameters`. Empty if that was not recorded.
    """

    run: StoredRun
    trace: ReasoningTrace
    task: str
    split: str
    verdict: Verdict | None = None
    model_calls: tuple[ModelCall, ...] = ()
    cost: float | None = None
    functions: Sequence[Mapping[str, Any]] = ()

    @property
    def usage(self) -> Usage | None:
        """What it took; None if that was not recorded."""
        return self.run.usage

    @property
    def judgement(self) -> bool | None:
        """Whether a verdict calls it right; None if none says."""
        return None if self.verdict is None else self.verdict.success

    @property
    def threshold(self) -> float | None:
        """What its score was held against; None if none passes yet."""
        return None if self.run.threshold >= NONE_PASSES else self.run.threshold

    @property
    def otlp_trace_id(self) -> str:
        """The id of the trace that its spans make up: 32 hexadecimal digits."""
        return sha256(f"trace\0{self.trace.id}".encode(errors="replace")).hexdigest()[:32]

    @property
    def tools(self) -> list[dict[str, Any]] | None:
        """The functions as OpenAI's list of tools; None if they are not known."""
        return [{"type": "function", "function": one} for one in self.functions] or None

    @property
    def turns(self) -> list[Turn]:
        """What was said, called and returned, in order."""
        return turns_of(self.trace, self.model_calls)

    @property
    def tokens(self) -> Tokens | None:
        """The tokens that it took; None if that is not known."""
        return None if self.usage is None else self.usage.tokens

    @property
    def model(self) -> str:
        """The name of the model that wrote most; "" if that is not known."""
        models = [one for one in self.usage.models if not one.is_inner] if self.usage else []
        return max(models, key=lambda one: one.output_tokens).model if models else ""

    def marks(self) -> list[dict[str, Any]]:
        """Return which steps failed or were tried again, ready for JSON."""
        return marks_of(self.turns)

    def annotations(self) -> dict[str, Any]:
        """Return what stands beside the run's own steps, ready for JSON.

        That is ids and domain, verdict, score and worth, the gate's decision, usage and step marks.
        A run without a namespace has no `kp_namespace`.
        """
        run = self.run
        namespace = {} if run.namespace is None else {"kp_namespace": run.namespace}
        return {
            "trace_id": self.trace.id,
            "run_id": run.run_id,
            "task": self.task,
            "split": self.split,
            "domain": run.domain,
            **namespace,
            "created_at": run.created_at.isoformat(),
            "success": run.success,
            "confidence": run.confidence,
            "confidence_source": run.confidence_source,
            "verdict": self.verdict and _verdict_values(self.verdict),
            "score": run.score,
            "worth": run.worth,
            "gate": run.gate,
            "threshold": self.threshold,
            "decision": run.decision,
            "veto": run.veto,
            "flags": list(run.breakdown.flags),
            "usage": None if self.usage is None else self.usage.to_dict(),
            "cost": self.cost,
            "step_marks": self.marks(),
        }


def _verdict_values(verdict: Verdict) -> dict[str, Any]:
    return {
        "success": verdict.success,
        "confidence": verdict.confidence,
        "note": verdict.note,
        "source": verdict.source,
        "by_model": verdict.by_model,
        "at": verdict.at and verdict.at.isoformat(),
    }


def verdict_that_counts(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the verdict on a run that counts; one that states success counts before any other."""
    return counting(one for one in verdicts if one.success is not None) or counting(verdicts)


def read_runs(store: TraceStore, choices: Sequence[Choice]) -> Iterator[ExportedRun | str]:
    """Yield the chosen runs in their order, read some at a time; for one without a trace, why.

    Args:
        store: The store.
        choices: The runs.

    Raises:
        StoreError: The store cannot be read.
    """
    prices = Prices(Settings.current().prices)
    for start in range(0, len(choices), _RUNS_AT_ONCE):
        page = choices[start : start + _RUNS_AT_ONCE]
        ids = [choice.trace_id for choice in page]
        runs, texts = store.runs_by_trace(ids), store.body_texts(ids)
        verdicts = store.verdicts_by_trace(ids)
        calls, functions = store.model_calls(ids), store.tool_definitions(ids)
        for choice in page:
            key = choice.trace_id
            if key not in runs or key not in texts:
                yield "without a stored trace any more"
                continue
            try:
                trace = trace_of(json.loads(texts[key]), key)
            except StoreError:
                yield "with a trace that cannot be read back"
                continue
            yield ExportedRun(
                run=runs[key],
                trace=trace,
                task=choice.task,
                split=choice.split,
                verdict=verdict_that_counts(verdicts.get(key, ())),
                model_calls=calls.get(key, ()),
                cost=prices.cost(runs[key].usage, runs[key].created_at),
                functions=functions.get(key, ()),
            )
