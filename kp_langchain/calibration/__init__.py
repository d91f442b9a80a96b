"""Confidence, thresholds and weights learned from verdicts, one domain at a time.

Nothing here knows of a store or a command line, and only fitting needs scikit-learn.
"""
