"""Scores archives of past runs, in blocks: on one machine or on many, with one result."""
