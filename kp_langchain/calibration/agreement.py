"""How far runs of one task agree: without any verdict, what several runs found is likelier right.

Runs are compared by their final answer, the order of their tools, their last output, and the
arguments of their calls. Placeholders of redaction do not count. What is compared is kept as hashes
of 16 bits, also when the trace itself has expired: they tell equal texts from others, and of a word
only that it is one of a few.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from kp_langchain.calibration.wording import Text
from kp_langchain.redaction.spans import PLACEHOLDER
from kp_langchain.scoring.evidence import Agreement
from kp_langchain.values import LEFT_OUT

if TYPE_CHECKING:
    from kp_langchain.schema import ReasoningTrace

AGREEMENT = "agreement"
"""The name of the feature that is the agreement of a run, 0 to 1."""

MOST_WITNESSES = 5
"""A run is compared with at most so many other runs of its task."""
AGREES = 0.5
"""A run agrees with another from this similarity on.

Of pairs of recorded runs that are so similar, 62 to 100 % ended alike, by source.
"""

# What a domain's agreement is held against while few of its runs were compared, as if they were ten
# more runs: mean and standard deviation of log(1 + agreement) over the recorded runs.
_USUAL_MEAN, _USUAL_SD, _USUAL_RUNS = 0.17, 0.13, 10

_ANSWER_CHARS, _ANSWER_WORDS = 600, 50
_CALLS = 100
_NOTHING = 0  # in place of a hash
_SHORTEST_BYTES = 6
_FEWEST_WORDS = 3


def task_key(task: str | None, objective: str) -> str:
    """Return what is equal for the repeats of a task.

    Args:
        task: The hash of the run's task; None if it has none.
        objective: The run's objective; differences in case and white space do not count.
    """
    return task or " ".join(objective.casefold().split())


def task_hash(objective: str) -> str | None:
    """Return what is equal for runs with the same redacted objective; None if it states no task.

    A word or two, such as "yes, please", state no task, and neither does an objective in which
    something was redacted or left out.
    """
    words = Text(objective, _ANSWER_CHARS).words
    if len(words) < _FEWEST_WORDS or LEFT_OUT in objective or PLACEHOLDER.search(objective):
        return None
    text = f"objective\0{task_key(None, objective)}"
    return sha256(text.encode(errors="replace")).hexdigest()


@dataclass(frozen=True, slots=True)
class RunDigest:
    """What a run is compared by, as hashes of 16 bits.

    Attributes:
        answer: Of the words of its answer.
        arguments: Of the arguments of its tool calls.
        tools: Of the names of the tools that it called, in order; 0 if it called none.
        last_output: Of the last output of a tool; 0 if there is none.
    """

    answer: frozenset[int]
    arguments: frozenset[int]
    tools: int
    last_output: int

    @classmethod
    def of(cls, trace: ReasoningTrace) -> RunDigest:
        """Return the digest of a redacted trace."""
        words = Text(_plain(trace.outcome.result_summary), _ANSWER_CHARS).words
        calls = [step for step in trace.steps if step.type == "tool_call"]
        names = [step.tool.name if step.tool else "" for step in calls]
        texts = [
            f"{name}\0{key}\0{text}"
            for name, step in zip(names[:_CALLS], calls, strict=False)
            for key, value in (step.input or {}).items()
            if (text := _plain(str(value)).strip())
        ]
        outputs = (
            step.content or ""
            for step in reversed(trace.steps)
            if step.type in ("observation", "error_recovery")
        )
        last = " ".join(_plain(next(outputs, "")).split())
        return cls(
            answer=frozenset(map(_hash, list(dict.fromkeys(words))[:_ANSWER_WORDS])),
            arguments=frozenset(map(_hash, texts)),
            tools=_hash("\0".join(names)) if names else _NOTHING,
            last_output=_hash(last) if last else _NOTHING,
        )

    def similarity(self, other: RunDigest) -> float | None:
        """Return how similar two runs are, 0 to 1; None if both have nothing to compare.

        It is the mean of four parts: the Jaccard similarity (1901) of the words of their answers
        and of their arguments, and whether the order of tools, and the last output, are equal. A
        part that neither run has is left out.
        """
        total, parts = 0.0, 0
        for mine, theirs in ((self.answer, other.answer), (self.arguments, other.arguments)):
            if mine or theirs:
                common = len(mine & theirs)
                total += common / (len(mine) + len(theirs) - common)
                parts += 1
        for one, another in ((self.tools, other.tools), (self.last_output, other.last_output)):
            if one or another:
                total += one == another
                parts += 1
        return total / parts if parts else None

    def to_bytes(self) -> bytes:
        """Return it as the store keeps it: numbers of 16 bits, the number of words first."""
        numbers = (self.tools, self.last_output, *sorted(self.answer), *sorted(self.arguments))
        return struct.pack(f"<{len(numbers) + 1}H", len(self.answer), *numbers)

    @classmethod
    def from_bytes(cls, content: bytes | None) -> RunDigest | None:
        """Return the digest that `to_bytes` wrote; None for what another program put there."""
        if content is None or len(content) < _SHORTEST_BYTES or len(content) % 2:
            return None
        words, tools, last_output, *rest = struct.unpack(f"<{len(content) // 2}H", content)
        return cls(frozenset(rest[:words]), frozenset(rest[words:]), tools, last_output)


def _plain(text: str) -> str:
    return PLACEHOLDER.sub(" ", text)


def _hash(text: str) -> int:
    # Half of a 32-bit sum: the whole would give short words away.
    return (crc32(text.encode("utf-8", "surrogatepass")) & 0xFFFF) or 1


# ------------------------------------------------------------------ runs of one task


@dataclass(frozen=True, slots=True)
class TaskRun:
    """A run as others of its task are compared with it.

    Attributes:
        trace_id: The id of its trace.
        run_id: LangChain's id of the root run. Traces of one run are not compared.
        digest: What it is compared by, as the store has it; a `RunDigest` takes 20 times the room.
        thread: The thread it ran in, or else its session; None if it has neither. Runs of one
            thread are not compared: a retry after a failure repeats what failed.
        is_planted: Whether its trace holds what looks like planted instructions; None if nobody
            looked. It is compared with none then: runs that obey the same instruction agree. One
            that nobody looked at is compared only with others of these.
        success: What a verdict says; None without one.
        compared_runs: With how many runs it was compared when it was judged last.
        waits: Whether it did not pass by its score, when nothing else was known.
    """

    trace_id: str
    run_id: str
    digest: bytes
    thread: str | None = None
    is_planted: bool | None = None
    success: bool | None = None
    compared_runs: int = 0
    waits: bool = False

    def may_agree(self, other: TaskRun) -> bool:
        """Return whether agreement of the two says anything."""
        return (
            self.trace_id != other.trace_id
            and self.run_id != other.run_id
            and (self.thread is None or self.thread != other.thread)
            and not self.is_planted
            and self.is_planted is other.is_planted
        )

    def may_gain(self, number: int) -> bool:
        """Return whether judging it again, beside so many runs, may change anything."""
        return number > self.compared_runs or (self.waits and number > 0 and self.success is None)


class Pair(NamedTuple):
    """Another run of a run's task, and how similar the two are, 0 to 1."""

    run: TaskRun
    similarity: float


