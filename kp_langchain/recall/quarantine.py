"""Pulls units from a registry into quarantine.

`UnitExaminer` takes each unit apart and builds it anew: bounded, redacted by this installation's
rules, searched for planted instructions, and never to be contributed from here. It is shown to no
run before a person or a rule admits it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kp_langchain.recall.unit_examiner import RefusedUnitError, Scan, UnitExaminer
from kp_langchain.registry.answers import Answer
from kp_langchain.registry.search import DEFAULT_LIMIT

if TYPE_CHECKING:
    from kp_langchain.registry.client import Registry
    from kp_langchain.store import TraceStore
    from kp_langchain.store.registry_units import ExaminedUnit, Fate


@dataclass(slots=True)
class Pull:
    """What a pull did.

    Attributes:
        domain: The domain that was asked for.
        registry: URL of the registry.
        answer: The registry's last answer; if it is not `done`, not all was read.
        read: How many units were read.
        total: How many units the registry says it has; None if it does not say.
        next_offset: Where to continue; None if the registry has no more.
        fates: What became of the units that could be examined, as a count for each `Fate`.
        skipped: How many were not taken, by the reason.
        with_findings: How many of the new and changed ones have findings.
        admitted: How many were admitted by the rule.
    """

    domain: str
    registry: str
    answer: Answer
    read: int = 0
    total: int | None = None
    next_offset: int | None = None
    fates: Counter[Fate] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    with_findings: int = 0
    admitted: int = 0


def pull(
    store: TraceStore,
    registry: Registry,
    *,
    domain: str,
    q: str | None = None,
    min_quality: float | None = None,
    limit: int = DEFAULT_LIMIT,
    offset: int = 0,
    timeout_s: float = 60.0,
    admit_clean: bool = False,
    sleep: Callable[[float], object] = time.sleep,
    scan: Scan | None = None,
) -> Pull:
    """Read the reasoning traces that a registry has for a domain, and write them into quarantine.

    Each page is written before the next is read.

    Args:
        store: The store.
        registry: The registry.
        domain: The domain. Units of another one are not taken, whatever the registry sends.
        q: Only units with these words, as the registry understands them.
        min_quality: Only units whose claimed quality is at least this, 0 to 1.
        limit: Read at most so many.
        offset: Leave out so many at the beginning, which have the highest claimed quality.
        timeout_s: Seconds to take at most. A request under way is not interrupted.
        admit_clean: Whether to admit those without findings, unless they were decided on, or have
            changed at the registry.
        sleep: Waits some seconds, as the registry's limit demands.
        scan: What looks for planted instructions; by default `scan_for_instructions`.

    Returns:
        What it did. What the registry does wrong is in there, and never raised.

    Raises:
        ConfigError: An argument or the settings cannot be used.
        StoreError: The store cannot be read or written.
    """
    examiner = UnitExaminer.of_store(store, domain, min_quality=min_quality, scan=scan)
    pulled = Pull(domain, registry.url, Answer("done", ""))
    seen: set[str] = set()
    pages = registry.search(
        domain=domain,
        q=q,
        min_quality=min_quality,
        limit=limit,
        offset=offset,
        timeout_s=timeout_s,
        outbox=store.outbox,
        sleep=sleep,
    )
    for page in pages:
        pulled.answer, pulled.next_offset = page.answer, page.next_offset
        pulled.total = pulled.total if page.total is None else page.total
        pulled.read += page.read
        pulled.skipped.update(page.skipped)
        units = list(_examined(examiner, page.units, seen, pulled.skipped))
        fates = store.pulled.write(units, registry=registry.url, domain=domain) if units else []
        pulled.fates.update(fates)
        with_fates = list(zip(units, fates, strict=True))
        pulled.with_findings += sum(
            bool(unit.findings) for unit, fate in with_fates if fate in ("new", "changed")
        )
        ids = [unit.trace.id for unit, fate in with_fates if fate in ("new", "unchanged")]
        if admit_clean and ids:
            least = min_quality or 0.0
            done = store.pulled.admit_clean(min_quality=least, domain=domain, among=ids)
            pulled.admitted += len(done)
    return pulled


def _examined(
    examiner: UnitExaminer,
    units: Sequence[Mapping[str, Any]],
    seen: set[str],
    skipped: Counter[str],
) -> Iterable[ExaminedUnit]:
    """Yield the units that may be written, each id once; count the others by the reason."""
    for unit in units:
        try:
            examined = examiner.examine(unit)
        except RefusedUnitError as error:
            skipped[str(error)] += 1
            continue
        if examined.trace.id in seen:
            skipped["read before"] += 1
            continue
        seen.add(examined.trace.id)
        yield examined
