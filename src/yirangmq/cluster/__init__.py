"""The same queues on an etcd cluster: a thin client, and a fenced dispatcher per queue."""
