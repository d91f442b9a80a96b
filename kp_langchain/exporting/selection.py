"""Which runs an export writes: judged or kept ones, the best of each task, split by task."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kp_langchain.calibration.agreement import task_key
from kp_langchain.errors import ConfigError
from kp_langchain.store import run_queries
from kp_langchain.store.selection import conditions_of
from kp_langchain.store.tables import runs

if TYPE_CHECKING:
    from kp_langchain.store import TraceStore

_NAMES_SHOWN = 3
_ROWS_AT_ONCE = 100
_c = runs.c
_objective = sa.case((_c.task.is_(None), _c.objective), else_="").label("objective")
_COLUMNS = (
    _c.trace_id, _c.task, _objective, _c.namespace, _c.decision, _c.success, _c.score, _c.worth,
    _c.privacy_level, _c.withheld, run_queries.is_kept().label("has_trace"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an export is asked for, beside the filters.

    Attributes:
        is_everything: Whether runs count that neither passed nor were judged.
        with_identifiers: Whether traces of the privacy level private count.
        successes_only: Whether only successes count.
        by_outcome: Whether right and wrong runs of a task are chosen apart.
        per_task: At most so many runs of a task.
        test_share: The share of tasks in the split `test`, 0 to 1.
        limit: At most so many runs, the newest; None for all.
        mixes_namespaces: Whether the runs may be of several namespaces.
    """

    is_everything: bool = False
    with_identifiers: bool = False
    successes_only: bool = False
    by_outcome: bool = False
    per_task: int = 1
    test_share: float = 0.0
    limit: int | None = None
    mixes_namespaces: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """A run to export.

    Attributes:
        trace_id: The id of its trace.
        task: A hash that is equal for the runs of a task.
        split: `train` or `test`.
        namespace: Its namespace.
        rank: The best run of a task has the highest.
        label: Whether a verdict calls it right; None if none says.
    """

    trace_id: str
    task: str
    split: str
    namespace: str | None
    rank: tuple[bool, bool, float]
    label: bool | None


@dataclass(frozen=True, slots=True)
class Selection:
    """The runs to export.

    Attributes:
        choices: The runs, the newest first.
        matching: How many runs the filters match.
        left_out: How many of them are left out, by the reason in words.
    """

    choices: list[Choice]
    matching: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def select_runs(store: TraceStore, filters: Mapping[str, Any], request: Request) -> Selection:
    """Return the runs to export.

    Args:
        store: The store.
        filters: As `RunFilters` explains them.
        request: What else is asked for.

    Raises:
        ConfigError: The runs are in several namespaces, and neither one was chosen nor all.
        StoreError: The store cannot be read.
    """
    left_out: Counter[str] = Counter()
    matching = 0
    candidates: list[Choice] = []
    for row, label in _rows(store, filters):
        matching += 1
        reason = _why_left_out(row, label, request)
        if reason:
            left_out[reason] += 1
        else:
            candidates.append(_choice(row, label, request))
    choices = _best_of_tasks(candidates, request)
    left_out["repeats of a task"] += len(candidates) - len(choices)
    if request.limit is not None:
        left_out["beyond --limit"] += max(len(choices) - request.limit, 0)
        choices = choices[: request.limit]
    if not (request.mixes_namespaces or filters.get("namespace")):
        _check_namespaces(choices)
    return Selection(choices, matching, +left_out)


def _rows(store: TraceStore, filters: Mapping[str, Any]) -> Iterator[tuple[Any, bool | None]]:
    """Yield what is known of each run, the newest first, and whether a verdict calls it right."""
    select = sa.select(*_COLUMNS).where(*conditions_of(dict(filters)))  # type: ignore[arg-type]
    with store.database.reading() as connection:
        labels = run_queries.labels(connection)
        pages = connection.execute(select.order_by(*run_queries.newest_first))
        for page in pages.partitions(_ROWS_AT_ONCE):
            for row in page:
                yield row, labels.get(row.trace_id)


def _why_left_out(row: Any, label: bool | None, request: Request) -> str:
    """Return why a run is left out; "" if it is not."""
    if row.withheld is not None:
        return "withheld, because redaction failed"
    if row.privacy_level == "private" and not request.with_identifiers:
        return "with identifiers (--with-identifiers)"
    is_kept = row.decision == "kept"
    if not (request.is_everything or is_kept or label is not None):
        return "neither kept nor judged (--all)"
    if not row.has_trace:
        return "without a stored trace"
    # Without a verdict that says otherwise, a run is what it looks like.
    if request.successes_only and not (row.success if label is None else label):
        return "without success"
    return ""


def _choice(row: Any, label: bool | None, request: Request) -> Choice:
    key = task_key(row.task, row.objective)
    if row.namespace is not None:  # two tenants' tasks are two, whatever they are called
        key = json.dumps([row.namespace, key])
    task = sha256(key.encode(errors="replace")).hexdigest()[:32]
    value = row.score if row.worth is None else row.worth
    return Choice(
        row.trace_id,
        task,
        split_of(task, request.test_share),
        row.namespace,
        (label is True, label is not False, value),
        label,
    )


def split_of(task: str, test_share: float) -> str:
    """Return the split of a task, which depends on nothing else: `train` or `test`.

    Args:
        task: The hash of the task.
        test_share: The share of tasks in `test`, 0 to 1.
    """
    drawn = int(sha256(f"split\0{task}".encode()).hexdigest()[:8], 16)
    return "test" if drawn < test_share * 2**32 else "train"


def _best_of_tasks(candidates: Iterable[Choice], request: Request) -> list[Choice]:
    """Return the best runs of each task, in the order in which they came."""
    groups: defaultdict[tuple[Any, ...], list[tuple[int, Choice]]] = defaultdict(list)
    for position, choice in enumerate(candidates):
        group = (choice.task, choice.label) if request.by_outcome else (choice.task,)
        groups[group].append((position, choice))
    best = [
        one
        for group in groups.values()
        for one in sorted(group, key=lambda one: (one[1].rank, -one[0]))[-request.per_task :]
    ]
    return [choice for _, choice in sorted(best, key=lambda one: one[0])]


def _check_namespaces(choices: Iterable[Choice]) -> None:
    """Raise `ConfigError` if the runs are of several namespaces."""
    names = dict.fromkeys(choice.namespace for choice in choices)
    if len(names) < 2:
        return
    texts = [name[:60] for name in names if name is not None]
    shown = ", ".join(texts[:_NAMES_SHOWN]) + (", ..." if len(texts) > _NAMES_SHOWN else "")
    without = " and without one" if None in names else ""
    raise ConfigError(
        f"the runs are in {len(texts)} namespaces ({shown}){without}; choose one with "
        f"--where namespace={texts[0]}, or give --all-namespaces to mix them"
    )
