"""The card of an exported dataset: how many runs, from where, how judged, and what was removed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kp_langchain._version import __version__
from kp_langchain.text import count_text, counts_text, one_line
from kp_langchain.usage import Usage

if TYPE_CHECKING:
    from kp_langchain.exporting.exported_run import ExportedRun
    from kp_langchain.exporting.selection import Selection

_NAME_CHARS, _TITLE_CHARS = 100, 100
_MOST_NAMES, _MOST_IN_TITLE = 20, 3
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*[]<>|#"})
_OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # one inside a word emphasises nothing


_Gate = tuple[str, str, str]  # a domain, a gate and a decision


@dataclass(slots=True)
class Tally:
    """What an export has written so far.

    Attributes:
        splits: How many runs of each split.
        domains: How many of each domain.
        judgements: How many a verdict calls `right` or `wrong`, and how many are `not judged`.
        verdict_sources: How many each source judged.
        gates: How many of each domain, gate and decision.
        thresholds: The lowest and the highest threshold of each of these, where any passes.
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
    gates: Counter[_Gate] = field(default_factory=Counter)
    thresholds: dict[_Gate, tuple[float, float]] = field(default_factory=dict)
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
        """Count a run that is written; of one that cannot be counted, nothing is."""
        stored = run.run
        marks, source = run.marks(), stored.confidence_source or "default"
        models = {one.model for one in run.usage.models if one.model} if run.usage else set()
        usage = run.usage if self.usage is None or run.usage is None else self.usage + run.usage
        judge = None if run.verdict is None else run.verdict.source_text
        self.splits[run.split] += 1
        self.domains[stored.domain] += 1
        words = {True: "right", False: "wrong", None: "not judged"}
        self.judgements[words[run.judgement]] += 1
        if judge is not None:
            self.verdict_sources[judge] += 1
        gate, threshold = (stored.domain, stored.gate, stored.decision), run.threshold
        self.gates[gate] += 1
        if threshold is not None:
            low, high = self.thresholds.get(gate, (threshold, threshold))
            self.thresholds[gate] = min(low, threshold), max(high, threshold)
        self.bases[source] += 1
        if stored.namespace is not None:
            self.namespaces[stored.namespace] += 1
        self.redactions.update(stored.redactions)
        self.step_marks += len(marks)
        self.models.update(models)
        self.usage = usage or self.usage
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
    domains = sorted(tally.domains, key=lambda name: (-tally.domains[name], name))
    more = f" and {len(domains) - _MOST_IN_TITLE} more" if len(domains) > _MOST_IN_TITLE else ""
    title = one_line(f"Runs of agents: {', '.join(domains[:_MOST_IN_TITLE])}{more}", _TITLE_CHARS)
    lines = [
        "---",
        *_head(title, format_name, tally, splits),
        "---",
        "",
        f"# {_escape(title)}",
        "",
        f"{count_text(tally.count, 'run')} of {selection.matching:,} that were looked at, in the "
        f"form {about}. Exported by kp-langchain {__version__}.",
        "No licence is stated: add yours to the head, as `license:`.",
        "",
        *_gate_table(tally),
        "",
        *_facts(tally, selection, has_marks=has_marks),
    ]
    return "\n".join(lines) + "\n"


def _head(title: str, format_name: str, tally: Tally, splits: Mapping[str, str]) -> Iterator[str]:
    yield f"pretty_name: {json.dumps(title, ensure_ascii=False)}"
    yield "tags:"
    for tag in ("kp-langchain", "agent-traces", format_name):
        yield f"- {tag}"
    size = next((size for limit, size in _SIZES if tally.count < limit), "n>1M")
    yield f"size_categories:\n- {size}"
    if splits:
        yield "configs:\n- config_name: default\n  data_files:"
        for split, file in splits.items():
            yield f"  - split: {split}\n    path: {json.dumps(file)}"


def _gate_table(tally: Tally) -> Iterator[str]:
    yield "| domain | gate | decision | runs | threshold |"
    yield "| --- | --- | --- | ---: | ---: |"
    for gate, number in sorted(tally.gates.items(), key=lambda pair: (-pair[1], pair[0])):
        thresholds = dict.fromkeys(f"{value:.3f}" for value in tally.thresholds.get(gate, ()))
        span = " to ".join(thresholds) or "none passes yet"
        yield f"| {' | '.join(map(_escape, gate))} | {number:,} | {span} |"


def _facts(tally: Tally, selection: Selection, *, has_marks: bool) -> Iterator[str]:
    yield f"- Splits, by task and never by run: {_counts(tally.splits)}."
    yield f"- Verdicts: {_counts(tally.judgements)}."
    if tally.verdict_sources:
        yield f"- Who judged: {_counts(tally.verdict_sources)}."
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
    return _OUTER_UNDERSCORE.sub(r"\\_", one_line(text, _NAME_CHARS).translate(_MARKDOWN))
