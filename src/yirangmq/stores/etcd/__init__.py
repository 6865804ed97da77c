"""Message store in etcd: its leader keeps the state in memory and commits each transaction to etcd."""
