"""Runs that were recorded elsewhere: files of other tracers, read and replayed to a recorder."""
