"""The dispatcher of one queue on etcd: its state, its plans and its recovery."""
