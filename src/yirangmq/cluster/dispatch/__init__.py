"""Dispatcher of one queue in etcd: its in-memory state, its planner and its recovery."""
