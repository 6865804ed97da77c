"""Commands: one module for a command or a group of commands, named after it."""
