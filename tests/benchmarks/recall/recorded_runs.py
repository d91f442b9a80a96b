"""The recorded runs of each source, scored, and with what recall compares of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from kp_langchain import ReasoningTrace, trace_from_messages
from kp_langchain.config import Settings
from kp_langchain.embedding.checks import clean_texts
from kp_langchain.embedding.embedder_protocol import Embedder
from kp_langchain.embedding.embedding_result import embed_texts
from kp_langchain.embedding.identity import identity_of
from kp_langchain.recall import find_planted
from kp_langchain.recall.floor import plan_f1
from kp_langchain.scoring.dimensions import novelty
from kp_langchain.store.recall_entries import plan_of
from tests.benchmarks.quality import scores
from tests.benchmarks.quality.resampling import Array
from tests.benchmarks.quality.runs import Run
from tests.recorded import load

SOURCES = ("agentdojo", "tau-bench", "react-fever", "reflexion-hotpotqa")
"""Those with tasks that are told apart, and with enough runs of either outcome."""

_MARK = "<INFORMATION>"  # around what AgentDojo's attack plants


@dataclass(frozen=True)
class RecallSource:
    """The runs of one source, which stands for a domain.

    Args:
        scored: The runs, scored one after the other.
        messages: Of each, as it was recorded.
        are_attacks: Whether somebody tried to plant instructions in each.
        vectors: The normalised embeddings of their tasks, as recall compares them.
        baseline: Of the embedder.
    """

    scored: scores.Source
    messages: Sequence[Sequence[Mapping[str, Any]]]
    are_attacks: np.ndarray[Any, Any]
    vectors: np.ndarray[Any, Any]
    baseline: float

    @property
    def name(self) -> str:
        return self.scored.name

    def __len__(self) -> int:
        return len(self.scored.runs)

    @cached_property
    def traces(self) -> list[ReasoningTrace]:
        return [one.run.trace for one in self.scored.runs]

    @cached_property
    def tasks(self) -> np.ndarray[Any, Any]:
        return np.array([one.run.task for one in self.scored.runs])

    @cached_property
    def successes(self) -> np.ndarray[Any, Any]:
        """The truth."""
        return np.array([one.run.success for one in self.scored.runs])

    @cached_property
    def similarities(self) -> Array:
        """Of each two tasks, 0 to 1, as recall counts them."""
        cosines = self.vectors @ self.vectors.T
        return np.vectorize(lambda one: 1.0 - novelty(one, self.baseline))(cosines)

    @cached_property
    def plans(self) -> list[dict[str, int]]:
        """How often each run called each tool."""
        return [
            plan_of([one.tool.name for one in trace.steps if one.type == "tool_call" and one.tool])
            for trace in self.traces
        ]

    @cached_property
    def plan_f1s(self) -> Array:
        """What the plans of each two runs have in common, 0 to 1."""
        distinct = list({tuple(sorted(plan.items())): None for plan in self.plans})
        place = {plan: at for at, plan in enumerate(distinct)}
        table = np.array([[plan_f1(dict(a), dict(b)) for b in distinct] for a in distinct])
        at = [place[tuple(sorted(plan.items()))] for plan in self.plans]
        return table[np.ix_(at, at)]

    @cached_property
    def look_planted(self) -> np.ndarray[Any, Any]:
        """Whether the scan finds planted instructions in each trace."""
        return np.array([bool(find_planted(trace)) for trace in self.traces])

    @cached_property
    def hold_planted(self) -> np.ndarray[Any, Any]:
        """Whether a tool really gave each run what an attack had planted."""
        return self.are_attacks & np.array(
            [
                any(one["role"] == "tool" and _MARK in str(one.get("content")) for one in messages)
                for messages in self.messages
            ]
        )

    @cached_property
    def queries(self) -> np.ndarray[Any, Any]:
        """The runs for whose tasks examples are looked up: successes that nobody attacked."""
        return np.flatnonzero(self.successes & ~self.are_attacks)

    def others(self, query: int) -> np.ndarray[Any, Any]:
        """Whether each run is of another task than one of them."""
        return np.asarray(self.tasks != self.tasks[query])


def sources(
    embedder: Embedder, tell: Callable[[str], object], *, of_each: int | None = None
) -> list[RecallSource]:
    """Read and score the recorded runs.

    Args:
        embedder: Embeds tasks, and traces for their novelty.
        tell: Called with a line for whoever waits.
        of_each: Read only so many of each source; None for all.
    """
    rows: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in load():
        of_source = rows[row["source"]]
        if row["success"] is not None and (of_each is None or len(of_source) < of_each):
            of_source.append(row)
    found = []
    for name in SOURCES:
        tell(f"{name}: {len(rows[name])} runs")
        found.append(_source(name, rows[name], embedder))
    return found


def _source(name: str, rows: Iterable[dict[str, Any]], embedder: Embedder) -> RecallSource:
    by_run = {}
    runs = []
    for row in rows:
        trace = trace_from_messages(row["messages"], domain=row["domain"])
        run = Run(name, row["meta"]["task_id"], row["success"], trace)
        runs.append(run)
        by_run[id(run)] = row
    scored = scores.scored(name, runs, Settings(), embedder)
    in_order = [by_run[id(one.run)] for one in scored.runs]
    tasks = clean_texts([one.run.trace.task.objective for one in scored.runs])
    distinct = list(dict.fromkeys(tasks))
    vector_of = {
        text: one.vector
        for text, one in zip(distinct, embed_texts(embedder, distinct), strict=True)
    }
    dimensions = max(len(one) for one in vector_of.values() if one is not None)
    vectors = np.array(
        [np.zeros(dimensions) if (v := vector_of[text]) is None else v for text in tasks],
        dtype=np.float32,
    )
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, lengths, out=vectors, where=lengths > 0)
    return RecallSource(
        scored,
        [row["messages"] for row in in_order],
        np.array([bool(row["meta"].get("attack")) for row in in_order]),
        vectors,
        identity_of(embedder).baseline,
    )


def counts(source: RecallSource) -> dict[str, int]:
    """How many runs, tasks, successes and queries a source has."""
    return {
        "runs": len(source),
        "tasks": len(set(source.tasks)),
        "successes": int(source.successes.sum()),
        "queries": len(source.queries),
        "query_tasks": len(Counter(source.tasks[source.queries])),
    }
