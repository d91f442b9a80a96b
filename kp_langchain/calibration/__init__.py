"""Confidence, thresholds and weights learned from verdicts, one domain at a time.

Nothing here depends on the store or the command line, and only fitting needs scikit-learn.
"""