def pairs_of(run: TaskRun, others: Iterable[TaskRun]) -> list[Pair]:
    """Return the runs that a run is compared with, at most five, each with its similarity.

    Args:
        run: The run.
        others: Other runs of its task, in its namespace; the first ones are taken.
    """
    pairs: list[Pair] = []
    digest = RunDigest.from_bytes(run.digest)
    for other in others:
        theirs = RunDigest.from_bytes(other.digest) if run.may_agree(other) else None
        if digest is not None and theirs is not None:
            similarity = digest.similarity(theirs)
            if similarity is not None:
                pairs.append(Pair(other, similarity))
        if len(pairs) == MOST_WITNESSES:
            break
    return pairs


def agreement_of(pairs: Sequence[Pair]) -> Agreement | None:
    """Return how far a run agrees with those it was compared with; None if there are none."""
    if not pairs:
        return None
    return Agreement(
        value=sum(similarity for _, similarity in pairs) / len(pairs),
        runs=len(pairs),
        agreeing=sum(similarity >= AGREES for _, similarity in pairs),
        with_wrong=sum(one.similarity for one in pairs if one.run.success is False) / len(pairs),
    )


def agreement_scale(values: Iterable[float]) -> tuple[float, float]:
    """Return mean and standard deviation of log(1 + agreement) in a domain.

    Args:
        values: The agreements of its runs that were compared with others, 0 to 1.
    """
    logs = [math.log1p(value) for value in values]
    number = len(logs) + _USUAL_RUNS
    mean = (math.fsum(logs) + _USUAL_RUNS * _USUAL_MEAN) / number
    squares = math.fsum((one - mean) ** 2 for one in logs) + _USUAL_RUNS * _USUAL_SD**2
    return mean, math.sqrt(squares / number)
