"""What shows people why runs were kept: statistics of domains, and two runs side by side."""

from kp_langchain.review.stats import AtThreshold, DomainStats, PartStats, RuleStats, domain_stats

__all__ = ["AtThreshold", "DomainStats", "PartStats", "RuleStats", "domain_stats"]
