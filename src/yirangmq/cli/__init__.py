"""Command line: flags in, tables or JSON out, and an exit code.

A command is one value (``cli.command``); ``cli.main`` has the table of all commands. Commands parse and print; the
rules are in the packages below."""
