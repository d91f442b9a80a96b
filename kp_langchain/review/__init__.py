"""What shows people why runs were kept: statistics of domains, and two runs side by side."""
