"""Statistics of domains, as a table and in detail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kp_langchain.cli.output import visible
from kp_langchain.cli.plain_tables import indent, percent, plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from kp_langchain.review.stats import AtThreshold, DomainStats
    from kp_langchain.store import TraceStore

_DOMAIN_WIDTH = 20
_LEVELS, _ASCII_LEVELS = " ▁▂▃▄▅▆▇█", " .:-=+*#%"
_BAR_CELLS = 40
_STEPS_AROUND = (-10, -5, -2, -1, 0, 1, 2, 5, 10)  # hundredths
_MOST_THRESHOLDS = 4
_WIDTH_OF_FIGURES = 89  # of all columns before "redacted most", with the gaps between them
_WIDTH_FOR_REDACTIONS = 105


def print_stats(every: Sequence[DomainStats], console: Console) -> None:
    """Print the statistics of domains: a table, a sentence each, and of a single one everything.

    Args:
        every: The statistics, at least one.
        console: Where to print them.
    """
    console.print(_overview(every, console))
    console.print()
    for one in every:
        console.print(Text(visible(one.explanation())))
    if len(every) == 1:
        _print_details(every[0], console)
    else:
        console.print(Text("\nOne domain in full: kp-langchain review stats --domain NAME"))


def waiting_line(store: TraceStore) -> str:
    """Return in one line which runs are in no statistics yet, or got stuck; "" for none."""
    outbox = store.outbox.counts()
    waiting = {
        "wait for their score": store.journal.waiting(),
        "wait for a human": store.paused.count(),
        "wait to be sent": outbox["pending"],
        "were refused by the registry": outbox["dead"],
    }
    parts = [f"{number:,} {what}" for what, number in waiting.items() if number]
    return f"Besides: {'; '.join(parts)}." if parts else ""


def _overview(every: Sequence[DomainStats], console: Console) -> Table:
    has_room = console.width >= _WIDTH_FOR_REDACTIONS
    gap = 2 if has_room else 1
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    table.add_column("domain", no_wrap=True, overflow="ellipsis", max_width=_DOMAIN_WIDTH)
    for heading, least in (("runs", 7), ("kept", 6), ("", 4), ("median", 6), ("of", 4)):
        table.add_column(heading, justify="right", no_wrap=True, min_width=least)
    table.add_column("0 to 1", no_wrap=True, overflow="crop")
    table.add_column("labels", justify="right", no_wrap=True, min_width=6)
    if has_room:
        room = console.width - _WIDTH_OF_FIGURES
        table.add_column("redacted most", no_wrap=True, overflow="ellipsis", max_width=room)
    for one in every:
        labels = f"{one.successes}/{one.labelled}" if one.labelled else "none"
        table.add_row(
            Text(visible(one.domain)),
            f"{one.runs:,}",
            f"{one.kept:,}",
            percent(one.kept_share),
            f"{one.median:.2f}",
            f"{one.threshold:.2f}",
            _sparkline(one, console),
            labels,
            *([_redacted_most(one)] if has_room else []),
        )
    return table


def _redacted_most(one: DomainStats) -> Text:
    return Text(visible(_counts(dict(islice(one.redactions.items(), 2)))))


def _sparkline(one: DomainStats, console: Console) -> Text:
    """Return the histogram in one line; bins from the threshold on are green."""
    levels = _ASCII_LEVELS if console.options.ascii_only else _LEVELS
    highest = max(one.histogram)
    text = Text("", end="")
    for number, count in enumerate(one.histogram):
        level = 0 if not count else max(1, round(count / highest * (len(levels) - 1)))
        passes = (number + 1) / len(one.histogram) > one.threshold
        text.append(levels[level], "green" if passes else "")
    return text


def _print_details(one: DomainStats, console: Console) -> None:
    of = f"{one.gate} over {one.judged:,} {'run' if one.judged == 1 else 'runs'}"
    console.print(Text(f"\nWhat costs {one.gate}, on the average", "bold"))
    parts = plain_table("part", "median", "weight", "lost", right=True)
    for part in one.parts:
        in_the_median = "-" if part.median is None else f"{part.median:.2f}"
        parts.add_row(part.label, in_the_median, f"{part.weight:.2f}", f"{part.lost:.3f}")
    console.print(indent(parts))
    if one.rules:
        console.print(Text("\nRules", "bold"))
        rules = plain_table("rule", "runs", "each", "lost their pass", right=True)
        for rule in one.rules:
            rules.add_row(
                rule.name, f"{rule.runs:,}", f"{rule.change:+.2f}", f"{rule.passes_lost:,}"
            )
        console.print(indent(rules))
    console.print(Text(f"\nHistogram of {of}", "bold"))
    for line in _histogram_lines(one, console):
        console.print(line)
    console.print(Text("\nWhat would pass at other thresholds", "bold"))
    console.print(indent(_curve_table(one)))
    console.print()
    for label, text in _facts(one):
        console.print(Text(f"{label:<17}", "cyan") + Text(visible(text)))


def _histogram_lines(one: DomainStats, console: Console) -> Iterator[Text]:
    full, bins = "#" if console.options.ascii_only else "█", 10
    size = len(one.histogram) // bins
    counts = [sum(one.histogram[at * size : (at + 1) * size]) for at in range(bins)]
    highest = max(counts)
    for number, count in enumerate(counts):
        low, high = number / bins, (number + 1) / bins
        bar = full * max(bool(count), round(count / highest * _BAR_CELLS))
        mark = f"  <- threshold {one.threshold:.2f}" if low <= one.threshold < high else ""
        line = Text(f"  {low:.1f} to {high:.1f}  {count:>7,}  ")
        line.append(bar, "green" if low >= one.threshold else "")
        yield line.append(mark, "yellow")


def _curve_table(one: DomainStats) -> Table:
    table = plain_table("threshold", "pass", "share", "successes by verdict", right=True)
    for point in _points_around(one):
        share = percent(point.runs / one.judged)
        successes = f"{point.successes} of {point.labelled}" if point.labelled else "no verdicts"
        mark = " in force" if round(one.threshold, 2) == round(point.threshold, 2) else ""
        table.add_row(f"{point.threshold:.2f}{mark}", f"{point.runs:,}", share, successes)
    return table


def _points_around(one: DomainStats) -> list[AtThreshold]:
    """Return points of the curve at and beside the present threshold."""
    present = round(one.threshold * (len(one.curve) - 1))
    beside = (present + step for step in _STEPS_AROUND)
    return [one.curve[at] for at in beside if 0 <= at < len(one.curve)]


def _facts(one: DomainStats) -> Iterator[tuple[str, str]]:
    if one.labelled:
        yield (
            "verdicts",
            (
                f"{one.labelled:,} runs, {one.successes:,} succeeded; of the kept ones "
                f"{one.kept_successes:,} of {one.kept_labelled:,}"
            ),
        )
    else:
        yield "verdicts", "none; give some: kp-langchain label --next"
    if len(one.thresholds) > 1:
        yield "thresholds", _thresholds(one)
    yield "near-duplicates", f"{one.near_duplicates:,} runs"
    yield "recovered errors", f"{one.recovered:,} runs"
    redacted = f"in {one.redacted_runs:,} runs: {_counts(one.redactions)}"
    unknown = f"; {one.uncounted:,} runs not counted" if one.uncounted else ""
    yield "redacted", (redacted if one.redactions else "nothing") + unknown
    yield "dropped", _counts(one.dropped) or "nothing"
    if one.withheld:
        yield "withheld", f"{one.withheld:,} runs, because they could not be redacted"


def _thresholds(one: DomainStats) -> str:
    parts = [f"{at:.2f} for {number:,} runs" for at, number in one.thresholds[:_MOST_THRESHOLDS]]
    more = len(one.thresholds) - len(parts)
    return ", ".join(parts) + (f", and {more} more" if more else "")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
