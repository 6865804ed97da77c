"""Fault injection: every I/O call of a scripted workload fails in turn, first once and then for a while.

After each fault the next operation must work, nothing confirmed may be lost, and nothing rejected may appear."""
