"""How far runs of one task agree: without any verdict, what several runs found is likelier right.

Runs are compared by their final answer, which counts as much as the rest: the order of their tools,
their last output, and the arguments of their calls. Placeholders of redaction do not count. What is
compared is kept as hashes of 16 bits, also when the trace itself has expired: they tell equal texts
from others, and of a word only that it is one of a few.
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

Of pairs of recorded runs that are so similar, 67 to 100 % ended alike, by source.
"""

# What a domain's agreement is held against while few of its runs were compared, as if they were ten
# more runs: mean and standard deviation of log(1 + agreement) over the recorded runs.
_USUAL_MEAN, _USUAL_SD, _USUAL_RUNS = 0.17, 0.13, 10

_ANSWER_CHARS, _ANSWER_WORDS = 600, 50
_CALLS = 100
_ANSWER_WEIGHT = 3  # as much as the other three parts
_NOTHING = 0  # in place of a hash
_HEAD = 4  # numbers before the hashes of words
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
        numbers: Of the numbers in it.
        arguments: Of the arguments of its tool calls.
        tools: Of the names of the tools that it called, in order; 0 if it called none.
        last_output: Of the last output of a tool; 0 if there is none.
    """

    answer: frozenset[int]
    numbers: frozenset[int]
    arguments: frozenset[int]
    tools: int
    last_output: int

    @classmethod
    def of(cls, trace: ReasoningTrace) -> RunDigest:
        """Return the digest of a redacted trace."""
        answer = Text(_plain(trace.outcome.result_summary), _ANSWER_CHARS)
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
            answer=frozenset(map(_hash, list(dict.fromkeys(answer.words))[:_ANSWER_WORDS])),
            numbers=frozenset(map(_hash, map(_number, answer.numbers()))),
            arguments=frozenset(map(_hash, texts)),
            tools=_hash("\0".join(names)) if names else _NOTHING,
            last_output=_hash(last) if last else _NOTHING,
        )

    def similarity(self, other: RunDigest) -> float | None:
        """Return how similar two runs are, 0 to 1; None if both have nothing to compare.

        It is the mean of four parts: the Jaccard similarity (1901) of the words of their answers,
        which counts three times, and of their arguments, and whether the order of tools, and the
        last output, are equal. A part that neither run has is left out. Numbers that differ in the
        answers take up to half of it.
        """
        total, weights = 0.0, 0
        for mine, theirs, weight in (
            (self.answer, other.answer, _ANSWER_WEIGHT),
            (self.arguments, other.arguments, 1),
        ):
            if mine or theirs:
                total += weight * _jaccard(mine, theirs)
                weights += weight
        for one, another in ((self.tools, other.tools), (self.last_output, other.last_output)):
            if one or another:
                total += one == another
                weights += 1
        if not weights:
            return None
        return total / weights * (1 + _jaccard(self.numbers, other.numbers)) / 2

    def to_bytes(self) -> bytes:
        """Return it as the store keeps it: numbers of 16 bits, how many of each kind first."""
        kinds = sorted(self.answer), sorted(self.numbers), sorted(self.arguments)
        head = len(kinds[0]), len(kinds[1]), self.tools, self.last_output
        numbers = (*head, *kinds[0], *kinds[1], *kinds[2])
        return struct.pack(f"<{len(numbers)}H", *numbers)

    @classmethod
    def from_bytes(cls, content: bytes | None) -> RunDigest | None:
        """Return the digest that `to_bytes` wrote; None for what another program put there."""
        if content is None or len(content) < 2 * _HEAD or len(content) % 2:
            return None
        words, numbers, tools, last_output, *rest = struct.unpack(f"<{len(content) // 2}H", content)
        numbers += words
        if numbers > len(rest):
            return None
        return cls(
            frozenset(rest[:words]),
            frozenset(rest[words:numbers]),
            frozenset(rest[numbers:]),
            tools,
            last_output,
        )


def _jaccard(mine: frozenset[int], theirs: frozenset[int]) -> float:
    """Return the Jaccard similarity; 1 for two empty sets."""
    common = len(mine & theirs)
    either = len(mine) + len(theirs) - common
    return common / either if either else 1.0


def _number(text: str) -> str:
    """Return what is equal for equal numbers: 1,200 and 1200.0."""
    try:
        return f"{float(text.replace(',', '')):.12g}"
    except ValueError:  # such as a date, 24.12.2025
        return text


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
        conversations: The thread and the session that it ran in, if known. Runs of one are not
            compared: a retry after a failure repeats what failed.
        is_planted: Whether its trace holds what looks like planted instructions. It is compared
            with none then: runs that obey the same instruction agree.
        success: What a verdict says; None without one.
        compared_runs: With how many runs it was compared when it was judged last.
        waits: Whether it did not pass by its score, when nothing else was known.
    """

    trace_id: str
    run_id: str
    digest: bytes
    conversations: frozenset[str] = frozenset()
    is_planted: bool = False
    success: bool | None = None
    compared_runs: int = 0
    waits: bool = False

    def is_other_than(self, run: TaskRun) -> bool:
        """Return whether they are of different runs of an agent."""
        return self.trace_id != run.trace_id and self.run_id != run.run_id

    def may_agree(self, other: TaskRun) -> bool:
        """Return whether agreement of the two says anything."""
        return (
            self.is_other_than(other)
            and not self.conversations & other.conversations
            and not (self.is_planted or other.is_planted)
        )

    def new_agreement(self, others: Iterable[TaskRun]) -> Agreement | None:
        """Return its agreement with other runs; None if to judge it again would change nothing."""
        if self.success is False or not (self.waits or self.compared_runs < MOST_WITNESSES):
            return None  # before others are compared, because that takes long
        agreement = agreement_of(pairs_of(self, others))
        known = 0 if self.waits else self.compared_runs
        return agreement if agreement is not None and agreement.runs > known else None


