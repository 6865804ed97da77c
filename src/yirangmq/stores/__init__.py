"""Places to keep messages. Knows: disks. Does not know: doors, callers, why a message moves.
Each store is a ``core.ports.Store`` and passes tests/contracts."""
