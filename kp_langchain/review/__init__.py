"""What shows people why runs were kept: statistics of domains, and two runs side by side.

Statistics are loaded when they are first used: they load NumPy, which a list of runs does not need.
"""

from typing import TYPE_CHECKING

from kp_langchain._lazy import loader

if TYPE_CHECKING:
    from kp_langchain.review.stats import (
        AtThreshold,
        DomainStats,
        PartStats,
        RuleStats,
        domain_stats,
    )

__all__ = ["AtThreshold", "DomainStats", "PartStats", "RuleStats", "domain_stats"]

__getattr__ = loader(__name__, dict.fromkeys(__all__, "kp_langchain.review.stats"))
