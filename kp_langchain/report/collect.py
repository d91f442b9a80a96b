"""Reads the runs of a store for the page. Damaged traces are left out and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import compress
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kp_langchain._logging import describe_error
from kp_langchain.calibration.failure_groups import failures_by_domain
from kp_langchain.config import current_prices
from kp_langchain.errors import KPError, StoreError
from kp_langchain.report.records import Body, body_of, domain_name, figure, record_of
from kp_langchain.review.recall_facts import credit_text, effect_lines
from kp_langchain.review.stats import DomainStats, domain_stats
from kp_langchain.store.selection import MOST_COUNTED
from kp_langchain.text import bounded_text, one_line

if TYPE_CHECKING:
    from kp_langchain.calibration.basis import Basis
    from kp_langchain.calibration.failure_groups import DomainFailures
    from kp_langchain.store import StoredRun, TraceStore
    from kp_langchain.store.selection import RunFilters

_RUNS_READ_AT_ONCE = 200
_SENTENCE_CHARS = 1000


@dataclass
class ReportData:
    """The runs of a page.

    Attributes:
        store: The name of the store, without its folder.
        runs: The records of the runs, the newest first; see `record_of`.
        bodies: The trace of each of them; None where the store does not have it.
        total: How many runs of the store match the filters, in words.
        domains: The figures of the domains of these runs, the one with most runs first.
        damaged_traces: How many runs are without steps because their trace cannot be read.
        private_runs: How many runs keep identifiers, because only secrets were removed from them.
    """

    store: str = ""
    runs: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[Body | None] = field(default_factory=list)
    total: str = "0 runs"
    domains: list[dict[str, Any]] = field(default_factory=list)
    damaged_traces: int = 0
    private_runs: int = 0


def collect(store: TraceStore, filters: RunFilters, *, limit: int) -> ReportData:
    """Return the newest runs of a store as the page has them.

    Args:
        store: The store.
        filters: Which runs, as for `TraceStore.runs`.
        limit: At most so many.

    Raises:
        StoreError: The store cannot be read, or a row was changed from outside.
    """
    try:
        return _collect(store, filters, limit)
    except KPError:
        raise
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        reason = describe_error(error)
        raise StoreError(f"the runs of {store.location} cannot be read: {reason}") from error


def _collect(store: TraceStore, filters: RunFilters, limit: int) -> ReportData:
    number = store.count(most=MOST_COUNTED + 1, **filters)
    data = ReportData(
        store.location.rpartition("/")[2], total=bounded_text(number, MOST_COUNTED, "run")
    )
    credits_ = _credits(store)
    known: set[str] = set()
    for offset in range(0, limit, _RUNS_READ_AT_ONCE):
        page = store.runs(limit=min(_RUNS_READ_AT_ONCE, limit - offset), offset=offset, **filters)
        if not page:
            break
        # A run that is added meanwhile moves the others, so that one comes twice.
        runs = [run for run in page if run.trace_id not in known]
        known.update(run.trace_id for run in runs)
        _add(store, runs, data, credits_)
    positions = {record["id"]: at for at, record in enumerate(data.runs)}
    data.domains = _domains(store, filters, positions, data.runs)
    return data


def read_record(store: TraceStore, trace_id: str) -> dict[str, Any] | None:
    """Return the record of one run as it is now; None if it is gone.

    Raises:
        StoreError: The store cannot be read.
    """
    run, data = store.get(trace_id), ReportData()
    if run is not None:
        _add(store, [run], data, {})
    for record in data.runs:
        del record["credit"]  # which a verdict on this run does not change, and the page has it
    return data.runs[0] if data.runs else None


def _add(
    store: TraceStore,
    runs: list[StoredRun],
    data: ReportData,
    credits_: Mapping[tuple[str, str], str],
) -> None:
    """Add the records and traces of some runs."""
    trace_ids = [run.trace_id for run in runs]
    kept_ids = [run.trace_id for run in runs if run.has_trace]
    verdicts = store.verdicts_by_trace(trace_ids)
    shown = store.shown.of_runs(trace_ids)
    planted = store.recall_tasks.planted(kept_ids)
    texts = store.body_texts(kept_ids)
    prices = current_prices()
    for run in runs:
        body = None
        if run.has_trace:
            try:
                body = body_of(texts[run.trace_id])
            except (ValidationError, KeyError):
                data.damaged_traces += 1
        record = record_of(
            run,
            verdicts.get(run.trace_id, []),
            shown=shown.get(run.trace_id, ()),
            credit=credits_.get((run.domain, run.trace_id)),
            planted=planted.get(run.trace_id),
            prices=prices,
        )
        data.private_runs += run.privacy_level == "private"
        data.runs.append(record)
        data.bodies.append(body)


def _credits(store: TraceStore) -> dict[tuple[str, str], str]:
    """Return the credit of the traces that runs were shown, in words, by domain and trace id."""
    counts = store.shown.outcome_counts_by_domain()
    if not counts:
        return {}
    from kp_langchain.recall.credit import credits_of

    return {
        (domain, trace_id): credit_text(credit)
        for domain, of_domain in counts.items()
        for trace_id, credit in credits_of(of_domain).items()
    }


def _domains(
    store: TraceStore,
    filters: RunFilters,
    positions: Mapping[str, int],
    records: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return what the page has of each domain of its runs.

    Args:
        store: The store.
        filters: Which runs.
        positions: Where the page has each run, by trace id.
        records: The records of the runs.
    """
    if records:  # which are the newest that match
        oldest = datetime.fromtimestamp(records[-1]["at"] // 1000, UTC)
        filters = {**filters, "since": oldest}
    figures = store.figures(**filters)
    is_here = [trace_id in positions for trace_id in figures["trace_id"]]
    figures = {name: list(compress(values, is_here)) for name, values in figures.items()}
    bases = store.models.bases(list(dict.fromkeys(figures["domain"])))
    bases = {domain_name(name): basis for name, basis in bases.items()}
    figures["domain"] = [domain_name(name) for name in figures["domain"]]
    signed = [run for run in store.signed_runs(**filters) if run.trace_id in positions]
    failures = {
        one.domain: one
        for one in failures_by_domain(
            replace(run, domain=domain_name(run.domain)) for run in signed
        )
    }
    effects = _effects(store, filters.get("domain"))
    return [
        _domain(stats, bases.get(stats.domain))
        | {
            "failures": _failures(failures.get(stats.domain), positions, records),
            "effect": effects.get(stats.domain),
        }
        for stats in domain_stats(figures, bases, current_prices())
    ]


def _effects(store: TraceStore, domain: str | None) -> dict[str, dict[str, Any]]:
    """Return what examples do in each domain, in words, by what it is called on the page.

    Unlike the other figures, those are of all runs of the domain.

    Args:
        store: The store.
        domain: Only this domain; None for all.
    """
    from kp_langchain.recall.effect import effects_in

    return {
        domain_name(one.domain): {
            "lines": [one_line(line, _SENTENCE_CHARS) for line in effect_lines(one)],
            "is_stopped": bool(one.stop_reason),
        }
        for one in effects_in(store, domain)
    }


def _failures(
    failures: DomainFailures | None,
    positions: Mapping[str, int],
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Return the groups of failures of a domain; None if all its runs are withheld.

    Args:
        failures: Its failures.
        positions: Where the page has each run, by trace id.
        records: The records of the runs.
    """
    if failures is None:
        return None
    nearest = failures.nearest
    return {
        "text": one_line(failures.text, _SENTENCE_CHARS),
        "nearest": nearest and one_line(f"{nearest.title}; {nearest.rate_text}", _SENTENCE_CHARS),
        "groups": [
            {
                "title": one_line(group.title, _SENTENCE_CHARS),
                "rate": group.rate_text,
                "otherwise": group.otherwise and one_line(group.otherwise, _SENTENCE_CHARS),
                "example": positions[group.example],
                "why": _reason(records[positions[group.example]]),
                "failed": [positions[trace_id] for trace_id in group.failed],
                "unjudged": [positions[trace_id] for trace_id in group.unjudged],
            }
            for group in failures.groups
        ],
    }


def _reason(record: Mapping[str, Any]) -> str:
    """Return why a run failed: the note of its newest verdict, or what speaks against it."""
    notes = [note for *_, note, _source in record["verdicts"] if note]
    return str(notes[-1] if notes else "; ".join(record["flags"]) or record["outcome"])


def _domain(stats: DomainStats, basis: Basis | None) -> dict[str, Any]:
    """Return the figures of a domain, apart from those that the page counts by itself."""
    return {
        "name": stats.domain,
        "gate": stats.gate,
        "basis": one_line(stats.basis, _SENTENCE_CHARS),
        "has_basis": basis is None or not basis.is_missing,
        "median": figure(stats.median),
        "threshold": figure(stats.threshold),
        # Every second part is code.
        "sentence": one_line(stats.explanation(), _SENTENCE_CHARS).split("`"),
        "parts": [
            [part.label, figure(part.median), figure(part.weight), figure(part.lost)]
            for part in stats.parts
        ],
        "rules": [
            [rule.name, rule.runs, rule.passes_lost, figure(-rule.change)] for rule in stats.rules
        ],
        "redactions": dict(stats.redactions),
        "redacted_runs": stats.redacted_runs,
        "recovered": stats.recovered,
        "compared": stats.compared,
        "vetoed": dict(stats.vetoed),
        "usage": [[f"{one.runs} ({one.count:,})", *one.cells()] for one in stats.usage],
        "unpriced": stats.usage[0].unpriced if stats.usage else 0,
    }
