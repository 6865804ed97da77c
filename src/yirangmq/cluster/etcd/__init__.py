"""A client of etcd: connections, leases, watches, quotas and upkeep."""
