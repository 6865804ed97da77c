"""The store in one SQLite file: shared by processes, or owned by a server with a redo log."""
