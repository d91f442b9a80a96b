"""Runs that play through a real loop: situations, answers of providers, and recorded runs."""

from __future__ import annotations

import asyncio
import itertools
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import recorded
from tests.golden.normal import canonical, normal
from tests.golden.seen import Seen, command, logged
from tests.recording import provider_answers, situations
from tests.recording.test_situations import SITUATIONS  # all modules of situations

Cases = Iterator[tuple[str, Any]]
ONE_BY_ONE = {"max_concurrency": 1}  # calls of tools, so that they begin in order
CHUNK = 25  # recorded runs that share a memory and a store
# Tools and runs that go at once end in any order.
UNORDERED = (
    "parallel tool calls", "parallel tool calls, async", "one of two parallel tool calls fails",
    "create_agent.batch of 3", "create_agent.abatch of 3",
)  # fmt: skip


def of_situations() -> Cases:
    """Every situation with a store, and what the commands say of all of them."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs.db")
        for one in SITUATIONS:
            if one.needs and one.needs not in sys.modules:
                continue
            with logged() as records:
                is_ordered = one.name not in UNORDERED
                # The rows of unordered ones would differ in more than their order.
                seen = Seen(domain_of(one.name), store=database if is_ordered else None)
                done = one.go(seen.handler)
                if asyncio.iscoroutine(done):
                    asyncio.run(done)
                assert seen.handler.flush(60)
                situations._unclosed.clear()
                yield one.name, seen.all(records, is_ordered=is_ordered)
                seen.handler.close()
        for name, case in of_database(database):
            if name != "export --all: status":  # it says how many situations a release can play
                yield name, case


def of_answers() -> Cases:
    """Every answer of a provider."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs.db")
        for one in provider_answers.ANSWERS:
            with logged() as records:
                seen = Seen(domain_of(one.name), store=database)
                provider_answers.play(one, seen.handler)
                yield one.name, seen.all(records)
                seen.handler.close()
        yield from of_database(database)


def domain_of(name: str) -> str:
    """Return a domain of its own for a case."""
    return re.sub(r"\W+", "-", name)


def of_database(database: Path) -> Cases:
    """What review, stats and export say of a store, a line each."""
    for words in (
        ("review", "--json", "--limit", "100000"),
        ("review", "stats", "--json"),
        ("export", "--all", "--with-identifiers"),
    ):
        done = command(*words, database=database)
        name = " ".join(words[:2])
        yield f"{name}: status", {"exit": done["exit"], "stderr": done["stderr"]}
        rows = sorted((normal(row) for row in done["stdout"]), key=canonical)
        known: Counter[str] = Counter()
        for row in rows:
            about = _about(row)
            known[about] += 1
            yield f"{name}: {about} {known[about]}", row


def _about(row: Any) -> str:
    """Return a few words on a line of output, so that it is compared with the same one."""
    if not isinstance(row, dict):
        return "line"
    trace = row.get("metadata", {})
    task = row.get("task", {}).get("objective") if trace else row.get("objective")
    return f"{row.get('domain') or trace.get('task_domain')} {str(task or '')[:40]}".strip()


def of_recorded_runs(every: int = 1) -> Cases:
    """Real recorded runs in chunks, each in another mode; one case a chunk.

    Args:
        every: Play each chunk, or only each second and so on.
    """
    modes = [
        (mode, errors, use_async)
        for mode, errors, use_async in itertools.product(
            recorded.MODES, recorded.ERRORS, (False, True)
        )
        if not (mode == "wrapped" and use_async)
    ]
    runs = itertools.chain(recorded.load(), recorded.load("runs2.jsonl.gz"))
    chunks = iter(lambda: list(itertools.islice(runs, CHUNK)), [])
    for number, chunk in enumerate(chunks):
        if number % every == 0:
            mode, errors, use_async = modes[number % len(modes)]
            name = f"{number} {mode} {errors} {'a' * use_async}sync"
            yield name, _chunk(chunk, mode, errors, use_async=use_async)


def _chunk(runs: Any, mode: str, errors: str, *, use_async: bool) -> list[Any]:
    replay = recorded.replayer()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "runs.db")
        seen_runs: list[Any] = []
        handlers: dict[str, Seen] = {}
        for run in runs:
            domain = recorded.DOMAINS.get(run["domain"], run["domain"])
            with logged() as records:
                seen = handlers.setdefault(domain, Seen(domain, store=database))
                seen.scored.clear()
                if use_async:
                    asyncio.run(replay.areplay(run, [seen.handler], mode, errors, ONE_BY_ONE))
                else:
                    replay.replay(run, [seen.handler], mode, errors, ONE_BY_ONE)
                seen_runs.append(seen.all(records))
        for seen in handlers.values():
            seen.handler.close()
        return [*seen_runs, *of_database(database)]
