"""`DomainPolicy`: threshold, weights and privacy of the runs of one domain."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kp_langchain.config_types import UNIT_INTERVAL, Days, PassRate, UnitInterval
from kp_langchain.schema import PrivacyLevel, Visibility
from kp_langchain.weights import WEIGHT_NAMES, ScoringWeights

Gate = Literal["score", "worth"]
"""What a run is held against a threshold by."""


_THRESHOLDS = ("threshold", "worth_threshold")


class DomainPolicy(BaseModel):
    """The policy for the runs of one domain. A field that is omitted or None is inherited.

    Attributes:
        threshold: Score (0 to 1) that a run must reach to be kept.
        gate: By what runs are gated: by `score`, or by `worth`, the calibrated confidence times
            (0.5 + novelty / 2). Where the domain has no confidence model, by the score in any case.
        worth_threshold: With `worth`, the worth (0 to 1) that a run must reach.
        pass_rate: Share of runs, above 0, at most 1, that is to pass: in place of a fixed
            threshold, the gate follows the scores or worths of the domain's last 300 runs. It comes
            before both thresholds, unless it is inherited and they are not. Where the domain has a
            model and no threshold is set, 0.1.
        twin_similarity: The similarity (0 to 1) from which a run repeats a kept one. It is then not
            kept, unless it is surer by 0.15 and takes the place of that one. 1 switches this off.
        weights: Scoring weights that replace the domain's built-in profile.
        visibility: Who may see a contributed trace: `private`, `org` or `network`. A registry need
            not enforce it: the public one shows `org` to everybody.
        privacy_level: What redaction removes: `aggregated` and `federated` remove secrets and
            identifiers, `private` only secrets.
        keep: Which runs' traces the store keeps: of those that `passed`, or of `all`.
        keep_days: With `passed`, days for which the store keeps the traces of the other runs, so
            that a verdict can still contribute them; 0 for not at all.

    Raises:
        pydantic.ValidationError: A field is unknown, or its value is wrong.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    threshold: UnitInterval | None = Field(default=None, description=UNIT_INTERVAL)
    gate: Gate = Field(default="score", description="'score' or 'worth'")
    worth_threshold: UnitInterval | None = Field(default=None, description=UNIT_INTERVAL)
    pass_rate: PassRate | None = Field(default=None, description="a share above 0, at most 1")
    twin_similarity: UnitInterval = 0.9
    weights: ScoringWeights | None = Field(
        default=None,
        description=f"{', '.join(WEIGHT_NAMES[:-1])} and {WEIGHT_NAMES[-1]}, "
        "each from 0 to 1, together 1",
    )
    visibility: Visibility = Field(
        default="private", description="one of 'private', 'org', 'network'"
    )
    privacy_level: PrivacyLevel = Field(
        default="aggregated", description="one of 'aggregated', 'federated', 'private'"
    )
    keep: Literal["passed", "all"] = Field(default="passed", description="'passed' or 'all'")
    keep_days: Days = 7.0

    def given(self) -> dict[str, Any]:
        """Return the fields that have a value of their own, by name."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def stays_local(self) -> bool:
        """Whether runs stay on this machine because only their secrets are redacted."""
        return self.privacy_level == "private"

    def merged_over(self, base: DomainPolicy) -> DomainPolicy:
        """Return `base` with the fields of this policy replacing its own.

        A pass rate comes before thresholds, so that of `base` does not outlast a threshold that
        this policy gives.
        """
        given = self.given()
        if base.pass_rate is not None and not given.keys().isdisjoint(_THRESHOLDS):
            given.setdefault("pass_rate", None)
        return base.model_copy(update=given)
