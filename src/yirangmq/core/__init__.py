"""The rules. Knows: messages, policies, states, the time it is handed.
Does not know: disks, clocks, chance, sockets. Nothing in this folder does IO."""
