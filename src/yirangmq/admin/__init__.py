"""Named methods of a server beside the hot path: queues, messages, topics, bridges, health. Used by every protocol."""
