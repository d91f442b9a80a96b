"""Looking at what was scored: the command line."""
