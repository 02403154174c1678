"""The command line: arguments in, lines out."""

from dubio.cli.commands import app, main

__all__ = ["app", "main"]
