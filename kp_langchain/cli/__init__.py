"""The command line: `app` runs it, `commands` holds one module a command, the rest is shared."""
