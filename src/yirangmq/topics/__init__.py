"""Topic delivery: publish path, live fan-out, catch-up from the log, durable cursors, retention.

Sockets, the event loop and protocols are ports (``topics.ports``); nothing here imports asyncio."""
