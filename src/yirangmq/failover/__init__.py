"""Active/standby failover pair: heartbeats, takeover, witness, and the state that each node keeps on disk.

The decisions are made in ``core.failover`` and ``core.failover_node``; this package does the I/O."""
