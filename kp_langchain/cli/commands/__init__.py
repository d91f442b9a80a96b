"""The commands: one module each, named as the command.

A module defines, under its own name, either the function that is the command or the `typer.Typer`
that groups its subcommands. `kp_langchain.cli.app` adds every module of this folder by itself. The
module of a command whose name Python reserves has an underscore behind it: `import_`.
"""
