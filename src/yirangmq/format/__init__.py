"""Bytes on disk and values, in both directions. Knows: JSON, the envelope, the dead-letter record.
Does not know: files, sockets. Public and versioned; the golden files in tests/golden hold it still."""
