"""Message store in etcd: the leader keeps the state in memory and commits each transaction to etcd."""
