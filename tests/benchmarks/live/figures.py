"""The tables of the live benchmark: what recall chooses, and how runs ended with and without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from scipy.stats import binomtest

from kp_langchain.recall.effect import effect_of
from kp_langchain.review.recall_facts import effect_lines
from kp_langchain.store.recall_effects import EffectCount
from tests.benchmarks.harness import table
from tests.benchmarks.intervals import TaskResamples
from tests.benchmarks.live.runs import Kept, Row
from tests.benchmarks.live.worlds import Task, World

NOTHING = "nothing"


def tasks_of(world: World, of_each: int) -> Iterator[tuple[int, Task]]:
    """Yield the tasks that are asked, with their numbers, one of each kind after the other."""
    for number in range(of_each):
        for kind in world.kinds:
            yield number, world.task(kind, number, is_kept=False)


def choice_row(name: str, kept: Kept, of_each: int, **options: Any) -> list[object]:
    """Return for how many tasks recall finds a run of the right kind, with options of its own."""
    found = [
        (task.kind, kept.kinds_found(task, limit=3, **options))
        for _, task in tasks_of(kept.world, of_each)
    ]
    nearest = [
        (task.kind, kept.kinds_found(task, limit=3, floor=0.0, **options))
        for _, task in tasks_of(kept.world, of_each)
    ]
    return [
        name,
        len(found),
        sum(kinds[:1] == [kind] for kind, kinds in nearest),
        sum(kind in kinds for kind, kinds in nearest),
        sum(kinds[:1] == [kind] for kind, kinds in found),
        sum(kind in kinds for kind, kinds in found),
        sum(bool(kinds) and kind not in kinds for kind, kinds in found),
        sum(not kinds for _, kinds in found),
    ]


def choice_table(rows: Sequence[Sequence[object]]) -> str:
    """Return the table of what recall chooses, by world and by how tasks are compared."""
    head = ["world, tasks compared", "tasks", "nearest is right", "among three", "first shown is right",
            "among three shown", "only wrong ones shown", "nothing shown"]  # fmt: skip
    return table("Kinds of the runs that recall chooses", head, rows)


def as_it_reads() -> object:
    """Return a context in which tasks are compared as they read alone."""
    return patch("kp_langchain.recall.task_index.masked", lambda task, values=(): task)


def run_tables(rows: Sequence[Row], arms: Sequence[str]) -> Iterator[str]:
    """Yield the tables of how runs ended: by world and arm, against nothing, and by kind."""
    worlds = list(dict.fromkeys(row.world for row in rows))
    by_arm: Mapping[tuple[str, str], list[Row]] = {
        (world, arm): [row for row in rows if (row.world, row.arm) == (world, arm)]
        for world in worlds
        for arm in arms
    }
    yield table(
        "Runs",
        [
            "world, shown",
            "solved",
            "no answer",
            "model calls",
            "prompt tokens of a run",
            "of a call",
            "s",
        ],
        [_arm_row(f"{world}, {arm}", own) for (world, arm), own in by_arm.items() if own],
    )
    lines = []
    for (world, arm), own in by_arm.items():
        base = (
            {(row.kind, row.number): row for row in by_arm[world, NOTHING]}
            if NOTHING in arms
            else {}
        )
        pairs = [(row, base[row.kind, row.number]) for row in own if (row.kind, row.number) in base]
        if arm != NOTHING and pairs:
            lines.append(_pair_row(f"{world}, {arm}", pairs))
    if lines:
        head = [
            "world, shown",
            "pairs",
            "solved more",
            "won",
            "lost",
            "p",
            "kinds worse",
            "tokens of a run",
            "of a call",
        ]
        yield table("Against nothing", head, lines)
    if NOTHING in arms and "recall" in arms:
        yield from (effect_text(rows, world, "recall") for world in worlds)


def effect_text(rows: Sequence[Row], world: str, arm: str) -> str:
    """Return what examples do in a world, as `recall --effect` would say it of these runs."""
    counts = [
        EffectCount(
            held_out=row.arm == NOTHING,
            success=row.solved,
            is_stated=True,
            namespace=None,
            runs=1,
            tokens=(row.prompt_tokens, 1),
            milliseconds=(1000 * row.seconds, 1),
        )
        for row in rows
        if row.world == world and (row.arm == NOTHING or (row.arm == arm and row.shown))
    ]
    lines = iter(effect_lines(effect_of(world, counts)))
    return "\n  ".join([f"{world}: {next(lines)}", *lines]) + "\n"


def _arm_row(name: str, rows: Sequence[Row]) -> list[object]:
    number, calls = len(rows), sum(row.model_calls for row in rows)
    tokens = sum(row.prompt_tokens for row in rows)
    solved = TaskResamples(row.kind for row in rows).mean_of_runs(
        [row.kind for row in rows], [float(row.solved) for row in rows]
    )
    return [
        name, f"{sum(row.solved for row in rows)} of {number}: {solved.text()}",
        sum(not row.answered for row in rows), f"{calls / number:.1f}",
        f"{tokens / number:,.0f}", f"{tokens / calls:,.0f}",
        f"{sum(row.seconds for row in rows) / number:.0f}",
    ]  # fmt: skip


def _pair_row(name: str, pairs: Sequence[tuple[Row, Row]]) -> list[object]:
    won = sum(one.solved and not other.solved for one, other in pairs)
    lost = sum(other.solved and not one.solved for one, other in pairs)
    kinds = [one.kind for one, _ in pairs]
    more = TaskResamples(kinds).mean_of_runs(
        kinds, [float(one.solved) - float(other.solved) for one, other in pairs]
    )
    by_kind = {
        kind: sum(one.solved - other.solved for one, other in pairs if one.kind == kind)
        for kind in kinds
    }
    tokens = [sum(pair[at].prompt_tokens for pair in pairs) for at in (0, 1)]
    calls = [sum(pair[at].model_calls for pair in pairs) for at in (0, 1)]
    return [
        name, len(pairs), more.text("+.2f"), won, lost,
        f"{binomtest(won, won + lost).pvalue:.2g}" if won + lost else "-",
        f"{sum(change < 0 for change in by_kind.values())} of {len(by_kind)}",
        f"{tokens[0] / tokens[1]:.2f} times",
        f"{tokens[0] / calls[0] / (tokens[1] / calls[1]):.2f} times",
    ]  # fmt: skip
