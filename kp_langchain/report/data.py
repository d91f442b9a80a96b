"""Reads the runs of a store for the page. What is damaged is left out and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kp_langchain.errors import StoreError
from kp_langchain.report.overview import DomainView, names_of, overview
from kp_langchain.report.run_records import Body, body_of, record_of
from kp_langchain.review.recall_facts import credit_text

if TYPE_CHECKING:
    from kp_langchain.gate.run import ShownTrace
    from kp_langchain.store import StoredRun, TraceStore
    from kp_langchain.store.run_columns import RunFilters
    from kp_langchain.verdict import Verdict

_PAGE = 200
_DAMAGE = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError)


@dataclass
class ReportData:
    """The runs of a page.

    Attributes:
        store: The name of the store, without its folder.
        runs: The records of the runs, the newest first; see `record_of`.
        bodies: The trace of each of them; None where the store does not have it.
        total: How many runs of the store match the filters.
        domains: The domains of these runs; None if their figures cannot be read.
        damaged_runs: How many runs are left out because their row cannot be read.
        damaged_traces: How many runs are without steps because their trace cannot be read.
        private_runs: How many runs keep identifiers, because only secrets were removed from them.
    """

    store: str
    runs: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[Body | None] = field(default_factory=list)
    total: int = 0
    domains: list[DomainView] | None = field(default_factory=list)
    damaged_runs: int = 0
    damaged_traces: int = 0
    private_runs: int = 0


def collect(store: TraceStore, filters: RunFilters, *, limit: int) -> ReportData:
    """Return the newest runs of a store as the page has them.

    Args:
        store: The store.
        filters: Which runs, as for `TraceStore.runs`.
        limit: At most so many.

    Raises:
        StoreError: The store cannot be read.
    """
    data = ReportData(store.location.rpartition("/")[2], total=store.count(**filters))
    credits_ = _credits(store)
    known: set[str] = set()
    for page in _pages(store, filters, limit, data):
        # A run that is added meanwhile moves the others, so that one comes twice.
        runs = [run for run in page if run.trace_id not in known]
        known.update(run.trace_id for run in runs)
        _add(store, runs, data, credits_)
    _add_figures(store, filters, data)
    return data


def read_record(store: TraceStore, trace_id: str) -> dict[str, Any] | None:
    """Return the record of one run as it is now; None if it is gone.

    Raises:
        StoreError: The store cannot be read.
    """
    run = store.get(trace_id)
    if run is None:
        return None
    data = ReportData("")
    _add(store, [run], data, {})
    if not data.runs:
        return None
    # The page knows its domain, by a name that tells it from all others; and its credit, which a
    # verdict on this run does not change.
    return {name: value for name, value in data.runs[0].items() if name not in ("domain", "credit")}


def _pages(
    store: TraceStore, filters: RunFilters, limit: int, data: ReportData
) -> Iterator[list[StoredRun]]:
    """Yield the runs, the newest first; count those whose row cannot be read."""
    for offset in range(0, limit, _PAGE):
        size = min(_PAGE, limit - offset)
        try:
            page = store.runs(limit=size, offset=offset, **filters)
            rows = len(page)
        except (StoreError, *_DAMAGE):
            rows = min(size, store.count(**filters) - offset)  # raises if it is the store
            page = list(_readable(store, filters, range(offset, offset + rows)))
            data.damaged_runs += rows - len(page)
        yield page
        if rows < size:
            return


def _readable(store: TraceStore, filters: RunFilters, offsets: range) -> Iterator[StoredRun]:
    for offset in offsets:
        try:
            yield from store.runs(limit=1, offset=offset, **filters)
        except (StoreError, *_DAMAGE):
            continue


def _add_figures(store: TraceStore, filters: RunFilters, data: ReportData) -> None:
    """Add what the summaries of the runs tell: the figures and the names of their domains."""
    records = {record["id"]: record for record in data.runs}
    try:
        summaries = [one for one in store.summaries(**filters) if one.trace_id in records]
        names = names_of(one.domain for one in summaries)
        for one in summaries:
            records[one.trace_id]["domain"] = names[one.domain]
        data.domains = overview(summaries, names)
    except (StoreError, *_DAMAGE):
        store.count(**filters)  # raises if it is the store
        data.domains = None


def _credits(store: TraceStore) -> dict[tuple[str, str], str]:
    """Return the credit of the traces that runs were shown, in words, by domain and trace id."""
    try:
        counts = store.shown.outcome_counts_by_domain()
    except (StoreError, *_DAMAGE):
        store.count()  # raises if it is the store
        return {}
    if not counts:
        return {}
    from kp_langchain.recall.credit import credits_of

    return {
        (domain, trace_id): credit_text(credit)
        for domain, of_domain in counts.items()
        for trace_id, credit in credits_of(of_domain).items()
    }


def _add(
    store: TraceStore,
    runs: list[StoredRun],
    data: ReportData,
    credits_: Mapping[tuple[str, str], str],
) -> None:
    """Add the records and traces of a page of runs."""
    trace_ids = [run.trace_id for run in runs]
    verdicts = _verdicts(store, trace_ids)
    kept_ids = [run.trace_id for run in runs if run.kept]
    shown, planted = _shown(store, trace_ids, kept_ids)
    texts = _body_texts(store, kept_ids, data)
    for run in runs:
        text = texts.get(run.trace_id)
        body = None
        if text is not None:
            try:
                body = body_of(text)
            except _DAMAGE:
                data.damaged_traces += 1
        try:
            record = record_of(
                run,
                verdicts.get(run.trace_id, []),
                body,
                shown=shown.get(run.trace_id, ()),
                credit=credits_.get((run.domain, run.trace_id)),
                planted=planted.get(run.trace_id),
            )
        except (StoreError, *_DAMAGE):
            data.damaged_runs += 1
            continue
        data.private_runs += run.privacy_level == "private"
        data.runs.append(record)
        data.bodies.append(body)


def _body_texts(store: TraceStore, trace_ids: list[str], data: ReportData) -> dict[str, str]:
    try:
        return store.body_texts(trace_ids)
    except (StoreError, *_DAMAGE):  # one is no text: find out which
        texts: dict[str, str] = {}
        for trace_id in trace_ids:
            try:
                texts |= store.body_texts([trace_id])
            except (StoreError, *_DAMAGE):
                data.damaged_traces += 1
        return texts


def _verdicts(store: TraceStore, trace_ids: list[str]) -> dict[str, list[Verdict]]:
    try:
        return store.verdicts_by_trace(trace_ids)
    except (StoreError, *_DAMAGE):  # one was changed outside this package: find out on which run
        by_trace: dict[str, list[Verdict]] = {}
        for trace_id in trace_ids:
            with suppress(StoreError, *_DAMAGE):
                by_trace |= store.verdicts_by_trace([trace_id])
        return by_trace


def _shown(
    store: TraceStore, trace_ids: list[str], kept_ids: list[str]
) -> tuple[dict[str, list[ShownTrace]], dict[str, str]]:
    """Return by trace id what runs were shown, and what looks like planted instructions in them."""
    try:
        return store.shown.of_runs(trace_ids), store.recall_entries.planted(kept_ids)
    except (StoreError, *_DAMAGE):
        store.count()  # raises if it is the store
        return {}, {}
