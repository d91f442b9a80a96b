"""`KeptShare`: what the gate of a domain promises to keep, and what it has kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kp_langchain.cli.plain_tables import percent
from kp_langchain.gate.check import pass_rate_of

if TYPE_CHECKING:
    from kp_langchain.domain_policy import DomainPolicy, Gate
    from kp_langchain.gate.check import JudgedRun


@dataclass(frozen=True, slots=True)
class KeptShare:
    """What the gate of a domain with a model promises, and what it has kept since.

    Attributes:
        gate: Whether it holds the score or the worth against its threshold.
        pass_rate: The share of runs that it is to keep, 0 to 1; None for a fixed threshold.
        threshold: The fixed threshold, 0 to 1; None with a pass rate.
        runs: How many of the last runs were judged with that pass rate, or without one.
        kept: The share of them that it kept, 0 to 1; None if there is none.
    """

    gate: Gate
    pass_rate: float | None
    threshold: float | None
    runs: int
    kept: float | None

    @classmethod
    def of(cls, policy: DomainPolicy, recent: Sequence[JudgedRun]) -> KeptShare:
        """Return what a policy promises and what was kept of runs judged with it.

        Args:
            policy: The policy of a domain with a model.
            recent: The last runs, as `TraceStore.recent_values` returns them.
        """
        rate = pass_rate_of(policy, policy.gate, has_model=True)
        fixed = policy.worth_threshold if policy.gate == "worth" else policy.threshold
        passes = [run.passes for run in recent if run.pass_rate == rate]
        return cls(
            gate=policy.gate,
            pass_rate=rate,
            threshold=fixed if rate is None else None,
            runs=len(passes),
            kept=sum(passes) / len(passes) if passes else None,
        )

    def __str__(self) -> str:
        promise = f"what reaches {self.gate} {self.threshold}"
        if self.pass_rate is not None:
            promise = f"the best {percent(self.pass_rate)} by {self.gate}"
        kept = "no run was judged by it yet"
        if self.kept is not None:
            kept = f"of the last {self.runs} runs it kept {percent(self.kept)}"
        return f"The gate keeps {promise}; {kept}."
