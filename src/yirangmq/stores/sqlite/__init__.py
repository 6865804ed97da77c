"""SQLite store: one file, shared by processes or owned by a server with a redo log."""
