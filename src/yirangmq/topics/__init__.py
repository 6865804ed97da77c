"""The feed of topics: publishing, live subscribers, recovery. Knows: the log, lines to clients. Does not know: which
sockets these are, asyncio."""
