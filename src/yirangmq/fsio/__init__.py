"""File I/O below the stores: atomic files, direct I/O, file locks, file modes and background threads.

Nothing in this package depends on messages or file formats."""
