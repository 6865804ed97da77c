"""Two nodes of which one is active: heartbeats, takeover, what is remembered. The rules are in ``core.failover``."""
