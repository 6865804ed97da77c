"""The consumer process: takes messages, runs handlers, keeps leases alive, says how it went, obeys its operator.
Knows: the verbs of queues it is handed, core, format. Does not know: stores, sockets, brokers."""
