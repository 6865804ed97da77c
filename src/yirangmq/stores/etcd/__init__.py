"""The store whose messages are kept in etcd."""
