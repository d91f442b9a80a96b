"""The card of an exported dataset: how many runs, from where, how judged, and what was removed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kp_langchain._version import __version__
from kp_langchain.exporting.exported_run import clean_source
from kp_langchain.text import count_text, counts_text, one_line
from kp_langchain.usage import Usage

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun
    from kp_langchain.exporting.selection import Selection

_NAME_CHARS, _MOST_NAMES = 100, 20
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#"})


@dataclass(slots=True)
class Tally:
    """What an export has written so far.

    Attributes:
        splits: How many runs of each split.
        domains: How many of each domain.
        judgements: How many a verdict calls `right` or `wrong`, and how many are `not judged`.
        verdict_sources: How many each source judged.
        gates: How many each gate judged in each domain, and how.
        thresholds: The lowest and the highest threshold of each of these.
        bases: How many of each source of success and confidence.
        models: How many each model ran in.
        namespaces: How many of each namespace.
        redactions: How often each kind of sensitive text was replaced.
        step_marks: How many steps failed or were tried again.
        usage: What they took; None if no run states it.
        cost: What those of known cost did, in US dollars.
        unpriced: How many are of unknown cost.
        skipped: How many chosen runs were not written, by the reason in words.
    """

    splits: Counter[str] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)
    judgements: Counter[str] = field(default_factory=Counter)
    verdict_sources: Counter[str] = field(default_factory=Counter)
    gates: Counter[str] = field(default_factory=Counter)
    thresholds: dict[str, tuple[float, float]] = field(default_factory=dict)
    bases: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    namespaces: Counter[str] = field(default_factory=Counter)
    redactions: Counter[str] = field(default_factory=Counter)
    step_marks: int = 0
    usage: Usage | None = None
    cost: float = 0.0
    unpriced: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many runs were written."""
        return self.splits.total()

    def add(self, run: ExportedRun) -> None:
        """Count a run that was written."""
        stored = run.run
        self.splits[run.split] += 1
        self.domains[stored.domain] += 1
        words = {True: "right", False: "wrong", None: "not judged"}
        self.judgements[words[run.judgement]] += 1
        if run.verdict is not None:
            self.verdict_sources[clean_source(run.verdict.source_text)] += 1
        gate, threshold = f"{stored.domain}: {stored.gate}, {stored.decision}", stored.threshold
        self.gates[gate] += 1
        low, high = self.thresholds.get(gate, (threshold, threshold))
        self.thresholds[gate] = min(low, threshold), max(high, threshold)
        self.bases[clean_source(stored.confidence_source or "default")] += 1
        if stored.namespace is not None:
            self.namespaces[stored.namespace] += 1
        self.redactions.update(stored.redactions)
        self.step_marks += len(run.marks())
        if run.usage is not None:
            self.models.update({one.model for one in run.usage.models if one.model})
            self.usage = run.usage if self.usage is None else self.usage + run.usage
        self.cost += run.cost or 0.0
        self.unpriced += run.cost is None


def card(
    format_name: str,
    about: str,
    tally: Tally,
    selection: Selection,
    *,
    splits: Mapping[str, str],
    has_marks: bool,
) -> str:
    """Return the card of a dataset, in Markdown with a head in YAML as Hugging Face reads it.

    Args:
        format_name: The name of its format.
        about: What that is.
        tally: What was written.
        selection: How the runs were chosen.
        splits: The file of each split; empty if they are not rows of one form.
        has_marks: Whether step marks are in a file beside.
    """
    lines = [
        "---",
        *_head(format_name, tally, splits),
        "---",
        "",
        "# Runs of agents",
        "",
        f"{count_text(tally.count, 'run')} of {selection.matching:,} that were looked at, in the "
        f"form {about}. Exported by kp-langchain {__version__}.",
        "No licence is stated: add yours to the head, as `license:`.",
        "",
        *_domain_table(tally),
        "",
        *_facts(tally, selection, has_marks=has_marks),
    ]
    return "\n".join(lines) + "\n"


def _head(format_name: str, tally: Tally, splits: Mapping[str, str]) -> Iterator[str]:
    yield "pretty_name: Runs of agents"
    yield "tags:"
    for tag in ("kp-langchain", "agent-traces", format_name):
        yield f"- {tag}"
    size = next((size for limit, size in _SIZES if tally.count < limit), "n>1M")
    yield f"size_categories:\n- {size}"
    if splits:
        yield "configs:\n- config_name: default\n  data_files:"
        for split, file in splits.items():
            yield f"  - split: {split}\n    path: {json.dumps(file)}"


def _domain_table(tally: Tally) -> Iterator[str]:
    yield "| domain | runs |"
    yield "| --- | ---: |"
    for domain, number in sorted(tally.domains.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"| {_escape(domain)} | {number:,} |"


def _facts(tally: Tally, selection: Selection, *, has_marks: bool) -> Iterator[str]:
    yield f"- Splits, by task and never by run: {_counts(tally.splits)}."
    yield f"- Verdicts: {_counts(tally.judgements)}."
    if tally.verdict_sources:
        yield f"- Who judged: {_counts(tally.verdict_sources)}."
    for gate, number in tally.gates.most_common():
        low, high = (f"{value:.3f}" for value in tally.thresholds[gate])
        span = low if low == high else f"{low} to {high}"
        yield f"- Gate {_escape(gate)} by the threshold {span}: {count_text(number, 'run')}."
    yield f"- What success and confidence rest on: {_counts(tally.bases)}."
    yield f"- Models, by the runs that they ran in: {_counts(tally.models) or 'not recorded'}."
    if tally.namespaces:
        yield f"- Namespaces: {_counts(tally.namespaces)}."
    yield f"- Replaced by redaction, by kind: {_counts(tally.redactions) or 'nothing'}."
    yield f"- Left out: {_counts(selection.left_out + tally.skipped) or 'nothing'}."
    beside = ", in `marks.jsonl`" if has_marks else ""
    yield f"- Steps that failed, were tried again or got no answer: {tally.step_marks:,}{beside}."
    tokens = None if tally.usage is None else tally.usage.tokens
    if tally.usage is None or tokens is None:
        yield "- Usage: not recorded."
    else:
        yield (
            f"- Usage: {tokens.input_tokens:,} tokens of input, of which cached "
            f"{tokens.cached_tokens:,}; {tokens.output_tokens:,} of output; "
            f"{count_text(tally.usage.model_calls, 'call')} of models, "
            f"{count_text(tally.usage.tool_calls, 'call')} of tools."
        )
    if tally.unpriced < tally.count:
        unknown = f", without {count_text(tally.unpriced, 'run')} of unknown cost"
        yield f"- Cost: ${tally.cost:,.2f}{unknown if tally.unpriced else ''}."


def _counts(counts: Mapping[str, int]) -> str:
    """Return counts by name, the highest first; the rest of many as `others`."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    shown = {_escape(name): counts[name] for name in names[:_MOST_NAMES]}
    others = sum(counts[name] for name in names[_MOST_NAMES:])
    return counts_text(shown) + (f", others {others:,}" if others else "")


def _escape(text: str) -> str:
    """Return a text of a run as it may stand in Markdown."""
    return one_line(text, _NAME_CHARS).translate(_MARKDOWN)
