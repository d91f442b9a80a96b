"""The figures as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tests.benchmarks.quality.resampling import Sampled, mean
from tests.benchmarks.quality.tables import interval, titled
from tests.benchmarks.recall.attacks import EVERYTHING, SUCCESSES, Attacks
from tests.benchmarks.recall.costs import Costs
from tests.benchmarks.recall.fills import AT_RANDOM, FILLS, SCORE, WORTH
from tests.benchmarks.recall.measure import (
    VERDICT_SHARES,
    SizeFigures,
    SourceFigures,
)
from tests.benchmarks.recall.ways import (
    ELSEWHERE,
    NEAREST,
    NEAREST_FAILURE,
    NEAREST_SUCCESS,
    NEITHER,
    NO_AGREEMENT,
    NO_CONFIDENCE,
    NOTHING,
    RANDOM,
    RANDOM_SUCCESS,
    RECALL,
    RECALL_ANY,
    VERDICTS_FIRST,
)

_F1_WAYS = (RANDOM, RANDOM_SUCCESS, NEAREST_FAILURE, NEAREST, NEAREST_SUCCESS, RECALL)
_PARTIAL = (RECALL, NO_CONFIDENCE, NO_AGREEMENT, NEITHER, VERDICTS_FIRST)
_BITS_WAYS = (NOTHING, ELSEWHERE, *_F1_WAYS)


def runs_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """What was measured with."""
    return titled(
        "Recorded runs",
        ["source", "runs", "tasks", "successes", "examples looked up for", "of tasks"],
        [[name, *map(str, one.values())] for name, one in counts.items()],
    )


def way_tables(by_source: Mapping[str, SourceFigures]) -> Iterator[str]:
    """What each way of choosing gains, and what it is to abstain."""
    yield titled(
        "Plan F1 of what is shown",
        ["source", *_F1_WAYS],
        _with_mean({name: [one.f1[way] for way in _F1_WAYS] for name, one in by_source.items()}),
    )
    over = (RANDOM, NEAREST, NEAREST_SUCCESS)
    yield titled(
        "Plan F1 that recall gains",
        ["source", *(f"over {way}" for way in over)],
        _with_mean(
            {
                name: [one.f1[RECALL] - one.f1[way] for way in over]
                for name, one in by_source.items()
            },
            signed=True,
        ),
    )
    yield titled(
        "Plan F1 of recall, and without what it goes by",
        ["source", *_PARTIAL],
        _with_mean({name: [one.f1[way] for way in _PARTIAL] for name, one in by_source.items()}),
    )
    yield titled(
        "Plan F1 of recall by the share of runs that have a verdict",
        ["source", *(f"{share:.0%}" for share in VERDICT_SHARES)],
        _with_mean(
            {
                name: [one.f1_by_share[share] for share in VERDICT_SHARES]
                for name, one in by_source.items()
            }
        ),
    )
    yield titled(
        "Abstention",
        ["source", "floor", "tasks with an example", "F1 of these", "of a random run there",
         "of the nearest of all there", "F1 without a floor, of all tasks"],
        [
            [
                name,
                _range(one.floors),
                f"{one.shown.value:.0%}",
                *(_plain(one.f1_of_shown[way]) for way in (RECALL, RANDOM, NEAREST)),
                _plain(one.f1[RECALL_ANY]),
            ]
            for name, one in by_source.items()
        ],
    )  # fmt: skip
    yield titled(
        "Tokens of an example that recall shows",
        ["source", "median", "longest"],
        [
            [name, f"{statistics.median(one.tokens):.0f}", str(max(one.tokens))]
            for name, one in by_source.items()
        ],
    )
    if all(one.bits for one in by_source.values()):
        yield from _bits_tables(by_source)


def _bits_tables(by_source: Mapping[str, SourceFigures]) -> Iterator[str]:
    yield titled(
        "Bits a token of what the agent did",
        ["source", "runs", *_BITS_WAYS],
        _with_mean(
            {
                (name, str(one.targets)): [one.bits[way] for way in _BITS_WAYS]
                for name, one in by_source.items()
            }
        ),
    )
    yield titled(
        "Bits a token of recall, and without what it goes by",
        ["source", *_PARTIAL],
        _with_mean({name: [one.bits[way] for way in _PARTIAL] for name, one in by_source.items()}),
    )
    over = (NOTHING, RANDOM, NEAREST, NEAREST_SUCCESS, RECALL_ANY)
    yield titled(
        "Bits a token that recall saves",
        ["source", *(f"over {way}" for way in over)],
        _with_mean(
            {
                name: [one.bits[way] - one.bits[RECALL] for way in over]
                for name, one in by_source.items()
            },
            signed=True,
        ),
    )


def stranger_table(
    by_source: Mapping[str, Mapping[str, Sampled]], with_tools: Mapping[str, Mapping[str, Sampled]]
) -> str:
    """For how many tasks of each source a store has an example.

    Args:
        by_source: By source of the tasks and source of the store, the share.
        with_tools: The same where the agent's tools are known.
    """
    return titled(
        "Share of tasks for which a store has an example",
        ["tasks of", *(f"store of {name}" for name in by_source)],
        [
            [
                name,
                *(
                    f"{shares[store].value:.0%} / {with_tools[name][store].value:.0%}"
                    for store in by_source
                ),
            ]
            for name, shares in by_source.items()
        ],
    )


def size_tables(sizes: Sequence[SizeFigures]) -> Iterator[str]:
    """Recall with stores of equal size."""
    if not sizes:
        return
    names = list(sizes[0].kept)
    yield titled(
        "Stores of equal size: of each source, how many runs one holds, and how many succeeded",
        ["store", *names],
        [
            [
                str(one.size),
                *(
                    f"{one.kept[name]}: "
                    + " / ".join(f"{one.good[fill][name]:.0%}" for fill in FILLS)
                    for name in names
                ),
            ]
            for one in sizes
        ],
    )
    yield titled(
        "Plan F1 of recall without a floor by the size of the store, mean of the sources",
        ["store", *FILLS],
        [
            [str(one.size), *(_cell(mean(one.f1_without_floor[fill].values())) for fill in FILLS)]
            for one in sizes
        ],
    )
    for in_bits in (False, True):
        if in_bits and not sizes[0].bits:
            continue
        what = "Bits a token" if in_bits else "Plan F1"
        yield titled(
            f"{what} of recall by the size of the store, mean of the sources",
            ["store", *FILLS, "worth gains over random", "over the score"],
            [
                [
                    str(one.size),
                    *(
                        _cell(mean((one.bits if in_bits else one.f1)[fill].values()))
                        for fill in FILLS
                    ),
                    *(
                        _cell(one.gain(other, WORTH, None, in_bits=in_bits), signed=True)
                        for other in (AT_RANDOM, SCORE)
                    ),
                ]
                for one in sizes
            ],
        )
        yield titled(
            f"{what} that a store filled by worth gains over one filled at random",
            ["store", *names],
            [
                [
                    str(one.size),
                    *(
                        _cell(one.gain(AT_RANDOM, WORTH, name, in_bits=in_bits), signed=True)
                        for name in names
                    ),
                ]
                for one in sizes
            ],
        )


def correlation_table(what: str, by_source: Mapping[str, Mapping[str, Sampled]]) -> str:
    """Which numbers of a trace go with what it gains.

    Args:
        what: What is gained, as the title says it.
        by_source: By source and number, the rank correlation.
    """
    names = list(next(iter(by_source.values())))
    return titled(
        f"Rank correlation with {what}",
        ["of the trace", *by_source, "mean"],
        [
            [
                name,
                *(_cell(one[name], signed=True) for one in by_source.values()),
                _cell(mean(one[name] for one in by_source.values()), signed=True),
            ]
            for name in names
        ],
    )


def attack_table(found: Attacks) -> str:
    """What became of runs with planted instructions."""
    return titled(
        "Planted instructions",
        ["", "runs"],
        [
            ["given what an attack had planted", str(found.planted)],
            ["of these, found by the scan", str(found.detected)],
            ["without anything planted", str(found.clean)],
            ["of these, found by the scan", str(found.false_findings)],
            *(
                [
                    f"planted ones recalled for {found.questions} tasks, where {taken} "
                    f"{'count' if taken == SUCCESSES else 'counts'} as confirmed"
                    f"{'' if scans else ', without the scan'}",
                    str(found.recalled[taken, scans]),
                ]
                for taken in (SUCCESSES, EVERYTHING)
                for scans in (True, False)
            ),
        ],
    )


def cost_table(found: Costs) -> str:
    """What a search takes."""
    return titled(
        f"Time of a search in {found.traces:,} kept traces of one domain, in a file",
        ["", "time"],
        [
            ["median", f"{found.median:.1f} ms"],
            ["19 of 20 are faster than", f"{found.slowest_of_20:.1f} ms"],
            ["median for three examples", f"{found.of_three:.1f} ms"],
            ["median right after one more run was kept", f"{found.after_one_more:.1f} ms"],
            ["beside that, the embedding of the task", f"{found.embedding:.1f} ms"],
            ["first search of a store, without the time of embedding", f"{found.first_s:.1f} s"],
            ["first search in another process", f"{found.opened_s:.1f} s"],
        ],
    )


def _with_mean(
    rows: Mapping[str | tuple[str, ...], Sequence[Sampled]], *, signed: bool = False
) -> Iterable[list[str]]:
    """Return rows of figures, and that of their means."""
    width = 0
    for name, figures in rows.items():
        heads = [name] if isinstance(name, str) else list(name)
        width = len(heads)
        yield [*heads, *(_cell(one, signed=signed) for one in figures)]
    means = [mean(column) for column in zip(*rows.values(), strict=True)]
    yield ["mean", *[""] * (width - 1), *(_cell(one, signed=signed) for one in means)]


def _cell(one: Sampled, *, signed: bool = False) -> str:
    found = one.estimate
    if found is None or not signed:
        return interval(found)
    return f"{found['value']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})"


def _plain(one: Sampled) -> str:
    return f"{one.value:.2f}" if np.isfinite(one.value) else "-"


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
