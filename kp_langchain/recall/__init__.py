"""Recall: kept traces as examples for new runs."""
