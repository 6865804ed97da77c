"""The command line: flags in, tables or JSON out, an exit code. Knows every floor below, has no rules of its own.
A command is one value (``command.Command``); ``parser.TABLE`` lists them all."""
