"""Client library: queues and topics of a server over its native protocol.

Every operation is written once, as a coroutine. The asyncio client runs it on an event loop; the blocking client
runs the same coroutine over blocking sockets. The client imports ``wire``, ``format`` and ``core``, never the broker
or a store."""
