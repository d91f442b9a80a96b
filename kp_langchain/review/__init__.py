"""What shows people why runs were kept, what they took, and which failures are alike.

Statistics are loaded when they are first used: they load NumPy, which a list of runs does not need.
"""

from typing import TYPE_CHECKING

from kp_langchain._lazy import lazy_names

if TYPE_CHECKING:
    from kp_langchain.calibration.failure_groups import DomainFailures as DomainFailures
    from kp_langchain.calibration.failure_groups import FailureGroup as FailureGroup
    from kp_langchain.calibration.failure_groups import failures_by_domain as failures_by_domain
    from kp_langchain.prices import ModelPrice as ModelPrice
    from kp_langchain.prices import Prices as Prices
    from kp_langchain.review.stats import AtThreshold as AtThreshold
    from kp_langchain.review.stats import DomainStats as DomainStats
    from kp_langchain.review.stats import PartStats as PartStats
    from kp_langchain.review.stats import RuleStats as RuleStats
    from kp_langchain.review.stats import domain_stats as domain_stats
    from kp_langchain.review.stats import stats_of as stats_of
    from kp_langchain.review.usage_stats import UsageStats as UsageStats
    from kp_langchain.usage import ModelCall as ModelCall
    from kp_langchain.usage import ModelUsage as ModelUsage
    from kp_langchain.usage import Tokens as Tokens
    from kp_langchain.usage import Usage as Usage

__all__, __getattr__ = lazy_names(
    __name__,
    {
        "kp_langchain.calibration.failure_groups": "DomainFailures FailureGroup failures_by_domain",
        "kp_langchain.review.stats": (
            "AtThreshold DomainStats PartStats RuleStats domain_stats stats_of"
        ),
        "kp_langchain.review.usage_stats": "UsageStats",
        "kp_langchain.prices": "ModelPrice Prices",
        "kp_langchain.usage": "ModelCall ModelUsage Tokens Usage",
    },
)
