"""Fault injection: every I/O call of a scripted workload fails in turn, once and then for a while.

After each fault the next operation must work, nothing confirmed may be lost, and nothing refused may appear."""
