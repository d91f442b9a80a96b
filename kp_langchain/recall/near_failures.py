"""What went wrong in failed runs that did nearly what a pattern does.

A failed run is near a pattern if its task has half of the words of one of the pattern's wordings,
and if its calls that decide are those of the pattern's steps but for one: missing, added or another
one in its place. Only names are told of it, of tools, arguments and errors: a value, or what an
error says, may be private, or be written to mislead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from kp_langchain.recall.prompt_text import TOOL_NAME, clean_line, code_span
from kp_langchain.recall.run_paths import RunPath
from kp_langchain.recall.task_wordings import words_of
from kp_langchain.recall.templates import NAME_CHARS, Arguments
from kp_langchain.text import count_text

_MOST = 3


class NearFailures:
    """The failed runs of one domain and namespace, to look for those that are near a pattern.

    Args:
        runs: Its runs.
    """

    def __init__(self, runs: Iterable[RunPath]) -> None:
        self._failed = [(run, set(words_of(run.objective))) for run in runs if not run.success]

    def told(
        self, kinds: Iterable[str], tools: Sequence[str], steps: Sequence[Arguments]
    ) -> tuple[str, ...]:
        """Return what went wrong near a pattern, most frequent first; at most three sentences.

        Args:
            kinds: The wordings of its tasks.
            tools: The names of the tools of its steps.
            steps: The input of each step.
        """
        of_kinds = [set(words) for kind in kinds if (words := words_of(kind))]
        counts = Counter(
            what
            for run, words in self._failed
            if abs(len(run.path) - len(tools)) <= 1
            and any(2 * len(words & of_kind) >= len(of_kind) for of_kind in of_kinds)
            for what in _differences(run, tools, steps)
        )
        in_order = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return tuple(f"{count_text(n, 'failed run')} {what}" for what, n in in_order[:_MOST])


def _differences(run: RunPath, tools: Sequence[str], steps: Sequence[Arguments]) -> set[str]:
    """Return how a run that is near differs from a pattern; nothing of another one."""
    missing = list((Counter(tools) - Counter(run.path)).elements())
    added = list((Counter(run.path) - Counter(tools)).elements())
    if len(missing) > 1 or len(added) > 1:
        return set()
    failed = {
        f"had an error of {_name(tool)}{error and f' ({error})'}"
        for tool, error in run.errors
        if tool in tools
    }
    if missing and added:
        return {*failed, f"called {_name(added[0])} in place of {_name(missing[0])}"}
    if missing:
        return {*failed, f"did not call {_name(missing[0])}"}
    if added:
        return {*failed, f"also called {_name(added[0])}"}
    if run.path != tuple(tools):
        return {*failed, "made the calls in another order"}
    others = {
        f"gave {_name(tool)} another {code_span(name)}"
        for tool, call, step in zip(tools, run.calls, steps, strict=True)
        for inputs in [{clean_line(key, NAME_CHARS): one for key, one in call.inputs.items()}]
        for name, value in step.template.items()
        if not _fits(inputs.get(name), value, step)
    }
    return failed | others or {"made the same calls"}


def _name(tool: str) -> str:
    """Return the name of a tool; a failed run may have called it by any text."""
    return code_span(tool) if TOOL_NAME.fullmatch(tool) else "another tool"


def _fits(value: object, template: object, step: Arguments) -> bool:
    """Return whether an argument has what stands around the placeholders of a template."""
    text, at = _folded(value), 0
    blanks = "|".join(re.escape(_folded(str(one))) for one in step.blanks)
    for piece in re.split(blanks, _folded(template)) if blanks else [_folded(template)]:
        at = text.find(piece.strip(), at)
        if at < 0:
            return False
        at += len(piece.strip())
    return True


def _folded(value: object) -> str:
    return " ".join(str(value).casefold().split())