class Pair(NamedTuple):
    """Another run of a run's task, and how similar the two are, 0 to 1."""

    run: TaskRun
    similarity: float


def pairs_of(run: TaskRun, others: Iterable[TaskRun]) -> list[Pair]:
    """Return the runs that a run is compared with, each with its similarity.

    That are five at most, of which no two are of one conversation, and those with a verdict.

    Args:
        run: The run.
        others: Other runs of its task, in its namespace; the first ones are taken.
    """
    pairs: list[Pair] = []
    digest, seen, number = RunDigest.from_bytes(run.digest), frozenset[str](), 0
    for other in others:
        is_wrong = other.success is False
        if is_wrong:  # to repeat that is wrong in the same conversation, too
            is_compared = run.is_other_than(other)
        else:
            is_compared = (
                (number < MOST_WITNESSES or other.success is not None)
                and not other.conversations & seen
                and run.may_agree(other)
            )
        theirs = RunDigest.from_bytes(other.digest) if is_compared else None
        if digest is None or theirs is None:
            continue
        similarity = digest.similarity(theirs)
        if similarity is not None:
            pairs.append(Pair(other, similarity))
            if not is_wrong:
                seen |= other.conversations
                number += 1
    return pairs


def agreement_of(pairs: Sequence[Pair]) -> Agreement | None:
    """Return how far a run agrees with those it was compared with; None if that says nothing.

    It repeats a wrong run if it agrees with that more than with any that a verdict calls right.
    """
    right = max((one.similarity for one in pairs if one.run.success), default=0.0)
    wrong = [one.similarity for one in pairs if one.run.success is False]
    witnesses = [one.similarity for one in pairs if one.run.success is not False][:MOST_WITNESSES]
    repeated = sum(one >= AGREES and one > right for one in wrong)
    if not (witnesses or repeated):
        return None
    return Agreement(
        value=sum(witnesses) / len(witnesses) if witnesses else 0.0,
        runs=len(witnesses),
        agreeing=sum(one >= AGREES for one in witnesses),
        wrong=repeated,
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
