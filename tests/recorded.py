"""Recorded agent runs from a folder beside the checkout, played through real loops."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from kp_langchain import KPCallbackHandler, ScoredTrace, Scorer
from kp_langchain.redaction import redact

FOLDER = Path(__file__).resolve().parents[2] / "shared" / "trajectories"
MODES = ("conversation", "turns", "wrapped")
ERRORS = ("raise", "tool_exception", "return")
DOMAINS = {"other": "default"}


def present() -> bool:
    return (FOLDER / "replay.py").exists() and (FOLDER / "runs.jsonl.gz").exists()


def replayer() -> Any:
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return import_module("replay")


def load(name: str = "runs.jsonl.gz") -> Iterator[dict[str, Any]]:
    yield from replayer().load(FOLDER / name)


@dataclass
class Seen:
    """What one run should give, counted from the real loop's events and its recording."""

    runs: int = 0
    agent_errors: list[str] = field(default_factory=list)
    roots: int = 0
    traces: int = 0
    empty: int = 0
    other_fates: Counter[str] = field(default_factory=Counter)
    tool_calls: int = 0
    tool_call_steps: int = 0
    tool_errors: int = 0
    error_steps: int = 0
    recoveries: int = 0
    mismatches: list[str] = field(default_factory=list)
    scores: defaultdict[str, list[tuple[float, bool]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def play(
    runs: Iterable[dict[str, Any]],
    mode: str,
    errors: str,
    *,
    use_async: bool = False,
    scorer: Scorer | None = None,
    keep: list[tuple[dict[str, Any], ScoredTrace]] | None = None,
) -> Seen:
    """Replay runs with the handler and a plain counting one attached, and compare the two."""
    replay = replayer()
    seen = Seen()
    scorer = scorer or Scorer(embedder=None)
    for run in runs:
        scored: list[ScoredTrace] = []
        handler = KPCallbackHandler(
            DOMAINS.get(run["domain"], run["domain"]),
            scorer=scorer,
            store=None,
            on_scored=scored.append,
        )
        counter = Counted()
        callbacks = [handler, counter]
        seen.runs += 1
        try:
            if use_async:
                asyncio.run(replay.areplay(run, callbacks, mode, errors))
            else:
                replay.replay(run, callbacks, mode, errors)
        except Exception as error:
            seen.agent_errors.append(f"{run['run_id']}: {type(error).__name__}: {error}"[:200])
        assert handler.flush(60)
        stats = handler.stats()
        seen.roots += counter.roots
        seen.traces += len(scored)
        seen.empty += stats["empty"]
        for fate in ("cancelled", "abandoned", "dropped", "failed", "open", "paused",
                     "handed_over", "callback_errors"):  # fmt: skip
            seen.other_fates[fate] += stats[fate]
        if len(scored) + stats["empty"] != counter.roots:
            seen.mismatches.append(f"{run['run_id']}: {counter.roots} roots, {len(scored)} traces")
        calls = sum(
            step.attempts or 1
            for one in scored
            for step in one.trace.steps
            if step.type == "tool_call"
        )
        failures = [
            step
            for one in scored
            for step in one.trace.steps
            if step.type == "error_recovery" or _is_error(step, counter.error_texts)
        ]
        asked = counter.tool_starts + counter.unanswered
        seen.tool_calls += asked
        seen.tool_call_steps += calls
        seen.tool_errors += counter.tool_errors
        seen.error_steps += len(failures)
        seen.recoveries += sum(step.type == "error_recovery" for step in failures)
        if calls != asked:
            seen.mismatches.append(f"{run['run_id']}: {asked} tool calls, {calls} steps")
        if len(failures) != counter.tool_errors:
            seen.mismatches.append(
                f"{run['run_id']}: {counter.tool_errors} tool errors, {len(failures)} steps"
            )
        for one in scored:
            seen.scores[run["source"]].append((one.breakdown.total, one.decision == "kept"))
            if keep is not None:
                keep.append((run, one))
    return seen


def _is_error(step: Any, texts: set[str]) -> bool:
    return step.type == "observation" and (step.content or "")[:200] in texts


class Counted(BaseCallbackHandler):
    """Counts what the loop really does."""

    run_inline = True

    def __init__(self) -> None:
        self.roots = 0
        self.tool_starts = 0
        self.tool_errors = 0
        self.error_texts: set[str] = set()
        self.unanswered = 0  # calls that the last message of a run asks for
        self._requested: set[str] = set()

    def on_chain_start(self, *_: Any, parent_run_id: Any = None, **__: Any) -> None:
        self.roots += parent_run_id is None

    def on_chain_end(self, *_: Any, parent_run_id: Any = None, **__: Any) -> None:
        if parent_run_id is None:
            self.unanswered += len(self._requested)
            self._requested = set()

    def on_llm_end(self, response: Any, **_: Any) -> None:
        asked = response.generations[0][0].message.tool_calls
        self._requested = {call["id"] for call in asked}

    def on_tool_start(self, *_: Any, tool_call_id: str | None = None, **__: Any) -> None:
        self.tool_starts += 1
        self._requested.discard(tool_call_id or "")

    def on_tool_error(self, error: BaseException, **_: Any) -> None:
        self.tool_errors += 1
        self.error_texts.add(_comparable(f"{type(error).__name__}: {error}"))

    def on_tool_end(self, output: Any, **_: Any) -> None:
        if getattr(output, "status", "") == "error":
            self.tool_errors += 1
            self.error_texts.add(_comparable(output.content))


def _comparable(text: str) -> str:
    """An error's text as a trace may hold it: redacted; long ones by their beginning."""
    return redact(text[:4000]).value[:200]
