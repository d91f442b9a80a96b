"""What shows people why runs were kept: statistics of domains, and two runs side by side."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kp_langchain.review.stats import (
        AtThreshold,
        DomainStats,
        PartStats,
        RuleStats,
        domain_stats,
    )
else:  # statistics load NumPy, which a list of runs does not need

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from kp_langchain.review import stats

        return getattr(stats, name)


__all__ = ["AtThreshold", "DomainStats", "PartStats", "RuleStats", "domain_stats"]
