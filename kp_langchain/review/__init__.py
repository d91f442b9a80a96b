"""What shows people why runs were kept: statistics of domains, and two runs side by side.

Statistics are loaded when they are first used: they load NumPy, which a list of runs does not need.
"""

from typing import TYPE_CHECKING

from kp_langchain._lazy import lazy_names

if TYPE_CHECKING:
    from kp_langchain.review.stats import AtThreshold as AtThreshold
    from kp_langchain.review.stats import DomainStats as DomainStats
    from kp_langchain.review.stats import PartStats as PartStats
    from kp_langchain.review.stats import RuleStats as RuleStats
    from kp_langchain.review.stats import domain_stats as domain_stats

__all__, __getattr__ = lazy_names(
    __name__,
    {"kp_langchain.review.stats": "AtThreshold DomainStats PartStats RuleStats domain_stats"},
)
