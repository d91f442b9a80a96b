"""The results of an archive, read again: figures of its runs, and a store of the newest ones."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from kp_langchain.archive.blocks import plan_in
from kp_langchain.archive.files import Storage, access_errors
from kp_langchain.archive.tables import folder_name
from kp_langchain.calibration.agreement import task_hash
from kp_langchain.errors import KPError
from kp_langchain.gate import ScoredTrace
from kp_langchain.parquet import load_extra
from kp_langchain.schema import ReasoningTrace
from kp_langchain.scoring.breakdown import ScoreBreakdown
from kp_langchain.scoring.dimensions import DIMENSION_NAMES
from kp_langchain.store import TraceStore
from kp_langchain.store.run_figures import Figures, add_figures, figures_by_domain

_PLACE = re.compile(r"domain=(?P<domain>[^/]*)/day=(?P<day>[^/]*)/[^/]+\.parquet")
_COUNTED = (
    *("trace_id", "task_domain", "success", "score", "threshold", "passed"),
    *("recovered_errors", "agreement", "breakdown"),
)
_OF_RUN = ("created_at", "threshold", "passed", "breakdown", "trace")
# What a result does not say of runs.
_UNKNOWN = (
    *("worth", "veto", "label", "total_tokens", "duration_ms"),
    *("redactions", "dropped", "usage"),
)
_ROWS_AT_ONCE = 2000


class Results:
    """The Parquet files that `score` wrote into a folder or behind a URL, or some of their rows.

    Args:
        url: The folder or URL.
        domain: Only runs of this domain.
        since: Only runs that began at this time or later. A time without a zone is local.
        until: Only runs that began before this time.

    Raises:
        KPError: There are no results, or not all of them yet.
        MissingExtraError: What reads them is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        domain: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> None:
        self._storage = Storage(url)
        plan = plan_in(self._storage)
        if plan is not None and plan.summary is None:
            raise KPError(f"{url} is not complete; the command that began it continues it")
        places = [place for name in self._storage.names() if (place := _PLACE.fullmatch(name))]
        if plan is None and not places:
            raise KPError(f"{url} holds no results; kp-langchain score --out {url} writes them")
        if plan is not None and plan.summary is not None:
            self._check_all_there([place[0] for place in places], plan.summary["scored"])
        folder = None if domain is None else folder_name(domain)
        self._names: dict[str, list[str]] = {}  # by day
        for place in places:
            if folder in (None, place["domain"]):
                self._names.setdefault(place["day"], []).append(place[0])
        (compute,) = load_extra("pyarrow.compute")
        self._conditions: list[Any] = []
        if domain is not None:
            self._conditions.append(compute.field("task_domain") == domain)
        if since is not None:
            self._conditions.append(compute.field("created_at") >= _aware(since))
        if until is not None:
            self._conditions.append(compute.field("created_at") < _aware(until))

    def _check_all_there(self, names: Sequence[str], scored: int) -> None:
        with access_errors(self._storage.url, "read"):
            count = self._storage.dataset(names).count_rows() if names else 0
        if count < scored:
            raise KPError(
                f"{self._storage.url} has lost files: {scored:,} runs were scored, and {count:,} "
                "are there"
            )

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self._storage.url.rpartition("/")[2]

    def count(self) -> int:
        """Return how many runs there are."""
        return sum(map(len, self._batches(self._names, ["created_at"])))

    def figures(self) -> dict[str, Figures]:
        """Return what is counted of the runs by domain, for `kp_langchain.review.stats_of`.

        Their tokens, times and redactions are not known.
        """
        figures: dict[str, Figures] = {}
        for batch in self._batches(self._names, _COUNTED):
            figures = add_figures(figures, figures_by_domain(_figure_columns(batch.to_pydict())))
        return figures

    @contextmanager
    def newest(self, limit: int) -> Iterator[TraceStore]:
        """Yield a store, which is deleted afterwards, with the newest runs.

        Args:
            limit: At most so many. Of those with one id, the last is there.
        """
        (compute,) = load_extra("pyarrow.compute")
        newest: list[datetime] = []
        days: list[str] = []
        for day in sorted(self._names, reverse=True):
            if len(newest) >= limit:
                break
            days.append(day)
            for batch in self._batches([day], ["created_at"]):
                newest = sorted([*newest, *batch["created_at"].to_pylist()])[-limit:]
        left = Counter(newest)  # of those that began with the oldest of them, not all may be
        conditions = [compute.field("created_at") >= time for time in newest[:1]]
        with TemporaryDirectory() as folder, TraceStore(Path(folder, "newest.db")) as store:
            for batch in self._batches(days, _OF_RUN, conditions):
                rows = []
                for row in batch.to_pylist():
                    left[row["created_at"]] -= 1
                    rows += [row] if left[row["created_at"]] >= 0 else []
                store.add(*map(_scored_trace, rows))
            yield store

    def _batches(
        self, days: Collection[str], columns: Sequence[str], conditions: Sequence[Any] = ()
    ) -> Iterator[Any]:
        """Yield some columns of the runs of some days, the earlier days first."""
        names = [name for day in sorted(days) for name in self._names[day]]
        every = [*self._conditions, *conditions]
        if names:
            with access_errors(self._storage.url, "read"):
                yield from self._storage.dataset(names).to_batches(
                    columns=list(columns),
                    filter=reduce(and_, every) if every else None,
                    batch_size=_ROWS_AT_ONCE,
                    fragment_readahead=1,
                )


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.astimezone()


def _figure_columns(rows: Mapping[str, list[Any]]) -> dict[str, Sequence[Any]]:
    """Return the columns that `figures_by_domain` counts; see `TraceStore.figures`."""
    count = len(rows["trace_id"])
    breakdowns = [json.loads(text) for text in rows["breakdown"]]
    columns: dict[str, Sequence[Any]] = {name: [None] * count for name in _UNKNOWN}
    columns |= {name: rows[name] for name in ("score", "threshold", "success", "recovered_errors")}
    columns |= {
        "domain": rows["task_domain"],
        "decision": ["kept" if passed else "below_threshold" for passed in rows["passed"]],
        "gate": ["score"] * count,
        "is_twin": [False] * count,
        "is_withheld": [False] * count,
        "is_compared": [one is not None for one in rows["agreement"]],
        "novelty_source": [one["novelty_source"] for one in breakdowns],
        "rules": [
            json.dumps({rule["name"]: rule["after"] - rule["before"] for rule in one["rules"]})
            for one in breakdowns
        ],
    }
    for name in DIMENSION_NAMES:
        columns[name] = [one[name]["value"] for one in breakdowns]
        columns[f"{name}_weight"] = [one[name]["weight"] for one in breakdowns]
    return columns


def _scored_trace(row: Mapping[str, Any]) -> ScoredTrace:
    trace = ReasoningTrace.model_validate_json(row["trace"])
    return ScoredTrace(
        trace=trace,
        breakdown=ScoreBreakdown.from_dict(json.loads(row["breakdown"])),
        decision="kept" if row["passed"] else "below_threshold",
        threshold=row["threshold"],
        run_id=uuid5(NAMESPACE_URL, trace.id),
        task=task_hash(trace.task.objective),
    )
