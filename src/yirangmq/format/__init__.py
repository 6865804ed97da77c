"""Formats of messages and records: envelope, dead letters, CloudEvents, exports, journal lines, JSON.

Conversion between values and bytes, without files or sockets. The formats are public and versioned; tests/golden pins
their bytes."""
