"""What examples do for the runs of a domain, and whether that is proven.

Recall holds a share of the runs out: it finds examples for them, and does not show them. So a
domain has runs with examples and runs without, and each run's side is drawn by lot. `Effect` has
the difference of their success rates, by verdicts alone, with its interval, and a word:

    helps       the interval is above 0
    hurts       it is below 0, also without the runs of each one namespace, unless the domain has
                runs of one only: nothing more is shown until a person decides, or until later
                verdicts on these runs say otherwise
    not proven  anything else

The interval holds however often one looks: the true difference is outside it at any time in at most
5 % of all domains. It is a confidence sequence by a normal mixture (Robbins, "Statistical methods
related to the law of the iterated logarithm", Annals of Mathematical Statistics 41, 1970; Johari,
Koomen, Pekelis and Walsh, "Peeking at A/B tests", KDD 2017; Howard, Ramdas, McAuliffe and Sekhon,
"Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of Statistics 49, 2021):

    D +- sqrt(2 V (V + t^2) / t^2 * ln(sqrt((V + t^2) / V) / 0.05))

D is the difference of the two rates, each of them with two more successes and two more failures
(Agresti and Coull, "Approximate is better than exact", American Statistician 52, 1998), and V its
variance. A domain in which examples change nothing is said to be helped or hurt at some time of its
first 1,000 runs in 1 to 4 % of the draws, of its first 10,000 in 5 %.
The scale t = 0.2 is the size of differences that it is best at: below 0.1 nobody would notice, and
above 0.3 few runs prove it whatever t is.

Runs of one task end alike. That does not widen the interval, because each run is held out by a lot
of its own: its task speaks for both sides alike. What is measured is the effect on the tasks that
the domain has; with few of them it may differ for others. All figures are by
`python -m tests.benchmarks.credit --times 1000`.

What is not drawn by lot is not compared fairly, and not counted: runs with examples by
`KPRetriever`, `KPExampleSelector` or `note_shown`, or by agents that hold none out. Agents with
another share held out are counted.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kp_langchain.recall.credit import Arms, holds_without_each
from kp_langchain.text import one_line

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore
    from kp_langchain.store.recall_effects import EffectCount, RecallDecision

Word = Literal["helps", "hurts", "not proven"]

ALPHA = 0.05
"""In how many domains the interval may miss the true difference at any time."""

SCALE = 0.2
"""The size of the differences that the interval is best at."""

_SMOOTHING = 2  # successes, and as many failures, that are added to each rate
_NAME_CHARS = 100


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The runs of a domain with examples, or those without.

    Attributes:
        runs: Their number.
        judged: Of how many a verdict states the success.
        succeeded: How many of these succeeded.
        seemed_successful: How many of the others look as if they did.
        tokens: What one took on the average, in tokens; None if that is not known. The average,
            because times the number of runs it is what is paid.
        seconds: What one took on the average, in seconds; None if that is not known.
    """

    runs: int = 0
    judged: int = 0
    succeeded: int = 0
    seemed_successful: int = 0
    tokens: float | None = None
    seconds: float | None = None

    @property
    def rate(self) -> float | None:
        """The share of the judged ones that succeeded; None if none is judged."""
        return self.succeeded / self.judged if self.judged else None


@dataclass(frozen=True, slots=True)
class Effect:
    """What examples do for the runs of a domain.

    Attributes:
        domain: The domain.
        shown: The runs with examples.
        held_out: The runs for which examples were found and not shown.
        low: The lower end of the interval of the difference, -1 to 1.
        high: Its upper end.
        word: Whether that proves that examples help or hurt.
        rests_on_one_namespace: Whether it would prove that they hurt, but for the runs of one
            namespace.
        decision: What a person decided of its examples; None for nothing.
    """

    domain: str
    shown: RunGroup
    held_out: RunGroup
    low: float
    high: float
    word: Word
    rests_on_one_namespace: bool = False
    decision: RecallDecision | None = None

    @property
    def difference(self) -> float | None:
        """By how much more of the runs with examples succeeded, -1 to 1; None if not known."""
        with_examples, without = self.shown.rate, self.held_out.rate
        return None if with_examples is None or without is None else with_examples - without

    @property
    def stop_reason(self) -> str:
        """Why runs of the domain are shown nothing, in words with what to do; "" if they are."""
        decision, name = self.decision, shlex.quote(one_line(self.domain, _NAME_CHARS))
        resume = f"kp-langchain recall --resume --domain {name}"
        if decision is not None and not decision.shows:
            return f"a person stopped examples in this domain; to show them again: {resume}"
        if self.word == "hurts":
            return (
                "runs of this domain ended worse with examples than without; look at it "
                f"(kp-langchain recall --effect --domain {name}), then decide: {resume}, or --stop"
            )
        return ""


