"""Stored runs in the forms that other programs read: training data, trajectories, spans, tables."""
