"""File locks and background threads, below the stores. Does not know: messages, formats."""