def interval_of(
    judged: float, succeeded: float, judged_without: float, succeeded_without: float
) -> tuple[float, float]:
    """Return the interval of the difference of two success rates, which always holds.

    Args:
        judged: How many runs with examples have a verdict.
        succeeded: How many of them succeeded.
        judged_without: How many runs without examples have a verdict.
        succeeded_without: How many of them succeeded.

    Returns:
        Its lower and its upper end, -1 to 1; above 0 if more succeed with examples.
    """
    rate, variance = _smoothed(judged, succeeded)
    rate_without, variance_without = _smoothed(judged_without, succeeded_without)
    variance += variance_without
    ratio = (variance + SCALE**2) / variance
    radius = math.sqrt(
        2 * variance * (variance + SCALE**2) / SCALE**2 * math.log(math.sqrt(ratio) / ALPHA)
    )
    difference = rate - rate_without
    return max(-1.0, difference - radius), min(1.0, difference + radius)


def _smoothed(judged: float, succeeded: float) -> tuple[float, float]:
    """Return a rate with more successes and failures, and its variance."""
    number = judged + 2 * _SMOOTHING
    rate = (succeeded + _SMOOTHING) / number
    return rate, rate * (1 - rate) / number


def effect_of(
    domain: str, counts: Iterable[EffectCount], decision: RecallDecision | None = None
) -> Effect:
    """Return what examples do for the runs of a domain.

    Args:
        domain: The domain.
        counts: How its runs ended with examples and without.
        decision: What a person decided of its examples; None for nothing.
    """
    counts = list(counts)
    shown, held_out = (
        _group([one for one in counts if one.held_out is side]) for side in (False, True)
    )
    low, high = interval_of(shown.judged, shown.succeeded, held_out.judged, held_out.succeeded)
    word: Word = "helps" if low > 0 else "hurts" if high < 0 else "not proven"
    judged = [one for one in counts if one.is_stated]
    # Where there is one namespace only, it takes the examples from nobody else.
    are_shared = len({one.namespace for one in counts}) > 1
    rests_on_one = word == "hurts" and are_shared and not holds_without_each(judged, _is_loss)
    if rests_on_one:
        word = "not proven"
    return Effect(domain, shown, held_out, low, high, word, rests_on_one, decision)


def _is_loss(arms: Arms) -> bool:
    shown, held_out = arms
    return interval_of(shown.weight, shown.successes, held_out.weight, held_out.successes)[1] < 0


def _group(counts: Sequence[EffectCount]) -> RunGroup:
    judged = [one for one in counts if one.is_stated]
    tokens = _mean([one.tokens for one in counts])
    milliseconds = _mean([one.milliseconds for one in counts])
    return RunGroup(
        runs=sum(one.runs for one in counts),
        judged=sum(one.runs for one in judged),
        succeeded=sum(one.runs for one in judged if one.success),
        seemed_successful=sum(one.runs for one in counts if one.success and not one.is_stated),
        tokens=tokens,
        seconds=None if milliseconds is None else milliseconds / 1000,
    )


def _mean(sums: Sequence[tuple[float, int]]) -> float | None:
    number = sum(count for _, count in sums)
    return sum(total for total, _ in sums) / number if number else None


def effects_in(store: TraceStore, domain: str | None = None) -> list[Effect]:
    """Return what examples do in each domain of a store, in order of their names.

    A domain is left out if no run there had examples, and nobody decided anything of them.

    Args:
        store: The store.
        domain: Only this domain.

    Raises:
        StoreError: The store cannot be read.
    """
    counts, decisions = store.effects.counts(domain), store.effects.decisions(domain)
    return [
        effect_of(name, counts.get(name, ()), decisions.get(name))
        for name in sorted({*counts, *decisions})
    ]


def stop_reason(store: TraceStore, domain: str) -> str:
    """Return why runs of a domain are shown nothing, as of now; "" if they may be shown something.

    Args:
        store: The store.
        domain: The domain's exact name.

    Raises:
        StoreError: The store cannot be read.
    """
    return next((one.stop_reason for one in effects_in(store, domain)), "")
