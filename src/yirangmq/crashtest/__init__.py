"""Crash tests of the stores: simulated power cuts, and fault injection (``crashtest.faults``).

A power-cut run records the I/O of a store. At each point it rebuilds the disks that a power cut could leave, and opens
the store on each of them (docs/power-cuts.md)."""
