"""Message stores (SQLite, files, etcd, memory), the topic log, the journal, and shared modules.

Every message store implements ``core.ports.Store`` and passes ``tests/contracts``; ``stores.open`` picks one by URL."""
